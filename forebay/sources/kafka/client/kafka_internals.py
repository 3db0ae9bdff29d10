# SPDX-License-Identifier: Apache-2.0
"""All uses of kafka-python's internals, and the checks that they still exist.

There are three hooks. Each changes one consumer object, never the classes of the library:

- *Raw bytes.* The consumer makes a `PartitionRecords` of every fetched partition, and takes records from it. The hook
  replaces this class by one that returns the bytes as one item, and moves the consumer's position by the headers of the
  record batches. So the consumer requests the next bytes before the present ones are decoded, and still handles
  leaders, epochs and errors.
- *Topic ids.* The consumer fetches by topic name. The hook makes it fetch by topic id (version 13 of the request), so
  that a broker refuses to read another topic of the same name, without a further request.
- *The receiver.* A plain connection receives 4 KiB at a time, and copies each piece three times. The hook receives into
  the buffer of the response, and wakes up for many bytes at a time.

`unexpected_internal` names a missing internal function or class. If one is missing, the fetcher reads record by record
through kafka-python's public API. Without the hook for topic ids, the reader asks for the ids after each fetch.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

from kafka import KafkaConsumer
from kafka.cluster import ClusterMetadata
from kafka.consumer.fetcher import Fetcher
from kafka.errors import InconsistentTopicIdError, UnknownTopicIdError
from kafka.net.connection import KafkaConnection
from kafka.net.manager import KafkaConnectionManager
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.frame import KafkaBytes
from kafka.protocol.parser import KafkaProtocol
from kafka.record import MemoryRecords

from forebay.errors import DataError
from forebay.sources.kafka.client.connections import first_unexpected
from forebay.sources.kafka.records.decoding import RawFetch
from forebay.sources.kafka.records.wire import headers

_RECEIVE = 1 << 16
"""Maximum bytes of one receive call while no response is in progress. A response is received into one buffer."""

_LOW_WATER = 1 << 20
"""Maximum bytes of a response to wait for at a time, on kernels with SO_RCVLOWAT."""

_BY_ID = 13
"""The version of the fetch request that has topic ids instead of names."""
_REFUSALS = (UnknownTopicIdError.errno, InconsistentTopicIdError.errno)

_HAS_LOW_WATER = sys.platform == "linux"


def unexpected_internal() -> str | None:
    """Return the name of the first internal function or class of kafka-python that the raw-bytes hook cannot use.

    None if it can use all of them.
    """
    records = getattr(Fetcher, "PartitionRecords", None)
    unexpected = first_unexpected(
        (Fetcher, "PartitionRecords", "fetch_offset tp records isolation_level aborted_transactions"),
        (records, "_unpack_records", 5),
        (records, "take", 2),
        (records, "drain", 1),
        (Fetcher, "_parse_fetched_data", 2),
        (Fetcher, "send_fetches", 1),
        (MemoryRecords, "_buffer", None),
    )
    return unexpected or _first_without(
        (KafkaConsumer, "_fetcher _manager"),
        (records, "next_fetch_offset leader_epoch topic_partition _unpack_records"),
    )


def unexpected_topic_id_internal() -> str | None:
    """Return the name of the first internal function or class that `TopicIds` cannot use; None if it can use all."""
    unexpected = first_unexpected(
        (Fetcher, "_create_fetch_requests", 1),
        (Fetcher, "_handle_fetch_response", "node_id fetch_offsets send_time response"),
        (ClusterMetadata, "topic_id", 2),
        (FetchRequest.FetchTopic, "topic_id", None),
        (FetchRequest.ForgottenTopic, "topic_id", None),
        (FetchRequest, "_max_version", None),
    )
    if unexpected is None and FetchRequest.max_version < _BY_ID:
        return "FetchRequest.max_version"
    return unexpected or _first_without((KafkaConsumer, "_fetcher _manager"))


def unexpected_receiver_internal() -> str | None:
    """Return the name of the first internal function or class that the receiver cannot use; None if it can use all."""
    if not issubclass(KafkaBytes, bytearray):
        return "KafkaBytes"
    unexpected = first_unexpected(
        (KafkaConnectionManager, "_build_transport", 3),
        (KafkaTCPTransport, "_sock_recv", 1),
        (KafkaProtocol, "_process_response", 2),
        (KafkaBytes, "seek", 2),
    )
    return unexpected or _first_without(
        (KafkaTCPTransport, "_sock _protocol"), (KafkaConnection, "parser"), (KafkaProtocol, "_rbuffer _receiving")
    )


def _first_without(*classes: tuple[Any, str]) -> str | None:
    """Return the first attribute that the constructor of its class does not set; None if all are set.

    Each pair is a class and the names of attributes, separated by spaces.
    """
    for cls, names in classes:
        for name in names.split():
            if name not in getattr(getattr(cls.__init__, "__code__", None), "co_names", ()):
                return f"{cls.__name__}.{name}"
    return None


class TopicIds:
    """Makes a consumer fetch by topic id, if the brokers can (Kafka 3.1 and later). Used on the consumer's thread.

    Requires that `unexpected_topic_id_internal()` is None. The ids of a partition never change; for a topic that was
    created again, a new consumer is needed.
    """

    def __init__(self, consumer: Any) -> None:  # noqa: ANN401 - kafka-python has no types
        self._cluster = consumer._manager.cluster  # noqa: SLF001 - see the module
        self._ids: dict[tuple[str, int], UUID] = {}
        self._names: dict[UUID, str] = {}
        self._refused: set[tuple[str, int]] = set()
        self.applied: bool | None = None
        """Whether the last fetch was by topic id; None before the first one."""
        fetcher = consumer._fetcher  # noqa: SLF001
        create, handle = fetcher._create_fetch_requests, fetcher._handle_fetch_response  # noqa: SLF001

        def creating() -> Any:  # noqa: ANN401
            requests = create()
            for request, _ in requests.values():
                self._set_ids(request)
            return requests

        def handling(node_id: Any, fetch_offsets: Any, send_time: Any, response: Any) -> Any:  # noqa: ANN401
            self._set_names(response)
            return handle(node_id, fetch_offsets, send_time, response)

        fetcher._create_fetch_requests, fetcher._handle_fetch_response = creating, handling  # noqa: SLF001

    def set(self, key: tuple[str, int], topic_id: str | None) -> bool:
        """Set the topic id to fetch of a partition (None: the present one); return False if it has another one."""
        known, self._refused = self._ids.get(key), self._refused - {key}
        if topic_id is not None:
            self._know(key, UUID(topic_id))
        return known is None or known == self._ids[key]

    def is_refused(self, key: tuple[str, int]) -> bool:
        """Return whether a broker did not know the topic id of a partition, or the metadata has another id."""
        present = self._cluster.topic_id(key[0])
        return key in self._refused or present not in (None, self._ids.get(key, present))

    def _know(self, key: tuple[str, int], topic_id: UUID) -> None:
        self._ids[key] = topic_id
        self._names[topic_id] = key[0]

    def _id(self, topic: str, partition: int) -> UUID | None:
        key = topic, partition
        if key not in self._ids and (present := self._cluster.topic_id(topic)) is not None:
            self._know(key, present)
        return self._ids.get(key)

    def _set_ids(self, request: Any) -> None:  # noqa: ANN401
        lists = []
        for topics in (request.topics, request.forgotten_topics_data):
            by_id: dict[tuple[str, UUID | None], list[Any]] = {}
            for topic in topics:
                for partition in topic.partitions:
                    number = partition if isinstance(partition, int) else partition.partition
                    by_id.setdefault((topic.topic, self._id(topic.topic, number)), []).append(partition)
            if any(topic_id is None for _, topic_id in by_id):
                return
            lists.append(by_id)
        make = FetchRequest.FetchTopic, FetchRequest.ForgottenTopic
        request.topics, request.forgotten_topics_data = (
            [
                cls(topic=name, topic_id=topic_id, partitions=partitions)
                for (name, topic_id), partitions in by_id.items()
            ]
            for cls, by_id in zip(make, lists, strict=True)
        )
        request._max_version = _BY_ID  # noqa: SLF001

    def _set_names(self, response: Any) -> None:  # noqa: ANN401
        self.applied = response.API_VERSION >= _BY_ID
        if not self.applied:
            return
        response.responses = [topic for topic in response.responses if topic.topic_id in self._names]
        for topic in response.responses:
            topic.topic = self._names[topic.topic_id]
            keys: dict[bool, set[tuple[str, int]]] = {True: set(), False: set()}
            for partition in topic.partitions:
                keys[partition.error_code in _REFUSALS].add((topic.topic, partition.partition_index))
            self._refused = (self._refused - keys[False]) | keys[True]


def give_raw(consumer: Any, next_range: Callable[[str, int, int], RawFetch | None]) -> dict[tuple[str, int], int]:  # noqa: ANN401 - kafka-python has no types
    """Make a consumer's `poll` return one `RawFetch`, instead of records, for each fetched partition.

    Requires that `unexpected_internal()` is None.

    Args:
        consumer: The consumer.
        next_range: Called with topic, partition and an offset, only inside `poll`, on the thread that calls `poll`. It
            returns the range to read from this offset on, as a RawFetch without bytes; None = do not read.

    Returns:
        The end of each partition, as its last fetch reports it: the last stable offset under `read_committed`, else
        the high watermark. Each fetch updates this dictionary.
    """
    fetcher = consumer._fetcher  # noqa: SLF001 - see the module
    parse = fetcher._parse_fetched_data  # noqa: SLF001
    ends: dict[tuple[str, int], int] = {}

    def parsing(completed: Any) -> Any:  # noqa: ANN401 - kafka-python has no types
        partition, data = completed.topic_partition, completed.partition_data
        stable = getattr(data, "last_stable_offset", None)
        committed = consumer.config["isolation_level"] == "read_committed" and stable is not None and int(stable) >= 0
        end = int(data.high_watermark) if not committed or stable is None else int(stable)
        if data.error_code == 0 and end >= 0:
            ends[partition.topic, partition.partition] = end
        return parse(completed)

    fetcher.PartitionRecords = _raw_records(fetcher.PartitionRecords, consumer, next_range)
    fetcher._parse_fetched_data = parsing  # noqa: SLF001
    return ends


def _raw_records(base: Any, consumer: Any, next_range: Callable[[str, int, int], RawFetch | None]) -> type:  # noqa: ANN401
    class RawRecords(base):  # type: ignore[misc]  # no types
        def _unpack_records(self, _tp: Any, records: Any, _key: Any, _value: Any) -> Any:  # noqa: ANN401
            self._bytes = memoryview(records._buffer)  # noqa: SLF001
            return iter(())

        def take(self, _most: int | None = None) -> list[RawFetch]:
            partition = self.topic_partition
            begin: int = self.next_fetch_offset  # type: ignore[has-type]  # no types
            part = next_range(partition.topic, partition.partition, begin)
            if part is None:
                self.drain()
                return []
            aborted = tuple(
                (transaction.producer_id, transaction.first_offset) for transaction in self.aborted_transactions
            )
            fetch = replace(part, data=self._bytes, aborted=aborted)
            self.next_fetch_offset, self.leader_epoch = _next_offset(fetch)
            self.bytes_read = len(self._bytes)
            self.drain()
            if part.end is not None and self.next_fetch_offset >= part.end:
                consumer.pause(partition)  # before the next request, so it fetches nothing beyond the end
            return [fetch]

    return RawRecords


def ask_ahead(consumer: Any) -> None:  # noqa: ANN401 - kafka-python has no types
    """Make a consumer request the next bytes now. After a `poll` that had to wait, they are not requested yet."""
    consumer._fetcher.send_fetches()  # noqa: SLF001 - see the module


def _next_offset(fetch: RawFetch) -> tuple[int, int]:
    """Return the offset after a fetch and the leader epoch of its last batch, from the headers of its batches."""
    offset, epoch = fetch.start, -1
    try:
        for header in headers(fetch.data, fetch.topic_partition):
            offset = max(offset, header.last + 1)
            epoch = header.epoch
            if fetch.end is not None and offset >= fetch.end:
                break
    except DataError:
        # The decoder reports the same damage after the records before it.
        return (offset if fetch.end is None else fetch.end), epoch
    return offset, epoch


def receive_fast(consumer: Any) -> None:  # noqa: ANN401 - kafka-python has no types
    """Make new connections of a consumer receive without copies; requires `unexpected_receiver_internal() is None`."""
    manager = consumer._manager  # noqa: SLF001 - see the module
    build = manager._build_transport  # noqa: SLF001

    async def building(node: Any, timeout_at: Any = None) -> Any:  # noqa: ANN401 - kafka-python has no types
        transport = await build(node, timeout_at=timeout_at)
        if not isinstance(transport, KafkaSSLTransport):  # TLS decrypts into buffers of its own
            transport._sock_recv = _Receiver(transport)  # noqa: SLF001
        return transport

    manager._build_transport = building  # noqa: SLF001


class _Receiver:
    """Receives the bytes of a connection: those between a response's head and last byte go into the parser's buffer.

    The head and the last byte reach the parser in kafka-python's usual way.
    """

    def __init__(self, transport: Any) -> None:  # noqa: ANN401 - kafka-python has no types
        self._transport = transport
        self._plain = transport._sock_recv  # noqa: SLF001
        self._low = 1

    def __call__(self) -> Any:  # noqa: ANN401 - kafka-python has no types
        parser = getattr(self._transport._protocol, "parser", None)  # noqa: SLF001
        if parser is None:
            return self._plain()
        if "_process_response" not in vars(parser):
            _read_in_place(parser)
        if not parser._receiving:  # noqa: SLF001
            return self._piece(_RECEIVE)
        buffer = parser._rbuffer  # noqa: SLF001
        at, last = buffer.tell(), len(buffer) - 1
        with memoryview(buffer) as view:
            while at < last:
                try:
                    size = self._transport._sock.recv_into(view[at:last])  # noqa: SLF001
                except (BlockingIOError, InterruptedError):
                    break
                except OSError:
                    return self._plain()  # meets the same error, and reports it as usual
                if not size:
                    return self._plain()
                at += size
        buffer.seek(at)
        if at == last:
            return self._piece(1)
        self._wait_for(min(_LOW_WATER, last + 1 - at))
        return b"", None

    def _piece(self, size: int) -> Any:  # noqa: ANN401 - kafka-python has no types
        self._wait_for(1)
        try:
            data = self._transport._sock.recv(size)  # noqa: SLF001
        except (BlockingIOError, InterruptedError):
            return b"", None
        except OSError:
            return self._plain()
        return (data, None) if data else self._plain()

    def _wait_for(self, size: int) -> None:
        """Make the kernel report the socket as readable only when `size` bytes have arrived: each wake-up is expensive.

        The peer must be about to send at least `size` bytes. The kernel reports a closed connection or an error at
        once.
        """
        if size == self._low or not _HAS_LOW_WATER:
            return
        try:
            self._transport._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)  # noqa: SLF001
        except OSError:  # closed meanwhile: the next receive fails
            return
        self._low = size


def _read_in_place(parser: Any) -> None:  # noqa: ANN401 - kafka-python has no types
    """Make a parser decode responses in place instead of from copies."""
    process = parser._process_response  # noqa: SLF001
    parser._process_response = lambda buffer: process(_InPlace(buffer))  # noqa: SLF001


class _InPlace:
    """A response in a buffer, with the `read` methods that kafka-python calls."""

    def __init__(self, buffer: bytearray) -> None:
        self._view = memoryview(buffer)
        self._at = 0

    def read(self, size: int | None = None) -> bytes | memoryview:
        begin = self._at
        self._at = len(self._view) if size is None else min(begin + size, len(self._view))
        piece = self._view[begin : self._at]
        return piece if size is None else bytes(piece)

    def seek(self, at: int) -> None:
        self._at = at

    def tell(self) -> int:
        return self._at
