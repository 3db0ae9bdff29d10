# SPDX-License-Identifier: Apache-2.0
"""Logs a warning if a stream stands still because all splits with records wait for a split that has caught up."""

from __future__ import annotations

import logging
from typing import Final

from forebay.framework.runtime.runtime import Runtime

_log = logging.getLogger(__name__)

_PATIENCE: Final = 60.0
"""Seconds without a planned record after which the warning is logged."""


class LongHold:
    """Measures for how long one caught-up split holds back all others. Called on the planning thread."""

    def __init__(self, source: str, runtime: Runtime) -> None:
        self._source = source
        self._clock = runtime.clock
        self._split: str | None = None
        self._since = 0.0
        self._warned = False

    def follow(self, split: str | None) -> None:
        """Record which split holds back all others now; log one warning if it does so for a minute.

        Args:
            split: The id of the caught-up split that all splits with records wait for; None if a record may be read,
                or there is no record. It never becomes idle, because `idleTimeout` is not set.
        """
        now = self._clock.monotonic()
        if split is None or split != self._split:
            self._split, self._since, self._warned = split, now, False
        elif not self._warned and now - self._since >= _PATIENCE:
            self._warned = True
            _log.warning(
                "%s: for %.0f s no record could be read, because all splits with records wait for the split %r, which "
                "has caught up; its next record ends the wait. If it may get no more records, set idleTimeout: a split "
                "without records for that time does not hold back the others",
                self._source,
                now - self._since,
                split,
            )
