# SPDX-License-Identifier: Apache-2.0
"""Where an ending time stops a stream: what was found first counts, since retention removes the record that says it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from forebay.framework.microbatch.offsets.compact import compact, expand
from forebay.framework.microbatch.offsets.offset import damaged
from forebay.framework.split import Json
from forebay.sources.kafka.planning.start_resolver import OffsetResolver
from forebay.sources.kafka.split import KafkaSplit, TopicPartition


class TimeLimits:
    """Remembers the first offset that is too late, of each partition that has one. Called on the planning thread.

    Args:
        resolver: Asks the brokers.
    """

    def __init__(self, resolver: OffsetResolver) -> None:
        self._resolver = resolver
        self._found: dict[str, tuple[int, int]] = {}

    def of(self, splits: Sequence[KafkaSplit]) -> dict[TopicPartition, int]:
        """Return the offsets to stop before; asks for those that are not known yet, so it may block.

        Args:
            splits: At most one of each partition. One without a record so late has no limit, for now.

        Raises:
            ForebayError: The brokers do not answer, or refuse to.
        """
        times = {split.id: time for split in splits if (time := self._resolver.ending_time(split.place)) is not None}
        ids = {split.place: split.id for split in splits if split.id in times}
        # A limit for another time is of other options: those of before a restart.
        new = [place for place, name in ids.items() if self._found.get(name, (None,))[0] != times[name]]
        for place, offset in self._resolver.ends_by_time(new).items():
            self._found[ids[place]] = times[ids[place]], offset
        known = {place: self._found[name] for place, name in ids.items() if name in self._found}
        return {place: offset for place, (time, offset) in known.items() if time == times[ids[place]]}

    def state(self, ids: Collection[str]) -> Json:
        """Return what is known of these splits, JSON-ready and small; None = nothing. The others are forgotten."""
        self._found = {name: found for name, found in self._found.items() if name in ids}
        kept: dict[str, dict[str, dict[str, int]]] = {}
        for name, (time, offset) in sorted(self._found.items()):
            topic, _, partition = name.rpartition("/")
            kept.setdefault(str(time), {}).setdefault(topic, {})[partition] = offset
        return {"limits": compact(kept)} if kept else None

    def restore(self, state: Json, source: str) -> None:
        """Take back what `state` returned; None is nothing.

        Args:
            state: Of a checkpoint.
            source: The format name, for errors.

        Raises:
            ConfigurationError: It is damaged.
        """
        kept = state.get("limits") if isinstance(state, dict) else None
        if kept is None:
            return
        try:
            self._found = _read(expand(kept))
        except (AttributeError, TypeError, ValueError) as error:
            raise damaged(source, f"the offsets of ending times cannot be read: {error}") from error


def _read(kept: Json) -> dict[str, tuple[int, int]]:
    if not isinstance(kept, dict):
        raise TypeError("they are no object")
    found = {}
    for time, topics in kept.items():
        for topic, partitions in topics.items():
            for partition, offset in partitions.items():
                found[f"{topic}/{partition}"] = int(time), int(offset)
    return found
