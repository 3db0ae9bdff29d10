# SPDX-License-Identifier: Apache-2.0
"""One micro-batch of an operator in one shard: events in, changes out, the state written once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
import pyarrow as pa

from forebay.changelog.operators.events import Events, Layout, collect
from forebay.changelog.operators.expiry import Expiry
from forebay.changelog.operators.result import Result
from forebay.changelog.state.entries import PREFIX
from forebay.changelog.state.manifest import Manifest, OperatorInfo
from forebay.changelog.state.shard import Change, Shard
from forebay.changelog.state.snapshot import Entries, lookup
from forebay.errors import ConfigurationError


class Operator(Protocol):
    """A stateful operator. It is pickled to the tasks, and has no state of its own."""

    def apply(self, events: Events, entries: Entries, expiry: Expiry, version: int) -> Result:
        """Return the changes and new entries of a micro-batch; the same for the same events in any order."""


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
        operator: What to run.
        shard: The state.
        info: What the state belongs to.
        version: The micro-batch.
        batches: Its events in this shard.
        layout: What their columns mean.
        time_to_live: Microseconds after which an untouched key expires; None keeps it.

    Raises:
        ConfigurationError: The state belongs to something else, or its columns have other types.
        DataError: An event is wrong; see the operator.
        FatalError: The state is damaged, or a replay has other events.
    """
    events = collect(batches, layout)
    before = shard.begin(info, version)
    runs = shard.open(before)
    expiry = Expiry(time_to_live, before.clock)
    hashes = np.unique(np.concatenate([events.key_hashes, expiry.candidates(runs, before, events)]))
    result = operator.apply(events, lookup(runs, hashes, timed=layout.timed), expiry, version)
    _check_schema(before, result.entries.schema)
    shard.commit(before, version, Change(result.entries, events.digest, result.clock, result.counts))
    return result


def _check_schema(before: Manifest, now: pa.Schema) -> None:
    """Refuse a payload that lost a column or changed a type. New columns are NULL in older entries."""
    for field in before.schema:
        place = now.get_field_index(field.name)
        if place >= 0 and now.field(place).type == field.type:
            continue
        own = field.name.startswith(PREFIX)
        what = "the order of changes" if own else f"the column {field.name!r}"
        found = "missing" if place < 0 else f"of type {now.field(place).type}"
        raise ConfigurationError(
            f"{what} has the type {field.type} in the state, and is {found} in the query",
            advice="columns may be added, not removed or changed: keep the old column and add a new one, or start with "
            "a new checkpoint and a new state location",
        )
