# SPDX-License-Identifier: Apache-2.0
"""What planning makes of answers that come late, fail, change or contradict one another. No broker is needed."""

from __future__ import annotations

import pytest

from forebay.clock import ManualClock
from forebay.errors import ConfigurationError
from forebay.framework.microbatch.offsets.offset import Planned
from forebay.framework.microbatch.portions.admission import Admission, Limits
from forebay.sources.kafka import KafkaSource
from forebay.sources.kafka.client_options import translate
from forebay.sources.kafka.cluster import Cluster, Topic
from forebay.sources.kafka.enumerator import KafkaEnumerator
from forebay.sources.kafka.split import KafkaSplit, Place


class Brokers(Cluster):
    """Answers from memory: partitions by topic, their bounds, sizes and times."""

    def __init__(self):
        super().__init__(translate({"bootstrap.servers": "b:1"}), retries=0, interval=0)
        self.ids = {"t": "A"}
        self.bounds = {Place("t", 0): (0, 10), Place("t", 1): (0, 0)}
        self.sizes_of = {}
        self.asked = []

    def topics(self, names):
        found = {}
        for place in self.bounds:
            found.setdefault(place.topic, {})[place.partition] = 1
        return {name: Topic(self.ids[name], leaders) for name, leaders in found.items()}

    def offsets(self, specs, *, committed):
        return {place: self.bounds[place][0 if spec == -2 else 1] for place, spec in specs.items()}

    def sizes(self, topics):
        self.asked.append("sizes")
        return self.sizes_of


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def brokers(monkeypatch):
    made = Brokers()
    monkeypatch.setattr("forebay.sources.kafka.enumerator.Cluster", lambda *_, **__: made)
    monkeypatch.setattr("forebay.sources.kafka.enumerator._MISSED_PAUSE", 0)
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
    return {one.split.id: one.to for one in Admission("k", enumerator, Limits(byte_budget=budget)).admit(there)}


def test_a_partition_that_wakes_up_between_two_questions_for_sizes_is_asked_for_at_once(brokers, clock, look):
    enumerator = look()
    brokers.sizes_of = {Place("t", 0): 1000}
    assert enumerator.latest(splits(0, 0)) == {"t/0": 10, "t/1": 0}
    clock.advance(1)
    brokers.bounds[Place("t", 1)] = (0, 2000)
    brokers.sizes_of = {Place("t", 0): 1000, Place("t", 1): 4_000_000}
    taken = admitted(enumerator, splits(0, 0), 1 << 20)
    assert taken["t/0"] <= 10 and 400 <= taken["t/1"] <= 540
    assert len(brokers.asked) == 2
    enumerator.latest(splits(0, 0))
    assert len(brokers.asked) == 2, "what is known is good for a minute"


def test_a_budget_of_bytes_holds_by_a_guess_while_sizes_are_not_told(brokers, clock, look):
    enumerator = look()
    brokers.bounds = {Place("t", 0): (0, 10), Place("t", 1): (0, 2000)}
    taken = admitted(enumerator, splits(0, 0), 1 << 20)  # a broker is down
    assert 900 <= sum(taken.values()) <= 1024
    clock.advance(1)
    enumerator.latest(splits(0, 0))
    assert len(brokers.asked) == 1, "not again at once, also for partitions that were not asked for"


def test_what_is_not_told_of_a_partition_is_taken_from_the_others(brokers, look):
    enumerator = look()
    brokers.bounds = {Place("t", 0): (0, 10), Place("t", 1): (0, 2000)}
    brokers.sizes_of = {Place("t", 0): 40_960}
    enumerator.latest(splits(0, 0))
    part = splits(0, 0)[1].slice(0, 2000)
    assert (enumerator.size(part), enumerator.advance(part, byte_budget=40_960)) == (2000 * 4096, 10)


def test_a_right_to_ask_for_sizes_that_is_missing_is_told(brokers, look):
    brokers.bounds[Place("t", 1)] = (0, 2000)
    brokers.sizes_of = None
    with pytest.raises(ConfigurationError, match="maxBytesPerTrigger cannot be kept"):
        admitted(look(), splits(0, 0), 1 << 20)


@pytest.mark.parametrize(
    ("answer", "sizes"),
    [
        ([{"broker": 1, "log_dirs": []}], None),  # as brokers answer where the right is missing
        ([{"broker": 1, "log_dirs": [{"topics": []}]}], {}),
        ([], {}),
    ],
)
def test_a_missing_right_is_told_from_sizes_that_are_not_there(monkeypatch, answer, sizes):
    class Admin:
        def describe_log_dirs(self, topics):
            return answer

    cluster = Cluster(translate({"bootstrap.servers": "b:1"}), retries=0, interval=0)
    monkeypatch.setattr(cluster, "_connected", Admin)
    assert cluster.sizes(["t"]) == sizes
