# SPDX-License-Identifier: Apache-2.0
"""The same rows as Spark's own Kafka source, value for value; where its jars can be had for this Spark."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.testkit.kafka_jars import java

pyspark = pytest.importorskip("pyspark")

# The newest ones there are for Spark 4.2: its token provider is not on Maven Central, and that of 4.0 fits.
_JARS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.1"),
    ("org.apache.commons", "commons-pool2", "2.12.1"),
)

pytestmark = pytest.mark.skipif(
    not pyspark.__version__.startswith("4.2."), reason="Spark's own source is to be had for Spark 4.2"
)


@pytest.fixture(scope="module")
def jars(tmp_path_factory) -> str:
    """Spark's own source, fetched by the Ivy inside PySpark."""
    home = tmp_path_factory.mktemp("jars")
    ivy = next(Path(str(pyspark.__file__)).parent.glob("jars/ivy-*.jar"))
    for group, name, version in _JARS:
        command = [java(), "-jar", str(ivy), "-cache", str(home / "cache"), "-dependency", group, name, version]
        command += ["-confs", "default", "-notransitive", "-types", "jar", "bundle"]
        command += ["-retrieve", f"{home}/lib/[artifact]-[revision].[ext]"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if not (home / "lib" / f"{name}-{version}.jar").exists():
            pytest.fail(f"{name} {version} cannot be fetched here: {done.stdout[-300:]}")
    return ",".join(str(one) for one in sorted((home / "lib").iterdir()))


@pytest.fixture(scope="module")
def spark(jars) -> Iterator[Any]:
    builder = pyspark.sql.SparkSession.builder.master("local[2]").appName("forebay beside Spark")
    for name, value in {
        "spark.jars": jars,
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    forebay.register(session)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def topics(kafka) -> dict[str, str]:
    """Topics of all kinds."""
    import kafka as client

    found = {kind: kafka.topic(4, **config) for kind, config in (("plain", {}), ("appended", {}))}
    found["appended"] = kafka.topic(2, message_timestamp_type="LogAppendTime")
    found["transactions"] = kafka.topic(2)
    found["skewed"] = kafka.topic(5)
    for partition in range(4):
        kafka.send(
            found["plain"], range(partition * 7), partition, key=b"k%d" % partition, timestamp_ms=5000 + partition
        )
    kafka.send(found["plain"], ["no key"], 0, timestamp_ms=9000)
    with client.KafkaProducer(bootstrap_servers=kafka.address) as producer:
        producer.send(found["plain"], None, key=b"tombstone", partition=1, timestamp_ms=9001).get(30)
        producer.send(found["plain"], b"", key=b"", partition=1, headers=[("a", b"1"), ("a", b"2"), ("", b"")]).get(30)
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        found[codec] = kafka.topic(4, compression_type=codec)  # the broker compresses
        for partition in range(4):
            kafka.send(found[codec], [f"{codec} {number}" * 5 for number in range(25)], partition)
    kafka.send(found["appended"], range(20), 1)
    kafka.send(found["skewed"], range(500), 2)
    kafka.send(found["skewed"], range(3), 4)
    with client.KafkaProducer(bootstrap_servers=kafka.address, transactional_id=found["transactions"]) as producer:
        producer.init_transactions()
        for number in range(6):
            producer.begin_transaction()
            for partition in range(2):
                producer.send(found["transactions"], b"t%d" % number, partition=partition).get(30)
            (producer.abort_transaction if number % 3 == 1 else producer.commit_transaction)()
    return found


def rows(frame: Any) -> list[tuple[Any, ...]]:
    """All of a frame, in an order of its own; times in microseconds."""
    columns = ["CAST(key AS STRING)", "CAST(value AS STRING)", "topic", "partition", "offset"]
    columns += ["unix_micros(timestamp)", "timestampType"] + (
        ["to_json(headers)"] if "headers" in frame.columns else []
    )
    return sorted((tuple(row) for row in frame.selectExpr(*columns).collect()), key=lambda row: row[2:5])


CASES: list[tuple[str, dict[str, str]]] = [
    ("plain", {}),
    ("plain", {"includeHeaders": "true"}),
    ("plain", {"startingOffsets": '{"T":{"0":-2,"1":3,"2":5,"3":21}}'}),
    ("plain", {"endingOffsets": '{"T":{"0":1,"1":3,"2":-1,"3":0}}'}),
    ("plain", {"startingTimestamp": "5002", "startingOffsetsByTimestampStrategy": "latest"}),
    ("plain", {"startingTimestamp": "5000", "endingTimestamp": "5003"}),
    ("plain", {"endingTimestamp": "9000", "endingOffsets": '{"T":{"0":0,"1":0,"2":0,"3":0}}'}),
    ("plain", {"startingOffsetsByTimestamp": '{"T":{"0":0,"1":5001,"2":5002,"3":5003}}'}),
    ("plain", {"minPartitions": "9"}),
    ("plain", {"maxRecordsPerPartition": "3"}),
    ("plain", {"assign": '{"T":[1,3]}'}),
    ("plain", {"subscribePattern": "T"}),
    ("plain", {"kafka.max.partition.fetch.bytes": "100", "kafka.fetch.max.bytes": "300"}),
    ("gzip", {}),
    ("snappy", {}),
    ("lz4", {}),
    ("zstd", {}),
    ("lz4", {"minPartitions": "7"}),
    ("zstd", {"startingOffsets": '{"T":{"0":3,"1":16,"2":1,"3":24}}'}),
    ("appended", {}),
    ("appended", {"includeHeaders": "true"}),
    ("transactions", {}),
    ("transactions", {"kafka.isolation.level": "read_committed"}),
    ("transactions", {"kafka.isolation.level": "read_committed", "minPartitions": "6"}),
    ("skewed", {}),
    ("skewed", {"minPartitions": "10", "maxRecordsPerPartition": "90"}),
]


@pytest.mark.parametrize("streaming", [False, True], ids=["batch", "stream"])
@pytest.mark.parametrize(
    ("kind", "options"), CASES, ids=lambda value: value if isinstance(value, str) else ",".join(value)
)
def test_the_same_rows_as_spark_s_own_source(spark, kafka, topics, tmp_path, kind, options, streaming):
    if streaming and any(name.startswith("ending") for name in options):
        pytest.skip("Spark's source has no ends in streams")
    topic = topics[kind]
    options = {
        name: text.replace('"T"', f'"{topic}"').replace("T", topic, text == "T") for name, text in options.items()
    }
    if not options.keys() & {"assign", "subscribePattern"}:
        options["subscribe"] = topic
    found = {}
    for name in ("kafka", "forebay_kafka"):
        reader = (spark.readStream if streaming else spark.read).format(name)
        given = {"startingOffsets": "earliest", **options} if streaming else options
        frame = reader.option("kafka.bootstrap.servers", kafka.address).options(**given).load()
        if streaming:
            kept: list[tuple[Any, ...]] = []
            writer = frame.writeStream.foreachBatch(lambda batch, _, kept=kept: kept.extend(rows(batch)))
            query = writer.option("checkpointLocation", str(tmp_path / name)).trigger(availableNow=True).start()
            assert query.awaitTermination(60)
            assert query.exception() is None
            found[name] = sorted(kept, key=lambda row: row[2:5])
        else:
            found[name] = rows(frame)
        assert name == "kafka" or frame.schema.simpleString()
    assert found["forebay_kafka"] == found["kafka"]
    assert found["kafka"] or "startingTimestamp" in options


class House:
    """A checkpoint in which one source may live after the other."""

    def __init__(self, spark: Any, kafka: Any, topic: str, checkpoint: Path) -> None:
        self.spark, self.kafka, self.topic, self.checkpoint = spark, kafka, topic, str(checkpoint)
        self.came: list[str] = []

    def run(self, name: str, *, fail: bool = False) -> None:
        def keep(batch: Any, _number: int) -> None:
            found = [row[0] for row in batch.selectExpr("CAST(value AS STRING)").collect()]
            if fail and found:
                raise ValueError("on purpose")
            self.came += found

        frame = (
            self.spark.readStream.format(name)
            .option("kafka.bootstrap.servers", self.kafka.address)
            .option("subscribe", self.topic)
            .option("startingOffsets", "earliest")
            .load()
        )
        writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", self.checkpoint)
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(60)
        if query.exception() is not None:
            raise query.exception()


def test_a_query_of_spark_s_own_source_goes_on_in_place(spark, kafka, tmp_path):
    topic = kafka.topic(2)
    house = House(spark, kafka, topic, tmp_path)
    kafka.send(topic, range(5), 0)
    kafka.send(topic, range(5, 8), 1)
    house.run("kafka")
    kafka.send(topic, range(8, 12), 0)
    kafka.grow(topic, 3)
    kafka.send(topic, range(12, 14), 2)
    house.run("forebay_kafka")
    house.run("forebay_kafka")
    kafka.send(topic, range(14, 16), 1)
    house.run("forebay_kafka")
    assert sorted(map(int, house.came)) == list(range(16))


def test_a_batch_that_spark_s_source_left_is_finished_by_it(spark, kafka, tmp_path):
    topic = kafka.topic()
    house = House(spark, kafka, topic, tmp_path)
    kafka.send(topic, range(3))
    house.run("kafka")
    kafka.send(topic, range(3, 6))
    with pytest.raises(pyspark.sql.utils.StreamingQueryException, match="on purpose"):
        house.run("kafka", fail=True)
    with pytest.raises(pyspark.sql.utils.StreamingQueryException, match="finish the last batch with the old source"):
        house.run("forebay_kafka")
    house.run("kafka")
    kafka.send(topic, range(6, 8))
    house.run("forebay_kafka")
    assert sorted(map(int, house.came)) == list(range(8))
