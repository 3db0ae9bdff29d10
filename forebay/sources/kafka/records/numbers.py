# SPDX-License-Identifier: Apache-2.0
"""Kafka's zigzag numbers, many at once.

Two bytes at any place are looked up in a table of all 65,536 pairs, which says what a number beginning there is and how
long it is; longer numbers are rare, and taken byte by byte.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from forebay.sources.kafka.records.parsing import MalformedError

Ints = npt.NDArray[np.int64]


def _tables() -> tuple[Ints, npt.NDArray[np.int32]]:
    pairs = np.arange(1 << 16, dtype=np.int64)
    low, high = pairs & 0xFF, pairs >> 8
    size = np.where(low < 0x80, 1, np.where(high < 0x80, 2, 0))
    raw = np.where(low < 0x80, low, (low & 0x7F) | (high << 7))
    value = (raw >> 1) ^ -(raw & 1)
    step = np.where((size > 0) & (value >= 0), size + value, 0)
    return step, np.where(size > 0, value * 4 + size, 0).astype(np.int32)


# From the length of a record to the next record; 0: the length has more than two bytes, or is none.
# And: four times the number, plus how many bytes it takes; 0: more than two.
STEP, _NUMBER = _tables()


class Bytes:
    """Bytes that can be looked at from any place in pieces of 1, 2, 4 and 8.

    Args:
        data: The bytes, 8 at least.
    """

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.size = len(data)
        self.u8 = np.frombuffer(data, np.uint8)
        self.u16 = self._view("<u2", 2)
        self.u32 = self._view("<u4", 4)
        self.u64 = self._view("<u8", 8)

    def _view(self, kind: str, width: int) -> npt.NDArray[np.unsignedinteger]:
        return np.ndarray(shape=(max(0, self.size - width + 1),), dtype=kind, buffer=self.data, strides=(1,))

    def pairs_up_to_the_end(self, at: Ints) -> Ints:
        """Return the pairs of bytes at places of which one is the last byte: it stands beside one that goes on.

        Raises:
            IndexError: A place is beyond the bytes.
        """
        alone = at == self.size - 1
        pairs = np.where(alone, 0x8000, self.u16[np.where(alone, 0, at)].astype(np.int64))
        pairs[alone] |= self.u8[-1]
        return pairs


def numbers(source: Bytes, at: Ints, most: int = 5) -> tuple[Ints, Ints]:
    """Read a number at each place; return the numbers, and the places after them.

    Args:
        source: The bytes.
        at: The places.
        most: Bytes a number has at most: 5 for 32 bits, 10 for 64.

    Raises:
        MalformedError: A number is longer.
        IndexError: It reaches beyond the bytes.
    """
    try:
        packed = _NUMBER[source.u16[at]]
    except IndexError:
        packed = _NUMBER[source.pairs_up_to_the_end(at)]
    value, after = (packed >> 2).astype(np.int64), at + (packed & 3)
    long = np.flatnonzero(packed == 0)
    if long.size:
        value[long], after[long] = _long(source, at[long], most)
    return value, after


def _long(source: Bytes, at: Ints, most: int) -> tuple[Ints, Ints]:
    value, after = np.zeros(len(at), np.uint64), at.copy()
    left = np.arange(len(at))
    for number in range(most):
        byte = source.u8[after[left]]
        # The last byte of a number of 64 bits has one bit, of one of 32 bits four.
        if number == most - 1 and (byte >> (1 if most == 10 else 4)).any():
            break
        value[left] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * number)
        after[left] += 1
        left = left[byte >= 0x80]
        if not left.size:
            return (value >> np.uint64(1)).astype(np.int64) ^ -(value & np.uint64(1)).astype(np.int64), after
    raise MalformedError(f"a number of more than {most} bytes")
