# SPDX-License-Identifier: Apache-2.0
"""Positions that the consumer of a run has stored, for the splits of the next run."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from forebay.framework.split import Position, Split

_log = logging.getLogger(__name__)


class StartPositions:
    """Moves each split to its given position, once: when it is discovered, or first assigned by a raw enumerator.

    Called on the coordinator thread only.

    Args:
        source: The name of the source, for the log.
        positions: By split id.
    """

    def __init__(self, source: str, positions: Mapping[str, Position]) -> None:
        self.given = bool(positions)
        self._source = source
        self._left = dict(positions)

    def __contains__(self, split_id: str) -> bool:
        return split_id in self._left

    def apply(self, split: Split) -> Split:
        """Return the split at its given position; one without a position, or that had its turn, as it is."""
        return split.at(self._left.pop(split.id)) if split.id in self._left else split

    def warn_of_unused(self) -> None:
        """Log which positions belong to no split that there is, if any."""
        if self._left:
            _log.warning(
                "%s: %d of the given positions belong to no split that was found, first %r: nothing is read there; "
                "if these splits are not gone, check that their ids are those of the earlier run",
                self._source,
                len(self._left),
                next(iter(self._left)),
            )
