# SPDX-License-Identifier: Apache-2.0
"""The time to live of keys (C11): a key expires when it has had no event for this time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from forebay.table.changelog.operators.events import FIRST, Events, TouchedKeys
from forebay.table.changelog.state.manifest import Manifest
from forebay.table.changelog.state.segments import COUNT, TOUCHED, Ints, Segment
from forebay.table.changelog.state.shard import Entries

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
