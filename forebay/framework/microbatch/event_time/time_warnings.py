# SPDX-License-Identifier: Apache-2.0
"""Warnings about single splits: event times in the future, and records that the other splits have left behind."""

from __future__ import annotations

import logging
from typing import Final

from forebay.framework.microbatch.event_time.split_time import SplitTime
from forebay.framework.split import Split

_log = logging.getLogger(__name__)

_MOST_WARNINGS: Final = 20
"""Maximum warnings of one process about splits with event times in the future."""


class TimeWarnings:
    """Warns, and counts what it warned of. Called on the planning thread.

    Args:
        source: The format name.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._future = 0
        self.late = 0
        """How often a split came back, after the others had gone on, with records that are older than they allow."""

    def future(self, split: Split, time: SplitTime, event_time: int) -> None:
        """The next or last record of a split has an event time, in microseconds, that cannot be believed."""
        if time.warned or self._future >= _MOST_WARNINGS:
            return
        time.warned = True
        self._future += 1
        _log.warning(
            "%s: the split %r has a record at %s whose event time, %d us, is more than a day in the future; it is read "
            "without alignment, and raises Spark's watermark unless the query drops it before withWatermark",
            self._source,
            split.id,
            split.position,
            event_time,
        )

    def check_behind(self, split: Split, time: SplitTime, found: int, floor: int) -> None:
        """Count a split that was not waited for, and goes on with records that the others have left behind.

        Args:
            split: At its present position.
            time: What was known of the split before this look.
            found: The watermark before its next record, in microseconds.
            floor: The limit less the drift: the lowest watermark that the others waited for.
        """
        waited_for = time.watermark is not None and time.watermark >= floor
        if waited_for or found >= floor:
            time.behind = False
        elif not time.behind:
            time.behind = True
            self.late += 1
            _log.warning(
                "%s: the split %r was new, idle or finished for a run, and goes on with records that are up to %.3f s "
                "older than the other splits allow: Spark may drop them; a longer idleTimeout, or a longer delay in "
                "withWatermark, keeps them",
                self._source,
                split.id,
                (floor - found) / 1e6,
            )
