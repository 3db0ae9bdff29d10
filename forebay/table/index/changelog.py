# SPDX-License-Identifier: Apache-2.0
"""The difference that a transaction makes to the state of one shard of a datasource, by values.

Nothing that it writes is visible: files have names that no other attempt has, and the log names them, or nobody does.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import DataError
from forebay.table.changelog.operators.events import KEY as KEY_ORDINAL
from forebay.table.changelog.operators.events import Events, Layout, TouchedKeys, equal_rows, order_ranks, touched_keys
from forebay.table.changelog.shape import RowKind
from forebay.table.changelog.state.facts import SegmentInfo
from forebay.table.changelog.state.segments import (
    COUNT,
    KEY_HASH,
    KIND,
    ORDINAL,
    PREFIX,
    ROW_HASH,
    ROWS,
    Ints,
    Segment,
    sorted_by_key,
    split_rows,
)
from forebay.table.changelog.state.shard import (
    Entries,
    MergeInput,
    entries_between,
    in_memory_run,
    is_merged,
    key_ranges,
    lookup,
    merge,
    newest_entries,
    run_rows,
)
from forebay.table.index.columns import cast_column, first_bad, is_far, is_invalid, python_value, shown_row
from forebay.table.index.log import Run
from forebay.table.index.pipelines import IndexStore
from forebay.table.index.segments import temporary_files
from forebay.table.index.states import (
    KEY,
    LANE,
    SEQUENCE,
    UNCHANGED,
    StateReader,
    change_fields,
    entry_fields,
    entry_rows,
    order_fields,
)
from forebay.table.index.types import SparkType

DELETED: Final = f"{PREFIX}deleted"
"""Boolean column of incoming rows: whether the row deletes its key."""

DIGESTS: Final = (f"{PREFIX}d1", f"{PREFIX}d2")
"""Integer columns of incoming rows: two hashes of the row, from which the digest of the transaction is made."""

RUNS: Final = 8
"""Runs of a shard up to which no run is merged. Then they are merged as those of keyed state."""

SPILLED: Final = 32 << 20
"""Bytes of incoming rows, and of changes, that a shard keeps in memory. Rows beyond go to the local disk, sorted."""

_PIECE: Final = 1 << 20
"""Bytes of a piece of spilled rows. It bounds the memory that merging one spilled run takes."""

NAMED: Final = 20
"""Duplicate keys that an error names."""

_SHOWN: Final = 6
"""Columns of a row that an error shows."""


@dataclass(frozen=True)
class ShardTask:
    """A transaction in one shard. It is pickled to the tasks of Spark.

    Args:
        index: The store.
        datasource: The name of the datasource.
        shard: The number of the shard.
        base: The number of the fact of the log on which the difference is based. It is part of file names.
        runs: The runs of the shard at this fact, oldest first.
        payload: The columns of a row: keys, then values.
        keys: The names of the key columns.
        snapshot: Whether the transaction has all rows, so that keys without a row are deleted.
        fresh: Whether the columns have other types than the state, so that every row replaces the one before.
        sequence: The type of the sequence of the incoming rows; None: they have none.
        kept_sequence: The type of the sequence that the entries keep; None: they keep none.
        fits: See `Incoming.fits`.
        columns_digest: See `Incoming.columns_digest`.
    """

    index: IndexStore
    datasource: str
    shard: int
    base: int
    runs: tuple[Run, ...]
    payload: pa.Schema
    keys: tuple[str, ...]
    snapshot: bool = False
    fresh: bool = False
    sequence: pa.DataType | None = None
    kept_sequence: pa.DataType | None = None
    fits: tuple[tuple[str, SparkType], ...] = ()
    columns_digest: str = ""

    @property
    def incoming(self) -> pa.Schema:
        """The columns of incoming rows."""
        own = [pa.field(KEY_HASH, pa.int64()), pa.field(DELETED, pa.bool_())]
        return pa.schema(
            [*own, *(pa.field(name, pa.int64()) for name in DIGESTS), *order_fields(self.sequence), *self.payload]
        )

    @property
    def prefix(self) -> str:
        """The beginning of the names of files that the task writes."""
        return f"{self.index.directory}states/{self.datasource}/{self.base:012d}-"


COUNTED: Final = ("inserted", "updated", "deleted", "late", "deletes_unknown")
"""What a transaction counts."""


@dataclass(frozen=True)
class ShardResult:
    """What a transaction does to a shard: files that exist, but that nothing names yet.

    Args:
        shard: The number of the shard.
        runs: The runs after the transaction.
        changes: The files with the changes.
        rows: The number of incoming rows.
        digest: Two sums over the incoming rows that do not depend on their order.
        counts: Rows that were inserted, updated, deleted, or changed nothing, by name.
        duplicates: Keys that came more than once, as texts, with their number of rows; at most `NAMED`.
        duplicate_keys: The number of keys that came more than once.
    """

    shard: int
    runs: tuple[Run, ...]
    changes: Run
    rows: int
    digest: tuple[int, int]
    counts: Mapping[str, int] = field(default_factory=dict)
    duplicates: tuple[tuple[str, int], ...] = ()
    duplicate_keys: int = 0

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> Self:
        """Return the result of JSON values."""
        runs = tuple(tuple(SegmentInfo(**each) for each in run) for run in facts.pop("runs"))
        changes = tuple(SegmentInfo(**each) for each in facts.pop("changes"))
        duplicates = tuple((key, count) for key, count in facts.pop("duplicates"))
        low, high = facts.pop("digest")
        return cls(runs=runs, changes=changes, duplicates=duplicates, digest=(low, high), **facts)


def run_shard(task: ShardTask, batches: Iterable[pa.RecordBatch]) -> ShardResult:
    """Write the difference that incoming rows make to a shard. Called in the driver, or in a task of Spark.

    Raises:
        DataError: A key is NULL, a text is not UTF-8, or a value does not fit its property.
        RetriableError: The local disk is full.
    """
    with temporary_files():
        made = tempfile.TemporaryDirectory(prefix="forebay-changes-")
    with made as directory:
        incoming = _Incoming(task, Path(directory))
        for batch in batches:
            incoming.add(batch)
        return _Difference(task, incoming).write()


class _Incoming:
    """The incoming rows of a shard, sorted by key hash in runs that are in memory or on the local disk."""

    def __init__(self, task: ShardTask, directory: Path) -> None:
        self._task = task
        self._schema = task.incoming
        self._keys = task.keys
        self._directory = directory
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0
        self._runs: list[list[MergeInput]] = []
        self.rows = 0
        self.sums = [0, 0]

    def add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        # A transaction that deletes keys has no other columns.
        batch = pa.RecordBatch.from_arrays(
            [
                batch.column(each.name).cast(each.type)
                if batch.schema.get_field_index(each.name) >= 0
                else pa.nulls(batch.num_rows, each.type)
                for each in self._schema
            ],
            schema=self._schema,
        )
        self._refuse_bad_keys(batch)
        # Nothing is kept of the values of rows that delete.
        kept = batch
        if pc.any(batch.column(DELETED)).as_py():
            kept = batch.filter(pc.invert(batch.column(DELETED)))
        self._refuse_bad_texts(kept, [name for name in self._task.payload.names if name not in self._keys])
        self._refuse_misfits(kept)
        for place, name in enumerate(DIGESTS):
            self.sums[place] += int(batch.column(name).to_numpy().view(np.uint64).sum(dtype=np.uint64))
        self.rows += batch.num_rows
        self._waiting.append(batch)
        self._bytes += batch.nbytes
        if self._bytes > SPILLED:
            self._spill()

    def runs(self) -> list[list[MergeInput]]:
        """Return the sorted runs."""
        if self._waiting:
            pieces = split_rows(self._sorted(), ROWS, SPILLED)
            self._runs.append([part for piece in pieces for part in in_memory_run(piece)])
        return self._runs

    def _spill(self) -> None:
        path = self._directory / f"{len(self._runs)}.arrow"
        run = []
        with temporary_files(), pa.ipc.new_file(str(path), self._schema) as writer:
            for place, piece in enumerate(split_rows(self._sorted(), ROWS, _PIECE)):
                writer.write_batch(piece)
                hashes = piece.column(KEY_HASH).to_numpy()
                run.append(MergeInput(int(hashes[0]), int(hashes[-1]), partial(_spilled, path, place)))
        self._runs.append(run)

    def _sorted(self) -> pa.RecordBatch:
        whole = pa.concat_batches(self._waiting)
        self._waiting, self._bytes = [], 0
        whole = sorted_by_key(whole)
        pa.default_memory_pool().release_unused()  # else the pool keeps three times of what is in use
        return whole

    def _refuse_bad_texts(self, batch: pa.RecordBatch, names: Sequence[str]) -> None:
        """Check the texts of columns: Spark's strings may have any bytes, and Arrow does not look at them."""
        if not names or not is_invalid(batch.select(names)):
            return
        name = next(each for each in names if is_invalid(batch.column(each)))
        place = first_bad(batch.column(name), is_invalid)
        keys = {each.removeprefix(KEY): batch.column(each) for each in self._keys}
        keys |= {name: key.cast(pa.binary()) for name, key in keys.items() if key.type == pa.string()}
        known = name in self._task.payload.names
        what = shown_row(self._task.datasource, name, keys)(place) if known else "the sequence of a change"
        raise DataError(
            f"{what} has a text that is not UTF-8; nothing was committed",
            advice="correct it, as with make_valid_utf8 of Spark; or cast the column to binary if it has no text",
        )

    def _refuse_bad_keys(self, batch: pa.RecordBatch) -> None:
        self._refuse_bad_texts(batch, [*self._keys, *(each.name for each in order_fields(self._task.sequence))])
        for name in self._keys:
            if is_far(batch.column(name)):
                raise DataError(
                    f"the key column {name.removeprefix(KEY)!r} has times before the year 1 or after the year 9999",
                    advice="correct these rows, or define the key as a string",
                )
            if batch.column(name).null_count:
                place = int(np.flatnonzero(batch.column(name).is_null().to_numpy(zero_copy_only=False))[0])
                names = self._task.payload.names[:_SHOWN]
                row = {each[2:]: python_value(batch.column(each)[place]) for each in names}
                shown = ", ".join(f"{column}={value!s:.40}" for column, value in row.items())
                raise DataError(
                    f"the key {name.removeprefix(KEY)!r} of the datasource {self._task.datasource!r} is NULL in the "
                    f"row ({shown}); nothing was committed",
                    advice="filter out such rows, or fill the column; an object has a whole key",
                )

    def _refuse_misfits(self, batch: pa.RecordBatch) -> None:
        keys = {name.removeprefix(KEY): batch.column(name) for name in self._keys}
        for column, kind in self._task.fits:
            try:
                cast_column(batch.column(column), kind, shown_row(self._task.datasource, column, keys))
            except DataError as error:
                error.message += "; nothing was committed"
                error.advice = (
                    "correct the row, or cast the column in the DataFrame, and commit again; or give the property "
                    "another type with Funnel.replace. While a replacement is built, rows have to fit both "
                    "definitions: let the new property read another column, with Property(column=…)"
                )
                raise


def _spilled(path: Path, place: int) -> Segment:
    return Segment(pa.ipc.open_file(pa.memory_map(str(path))).get_batch(place))


class _Difference:
    """Compares the incoming rows of a shard with its state, range by range of key hashes, and writes what differs."""

    def __init__(self, task: ShardTask, incoming: _Incoming) -> None:
        self._task = task
        self._incoming = incoming
        self._reader = StateReader(task.index.store)
        self._layout = Layout(task.keys, (), task.payload)
        self._sequence = task.sequence if task.sequence is not None else task.kept_sequence
        self._changes = change_fields(task.payload, self._sequence)
        self._values = tuple(name for name in task.payload.names if name not in task.keys)
        self._counts = dict.fromkeys(COUNTED, 0)
        self._duplicates: list[tuple[str, int]] = []
        self._duplicate_keys = 0

    def write(self) -> ShardResult:
        task = self._task
        waiting: list[pa.RecordBatch] = []
        written: list[SegmentInfo] = []

        def flush() -> None:
            if waiting:
                parts = split_rows(pa.concat_batches(waiting))
                waiting.clear()
                written.extend(self._reader.files.write(task.prefix, part) for part in parts)

        for rows, entries in self._ranges():
            changed = self._compared(rows, entries)
            if task.fresh:
                changed = self._with_deletes(changed, entries)
            if changed.num_rows and not self._duplicate_keys:
                waiting.append(changed)
                if sum(each.num_rows for each in waiting) >= ROWS or sum(each.nbytes for each in waiting) >= SPILLED:
                    flush()
        flush()
        changes, (low, high) = tuple(written), self._incoming.sums
        return ShardResult(
            task.shard,
            () if self._duplicate_keys else self._merged(changes),
            changes,
            self._incoming.rows,
            (low, high),
            self._counts,
            tuple(self._duplicates),
            self._duplicate_keys,
        )

    def _ranges(self) -> Iterator[tuple[pa.RecordBatch, Entries]]:
        """Yield the incoming rows and the entries of each range of key hashes."""
        task, runs = self._task, self._incoming.runs()
        if task.snapshot:
            stored = self._reader.parts(task.runs)
            needed = [each for each in task.payload if not task.fresh or each.name in task.keys]
            schema = entry_fields(pa.schema(needed), task.kept_sequence)
            for low, high in key_ranges([*runs, *stored]):
                whole = newest_entries(entries_between(stored, low, high, schema), keep_tombstones=False)
                hashes = np.unique(whole.column(KEY_HASH).to_numpy())
                of_range = lookup([[Segment(whole)]] if len(hashes) else [], hashes, timed=False)
                yield entries_between(runs, low, high, task.incoming), of_range
            return
        for low, high in key_ranges(runs):
            rows = entries_between(runs, low, high, task.incoming)
            yield rows, self._reader.lookup(task.runs, np.unique(rows.column(KEY_HASH).to_numpy()))

    def _compared(self, rows: pa.RecordBatch, entries: Entries) -> pa.RecordBatch:
        """Return the entries that change, sorted, with their kinds."""
        task, size = self._task, rows.num_rows
        events = Events(
            self._layout,
            rows.select(task.payload.names),
            rows.column(KEY_HASH).to_numpy(),
            np.zeros(size, np.int64),
            np.zeros(size, np.int64),
        )
        keys = touched_keys(events, entries)
        stored = len(entries)
        of_entries, of_events = keys.codes[:stored], keys.codes[stored:]
        if self._note_duplicates(events, of_events, len(keys)):
            return pa.RecordBatch.from_pylist([], self._changes)
        entry = _places(of_entries, len(keys))
        event = _places(of_events, len(keys))
        accepted = (event >= 0) & ~self._late(rows, entries, entry, event)
        before = (entry >= 0) & (np.append(entries.counts, 0)[entry] > 0)
        deletes = accepted & np.append(rows.column(DELETED).to_numpy(zero_copy_only=False), False)[event]
        after = accepted & ~deletes
        gone = before & (~after if task.snapshot else deletes)
        updated = self._updated(keys, np.flatnonzero(before & after), entry, event)
        inserted = after & ~before
        self._counts["inserted"] += int(inserted.sum())
        self._counts["updated"] += int(updated.sum())
        self._counts["deleted"] += int(gone.sum())
        self._counts["deletes_unknown"] += int((deletes & ~before).sum())
        kinds = np.full(len(keys), UNCHANGED)
        kinds[inserted], kinds[updated], kinds[gone] = RowKind.INSERT, RowKind.UPDATE_AFTER, RowKind.DELETE
        sequenced = task.sequence is not None
        written = inserted | updated | (after if sequenced else False)
        removed = gone | (deletes if sequenced else False)
        return self._entries(keys, rows, np.flatnonzero(written), np.flatnonzero(removed), (entry, event, kinds))

    def _with_deletes(self, changed: pa.RecordBatch, entries: Entries) -> pa.RecordBatch:
        """Return changes, and the deletes before that none of them replaces: they keep out changes that come late."""
        places = np.flatnonzero(entries.counts < 0)
        hashes, ordinals = (changed.column(name).to_numpy() for name in (KEY_HASH, ORDINAL))
        alike = np.isin(hashes, entries.key_hashes[places])
        written = set(zip(hashes[alike].tolist(), ordinals[alike].tolist(), strict=True))  # keys may have one hash
        of_deletes = zip(entries.key_hashes[places].tolist(), entries.ordinals[places].tolist(), strict=True)
        kept = places[[key not in written for key in of_deletes]]
        deletes = entry_rows(entries, kept, entry_fields(self._task.payload, self._sequence))
        kinds = pa.array(np.full(len(kept), UNCHANGED), pa.int8())
        both = [changed, pa.RecordBatch.from_arrays([*deletes.columns, kinds], schema=self._changes)]
        return sorted_by_key(pa.concat_batches(both))

    def _late(self, rows: pa.RecordBatch, entries: Entries, entry: Ints, event: Ints) -> np.ndarray[Any, Any]:
        """Return for each key whether its incoming row is not newer than what the state keeps.

        Of a row and a retraction with one sequence the row stays, as with PostgresTarget: an update may come as an
        `update_preimage` in one micro-batch, and an `update_postimage` in the next.
        """
        late = np.zeros(len(entry), np.bool_)
        task = self._task
        if task.sequence is None or task.kept_sequence is None or not len(entries):
            return late
        ranks = order_ranks(entries.orders([task.sequence]), [rows.column(SEQUENCE)])
        in_both = np.flatnonzero((entry >= 0) & (event >= 0))
        self._refuse_lanes(entries, rows, entry[in_both], event[in_both])
        new, old = ranks[len(entries) + event[in_both]], ranks[entry[in_both]]
        adds = ~rows.column(DELETED).to_numpy(zero_copy_only=False)[event[in_both]]
        revives = (new == old) & adds & (entries.counts[entry[in_both]] < 0)
        late[in_both] = (new <= old) & ~revives
        self._counts["late"] += int(late.sum())
        return late

    def _refuse_lanes(self, entries: Entries, rows: pa.RecordBatch, stored: Ints, arriving: Ints) -> None:
        """Refuse changes of a key that come from two logs, whose sequences have no order."""
        (lanes,) = entries.take(stored, [pa.field(LANE, pa.string())])
        others = rows.column(LANE).take(pa.array(arriving))
        differ = np.flatnonzero(
            pc.fill_null(pc.not_equal(lanes, others), fill_value=False).to_numpy(zero_copy_only=False)
        )
        if len(differ):
            place = int(differ[0])
            key = {name[2:]: rows.column(name)[int(arriving[place])].as_py() for name in self._task.keys}
            raise DataError(
                f"the changes of the key {key!r} of the datasource {self._task.datasource!r} come from the logs "
                f"{lanes[place].as_py()!r} and {others[place].as_py()!r}, whose sequences have no order",
                advice="give sequence_by columns that order all changes of a key, over all logs",
            )

    def _updated(self, keys: TouchedKeys, in_both: Ints, entry: Ints, event: Ints) -> np.ndarray[Any, Any]:
        """Return for each key whether its row differs from the one before."""
        updated = np.zeros(len(keys), np.bool_)
        if self._task.fresh:
            updated[in_both] = True
        elif len(in_both) and self._values:
            stored = len(keys.entries)
            updated[in_both] = ~equal_rows(
                keys.take(entry[in_both], self._values), keys.take(stored + event[in_both], self._values)
            )
        return updated

    def _note_duplicates(self, events: Events, codes: Ints, size: int) -> bool:
        counts = np.bincount(codes, minlength=size)
        twice = np.flatnonzero(counts > 1)
        self._duplicate_keys += len(twice)
        for code in twice[: max(0, NAMED - len(self._duplicates))]:
            place = int(np.flatnonzero(codes == code)[0])
            values = (
                f"{name.removeprefix(KEY)}={events.rows.column(name)[place].as_py()!r}" for name in self._task.keys
            )
            self._duplicates.append((f"({', '.join(values)})", int(counts[code])))
        return bool(self._duplicate_keys)

    def _entries(
        self, keys: TouchedKeys, rows: pa.RecordBatch, written: Ints, removed: Ints, of: tuple[Ints, Ints, Ints]
    ) -> pa.RecordBatch:
        entry, event, kinds = of
        stored = len(keys.entries)
        gone = np.where(event[removed] >= 0, stored + event[removed], entry[removed])
        key_columns = dict(zip(self._task.keys, keys.take(gone, self._task.keys), strict=True))
        codes = np.concatenate([written, removed])
        tombstone = np.zeros(len(removed), np.int64)
        if self._task.sequence is not None:
            tombstone = np.where(event[removed] >= 0, -1, 0)
        fixed: dict[str, Any] = {
            KEY_HASH: keys.hashes[codes],
            ROW_HASH: np.zeros(len(codes), np.int64),
            ORDINAL: keys.ordinals[codes] * KEY_ORDINAL,
            COUNT: np.concatenate([np.ones(len(written), np.int64), tombstone]),
            KIND: kinds[codes],
        }
        columns = []
        for each in self._changes:
            if each.name in fixed:
                columns.append(pa.array(fixed[each.name]).cast(each.type))
                continue
            new = self._incoming_column(rows, each, event[written])
            if each.name in (SEQUENCE, LANE):
                old = self._incoming_column(rows, each, event[removed])
            else:
                old = key_columns.get(each.name, pa.nulls(len(removed), each.type))
            columns.append(pa.concat_arrays([new, old]))
        return sorted_by_key(pa.RecordBatch.from_arrays(columns, schema=self._changes))

    @staticmethod
    def _incoming_column(rows: pa.RecordBatch, column: pa.Field, places: Ints) -> pa.Array:
        """Return a column of incoming rows; NULL for the place -1, and for a sequence that they do not have."""
        if rows.schema.get_field_index(column.name) < 0:
            return pa.nulls(len(places), column.type)
        return rows.column(column.name).take(pa.array(places, pa.int64(), mask=places < 0))

    def _merged(self, changes: Run) -> tuple[Run, ...]:
        """Return the runs after the transaction: some are merged if there are too many."""
        task = self._task
        if not changes:
            return () if task.fresh else task.runs
        runs = [] if task.fresh else list(task.runs)
        runs.append(changes)
        if len(runs) <= RUNS:
            return tuple(runs)
        merged = [runs.pop()]
        rows = run_rows(merged[0])
        while runs and is_merged(runs[-1], rows):
            merged.append(runs.pop())
            rows += run_rows(merged[-1])
        if len(merged) > 1:
            schema = entry_fields(task.payload, self._sequence)
            merged = [
                merge(
                    self._reader.parts(merged[::-1]),
                    schema,
                    lambda batch: self._reader.files.write(task.prefix, batch),
                    keep_tombstones=bool(runs),
                )
            ]
        return tuple(run for run in (*runs, *merged) if run)


def _places(codes: Ints, size: int) -> Ints:
    """Return for each code the index of its member; -1 if it has none."""
    places = np.full(size, -1)
    places[codes] = np.arange(len(codes))
    return places


def refuse_duplicates(results: Sequence[ShardResult], object_type: str, datasource: str, transaction: str) -> None:
    """Check that no key came twice.

    Raises:
        DataError: A key did. The error names keys and numbers of rows.
    """
    total = sum(result.duplicate_keys for result in results)
    if not total:
        return
    named = [pair for result in results for pair in result.duplicates][:NAMED]
    shown = ", ".join(f"{key} occurs {count} times" for key, count in named)
    more = f", and {total - len(named):,} more" if total > len(named) else ""
    raise DataError(
        f"object type {object_type!r}, datasource {datasource!r}, transaction {transaction!r}: {shown}{more} "
        f"({total:,} keys)",
        advice="a transaction has one row for each key: select one, for example with forebay.changelog.latest_per_key, "
        "and commit again; nothing was committed, and the id of the transaction is free",
    )


def combined(results: Iterable[ShardResult]) -> tuple[dict[str, int], str, int]:
    """Return the counts, the digest and the number of incoming rows of all shards."""
    counts = dict.fromkeys(COUNTED, 0)  # of no rows, and no shard, too
    rows, sums = 0, [0, 0]
    for result in results:
        rows += result.rows
        sums = [one + other for one, other in zip(sums, result.digest, strict=True)]
        for name, count in result.counts.items():
            counts[name] += count
    return counts, rows_digest(rows, sums[0], sums[1]), rows


def rows_digest(rows: int, low: int, high: int) -> str:
    """Return the digest of the rows of a transaction."""
    return f"{rows}-{low % (1 << 64):016x}{high % (1 << 64):016x}"
