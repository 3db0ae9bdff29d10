# SPDX-License-Identifier: Apache-2.0
"""Stores the offsets at which ending times stop a stream, because retention may later remove the records there."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from forebay.framework.microbatch.offsets.offset import compact, damaged, expand
from forebay.framework.split import Json
from forebay.sources.kafka.planning.offset_resolver import OffsetResolver
from forebay.sources.kafka.split import KafkaSplit, TopicPartition


class TimeLimits:
    """Finds and stores the first offset at or after the ending time of each split. Called on the planning thread."""

    def __init__(self, resolver: OffsetResolver) -> None:
        self._resolver = resolver
        self._found: dict[str, tuple[int, int]] = {}

    def of(self, splits: Sequence[KafkaSplit]) -> dict[TopicPartition, int]:
        """Return the end offset of each partition by its ending time. May ask the brokers, and block.

        A partition without a record at or after the time is left out. `splits` may have only one split per partition.
        """
        times = {
            split.id: time
            for split in splits
            if (time := self._resolver.ending_time(split.topic_partition)) is not None
        }
        ids = {split.topic_partition: split.id for split in splits if split.id in times}
        # A restart may have changed the ending time. Offsets found for the former time do not count.
        new = [partition for partition, name in ids.items() if self._found.get(name, (None,))[0] != times[name]]
        for partition, offset in self._resolver.ends_by_time(new).items():
            self._found[ids[partition]] = times[ids[partition]], offset
        known = {partition: self._found[name] for partition, name in ids.items() if name in self._found}
        return {partition: offset for partition, (time, offset) in known.items() if time == times[ids[partition]]}

    def state(self, ids: Collection[str]) -> Json:
        """Return the stored offsets of the splits with these ids as JSON for the checkpoint; None if there are none.

        The offsets of all other splits are dropped.
        """
        self._found = {name: found for name, found in self._found.items() if name in ids}
        kept: dict[str, dict[str, dict[str, int]]] = {}
        for name, (time, offset) in sorted(self._found.items()):
            topic, _, partition = name.rpartition("/")
            kept.setdefault(str(time), {}).setdefault(topic, {})[partition] = offset
        return {"limits": compact(kept)} if kept else None

    def restore(self, state: Json, source: str) -> None:
        """Restore the offsets that `state` returned. `source` is the format name, for errors."""
        kept = state.get("limits") if isinstance(state, dict) else None
        if kept is None:
            return
        try:
            limits: Any = expand(kept)
            self._found = {
                f"{topic}/{partition}": (int(time), int(offset))
                for time, topics in limits.items()
                for topic, partitions in topics.items()
                for partition, offset in partitions.items()
            }
        except (AttributeError, TypeError, ValueError) as error:
            raise damaged(source, f"the offsets of ending times cannot be read: {error}") from error
