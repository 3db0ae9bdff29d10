# SPDX-License-Identifier: Apache-2.0
"""Decodes many zigzag varints at once.

A table of all 65,536 byte pairs gives value and size of a varint of one or two bytes. Longer varints are rare and
decoded byte by byte.
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


# STEP: bytes from the length of a record to the next record; 0 = the length has more than two bytes, or is negative.
# _NUMBER: four times the number, plus its size in bytes; 0 = more than two bytes.
STEP, _NUMBER = _tables()


class Bytes:
    """A buffer of at least 8 bytes, with unaligned views of 1, 2, 4 and 8 bytes at each position."""

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
        """Return the byte pairs that begin at the given positions.

        The positions may include the last byte, which is paired with a continuation byte.
        """
        alone = at == self.size - 1
        pairs = np.where(alone, 0x8000, self.u16[np.where(alone, 0, at)].astype(np.int64))
        pairs[alone] |= self.u8[-1]
        return pairs


def numbers(source: Bytes, at: Ints, most: int = 5) -> tuple[Ints, Ints]:
    """Read a varint of at most `most` bytes (5 for 32 bits, 10 for 64) at each position.

    Returns:
        The numbers, and the positions after them.

    Raises:
        MalformedError: A varint is longer than `most` bytes.
        IndexError: A varint reaches beyond the bytes.
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
        # The last byte of a 64-bit varint has one bit, that of a 32-bit varint four.
        if number == most - 1 and (byte >> (1 if most == 10 else 4)).any():
            break
        value[left] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * number)
        after[left] += 1
        left = left[byte >= 0x80]
        if not left.size:
            return (value >> np.uint64(1)).astype(np.int64) ^ -(value & np.uint64(1)).astype(np.int64), after
    raise MalformedError(f"a varint has more than {most} bytes")
