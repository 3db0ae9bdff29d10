# SPDX-License-Identifier: Apache-2.0
"""Warns once if a stream stands still because all splits with records wait for one that is caught up."""

from __future__ import annotations

import logging
from typing import Final

from forebay.framework.runtime.runtime import Runtime

_log = logging.getLogger(__name__)

_PATIENCE: Final = 60.0
"""Seconds without a planned record after which the warning is logged."""


class LongHold:
    """Follows which caught-up split holds back all others. Called on the planning thread."""

    def __init__(self, source: str, runtime: Runtime) -> None:
        self._source = source
        self._clock = runtime.clock
        self._split: str | None = None
        self._since = 0.0
        self._warned = False

    def follow(self, split: str | None) -> None:
        """Note the result of a poll.

        Args:
            split: The caught-up split for which all records wait, if there are records, and none may be read; else
                None. It never becomes idle, because `idleTimeout` is not set.
        """
        now = self._clock.monotonic()
        if split is None or split != self._split:
            self._split, self._since = split, now
        elif not self._warned and now - self._since >= _PATIENCE:
            self._warned = True
            _log.warning(
                "%s: for %.0f s no record could be read, because all splits with records wait for %r, which is caught "
                "up; its next record ends the wait. If it may stay silent, set idleTimeout: after that time without "
                "records a split holds back no others",
                self._source,
                now - self._since,
                split,
            )
