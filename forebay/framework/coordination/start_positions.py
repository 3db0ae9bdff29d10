# SPDX-License-Identifier: Apache-2.0
"""The start positions of a run, which its consumer stored in an earlier run."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from forebay.framework.split import Position, Split

_log = logging.getLogger(__name__)


class StartPositions:
    """Moves each split to its start position once.

    That is when it is discovered, or when a raw enumerator first assigns it.

    Used on the coordinator thread only.
    """

    def __init__(self, source: str, positions: Mapping[str, Position]) -> None:
        self.given = bool(positions)
        self._source = source
        self._left = dict(positions)

    def __contains__(self, split_id: str) -> bool:
        return split_id in self._left

    def apply(self, split: Split) -> Split:
        """Return the split at its start position if it has one that was not applied yet, else unchanged."""
        return split.at(self._left.pop(split.id)) if split.id in self._left else split

    def warn_of_unused(self) -> None:
        """Log the positions that no split used."""
        if self._left:
            _log.warning(
                "%s: %d of the given positions match no discovered split, first %r, and are not used; if these "
                "splits still exist, check that their ids are the same as in the earlier run",
                self._source,
                len(self._left),
                next(iter(self._left)),
            )
