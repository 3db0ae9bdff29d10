# SPDX-License-Identifier: Apache-2.0
"""Planning against a real Apache Kafka: partitions, starts, ends, losses, sizes, group offsets."""

from __future__ import annotations

import time

import pytest
from kafka import KafkaProducer
from manual_clock import ManualClock

from forebay.errors import ConfigurationError, DataLossError, RetriableError
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.tasks.assign_tasks import plan_bounded
from forebay.sources.kafka import KafkaSource
from forebay.sources.kafka.client.cluster import KafkaCluster
from forebay.sources.kafka.enumerator import KafkaEnumerator


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def look(kafka, clock):
    made = []

    def make(streaming=True, **options):
        given = {"kafka.bootstrap.servers": kafka.address}
        given |= {name.replace("__", "."): str(value) for name, value in options.items()}
        made.append(KafkaEnumerator(KafkaSource.from_options(given), clock, streaming=streaming))
        return made[-1]

    yield make
    for one in made:
        one.close()


def bounds_of(found):
    return {split.id: (split.position, split.end) for split in found.splits}


def known(found):
    return {split.id: split for split in found.splits}


def test_a_new_stream_starts_at_the_latest_offsets_and_later_partitions_at_the_earliest(kafka, look):
    topic = kafka.topic(2)
    kafka.send(topic, range(3), 1)
    enumerator = look(subscribe=topic)
    first = enumerator.discover({}, True)
    assert bounds_of(first) == {f"{topic}/0": (0, None), f"{topic}/1": (3, None)}
    kafka.grow(topic, 4)
    kafka.send(topic, range(5), 3)
    later = enumerator.discover(known(first), False)
    assert bounds_of(later) == bounds_of(first) | {f"{topic}/2": (0, None), f"{topic}/3": (0, None)}
    assert enumerator.latest(later.splits)[f"{topic}/3"] == 5


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [(2, None), (0, None)]),  # the earliest: two records of partition 0 are gone
        ({"startingOffsets": "earliest"}, [(2, None), (0, None)]),
        ({"startingOffsets": '{"T":{"0":3,"1":-2}}', "endingOffsets": '{"T":{"0":5,"1":-1}}'}, [(3, 5), (0, None)]),
        ({"startingTimestamp": 1003}, [(3, None), (3, None)]),
        ({"startingOffsetsByTimestamp": '{"T":{"0":1000,"1":1004}}'}, [(2, None), (4, None)]),
        ({"endingTimestamp": 1004}, [(2, 4), (0, 4)]),
        ({"endingOffsetsByTimestamp": '{"T":{"0":1004,"1":9000}}'}, [(2, 4), (0, None)]),
    ],
)
def test_starts_and_ends_of_a_batch(kafka, look, options, expected):
    topic = kafka.topic(2)
    for number in range(6):
        kafka.send(topic, [number], 0, timestamp_ms=1000 + number)
        kafka.send(topic, [number], 1, timestamp_ms=1000 + number)
    kafka.lose(topic, 0, 2)
    options = {name: str(text).replace('"T"', f'"{topic}"') for name, text in options.items()}
    found = look(streaming=False, subscribe=topic, **options).discover({}, True)
    assert list(bounds_of(found).values()) == expected


def test_no_record_of_a_time_is_an_error_or_the_end(kafka, look):
    topic = kafka.topic()
    kafka.send(topic, range(2), timestamp_ms=1000)
    options = {"subscribe": topic, "startingTimestamp": 5000}
    with pytest.raises(
        ConfigurationError, match=f"{topic}/0 has no record at or after 5000 .1970-01-01T00:00:05"
    ) as caught:
        look(**options).discover({}, True)
    assert caught.value.option == "startingTimestamp"
    found = look(**options, startingOffsetsByTimestampStrategy="latest").discover({}, True)
    assert bounds_of(found) == {f"{topic}/0": (2, None)}


def test_offsets_beyond_the_records_are_refused(kafka, look):
    topic = kafka.topic()
    kafka.send(topic, range(4))
    kafka.lose(topic, 0, 2)

    def start(offset, **options):
        return look(subscribe=topic, startingOffsets=f'{{"{topic}":{{"0":{offset}}}}}', **options).discover({}, True)

    with pytest.raises(ConfigurationError, match="starts at 9, beyond the end of the partition at offset 4"):
        start(9)
    with pytest.raises(DataLossError, match="starts at the offset 1, but the first offset of the partition is 2"):
        start(1)
    assert bounds_of(start(1, failOnDataLoss="false")) == {f"{topic}/0": (2, None)}
    with pytest.raises(ConfigurationError, match="ends at 9, beyond the end of the partition at offset 4"):
        look(streaming=False, subscribe=topic, endingOffsets=f'{{"{topic}":{{"0":9}}}}').discover({}, True)


def test_a_stream_may_end_at_an_offset_or_a_time(kafka, look):
    topic = kafka.topic()
    kafka.send(topic, range(4), timestamp_ms=1000)
    by_offset = look(subscribe=topic, startingOffsets="earliest", endingOffsets=f'{{"{topic}":{{"0":9}}}}')
    assert bounds_of(by_offset.discover({}, True)) == {f"{topic}/0": (0, 9)}
    by_time = look(subscribe=topic, startingOffsets="earliest", endingTimestamp=2000)
    splits = by_time.discover({}, True).splits
    assert by_time.latest(splits) == {f"{topic}/0": 4}
    kafka.send(topic, range(4), timestamp_ms=3000)
    assert by_time.latest(splits) == {f"{topic}/0": 4}
    beyond = [split.at(6) for split in splits]
    assert by_time.latest(beyond) == {f"{topic}/0": 6}, "nothing new, and nothing cut off"


def test_topics_are_found_by_pattern_and_partitions_by_assign(kafka, look):
    prefix = kafka.name("pat")
    one, two = kafka.topic(name=f"{prefix}-a"), kafka.topic(2, name=f"{prefix}-b")
    enumerator = look(subscribePattern=f"{prefix}-[ab]")
    first = enumerator.discover({}, True)
    assert list(bounds_of(first)) == [f"{one}/0", f"{two}/0", f"{two}/1"]
    assert list(bounds_of(look(assign=f'{{"{two}":[1]}}').discover({}, True))) == [f"{two}/1"]
    kafka.delete(one)
    later = enumerator.discover(known(first), False)
    assert list(bounds_of(later)) == [f"{two}/0", f"{two}/1"]
    gone = [known(first)[f"{one}/0"]]
    with pytest.raises(DataLossError, match="its topic was deleted"):
        enumerator.vanished(gone)
    assert look(subscribePattern=f"{prefix}-[ab]", failOnDataLoss="false").vanished(gone)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"subscribe": "no-such-topic"}, "there is no topic 'no-such-topic'"),
        ({"assign": '{"no-such-topic":[0]}'}, "there is no topic 'no-such-topic'"),
        ({"subscribe": "T,no/such"}, "no/such"),
        ({"assign": '{"T":[0,7]}'}, "has no partition 7; it has 1 in all"),
    ],
)
def test_missing_topics_and_partitions_are_named(kafka, look, options, says):
    topic = kafka.topic()
    options = {name: text.replace('"T"', f'"{topic}"').replace("T,", f"{topic},") for name, text in options.items()}
    with pytest.raises(ConfigurationError, match=says):
        look(**options).discover({}, True)


def test_a_topic_created_again_is_another_topic(kafka, look):
    topic = kafka.topic()
    kafka.send(topic, range(3))
    enumerator = look(subscribe=topic, startingOffsets="earliest")
    first = enumerator.discover({}, True)
    kafka.delete(topic)
    kafka.topic(name=topic)
    kafka.send(topic, range(9))
    (recreated,) = enumerator.discover(known(first), False).splits
    assert (
        recreated.id.startswith(f"{topic}/0:") and recreated.id.endswith(recreated.topic_id) and recreated.position == 0
    )
    assert enumerator.latest([recreated]) == {recreated.id: 9}
    with pytest.raises(DataLossError, match="deleted and created again"):
        enumerator.vanished(first.splits)
    again = look(subscribe=topic, failOnDataLoss="false")
    assert again.discover(known(first), False).splits == [recreated] and again.vanished(first.splits)
    assert again.discover({recreated.id: recreated}, False).splits == [recreated]


def test_a_replay_does_not_read_a_topic_that_was_created_again(kafka, look):
    topic, other = kafka.topic(), kafka.topic()
    kafka.send(topic, range(3))
    kafka.send(other, range(3))
    options = {"subscribe": f"{topic},{other}", "startingOffsets": "earliest"}
    planned = [split.slice(0, 3) for split in look(**options).discover({}, True).splits]
    assert look(**options).tasks(planned) is None
    kafka.delete(topic)
    kafka.topic(name=topic)
    kafka.send(topic, range(100, 110))
    with pytest.raises(DataLossError, match="the planned records no longer exist"):
        look(**options).tasks(planned)
    for more in ({}, {"maxRecordsPerPartition": 2}):
        found = look(**options, **more, failOnDataLoss="false").tasks(planned)
        assert [one.left for task in found for one in task if one.id == f"{topic}/0"] == [0]
        assert sum(one.left for task in found for one in task) == 3


def test_a_topic_created_again_is_noticed_between_two_micro_batches(kafka, look, clock):
    """A run to a fixed target has no look in between."""
    topic = kafka.topic()
    kafka.send(topic, range(3))
    enumerator = look(subscribe=topic, startingOffsets="earliest")
    planned = [split.slice(0, 2) for split in enumerator.discover({}, True).splits]
    assert enumerator.tasks(planned) is None
    kafka.delete(topic)
    kafka.topic(name=topic)
    kafka.send(topic, range(100, 110))
    clock.advance(2)
    with pytest.raises(DataLossError, match="the planned records no longer exist"):
        enumerator.tasks([split.slice(2, 3) for split in planned])


def test_a_replay_asks_for_the_topics_until_it_is_answered(kafka, look, monkeypatch):
    topic = kafka.topic()
    kafka.send(topic, range(3))
    planned = [
        split.slice(0, 3) for split in look(subscribe=topic, startingOffsets="earliest").discover({}, True).splits
    ]
    kafka.delete(topic)
    kafka.topic(name=topic)
    enumerator = look(subscribe=topic)
    with monkeypatch.context() as patch:
        patch.setattr(enumerator._cluster, "topics", failing)
        with pytest.raises(RetriableError):
            enumerator.tasks(planned)
    with pytest.raises(DataLossError, match="the planned records no longer exist"):
        enumerator.tasks(planned)


def failing(names):
    raise RetriableError("no broker answers")


def test_stale_metadata_of_one_broker_is_asked_for_again(kafka, look, monkeypatch):
    topic = kafka.topic(2)
    enumerator = look(subscribe=topic, startingOffsets="earliest")
    first = enumerator.discover({}, True)
    ask, answers = enumerator._cluster.topics, []

    def late(names):
        answers.append(names)
        return ask(names) if len(answers) > 2 else {}

    monkeypatch.setattr(enumerator._cluster, "topics", late)
    assert enumerator.discover(known(first), False).splits == first.splits
    assert len(answers) == 3


def test_a_partition_that_was_assigned_and_is_gone_is_a_loss_and_no_wrong_option(kafka, look):
    topic = kafka.topic(3)
    options = {"assign": f'{{"{topic}":[0,1,2]}}', "startingOffsets": "earliest"}
    first = look(**options).discover({}, True)
    kafka.delete(topic)
    kafka.topic(2, name=topic)
    enumerator = look(**options, failOnDataLoss="false")
    found = enumerator.discover(known(first), False).splits
    assert sorted(split.id.partition(":")[0] for split in found) == [f"{topic}/0", f"{topic}/1"]
    assert enumerator.vanished(first.splits)


def test_an_open_transaction_before_the_position_is_no_loss(kafka, look):
    topic = kafka.topic()
    with KafkaProducer(bootstrap_servers=kafka.address, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for number in range(5):
            producer.send(topic, b"%d" % number, partition=0)
        producer.flush()
        enumerator = look(subscribe=topic, startingOffsets="earliest", kafka__isolation__level="read_committed")
        (split,) = enumerator.discover({}, True).splits
        assert enumerator.latest([split]) == {split.id: 0}
        assert enumerator.latest([split.at(4)]) == {split.id: 4}
        with pytest.raises(DataLossError, match="before the position 6"):
            enumerator.latest([split.at(6)])
        producer.abort_transaction()


def test_an_offset_of_spark_s_own_source_is_understood(kafka, look):
    topic = kafka.topic(2)
    enumerator = look(subscribe=topic)
    one, two = enumerator.adopt({topic: {"1": 4, "0": 7}})
    assert (one.id, one.position, two.id, two.position) == (f"{topic}/0", 7, f"{topic}/1", 4)
    assert one.topic_id == enumerator.discover({}, True).splits[0].topic_id
    for other in ({"logOffset": 3}, {topic: {"a": 1}}, {topic: {"0": "1"}}, {topic: 5}):
        assert enumerator.adopt(other) is None
    ends = {"endingOffsets": f'{{"{topic}":{{"0":9,"1":3}}}}'}
    assert [split.end for split in look(subscribe=topic, **ends).adopt({topic: {"1": 4, "0": 7}})] == [9, 4]


def test_an_offset_of_spark_s_own_source_for_a_topic_that_is_gone_is_a_loss(kafka, look):
    """Its id is unknown, so that a later topic of its name would be read from the old position."""
    topic = kafka.topic()
    offset = {topic: {"0": 0}, f"{topic}-gone": {"0": 7}}
    with pytest.raises(DataLossError, match="its topic was deleted") as caught:
        look(subscribe=topic).adopt(offset)
    assert caught.value.split == f"{topic}-gone/0"
    assert [split.id for split in look(subscribe=topic, failOnDataLoss="false").adopt(offset)] == [f"{topic}/0"]


@pytest.mark.parametrize("strict", ["true", "false"])
def test_one_stale_answer_is_not_believed_while_an_offset_of_spark_is_adopted(kafka, look, monkeypatch, strict):
    topic = kafka.topic()
    ask, answers = KafkaCluster.topics, []

    def topics(self, names):
        answers.append(ask(self, names) if answers else {})
        return answers[-1]

    monkeypatch.setattr(KafkaCluster, "topics", topics)
    (split,) = look(subscribe=topic, failOnDataLoss=strict).adopt({topic: {"0": 30}})
    assert (split.id, split.position) == (f"{topic}/0", 30)


@pytest.mark.parametrize(
    "offset",
    [{"t": {"0": -2}}, {"t": {"0": 10**30}}, {"../x": {"0": 1}}, {"t": {"99999999999": 1}}, {"t": {"0": True}}],
)
def test_what_is_no_offset_of_spark_is_not_adopted(kafka, look, offset):
    assert look(subscribe=kafka.topic()).adopt(offset) is None


def test_an_end_before_the_position_is_a_loss(kafka, look):
    topic = kafka.topic()
    kafka.send(topic, range(3))
    enumerator = look(subscribe=topic)
    read = [split.at(5) for split in enumerator.discover({}, True).splits]
    with pytest.raises(DataLossError, match="ends at the offset 3, before the position 5") as caught:
        enumerator.latest(read)
    assert (caught.value.split, caught.value.position) == (f"{topic}/0", "5")
    assert look(subscribe=topic, failOnDataLoss="false").latest(read) == {f"{topic}/0": 3}


def test_a_topic_deleted_while_it_is_read_is_a_loss_or_has_nothing_more(kafka, look):
    topic, other = kafka.topic(), kafka.topic()
    options = {"subscribe": f"{topic},{other}", "fetchOffset.retryIntervalMs": 1}
    strict, lenient = look(**options), look(**options, failOnDataLoss="false")
    splits = strict.discover({}, True).splits
    kafka.delete(topic)
    kafka.send(other, range(2))
    with pytest.raises(DataLossError, match="its topic was deleted"):
        strict.latest(splits)
    assert lenient.latest(splits) == {f"{topic}/0": 0, f"{other}/0": 2}


CHANGES = {"changelogFormat": "upsert-json", "keySchema": "id BIGINT", "valueSchema": "id BIGINT, n BIGINT"}


def test_new_partitions_of_a_changelog_with_a_key_end_the_query(kafka, look):
    """A19: changes of a key before and after have no order between them."""
    topic = kafka.topic(3)
    first = look(subscribe=topic, **CHANGES).discover({}, True)
    kafka.grow(topic, 5)
    with pytest.raises(ConfigurationError, match=f"'{topic}'.* 0, 1, 2 and the new partitions 3, 4") as caught:
        look(subscribe=topic, **CHANGES).discover(known(first), False)
    assert caught.value.option == "keyOrder"
    assert "new checkpoint and keyOrder=none" in str(caught.value)


def test_key_order_none_accepts_new_partitions_and_promises_no_order(kafka, look, caplog):
    topic = kafka.topic(3)
    enumerator = look(subscribe=topic, **CHANGES, keyOrder="none")
    first = enumerator.discover({}, True)
    kafka.grow(topic, 4)
    assert f"{topic}/3" in known(enumerator.discover(known(first), False))
    assert [record.message for record in caplog.records if record.name.startswith("forebay")] == []
    options = {"kafka.bootstrap.servers": "b:1", "subscribe": "t", **CHANGES}
    for order in ("partition", "none"):
        key = KafkaSource.from_options({**options, "keyOrder": order}).schema()[0]
        assert (b'"ordered"' in b"".join((key.metadata or {}).values())) == (order == "partition")


def test_new_partitions_are_read_where_no_order_of_keys_is_promised(kafka, look, caplog):
    """A19: positions order rows within a partition only, and two topics have no order anyway."""
    topic = kafka.topic(3)
    others = ({"subscribe": topic, "rowPositions": "true"}, {"subscribePattern": topic, **CHANGES})
    first = [look(**options).discover({}, True) for options in others]
    kafka.grow(topic, 4)
    for options, before in zip(others, first, strict=True):
        assert f"{topic}/3" in known(look(**options).discover(known(before), False))
    assert [record.message for record in caplog.records if record.name.startswith("forebay")] == []


def test_a_new_partition_that_lost_its_first_records_is_a_loss(kafka, look):
    topic = kafka.topic()
    first = look(subscribe=topic).discover({}, True)
    kafka.grow(topic, 2)
    kafka.send(topic, range(3), 1)
    kafka.lose(topic, 1, 2)
    with pytest.raises(DataLossError, match="begins at the offset 2, not at 0"):
        look(subscribe=topic).discover(known(first), False)
    later = look(subscribe=topic, failOnDataLoss="false").discover(known(first), False)
    assert bounds_of(later)[f"{topic}/1"] == (2, None)


def test_progress_is_published_to_the_group_and_a_query_may_start_there(kafka, look):
    topic = kafka.topic(2)
    kafka.send(topic, range(4), 0)
    group = {"kafka.group.id": kafka.name("group")}
    enumerator = look(subscribe=topic, commitOffsets="true", **group)
    enumerator.committed({f"{topic}/0": 3})  # waits for the id of the topic
    enumerator.discover({}, True)
    found = look(subscribe=topic, startingOffsets="committed", **group).discover({}, True)
    assert bounds_of(found) == {f"{topic}/0": (3, None), f"{topic}/1": (0, None)}


def test_sizes_and_budgets_are_estimated_from_sizes_on_disk(kafka, look):
    topic = kafka.topic()
    for _ in range(10):
        kafka.send(topic, ["x" * 1000] * 10)
    enumerator = look(streaming=False, subscribe=topic)
    (split,) = enumerator.discover({}, True).splits
    part = split.slice(0, 50)
    assert 25_000 <= enumerator.size(part) <= 100_000
    assert 5 <= enumerator.advance(part, byte_budget=10_000) <= 20
    assert enumerator.advance(part, rows=7) == 7 and enumerator.advance(part, rows=70) == 50
    assert [(one.position, one.end) for one in enumerator.slices(part, 2)] == [(0, 25), (25, 50)]
    assert enumerator.positions_at(10**18, [split]) == {split.id: 100}
    now = int(time.time() * 1e6)
    assert enumerator.positions_at(now - 3600_000_000, [split]) == {split.id: 0}


def test_tasks_are_cut_as_the_options_say(kafka):
    topic = kafka.topic(2)
    kafka.send(topic, range(100), 0)
    kafka.send(topic, range(10), 1)
    options = {"kafka.bootstrap.servers": kafka.address, "subscribe": topic}
    tasks = plan_bounded(KafkaSource.from_options({**options, "maxRecordsPerPartition": "30"}), HostOptions())
    assert [len(task) for task in tasks] == [1] * 5
    assert max(task[0].end - task[0].position for task in tasks) == 25
    tasks = plan_bounded(KafkaSource.from_options({**options, "minPartitions": "11"}), HostOptions())
    assert len(tasks) == 11
    assert len(plan_bounded(KafkaSource.from_options(options), HostOptions(), parallelism=2)) == 2


def test_an_unreachable_broker_is_named_with_the_probe_of_its_port(look, monkeypatch):
    monkeypatch.setattr("forebay.sources.kafka.client.client_options.CONNECT_TIMEOUT_MS", 500)
    enumerator = look(subscribe="t", kafka__bootstrap__servers="127.0.0.1:1,no.such.host.invalid:9092")
    with pytest.raises(
        RetriableError, match="no broker of 127.0.0.1:1, no.such.host.invalid:9092 can be reached"
    ) as caught:
        enumerator.discover({}, True)
    assert "Connection refused" in caught.value.message
    assert caught.value.option == "kafka.bootstrap.servers"


def test_tls_against_plaintext_is_reported(kafka, look, monkeypatch):
    monkeypatch.setattr("forebay.sources.kafka.client.client_options.CONNECT_TIMEOUT_MS", 500)
    with pytest.raises(RetriableError, match="TLS failed"):
        look(subscribe="t", kafka__security__protocol="SSL").discover({}, True)
