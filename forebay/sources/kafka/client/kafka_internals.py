# SPDX-License-Identifier: Apache-2.0
"""All uses of kafka-python's internals, and the checks that they still exist.

*Connections* have four corrections for failed connections, and one for the log. kafka-python 3.0 leaves the socket of
a refused connection to the garbage collector. It waits forever for a port that accepts a TLS connection and sends
nothing. It drops the last bytes before a broker closes the connection, which contain the answer to a wrong password. It
retries a refused password until a timeout that hides the reason. It logs each request at the level DEBUG: also a login
with its password or token.

*The receiver*: a plain connection of kafka-python receives 4 KiB at a time, and copies each piece three times. Here it
receives into the buffer of the response, and wakes up for many bytes at a time.

There are two hooks, which change one consumer object, never the classes of the library:

- *Raw bytes.* The consumer makes a `PartitionRecords` of every fetched partition, and takes records from it. The hook
  replaces this class by one that returns the bytes as one item, and moves the consumer's position by the headers of the
  record batches. So the consumer requests the next bytes before the present ones are decoded, and still handles
  leaders, epochs and errors.
- *Topic ids.* The consumer fetches by topic name. The hook makes it fetch by topic id (version 13 of the request), so
  that a broker refuses to read another topic of the same name, without a further request.

`unexpected_internal` names a missing internal function or class. If one of the raw bytes is missing, the fetcher reads
record by record through kafka-python's public API. Without the hook for topic ids, the reader asks for the ids after
each fetch. The connections and the receiver are then those of kafka-python.
"""

from __future__ import annotations

import inspect
import socket
import ssl
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Literal, TypeVar
from uuid import UUID

import kafka.net.inet
from kafka import KafkaConsumer
from kafka.cluster import ClusterMetadata
from kafka.consumer.fetcher import Fetcher
from kafka.errors import (
    AuthorizationError,
    IllegalSaslStateError,
    InconsistentTopicIdError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    SaslAuthenticationFailedError,
    UnknownTopicIdError,
    UnsupportedSaslMechanismError,
)
from kafka.net.compat import KafkaNetClient
from kafka.net.connection import KafkaConnection
from kafka.net.inet import KafkaNetSocket
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.frame import KafkaBytes
from kafka.protocol.parser import KafkaProtocol
from kafka.record import MemoryRecords

from forebay.errors import DataError
from forebay.options.secret import REDACTED
from forebay.sources.kafka.records.batches import RawFetch, headers

Part = Literal["connections", "receiver", "raw bytes", "topic ids"]

_BY_ID = 13
"""The version of the fetch request that has topic ids instead of names."""


def unexpected_internal(part: Part) -> str | None:
    """Return the name of the first function, class or attribute of kafka-python that a part of this module cannot use.

    None if it can use all of them.
    """
    members, attributes = _internals()[part]
    unexpected = _first_unexpected(members) or _first_without(attributes)
    if unexpected is None and part == "receiver" and not issubclass(KafkaBytes, bytearray):
        return "KafkaBytes"
    if unexpected is None and part == "topic ids" and FetchRequest.max_version < _BY_ID:
        return "FetchRequest.max_version"
    return unexpected


_Members = tuple[tuple[Any, str, str | int | None], ...]
"""Members: for each, its owner, its name, and the names or the number of its parameters (None: not checked)."""
_Attributes = tuple[tuple[Any, str], ...]
"""Classes, each with the attributes that its constructor sets, separated by spaces."""


def _internals() -> dict[Part, tuple[_Members, _Attributes]]:
    records = getattr(Fetcher, "PartitionRecords", None)
    return {
        "connections": (
            (
                (KafkaNetClient, "__init__", "net manager"),
                (KafkaNetSocket, "sock_connect", "net sock sockaddr timeout_at"),
                (KafkaNetSocket, "register_class", "klass"),
                (kafka.net.inet, "create_connection", "socket_options proxy_url timeout_at"),
                (KafkaConnectionManager, "_build_transport", "node timeout_at"),
                (KafkaConnectionManager, "get_connection", "node_id"),
                (KafkaConnectionManager, "update_backoff", "node_id"),
                (KafkaTCPTransport, "_sock_recv", 1),
                (KafkaConnection, "init_future", None),
                (KafkaConnection, "_send_request", "request"),
            ),
            (),
        ),
        "receiver": (
            ((KafkaProtocol, "_process_response", 2), (KafkaBytes, "seek", 2)),
            (
                (KafkaTCPTransport, "_sock _protocol"),
                (KafkaConnection, "parser"),
                (KafkaProtocol, "_rbuffer _receiving"),
            ),
        ),
        "raw bytes": (
            (
                (Fetcher, "PartitionRecords", "fetch_offset tp records isolation_level aborted_transactions"),
                (records, "_unpack_records", 5),
                (records, "take", 2),
                (records, "drain", 1),
                (Fetcher, "_parse_fetched_data", 2),
                (Fetcher, "send_fetches", 1),
                (MemoryRecords, "_buffer", None),
            ),
            (
                (KafkaConsumer, "_fetcher _manager"),
                (records, "next_fetch_offset leader_epoch topic_partition _unpack_records"),
            ),
        ),
        "topic ids": (
            (
                (Fetcher, "_create_fetch_requests", 1),
                (Fetcher, "_handle_fetch_response", "node_id fetch_offsets send_time response"),
                (ClusterMetadata, "topic_id", 2),
                (FetchRequest.FetchTopic, "topic_id", None),
                (FetchRequest.ForgottenTopic, "topic_id", None),
                (FetchRequest, "_max_version", None),
            ),
            ((KafkaConsumer, "_fetcher _manager"),),
        ),
    }


def _first_unexpected(members: _Members) -> str | None:
    for owner, name, expected in members:
        member = getattr(owner, name, None)
        parameters = inspect.signature(member).parameters if callable(member) else None
        if expected is None:
            fits = hasattr(owner, name)
        elif isinstance(expected, int):
            fits = parameters is not None and len(parameters) == expected
        else:
            fits = parameters is not None and parameters.keys() >= set(expected.split())
        if not fits:
            return f"{owner.__name__}.{name}"
    return None


def _first_without(attributes: _Attributes) -> str | None:
    for cls, names in attributes:
        for name in names.split():
            if name not in getattr(getattr(cls.__init__, "__code__", None), "co_names", ()):
                return f"{cls.__name__}.{name}"
    return None


# -- Connections.


REFUSALS: Final = (
    AuthorizationError,
    IllegalSaslStateError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)
"""The error classes of kafka-python for a login that a broker refuses."""

_SCHEME = "forebay"

C = TypeVar("C")


class UnansweredError(KafkaTimeoutError):  # type: ignore[misc]  # no types
    """The error if a client could not make its first connection in time.

    Args:
        text: The error text of kafka-python.
        last_error: The error of the last attempt; None if nothing answered.
        spoke: Whether the server answered in Kafka's protocol.
    """

    def __init__(self, text: str, last_error: BaseException | None, *, spoke: bool) -> None:
        super().__init__(text if last_error is None else f"{text}: {last_error}")
        self.last_error = last_error
        self.spoke = spoke


def network(**configuration: Any) -> Any:  # noqa: ANN401 - kafka-python has no types
    """Create the network part of a client of kafka-python, with `Connections` if kafka-python is as expected."""
    if unexpected_internal("connections") is not None:
        return KafkaNetClient(**configuration)
    net = NetworkSelector(**configuration)
    return KafkaNetClient(net, Connections(net, **configuration), **configuration)


def connect(cls: Callable[..., C], arguments: Mapping[str, object]) -> C:
    """Create a `KafkaConsumer` or `KafkaAdminClient` (`cls`) and connect it.

    If this fails, no thread and no socket stays open.

    Raises:
        UnansweredError: No broker answered in time.
        KafkaError: The client cannot connect for another reason, or the configuration is invalid.
    """
    networks: list[Any] = []

    def make_network(**configuration: Any) -> Any:  # noqa: ANN401 - kafka-python has no types
        networks.append(network(**configuration))
        return networks[-1]

    try:
        return cls(**arguments, kafka_client=make_network)
    except BaseException as error:
        for client in networks:
            client.close()
        for manager in (getattr(client, "_manager", None) for client in networks):
            if not isinstance(manager, Connections):
                continue
            if manager.refusal is not None and error is not manager.refusal:
                raise manager.refusal from error
            if isinstance(error, KafkaTimeoutError):
                spoke = manager.broker_version is not None
                raise UnansweredError(str(error), manager.last_error, spoke=spoke) from manager.last_error
        raise


class Connections(KafkaConnectionManager):  # type: ignore[misc]  # no types
    """The connections of one client of kafka-python. Called on the client's own thread."""

    refusal: KafkaError | None = None
    """The error of the last refused login; None if no login was refused."""
    last_error: BaseException | None = None
    """The error of the last failed connection; None if no connection failed."""

    def update_backoff(self, node_id: Any) -> Any:  # noqa: ANN401 - kafka-python has no types
        """Compute the delay before the next attempt to connect, and store the error that is being handled.

        kafka-python calls this method while it handles the error of a connection.
        """
        self.last_error = sys.exc_info()[1] or self.last_error
        return super().update_backoff(node_id)

    def get_connection(self, node_id: Any, *args: Any, **more: Any) -> Any:  # noqa: ANN401 - kafka-python has no types
        """Return a new or existing connection to a broker.

        Raises:
            KafkaError: A login was refused, and the client was never connected: another attempt may lock the account.
        """
        if self.refusal is not None and not self.bootstrapped:
            raise self.refusal
        connection = super().get_connection(node_id, *args, **more)
        connection.init_future.add_errback(self._note)
        if not isinstance(connection._send_request, _Sender):  # noqa: SLF001 - no public name
            connection._send_request = _Sender(connection._send_request)  # noqa: SLF001 - as above
        return connection

    def _note(self, error: BaseException) -> None:
        if isinstance(error, REFUSALS):
            self.refusal = error

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:  # noqa: ANN401
        sock = await kafka.net.inet.create_connection(
            self._net, node.host, node.port, self.config["socket_options"], _SCHEME + "://", timeout_at=timeout_at
        )
        try:
            transport = self._transport(sock, node.host)
        except BaseException:  # close the socket also on interrupts
            sock.close()
            raise
        try:
            await transport.shake_hands(timeout_at)
        except BaseException as error:
            transport.abort(error)
            if isinstance(error, Exception):
                raise KafkaConnectionError(f"the TLS handshake failed: {error}") from error
            raise
        return transport

    def _transport(self, sock: Any, host: str) -> Any:  # noqa: ANN401 - kafka-python has no types
        if not self.ssl_enabled:
            plain = _Plain if unexpected_internal("receiver") is None else _PlainAsItIs
            return plain(self._net, sock, host=host)
        settings = {name: value for name, value in self.config.items() if name.startswith("ssl_")}
        return _Tls(self._net, sock, host=host, **settings)


class _Sender:
    """Sends a request on a connection. What logs in is not in the `repr` of the request, which kafka-python logs."""

    def __init__(self, send: Callable[..., Any]) -> None:
        self._send = send

    def __call__(self, request: Any, *args: Any, **more: Any) -> Any:  # noqa: ANN401 - kafka-python has no types
        if isinstance(token := getattr(request, "auth_bytes", None), bytes):
            request.auth_bytes = _Unlogged(token)
        return self._send(request, *args, **more)


class _Unlogged(bytes):
    def __repr__(self) -> str:
        return repr(REDACTED)


class _Socket(KafkaNetSocket):  # type: ignore[misc]  # no types
    """Opens a direct connection, and closes the socket if that fails.

    kafka-python selects this class by the scheme of a proxy URL; no proxy is used.
    """

    SCHEMES = (_SCHEME,)

    async def sock_connect(self, net: Any, sock: Any, sockaddr: Any, timeout_at: float | None = None) -> Any:  # noqa: ANN401
        try:
            return await super().sock_connect(net, sock, sockaddr, timeout_at=timeout_at)
        except BaseException:  # close the socket also on interrupts
            sock.close()
            raise


class _DataBeforeError(KafkaTCPTransport):  # type: ignore[misc]  # no types
    """A transport that first returns the data received before a failure; the next call returns the error."""

    def _sock_recv(self) -> Any:  # noqa: ANN401 - kafka-python has no types
        data, error = super()._sock_recv()
        return (data, None) if data else (data, error)


class _PlainAsItIs(_DataBeforeError):
    async def shake_hands(self, _timeout_at: float | None) -> None:
        await self.handshake()


class _Tls(_DataBeforeError, KafkaSSLTransport):  # type: ignore[misc]  # no types
    async def shake_hands(self, timeout_at: float | None) -> None:
        while True:
            try:
                self._sock.do_handshake()
            except ssl.SSLWantReadError:
                await self._net.wait_read(self._sock, timeout_at=timeout_at)
            except ssl.SSLWantWriteError:
                await self._net.wait_write(self._sock, timeout_at=timeout_at)
            else:
                return


# -- The receiver.


_RECEIVE = 1 << 16
"""Maximum bytes of one receive call while no response is in progress. A response is received into one buffer."""

_LOW_WATER = 1 << 20
"""Maximum bytes of a response to wait for at a time, on kernels with SO_RCVLOWAT."""

_HAS_LOW_WATER = sys.platform == "linux"


class _Plain(_PlainAsItIs):
    """Receives the bytes of a response between its head and its last byte into the parser's buffer.

    The head and the last byte reach the parser in kafka-python's usual way. TLS decrypts into buffers of its own.
    """

    _low = 1

    def _sock_recv(self) -> Any:  # noqa: ANN401 - kafka-python has no types
        parser = getattr(self._protocol, "parser", None)
        if parser is None:
            return super()._sock_recv()
        if "_process_response" not in vars(parser):
            _read_in_place(parser)
        if not parser._receiving:  # noqa: SLF001
            return self._piece(_RECEIVE)
        buffer = parser._rbuffer  # noqa: SLF001
        at, last = buffer.tell(), len(buffer) - 1
        with memoryview(buffer) as view:
            while at < last:
                try:
                    size = self._sock.recv_into(view[at:last])
                except (BlockingIOError, InterruptedError):
                    break
                except OSError:
                    return super()._sock_recv()  # meets the same error, and reports it as usual
                if not size:
                    return super()._sock_recv()
                at += size
        buffer.seek(at)
        if at == last:
            return self._piece(1)
        self._wait_for(min(_LOW_WATER, last + 1 - at))
        return b"", None

    def _piece(self, size: int) -> Any:  # noqa: ANN401 - kafka-python has no types
        self._wait_for(1)
        try:
            data = self._sock.recv(size)
        except (BlockingIOError, InterruptedError):
            return b"", None
        except OSError:
            return super()._sock_recv()
        return (data, None) if data else super()._sock_recv()

    def _wait_for(self, size: int) -> None:
        """Make the kernel report the socket as readable only when `size` bytes have arrived: each wake-up is expensive.

        The peer must be about to send at least `size` bytes. The kernel reports a closed connection or an error at
        once.
        """
        if size == self._low or not _HAS_LOW_WATER:
            return
        try:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
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


# -- Topic ids.


_REFUSALS = (UnknownTopicIdError.errno, InconsistentTopicIdError.errno)


class TopicIds:
    """Makes a consumer fetch by topic id, if the brokers can (Kafka 3.1 and later). Used on the consumer's thread.

    Requires that `unexpected_internal("topic ids")` is None. The ids of a partition never change; for a topic that was
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


# -- Raw bytes.


def give_raw(consumer: Any, next_range: Callable[[str, int, int], RawFetch | None]) -> dict[tuple[str, int], int]:  # noqa: ANN401 - kafka-python has no types
    """Make a consumer's `poll` return one `RawFetch`, instead of records, for each fetched partition.

    Requires that `unexpected_internal("raw bytes")` is None.

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
