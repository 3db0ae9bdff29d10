# SPDX-License-Identifier: Apache-2.0
"""Reads ORC files as Spark's vectorised reader does."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, BinaryIO, ClassVar

import pyarrow as pa

from forebay.errors import DataError
from forebay.formats.base import FileFormat, batch_of
from forebay.formats.filters.expressions import Expression, leaves
from forebay.formats.filters.statistics import kept_ranges
from forebay.formats.orc.convert import Converter, Wanted
from forebay.formats.orc.lengths import MOST_ROWS, rows_per_batch
from forebay.formats.orc.projection import Pick, StripeFile
from forebay.formats.orc.scan import scan_stripe
from forebay.formats.orc.schema import inferred_schema
from forebay.formats.orc.skipping import matching_stripes
from forebay.formats.orc.stripes import StripeFooter, announce_streams, read_stripe_footer
from forebay.formats.orc.tail import Stripe, Tail, read_tail, wrap_damage
from forebay.formats.orc.times import Times, writer_zone
from forebay.formats.orc.wire import Malformed
from forebay.formats.values.spark_types import merged
from forebay.formats.values.zones import Zone, session_zone
from forebay.options import option

if TYPE_CHECKING:
    from forebay.formats.base import InputFile

_log = logging.getLogger(__name__)

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
class OrcFormat(FileFormat):
    """Reads ORC files. Positions are row indexes. Slices begin at stripes; a read can begin at any row."""

    name: ClassVar[str] = "orc"
    options_class: ClassVar[type] = OrcOptions
    refused: ClassVar[Mapping[str, str]] = {"compression": _WRITING, "orc.compress": _WRITING}
    counts_rows: ClassVar[bool] = True

    options: OrcOptions = OrcOptions()

    @property
    def case_sensitive(self) -> bool:
        """Whether names of columns are compared exactly: the option `caseSensitive`."""
        return self.options.case_sensitive

    def infer_schema(self, files: Sequence[InputFile]) -> pa.Schema:
        """Infer the schema of the first file, by path, that has columns. With `mergeSchema`, merge all schemas."""
        schema: pa.Schema | None = None
        for file in sorted(files, key=lambda file: file.path):
            with file.open() as raw:
                tail = read_tail(raw, file)
            found = inferred_schema(tail.root, file.path, self.options.case_sensitive)
            schema = merged(schema, found, file.path, self.options.case_sensitive) if schema else found
            if schema.names and not self.options.merge_schema:
                break
        if schema is None:
            raise ValueError("no files to infer a schema from")
        return schema

    def merged_schema(self, files: Sequence[InputFile]) -> pa.Schema:
        """Merge the schemas of all files, as `infer_schema` does with `mergeSchema`."""
        return replace(self, options=replace(self.options, merge_schema=True)).infer_schema(files)

    def sliceable(self, file: InputFile) -> bool:
        """Return True: any row index is a position."""
        return True

    def borders(self, file: InputFile, target_bytes: int) -> list[int]:
        """Return first rows of stripes that cut the file into slices of about `target_bytes`. Reads the footer."""
        if not file.size:
            return []
        with file.open() as raw:
            tail = read_tail(raw, file)
        cuts: list[int] = []
        filled = 0
        for stripe, row in zip(tail.stripes, tail.starts, strict=False):
            if filled and filled + stripe.size // 2 > target_bytes:
                cuts.append(row)
                filled = 0
            filled += stripe.size
        return cuts

    def matching_ranges(
        self, file: InputFile, schema: pa.Schema, row_filter: Expression, position: int, end: int | None
    ) -> list[tuple[int, int | None]]:
        """Return the row ranges of the stripes that may match by their statistics. Reads footer and statistics."""
        if not file.size:
            return [(position, end)]
        names = sorted({leaf.column for leaf in leaves(row_filter)}.intersection(schema.names))
        with file.open() as raw:
            tail = read_tail(raw, file)
            wanted = _Reader(file.path, raw, tail, schema, names, self.options).wanted("")
            columns = {name: (one, schema.field(name).type) for name, one in zip(names, wanted, strict=True)}
            keep = matching_stripes(raw, tail, row_filter, columns)
        _log.info("%s: rowFilter leaves out %d of %d stripes", file.path, keep.count(False), len(keep))
        return kept_ranges(keep, tail.starts, position, end)

    def read(
        self,
        file: InputFile,
        schema: pa.Schema,
        *,
        columns: Sequence[str] | None = None,
        position: int = 0,
        end: int | None = None,
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Read the rows `[position, end)`. An empty file has no rows, as in Spark."""
        if not file.size:
            return
        with file.open() as raw:
            tail = read_tail(raw, file)
            reader = _Reader(file.path, raw, tail, schema, schema.names if columns is None else columns, self.options)
            yield from reader.read(position, tail.starts[-1] if end is None else min(end, tail.starts[-1]))


class _Reader:
    def __init__(
        self, path: str, raw: BinaryIO, tail: Tail, full: pa.Schema, columns: Sequence[str], options: OrcOptions
    ) -> None:
        self._path = path
        self._raw = raw
        self._tail = tail
        self._options = options
        self._places = [full.get_field_index(name) for name in columns]
        self._schema = pa.schema([full.field(place) for place in self._places])
        self.wanted("")  # raises if the schema contradicts the file, even if the slice is empty

    def read(self, position: int, end: int) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield the rows `[position, end)` in order."""
        while position < end:
            number = bisect_right(self._tail.starts, position) - 1
            first, stop = self._tail.starts[number], min(end, self._tail.starts[number + 1])
            stripe = self._tail.stripes[number]
            with wrap_damage(self._path):
                for batch in self._stripe(stripe, position - first, stop - position, position):
                    position += batch.num_rows
                    yield batch, position
                if position < stop:
                    raise Malformed(f"stripe {stripe.number} has fewer rows than the footer states ({stripe.rows})")

    def wanted(self, zone: str) -> list[Wanted]:
        """Return the data to read for each column. `zone` is the name of the writer's time zone."""
        try:
            writer = writer_zone(zone)
        except ValueError as error:
            raise Malformed(f"a stripe names an unknown time zone of its writer: {error}") from None
        times = Times(self._path, self._tail.proleptic, writer, self._options.zone)
        converter = Converter(self._path, self._options.case_sensitive, times)
        places = zip(self._places, self._schema, strict=True)
        return [converter.column(place, field, self._tail.root) for place, field in places]

    def _stripe(self, stripe: Stripe, skip: int, rows: int, position: int) -> Iterator[pa.RecordBatch]:
        """Yield `rows` rows of a stripe from its row `skip` on.

        `position` is the position of the first row, for errors.
        """
        footer = read_stripe_footer(self._raw, self._tail, stripe)
        wanted = self.wanted(footer.zone)
        picks = [item.pick for item in wanted if item.pick is not None]
        announce_streams(self._raw, stripe, footer, {one.source.id for pick in picks for one in pick.walk()})
        for batch in self._raw_batches(stripe, footer, picks):
            if skip >= batch.num_rows:
                skip -= batch.num_rows
                continue
            part = batch.slice(skip, rows) if skip or batch.num_rows > rows else batch
            skip = 0
            rows -= part.num_rows
            yield self._converted(part, wanted, position)
            position += part.num_rows
            if not rows:
                return

    def _raw_batches(self, stripe: Stripe, footer: StripeFooter, picks: list[Pick]) -> Iterator[pa.RecordBatch]:
        if not picks:
            for start in range(0, stripe.rows, MOST_ROWS):
                yield batch_of([], pa.schema([]), min(MOST_ROWS, stripe.rows - start))
            return

        def scan(columns: Sequence[Pick], batch_rows: int, of: int | None) -> Iterator[pa.RecordBatch]:
            file = StripeFile(self._raw, self._tail, stripe, footer, columns, of)
            return scan_stripe(file, batch_rows)

        yield from scan(picks, rows_per_batch(self._tail, stripe, footer, picks, scan), None)

    def _converted(self, batch: pa.RecordBatch, wanted: list[Wanted], position: int) -> pa.RecordBatch:
        arrays = []
        taken = 0
        for item, target in zip(wanted, self._schema, strict=True):
            if item.pick is None:
                arrays.append(pa.nulls(batch.num_rows, target.type))
                continue
            array = batch.column(taken)
            taken += 1
            try:
                arrays.append(array if item.convert is None else item.convert(array))
            except pa.ArrowInvalid as error:
                raise DataError(
                    f"a value of column {target.name!r} of {self._path} does not fit into {target.type}: {error}",
                    option="schema",
                    position=position,
                    advice="remove the column from the schema, or read the file with Spark's own ORC reader",
                ) from None
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
