# SPDX-License-Identifier: Apache-2.0
"""What files and their names tell of a source: the format, and the schema."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from forebay.errors import ConfigurationError, DataError
from forebay.sources.files import catalog
from forebay.sources.files.columns import METADATA, metadata_type, with_partitions
from forebay.stores.file_status import FileStatus

if TYPE_CHECKING:
    from forebay.sources.files.source import FileSource


def told_by_paths(source: FileSource) -> str | None:
    """Return the format that the suffixes of the user's paths tell; None if they tell none.

    Raises:
        ConfigurationError: They tell several.
    """
    told = {catalog.format_of_path(path) for path in source.all_paths()}
    if len(told) == 1:
        return told.pop()
    if None in told:
        return None
    raise ConfigurationError(
        f"the file format is not given, and the suffixes of the paths do not agree on one: "
        f"{_counted(source.all_paths())}",
        source=source.name,
        option="fileFormat",
        advice=f"give fileFormat as one of {', '.join(catalog.NAMES)}",
    )


def told_by_files(files: Sequence[FileStatus]) -> str | None:
    """Return the format on which the suffixes of listed files agree; None if they do not."""
    told = {catalog.format_of_path(file.path) for file in _with_content(files)}
    return told.pop() if len(told) == 1 else None


def untold(source: FileSource, files: Sequence[FileStatus]) -> ConfigurationError:
    """Return the error for files that do not tell one format."""
    below = f"below {', '.join(source.all_paths())}"
    what = f"there are no files {below} to tell it"
    if files:
        what = f"the suffixes of the files {below} do not tell one: "
        what += _counted([file.path for file in _with_content(files)])
    return ConfigurationError(
        f"the file format is not given, and {what}",
        source=source.name,
        option="fileFormat",
        advice=f"give fileFormat as one of {', '.join(catalog.NAMES)}",
    )


def inferred_schema(source: FileSource) -> pa.Schema:
    """Return the schema that files and directories tell, with `_metadata` if it is wanted. Looks at the store.

    Raises:
        ConfigurationError: There is nothing to infer a schema from, or it clashes with an option.
        DataError: A file is damaged.
        RetriableError: The store did not answer.
    """
    index = source.list()
    if not index.files and source.file_format is None and told_by_paths(source) is None:
        raise untold(source, ())
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


def _inside(source: FileSource, files: Sequence[FileStatus]) -> pa.Schema:
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


def _with_content(files: Sequence[FileStatus]) -> Sequence[FileStatus]:
    """Return the files that hold something: an empty one says nothing of the others. All of them if all are empty."""
    return [file for file in files if file.size] or files


def _counted(paths: Sequence[str]) -> str:
    """Return the suffixes of some paths, each with how many have it, the most frequent ones first."""
    counts = Counter(catalog.suffix_of_path(path) or "no suffix" for path in paths)
    shown = [f"{count} × {suffix}" for suffix, count in counts.most_common(8)]
    return ", ".join([*shown, "…"] if len(counts) > len(shown) else shown)
