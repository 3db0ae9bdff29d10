# SPDX-License-Identifier: Apache-2.0
"""The embedded broker: it is real, keeps its data over a restart, says why it does not start, and ends for sure."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from forebay.errors import ConfigurationError, FatalError
from forebay.testkit import kafka_jars
from forebay.testkit.kafka_broker import KafkaBroker
from forebay.testkit.processes import alive, session_of

DOOMED = """
import time
from forebay.testkit.kafka_broker import KafkaBroker
broker = KafkaBroker()
broker.start()
print(broker._process.pid, broker._home, flush=True)
time.sleep(600)
"""


def test_what_is_written_survives_a_restart_and_a_crash(refusing):
    with KafkaBroker() as broker:
        address = broker.address
        broker.create_topic("kept", 2)
        broker.add_partitions("kept", 3)
        for stop in (broker.stop, broker.kill):
            with KafkaProducer(bootstrap_servers=address) as producer:
                producer.send("kept", b"v", partition=2).get(30)
            stop()
            broker.start()
            assert broker.address == address
        with KafkaConsumer(bootstrap_servers=address, group_id=None) as consumer:
            assert consumer.partitions_for_topic("kept") == {0, 1, 2}
            assert consumer.end_offsets([TopicPartition("kept", 2)]) == {TopicPartition("kept", 2): 2}
        home, process = broker._home, broker._process
        assert home is not None and process is not None
    assert not home.exists() and not session_of(process.pid)


def test_the_broker_dies_with_the_process_that_started_it():
    with subprocess.Popen([sys.executable, "-c", DOOMED], stdout=subprocess.PIPE, text=True) as doomed:
        assert doomed.stdout is not None
        leader, _, home = doomed.stdout.readline().strip().partition(" ")
        below = session_of(int(leader))
        assert len(below) >= 2  # the guard, and Java
        os.kill(doomed.pid, signal.SIGKILL)
    _gone(below)
    assert not os.path.exists(home)


def _gone(pids, patience=20.0):
    deadline = time.monotonic() + patience
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline, f"{[pid for pid in pids if alive(pid)]} live on"
        time.sleep(0.02)


def test_a_broker_that_does_not_start_says_why():
    broker = KafkaBroker({"log.retention.hours": "some"})
    with pytest.raises(FatalError, match=r"(?s)did not start.*log.retention.hours"):
        broker.start()
    with pytest.raises(FatalError, match="no address"):
        _ = broker.address


def test_without_java_it_says_what_to_install(monkeypatch):
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(ConfigurationError, match="Java 17"), KafkaBroker():
        raise AssertionError


def test_the_jars_are_kept_where_the_user_says(monkeypatch, tmp_path):
    monkeypatch.setenv("FOREBAY_CACHE", str(tmp_path))
    (tmp_path / f"kafka-{kafka_jars.VERSION}").mkdir()
    assert kafka_jars.jars() == tmp_path / f"kafka-{kafka_jars.VERSION}"
    monkeypatch.delenv("FOREBAY_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert str(kafka_jars.cache()) == "/elsewhere/forebay"
