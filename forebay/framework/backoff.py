# SPDX-License-Identifier: Apache-2.0
"""How long to wait before the next try."""

from __future__ import annotations

from random import Random

_FIRST = 0.1
_LONGEST = 10.0


def backoff(attempt: int, random: Random) -> float:
    """Return the seconds to wait after the failed `attempt` (from 1): doubling from 0.1 to 10 s, half of it jitter."""
    bound: float = min(_LONGEST, _FIRST * 2 ** (attempt - 1))
    return bound / 2 + random.random() * bound / 2
