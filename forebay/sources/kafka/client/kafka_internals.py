# SPDX-License-Identifier: Apache-2.0
"""What forebay takes hold of inside kafka-python, all in one place, and how it notices when that no longer fits.

Two hooks, both on one consumer and never on the classes of the library:

- *Raw bytes.* The consumer makes a `PartitionRecords` of every fetched partition and takes records from it. Ours gives
  the bytes themselves, as one item, and moves the consumer's position by the headers of the record batches. So the
  consumer asks for the next bytes before these are decoded, and does all the rest as ever: leaders, epochs, errors.
- *The receiver.* A plain connection receives 4 KiB at a time, and copies each piece thrice. Ours receives straight into
  the buffer of the response, and is woken for many bytes at a time.

Where something is missing, `misfit` says what; the consumer is then used as anybody would, record by record.
"""

from __future__ import annotations

import inspect
import socket
import sys
from collections.abc import Callable
from typing import Any

from kafka import KafkaConsumer
from kafka.consumer.fetcher import Fetcher
from kafka.net.connection import KafkaConnection
from kafka.net.manager import KafkaConnectionManager
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
from kafka.protocol.frame import KafkaBytes
from kafka.protocol.parser import KafkaProtocol
from kafka.record import MemoryRecords

from forebay.errors import DataError
from forebay.sources.kafka.records.decoding import RawFetch
from forebay.sources.kafka.records.wire import headers

_RECEIVE = 1 << 16
"""What is received at once where no response is under way; a response is received whole."""

_MANY = 1 << 20
"""So many bytes of a response are waited for at a time, where the kernel can do that."""

_WAITS = sys.platform == "linux"

_TAKES = {"fetch_offset", "tp", "records", "isolation_level", "aborted_transactions"}


def misfit() -> str | None:
    """Return what of kafka-python is not as the hooks need it; None: they fit."""
    records = getattr(Fetcher, "PartitionRecords", None)
    looks: dict[str, bool] = {
        "KafkaConsumer._fetcher": _mentions(KafkaConsumer, "_fetcher", "_manager"),
        "Fetcher.PartitionRecords": inspect.isclass(records)
        and set(inspect.signature(records).parameters) >= _TAKES
        and _mentions(records, "next_fetch_offset", "leader_epoch", "topic_partition", "_unpack_records"),
        "PartitionRecords._unpack_records": _arguments(records, "_unpack_records") == 5,
        "PartitionRecords.take": _arguments(records, "take") == 2 and _arguments(records, "drain") == 1,
        "Fetcher._parse_fetched_data": _arguments(Fetcher, "_parse_fetched_data") == 2,
        "Fetcher.send_fetches": _arguments(Fetcher, "send_fetches") == 1,
        "MemoryRecords._buffer": "_buffer" in getattr(MemoryRecords, "__slots__", ()),
    }
    return next((name for name, right in looks.items() if not right), None)


def receiver_misfit() -> str | None:
    """Return what of kafka-python's connections is not as the receiver needs it; None: it fits."""
    looks = {
        "KafkaConnectionManager._build_transport": _arguments(KafkaConnectionManager, "_build_transport") == 3,
        "KafkaTCPTransport._sock_recv": _arguments(KafkaTCPTransport, "_sock_recv") == 1
        and _mentions(KafkaTCPTransport, "_sock", "_protocol"),
        "KafkaConnection.parser": _mentions(KafkaConnection, "parser"),
        "KafkaProtocol._rbuffer": _mentions(KafkaProtocol, "_rbuffer", "_receiving"),
        "KafkaProtocol._process_response": _arguments(KafkaProtocol, "_process_response") == 2,
        "KafkaBytes": issubclass(KafkaBytes, bytearray) and _arguments(KafkaBytes, "seek") == 2,
    }
    return next((name for name, right in looks.items() if not right), None)


def _arguments(cls: object, method: str) -> int:
    found = getattr(cls, method, None)
    return len(inspect.signature(found).parameters) if callable(found) else -1


def _mentions(cls: type, *names: str) -> bool:
    code = getattr(cls.__init__, "__code__", None)  # type: ignore[misc]  # of a class, to look at
    return code is not None and set(names) <= set(code.co_names)


def give_raw(consumer: Any, limits: Callable[[str, int, int], RawFetch | None]) -> dict[tuple[str, int], int]:  # noqa: ANN401 - kafka-python has no types
    """Make a consumer's `poll` return one `RawFetch` for each fetched partition; `misfit` must have found nothing.

    Args:
        consumer: The consumer; its application thread alone calls `limits`, inside `poll`.
        limits: Says what of a partition, from an offset on, is wanted: a RawFetch without bytes; None: nothing.

    Returns:
        What brokers last said about where partitions end for this consumer, by topic and partition: the last stable
        offset under `read_committed`, else the high watermark. It is kept up to date.
    """
    fetcher = consumer._fetcher  # noqa: SLF001 - see the module
    base: Any = fetcher.PartitionRecords
    parse = fetcher._parse_fetched_data  # noqa: SLF001
    ends: dict[tuple[str, int], int] = {}

    class RawRecords(base):  # type: ignore[misc]  # no types
        def _unpack_records(self, _tp: Any, records: Any, _key: Any, _value: Any) -> Any:  # noqa: ANN401
            self._bytes = memoryview(records._buffer)  # noqa: SLF001
            return iter(())

        def take(self, _most: int | None = None) -> list[RawFetch]:
            partition = self.topic_partition
            begin: int = self.next_fetch_offset  # type: ignore[has-type]  # no types
            wanted = limits(partition.topic, partition.partition, begin)
            if wanted is None:
                self.drain()
                return []
            aborted = tuple((one.producer_id, one.first_offset) for one in self.aborted_transactions)
            fetch = RawFetch(
                wanted.topic, wanted.partition, self._bytes, wanted.start, wanted.end, wanted.read_committed, aborted
            )
            reach, epoch = _reach(fetch)
            self.next_fetch_offset, self.leader_epoch = reach, epoch
            self.bytes_read = len(self._bytes)
            self.drain()
            if wanted.end is not None and reach >= wanted.end:
                consumer.pause(partition)  # before the next request is made: nothing is fetched in vain
            return [fetch]

    def parsing(completed: Any) -> Any:  # noqa: ANN401 - kafka-python has no types
        partition, data = completed.topic_partition, completed.partition_data
        stable = getattr(data, "last_stable_offset", None)
        committed = consumer.config["isolation_level"] == "read_committed" and stable is not None and int(stable) >= 0
        end = int(data.high_watermark) if not committed or stable is None else int(stable)
        if data.error_code == 0 and end >= 0:
            ends[partition.topic, partition.partition] = end
        return parse(completed)

    fetcher.PartitionRecords = RawRecords
    fetcher._parse_fetched_data = parsing  # noqa: SLF001
    return ends


def ask_ahead(consumer: Any) -> None:  # noqa: ANN401 - kafka-python has no types
    """Ask for the next bytes of what was fetched: `poll` does so itself only where it did not have to wait."""
    consumer._fetcher.send_fetches()  # noqa: SLF001 - see the module


def _reach(fetch: RawFetch) -> tuple[int, int]:
    """Return how far a fetch goes by the headers of its record batches, and the leader epoch of the last one."""
    offset, epoch = fetch.start, -1
    try:
        for header in headers(fetch.data, fetch.topic_partition):
            offset = max(offset, header.last + 1)
            epoch = header.epoch
            if fetch.end is not None and offset >= fetch.end:
                break
    except DataError:
        # The decoder will come to the same bytes, after those before them have been given out, and say the same.
        return (offset if fetch.end is None else fetch.end), epoch
    return offset, epoch


def receive_fast(consumer: Any) -> None:  # noqa: ANN401 - kafka-python has no types
    """Let connections that a consumer makes from now on receive without copies; `receiver_misfit` found nothing."""
    manager = consumer._manager  # noqa: SLF001 - see the module
    build = manager._build_transport  # noqa: SLF001

    async def building(node: Any, timeout_at: Any = None) -> Any:  # noqa: ANN401 - kafka-python has no types
        transport = await build(node, timeout_at=timeout_at)
        if not isinstance(transport, KafkaSSLTransport):  # TLS decrypts into buffers of its own
            transport._sock_recv = _Receiver(transport)  # noqa: SLF001
        return transport

    manager._build_transport = building  # noqa: SLF001


class _Receiver:
    """Receives what there is; all of a response but its last byte goes to where the parser wants it.

    That byte, or the head of a response, is returned, and the parser goes on as ever.

    Args:
        transport: The connection.
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
                    return self._plain()  # which meets the same error, and tells it as ever
                if not size:
                    return self._plain()
                at += size
        buffer.seek(at)
        if at == last:
            return self._piece(1)
        self._wait_for(min(_MANY, last + 1 - at))
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
        """Let the kernel tell of bytes only when there are so many: each time costs more than small pieces are worth.

        No fewer may be to come. An end or an error is told at once. Where the kernel cannot do that, any number does.
        """
        if size == self._low or not _WAITS:
            return
        try:
            self._transport._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)  # noqa: SLF001
        except OSError:  # closed meanwhile: whoever receives next is told
            return
        self._low = size


def _read_in_place(parser: Any) -> None:  # noqa: ANN401 - kafka-python has no types
    """Let a parser decode responses where they lie, not from two copies of them."""
    process = parser._process_response  # noqa: SLF001
    parser._process_response = lambda buffer: process(_InPlace(buffer))  # noqa: SLF001


class _InPlace:
    """A response as kafka-python reads it: small pieces by `read(size)`, the rest by `read()`."""

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
