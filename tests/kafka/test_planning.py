# SPDX-License-Identifier: Apache-2.0
"""Planning with late, failing, changing or contradictory answers of brokers. No broker is needed."""

from __future__ import annotations

import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from kafka.errors import (
    CoordinatorNotAvailableError,
    GroupAuthorizationFailedError,
    KafkaTimeoutError,
    NoError,
    UnknownTopicOrPartitionError,
)
from manual_clock import ManualClock

from forebay.errors import ConfigurationError, DataLossError, RetriableError
from forebay.framework.microbatch.admission import Admission, BatchLimits
from forebay.framework.microbatch.offset import Planned
from forebay.sources.kafka import KafkaSource
from forebay.sources.kafka.client.client_options import translate
from forebay.sources.kafka.client.cluster import KafkaCluster, Topic
from forebay.sources.kafka.enumerator import GroupProgress, KafkaEnumerator
from forebay.sources.kafka.options import Subscription
from forebay.sources.kafka.split import KafkaSplit, TopicPartition


class Brokers(KafkaCluster):
    """Answers from memory: partitions by topic, their bounds, sizes and times."""

    def __init__(self):
        super().__init__(translate({"bootstrap.servers": "b:1"}), retries=0, interval=0)
        self.ids = {"t": "A"}
        self.reported_ids = []
        self.bounds = {TopicPartition("t", 0): (0, 10), TopicPartition("t", 1): (0, 0)}
        self.sizes_of = {}
        self.asked = []
        self.committed = {}

    def topics(self, names):
        self.asked.append("topics")
        ids = {**self.ids, **({"t": self.reported_ids.pop(0)} if self.reported_ids else {})}
        found = {}
        for partition in self.bounds:
            found.setdefault(partition.topic, {})[partition.partition] = 1
        return {name: Topic(ids[name], leaders) for name, leaders in found.items()}

    def offsets(self, specs, *, committed):
        return {partition: self._offset(*self.bounds[partition], spec) for partition, spec in specs.items()}

    def _offset(self, first, last, spec):
        """Say -1 and -2 as brokers do; the record at an offset is of that time."""
        if spec < 0:
            return first if spec == -2 else last
        return max(first, spec) if spec < last else -1

    def sizes(self, topics):
        self.asked.append("sizes")
        return self.sizes_of

    def commit(self, group, splits, *, retries=0):
        self.committed |= {split.id: split.start for split in splits}


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def brokers(monkeypatch):
    made = Brokers()
    monkeypatch.setattr("forebay.sources.kafka.enumerator.KafkaCluster", lambda *_, **__: made)
    monkeypatch.setattr("forebay.sources.kafka.client.cluster._PAUSE", 0)
    return made


@pytest.fixture
def look(brokers, clock):
    def make(streaming=True, **options):
        given = {"subscribe": ["t"], "kafka": {"bootstrap.servers": "b:1"}} | options
        return KafkaEnumerator(KafkaSource(**given), clock, streaming=streaming)

    return make


def splits(*positions):
    return [KafkaSplit(id=f"t/{number}", position=at, topic_id="A") for number, at in enumerate(positions)]


def admitted(enumerator, open_splits, budget):
    ends = enumerator.latest(open_splits)
    there = [Planned(one, ends[one.id]) for one in open_splits]
    return {one.split.id: one.to for one in Admission("k", enumerator, BatchLimits(byte_budget=budget)).admit(there)}


def test_a_partition_with_first_records_gets_its_size_at_once(brokers, clock, look):
    enumerator = look()
    brokers.sizes_of = {TopicPartition("t", 0): 1000}
    assert enumerator.latest(splits(0, 0)) == {"t/0": 10, "t/1": 0}
    clock.advance(1)
    brokers.bounds[TopicPartition("t", 1)] = (0, 2000)
    brokers.sizes_of = {TopicPartition("t", 0): 1000, TopicPartition("t", 1): 4_000_000}
    taken = admitted(enumerator, splits(0, 0), 1 << 20)
    assert taken["t/0"] <= 10 and 400 <= taken["t/1"] <= 540
    assert brokers.asked.count("sizes") == 2
    enumerator.latest(splits(0, 0))
    assert brokers.asked.count("sizes") == 2, "what is known is good for a minute"


def test_a_byte_limit_uses_a_guess_while_sizes_are_unknown(brokers, clock, look):
    enumerator = look()
    brokers.bounds = {TopicPartition("t", 0): (0, 10), TopicPartition("t", 1): (0, 2000)}
    taken = admitted(enumerator, splits(0, 0), 1 << 20)  # a broker is down
    assert 900 <= sum(taken.values()) <= 1024
    clock.advance(1)
    enumerator.latest(splits(0, 0))
    assert brokers.asked.count("sizes") == 1, "not again at once, also for partitions that were not asked for"


def test_a_partition_without_a_size_uses_the_mean_of_the_others(brokers, look):
    enumerator = look()
    brokers.bounds = {TopicPartition("t", 0): (0, 10), TopicPartition("t", 1): (0, 2000)}
    brokers.sizes_of = {TopicPartition("t", 0): 40_960}
    enumerator.latest(splits(0, 0))
    part = splits(0, 0)[1].slice(0, 2000)
    assert (enumerator.size(part), enumerator.advance(part, byte_budget=40_960)) == (2000 * 4096, 10)


def test_a_missing_right_to_see_sizes_is_reported(brokers, look):
    brokers.bounds[TopicPartition("t", 1)] = (0, 2000)
    brokers.sizes_of = None
    with pytest.raises(ConfigurationError, match="does not support maxBytesPerTrigger"):
        admitted(look(), splits(0, 0), 1 << 20)


@pytest.mark.parametrize(
    ("answer", "sizes"),
    [
        ([{"broker": 1, "log_dirs": []}], None),  # as brokers answer where the right is missing
        ([{"broker": 1, "log_dirs": [{"topics": []}]}], {}),
        ([], {}),
    ],
)
def test_a_missing_right_differs_from_missing_sizes(monkeypatch, answer, sizes):
    class Admin:
        def describe_log_dirs(self, topics):
            return answer

    cluster = KafkaCluster(translate({"bootstrap.servers": "b:1"}), retries=0, interval=0)
    monkeypatch.setattr(cluster, "_connected", Admin)
    assert cluster.sizes(["t"]) == sizes


def test_a_complete_history_whose_first_records_are_gone_is_refused(brokers, look):
    """A change without the earlier ones of its row would be counted from the middle."""
    options = {"changelog_format": "debezium-json", "value_schema": "id long", "changelog_history": "complete"}
    enumerator = look(starting_offsets="earliest", **options)
    assert len(enumerator.discover({}, True).splits) == 2
    brokers.bounds[TopicPartition("t", 1)] = (7, 9)
    with pytest.raises(ConfigurationError, match="begins at the offset 7") as caught:
        enumerator.discover({}, True)
    assert (caught.value.split, caught.value.option) == ("t/1", "changelogHistory")


@pytest.mark.parametrize("option", ["ending_timestamp", "ending_offsets_by_timestamp"])
def test_a_stream_s_ending_time_holds_when_retention_has_removed_the_record_that_says_it(brokers, look, option):
    options = {option: 100 if option == "ending_timestamp" else '{"t":{"0":100,"1":100}}'}
    partition, other = TopicPartition("t", 0), TopicPartition("t", 1)
    brokers.bounds = {partition: (0, 50), other: (0, 10)}
    enumerator = look(starting_offsets="earliest", **options)
    first = enumerator.discover({}, True)
    assert first.state is None
    assert enumerator.latest(first.splits) == {"t/0": 50, "t/1": 10}
    brokers.bounds[partition] = (0, 200)
    state = enumerator.discover({one.id: one for one in first.splits}, False).state
    read = splits(100, 10)
    assert enumerator.latest(read) == {"t/0": 100, "t/1": 10}
    again = look(**options)
    again.restore_state(json.loads(json.dumps(state)))
    for one in (enumerator, again):
        for bounds in ((150, 200), (200, 200), (250, 300)):
            brokers.bounds[partition] = bounds
            assert one.latest(read)["t/0"] == 100, bounds
    assert again.discover({one.id: one for one in read}, False).state == state
    brokers.bounds = {other: (0, 10)}
    assert again.discover({"t/1": read[1]}, False).state is None, "what is gone is forgotten"


def test_a_run_that_ends_with_its_only_look_remembers_where_it_stops(brokers, look):
    brokers.bounds[TopicPartition("t", 0)] = (0, 200)
    state = look(starting_offsets="earliest", ending_timestamp=100).discover({}, True).state
    brokers.bounds[TopicPartition("t", 0)] = (150, 200)
    again = look(ending_timestamp=100)
    again.restore_state(state)
    assert again.latest(splits(100, 0)[:1]) == {"t/0": 100}
    later = look(ending_timestamp=170)
    later.restore_state(state)
    assert later.latest(splits(150, 0)[:1]) == {"t/0": 170}, "another time is looked up"
    for old in (None, {}, {"other": 1}):
        look(ending_timestamp=100).restore_state(old)
    for damaged in (
        {"limits": {"z": "?"}},
        {"limits": [1]},
        {"limits": {"1": 5}},
        {"limits": {"1": {"t": {"0": "x"}}}},
    ):
        with pytest.raises(ConfigurationError, match="damaged"):
            look(ending_timestamp=100).restore_state(damaged)


def test_progress_is_committed_beside_a_discovery(brokers, look):
    """In process they run on two threads."""
    brokers.bounds = {TopicPartition("t", number): (0, 1000) for number in range(50)}
    enumerator = look(commit_offsets=True, kafka={"bootstrap.servers": "b:1", "group.id": "g"})
    known = {split.id: split for split in enumerator.discover({}, True).splits}
    stop, interval = threading.Event(), sys.getswitchinterval()

    def discover():
        while not stop.is_set():
            enumerator.discover(known, False)

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(1) as pool:
            discovering = pool.submit(discover)
            try:
                for offset in range(200):
                    enumerator.committed(dict.fromkeys(known, offset))
            finally:
                stop.set()
            discovering.result()
    finally:
        sys.setswitchinterval(interval)
    assert brokers.committed == dict.fromkeys(known, 199)


class Group:
    """An admin client whose coordinator answers with one error after another, then well."""

    def __init__(self, *errors):
        self.errors, self.asked, self.kept, self.topic_id = list(errors), 0, {}, "A"

    def describe_topics(self, names):
        return [{"name": name, "topic_id": self.topic_id, "partitions": []} for name in names]

    def alter_group_offsets(self, group, offsets):
        self.asked += 1
        error = self.errors.pop(0) if self.errors else NoError
        if error is KafkaTimeoutError:
            raise error
        if error is NoError:
            self.kept |= {(one.topic, one.partition): at.offset for one, at in offsets.items()}
        return dict.fromkeys(offsets, error)

    def close(self):
        pass


def own_messages(caplog):
    """Return forebay's messages, without those of clients of other tests, which connect again in the background."""
    return [record.getMessage() for record in caplog.records if record.name.startswith("forebay")]


def reached(topic_id="A", **offsets):
    """Return splits at these offsets: `t0` is the partition 0 of the topic `t`."""
    return [KafkaSplit(id=f"t/{name[1:]}", position=at, topic_id=topic_id) for name, at in offsets.items()]


@pytest.fixture
def publishing(monkeypatch, clock):
    def make(group):
        monkeypatch.setattr("forebay.sources.kafka.client.cluster._COORDINATOR_PAUSE", 0)
        monkeypatch.setattr(KafkaCluster, "_connected", lambda self: group)
        return GroupProgress(translate({"bootstrap.servers": "b:1"}), "g", clock)

    return make


@pytest.mark.parametrize("error", [CoordinatorNotAvailableError, KafkaTimeoutError, GroupAuthorizationFailedError])
def test_a_failed_commit_is_retried_after_a_pause(publishing, clock, caplog, error):
    group = Group(NoError, *[error] * 1000)
    progress = publishing(group)
    progress.publish(reached(t0=5, t1=5))
    for n in range(3):
        before = group.asked
        progress.publish(reached(t0=6 + n))
        assert 1 <= group.asked - before <= 5, "one try, or a short wait for the coordinator"
        before = group.asked
        progress.publish(reached(t1=6 + n))
        clock.advance(29)
        progress.publish(reached(t0=7 + n))
        assert group.asked == before
        clock.advance(1)
    assert len(own_messages(caplog)) == 1
    assert "'g'" in caplog.text
    group.errors.clear()
    progress.publish(())
    assert group.kept == {("t", 0): 9, ("t", 1): 8}, "failed commits are repeated"
    before = group.asked
    progress.publish(reached(t0=9))
    assert group.asked == before, "nothing is new"


def test_a_deleted_partition_does_not_block_other_commits(publishing, clock, caplog, monkeypatch):
    group = Group()
    answers = {("t", 0): NoError, ("t", 1): UnknownTopicOrPartitionError}
    monkeypatch.setattr(group, "alter_group_offsets", lambda _, offsets: commits.append(offsets) or answered(offsets))
    commits: list[dict] = []

    def answered(offsets):
        return {one: answers[one.topic, one.partition] for one in offsets}

    progress = publishing(group)
    progress.publish(reached(t0=5, t1=5))
    progress.publish(reached(t0=6, t1=5))
    assert [{tuple(one): at.offset for one, at in asked.items()} for asked in commits] == [
        {("t", 0): 5, ("t", 1): 5},
        {("t", 0): 6},
    ]
    assert not own_messages(caplog)


def test_the_first_group_of_a_cluster_is_waited_for(publishing):
    group = Group(*[CoordinatorNotAvailableError] * 30)
    publishing(group).publish(reached(t0=5))
    assert group.kept == {("t", 0): 5}


@pytest.mark.parametrize("failing", [False, True])
def test_progress_in_a_topic_is_not_that_of_a_later_topic_of_its_name(publishing, clock, failing):
    """Also that of a failed commit, and the same offset counts again."""
    group = Group(*[GroupAuthorizationFailedError] * failing)
    progress = publishing(group)
    progress.publish(reached(t0=40))
    group.topic_id, group.kept = "B", {}  # brokers forget the offsets of a deleted topic
    clock.advance(30)
    progress.publish(reached(t0=50))
    assert group.kept == {}
    new = KafkaSplit(id="t/0:B", position=40, topic_id="B")
    progress.publish([new])
    assert group.kept == {("t", 0): 40}


def test_a_deleted_topic_that_comes_back_gets_its_progress_also_at_the_old_offset(publishing):
    """Its split has the id of the old one if a discovery saw that it was gone."""
    group = Group()
    progress = publishing(group)
    progress.publish(reached(t0=40))
    group.topic_id, group.kept = "B", {}
    progress.publish(reached("B", t0=40))
    assert group.kept == {("t", 0): 40}


def test_an_error_that_no_client_should_raise_does_not_stop_the_query_either(publishing, caplog, monkeypatch):
    group = Group()
    progress = publishing(group)
    monkeypatch.setattr(group, "alter_group_offsets", lambda *_: [].pop())
    progress.publish(reached(t0=40))
    assert "committing progress to the group 'g' failed; the query continues" in caplog.text


@pytest.mark.parametrize("strict", [True, False])
def test_a_topic_found_later_whose_first_records_are_gone_is_warned_of(brokers, look, caplog, strict):
    brokers.ids["t2"] = "Z"
    brokers.bounds |= {TopicPartition("t2", 0): (5, 10), TopicPartition("t2", 1): (0, 10)}
    known = {one.id: one for one in splits(7, 0)}
    enumerator = look(subscribe=["t", "t2"], fail_on_data_loss=strict)
    for _ in range(2):
        found = enumerator.discover(known, False).splits
        assert [(one.id, one.position) for one in found][2:] == [("t2/0", 5), ("t2/1", 0)]
    (warned,) = own_messages(caplog)
    assert "t2/0" in warned and "begins at offset 5" in warned


def by_id(*found):
    return {one.id: one for one in found}


def test_an_answer_with_an_earlier_topic_s_id_is_not_believed(brokers, look):
    """A broker with stale metadata still reports the deleted topic; the others report the new one."""
    enumerator = look(fail_on_data_loss=False)
    read = by_id(*(one.at(7) for one in splits(0, 0)))
    brokers.reported_ids = ["OLD", "OLD", "OLD"]
    assert by_id(*enumerator.discover(read, False).splits) == read
    planned = [one.slice(7, 9) for one in read.values()]
    brokers.reported_ids = ["OLD", "OLD", "OLD"]
    assert look().tasks(planned) is None


def test_a_topic_s_new_id_is_believed_once_it_is_repeated_and_the_old_one_never_again(brokers, look):
    enumerator = look(fail_on_data_loss=False)
    old = splits(7, 0)
    brokers.ids["t"] = "B"
    new = enumerator.discover(by_id(*old), False).splits
    assert [one.id for one in new] == ["t/0:B", "t/1:B"] and enumerator.vanished(old)
    assert brokers.asked.count("topics") == 4
    read = [one.at(9) for one in new]
    for known in (read, [*old, *read], old):
        brokers.reported_ids = ["A"] * 3
        assert [one.id for one in enumerator.discover(by_id(*known), False).splits] == ["t/0:B", "t/1:B"]
        brokers.reported_ids = ["A"] * 4
        with pytest.raises(RetriableError, match="the recreated topic 't' with its old topic id"):
            enumerator.discover(by_id(*known), False)
    brokers.asked.clear()
    enumerator.discover(by_id(*read), False)
    assert brokers.asked.count("topics") == 1, "what has not changed is not asked for again"


def test_a_planned_range_is_not_lost_by_one_answer(brokers, clock, look):
    enumerator = look()
    planned = [one.slice(0, 5) for one in splits(0)]
    brokers.ids["t"] = "B"
    with pytest.raises(DataLossError, match="the planned records no longer exist"):
        enumerator.tasks(planned)
    brokers.reported_ids = ["A"]
    clock.advance(5)
    assert enumerator.tasks([KafkaSplit(id="t/0:B", position=0, end=5, topic_id="B")]) is None
    brokers.reported_ids = ["A"] * 4
    clock.advance(5)
    with pytest.raises(DataLossError):
        enumerator.tasks([KafkaSplit(id="t/0:B", position=0, end=5, topic_id="B")])


def test_the_time_to_select_assigned_partitions_grows_with_their_number_only():
    count = 10_000
    subscription = Subscription.of((), None, json.dumps({"t": list(range(count))}))
    started = time.process_time()
    found = subscription.partitions_of("t", dict.fromkeys(range(1, count + 5), 0), first=False)
    assert time.process_time() - started < 0.5
    assert found == [TopicPartition("t", number) for number in range(1, count)]
