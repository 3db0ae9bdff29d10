# SPDX-License-Identifier: Apache-2.0
"""Detects new columns in later files of a stream (`schemaEvolution=addNewColumns`).

Spark fixes the schema of a query when the query starts. So a file with a new column ends the query before the
micro-batch is committed. A restart infers the schema again, from old and new files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from forebay.errors import ConfigurationError, DataError
from forebay.formats.base import FileFormat
from forebay.sources.files.scan import FileScan
from forebay.stores.stored_file import StoredFile


def check_evolution(source: FileScan) -> None:
    """Refuse `schemaEvolution=addNewColumns` for a stream whose schema the user or the file format has fixed.

    Raises:
        ConfigurationError: `addNewColumns` is set, but the schema is not inferred from the files.
    """
    if not source.adds_columns or (source.schema_inferred and not source.format().fixed_schema):
        return
    fixed = f"the columns of {source.format_name()} files are fixed" if source.schema_inferred else "a schema is given"
    raise ConfigurationError(
        f"schemaEvolution=addNewColumns needs an inferred schema, but {fixed}",
        source=source.name,
        option="schemaEvolution",
        advice="remove schemaEvolution, or give no schema so that forebay infers it; to add columns to a given schema, "
        "restart the query with another schema",
    )


def check_new_columns(source: FileScan, file_format: FileFormat, stored: StoredFile, known: pa.Schema) -> None:
    """Refuse a file with columns that the schema `known` lacks. Called on a fetcher thread before the file is read.

    Raises:
        DataError: There are such columns. The error names the file and the columns.
    """
    try:
        found = file_format.merged_schema([stored])
    except DataError:
        return  # the read will find the same damage, and may keep the rows before it
    added = list(_added(known, found))
    if added:
        columns = ", ".join(map(repr, added))
        raise DataError(
            f"the file {stored.path!r} has new columns, which are not in the schema of this query: {columns}",
            source=source.name,
            split=stored.path,
            option="schemaEvolution",
            advice="restart the query from load(): load() infers the schema again, and the query reads this file "
            "with the new columns",
        )


def _added(known: Iterable[pa.Field], found: Iterable[pa.Field], above: str = "") -> Iterator[str]:
    """Yield the dotted paths of fields that `found` has and `known` lacks, also inside structs, arrays and maps."""
    before = {field.name.lower(): field.type for field in known}
    for field in found:
        path = above + field.name
        kind = before.get(field.name.lower())
        if kind is None:
            yield path
        else:
            yield from _added(_inside(kind), _inside(field.type), f"{path}.")


def _inside(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(at) for at in range(kind.num_fields)]
