# SPDX-License-Identifier: Apache-2.0
"""Logs warnings about splits with event times in the future, and about splits with records that Spark may drop."""

from __future__ import annotations

import logging
from typing import Final

from forebay.framework.microbatch.event_time.split_time import SplitTime
from forebay.framework.split import Split

_log = logging.getLogger(__name__)

_MOST_WARNINGS: Final = 20
"""Maximum warnings of one process about splits with event times in the future."""


class TimeWarnings:
    """Logs warnings about the event times of single splits, and counts late splits. Called on the planning thread.

    Args:
        source: The format name.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._future = 0
        self.late = 0
        """How often an idle or new split had records older than the lowest watermark that the others had waited for."""

    def future(self, split: Split, time: SplitTime, event_time: int) -> None:
        """Log a warning, once per split, that its next or last record has an event time (µs) in the future."""
        if time.warned or self._future >= _MOST_WARNINGS:
            return
        time.warned = True
        self._future += 1
        _log.warning(
            "%s: the split %r has a record at %s whose event time, %d us since 1970, is more than a day in the future; "
            "it is read without alignment, and raises Spark's watermark unless the query drops it before withWatermark",
            self._source,
            split.id,
            split.position,
            event_time,
        )

    def check_behind(self, split: Split, time: SplitTime, found: int, floor: int) -> None:
        """Count a split and log a warning if its next record is older than the lowest watermark the others waited for.

        This can happen if the split did not hold back the others: it was new, idle, or at its end of a run.

        Args:
            split: The split at its present position.
            time: The known event times of the split before the lookup of its next record.
            found: The watermark just before the next record, in microseconds.
            floor: The lowest watermark that the others waited for, in microseconds: the limit less the drift.
        """
        waited_for = time.watermark is not None and time.watermark >= floor
        if waited_for or found >= floor:
            time.behind = False
        elif not time.behind:
            time.behind = True
            self.late += 1
            _log.warning(
                "%s: the split %r was new, idle or at the end of a run, so the other splits did not wait for it; its "
                "next record is %.3f s too old for their watermark, so Spark may drop it. To keep such records, set a "
                "longer idleTimeout, or a longer delay in withWatermark",
                self._source,
                split.id,
                (floor - found) / 1e6,
            )
