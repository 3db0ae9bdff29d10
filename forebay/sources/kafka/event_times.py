# SPDX-License-Identifier: Apache-2.0
"""Looks up records in partitions: timestamps of the next or last record, and the first record at or after a time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from kafka.errors import KafkaError

from forebay.clock import Clock
from forebay.errors import RetriableError
from forebay.framework.microbatch.offset import compact, damaged, expand
from forebay.framework.split import Json
from forebay.framework.split_reader import Fetched
from forebay.sources.kafka.client.client_errors import PositionLostError, client_error
from forebay.sources.kafka.fetching import PartitionFetcher
from forebay.sources.kafka.offset_resolver import OffsetResolver
from forebay.sources.kafka.options import KafkaOptions
from forebay.sources.kafka.records.batches import record_schema
from forebay.sources.kafka.split import KafkaSplit, TopicPartition

# -- Stores the offsets at which ending times stop a stream, because retention may later remove the records there.


class TimeLimits:
    """Finds and stores the first offset at or after the ending time of each split. Called by one thread at a time."""

    def __init__(self, resolver: OffsetResolver) -> None:
        self._resolver = resolver
        self._limits: dict[str, tuple[int, int]] = {}

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
        new = [partition for partition, name in ids.items() if self._limits.get(name, (None,))[0] != times[name]]
        for partition, offset in self._resolver.ends_by_time(new).items():
            self._limits[ids[partition]] = times[ids[partition]], offset
        known = {partition: self._limits[name] for partition, name in ids.items() if name in self._limits}
        return {partition: offset for partition, (time, offset) in known.items() if time == times[ids[partition]]}

    def state(self, ids: Collection[str]) -> Json:
        """Return the stored offsets of the splits with these ids as JSON for the checkpoint; None if there are none.

        The offsets of all other splits are dropped.
        """
        self._limits = {name: limit for name, limit in self._limits.items() if name in ids}
        stored: dict[str, dict[str, dict[str, int]]] = {}
        for name, (time, offset) in sorted(self._limits.items()):
            topic, _, partition = name.rpartition("/")
            stored.setdefault(str(time), {}).setdefault(topic, {})[partition] = offset
        return {"limits": compact(stored)} if stored else None

    def restore(self, state: Json, source: str) -> None:
        """Restore the offsets that `state` returned. `source` is the format name, for errors."""
        stored = state.get("limits") if isinstance(state, dict) else None
        if stored is None:
            return
        try:
            limits: Any = expand(stored)
            self._limits = {
                f"{topic}/{partition}": (int(time), int(offset))
                for time, topics in limits.items()
                for topic, partitions in topics.items()
                for partition, offset in partitions.items()
            }
        except (AttributeError, TypeError, ValueError) as error:
            raise damaged(source, f"the offsets of ending times cannot be read: {error}") from error


# -- Looks up records in partitions: timestamps of the next or last record, and the first record at or after a time.


_FETCH_BYTES: Final = 128 << 10
"""Maximum bytes of one partition in a fetch; a broker sends a larger record batch alone."""

_ALL_BYTES: Final = 16 << 20
"""Maximum bytes of a fetch from one broker."""

_NO_TIMESTAMP: Final = -1_000
"""The timestamp -1 ms of records without one, in microseconds."""

_LAST: Final = 16
"""Number of offsets read before the end of a caught-up partition to find its last record: control records may follow
it."""

_TIMEOUT: Final = 30.0
"""Maximum seconds of one call that looks up records."""

_SCANNED: Final = 100_000
"""Maximum number of records of a partition that are scanned in the search for a time."""


class RecordTimes:
    """Looks up the times of records of many partitions with one consumer. One call at a time; connects at the first."""

    def __init__(self, source: KafkaOptions, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._fetcher: PartitionFetcher | None = None
        self._noted: dict[str, tuple[int, int]] = {}

    def note(self, records: Mapping[str, tuple[int, int]]) -> None:
        """Store by split id the offset and timestamp (ms since 1970) of a record; ignore negative timestamps.

        A micro-batch often ends before this record, so `of` often needs its timestamp next. Under `read_committed`,
        nothing is stored, because the record may belong to an aborted transaction, and is not read then.
        """
        if not self._source.client_options.read_committed:
            self._noted |= {split_id: (offset, time) for split_id, (offset, time) in records.items() if time >= 0}

    def of(self, splits: Iterable[KafkaSplit]) -> dict[str, int]:
        """Return by split id the timestamp of the next record before the split's end, in µs since 1970.

        If the split is at its end, return the timestamp of the last record among the 16 offsets before the position.

        A split is omitted if there is no such record, if it has no timestamp, or if its position no longer exists.

        Raises:
            ForebayError: The brokers do not answer, or refuse.
        """
        lookups = [_Lookup(split) for split in splits]
        for lookup in lookups:
            lookup.know(self._noted.get(lookup.split.id))
        self._read([lookup for lookup in lookups if lookup.found is None])
        return {lookup.split.id: lookup.found for lookup in lookups if lookup.found is not None}

    def first_at(self, event_time: int, broker_offsets: Iterable[tuple[KafkaSplit, int, int]]) -> dict[str, int]:
        """Return by split id the first offset at or after both the split's position and a time (µs since 1970).

        Brokers search from the beginning of a partition, also among records of aborted transactions. If a broker's
        answer is before the position (under `read_committed`, also at it), the method reads timestamps from there on.
        It stops at the record, at the end of the split, or after about 100,000 records, and returns the offset where it
        stopped. If a broker found no record, the split's end is returned. A split whose offsets no longer exist is left
        out.

        Args:
            event_time: The time in µs since 1970.
            broker_offsets: Splits with an end, and for each the offset and timestamp (ms since 1970) from a broker;
                -1 = none.

        Raises:
            ForebayError: The brokers do not answer, or refuse.
        """
        broker_offsets = list(broker_offsets)
        self.note({split.id: (offset, time) for split, offset, time in broker_offsets})
        committed = self._source.client_options.read_committed  # then the record at the position may be an aborted one
        passed = [
            split
            for split, offset, _ in broker_offsets
            if 0 <= offset < split.start or (committed and offset == split.start)
        ]
        searches = [_Search(split, event_time) for split in passed]
        lost = self._read(searches)
        self.note({search.split.id: search.record for search in searches if search.record is not None})
        answer = {
            split.id: offset if offset >= 0 else split.start + (split.left or 0) for split, offset, _ in broker_offsets
        }
        answer |= {search.split.id: search.to for search in searches}
        return {split_id: offset for split_id, offset in answer.items() if split_id not in lost}

    def close(self) -> None:
        """Close the connections."""
        fetcher, self._fetcher = self._fetcher, None
        if fetcher is not None:
            fetcher.close()

    def _read(self, lookups: Iterable[_Lookup | _Search]) -> set[str]:
        """Fetch records until all look-ups are complete; return the ids of splits whose offsets no longer exist."""
        waiting = {lookup.split.id: lookup for lookup in lookups if lookup.split.left}
        if not waiting:
            return set()
        try:
            fetcher = self._connected()
            for lookup in waiting.values():
                fetcher.assign(lookup.split)
            return self._collect(fetcher, waiting)
        except KafkaError as error:
            raise client_error(error, "asking for event times", self._source.client_options) from error
        finally:
            if self._fetcher is not None:
                self._fetcher.clear()

    def _collect(self, fetcher: PartitionFetcher, waiting: dict[str, _Lookup | _Search]) -> set[str]:
        gone: set[str] = set()
        deadline = self._clock.monotonic() + _TIMEOUT
        while waiting:
            left = deadline - self._clock.monotonic()
            if left <= 0:
                raise RetriableError(
                    f"the brokers returned no record of {len(waiting)} partitions within {_TIMEOUT:g} s",
                    source=self._source.name,
                    split=min(waiting),
                    advice="check the brokers: they may be overloaded, or unreachable from this machine",
                )
            try:
                parts = fetcher.fetch(left)
            except PositionLostError as lost:
                partition = TopicPartition(lost.topic, lost.partition)
                for name in [name for name, lookup in waiting.items() if lookup.split.topic_partition == partition]:
                    if waiting[name].skip_to(lost.earliest):
                        fetcher.assign(waiting[name].split)
                    else:
                        gone.add(name)
                        del waiting[name]
                continue
            for part in parts:
                lookup = waiting.get(part.split_id)
                if lookup is not None and lookup.take(part):
                    del waiting[part.split_id]
                    fetcher.drop(lookup.split.topic_partition)
        return gone

    def _connected(self) -> PartitionFetcher:
        if self._fetcher is None:
            options = self._source.client_options
            arguments = {
                **options.arguments("consumer"),
                "max_partition_fetch_bytes": _FETCH_BYTES,
                "fetch_max_bytes": _ALL_BYTES,
            }
            self._fetcher = PartitionFetcher(
                arguments,
                record_schema(["timestamp", "offset"]),
                check_crcs=options.consumer.get("check_crcs") is not False,
                clock=self._clock,
            )
        return self._fetcher


class _Lookup:
    """The look-up of one split's next or last record: `split` is the range to read, `found` the timestamp in µs."""

    def __init__(self, split: KafkaSplit) -> None:
        self._next = bool(split.left)
        self.split = split if self._next else split.slice(max(0, split.start - _LAST), split.start)
        self.found: int | None = None

    def know(self, record: tuple[int, int] | None) -> None:
        """Use a stored record (offset, ms since 1970) if it is the record to find; then nothing needs to be read."""
        if record is not None and self._next and record[0] == self.split.start:
            self.found = record[1] * 1000

    def skip_to(self, earliest: int | None) -> bool:
        """Continue at the partition's first offset if the last record may still be there; return whether it may."""
        end = self.split.start + (self.split.left or 0)
        if self._next or earliest is None or not self.split.start < earliest < end:
            return False
        self.split = self.split.slice(earliest, self.split.end)
        return True

    def take(self, part: Fetched) -> bool:
        """Process fetched records; return whether the look-up is complete."""
        if part.batch is not None and part.batch.num_rows:
            time = part.batch.column(0).cast(pa.int64())[0 if self._next else part.batch.num_rows - 1].as_py()
            self.found = None if time == _NO_TIMESTAMP else time
            return self._next or part.finished
        return part.finished


class _Search:
    """The search for the first record of a split at or after a time (µs). `to` is the offset reached so far."""

    def __init__(self, split: KafkaSplit, event_time: int) -> None:
        self.split = split
        self.to = split.start
        self.record: tuple[int, int] | None = None
        self._event_time = event_time
        self._left = _SCANNED

    def skip_to(self, earliest: int | None) -> bool:
        """Return False: a search needs the records from the position on."""
        return False

    def take(self, part: Fetched) -> bool:
        """Process fetched records; return whether the search is complete."""
        if part.batch is not None:
            times = part.batch.column(0).cast(pa.int64())
            at = pc.index(pc.greater_equal(times, self._event_time), value=True).as_py()
            if at >= 0:
                self.to = part.batch.column(1)[at].as_py()
                self.record = self.to, times[at].as_py() // 1000
                return True
            self._left -= part.batch.num_rows
        if isinstance(part.position, int):
            self.to = part.position
        return part.finished or self._left <= 0
