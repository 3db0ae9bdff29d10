# SPDX-License-Identifier: Apache-2.0
"""Asks the brokers what planning needs: partitions, offsets, sizes, group offsets. Every request has a timeout."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

import kafka.errors as kafka_errors
from kafka.admin import KafkaAdminClient
from kafka.structs import OffsetAndMetadata

from forebay.clock import SystemClock
from forebay.errors import RetriableError
from forebay.retry import RetryCount, RetryPolicy
from forebay.sources.kafka.client.client_errors import client_error, unreachable
from forebay.sources.kafka.client.client_options import ClientOptions
from forebay.sources.kafka.client.kafka_internals import connect
from forebay.sources.kafka.split import KafkaSplit, TopicPartition, are_of_two_topics

_log = logging.getLogger(__name__)

T = TypeVar("T")

COORDINATOR_RETRIES = 40
_COORDINATOR_PAUSE = 0.3
"""Seconds between retries while a group coordinator starts: a new cluster first creates the topic for group offsets."""

_RETRIES = 3
_PAUSE = 0.2
"""Retry count and delay in seconds before a topic counts as deleted or recreated."""


@dataclass(frozen=True)
class Topic:
    """The metadata of a topic.

    Args:
        topic_id: The topic id in the cluster; None from old brokers.
        leaders: The broker id of each partition's leader; -1 = no leader.
        internal: Whether the topic is internal to Kafka.
        error: Why the topic cannot be read; None if it can.
    """

    topic_id: str | None = None
    leaders: Mapping[int, int] = field(default_factory=dict)
    internal: bool = False
    error: Exception | None = None


class KafkaCluster:
    """An admin client with retries. One call at a time, from any thread; connects at the first call.

    The methods raise a `ForebayError` if the brokers do not answer, or refuse the request. After a retriable error,
    they repeat the request after at most `interval` seconds.
    """

    def __init__(self, options: ClientOptions, *, retries: int, interval: float) -> None:
        self._options = options
        self._retries = retries
        self._interval = interval
        self._admin: Any = None

    @property
    def servers(self) -> str:
        """The addresses of the brokers, for messages."""
        return ", ".join(self._options.servers)

    def topics(self, names: Collection[str] | None) -> dict[str, Topic]:
        """Return the existing topics in `names`, by name; all topics if `names` is None."""
        requested = None if names is None else list(names)
        topics: dict[str, Topic] = {}
        for each in self._ask("asking for topics", lambda admin: admin.describe_topics(requested)):
            code = each.get("error_code", 0)
            if code in (kafka_errors.UnknownTopicOrPartitionError.errno, kafka_errors.UnknownTopicIdError.errno):
                continue
            topics[each["name"]] = Topic(
                str(each["topic_id"]) if each.get("topic_id") else None,
                {partition["partition_index"]: partition["leader_id"] for partition in each["partitions"]},
                bool(each.get("is_internal")),
                kafka_errors.for_code(code)(each["name"]) if code else None,
            )
        return topics

    def offsets(self, specs: Mapping[TopicPartition, int], *, committed: bool) -> dict[TopicPartition, int]:
        """Return an offset for each partition.

        Args:
            specs: For each partition: -1 for its end, -2 for its beginning, or a time in ms since 1970. A time gives
                the offset of the first record at or after the time, or -1 if there is no such record.
            committed: Whether the end is the last stable offset (the offset of the first open transaction) instead of
                the high watermark.
        """
        return {partition: offset for partition, (offset, _) in self.timed_offsets(specs, committed=committed).items()}

    def timed_offsets(
        self, specs: Mapping[TopicPartition, int], *, committed: bool
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return by partition the offset as in `offsets`, and the record's timestamp (ms since 1970, -1 = unknown)."""
        if not specs:
            return {}
        level = "read_committed" if committed else "read_uncommitted"
        answers = self._ask("asking for offsets", lambda admin: admin.list_partition_offsets(specs, level))
        return {TopicPartition(*key): (int(answer.offset), int(answer.timestamp)) for key, answer in answers.items()}

    def sizes(self, topics: Collection[str]) -> dict[TopicPartition, int] | None:
        """Return the bytes of each partition on disk; {} if the request fails, None if the user lacks the permission.

        To users without the permission DESCRIBE on the cluster, brokers return no log directory.
        """
        try:
            brokers = self._connected().describe_log_dirs(list(topics))
        except Exception as error:  # noqa: BLE001 - only an estimate: other calls report unreachable brokers
            _log.info("the sizes of %s are unknown: %s", ", ".join(topics), error)
            return None if isinstance(error, kafka_errors.AuthorizationError) else {}
        if brokers and not any(broker["log_dirs"] for broker in brokers):
            return None
        sizes = (
            (TopicPartition(topic["name"], partition["partition_index"]), partition["partition_size"])
            for broker in brokers
            for directory in broker["log_dirs"]
            for topic in directory.get("topics", ())
            for partition in topic["partitions"]
            if not partition.get("is_future_key")
        )
        return dict(sorted(sizes))  # the largest replica of each partition

    def group_offsets(self, group: str, partitions: Collection[TopicPartition] | None) -> dict[TopicPartition, int]:
        """Return the committed offsets of a group for these partitions; `partitions` None = all with an offset."""
        asked = None if partitions is None else list(partitions)
        answers = self._ask(
            f"asking for the offsets of the group {group!r}",
            lambda admin: admin.list_group_offsets({group: asked}),
            coordinator=COORDINATOR_RETRIES,
        )
        offsets = {TopicPartition(*key): int(answer.offset) for key, answer in answers.get(group, {}).items()}
        return {partition: offset for partition, offset in offsets.items() if offset >= 0}

    def commit(self, group: str, splits: Collection[KafkaSplit], *, retries: int = COORDINATOR_RETRIES) -> None:
        """Commit the position of each split to a group without members.

        Deleted partitions are left out, and those whose topic was recreated: the group has no topic ids, and would
        begin in the middle of the new topic.
        """
        topics = {split.topic_partition.topic for split in splits if split.topic_id is not None}

        def commit(admin: Any) -> None:  # noqa: ANN401 - kafka-python has no types
            ids = {name: topic.topic_id for name, topic in self.topics(topics).items()} if topics else {}
            asked = {
                split.topic_partition: OffsetAndMetadata(split.start, "", -1)
                for split in splits
                if not are_of_two_topics(split.topic_id, ids.get(split.topic_partition.topic))
            }
            for partition, error in admin.alter_group_offsets(group, asked).items() if asked else ():
                if error is kafka_errors.UnknownTopicOrPartitionError:
                    # The topic was deleted. An error here would block the commits of all other partitions.
                    _log.info(
                        "no commit to the group %r for %s/%s: the partition no longer exists",
                        group,
                        partition.topic,
                        partition.partition,
                    )
                elif error is not kafka_errors.NoError:
                    raise error(f"{partition.topic}/{partition.partition}")

        self._ask(f"committing to the group {group!r}", commit, coordinator=retries)

    def close(self) -> None:
        """Close the connections."""
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()

    def _ask(self, doing: str, work: Callable[[Any], T], *, coordinator: int = 0) -> T:
        failing, starting = _retries(self._retries, self._interval), _retries(coordinator, _COORDINATOR_PAUSE)
        while True:
            try:
                return work(self._connected())
            except kafka_errors.KafkaError as error:
                translated = client_error(error, doing, self._options)
                if not isinstance(translated, RetriableError):
                    raise translated from error
                count = starting if coordinator and isinstance(error, _COORDINATOR) else failing
                pause = count.fail(translated)
                if count.exhausted:
                    self.close()  # the next call connects again
                    raise translated from error
                time.sleep(pause)

    def _connected(self) -> Any:  # noqa: ANN401 - kafka-python has no types
        if self._admin is None:
            try:
                self._admin = connect(KafkaAdminClient, self._options.arguments("admin"))
            except (kafka_errors.KafkaError, OSError) as error:
                raise unreachable(error, self._options) from error
        return self._admin


def _retries(retries: int, pause: float) -> RetryCount:
    policy = RetryPolicy(retries=retries, first_pause=pause, factor=1, max_pause=pause, timeout=math.inf)
    return RetryCount(policy, SystemClock(), Random())


_COORDINATOR = (
    kafka_errors.CoordinatorNotAvailableError,
    kafka_errors.CoordinatorLoadInProgressError,
    kafka_errors.NotCoordinatorError,
)


def ask_until(
    ask: Callable[[], T],
    accept: Callable[[T], bool],
    answer: T | None = None,
    *,
    retries: int = _RETRIES,
    pause: float | None = None,
) -> T:
    """Call `ask` until `accept` returns True for its answer, or no retry is left; return the last answer.

    With the defaults, the pauses take less than a second.

    Args:
        ask: A function that asks the brokers.
        accept: A function that returns whether an answer is accepted.
        answer: The first answer, if `ask` was already called.
        retries: The maximum number of further calls.
        pause: Seconds between two calls.
    """
    answer = ask() if answer is None else answer
    for _ in range(retries):
        if accept(answer):
            break
        time.sleep(_PAUSE if pause is None else pause)
        answer = ask()
    return answer
