# SPDX-License-Identifier: Apache-2.0
"""The embedded broker: it is real, keeps its data over a restart, says why it does not start, and ends for sure."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from forebay.errors import ConfigurationError, FatalError
from forebay.testkit import kafka_broker
from forebay.testkit.kafka_broker import VERSION, KafkaBroker, cache, jars
from forebay.testkit.processes import alive, session_of

DOOMED = """
import time
from forebay.testkit.kafka_broker import KafkaBroker
broker = KafkaBroker()
broker.start()
print(broker._process.pid, broker._home, flush=True)
time.sleep(600)
"""


class Released(KafkaBroker):
    """Somebody leaves its port alone once it has said that it is taken."""

    held: socket.socket | None = None

    def _wait(self):
        try:
            super()._wait()
        except FatalError:
            assert self.held is not None
            self.held.close()
            raise


@pytest.mark.soak
def test_records_survive_a_crash_and_a_restart_and_the_port_too_if_it_was_taken_meanwhile(refusing):
    with Released() as broker:
        address = broker.address
        broker.create_topic("kept", 2)
        broker.add_partitions("kept", 3)
        for stop in (broker.stop, broker.kill):
            with KafkaProducer(bootstrap_servers=address) as producer:
                producer.send("kept", b"v", partition=2).get(30)
            stop()
            if stop == broker.stop:
                broker.held = held = socket.socket()
                _bind(held, int(address.rpartition(":")[2]))
                broker.start()
                assert held.fileno() == -1 and "BindException" in broker.log
            else:
                broker.start()
            assert broker.address == address
        with KafkaConsumer(bootstrap_servers=address, group_id=None) as consumer:
            assert consumer.partitions_for_topic("kept") == {0, 1, 2}
            assert consumer.end_offsets([TopicPartition("kept", 2)]) == {TopicPartition("kept", 2): 2}
        home, process = broker._home, broker._process
        assert home is not None and process is not None
    assert not home.exists() and not session_of(process.pid)


def _bind(taking, port, patience=120.0):
    """Bind, once nothing of the broker's last connections is left."""
    deadline = time.monotonic() + patience
    while True:
        try:
            taking.bind(("127.0.0.1", port))
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        else:
            return


@pytest.mark.soak
def test_the_broker_dies_with_the_process_that_started_it():
    with subprocess.Popen([sys.executable, "-c", DOOMED], stdout=subprocess.PIPE, text=True) as doomed:
        assert doomed.stdout is not None
        leader, _, home = doomed.stdout.readline().strip().partition(" ")
        below = session_of(int(leader))
        assert len(below) >= 2  # the guard, and Java
        os.kill(doomed.pid, signal.SIGKILL)
    _gone(below)
    assert not os.path.exists(home)


def _gone(pids, patience=120.0):
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


@pytest.mark.soak
def test_other_ports_are_chosen_where_one_was_taken_meanwhile(monkeypatch):
    """Another process was quicker, on the port of a listener of the user's own."""
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,MORE:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
    }
    chosen, choose = [], kafka_broker._free_ports
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))

        def ports(count):
            chosen.append(choose(count) if chosen else (*choose(count - 1), held.getsockname()[1]))
            return chosen[-1]

        monkeypatch.setattr(kafka_broker, "_free_ports", ports)
        with KafkaBroker(settings, listeners=["MORE"]) as broker:
            assert len(chosen) >= 2
            assert [broker.address, broker.address_of("MORE")] == [f"127.0.0.1:{chosen[-1][at]}" for at in (0, 2)]
            with KafkaConsumer(bootstrap_servers=broker.address_of("MORE"), group_id=None) as consumer:
                assert consumer.topics() == set()
            with pytest.raises(ConfigurationError, match=r"no listener 'LESS'; it has: MORE"):
                broker.address_of("LESS")


def test_without_java_the_error_names_what_to_install(monkeypatch):
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(ConfigurationError, match="Java 17"), KafkaBroker():
        raise AssertionError


def test_the_jars_are_kept_where_the_user_says(monkeypatch, tmp_path):
    monkeypatch.setenv("FOREBAY_CACHE", str(tmp_path))
    (tmp_path / f"kafka-{VERSION}").mkdir()
    assert jars() == tmp_path / f"kafka-{VERSION}"
    monkeypatch.delenv("FOREBAY_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert str(cache()) == "/elsewhere/forebay"


@pytest.mark.soak
def test_processes_that_need_the_same_jars_download_them_one_after_the_other(tmp_path):
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    ivy = home / "bin" / "java"
    ivy.write_text(
        f"""#!/bin/sh
# Fails while another one runs, as Ivy does on a shared cache.
mkdir {tmp_path}/running || exit 1
sleep 0.3
for last; do :; done
mkdir -p lib && touch lib/one-1.jar && echo ran >> {tmp_path}/runs
rmdir {tmp_path}/running
"""
    )
    ivy.chmod(0o755)
    code = "from forebay.testkit.kafka_broker import *; print(fetched('one', [Module('org', 'one', '1')]))"
    environment = {**os.environ, "FOREBAY_CACHE": str(tmp_path / "cache"), "JAVA_HOME": str(home)}
    runs = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    printed = {run.communicate(timeout=60)[0].strip() for run in runs}
    assert printed == {str(tmp_path / "cache" / "one")}
    assert (tmp_path / "runs").read_text() == "ran\n"
