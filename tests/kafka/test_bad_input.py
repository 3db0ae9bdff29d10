# SPDX-License-Identifier: Apache-2.0
"""Failures of brokers are reported in bounded time with topic, partition, offset and next step; no record is lost."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from kafka import KafkaProducer
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)

import forebay
from forebay.errors import ConfigurationError, DataError, ForebayError, RetriableError
from forebay.sources.kafka import KafkaSource
from forebay.testkit.kafka_broker import KafkaBroker

USERS = {"alice": "open sesame", "bob": "swordfish"}

SOON = {"default.api.timeout.ms": "3000"}
"""Timeout for ports that never answer; the test waits all of it."""
SPOKEN_TO = {"default.api.timeout.ms": "8000"}
"""For those who answer, if not as they should: what they say must come in this time, all of which is waited too."""


def source(address: str, topic: str, kafka: dict[str, str] | None = None, **options: Any) -> KafkaSource:
    given = {"bootstrap.servers": address, "default.api.timeout.ms": "30000", **(kafka or {})}
    return KafkaSource(**{"subscribe": [topic], "starting_offsets": "earliest", "kafka": given, **options})


def values(reading: KafkaSource, count: int, **options: Any) -> list[bytes]:
    """Return the first values of a source; none if it fails first."""
    found: list[bytes] = []
    with forebay.run(reading, options=forebay.HostOptions(**{"retries": 0, **options})) as batches:
        for batch in batches:
            found += batch.column("value").to_pylist()
            if len(found) >= count:
                break
    return found


def refused(reading: KafkaSource, kind: type[ForebayError], *says: str, **options: Any) -> ForebayError:
    """Return the error of a read, whose text has all these parts and a next step."""
    with pytest.raises(ForebayError) as caught:
        values(reading, 1 << 30, **options)
    assert isinstance(caught.value, kind), caught.value
    assert not [one for one in says if one not in str(caught.value)], caught.value
    assert caught.value.advice, caught.value
    return caught.value


# ---- ports that are no brokers


@contextlib.contextmanager
def port(answer: bytes | None) -> Iterator[str]:
    """Listen; say something to whoever comes and hang up, or, with None, say nothing for ever."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        kept: list[socket.socket] = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    kept.append(server.accept()[0])
                    if answer is not None:
                        kept[-1].recv(1000)
                        kept[-1].sendall(answer)
                        kept.pop().close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for one in kept:
                one.close()


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_a_port_that_says_nothing(protocol):
    with port(None) as address:
        reading = source(address, "t", {"security.protocol": protocol, **SOON})
        refused(reading, RetriableError, f"no broker of {address} can be reached", "timed out")


def test_a_port_that_speaks_something_else():
    with port(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n") as address:
        refused(
            source(address, "t", SOON),
            RetriableError,
            f"no broker of {address} can be reached",
            "does not speak Kafka's protocol",
        )


def test_a_closed_port():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        reading = source(address, "t", SOON)
        refused(reading, RetriableError, f"no broker of {address} can be reached", "Connection refused")


def test_the_port_of_a_controller(broker):
    controller = f"127.0.0.1:{broker._ports[1]}"
    refused(source(controller, "t", SPOKEN_TO), ConfigurationError, controller, "controller", "bootstrap.servers")


def test_connections_that_fail_leave_no_socket_behind(recwarn):
    import gc

    gc.collect()
    recwarn.clear()  # what earlier tests left
    with port(None) as silent:
        for protocol in ("PLAINTEXT", "SSL"):
            reading = source(f"127.0.0.1:1,{silent}", "t", {"security.protocol": protocol, **SOON})
            refused(reading, RetriableError, silent)
    gc.collect()
    assert not [one for one in recwarn if "socket" in str(one.message)]


# ---- who may


class GuardedBroker(KafkaBroker):
    """Wants a login on a port of its own, and rights from everybody who comes by it."""

    def __init__(self) -> None:
        users = " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
        super().__init__(
            {
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
                "inter.broker.listener.name": "PLAINTEXT",
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.login.plain.sasl.jaas.config": (
                    f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
                ),
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS",
            },
            listeners=["LOGIN"],
        )

    @property
    def login(self) -> str:
        """The port where one logs in."""
        return self.address_of("LOGIN")

    def let(self, operation: str, kind: str = "TOPIC", name: str = "t", user: str = "bob") -> None:
        """Give a right, and return once the broker goes by it."""
        pattern = ResourcePattern(ResourceType[kind], name)
        right = ACL(f"User:{user}", "*", ACLOperation[operation], ACLPermissionType.ALLOW, pattern)
        with self.admin() as admin:
            assert not admin.create_acls([right])["failed"]
            _until(lambda: right in admin.describe_acls(_ALL_RIGHTS)[0])

    def take_all_rights(self) -> None:
        """Take all rights away, and return once the broker goes by it."""
        with self.admin() as admin:
            admin.delete_acls([_ALL_RIGHTS])
            _until(lambda: not admin.describe_acls(_ALL_RIGHTS)[0])


_ALL_RIGHTS = ACLFilter(
    None,
    None,
    ACLOperation.ANY,
    ACLPermissionType.ANY,
    ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY),
)


def _until(what: Callable[[], bool]) -> None:
    """Wait for what the controller has decided, and the broker's authorizer learns of a little later."""
    deadline = time.monotonic() + 120
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module")
def guarded() -> Iterator[GuardedBroker]:
    with GuardedBroker() as running:
        running.create_topic("t")
        with KafkaProducer(bootstrap_servers=running.address) as producer:
            producer.send("t", b"there").get(30)
        yield running


@pytest.fixture
def rights(guarded) -> Iterator[GuardedBroker]:
    """The broker; who was given rights loses them afterwards."""
    yield guarded
    guarded.take_all_rights()


def login(user: str = "bob", password: str | None = None, mechanism: str = "PLAIN") -> dict[str, str]:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    text = f'{module} required username="{user}" password="{password or USERS[user]}";'
    return {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "sasl.jaas.config": text}


@pytest.mark.soak(but=["0", "1"])
@pytest.mark.parametrize("attempt", range(10))
def test_a_wrong_password_is_reported_and_tried_once(guarded, attempt):
    reading = source(guarded.login, "t", login(password="wrong-sesame") | {"default.api.timeout.ms": "60000"})
    error = refused(reading, ConfigurationError, guarded.login, "Invalid username or password")
    assert error.option == "kafka.sasl.jaas.config"
    assert "wrong-sesame" not in str(error)


def test_a_mechanism_that_the_broker_does_not_offer(guarded):
    reading = source(guarded.login, "t", login(mechanism="SCRAM-SHA-256"))
    error = refused(reading, ConfigurationError, guarded.login, "does not offer SCRAM-SHA-256")
    assert error.option == "kafka.sasl.mechanism"


def test_without_a_login_where_one_is_wanted(guarded):
    reading = source(guarded.login, "t", SPOKEN_TO)
    refused(reading, RetriableError, guarded.login, "it requires a login (kafka.security.protocol)")


def test_with_a_login_where_none_is_wanted(guarded):
    error = refused(source(guarded.address, "t", login()), ConfigurationError, guarded.address, "accepts no login")
    assert error.option == "kafka.security.protocol"


def test_no_right_to_see_a_topic(rights):
    reading = source(rights.login, "t", login())
    error = refused(reading, ConfigurationError, "the topic t", "DESCRIBE and READ", "--topic t", rights.login)
    assert error.option == "subscribe"
    rights.let("READ")
    assert values(reading, 1) == [b"there"]


def test_the_right_to_see_a_topic_and_none_to_read_it(rights):
    rights.let("DESCRIBE")
    reading = source(rights.login, "t", login())
    refused(reading, ConfigurationError, "the topic t", "READ", "--topic t", rights.login)
    rights.let("READ")
    assert values(reading, 1) == [b"there"]


def test_no_right_to_a_group(rights):
    rights.let("READ")
    reading = source(rights.login, "t", login() | {"group.id": "g"}, starting_offsets="committed")
    refused(reading, ConfigurationError, "'g'", "READ on the group", "kafka-acls")
    rights.let("READ", "GROUP", "g")
    assert values(reading, 1) == [b"there"]


def test_a_pattern_matches_only_topics_that_the_user_may_see(rights):
    rights.let("READ")
    rights.create_topic("hidden")
    reading = source(rights.login, "t", login(), subscribe=[], subscribe_pattern=".*")
    assert values(reading, 1) == [b"there"]


# ---- offsets and times


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("starting_offsets", {"0": 0}, "{topic}/1 is missing"),
        ("starting_offsets", {"0": 0, "1": 0, "7": 0}, "not read: {topic}/7"),
        ("starting_offsets", {"0": 0, "1": 4}, "4, beyond the end of the partition at offset 3"),
        ("ending_offsets", {"0": -1}, "{topic}/1 is missing"),
        ("ending_offsets", {"0": -1, "1": -1, "7": -1}, "not read: {topic}/7"),
        ("starting_offsets_by_timestamp", {"0": 1}, "{topic}/1 is missing"),
        ("starting_offsets_by_timestamp", {"0": 1, "1": 9_000_000}, "{topic}/1 has no record at or after 9000000"),
    ],
)
def test_offsets_and_times_that_cannot_be(kafka, option, value, says):
    topic = kafka.topic(2)
    for partition in range(2):
        kafka.send(topic, range(3), partition, timestamp_ms=1000)
    refused(source(kafka.address, topic, **{option: {topic: value}}), ConfigurationError, says.format(topic=topic))
    assert len(values(source(kafka.address, topic), 6)) == 6


@pytest.mark.parametrize(("option", "count"), [("starting_timestamp", 3), ("ending_timestamp", 0)])
def test_a_time_before_the_first_record_means_the_first_record(kafka, option, count):
    topic = kafka.topic()
    kafka.send(topic, range(3), timestamp_ms=1000)
    assert forebay.peek(source(kafka.address, topic, **{option: 5})).table.num_rows == count


# ---- record batches that are damaged on the broker's disk


def segment(broker: KafkaBroker, topic: str) -> Path:
    assert broker._home is not None
    (found,) = (broker._home / "data" / f"{topic}-0").glob("*.log")
    return found


def batch_of(data: bytes, offset: int) -> tuple[int, int]:
    """Return where the record batch with an offset begins and ends."""
    begin = end = 0
    while end < len(data):
        begin, end = end, end + 12 + int(struct.unpack_from(">i", data, end + 8)[0])
        if struct.unpack_from(">q", data, begin)[0] + struct.unpack_from(">i", data, begin + 23)[0] >= offset:
            break
    return begin, end


def resealed(data: bytearray) -> bytearray:
    """Return a record batch with the checksum that it should have."""
    data[17:21] = struct.pack(">I", crc32c(bytes(data[21:])))
    return data


def flipped(data: bytearray) -> bytearray:
    data[-3] ^= 0x20
    return data


def endless(data: bytearray) -> bytearray:
    data[61:71] = b"\xff" * 10  # the length of the first record goes on and on
    return resealed(data)


def too_long(data: bytearray) -> bytearray:
    data[61:63] = b"\xfe\x7f"  # the first record is longer than all there is
    return resealed(data)


def unknown_codec(data: bytearray) -> bytearray:
    data[22] |= 7
    return resealed(data)


def not_compressed(data: bytearray) -> bytearray:
    data[22] |= 4  # zstd, it says
    return resealed(data)


def other_format(data: bytearray) -> bytearray:
    data[16] = 9
    return data


@pytest.mark.parametrize("spoil", [flipped, endless, too_long, unknown_codec, not_compressed, other_format])
def test_a_damaged_record_batch_is_located_and_can_be_skipped(broker, kafka, spoil):
    topic = kafka.topic()
    for number in range(3):
        kafka.send(topic, [f"{number}-{'x' * 50}"] * 4)
    path = segment(broker, topic)
    begin, end = batch_of(path.read_bytes(), 5)
    with path.open("r+b") as file:
        file.seek(begin)
        data = bytearray(file.read(end - begin))
        (offset,) = struct.unpack_from(">q", data)
        count = struct.unpack_from(">i", data, 57)[0]
        file.seek(begin)
        file.write(spoil(data))
    reading = source(kafka.address, topic)
    before: list[bytes] = []
    with pytest.raises(DataError) as caught, forebay.run(reading, options=forebay.HostOptions(retries=0)) as rows:
        for one in rows:
            before += one.column("value").to_pylist()
    assert len(before) <= offset  # and no row after it
    text = str(caught.value)
    assert f"topic {topic}, partition 0, offset {offset}" in text, text
    assert caught.value.position == str(offset) and caught.value.advice, text
    after = source(kafka.address, topic, starting_offsets={topic: {"0": offset + count}})
    assert len(values(after, 12 - offset - count)) == 12 - offset - count


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_a_record_batch_longer_than_max_record_bytes_is_refused_at_its_offset(kafka, begin, compression):
    topic = kafka.topic()
    kafka.send(topic, range(3))
    with KafkaProducer(bootstrap_servers=kafka.address, compression_type=compression) as producer:
        producer.send(topic, bytes(100_000)).get(30)
    query = begin(subscribe=topic, startingOffsets="earliest", maxRecordBytes=50_000)
    with pytest.raises(DataError, match="offset 3: the record batch takes more than maxRecordBytes") as caught:
        query.trigger()
    assert (caught.value.option, caught.value.split) == ("maxRecordBytes", f"{topic}/0")
    query.restart(maxRecordBytes=200_000)
    assert query.drain() == [[0, 1, 2]]
