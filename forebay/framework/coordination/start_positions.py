# SPDX-License-Identifier: Apache-2.0
"""The start positions of a run, as its consumer stored them in an earlier run."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from forebay.framework.split import Position, Split

_log = logging.getLogger(__name__)


class StartPositions:
    """Moves each split to its start position, once: at its discovery, or at its first assignment by a raw enumerator.

    Used on the coordinator thread only.
    """

    def __init__(self, source: str, positions: Mapping[str, Position]) -> None:
        self.given = bool(positions)
        self._source = source
        self._left = dict(positions)

    def __contains__(self, split_id: str) -> bool:
        return split_id in self._left

    def apply(self, split: Split) -> Split:
        """Return the split at its start position, if it has one that was not applied before."""
        return split.at(self._left.pop(split.id)) if split.id in self._left else split

    def warn_of_unused(self) -> None:
        """Log the positions that no split had."""
        if self._left:
            _log.warning(
                "%s: %d of the given positions belong to no split that was found, first %r: nothing is read there; "
                "if these splits are not gone, check that their ids are those of the earlier run",
                self._source,
                len(self._left),
                next(iter(self._left)),
            )
