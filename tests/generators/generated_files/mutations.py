# SPDX-License-Identifier: Apache-2.0
"""Damage done to a file."""

from __future__ import annotations

import random


def mutated(chosen: random.Random, data: bytes) -> bytes:
    """Return the file with bits or bytes changed, in one place or in several, moved, inserted, or cut off."""
    changed = bytearray(data)
    size = len(changed)
    # Footers and headers are small, and matter most.
    low, high = chosen.choice([(0, size), (0, size), (size - 2_000, size), (size - 60, size), (0, 600)])
    low, high = max(0, low), min(size, high)
    at = chosen.randrange(low, high)
    match chosen.randrange(8):
        case 0 | 1:
            for _ in range(chosen.choice([1, 1, 2, 8])):
                changed[chosen.randrange(low, high)] ^= 1 << chosen.randrange(8)
        case 2 | 3:
            for _ in range(chosen.choice([1, 2, 20])):
                changed[chosen.randrange(low, high)] = chosen.choice([0, 127, 255, chosen.randrange(256)])
        case 4:
            del changed[at:]
        case 5:
            changed[at : at + chosen.randrange(1, 30)] = chosen.randbytes(chosen.randrange(30))
        case 6:
            changed[at:at] = chosen.randbytes(chosen.randrange(1, 12))
        case _:
            part = changed[at : at + chosen.randrange(1, 200)]
            at = chosen.randrange(size)
            changed[at : at + len(part)] = part
    return bytes(changed)
