# SPDX-License-Identifier: Apache-2.0
"""Reads ORC files as Spark's vectorised reader does."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, BinaryIO, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from forebay.errors import ForebayError
from forebay.formats.base import FileFormat, batch_of, part_borders, rows_between, unfit_value
from forebay.formats.filters import Expression, kept_ranges, leaves
from forebay.formats.orc.convert import Converter, PickedColumn, Times, inferred_schema, writer_zone
from forebay.formats.orc.metadata import (
    TEXTS,
    Malformed,
    Node,
    OpenStripe,
    StreamKind,
    Stripe,
    Tail,
    TypeKind,
    open_stripe,
    read_tail,
    wrap_damage,
)
from forebay.formats.orc.projection import Pick, StripeFile
from forebay.formats.orc.skipping import matching_stripes
from forebay.formats.values.dates import Zone, session_zone
from forebay.formats.values.ddl import merged
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
            file_schema = inferred_schema(tail.root, file.path, self.options.case_sensitive)
            schema = merged(schema, file_schema, file.path, self.options.case_sensitive) if schema else file_schema
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
        return part_borders(tail.starts, (stripe.size for stripe in tail.stripes), target_bytes)

    def matching_ranges(
        self, file: InputFile, schema: pa.Schema, row_filter: Expression, position: int, end: int | None
    ) -> list[tuple[int, int | None]]:
        """Return the row ranges of the stripes that may match by their statistics. Reads footer and statistics."""
        if not file.size:
            return [(position, end)]
        names = sorted({leaf.column for leaf in leaves(row_filter)}.intersection(schema.names))
        with file.open() as raw:
            tail = read_tail(raw, file)
            picked = _Reader(file.path, raw, tail, schema, names, self.options).picked_columns("")
            columns = {name: (column, schema.field(name).type) for name, column in zip(names, picked, strict=True)}
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
        self.picked_columns("")  # raises if the schema contradicts the file, even if the slice is empty

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

    def picked_columns(self, zone: str) -> list[PickedColumn]:
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
        opened = open_stripe(self._raw, self._tail, stripe)
        columns = self.picked_columns(opened.zone)
        picks = [column.pick for column in columns if column.pick is not None]
        opened.announce({part.source.id for pick in picks for part in pick.walk()})
        for batch in rows_between(_stored_batches(opened, picks), skip, rows):
            yield self._converted(batch, columns, position)
            position += batch.num_rows

    def _converted(self, batch: pa.RecordBatch, columns: list[PickedColumn], position: int) -> pa.RecordBatch:
        arrays = []
        taken = 0
        for column, target in zip(columns, self._schema, strict=True):
            if column.pick is None:
                arrays.append(pa.nulls(batch.num_rows, target.type))
                continue
            array = batch.column(taken)
            taken += 1
            try:
                arrays.append(array if column.convert is None else column.convert(array))
            except pa.ArrowInvalid as error:
                raise unfit_value(target, self._path, position, error) from None
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


# -- Bounds the memory for a record batch of a stripe: reads lengths of strings, lists and maps before their content.
#
# ORC C++ trusts these lengths. It allocates memory for their sum, and a negative or huge length crashes the process.
# Lengths are unsigned numbers. No type of Arrow's reader returns these unchanged, so they are read as two other types:
#
# * as BIGINT, which decodes a length n to a signed number s, where n is at most 4 × |s| + 1;
# * as the nanoseconds of timestamps: the result is negative if ORC C++ would take the length as negative, unless the
#   length is huge.


_MOST_ROWS = 16_384
_TARGET = 64 << 20
"""Target bytes of a record batch, by the upper bound that its lengths give."""
_MOST_BYTES = 1 << 30
"""The most bytes of one row, or of a dictionary, by the upper bound that their lengths give."""
_TOO_LONG = "may take more than 1 GB of memory, by an estimate that may be several times too high"
_ELEMENT_BYTES = 16
"""The assumed bytes of one value inside a list or map."""
_BASE_NS = 1_420_070_400_000_000_000
"""2015-01-01 in nanoseconds, which ORC adds to timestamps."""
_STRINGS = TEXTS | {TypeKind.BINARY}
_AT_MOST = 4


def _stored_batches(stripe: OpenStripe, columns: Sequence[Pick]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a stripe as they are stored; without columns, batches of rows alone."""
    if columns:
        yield from _scan(stripe, columns, _rows_per_batch(stripe, columns))
        return
    rows = stripe.place.rows
    for start in range(0, rows, _MOST_ROWS):
        yield batch_of([], pa.schema([]), min(_MOST_ROWS, rows - start))


def _rows_per_batch(stripe: OpenStripe, columns: Sequence[Pick]) -> int:
    """Return how many rows to read at a time, so that memory stays bounded.

    Raises:
        Malformed: A row or a dictionary may take more than 1 GB, or a length is invalid.
    """
    rows = min(_MOST_ROWS, max(1, stripe.place.rows), max(64, _TARGET // (_ELEMENT_BYTES * _leaves(columns))))
    for column in columns:
        for pick in column.walk():
            if pick.kind in _STRINGS and stripe.has_dictionary(pick.source.id):
                rows = max(1, min(rows, _TARGET // max(1, _longest_entry(stripe, pick.source))))
    for depth in range(_depth(columns)):
        signed, nanos = (
            [lengths for column in columns if (lengths := _lengths(stripe, column, depth, leaf)) is not None]
            for leaf in (_as_signed, _as_nanos)
        )
        if signed:
            rows = _bounded_rows(stripe, signed, rows)
            _check_signs(stripe, nanos, rows)
    return rows


def _leaves(columns: Sequence[Pick]) -> int:
    return max(1, sum(1 for column in columns for _ in column.walk()))


def _depth(columns: Sequence[Pick]) -> int:
    """Return how many values with a length (strings, binaries, lists) are nested in one another, at most."""
    return max((_depth(column.children) + (column.kind in _STRINGS | {TypeKind.LIST}) for column in columns), default=0)


def _longest_entry(stripe: OpenStripe, column: Node) -> int:
    """Return an upper bound for the bytes of the longest entry of a dictionary."""
    size = stripe.encodings[column.id][1]
    entries = Pick(column, TypeKind.LONG, (), ((StreamKind.LENGTH, StreamKind.DATA),))
    longest = total = 0
    for batch in _scan(stripe, [entries], _MOST_ROWS, size) if size else ():
        total += _ELEMENT_BYTES * batch.num_rows + _sum(batch.column(0))
        longest = max(longest, _longest(batch.column(0)))
        if total > _MOST_BYTES:
            raise Malformed(f"a dictionary {_TOO_LONG}")
    return longest


def _lengths(stripe: OpenStripe, pick: Pick, depth: int, leaf: Callable[[Pick], Pick]) -> Pick | None:
    """Return a column with only the lengths at a nesting depth; None if there are none. `leaf` picks the lengths."""
    if pick.kind is TypeKind.LIST or pick.kind in _STRINGS:
        if depth == 0:
            return None if pick.kind in _STRINGS and stripe.has_dictionary(pick.source.id) else leaf(pick)
        depth -= 1
    inside = [lengths for child in pick.children if (lengths := _lengths(stripe, child, depth, leaf)) is not None]
    return Pick(pick.source, pick.kind, tuple(inside), pick.parts) if inside else None


def _as_signed(pick: Pick) -> Pick:
    return Pick(
        pick.source, TypeKind.LONG, (), ((StreamKind.PRESENT, StreamKind.PRESENT), (StreamKind.LENGTH, StreamKind.DATA))
    )


def _as_nanos(pick: Pick) -> Pick:
    parts = ((StreamKind.PRESENT, StreamKind.PRESENT), (StreamKind.LENGTH, StreamKind.SECONDARY))
    return Pick(pick.source, TypeKind.TIMESTAMP_INSTANT, (), parts, zeros=True)


def _bounded_rows(stripe: OpenStripe, columns: Sequence[Pick], rows: int) -> int:
    """Read the lengths at one depth; return `rows`, or fewer if record batches would take too much memory."""
    while True:
        needed = 0
        for batch in _scan(stripe, columns, rows):
            needed = max(needed, sum(_weight(stripe, *leaf) for leaf in _leaves_of(columns, batch.columns)))
            if needed > _TARGET and rows > 1:
                break
        if needed <= _TARGET:
            return rows
        if rows == 1:
            if needed > _MOST_BYTES:
                raise Malformed(f"a row of stripe {stripe.place.number} {_TOO_LONG}")
            return rows
        rows = max(1, rows * _TARGET // (2 * needed))


def _check_signs(stripe: OpenStripe, columns: Sequence[Pick], rows: int) -> None:
    for batch in _scan(stripe, columns, rows):
        for _, array in _leaves_of(columns, batch.columns):
            least = pc.min(array.cast(pa.int64())).as_py()
            if least is not None and least < _BASE_NS:
                raise Malformed("the length of a value is negative")


def _leaves_of(picks: Sequence[Pick], arrays: Sequence[pa.Array]) -> Iterator[tuple[Pick, pa.Array]]:
    """Yield each column of lengths with its values, also inside structs and lists."""
    for pick, array in zip(picks, arrays, strict=True):
        if isinstance(array, pa.StructArray):
            yield from _leaves_of(pick.children, [array.field(place) for place in range(len(pick.children))])
        elif isinstance(array, pa.ListArray):
            yield from _leaves_of(pick.children, [array.values])
        else:
            yield pick, array


def _weight(stripe: OpenStripe, pick: Pick, array: pa.Array) -> int:
    """Return an upper bound for the bytes of the values whose lengths `array` holds."""
    longest = _longest(array)
    of_strings = pick.source.kind in _STRINGS
    if of_strings:
        most = stripe.capacity(pick.source.id, StreamKind.DATA)
        if longest > _AT_MOST * most + _AT_MOST:
            raise Malformed(f"a value is longer than its stream, which has at most {most} bytes")
    each = 1 if of_strings else _ELEMENT_BYTES * sum(1 for _ in pick.source.walk())
    whole = each * (longest + 1) * len(array)
    return whole if whole <= _TARGET // 16 else each * _sum(array)


def _longest(array: pa.Array) -> int:
    """Return an upper bound of the longest length."""
    ends = pc.min_max(array).as_py()
    return 0 if ends["min"] is None else _AT_MOST * max(-ends["min"], ends["max"])


def _sum(array: pa.Array) -> int:
    """Return an upper bound of the sum of lengths, computed in floating point, which does not overflow."""
    magnitudes = pc.abs(array.cast(pa.float64(), safe=False))
    return _AT_MOST * int(pc.sum(magnitudes).as_py() or 0) + len(array)


# -- Runs Arrow's ORC reader over one stripe, and distinguishes damage from errors of the store.


_FORMAT = ds.OrcFileFormat()
_AHEAD = 2
"""How many batches to take after closing the file: the one that Arrow was reading, and one that finds it closed."""


def _scan(
    stripe: OpenStripe, columns: Sequence[Pick], batch_rows: int, rows: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield columns of a stripe in batches of at most `batch_rows` rows. `rows` replaces the number of its rows.

    Raises:
        Malformed: The stripe is damaged. Errors of the store pass unchanged.
    """
    file = StripeFile(stripe, columns, rows)
    try:
        fragment = _FORMAT.make_fragment(pa.PythonFile(file, mode="r"))
        scanner = fragment.scanner(batch_size=batch_rows, batch_readahead=0, fragment_readahead=0, use_threads=False)
        batches = scanner.to_batches()
        try:
            while (batch := next(batches, None)) is not None:  # `yield from` would close them
                yield batch
        finally:
            _end(file, batches)
    except (ForebayError, MemoryError):
        raise
    except (pa.ArrowException, OSError) as error:
        if file.failure is not None:
            raise file.failure from None
        raise Malformed(str(error)) from error


def _end(file: StripeFile, batches: Iterator[pa.RecordBatch]) -> None:
    """Close `file`, and wait until Arrow's thread stops reading ahead. Then the ORC file may be closed or reused."""
    file.close()
    with suppress(pa.ArrowException, OSError):
        for _ in islice(batches, _AHEAD):
            pass
