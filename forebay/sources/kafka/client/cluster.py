# SPDX-License-Identifier: Apache-2.0
"""What planning asks of the brokers: partitions, offsets, sizes, group offsets. Every call is bounded in time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import kafka.errors as kafka_errors
from kafka import TopicPartition as KafkaTopicPartition
from kafka.admin import KafkaAdminClient
from kafka.structs import OffsetAndMetadata

from forebay.errors import RetriableError
from forebay.sources.kafka.client.client_errors import client_error, unreachable
from forebay.sources.kafka.client.client_options import ClientOptions
from forebay.sources.kafka.client.clients import connect
from forebay.sources.kafka.split import TopicPartition

_log = logging.getLogger(__name__)

T = TypeVar("T")

COORDINATOR_TRIES = 40
_COORDINATOR_PAUSE = 0.25
"""A cluster that has never had a group makes its offsets topic first: that takes seconds."""


@dataclass(frozen=True)
class Topic:
    """A topic as the brokers tell it.

    Args:
        topic_id: What the cluster calls it; None where the brokers are too old.
        leaders: The broker that leads each partition; -1 = none does.
        internal: It is Kafka's own.
        error: Why it cannot be read; None if it can.
    """

    topic_id: str | None = None
    leaders: Mapping[int, int] = field(default_factory=dict)
    internal: bool = False
    error: Exception | None = None


class Cluster:
    """Asks the brokers. One call at a time, from any thread; connects at the first one.

    Args:
        options: Where the brokers are.
        retries: How often asking is tried again after trouble that passes.
        interval: Seconds between two tries.
    """

    def __init__(self, options: ClientOptions, *, retries: int, interval: float) -> None:
        self._options = options
        self._retries = retries
        self._interval = interval
        self._admin: Any = None

    @property
    def servers(self) -> str:
        """The brokers, for messages."""
        return ", ".join(self._options.servers)

    def topics(self, names: Collection[str] | None) -> dict[str, Topic]:
        """Return the topics of these names, or all there are; one that does not exist is left out.

        Raises:
            ForebayError: The brokers do not answer, or refuse to.
        """
        wanted = None if names is None else list(names)
        found: dict[str, Topic] = {}
        for each in self._ask("asking for topics", lambda admin: admin.describe_topics(wanted)):
            code = each.get("error_code", 0)
            if code in (kafka_errors.UnknownTopicOrPartitionError.errno, kafka_errors.UnknownTopicIdError.errno):
                continue
            found[each["name"]] = Topic(
                str(each["topic_id"]) if each.get("topic_id") else None,
                {one["partition_index"]: one["leader_id"] for one in each["partitions"]},
                bool(each.get("is_internal")),
                kafka_errors.for_code(code)(each["name"]) if code else None,
            )
        return found

    def offsets(self, specs: Mapping[TopicPartition, int], *, committed: bool) -> dict[TopicPartition, int]:
        """Return an offset of each partition.

        Args:
            specs: -1 = the end, -2 = the beginning, else the first record at or after this time, ms since 1970.
            committed: The end is where the first open transaction begins, if there is one.

        Returns:
            The offsets; -1 where no record is so late.

        Raises:
            ForebayError: The brokers do not answer, or refuse to.
        """
        if not specs:
            return {}
        asked = {KafkaTopicPartition(place.topic, place.partition): spec for place, spec in specs.items()}
        level = "read_committed" if committed else "read_uncommitted"
        found = self._ask("asking for offsets", lambda admin: admin.list_partition_offsets(asked, level))
        return {TopicPartition(one.topic, one.partition): int(answer.offset) for one, answer in found.items()}

    def sizes(self, topics: Collection[str]) -> dict[TopicPartition, int] | None:
        """Return the bytes of each partition on a broker's disk; none where one is down, None if the user may not know.

        A broker has a directory at least, and hides all of them from who may not DESCRIBE the cluster.
        """
        try:
            brokers = self._connected().describe_log_dirs(list(topics))
        except Exception as error:  # noqa: BLE001 - it is only an estimate: others tell if brokers are away
            _log.info("the sizes of %s are not known: %s", ", ".join(topics), error)
            return None if isinstance(error, kafka_errors.AuthorizationError) else {}
        if brokers and not any(broker["log_dirs"] for broker in brokers):
            return None
        found: dict[TopicPartition, int] = {}
        for broker in brokers:
            for directory in broker["log_dirs"]:
                for topic in directory.get("topics", ()):
                    for one in topic["partitions"]:
                        place = TopicPartition(topic["name"], one["partition_index"])
                        if not one.get("is_future_key"):
                            found[place] = max(found.get(place, 0), one["partition_size"])
        return found

    def group_offsets(self, group: str, places: Collection[TopicPartition] | None) -> dict[TopicPartition, int]:
        """Return what a group has committed, of these partitions or all; those without a commit are left out.

        Raises:
            ForebayError: The brokers do not answer, or refuse to.
        """
        asked = None if places is None else [KafkaTopicPartition(*place) for place in places]
        found = self._ask(
            f"asking for the offsets of the group {group!r}",
            lambda admin: admin.list_group_offsets({group: asked}),
            coordinator=COORDINATOR_TRIES,
        )
        return {
            TopicPartition(one.topic, one.partition): int(answer.offset)
            for one, answer in found.get(group, {}).items()
            if answer.offset >= 0
        }

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], *, tries: int = COORDINATOR_TRIES) -> None:
        """Publish progress to a group that nobody has joined; that of partitions which are gone is not published.

        Args:
            group: The group.
            offsets: The next ones to read.
            tries: How often a coordinator is asked that does not answer yet.

        Raises:
            ForebayError: The brokers do not answer, or refuse to.
        """
        asked = {KafkaTopicPartition(*place): OffsetAndMetadata(offset, "", -1) for place, offset in offsets.items()}

        def commit(admin: Any) -> None:  # noqa: ANN401 - kafka-python has no types
            for one, error in admin.alter_group_offsets(group, asked).items():
                if error is kafka_errors.UnknownTopicOrPartitionError:
                    # Its topic was deleted: the others must not wait for it for ever.
                    _log.info("no progress of %s/%s for the group %r: it is gone", one.topic, one.partition, group)
                elif error is not kafka_errors.NoError:
                    raise error(f"{one.topic}/{one.partition}")

        self._ask(f"committing to the group {group!r}", commit, coordinator=tries)

    def close(self) -> None:
        """Close the connections."""
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()

    def _ask(self, doing: str, work: Callable[[Any], T], *, coordinator: int = 0) -> T:
        tries = failures = 0
        while True:
            try:
                return work(self._connected())
            except kafka_errors.KafkaError as error:
                found = client_error(error, doing, self._options)
                if not isinstance(found, RetriableError):
                    raise found from error
                coming = coordinator > 0 and isinstance(error, _COORDINATOR)
                failures, tries = failures + (not coming), tries + coming
                if failures > self._retries or tries > coordinator:
                    self.close()  # the next call looks for the brokers anew
                    raise found from error
                time.sleep(_COORDINATOR_PAUSE if coming else self._interval)

    def _connected(self) -> Any:  # noqa: ANN401 - kafka-python has no types
        if self._admin is None:
            try:
                self._admin = connect(KafkaAdminClient, self._options.arguments("admin"))
            except (kafka_errors.KafkaError, OSError) as error:
                raise unreachable(error, self._options) from error
        return self._admin


_COORDINATOR = (
    kafka_errors.CoordinatorNotAvailableError,
    kafka_errors.CoordinatorLoadInProgressError,
    kafka_errors.NotCoordinatorError,
)
