# SPDX-License-Identifier: Apache-2.0
"""Cuts ranges of offsets into tasks by `minPartitions` and `maxRecordsPerPartition`, with Spark's arithmetic."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from forebay.sources.kafka.split import KafkaSplit


@dataclass(frozen=True)
class RangeRules:
    """The options `minPartitions` and `maxRecordsPerPartition`.

    If neither option is set, the host cuts slices and packs tasks.

    Args:
        min_partitions: The approximate minimum number of tasks; large ranges are cut in proportion to their size.
        max_records: The maximum number of offsets in one task.
    """

    min_partitions: int | None = None
    max_records: int | None = None

    def tasks(self, slices: Sequence[KafkaSplit], *, keep_empty: bool = False) -> list[tuple[KafkaSplit]] | None:
        """Cut ranges as the options say, and return one task per range; None if neither option is set.

        Empty ranges are left out, unless `keep_empty` is set.
        """
        if self.min_partitions is None and self.max_records is None:
            return None
        ranges = [one for one in slices if keep_empty or one.left != 0]
        most = self.max_records
        if most is not None:
            ranges = [part for one in ranges for part in divide(one, -(-(one.left or 0) // most))]
        if self.min_partitions is not None and self.min_partitions > len(ranges):
            ranges = self._spread(ranges, self.min_partitions)
        return [(one,) for one in ranges]

    @staticmethod
    def _spread(ranges: Sequence[KafkaSplit], wanted: int) -> list[KafkaSplit]:
        """Cut big ranges in proportion to their size, into about `wanted` ranges in total.

        The shares are computed without the ranges that are not cut (SPARK-36576).
        """
        sizes = [one.left or 0 for one in ranges]
        total = sum(sizes)
        whole = [_parts(size, total, wanted) == 1 for size in sizes]
        left = total - sum(size for size, uncut in zip(sizes, whole, strict=True) if uncut)
        rest = max(1, wanted - sum(whole))
        return [
            part
            for one, size, uncut in zip(ranges, sizes, whole, strict=True)
            for part in ([one] if uncut else divide(one, _parts(size, left, rest)))
        ]


def divide(split: KafkaSplit, count: int) -> list[KafkaSplit]:
    """Cut a range into `count` parts with equal numbers of offsets; into fewer parts if there are fewer offsets."""
    left = split.left
    if left is None or count <= 1 or left <= 1:
        return [split]
    count = min(count, left)
    cuts = [split.start + left * number // count for number in range(count + 1)]
    return [split.slice(low, high) for low, high in itertools.pairwise(cuts)]


def _parts(size: int, total: int, wanted: int) -> int:
    return max(1, int(size / total * wanted + 0.5)) if total else 1
