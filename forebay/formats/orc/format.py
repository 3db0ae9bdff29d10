# SPDX-License-Identifier: Apache-2.0
"""Reads ORC files as Spark's vectorised reader does."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, ClassVar, cast

import pyarrow as pa

from forebay.formats.filters import Statistics
from forebay.formats.orc.convert import Converter, Times, inferred_schema
from forebay.formats.orc.footer import Tail, open_stripe, read_tail
from forebay.formats.orc.statistics import bytes_per_row, column_statistics, read_statistics
from forebay.formats.orc.stripes import Pick, scan
from forebay.formats.units import BatchRows, Malformed, OpenUnits, UnitColumn, UnitFormat, wrap_damage
from forebay.formats.values.dates import Zone, session_zone
from forebay.options import option

if TYPE_CHECKING:
    from forebay.formats.base import InputFile

_WRITING = "it is for writing; each ORC file names its own codec"


@dataclass(frozen=True, kw_only=True)
class OrcOptions:
    """The options of ORC files."""

    merge_schema: bool = option(default=False, doc="infer the schema from all files, not only from the first")
    case_sensitive: bool = option(
        default=False, doc="compare names of columns exactly: the session's `spark.sql.caseSensitive`"
    )
    time_zone: str = "UTC"

    @property
    def zone(self) -> Zone:
        """The time zone in which wall-clock times in files are read."""
        return session_zone(self.time_zone)


@dataclass(frozen=True)
class OrcFormat(UnitFormat):
    """Reads ORC files. The units are stripes."""

    name: ClassVar[str] = "orc"
    units: ClassVar[str] = "stripes"
    options_class: ClassVar[type] = OrcOptions
    refused: ClassVar[Mapping[str, str]] = {"compression": _WRITING, "orc.compress": _WRITING}

    options: OrcOptions = OrcOptions()

    @contextmanager
    def opened(self, file: InputFile) -> Iterator[OpenOrc]:
        """Open a file for a `with` block, and read its footer."""
        with file.open() as raw, wrap_damage(file.path, "ORC"):
            yield OpenOrc(file.path, raw, read_tail(raw, file), self.options)


class OpenOrc(OpenUnits[Pick]):
    """An open ORC file."""

    def __init__(self, path: str, raw: BinaryIO, tail: Tail, options: OrcOptions) -> None:
        self.path = path
        self._raw = raw
        self._tail = tail
        self._case_sensitive = options.case_sensitive
        self._times = Times(path, tail.proleptic, options.zone)
        self._converter = Converter(path, options.case_sensitive, self._times)
        self._statistics: list[list[bytes]] | None = None

    @property
    def starts(self) -> Sequence[int]:
        """The first row of each stripe, followed by the number of rows of the file."""
        return self._tail.starts

    def schema(self) -> pa.Schema:
        """Return the schema that Spark infers from the file."""
        return inferred_schema(self._tail.root, self.path, self._case_sensitive)

    def sizes(self) -> Sequence[int]:
        """Return the size of each stripe in bytes."""
        return [stripe.size for stripe in self._tail.stripes]

    def column(self, field: pa.Field) -> UnitColumn[Pick]:
        """Return where a column of the schema is in the file, and its conversion."""
        picked = self._converter.column(field.name, field.type, self._tail.root, field.name)
        return UnitColumn(field, picked.pick, picked.convert)

    def statistics(self, unit: int, column: UnitColumn[Pick]) -> Statistics | None:
        """Return what the file says of the values of a column in a stripe. The first call reads the statistics."""
        if self._statistics is None:
            try:
                self._statistics = read_statistics(self._raw, self._tail)
            except Malformed:  # reading the rows shows whether the file is damaged
                self._statistics = []
        stripe = self._tail.stripes[unit]
        if stripe.number >= len(self._statistics):
            return None
        node = cast("Pick", column.stored).source
        return column_statistics(self._statistics[stripe.number], node, column.field.type, stripe, self._tail)

    def batches(self, columns: Sequence[UnitColumn[Pick]], unit: int, rows: BatchRows) -> Generator[pa.RecordBatch]:
        """Yield the rows of a stripe as they are stored."""
        stripe = open_stripe(self._raw, self._tail, self._tail.stripes[unit])
        self._times.writer = stripe.zone
        picks = [cast("Pick", column.stored) for column in columns]
        nodes = {inside.source.id: inside.source for pick in picks for inside in pick.walk()}
        stripe.announce(nodes)
        size = bytes_per_row(self._tail, nodes.values())
        rows.begin(size or 0, sure=size is not None)
        return scan(stripe, picks, rows.most)
