# SPDX-License-Identifier: Apache-2.0
"""One streaming query (Kafka, keyed state, a table of PostgreSQL) while its servers and its disk are away.

All are for `make soak`: outages of 3, 20 and 60 seconds, and random ones for OUTAGE_MINUTES (30).
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shlex
import signal
import subprocess
import threading
import time
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import kafka as client
import psycopg
import pytest
from kafka import TopicPartition
from postgres_server import postgres_server
from s3_servers import S3Proxy

import forebay
from forebay.changelog import PostgresTarget, apply_changes, materialize
from forebay.errors import ConfigurationError, RetriableError

SHORT = [3, 20, 60]
MINUTES = float(os.environ.get("OUTAGE_MINUTES", "30"))
_tables = itertools.count()


class Server:
    """The server of PostgreSQL of a DSN: `kill` ends it with all its sessions, `start` brings its data back."""

    def __init__(self, dsn):
        self.dsn = dsn
        self._data = Path(psycopg.conninfo.conninfo_to_dict(dsn)["host"])

    def kill(self):
        """End the server at once, as a crash does."""
        pid = int((self._data / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGQUIT)
        while (self._data / "postmaster.pid").exists():
            time.sleep(0.05)

    def start(self):
        """Start the server, and return when it answers."""
        owner = self._data.stat()
        user: dict[str, Any] = (
            {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []} if os.geteuid() == 0 else {}
        )
        with (self._data / "log").open("ab") as log:
            subprocess.Popen(
                shlex.split((self._data / "postmaster.opts").read_text()),
                cwd=self._data,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **user,
            )
        while True:
            try:
                return psycopg.connect(self.dsn).close()
            except psycopg.OperationalError:
                time.sleep(0.05)

    def demand_a_password(self, role):
        """Create a role with a password."""
        settings = self._data / "pg_hba.conf"
        if role not in settings.read_text():
            settings.write_text(f"local all {role} scram-sha-256\n{settings.read_text()}")
            with psycopg.connect(self.dsn) as connection:
                connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'right'")
                connection.execute("SELECT pg_reload_conf()")


class Disk:
    """A file system of its own, which can be read-only."""

    def __init__(self, directory):
        self.directory = directory
        directory.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", directory], check=False).returncode:
            pytest.skip("only root may mount a file system")

    def kill(self):
        """Make it read-only, once no file is open for writing."""
        while subprocess.run(["mount", "-o", "remount,ro", self.directory], check=False).returncode:
            time.sleep(0.01)

    def start(self):
        """Make it writable."""
        subprocess.run(["mount", "-o", "remount,rw", self.directory], check=True)

    def close(self):
        """Take it away."""
        subprocess.run(["umount", "--lazy", self.directory], check=True)


class Writer(threading.Thread):
    """Writes changes of thirty rows to a topic. What the broker does not take is not written."""

    def __init__(self, address, topic):
        super().__init__(daemon=True)
        self._address, self._topic = address, topic
        self._ended, self._busy = threading.Event(), threading.Lock()
        self.records = 0

    def run(self):
        chance = random.Random(3)
        self._producer = client.KafkaProducer(bootstrap_servers=self._address, max_block_ms=5_000)
        while not self._ended.wait(0.05):
            row = chance.randrange(30)
            value = None if chance.random() < 0.15 else json.dumps({"id": row, "n": self.records}).encode()
            key = json.dumps({"id": row}).encode()
            with self._busy, suppress(client.errors.KafkaError):
                self._producer.send(self._topic, key=key, value=value, partition=row % 2)
            self.records += 1
        self._producer.close(10)  # it would wait for what a broker that was away has not taken

    @contextmanager
    def paused(self):
        """Write nothing in the block."""
        with self._busy:
            with suppress(client.errors.KafkaError):
                self._producer.flush(30)
            yield

    def end(self):
        """Stop writing."""
        self._ended.set()
        self.join()


class Pipeline:
    """A query from a topic to a table, the servers that it needs, and the truth."""

    def __init__(self, spark, broker, dsn, place, state):
        self.spark, self.broker, self.dsn, self.place = spark, broker, dsn, place
        self.state = state
        self.topic = f"outages-{next(_tables)}"
        self.table = self.topic.replace("-", "_")
        broker.create_topic(self.topic, 2, {"retention.ms": "-1"})
        self.writer = Writer(broker.address, self.topic)

    def start(self, timeout="2m", **options):
        """Start the query; its target and its source wait for `timeout`."""
        given = {"kafka.bootstrap.servers": self.broker.address, "subscribe": self.topic, "retryTimeout": timeout}
        given |= {"changelogFormat": "upsert-json", "keySchema": "id long", "valueSchema": "id long, n long"}
        given |= {"startingOffsets": "earliest", "mode": "FAILFAST"} | options
        changes = self.spark.readStream.format("forebay_kafka").options(**given).load()
        rows = materialize(changes, "id", strategy="position", shards=2, **self.state)
        self.query = apply_changes(
            rows,
            PostgresTarget(self.dsn, self.table, retry_timeout=timeout),
            keys="id",
            checkpoint_location=str(self.place / "checks"),
            trigger={"processingTime": "200 milliseconds"},
        )
        return self

    def truth(self):
        """Return the rows that the records of the topic make."""
        rows = {}
        with client.KafkaConsumer(bootstrap_servers=self.broker.address, consumer_timeout_ms=30_000) as consumer:
            partitions = [TopicPartition(self.topic, number) for number in range(2)]
            consumer.assign(partitions)
            consumer.seek_to_beginning()
            ends = consumer.end_offsets(partitions)
            while any(consumer.position(one) < ends[one] for one in partitions):
                for record in itertools.chain.from_iterable(consumer.poll(1_000).values()):
                    rows.pop(json.loads(record.key)["id"], None)
                    if record.value is not None:
                        row = json.loads(record.value)
                        rows[row["id"]] = row["n"]
        return sorted(rows.items())

    def rows(self):
        """Return the rows of the table; none before it exists."""
        with psycopg.connect(self.dsn) as connection:
            if connection.execute("SELECT to_regclass(%s)", [self.table]).fetchone() == (None,):
                return []
            return connection.execute(f"SELECT id, n FROM {self.table} ORDER BY id").fetchall()

    def catch_up(self):
        """Wait until the table is what the topic says; return the seconds that it took. The query must run."""
        with self.writer.paused():
            begin = time.monotonic()
            while self.rows() != self.truth():
                assert self.query.isActive, forebay.unwrap(self.query.exception())
            return time.monotonic() - begin

    def grow(self, records):
        """Wait for more records of the writer."""
        wanted = self.writer.records + records
        while self.writer.records < wanted:
            assert self.query.isActive, forebay.unwrap(self.query.exception())
            time.sleep(0.05)

    def failure(self):
        """Wait for the end of the query; return its typed error."""
        with pytest.raises(Exception) as caught:  # noqa: PT011 - of Spark
            self.query.awaitTermination()
        return forebay.unwrap(caught.value)


@pytest.fixture(scope="module")
def postgres():
    with postgres_server() as dsn:
        yield Server(dsn)


@pytest.fixture(scope="module")
def s3():
    with S3Proxy() as server:
        server.make_bucket("outages")
        yield server


@pytest.fixture
def pipelines(spark, mortal, postgres, tmp_path):
    """Makes pipelines whose state is on S3 or on a disk of their own, and ends them with all that was away."""
    with ExitStack() as stack:

        def make(store):
            if isinstance(store, S3Proxy):
                state = {
                    "state_location": f"s3://outages/{tmp_path.name}-{next(_tables)}",
                    "state_storage": store.options(),
                }
            else:
                state = {"state_location": str(store.directory / "state")}
            pipeline = Pipeline(spark, mortal, postgres.dsn, tmp_path, state)
            stack.callback(pipeline.writer.end)
            pipeline.writer.start()
            return pipeline

        yield make
        for query in spark.streams.active:
            query.stop()


@pytest.fixture
def disk(tmp_path):
    made = Disk(tmp_path / "disk")
    yield made
    made.close()


@contextmanager
def away(*servers):
    """Take servers away for the time of the block."""
    with ExitStack() as stack:
        for server in servers:
            server.kill()
            stack.callback(server.start)
        yield


def meet(pipeline, seconds, *servers):
    """Take servers away in the middle of the work; return how long the query needed afterwards."""
    pipeline.grow(20)
    with away(*servers):
        time.sleep(seconds)
        assert pipeline.query.isActive, forebay.unwrap(pipeline.query.exception())
    return pipeline.catch_up()


@pytest.mark.soak
def test_a_query_goes_on_after_all_of_its_servers_were_away(pipelines, mortal, postgres, s3):
    pipeline = pipelines(s3).start()
    pipeline.catch_up()
    meet(pipeline, 2, mortal, postgres, s3)
    assert pipeline.rows()


@pytest.mark.soak
@pytest.mark.parametrize("store", ["s3", "disk"])
def test_a_query_goes_on_after_each_outage(pipelines, mortal, postgres, store, request, record_property):
    state = request.getfixturevalue(store)
    pipeline = pipelines(state).start()
    pipeline.catch_up()
    outages = {"broker": [mortal], "PostgreSQL": [postgres], "s3": [state], "all": [mortal, postgres, state]}
    if store == "disk":
        outages = {"disk": [state], "all": [mortal, postgres, state]}
    for (kind, servers), seconds in itertools.product(outages.items(), SHORT):
        needed = meet(pipeline, seconds, *servers)
        record_property(
            "report", f"state on {store}: {kind} away for {seconds} s, the table is right {needed:.1f} s after"
        )
    assert pipeline.rows()


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["broker", "PostgreSQL", "s3", "disk"])
def test_after_the_time_out_the_error_is_typed_and_a_restart_goes_on(pipelines, mortal, postgres, kind, request):
    """In a micro-batch; the state is waited for two minutes, whatever the options of the source are."""
    state = request.getfixturevalue("disk" if kind == "disk" else "s3")
    pipeline = pipelines(state).start(timeout="5s", maxOffsetsPerTrigger=2)
    while not pipeline.rows():
        pipeline.grow(50)  # more than what is read: an idle query waits for its broker for any time
    with away({"broker": mortal, "PostgreSQL": postgres}.get(kind, state)):
        error = pipeline.failure()
    assert isinstance(error, RetriableError) and error.advice, error
    pipeline.start().catch_up()


WRONG = {
    "a malformed DSN": lambda pipeline: {"dsn": "postgres//test@x/y"},
    "an unknown database": lambda pipeline: {"dsn": f"{pipeline.dsn} dbname=nowhere"},
    "an unknown role": lambda pipeline: {"dsn": f"{pipeline.dsn} user=nobody"},
    "a wrong password": lambda pipeline: {"dsn": f"{pipeline.dsn} user=secret password=wrong"},
    "an unknown bucket": lambda pipeline: {"state_location": "s3://not-there/state"},
    "a wrong secret": lambda pipeline: {"state_storage": pipeline.state["state_storage"] | {"secret": "wrong"}},
    "an unknown key": lambda pipeline: {"state_storage": pipeline.state["state_storage"] | {"key": "wrong"}},
}


@pytest.mark.soak
@pytest.mark.parametrize("what", WRONG)
def test_what_a_person_must_correct_is_not_waited_for(pipelines, postgres, s3, what, caplog):
    postgres.demand_a_password("secret")
    pipeline = pipelines(s3)
    wrong = WRONG[what](pipeline)
    pipeline.dsn, right = wrong.pop("dsn", pipeline.dsn), pipeline.dsn
    good, pipeline.state = pipeline.state, pipeline.state | wrong
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of Spark, or before the query begins
        pipeline.start("1h").query.awaitTermination()
    assert isinstance(forebay.unwrap(caught.value), ConfigurationError)
    assert "again" not in caplog.text
    pipeline.dsn, pipeline.state = right, good
    pipeline.start().catch_up()


@pytest.mark.soak
@pytest.mark.timeout(60 * MINUTES + 1_800)
@pytest.mark.parametrize("store", ["s3", "disk"])
def test_random_outages(pipelines, mortal, postgres, store, request, record_property):
    """Any of them, also several at once, for half of the time that is waited at most."""
    state = request.getfixturevalue(store)
    pipeline, chance, met = pipelines(state).start(), random.Random(7), Counter()
    servers = {"broker": mortal, "PostgreSQL": postgres, store: state}
    end, waited = time.monotonic() + 30 * MINUTES, []
    while time.monotonic() < end:
        pipeline.grow(chance.randrange(100))
        kinds = chance.sample(list(servers), chance.choice([1, 1, 1, 2, 3]))
        seconds = chance.choice([0.2, 1, 3, 8, 20, 60])
        waited.append(meet(pipeline, seconds, *(servers[kind] for kind in kinds)))
        met.update(kinds)
    last = pipeline.query.lastProgress
    record_property(
        "report",
        f"state on {store}: {30 * MINUTES:.0f} s, {len(waited)} outages ({dict(met)}), {last['batchId'] + 1} "
        f"micro-batches, {pipeline.writer.records} records; the table is right at most {max(waited):.1f} s after",
    )
    assert pipeline.rows()
