# SPDX-License-Identifier: Apache-2.0
"""Asks the brokers why offsets are missing or records do not arrive, and creates the errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from kafka.errors import KafkaConnectionError, KafkaTimeoutError

from forebay.errors import DataLossError, RetriableError

_TIMEOUT_MS = 5_000
"""Timeout in ms of each request of this module."""

_SILENT = (KafkaTimeoutError, KafkaConnectionError)
"""The error classes of kafka-python for brokers that do not answer."""

Key = tuple[str, int]
"""Topic and number of a partition; in the fetcher a `TopicPartition` of kafka-python."""
Bounds = tuple[int, int]
"""The first offset of a partition, and the offset after its last record."""


class PositionLostError(Exception):
    """Says that offsets of a range no longer exist. `error()` returns the `DataLossError` for users.

    Args:
        topic: The topic of the range.
        partition: The partition of the range.
        offset: The next offset to read.
        end: The end of the range; None = no end.
        bounds: The partition's first offset, and the offset after its last record, now; None = it does not exist.
        reason: The cause, if known; by default derived from the bounds.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        end: int | None,
        bounds: Bounds | None,
        reason: str | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.end = end
        self.earliest = bounds[0] if bounds is not None else None
        self.latest = bounds[1] if bounds is not None else None
        self.is_there = bounds is not None and bounds[0] <= offset < bounds[1] and (end is None or end <= bounds[1])
        """Whether the bounds contain the range, so that no offset is lost."""
        self.truncated = reason is not None
        """Whether the partition's log is known to be truncated."""
        self.reason = reason or _reason(offset, bounds)
        super().__init__(topic, partition, offset, end, bounds, self.reason)

    def __str__(self) -> str:
        return self.error().message

    def error(self, advice: str | None = None) -> DataLossError:
        """Return the error to raise if `failOnDataLoss` is set. `advice` is the next step."""
        upto = " on" if self.end is None else f" up to {self.end}"
        now = "" if self.earliest is None else f"; the partition has offsets {self.earliest} to {self.latest} now"
        return DataLossError(
            f"topic {self.topic}, partition {self.partition}: some or all records from offset {self.offset}{upto} no "
            f"longer exist: {self.reason}{now}",
            position=self.offset,
            advice=advice,
        )


class TopicIdRefusedError(PositionLostError):
    """Says that the broker of a partition does not know the topic id: the topic was deleted, or is too new."""


def _reason(offset: int, bounds: Bounds | None) -> str:
    if bounds is None:
        return "the partition does not exist; its topic may have been deleted"
    if offset < bounds[0]:
        return "retention or a user removed the records"
    return "the partition ends before them: the topic may have been recreated, or the log truncated"


class BoundsProbe:
    """Asks the brokers for the bounds of partitions, with a timeout. Called on the consumer's thread.

    If `consumer` gets no answer, `connect` makes a second consumer from the same arguments. If the second consumer gets
    no answer either, a `RetriableError` is raised.
    """

    def __init__(self, consumer: Any, connect: Callable[..., Any], arguments: Mapping[str, object]) -> None:  # noqa: ANN401
        self._consumer = consumer
        self._connect = connect
        self._arguments = arguments

    def bounds(self, keys: Sequence[Key]) -> dict[Key, Bounds | None]:
        """Return each partition's first offset and the offset after its last record; None if it does not exist."""
        try:
            return {**_bounds(self._consumer, keys)}
        except _SILENT as error:
            why = str(error)
        # Ask through another connection: partitions may be gone, or a quota may block the first one.
        with self._new_consumer() as probe:
            try:
                existing = {topic: probe.partitions_for_topic(topic) or () for topic, _ in keys}
                left = [key for key in keys if key[1] in existing[key[0]]]
                return {**dict.fromkeys(keys), **_bounds(probe, left)}
            except _SILENT as error:
                named = ", ".join(f"{topic}/{partition}" for topic, partition in keys[:5])
                raise RetriableError(
                    f"the leaders of the partitions {named} do not answer, but {_servers(self._arguments)} do: {why}",
                    advice="check that every broker runs, and that this machine reaches its advertised listener",
                ) from error

    def written(self, keys: Sequence[Key]) -> dict[Key, int]:
        """Return the high watermarks of partitions: the ends, including records of open transactions."""
        if not keys:
            return {}
        with self._new_consumer(isolation_level="read_uncommitted") as probe, must_answer(self._arguments):
            return {key: last for key, (_, last) in _bounds(probe, keys).items()}

    @contextmanager
    def _new_consumer(self, **more: object) -> Iterator[Any]:
        with must_answer(self._arguments):
            consumer = self._connect(**{**self._arguments, "bootstrap_timeout_ms": _TIMEOUT_MS, **more})
        try:
            yield consumer
        finally:
            consumer.close(autocommit=False)


def _bounds(consumer: Any, keys: Sequence[Key]) -> dict[Key, Bounds]:  # noqa: ANN401 - kafka-python has no types
    if not keys:
        return {}
    first = consumer.beginning_offsets(keys, timeout_ms=_TIMEOUT_MS)
    last = consumer.end_offsets(keys, timeout_ms=_TIMEOUT_MS)
    return {key: (first[key], last[key]) for key in keys}


def _servers(arguments: Mapping[str, object]) -> str:
    """Return the bootstrap servers of a consumer's arguments, for errors."""
    found = arguments.get("bootstrap_servers")
    return ", ".join(found) if isinstance(found, list) else str(found)


@contextmanager
def must_answer(arguments: Mapping[str, object]) -> Iterator[None]:
    """Convert errors of kafka-python for brokers that do not answer to a RetriableError that names the brokers."""
    try:
        yield
    except _SILENT as error:
        raise RetriableError(
            f"the brokers {_servers(arguments)} do not answer: {error}",
            option="kafka.bootstrap.servers",
            advice="check address, port, network and kafka.security.protocol; every worker needs to reach every broker",
        ) from error


def stuck(topic: str, partition: int, offset: int, seconds: float, last: int, held: int | None) -> RetriableError:
    """Return the error for a partition from which no record arrives.

    Args:
        topic: The topic.
        partition: The partition.
        offset: The next offset to read.
        seconds: The seconds for which the reader has waited.
        last: The end of the partition: the offset after its last record.
        held: The last stable offset, if an open transaction holds the records back; else None.
    """
    why = f"but the partition has records up to {last}"
    advice = "check the leader of the partition and quotas, or raise kafkaConsumer.pollTimeoutMs"
    if held is not None:
        why += f": a transaction is open from offset {held} on, and the plan was made without read_committed"
        advice = (
            "wait until the transaction ends, or abort a hanging transaction (kafka-transactions.sh find-hanging, "
            "abort); or restore the former kafka.isolation.level until this micro-batch is done"
        )
    return RetriableError(
        f"topic {topic}, partition {partition}: no record arrived from offset {offset} on for {seconds:.0f} s, {why}",
        position=offset,
        advice=advice,
    )
