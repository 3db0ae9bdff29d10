# SPDX-License-Identifier: Apache-2.0
"""Which reader gets which split when splits are pushed."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from forebay.framework.split import Split


def spread(splits: Sequence[Split], loads: Mapping[int, int]) -> dict[int, list[Split]]:
    """Give each split, in order, to the reader with the fewest; the lowest number wins a tie, so it is repeatable.

    Args:
        splits: What to give out.
        loads: How many splits each candidate has; at least one candidate.
    """
    heap = [(load, subtask) for subtask, load in loads.items()]
    heapq.heapify(heap)
    given: dict[int, list[Split]] = {}
    for split in splits:
        load, subtask = heap[0]
        given.setdefault(subtask, []).append(split)
        heapq.heapreplace(heap, (load + 1, subtask))
    return given
