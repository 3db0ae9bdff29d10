# SPDX-License-Identifier: Apache-2.0
"""The signed multiset: correct for any order of arrival (C8–C11, C15, P2).

The state counts each row of a key: an ADD counts 1, a retraction -1. A retraction that arrives before its ADD leaves a
negative count, which the ADD cancels. A row whose count is positive is live; of several live rows the last one in the
order of changes is the row of the key.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal

import numpy as np

from forebay.errors import DataError
from forebay.table.changelog.operators.counted_rows import CountedRows
from forebay.table.changelog.operators.equality import equal_rows
from forebay.table.changelog.operators.events import Events, shown_key
from forebay.table.changelog.operators.expiry import Expiry
from forebay.table.changelog.operators.ordering import last_of
from forebay.table.changelog.operators.result import Result, changes_of_winners
from forebay.table.changelog.operators.row_groups import row_groups
from forebay.table.changelog.operators.touched_keys import touched_keys
from forebay.table.changelog.state.segments import Ints
from forebay.table.changelog.state.snapshot import Entries

_log = logging.getLogger(__name__)

UNMATCHED = "retractions_unmatched"
CONFLICTS = "conflicts"


@dataclass(frozen=True)
class Retract:
    """The operator of `materialize` with the strategies `retract` and `barrier`.

    Args:
        preimages: Whether an update also gives the old row, as `update_preimage`.
        on_missing: For a retraction that has no row at the end of a micro-batch: `warn` holds it and logs a warning,
            `error` fails, `hold` holds it silently.
        on_conflict: For a key with several live rows: `deduplicate` takes the last one, `nothing` the first one,
            `error` fails.
    """

    preimages: bool = False
    on_missing: Literal["warn", "error", "hold"] = "warn"
    on_conflict: Literal["deduplicate", "nothing", "error"] = "deduplicate"

    def apply(self, events: Events, entries: Entries, expiry: Expiry, version: int) -> Result:
        """Return the changes and new entries of a micro-batch.

        Args:
            events: The events of the micro-batch in this shard.
            entries: The entries of the keys of the events, and of keys that may expire.
            expiry: Decides which entries are too old.
            version: The id of the micro-batch.

        Raises:
            DataError: A retraction has no row and `on_missing` is `error`, or a key has several rows and `on_conflict`
                is `error`.
        """
        keys = touched_keys(events, entries)
        groups = row_groups(keys)
        expired = expiry.expired(keys.codes, entries, events)
        counted = CountedRows(keys, groups, expired, version, by_first=self.on_conflict == "nothing")
        before = self._winners(counted, counted.before, counted.order_before)
        after = self._winners(counted, counted.after, counted.order_after)
        if self.on_conflict == "error":
            self._refuse_conflicts(counted)
        source_before = np.where(before >= 0, groups.entries[before], -1)
        source_after = np.where(after >= 0, counted.source[after], -1)
        same = before == after
        if events.layout.identity != tuple(events.layout.payload.names):
            both = np.flatnonzero(same & (before >= 0) & (source_before != source_after))
            names = tuple(events.layout.payload.names)
            same[both] = equal_rows(keys.take(source_before[both], names), keys.take(source_after[both], names))
        changes = changes_of_winners(keys, source_before, source_after, same, version=version, preimages=self.preimages)
        counts = {
            UNMATCHED: self._unmatched(counted),
            CONFLICTS: int((np.bincount(groups.codes[counted.after > 0], minlength=len(keys)) > 1).sum()),
            "expired": counted.expired,
        }
        return Result(changes, counted.entries(), expiry.clock(events), counts)

    def _winners(self, counted: CountedRows, counts: Ints, order: Ints) -> Ints:
        """Return the group that is the current row of each key; -1 if the key has no live row."""
        live = np.flatnonzero(counts > 0)
        sign = -1 if self.on_conflict == "nothing" else 1
        groups = counted.groups
        return last_of(groups.codes, len(counted.keys), live, sign * order, groups.row_hashes, groups.ordinals)

    def _unmatched(self, counted: CountedRows) -> int:
        """Return how many retractions this micro-batch adds to those without a row; warn or raise by `on_missing`."""
        missing = np.maximum(-counted.after, 0) - np.maximum(-counted.before, 0)
        places = np.flatnonzero(missing > 0)
        total = int(missing[places].sum())
        if total and self.on_missing != "hold":
            key = shown_key(counted.keys.events, int(counted.any_event[places[0]]))
            if self.on_missing == "error":
                raise DataError(
                    f"{total} retractions have no row to retract; the first one is of the key {key}",
                    advice="if changes may arrive in any order or over several micro-batches, give "
                    'strategy="retract" and on_missing_retraction="hold"; if not, find the source that lost rows',
                )
            _log.warning(
                "%d retractions have no row to retract yet, and are held until their rows arrive; the first key is %s",
                total,
                key,
            )
        return total

    def _refuse_conflicts(self, counted: CountedRows) -> None:
        rows = np.maximum(counted.after, 0)  # a row that was added twice is two rows
        live = np.bincount(counted.groups.codes, weights=rows, minlength=len(counted.keys))
        many = np.flatnonzero(live > 1)
        if not len(many):
            return
        member = int(np.flatnonzero(counted.keys.codes[len(counted.keys.entries) :] == many[0])[0])
        raise DataError(
            f"{len(many)} keys have several rows at the end of the micro-batch; the first one is "
            f"{shown_key(counted.keys.events, member)} with {int(live[many[0]])} rows",
            advice='give on_conflict="deduplicate" to keep the last row or "nothing" to keep the first row; or '
            "choose key columns that identify a row",
        )
