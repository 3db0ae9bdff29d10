# SPDX-License-Identifier: Apache-2.0
"""The rows of a rate source: a pure function of the options, the split and the row number."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

RATE_SCHEMA = pa.schema(
    [pa.field("timestamp", pa.timestamp("us", "UTC")), pa.field("value", pa.int64()), pa.field("split", pa.int32())]
)

# Two odd constants of Knuth's MMIX generator; any odd multiplier that mixes the high bits will do.
_MULTIPLIER = 6_364_136_223_846_793_005
_INCREMENT = 1_442_695_040_888_963_407
_WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class RateRows:
    """Makes the rows of one split.

    Args:
        index: The split's number, from 0.
        splits: How many splits there are.
        started_at: The event time of row 0, in µs since 1970.
        step: Event time between two rows of this split, in µs.
        disorder: How far an event time may lag behind its row's turn, in µs.
        seed: Another seed, another disorder.
    """

    index: int
    splits: int
    started_at: int
    step: float
    disorder: int
    seed: int

    def make(self, start: int, stop: int) -> pa.RecordBatch:
        """Return the rows `start` up to `stop`: row n of split i has value n · splits + i."""
        numbers = pa.array(range(start, stop), pa.int64())
        turn = pc.cast(pc.floor(pc.multiply(pc.cast(numbers, pa.float64()), self.step)), pa.int64())
        times = pc.add(turn, self.started_at)
        if self.disorder:
            times = pc.subtract(times, self._lag(numbers))
        values = pc.add(pc.multiply(numbers, self.splits), self.index)
        columns = [
            times.cast(RATE_SCHEMA.field("timestamp").type),
            values,
            pa.array([self.index] * len(numbers), pa.int32()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=RATE_SCHEMA)

    def _lag(self, numbers: pa.Array) -> pa.Array:
        """Return a number in [0, disorder] for each row: its number and the seed, mixed twice, high bits only."""
        salt = (self.seed * _MULTIPLIER + self.index * _INCREMENT) & _WORD
        mixed = pc.add(numbers.cast(pa.uint64()), pa.scalar(salt, pa.uint64()))
        for _ in range(2):
            mixed = pc.add(pc.multiply(mixed, pa.scalar(_MULTIPLIER, pa.uint64())), pa.scalar(_INCREMENT, pa.uint64()))
            mixed = pc.bit_wise_xor(mixed, pc.shift_right(mixed, pa.scalar(29, pa.uint64())))
        high = pc.shift_right(mixed, pa.scalar(32, pa.uint64()))
        bound = pa.scalar(self.disorder + 1, pa.uint64())
        return pc.subtract(high, pc.multiply(pc.divide(high, bound), bound)).cast(pa.int64())
