# SPDX-License-Identifier: Apache-2.0
"""Topics written by kafka-python, by librdkafka and by Kafka's own Java tools: the same rows as Spark's own source."""

from __future__ import annotations

import itertools
import re
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

from forebay.sources.kafka.records.batches import BatchHeader, headers
from forebay.sources.kafka.records.selecting import NAMES
from forebay.sources.kafka.split import TopicPartition
from forebay.testkit.kafka_broker import VERSION, Module, fetched, jars, java

pytestmark = pytest.mark.soak

pytest.importorskip("pyspark")

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
WRITERS = ("python", "librdkafka", "java")
ROWS = 60
PATIENCE = 300.0

Header1 = tuple[str, bytes | None]
Record = tuple[bytes | None, bytes | None, Sequence[Header1]]


def records(count: int = ROWS) -> list[Record]:
    """Keys and values that are missing, empty, no text and of all lengths; headers in order, doubled, null."""
    pairs: Sequence[Header1] = [("h", b"2"), ("a", None), ("h", b"1"), ("h", b"2"), ("ä", b""), ("", b"\xff")]
    return [
        (
            None if number % 4 == 0 else b"" if number % 9 == 1 else b"key \xfe %d" % (number % 7),
            None if number % 7 == 3 else b"\x00\xff value" * (number * 5 % 40),
            pairs[: number % 7] if number % 3 else (),
        )
        for number in range(count)
    ]


class Writers:
    """Writes to topics, each with its own encoder of record batches.

    Args:
        kafka: The broker.
    """

    def __init__(self, kafka: Any) -> None:
        self._kafka = kafka
        tools = Module("org.apache.kafka", "kafka-tools", VERSION, alone=True)
        self._classes = f"{jars()}/*:{fetched(f'kafka-tools-{VERSION}', [tools])}/*"
        self._running: list[tuple[subprocess.Popen[str], str]] = []

    def python(self, topic: str, codec: str, rows: Iterable[Record], partitions: int = 2) -> None:
        from kafka import KafkaProducer

        settings = {"bootstrap_servers": self._kafka.address, "linger_ms": 50, "batch_size": 2000}
        with KafkaProducer(**settings, compression_type=None if codec == "none" else codec) as producer:
            for number, (key, value, pairs) in enumerate(rows):
                sent = [(name, held) for name, held in pairs if held is not None]  # it knows no null
                held = b"" if key is None else value  # nor a record without both
                producer.send(topic, held if value is None else value, key, headers=sent, partition=number % partitions)
            producer.flush()

    def librdkafka(self, topic: str, codec: str, rows: Iterable[Record], partitions: int = 2, **more: Any) -> None:
        producer = self.producer(codec, **more)
        self.produce(producer, topic, rows, partitions)
        assert producer.flush(30) == 0

    def producer(self, codec: str, **more: Any) -> Any:
        from confluent_kafka import Producer

        settings = {"bootstrap.servers": self._kafka.address, "compression.type": codec, "linger.ms": 50}
        return Producer({**settings, "batch.num.messages": 20, **more})

    @staticmethod
    def produce(producer: Any, topic: str, rows: Iterable[Record], partitions: int = 2, stride: int = 1) -> None:
        for number, (key, value, pairs) in enumerate(rows):
            target = number * stride % partitions
            producer.produce(topic, value, key, partition=target, headers=list(pairs))
        producer.poll(0)

    def java(self, topic: str, codec: str) -> None:
        """Start the console producer, which knows text; `finish` waits for it."""
        lines = [
            f"{'-' if number % 3 == 0 else 'h:2,a:-,h:1,ä:'}\t{'-' if number % 4 == 0 else f'key {number % 7}'}\t"
            f"{'-' if number % 7 == 3 else 'välue ' * (number * 5 % 40)}\n"
            for number in range(ROWS)
        ]
        properties = ["parse.key=true", "parse.headers=true", "null.marker=-"]
        arguments = ["--compression-codec", codec, "--batch-size", "2000", "--timeout", "50"]
        arguments += itertools.chain.from_iterable(("--property", one) for one in properties)
        arguments = ["--bootstrap-server", self._kafka.address, "--topic", topic, *arguments]
        self._start("ConsoleProducer", arguments, "".join(lines))

    def performance(self, topic: str, codec: str, *more: str) -> None:
        """Start Kafka's own load generator; `finish` waits for it."""
        settings = [f"bootstrap.servers={self._kafka.address}", f"compression.type={codec}", "batch.size=4000"]
        arguments = ["--topic", topic, "--num-records", "300", "--record-size", "90", "--throughput", "-1", *more]
        self._start("ProducerPerformance", [*arguments, "--producer-props", *settings])

    def finish(self) -> None:
        """Wait for Java."""
        while self._running:
            process, text = self._running.pop()
            out, _ = process.communicate(text, timeout=PATIENCE)
            assert process.returncode == 0 and "rror" not in out, out

    def close(self) -> None:
        """End what has not come to its end."""
        for process, _ in self._running:
            process.kill()
            process.communicate()

    def _start(self, tool: str, arguments: Iterable[str], text: str = "") -> None:
        options = ["-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dfile.encoding=UTF-8"]
        command = [java(), *options, "-cp", self._classes, f"org.apache.kafka.tools.{tool}", *arguments]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
        )
        self._running.append((process, text))


def transactions(writers: Writers, topic: str) -> None:
    """Committed and aborted ones, over two partitions, some with nothing between their marks for one of them."""
    producer = writers.producer("lz4", **{"transactional.id": topic})
    producer.init_transactions(30)
    for number, end in enumerate("cacaaccaa"):
        producer.begin_transaction()
        writers.produce(producer, topic, records(10 + number), 1 + number % 2)
        producer.flush(30)  # what is not sent when a transaction is aborted is never written
        (producer.commit_transaction if end == "c" else producer.abort_transaction)(30)


def compacted(kafka: Any, writers: Writers) -> str:
    """A topic from which the broker has removed records: all but the last of each key, in all closed segments."""
    policy = {"cleanup_policy": "compact", "segment_ms": "100", "min_cleanable_dirty_ratio": "0.01"}
    topic: str = kafka.topic(1, **policy, max_compaction_lag_ms="100")
    rows = [(b"key %d" % (number * number % 41), value, pairs) for number, (_, value, pairs) in enumerate(records(300))]
    writers.librdkafka(topic, "zstd", rows, 1)
    producer = writers.producer("lz4", **{"transactional.id": topic})
    producer.init_transactions(30)
    for end in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        writers.produce(producer, topic, rows[40:80], 1)
        producer.flush(30)
        end(30)
    deadline, number = time.monotonic() + PATIENCE, itertools.count()
    while not _all_keys_once(kafka.address, topic):
        assert time.monotonic() < deadline, "the broker did not compact"
        # A new segment, so that those before it may be cleaned; with keys of their own, so that these stay.
        writers.librdkafka(topic, "gzip", [(b"roll %d" % next(number), b"", ())], 1)
    return topic


def _all_keys_once(address: str, topic: str) -> bool:
    import kafka as client

    partition = client.TopicPartition(topic, 0)
    keys = []
    with client.KafkaConsumer(bootstrap_servers=address, isolation_level="read_committed") as consumer:
        consumer.assign([partition])
        consumer.seek_to_beginning()
        end = consumer.end_offsets([partition])[partition]
        while consumer.position(partition) < end:
            keys += [one.key for part in consumer.poll(500).values() for one in part]
    return len(keys) == len(set(keys))


@pytest.fixture(scope="module")
def writers(kafka) -> Iterator[Writers]:
    found = Writers(kafka)
    yield found
    found.close()


@pytest.fixture(scope="module")
def topics(spark, kafka, writers) -> dict[str, str]:
    """The topics by their kinds; those of one writer are also found by a pattern."""
    run = kafka.name("writers")
    kinds = [f"{writer}-{codec}" for writer in WRITERS for codec in CODECS]
    found = {kind: kafka.topic(2, name=f"{run}-{kind}") for kind in kinds}
    found |= {kind: kafka.topic(2) for kind in ("mixed", "transactions", "performance")}
    found |= {"wide": kafka.topic(64), "single": kafka.topic(1)}
    for codec in CODECS:
        writers.java(found[f"java-{codec}"], codec)
        writers.python(found[f"python-{codec}"], codec, records())
        writers.librdkafka(found[f"librdkafka-{codec}"], codec, records())
        writers.finish()
    writers.python(found["mixed"], "lz4", records(30))
    writers.librdkafka(found["mixed"], "zstd", records(50), 1)
    writers.performance(found["mixed"], "gzip")
    writers.performance(found["performance"], "snappy")
    transactions(writers, found["transactions"])
    writers.librdkafka(found["single"], "snappy", records(300), 1)
    producer = writers.producer("lz4")
    writers.produce(producer, found["wide"], records(200), 64, stride=3)
    writers.produce(producer, found["wide"], records(400), 2)
    assert producer.flush(30) == 0
    writers.finish()
    writers.python(found["mixed"], "snappy", records(20))
    more = ("--transactional-id", "performance", "--transaction-duration-ms", "20")
    writers.performance(found["transactions"], "gzip", *more)
    found["compacted"] = compacted(kafka, writers)
    writers.finish()
    return found | {f"{writer}-all": f"{run}-{writer}-.*" for writer in WRITERS}


def stored(broker: Any, topic: str) -> list[BatchHeader]:
    """The headers of all record batches of a topic, as they lie on the broker's disk."""
    logs = sorted((broker._home / "data").glob(f"{topic}-*/*.log"))
    return [one for log in logs for one in headers(memoryview(log.read_bytes()), TopicPartition(topic, 0))]


def test_the_topics_are_what_they_are_called(broker, topics):
    for writer, codec in itertools.product(WRITERS, CODECS):
        batches = stored(broker, topics[f"{writer}-{codec}"])
        assert {NAMES[one.codec] for one in batches} == {codec}
        assert sum(one.records for one in batches) == ROWS and max(one.records for one in batches) > 1
    assert {NAMES[one.codec] for one in stored(broker, topics["mixed"])} == {"lz4", "zstd", "gzip", "snappy"}
    batches = stored(broker, topics["transactions"])
    assert len({one.producer for one in batches if one.transactional and not one.control}) == 2
    batches = stored(broker, topics["compacted"])
    assert any(one.last - one.base + 1 > one.records for one in batches)
    assert all(batch.last < after.base for batch, after in itertools.pairwise(batches))


HEADERS = {"includeHeaders": "true"}
COMMITTED = {"kafka.isolation.level": "read_committed"}
STREAMED_TOO: list[tuple[str, dict[str, str]]] = [
    ("python-all", HEADERS),
    ("librdkafka-all", HEADERS),
    ("java-all", HEADERS),
    ("mixed", HEADERS),
    ("transactions", {**HEADERS, **COMMITTED}),
    ("compacted", HEADERS),
    ("single", {"minPartitions": "8", "maxRecordsPerPartition": "30"}),
    ("wide", HEADERS),
    ("python-lz4,librdkafka-lz4,java-lz4", {**HEADERS, "maxOffsetsPerTrigger": "70"}),
    ("librdkafka-gzip", {"minOffsetsPerTrigger": "10", "maxTriggerDelay": "1s"}),
]
BATCHES: list[tuple[str, dict[str, str]]] = [
    ("python-gzip", {"minPartitions": "5", "failOnDataLoss": "false"}),
    ("python-zstd", {"startingTimestamp": "1000", "endingTimestamp": "4000000000000"}),
    ("librdkafka-zstd", {**HEADERS, "maxRecordsPerPartition": "7"}),
    ("librdkafka-snappy", {**HEADERS, "kafka.max.partition.fetch.bytes": "200"}),
    ("librdkafka-lz4", {"startingOffsets": '{"T":{"0":7,"1":29}}', **HEADERS}),
    ("java-snappy", {**HEADERS, "minPartitions": "6"}),
    ("java-zstd", {"assign": '{"T":[1]}'}),
    ("java-lz4", {"endingOffsets": '{"T":{"0":3,"1":-1}}', **HEADERS}),
    ("mixed", {"minPartitions": "3", "kafka.check.crcs": "false", "kafka.fetch.min.bytes": "1"}),
    ("mixed", {"groupIdPrefix": "p", "fetchOffset.numRetries": "1", "kafkaConsumer.pollTimeoutMs": "30000"}),
    ("performance", {"kafka.client.id": "c", "kafka.receive.buffer.bytes": "4096"}),
    ("transactions", HEADERS),
    ("transactions", {**COMMITTED, "minPartitions": "9"}),
    ("transactions", {**COMMITTED, "startingOffsets": '{"T":{"0":13,"1":2}}', "endingOffsets": '{"T":{"0":40,"1":9}}'}),
    ("compacted", {**COMMITTED, "minPartitions": "5"}),
    ("compacted", {"startingOffsets": '{"T":{"0":100}}', "endingOffsets": '{"T":{"0":380}}', **HEADERS}),
    ("compacted", {"maxRecordsPerPartition": "40", "startingOffsets": '{"T":{"0":17}}'}),
]
RUNS = [(*case, "batch") for case in STREAMED_TOO + BATCHES] + [(*case, "stream") for case in STREAMED_TOO]


@pytest.mark.parametrize(
    ("kind", "options", "how"), RUNS, ids=lambda value: value if isinstance(value, str) else ",".join(value)
)
def test_records_of_three_producers_are_read_as_by_spark_s_own_source(check, topics, kind, options, how):
    names = ",".join(topics[one] for one in kind.split(","))
    options = {name: text.replace('"T"', f'"{names}"') for name, text in options.items()}
    if "assign" not in options:
        options["subscribePattern" if kind.endswith("-all") else "subscribe"] = names
    rows = check(options, how)
    assert rows
    if kind.endswith("-all"):
        assert len(rows) == len(CODECS) * ROWS and len({row[2] for row in rows}) == len(CODECS)
        nulls = ('{"key":"a"}' in (row[-1] or "") for row in rows)  # a null value is left out of JSON
        assert any(nulls) == (not kind.startswith("python"))


def test_keys_values_and_headers_equal_the_written_ones(check, topics):
    rows = check({"subscribe": topics["librdkafka-lz4"], **HEADERS}, "batch")
    wanted = sorted(enumerate(records()), key=lambda one: (one[0] % 2, one[0]))
    assert [(row[0], row[1]) for row in rows] == [
        tuple(None if one is None else one.hex().upper() for one in record[:2]) for _, record in wanted
    ]
    names = [re.findall('"key":"([^"]*)"', row[-1] or "") for row in rows]
    assert names == [[name for name, _ in record[2]] for _, record in wanted]
