# SPDX-License-Identifier: Apache-2.0
"""Computes the times of entries, for a state with a time to live."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from forebay.table.changelog.operators.ordering import FIRST
from forebay.table.changelog.operators.touched_keys import TouchedKeys
from forebay.table.changelog.state.segments import Ints


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
