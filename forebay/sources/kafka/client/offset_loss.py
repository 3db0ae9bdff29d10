# SPDX-License-Identifier: Apache-2.0
"""Offsets that cannot be read any more, and brokers that do not answer: what is the matter, asked of the brokers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kafka import TopicPartition
from kafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError

from forebay.errors import DataLossError, RetriableError

ASKING_MS = 5_000
"""How long brokers may take to answer such a question."""

SILENT = (KafkaTimeoutError, KafkaConnectionError)
"""What kafka-python raises when nobody answers."""

Key = tuple[str, int]
Bounds = tuple[int, int]
"""The first offset of a partition, and the one after its last."""


class PositionLostError(Exception):
    """Offsets that should be read are no longer there. `error()` makes the `DataLossError` of it.

    Args:
        topic: The topic.
        partition: The partition.
        offset: The offset that should have been read next.
        end: Where the range ends; None: nowhere.
        bounds: The first offset there is now, and the one after the last; None: there is no such partition.
        reason: What happened, in words; by default what the bounds say.
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
        """Whether the brokers, asked again, say that there are all these offsets."""
        self.cut_off = reason is not None
        """Whether something is known to have happened to the records."""
        self.reason = reason or _reason(offset, bounds)
        super().__init__(topic, partition, offset, end, bounds, self.reason)

    def __str__(self) -> str:
        return self.error().message

    def error(self) -> DataLossError:
        """Return the error to raise where data must not be lost."""
        upto = "" if self.end is None else f" up to {self.end}"
        there = "" if self.earliest is None else f"; there are offsets {self.earliest} to {self.latest} now"
        return DataLossError(
            f"topic {self.topic}, partition {self.partition}: offset {self.offset}{upto} cannot be read any more: "
            f"{self.reason}{there}",
            position=self.offset,
            advice="read what is left with failOnDataLoss=false, or start anew; keep records longer than readers lag",
        )


def _reason(offset: int, bounds: Bounds | None) -> str:
    if bounds is None:
        return "there is no such partition, the topic may have been deleted"
    if offset < bounds[0]:
        return "its records have been removed, by retention or by hand"
    return "the partition ends before, its topic may have been created anew, or its log cut off"


class Inquiry:
    """Asks the brokers about partitions, in bounded time. For the thread of its consumer.

    Args:
        consumer: The consumer.
        connect: Makes another one.
        arguments: Of both.
    """

    def __init__(
        self,
        consumer: Any,  # noqa: ANN401 - kafka-python has no types
        connect: Callable[..., Any],
        arguments: Mapping[str, object],
    ) -> None:
        self._consumer = consumer
        self._connect = connect
        self._arguments = arguments

    def bounds(self, keys: Sequence[Key]) -> dict[Key, Bounds | None]:
        """Return first and next offsets of partitions; None for those there are not.

        Raises:
            RetriableError: The brokers do not answer, or a partition has no leader.
        """
        try:
            return {**_asked(self._consumer, keys)}
        except SILENT as error:
            return self._asked_anew(keys, error)

    def written(self, keys: Sequence[Key]) -> dict[Key, int]:
        """Return where partitions end with open transactions, also for a consumer that is not told of them.

        Raises:
            RetriableError: The brokers do not answer.
        """
        if not keys:
            return {}
        probe = self._probe(isolation_level="read_uncommitted")
        try:
            return {key: last for key, (_, last) in _asked(probe, keys).items()}
        except SILENT as error:
            raise unreachable(self._arguments, str(error)) from error
        finally:
            probe.close(autocommit=False)

    def _asked_anew(self, keys: Sequence[Key], why: KafkaError) -> dict[Key, Bounds | None]:
        """Ask through another connection: partitions may be gone, or the first one held up by a quota."""
        probe = self._probe()
        try:
            there = {topic: probe.partitions_for_topic(topic) or () for topic, _ in keys}
            left = [key for key in keys if key[1] in there[key[0]]]
            return {**dict.fromkeys(keys), **_asked(probe, left)}
        except SILENT as error:
            named = ", ".join(f"{topic}/{partition}" for topic, partition in keys[:5])
            raise RetriableError(
                f"no leader of the partitions {named} answers, though {servers(self._arguments)} do: {why}",
                advice="look whether every broker runs, and whether its advertised listener can be reached from here",
            ) from error
        finally:
            probe.close(autocommit=False)

    def _probe(self, **more: object) -> Any:  # noqa: ANN401 - kafka-python has no types
        try:
            return self._connect(**{**self._arguments, "bootstrap_timeout_ms": ASKING_MS, **more})
        except SILENT as error:
            raise unreachable(self._arguments, str(error)) from error


def _asked(consumer: Any, keys: Sequence[Key]) -> dict[Key, Bounds]:  # noqa: ANN401 - kafka-python has no types
    places = [TopicPartition(*key) for key in keys]
    if not places:
        return {}
    first = consumer.beginning_offsets(places, timeout_ms=ASKING_MS)
    last = consumer.end_offsets(places, timeout_ms=ASKING_MS)
    return {key: (first[place], last[place]) for key, place in zip(keys, places, strict=True)}


def servers(arguments: Mapping[str, object]) -> str:
    """Return the bootstrap servers of a consumer's arguments, for people."""
    found = arguments.get("bootstrap_servers", "localhost:9092")
    return (
        found if isinstance(found, str) else ", ".join(map(str, found)) if isinstance(found, Sequence) else str(found)
    )


def unreachable(arguments: Mapping[str, object], what: str) -> RetriableError:
    """Return the error for brokers that do not answer."""
    return RetriableError(
        f"the brokers {servers(arguments)} do not answer: {what}",
        option="kafka.bootstrap.servers",
        advice="check address, port, network and kafka.security.protocol; every worker needs to reach every broker",
    )


def stuck(topic: str, partition: int, offset: int, seconds: float, last: int, held: int | None) -> RetriableError:
    """Return the error for records that are there and do not come.

    Args:
        topic: The topic.
        partition: The partition.
        offset: The next one to read.
        seconds: How long it was waited for.
        last: Up to where there are records.
        held: Where an open transaction begins that holds them back; None: there is none.
    """
    why = f"though there are records up to {last}"
    advice = "look at the leader of the partition and at quotas, or raise kafkaConsumer.pollTimeoutMs"
    if held is not None:
        why += f": a transaction is open from offset {held} on, and they were planned without read_committed"
        advice = (
            "wait until it ends, or end a hanging one (kafka-transactions.sh find-hanging, then abort); or give "
            "kafka.isolation.level as before until this micro-batch is done"
        )
    return RetriableError(
        f"topic {topic}, partition {partition}: nothing came from offset {offset} on for {seconds:.0f} s, {why}",
        position=offset,
        advice=advice,
    )
