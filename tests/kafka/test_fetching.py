# SPDX-License-Identifier: Apache-2.0
"""Reads ranges of a real broker's partitions through both backends, including failures."""

from __future__ import annotations

import threading
import time

import pyarrow as pa
import pytest
from kafka import KafkaProducer

from forebay.clock import SystemClock
from forebay.errors import DataError, DataLossError, RetriableError
from forebay.sources.kafka import fetching
from forebay.sources.kafka.client.client_errors import PositionLostError
from forebay.sources.kafka.fetching import PartitionFetcher
from forebay.sources.kafka.records.batches import record_schema
from forebay.sources.kafka.split import KafkaSplit, TopicPartition

FULL = record_schema(include_headers=True)
PATIENCE = 300.0


class Quick(SystemClock):
    """Ten seconds in one: what waits for the brokers waits less."""

    def monotonic(self):
        return 10 * super().monotonic()


@pytest.fixture
def fetcher(broker, without_internals):
    """Makes fetchers, and closes them."""
    made = []

    def make(schema=FULL, address=None, arguments=None, by_columns=True, **options):
        if not by_columns:
            without_internals("raw bytes", "topic ids")
        made.append(
            PartitionFetcher({"bootstrap_servers": address or broker.address, **(arguments or {})}, schema, **options)
        )
        return made[-1]

    yield make
    while made:
        made.pop().close()


def drained(fetcher, ranges, patience=PATIENCE):
    """Read until so many ranges are finished; return the rows of each partition, and the parts."""
    rows, parts, left, deadline = {}, [], ranges, time.monotonic() + patience
    while left:
        assert time.monotonic() < deadline, f"{left} ranges are not finished after {patience} s: {parts[-3:]}"
        for part in fetcher.fetch(5):
            parts.append(part)
            left -= part.finished
            if part.batch is not None:
                part.batch.validate(full=True)
                rows.setdefault(TopicPartition.of(part.split_id), []).extend(part.batch.to_pylist())
    return rows, parts


def produce(broker, topic, records, **options):
    """Write (partition, key, value, headers) with kafka-python's producer; return the offsets."""
    with KafkaProducer(bootstrap_servers=broker.address, **options) as producer:
        sent = [
            producer.send(topic, value, key, headers=headers, partition=partition)
            for partition, key, value, headers in records
        ]
        producer.flush(30)
    return [one.get(30).offset for one in sent]


def split(topic, partition, offset, end=None):
    return KafkaSplit(id=f"{topic}/{partition}", position=offset, end=end)


def plain(count, partition=0):
    return [(partition, None, b"v%d" % number, []) for number in range(count)]


@pytest.mark.soak("100000")
@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("size", [100, 100_000])
def test_both_backends_read_a_producers_records(broker, topic, fetcher, compression, size):
    name = topic(3)
    records = [
        (number % 3, None if number % 4 else b"k%d" % number, None if number % 8 == 0 else b"v" * (number % 50),
         [("h", b"%d" % number), ("h", b"")] if number % 5 == 0 else [])
        for number in range(600)
    ]  # fmt: skip
    produce(broker, name, records, compression_type=compression, batch_size=size, linger_ms=20)
    found = []
    for by_columns in (True, False):
        reader = fetcher(by_columns=by_columns)
        for partition in range(3):
            reader.assign(split(name, partition, 0, 200))
        found.append(drained(reader, 3)[0])
    assert found[0] == found[1]
    for partition in range(3):
        rows = found[0][name, partition]
        wanted = [one for one in records if one[0] == partition]
        assert [row["offset"] for row in rows] == [*range(200)]
        assert [(row["key"], row["value"]) for row in rows] == [(key, value) for _, key, value, _ in wanted]
        pairs = [[(pair["key"], pair["value"]) for pair in row["headers"] or ()] for row in rows]
        assert pairs == [headers for *_, headers in wanted]
        assert {(row["topic"], row["partition"], row["timestampType"]) for row in rows} == {(name, partition, 0)}


def test_ranges_of_one_partition_follow_one_another_and_empty_ones_end(broker, topic, fetcher):
    name = topic(2)
    produce(broker, name, plain(100))
    reader = fetcher(record_schema(["offset"]))
    reader.assign(split(name, 1, 0, 0))
    for start, end in ((10, 20), (5, 5), (90, 100), (20, 21)):
        reader.assign(split(name, 0, start, end))
        rows, parts = drained(reader, 1 if start != 10 else 2)
        assert [row["offset"] for row in rows.get((name, 0), [])] == [*range(start, end)]
        assert [
            part.position for part in parts if part.finished and TopicPartition.of(part.split_id).partition == 0
        ] == [end]
    assert reader.fetch(0) == []


def test_a_record_larger_than_a_fetch_is_read(broker, topic, fetcher):
    name = topic(1, {"max.message.bytes": "6000000"})
    values = [b"a", bytes(5_000_000), b"b" * 200_000, b"c"]
    produce(broker, name, [(0, None, value, []) for value in values], max_request_size=6_000_000)
    for arguments in ({"max_partition_fetch_bytes": 1000}, {}, {"fetch_max_bytes": 1000}):
        reader = fetcher(record_schema(["value"]), arguments=arguments)
        reader.assign(split(name, 0, 0, 4))
        assert [row["value"] for row in drained(reader, 1)[0][name, 0]] == values


@pytest.mark.parametrize("by_columns", [True, False])
def test_transactions_are_read_as_asked_for_and_their_marks_end_a_range(broker, topic, fetcher, by_columns):
    name = topic()
    with KafkaProducer(bootstrap_servers=broker.address, transactional_id=f"tx-{name}") as producer:
        producer.init_transactions()
        for value, end in ((b"yes", producer.commit_transaction), (b"no", producer.abort_transaction)) * 2:
            producer.begin_transaction()
            for _ in range(3):
                producer.send(name, value, partition=0)
            producer.flush(30)  # what is not sent when a transaction is aborted is never written
            end()
        producer.begin_transaction()
        producer.send(name, b"open", partition=0).get(30)
        for level, wanted in (("read_committed", [b"yes"] * 6), ("read_uncommitted", ([b"yes"] * 3 + [b"no"] * 3) * 2)):
            reader = fetcher(arguments={"isolation_level": level}, by_columns=by_columns)
            reader.assign(split(name, 0, 0, 16))  # the last of these is the mark of an aborted transaction
            rows, parts = drained(reader, 1)
            assert [row["value"] for row in rows[name, 0]] == wanted
            assert (parts[-1].position, parts[-1].finished) == (16, True)
        producer.abort_transaction()


def test_committed_ones_are_read_up_to_the_first_open_transaction(broker, topic, fetcher):
    name = topic()
    produce(broker, name, plain(5))
    with KafkaProducer(bootstrap_servers=broker.address, transactional_id=f"tx-{name}") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(name, b"open", partition=0).get(30)
        reader = fetcher(arguments={"isolation_level": "read_committed"})
        reader.assign(split(name, 0, 0))
        parts = reader.fetch(30)
        assert [part.caught_up for part in parts][-1] and parts[-1].position == 5
        producer.commit_transaction()
        assert [row["value"] for row in _next_batch(reader).to_pylist()] == [b"open"]


def _next_batch(reader):
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for part in reader.fetch(5):
            if part.batch is not None:
                return part.batch
    raise AssertionError("no record batch came")


@pytest.mark.parametrize("by_columns", [True, False])
def test_a_range_whose_tail_is_compacted_away_ends(broker, topic, fetcher, by_columns):
    settings = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    name = topic(1, {**settings, "max.compaction.lag.ms": "100"})
    produce(broker, name, [(0, b"first", b"kept", []), *[(0, b"same", b"%d" % number, []) for number in range(50)]])
    reader = fetcher(by_columns=by_columns)
    deadline, offsets = time.monotonic() + PATIENCE, []
    while 20 in offsets or not offsets:
        assert time.monotonic() < deadline, "the broker did not compact"
        produce(broker, name, [(0, b"other", b"", [])])  # a new segment: the old one may be cleaned
        reader.assign(split(name, 0, 0, 50))
        offsets = [row["offset"] for row in drained(reader, 1)[0].get((name, 0), [])]
    assert offsets[0] == 0
    reader.assign(split(name, 0, 5, 45))
    rows, parts = drained(reader, 1)
    assert (rows, parts[-1].position) == ({}, 45)


def test_caught_up_is_reported_once_until_more_records_arrive(broker, topic, fetcher):
    name = topic(2)
    produce(broker, name, plain(3))
    reader = fetcher(record_schema(["value"]))
    for partition in (0, 1):
        reader.assign(split(name, partition, 0))
    caught_up = []
    while len(caught_up) < 2:
        caught_up += [
            (TopicPartition.of(part.split_id).partition, part.position) for part in reader.fetch(5) if part.caught_up
        ]
    assert sorted(caught_up) == [(0, 3), (1, 0)]
    assert reader.fetch(0.7) == []  # longer than the broker holds an empty fetch
    produce(broker, name, plain(1, partition=1))
    parts = []
    while not parts:
        parts = reader.fetch(5)
    assert [(TopicPartition.of(part.split_id).partition, part.position, part.caught_up) for part in parts] == [
        (1, 1, True)
    ]


def test_wake_up_ends_a_wait_and_loses_nothing(broker, topic, fetcher):
    name = topic()
    reader = fetcher(record_schema(["value"]))
    reader.assign(split(name, 0, 0))
    while not any(part.caught_up for part in reader.fetch(5)):
        pass
    waker = threading.Timer(0.2, reader.wake_up)
    waker.start()
    began = time.monotonic()
    assert reader.fetch(PATIENCE) == []
    assert time.monotonic() - began < PATIENCE / 2
    waker.join()
    reader.wake_up()
    assert reader.fetch(PATIENCE) == []
    produce(broker, name, plain(2))
    assert _next_batch(reader).num_rows >= 1


def test_a_fetcher_is_used_again_after_it_was_cleared(broker, topic, fetcher):
    name = topic(2)
    produce(broker, name, plain(50) + plain(50, 1))
    reader = fetcher(record_schema(["offset", "partition"]))
    reader.assign(split(name, 0, 0, 50))
    reader.assign(split(name, 1, 0))
    assert reader.fetch(30)
    reader.clear()
    assert reader.fetch(PATIENCE) == []
    reader.assign(split(name, 0, 10, 20))
    assert [row["offset"] for row in drained(reader, 1)[0][name, 0]] == [*range(10, 20)]
    reader.assign(split(name, 1, 0))
    reader.assign(split(name, 0, 30, 40))
    reader.drop((name, 1))
    assert list(drained(reader, 1)[0]) == [(name, 0)]


def test_removed_records_are_reported_with_the_remaining_offsets(broker, topic, fetcher):
    name = topic()
    produce(broker, name, plain(100))
    with broker.admin() as admin:
        admin.delete_records({TopicPartition(name, 0): 60})
    reader = fetcher()
    reader.assign(split(name, 0, 10, 100))
    with pytest.raises(PositionLostError) as caught:
        drained(reader, 1)
    lost = caught.value
    assert (lost.topic, lost.partition, lost.offset, lost.end) == (name, 0, 10, 100)
    assert (lost.earliest, lost.latest) == (60, 100)
    error = lost.error()
    assert isinstance(error, DataLossError) and error.position == "10"
    assert f"topic {name}, partition 0: some or all records from offset 10 up to 100" in str(
        error
    ) and "offsets 60 to 100 now" in str(error)
    reader.assign(split(name, 0, lost.earliest, 100))
    assert len(drained(reader, 1)[0][name, 0]) == 40


@pytest.mark.parametrize("start", [5, 50])
def test_a_partition_that_ends_before_the_range_fails_at_once(broker, topic, fetcher, start):
    name = topic()
    produce(broker, name, plain(10))
    reader = fetcher(clock=Quick())
    reader.assign(split(name, 0, start, 60))
    with pytest.raises(PositionLostError, match="the partition ends before") as caught:
        drained(reader, 1)
    assert (caught.value.earliest, caught.value.latest) == (0, 10)


def test_a_deleted_topic_fails_at_once(broker, topic, fetcher):
    name = topic()
    produce(broker, name, plain(10))
    reader = fetcher(clock=Quick())
    reader.assign(split(name, 0, 0))
    assert _next_batch(reader).num_rows
    broker.delete_topic(name)
    with pytest.raises(PositionLostError, match="the partition does not exist") as caught:
        drained(reader, 1)
    assert caught.value.earliest is None


def test_brokers_that_are_not_there_are_named(refusing, fetcher):
    with pytest.raises(RetriableError, match=r"127\.0\.0\.1:1 .*do not answer"):
        fetcher(address="127.0.0.1:1", arguments={"bootstrap_timeout_ms": 500})


@pytest.mark.soak
def test_a_lost_broker_is_named_and_reading_continues_when_it_is_back(refusing, fetcher, mortal):
    mortal.create_topic("lost")
    produce(mortal, "lost", plain(20))
    reader = fetcher(record_schema(["offset"]), address=mortal.address, clock=Quick())
    reader.assign(split("lost", 0, 0))
    assert _next_batch(reader).num_rows
    mortal.kill()
    with pytest.raises(RetriableError, match=mortal.address):
        drained(reader, 1)
    mortal.start()
    produce(mortal, "lost", plain(5))
    deadline, offsets = time.monotonic() + PATIENCE, []
    while len(offsets) < 5 and time.monotonic() < deadline:
        try:
            offsets += [row["offset"] for row in _next_batch(reader).to_pylist()]
        except RetriableError:
            continue
    assert offsets == [*range(20, 25)]


def test_records_before_damage_are_returned_first(broker, topic, fetcher, monkeypatch):
    name = topic(2)
    produce(broker, name, plain(10) + plain(10, 1))
    reader = fetcher(record_schema(["offset"]))

    def spoilt(fetch, decode=reader._backend._decoder.decode):
        yield from decode(fetch)
        if fetch.partition == 0:
            raise DataError("damaged")

    monkeypatch.setattr(reader._backend._decoder, "decode", spoilt)
    reader.assign(split(name, 0, 0, 12))
    rows = []
    with pytest.raises(DataError, match="damaged"):
        while True:
            rows += [row for part in reader.fetch(5) if part.batch for row in part.batch.to_pylist()]
    assert len(rows) == 10
    reader.assign(split(name, 1, 0, 10))
    assert len(drained(reader, 1)[0][name, 1]) == 10


def test_the_next_bytes_are_asked_for_before_these_are_decoded(broker, topic, fetcher, monkeypatch):
    name = topic()
    produce(broker, name, [(0, None, bytes(1000), []) for _ in range(200)], batch_size=2000)
    reader = fetcher(record_schema(["offset"]), arguments={"max_partition_fetch_bytes": 20_000})
    ahead = []

    def decode(fetch, decode=reader._backend._decoder.decode):
        ahead.append(
            reader._consumer._fetcher.in_flight_fetches() or bool(reader._consumer._fetcher._completed_fetches)
        )
        return decode(fetch)

    monkeypatch.setattr(reader._backend._decoder, "decode", decode)
    reader.assign(split(name, 0, 0, 200))
    assert len(drained(reader, 1)[0][name, 0]) == 200
    assert len(ahead) > 5
    assert all(ahead[:-1]) and not ahead[-1]  # and nothing beyond the end


def test_a_batch_is_a_table_of_the_wanted_columns(broker, topic, fetcher):
    name = topic()
    produce(broker, name, plain(3))
    reader = fetcher(record_schema(["timestampType", "value"]))
    reader.assign(split(name, 0, 1, 3))
    batch = _next_batch(reader)
    assert batch.schema == pa.schema({"timestampType": pa.int32(), "value": pa.binary()})
    assert batch.column("value").to_pylist() == [b"v1", b"v2"]
    assert reader._consumer.config["max_partition_fetch_bytes"] == fetching.FETCH_BYTES
