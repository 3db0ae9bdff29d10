# SPDX-License-Identifier: Apache-2.0
"""Runs an operator on one micro-batch of one shard: reads events and state, expires keys, writes the state once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import ConfigurationError, FatalError
from forebay.table.changelog.operators.events import FIRST, Events, Layout, TouchedKeys, collect
from forebay.table.changelog.shape import CHANGE_TYPE, CHANGE_TYPES, COMMIT_VERSION, RowKind
from forebay.table.changelog.state.manifest import Manifest, OperatorInfo
from forebay.table.changelog.state.segments import COUNT, PREFIX, TOUCHED, Ints, Segment, entry_schema
from forebay.table.changelog.state.shard import Entries, Shard, StateChange, lookup

# -- Computes the times of entries, for a state with a time to live.


def entry_times(keys: TouchedKeys, groups: Ints, size: int, expired: npt.NDArray[np.bool_]) -> Ints:
    """Return the time of the last event of each group of members.

    Args:
        keys: The touched keys, of a state with a time to live.
        groups: The group of each member (entries, then events): the number of its key, or of its row.
        size: The number of groups.
        expired: Whether each entry has expired; an expired entry does not count.
    """
    times = np.full(size, FIRST)
    stored = len(keys.entries)
    if keys.events.touched is not None:
        np.maximum.at(times, groups[stored:], keys.events.touched)
    if keys.entries.touched is not None:
        np.maximum.at(times, groups[:stored][~expired], keys.entries.touched[~expired])
    return times


@dataclass(frozen=True)
class Expiry:
    """Decides which entries are too old. The clock of a shard is the greatest time of its events; it never goes back.

    Args:
        time_to_live: Microseconds; None: no key expires.
        before: The clock before the micro-batch, in microseconds since 1970.
    """

    time_to_live: int | None = None
    before: int | None = None

    def clock(self, events: Events) -> int | None:
        """Return the clock after the micro-batch, in microseconds since 1970; None without a time to live."""
        if events.touched is None:
            return None
        times = [int(events.touched.max())] if len(events) else []
        return max([*times, *([] if self.before is None else [self.before])], default=None)

    def cutoff(self, events: Events) -> int | None:
        """Return the cutoff: a key expires if its last event is at this time or before; None if no key can expire."""
        now = self.clock(events)
        return None if now is None or self.time_to_live is None else now - self.time_to_live

    def candidates(self, runs: Sequence[Sequence[Segment]], manifest: Manifest, events: Events) -> Ints:
        """Return the hashes of keys that may have expired. Only segments with old entries are read."""
        cutoff = self.cutoff(events)
        hashes = [np.empty(0, np.int64)]
        if cutoff is not None:
            for run, infos in zip(runs, manifest.runs, strict=True):
                for segment, info in zip(run, infos, strict=True):
                    if info.oldest is not None and info.oldest <= cutoff:
                        old = (segment.ints(TOUCHED) <= cutoff) & (segment.ints(COUNT) != 0)
                        hashes.append(segment.hashes[old])
                        segment.unload()
        return np.unique(np.concatenate(hashes))

    def expired(self, codes: Ints, entries: Entries, events: Events) -> npt.NDArray[np.bool_]:
        """Return for each entry whether its key expires before the events of the micro-batch.

        A key expires if at least the time to live lies between its last stored event and its first event in the
        micro-batch, or the clock after the micro-batch if it has no event there. A key whose new events are too old
        themselves expires in the next micro-batch.

        Args:
            codes: The code of the key of each entry, then of each event.
            entries: The entries.
            events: The events.
        """
        cutoff, stored = self.cutoff(events), len(entries)
        if cutoff is None or self.time_to_live is None or entries.touched is None or not stored:
            return np.zeros(stored, np.bool_)
        last = np.full(int(codes.max()) + 1, FIRST)
        np.maximum.at(last, codes[:stored], entries.touched)
        next_event = np.full(len(last), cutoff + self.time_to_live)
        if events.touched is not None:
            np.minimum.at(next_event, codes[stored:], events.touched)
        gone: npt.NDArray[np.bool_] = next_event - last >= self.time_to_live
        return gone[codes[:stored]]


# -- Runs an operator on one micro-batch of one shard: reads events and state, returns changes, writes the state once.

# -- The result of operators: changes for the output, and entries for the state.


@dataclass(frozen=True)
class OperatorResult:
    """The result of a micro-batch in one shard.

    Args:
        changes: The output: the payload, `_change_type` and `_commit_version`.
        entries: The entries that changed.
        clock: The greatest time seen so far in microseconds; None without a time to live.
        counts: Counters of the operator, by name, such as `expired`.
    """

    changes: pa.RecordBatch
    entries: pa.RecordBatch
    clock: int | None = None
    counts: dict[str, int] = field(default_factory=dict)


def output_schema(payload: pa.Schema) -> pa.Schema:
    """Return the schema of the changes that operators put out."""
    return pa.schema([*payload, pa.field(CHANGE_TYPE, pa.string()), pa.field(COMMIT_VERSION, pa.int64())])


def change_batch(payload: pa.Schema, columns: Sequence[pa.Array], kinds: Ints, version: int) -> pa.RecordBatch:
    """Return the record batch of changes with these payload columns and `RowKind`s. `version` is the micro-batch id."""
    words = pa.array(CHANGE_TYPES).take(pa.array(kinds))
    versions = pa.array(np.full(len(kinds), version))
    return pa.RecordBatch.from_arrays([*columns, words, versions], schema=output_schema(payload))


def changes_of_winners(
    keys: TouchedKeys, before: Ints, after: Ints, same: np.ndarray, *, version: int, preimages: bool
) -> pa.RecordBatch:
    """Return the changes from the row of each key before a micro-batch to the row after it.

    Args:
        keys: The touched keys.
        before: The member that holds the row of each key before; -1 if there is no row.
        after: The member that holds the row of each key after; -1 if there is no row.
        same: Whether both rows of each key are equal, so that nothing changed.
        version: The id of the micro-batch.
        preimages: Whether an update also gives the old row, as `update_preimage`.
    """
    inserted = np.flatnonzero((before < 0) & (after >= 0))
    deleted = np.flatnonzero((before >= 0) & (after < 0))
    updated = np.flatnonzero((before >= 0) & (after >= 0) & ~same)
    parts = [
        (inserted, after, RowKind.INSERT),
        (updated, before, RowKind.UPDATE_BEFORE),
        (updated, after, RowKind.UPDATE_AFTER),
        (deleted, before, RowKind.DELETE),
    ]
    parts = [part for part in parts if preimages or part[2] is not RowKind.UPDATE_BEFORE]
    codes = np.concatenate([which for which, _, _ in parts])
    members = np.concatenate([source[which] for which, source, _ in parts])
    kinds = np.concatenate([np.full(len(which), int(kind)) for which, _, kind in parts])
    order = np.lexsort((kinds, codes))
    layout = keys.events.layout
    columns = keys.take(members[order], tuple(layout.payload.names))
    return change_batch(layout.payload, columns, kinds[order], version)


def entry_batch(
    layout: Layout, orders: Sequence[pa.Array], columns: Sequence[pa.Array], *numbers: Ints | None
) -> pa.RecordBatch:
    """Return a record batch of entries for the state.

    Args:
        layout: The layout of the events.
        orders: The ordering columns.
        columns: The payload.
        numbers: Key hashes, row hashes, ordinals, counts, and times (None without a time to live).
    """
    schema = entry_schema(layout.payload, [order.type for order in orders], timed=layout.timed)
    fixed = [pa.array(column) for column in numbers if column is not None]
    arrays: Iterable[pa.Array] = [*fixed, *orders, *columns]
    cast = [pc.cast(array, target.type) for array, target in zip(arrays, schema, strict=True)]
    return pa.RecordBatch.from_arrays(cast, schema=schema)


class Operator(Protocol):
    """A stateful operator. It is pickled to the tasks, and has no state of its own."""

    def apply(self, events: Events, entries: Entries, expiry: Expiry, version: int) -> OperatorResult:
        """Return the changes and new entries of a micro-batch. The order of the events does not change the result."""


def run_micro_batch(
    operator: Operator,
    shard: Shard,
    info: OperatorInfo,
    version: int,
    batches: Iterable[pa.RecordBatch],
    *,
    layout: Layout,
    time_to_live: int | None = None,
) -> OperatorResult:
    """Run an operator on a micro-batch of a shard. Called by a task of Spark, which may be one of several attempts.

    Args:
        operator: The operator.
        shard: The shard, with its state.
        info: The query and the operator that the state must belong to.
        version: The id of the micro-batch.
        batches: The events of the micro-batch in this shard.
        layout: The meaning of their columns.
        time_to_live: Microseconds after which a key without events expires; None: no key expires.

    Raises:
        ConfigurationError: The state belongs to another query or operator, or its columns have other types.
        DataError: An event is wrong; see the operator.
        FatalError: The state is damaged, or a replay has other events.
    """
    events = collect(batches, layout)
    if len(events) and events.key_hashes[0] % info.shards != shard.number:
        raise FatalError(
            f"the task of shard {shard.number} has rows of shard {events.key_hashes[0] % info.shards}",
            advice="report this with Spark's version and the physical plan: Spark numbered the partitions differently",
        )
    before = shard.begin(info, version)
    _check_schema(before, layout)
    runs = shard.open(before)
    expiry = Expiry(time_to_live, before.clock)
    hashes = np.unique(np.concatenate([events.key_hashes, expiry.candidates(runs, before, events)]))
    result = operator.apply(events, lookup(runs, hashes, timed=layout.timed), expiry, version)
    shard.commit(before, version, StateChange(result.entries, events.digest, result.clock, result.counts))
    return result


def _check_schema(before: Manifest, layout: Layout) -> None:
    """Check that the payload lost no column and changed no type. New columns are NULL in older entries."""
    if not before.schema.names:
        return
    now = entry_schema(layout.payload, layout.order_types, timed=layout.timed)
    names = [*before.schema.names, *(name for name in now.names if name.startswith(PREFIX))]
    for name in dict.fromkeys(names):
        was, current = _type_in(before.schema, name), _type_in(now, name)
        if was == current:
            continue
        if name == TOUCHED:
            raise ConfigurationError(
                f"the state was written {'without' if current else 'with'} a time to live, but the query "
                f"{'has one' if current else 'has none'}",
                option="state_ttl",
                advice=f"{'leave state_ttl out' if current else 'give state_ttl'} as before, or {_NEW}",
            )
        own = name.startswith(PREFIX)
        raise ConfigurationError(
            f"{'a column that orders changes' if own else f'the column {name!r}'} "
            f"{'does not exist' if was is None else f'has the type {was}'} in the state, and is "
            f"{'missing' if current is None else f'of type {current}'} in the query",
            option="sequence_by" if own else None,
            advice=f"{'keep the columns that order changes' if own else _KEEP}, or {_NEW}",
        )


def _type_in(schema: pa.Schema, name: str) -> pa.DataType | None:
    place = schema.get_field_index(name)
    return None if place < 0 else schema.field(place).type


_NEW: Final = "start with a new checkpoint and a new state location"
_KEEP: Final = "columns may be added, not removed or changed: keep the old column and add a new one"
