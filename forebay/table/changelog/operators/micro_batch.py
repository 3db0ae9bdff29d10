# SPDX-License-Identifier: Apache-2.0
"""Runs an operator on one micro-batch of one shard: reads events and state, returns changes, writes the state once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from forebay.errors import ConfigurationError, FatalError
from forebay.table.changelog.operators.events import Events, Layout, collect
from forebay.table.changelog.operators.expiry import Expiry
from forebay.table.changelog.operators.result import Result
from forebay.table.changelog.state.entries import PREFIX, TOUCHED, entry_schema
from forebay.table.changelog.state.manifest import Manifest, OperatorInfo
from forebay.table.changelog.state.shard import Change, Shard
from forebay.table.changelog.state.snapshot import Entries, lookup


class Operator(Protocol):
    """A stateful operator. It is pickled to the tasks, and has no state of its own."""

    def apply(self, events: Events, entries: Entries, expiry: Expiry, version: int) -> Result:
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
) -> Result:
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
    shard.commit(before, version, Change(result.entries, events.digest, result.clock, result.counts))
    return result


def _check_schema(before: Manifest, layout: Layout) -> None:
    """Check that the payload lost no column and changed no type. New columns are NULL in older entries."""
    if not before.schema.names:
        return
    now = entry_schema(layout.payload, layout.order_types, timed=layout.timed)
    names = [*before.schema.names, *(name for name in now.names if name.startswith(PREFIX))]
    for name in dict.fromkeys(names):
        was, found = _type_in(before.schema, name), _type_in(now, name)
        if was == found:
            continue
        if name == TOUCHED:
            raise ConfigurationError(
                f"the state was written {'without' if found else 'with'} a time to live, but the query "
                f"{'has one' if found else 'has none'}",
                option="state_ttl",
                advice=f"{'leave state_ttl out' if found else 'give state_ttl'} as before, or {_NEW}",
            )
        own = name.startswith(PREFIX)
        raise ConfigurationError(
            f"{'a column that orders changes' if own else f'the column {name!r}'} "
            f"{'does not exist' if was is None else f'has the type {was}'} in the state, and is "
            f"{'missing' if found is None else f'of type {found}'} in the query",
            option="sequence_by" if own else None,
            advice=f"{'keep the columns that order changes' if own else _KEEP}, or {_NEW}",
        )


def _type_in(schema: pa.Schema, name: str) -> pa.DataType | None:
    place = schema.get_field_index(name)
    return None if place < 0 else schema.field(place).type


_NEW: Final = "start with a new checkpoint and a new state location"
_KEEP: Final = "columns may be added, not removed or changed: keep the old column and add a new one"
