# SPDX-License-Identifier: Apache-2.0
"""`forebay kafka lag` on a real broker: of a checkpoint and of a group, in words and for machines."""

from __future__ import annotations

import json

import pytest
from kafka import KafkaProducer

from forebay.cli import main
from forebay.framework.microbatch.stream_planner import open_stream
from forebay.framework.runtime.host_options import HostOptions
from forebay.sources.kafka import KafkaSource
from forebay.sources.kafka.client.client_options import translate
from forebay.sources.kafka.client.cluster import KafkaCluster
from forebay.sources.kafka.split import KafkaSplit

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1704067200000,"conf":{}}'


@pytest.fixture
def run_lag(capsys):
    def run(*arguments):
        code = main(["kafka", "lag", *arguments])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


@pytest.fixture
def checkpoint(kafka, tmp_path):
    """Plans a micro-batch, and writes the checkpoint as Spark does: committed, or only planned."""

    def make(*topics, rows, done=True):
        kept = KafkaSource(subscribe=topics, starting_offsets="earliest", kafka={"bootstrap.servers": kafka.address})
        planner = open_stream(kept, HostOptions(max_rows_per_trigger=rows), parallelism=1)
        try:
            offset = json.dumps(dict(planner.latest(planner.initial())))
        finally:
            planner.close()
        for name, text in {"offsets": f"v1\n{METADATA}\n{offset}", "commits": "v1\n{}"}.items():
            (tmp_path / name).mkdir(exist_ok=True)
            if name == "offsets" or done:
                (tmp_path / name / "0").write_text(text)
        return str(tmp_path)

    return make


@pytest.fixture
def orders(kafka):
    topic = kafka.topic(2)
    kafka.send(topic, range(3000), partition=0)
    kafka.send(topic, range(10), partition=1)
    return topic


def commit(broker, group, topic, offsets):
    """Commit as a query with `commitOffsets` does; a new broker makes its topic of offsets first."""
    cluster = KafkaCluster(translate({"bootstrap.servers": broker.address}), retries=3, interval=0.1)
    try:
        cluster.commit(group, [KafkaSplit(id=f"{topic}/{number}", position=at) for number, at in offsets.items()])
    finally:
        cluster.close()


def test_the_lag_of_a_checkpoint_is_a_table_with_totals(run_lag, kafka, orders, checkpoint):
    directory = checkpoint(orders, rows=1000)
    code, shown, said = run_lag("--checkpoint", directory, "-b", kafka.address)
    assert (code, said) == (0, "")
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in shown.splitlines() if "│" in line]
    assert shown.startswith(f"checkpoint {directory}, brokers {kafka.address}\n")
    assert cells[0] == ["topic", "partition", "position", "end", "lag"]
    (_, number, position, end, lag), second, total = cells[1:]
    assert (number, end) == ("0", "3,000") and int(position.replace(",", "")) + int(lag.replace(",", "")) == 3000
    assert second[1] == "1"
    assert total == ["total", "2 partitions", "", "", "2,010"]


def test_a_planned_micro_batch_does_not_count_as_read(run_lag, kafka, orders, checkpoint):
    directory = checkpoint(orders, rows=1000, done=False)
    _, shown, _ = run_lag("--checkpoint", directory, "-b", kafka.address, "--json")
    assert json.loads(shown)["lag"] == 3010


def test_the_lag_of_a_group_for_machines(run_lag, kafka, orders):
    group = kafka.name("group")
    commit(kafka, group, orders, {0: 2500})
    code, shown, _ = run_lag("--group", group, "-o", f"kafka.bootstrap.servers={kafka.address}", "--json")
    assert code == 0
    (line,) = shown.splitlines()
    found = json.loads(line)
    assert (found["group"], found["lag"]) == (group, 500)
    assert found["partitions"] == [
        {"topic": orders, "partition": 0, "position": 2500, "end": 3000, "lag": 500, "note": ""}
    ]
    assert found["notes"] == [f"{orders}: nothing is committed yet of 1 more partitions (1)"]


def test_what_an_open_transaction_holds_back_is_no_lag_of_read_committed(run_lag, kafka):
    topic, group = kafka.topic(), kafka.name("group")
    kafka.send(topic, range(3))
    commit(kafka, group, topic, {0: 1})
    with KafkaProducer(bootstrap_servers=kafka.address, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"open", partition=0)
        producer.flush()
        for isolation, lag in {"read_committed": 2, "read_uncommitted": 3}.items():
            asked = ["--group", group, "-b", kafka.address, "-o", f"kafka.isolation.level={isolation}", "--json"]
            assert json.loads(run_lag(*asked)[1])["lag"] == lag
        producer.abort_transaction()


def test_no_such_group_and_too_much_lag_have_exit_codes(run_lag, kafka, orders):
    code, shown, said = run_lag("--group", "nobody", "-b", kafka.address)
    assert (code, shown) == (1, "")
    assert "there is no such group" in said
    group = kafka.name("group")
    commit(kafka, group, orders, {0: 2500, 1: 10})
    assert run_lag("--group", group, "-b", kafka.address, "--max-lag", "500")[0] == 0
    code, shown, said = run_lag("--group", group, "-b", kafka.address, "--max-lag", "499")
    assert code == 3 and "2,500" in shown
    assert said == "forebay: the total lag is 500, above --max-lag 499\n"


def test_a_lag_that_is_not_known_is_no_small_one(run_lag, kafka, orders):
    group = kafka.name("group")
    commit(kafka, group, orders, {0: 3000, 1: 11})
    code, shown, said = run_lag("--group", group, "-b", kafka.address, "--max-lag", "5")
    assert (code, "?" in shown) == (3, True)
    assert said.startswith(f"forebay: the lag of {orders}/1 is unknown: the position is beyond the end")


def test_both_may_be_asked_for(run_lag, kafka, orders, checkpoint):
    group = kafka.name("group")
    commit(kafka, group, orders, {0: 3000, 1: 10})
    code, shown, _ = run_lag("--checkpoint", checkpoint(orders, rows=10), "--group", group, "-b", kafka.address)
    assert code == 0 and shown.index("checkpoint ") < shown.index(f"group {group}")


def test_problems_of_partitions_are_noted(run_lag, kafka, orders):
    gone, short = kafka.topic(), kafka.topic()
    group = kafka.name("group")
    commit(kafka, group, orders, {0: 100, 1: 10})
    commit(kafka, group, gone, {0: 5})
    commit(kafka, group, short, {0: 7})
    kafka.lose(orders, 0, before=200)
    kafka.delete(gone)
    _, shown, _ = run_lag("--group", group, "-b", kafka.address, "--json")
    notes = {(one["topic"], one["partition"]): (one["lag"], one["note"]) for one in json.loads(shown)["partitions"]}
    assert notes.pop((orders, 0)) == (2900, "100 offsets no longer exist: the partition begins at 200")
    assert notes.pop((orders, 1)) == (0, "")
    beyond = "the position is beyond the end: the partition was truncated, or its topic was recreated"
    assert notes.pop((short, 0)) == (None, beyond)
    assert notes in ({}, {(gone, 0): (None, "it no longer exists")})  # the broker forgets offsets of deleted topics
    _, table, _ = run_lag("--group", group, "-b", kafka.address)
    assert "│ note" in table and "?" in table and "begins at 200" in table


def test_all_of_a_recreated_topic_counts_as_lag(run_lag, kafka, checkpoint):
    topic = kafka.topic()
    kafka.send(topic, range(10))
    directory = checkpoint(topic, rows=1000)
    kafka.delete(topic)
    kafka.topic(name=topic)
    kafka.send(topic, range(12))
    _, shown, _ = run_lag("--checkpoint", directory, "-b", kafka.address, "--json")
    (one,) = json.loads(shown)["partitions"]
    assert (one["position"], one["end"], one["lag"]) == (10, 12, 12)
    assert one["note"] == "the position belongs to an earlier topic of this name"
    assert run_lag("--checkpoint", directory, "-b", kafka.address, "--max-lag", "11")[0] == 3


def test_watching_looks_again_until_it_is_interrupted(run_lag, kafka, orders, monkeypatch):
    group = kafka.name("group")
    commit(kafka, group, orders, {1: 10})
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt
        kafka.send(orders, ["more"], partition=1)

    monkeypatch.setattr("forebay.cli.kafka_lag.time", type("Clock", (), {"sleep": staticmethod(pause)}))
    code, shown, _ = run_lag("--group", group, "-b", kafka.address, "--watch", "7", "--json")
    assert (code, pauses) == (0, [7, 7, 7])
    assert [json.loads(line)["lag"] for line in shown.splitlines()] == [0, 1, 2]


@pytest.mark.soak
def test_watching_continues_while_the_broker_is_down(run_lag, mortal, capsys, monkeypatch, refusing):
    shown, said = [], []
    connecting = "forebay.sources.kafka.client.client_options.CONNECT_TIMEOUT_MS"
    mortal.create_topic("watched")
    commit(mortal, "g", "watched", {0: 0})

    def away():
        monkeypatch.setattr(connecting, 2000)
        mortal.stop()

    def back():
        monkeypatch.setattr(connecting, 30_000)
        mortal.start()

    steps = [away, back]

    def pause(_seconds):
        now = capsys.readouterr()
        shown.append(now.out)
        said.append(now.err)
        if steps:
            steps.pop(0)()
        elif shown[-1] or len(shown) > 20:  # a broker that is just back may be slow to answer
            raise KeyboardInterrupt

    monkeypatch.setattr("forebay.cli.kafka_lag.time", type("Clock", (), {"sleep": staticmethod(pause)}))
    address = mortal.address
    short_timeouts = ["-o", "kafka.request.timeout.ms=2000"]
    code, _, _ = run_lag("--group", "g", "-b", address, *short_timeouts, "--watch", "1", "--json")
    assert code == 0
    assert [json.loads(line)["lag"] for line in "".join(shown).splitlines()] == [0, 0]
    assert said[1].startswith("forebay: ") and address in said[1] and not shown[1]


@pytest.mark.soak
def test_a_login_by_options_shows_the_lag_and_never_the_password(run_lag, mortal, tmp_path, refusing):
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    mortal.create_topic("guarded")
    commit(mortal, "login", "guarded", {0: 0})

    def ask(password):
        secret = tmp_path / "jaas"
        secret.write_text(f'{module} required username="alice" password="{password}";')
        options = {
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": f"file:{secret}",
            "kafka.default.api.timeout.ms": "3000",
            "fetchOffset.numRetries": "0",
        }
        given = [text for name, value in options.items() for text in ("-o", f"{name}={value}")]
        return run_lag("--group", "login", "-b", mortal.address_of("LOGIN"), *given)

    code, shown, said = ask("open sesame")
    assert (code, said) == (0, "") and "guarded" in shown
    code, shown, said = ask("close-sesame")
    assert (code, shown) == (1, "")
    assert mortal.address_of("LOGIN") in said and "sesame" not in said


@pytest.mark.parametrize(
    ("split", "position", "text"),
    [
        *((split, 5, "is no topic/partition") for split in ("t", "t/", "t/x", "/1", "t/٣", "t/9999999999")),
        *(("t/0", position, "is no offset") for position in (-5, 10**30)),
    ],
)
def test_a_checkpoint_with_what_is_no_partition_or_no_offset_is_damaged(run_lag, tmp_path, split, position, text):
    offset = {"v": 1, "source": "forebay_kafka", "n": 0, "id": "a", "splits": [[split, 2**63 - 1, position]]}
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text(f"v1\n{METADATA}\n{json.dumps(offset)}")
    code, shown, said = run_lag("--checkpoint", str(tmp_path), "-b", "127.0.0.1:1")
    assert (code, shown) == (1, "")
    assert "is damaged" in said and text in said and "restore the checkpoint" in said


def test_offsets_that_are_nested_too_deeply_are_no_position(run_lag, tmp_path):
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text(f"v1\n{METADATA}\n{'[' * 200_000}")
    code, _, said = run_lag("--checkpoint", str(tmp_path), "-b", "127.0.0.1:1")
    assert code == 1 and "has no position of forebay_kafka" in said


def test_a_port_that_is_none_is_refused_and_not_shown(run_lag):
    code, _, said = run_lag("--group", "g", "-b", "h:secret-1")
    assert code == 1 and "kafka.bootstrap.servers" in said and "secret-1" not in said
