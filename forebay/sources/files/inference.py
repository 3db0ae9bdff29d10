# SPDX-License-Identifier: Apache-2.0
"""What files and their names tell of a source: the format, and the schema."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from forebay.errors import ConfigurationError, DataError
from forebay.sources.files import catalog
from forebay.sources.files.columns import METADATA, metadata_type, with_partitions
from forebay.sources.files.format_hint import format_of_paths, unknown_format
from forebay.sources.files.scan import FileScan
from forebay.stores.file_status import FileStatus


def inferred_schema(source: FileScan) -> pa.Schema:
    """Return the schema that files and directories tell, with `_metadata` if it is wanted. Looks at the store.

    Raises:
        ConfigurationError: There is nothing to infer a schema from, or it clashes with an option.
        DataError: A file is damaged.
        RetriableError: The store did not answer.
    """
    index = source.list()
    if not index.files and source.file_format is None and format_of_paths(source.all_paths(), source.name) is None:
        raise unknown_format(source.all_paths(), (), source.name)
    if not index.files and source.format_name() not in catalog.FIXED:
        raise ConfigurationError(
            f"there are no files to infer a schema from below {', '.join(source.all_paths())}",
            source=source.name,
            option="path",
            advice="give a schema, or check path, pathGlobFilter and the modified… options",
        )
    schema = with_partitions(_inside(source, index.files), index.partition_schema)
    if not schema.names:
        raise ConfigurationError(
            f"no column can be inferred from the files below {', '.join(source.all_paths())}: they hold no record",
            source=source.name,
            option="path",
            advice="give a schema",
        )
    if not source.include_metadata:
        return schema
    if METADATA in schema.names:
        raise ConfigurationError(
            f"the files have a column {METADATA} of their own",
            source=source.name,
            option="includeMetadata",
            advice="leave includeMetadata out, or give a schema without that column",
        )
    return schema.append(pa.field(METADATA, metadata_type(source.format_name())))


def _inside(source: FileScan, files: Sequence[FileStatus]) -> pa.Schema:
    """Return the schema of what is in the files; without those that the user said to leave out."""
    from forebay.sources.files.read_errors import placed, readable

    file_format = source.format()
    stored = [source.stored(status) for status in files]
    try:
        return file_format.infer_schema(stored)
    except DataError as error:
        kept = [one for one in stored if readable(source, file_format, one)]
        if not 0 < len(kept) < len(stored):
            raise placed(error, source) from error.__cause__
        return file_format.infer_schema(kept)
