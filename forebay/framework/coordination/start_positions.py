# SPDX-License-Identifier: Apache-2.0
"""The start positions of a run: positions that its user stored in an earlier run, by split id."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from forebay.framework.split import Position, Split

_log = logging.getLogger(__name__)


class StartPositions:
    """Moves each split to its start position, once. Used on the coordinator thread only.

    A split is moved when it is discovered, or when a connector's own `SplitEnumerator` first assigns it.
    """

    def __init__(self, source: str, positions: Mapping[str, Position]) -> None:
        self.given = bool(positions)
        self._source = source
        self._left = dict(positions)

    def __contains__(self, split_id: str) -> bool:
        return split_id in self._left

    def apply(self, split: Split) -> Split:
        """Return the split at its start position; unchanged if it has none, or if it was applied before."""
        return split.at(self._left.pop(split.id)) if split.id in self._left else split

    def warn_of_unused(self) -> None:
        """Log a warning if there are start positions that no split used."""
        if self._left:
            _log.warning(
                "%s: %d of the given start positions match no discovered split and are not used; one is for the split "
                "%r. If these splits still exist, check that their ids are the same as in the earlier run",
                self._source,
                len(self._left),
                next(iter(self._left)),
            )
