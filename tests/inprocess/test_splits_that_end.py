# SPDX-License-Identifier: Apache-2.0
"""SR-4: `caught_up` never finishes a split. Both hosts and `check` refuse a split that is read once and can grow."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import ClassVar

import pytest

import forebay
from forebay.errors import ContractError
from forebay.framework.arrow.row_packer import Batch
from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.microbatch.stream_planner import open_stream
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.simple import SimpleSource
from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay.framework.split_reader import Fetched, SplitReader
from forebay.framework.tasks.read_task import run_task
from forebay.testkit import ConformanceError, check
from forebay.testkit.scripted import COUNTING_SCHEMA, counting_batch

OPTIONS = HostOptions(close_timeout="5s", poll_interval="20ms", retries=0)


class Segment(Split):
    """Says that it is complete."""

    @property
    def ends_itself(self):
        return True


class Segments(DiscoveryEnumerator):
    def __init__(self, source):
        self.source = source

    def discover(self, known, first):
        return Discovered([self.source.split_class(id="segment-1", end=self.source.own_end)])


class Ends(Segments):
    def latest(self, splits):
        return {split.id: self.source.written[0] for split in splits}


class Reader(SplitReader):
    """Reports `caught_up` at the last record that is there, as a segment that is still written needs it."""

    def __init__(self, source):
        self.source, self.splits, self.woken = source, {}, threading.Event()

    def add_splits(self, splits):
        self.splits |= {split.id: split for split in splits}

    def fetch(self):
        (split_id, split), *_ = self.splits.items()
        at = split.position or 0
        stop = min(self.source.written[0], self.source.written[0] if split.end is None else split.end)
        if at == split.end:
            del self.splits[split_id]
            return [Fetched(split_id, finished=True)]
        if at < stop:
            self.splits[split_id] = split.at(stop)
            return [Fetched(split_id, counting_batch(split_id, at, stop), stop)]
        if self.source.seals:
            del self.splits[split_id]
            return [Fetched(split_id, finished=True)]
        self.woken.wait(0.05)
        self.woken.clear()
        return [Fetched(split_id, caught_up=True)]

    def wake_up(self):
        self.woken.set()


class RollingLog(Source):
    """Ten records are there, and more are written later."""

    bounded = False
    split_class: ClassVar[type[Split]] = Segment
    written: ClassVar[list[int]] = [10]
    own_end: int | None = None
    seals: bool = False
    enumerator: ClassVar[type[Segments]] = Segments

    def schema(self):
        return COUNTING_SCHEMA

    def create_enumerator(self, context):
        return type(self).enumerator(self)

    def create_split_reader(self, context):
        return Reader(self)


class RollingLogWithLatest(RollingLog):
    enumerator = Ends


class Growing(RollingLog):
    """Its splits have an end of their own, at record 100, which is not written yet."""

    split_class: ClassVar[type[Split]] = Split
    own_end: int | None = 100


class SimpleSegments(SimpleSource):
    bounded = False
    split_class = Segment

    def schema(self):
        return COUNTING_SCHEMA

    def splits(self):
        return [Segment(id="segment-1")]

    def read(self, split):
        for n in range(split.position or 0, 10):
            yield Batch([(split.id, n)], n + 1)


def on_spark(source):
    """Read one micro-batch as Spark does; return its number of rows."""
    with closing(open_stream(source, OPTIONS, parallelism=1)) as planner:
        start = planner.initial()
        end = planner.latest(start)
        return sum(part.batch.num_rows for task in planner.tasks(start, end) for part in run_task(task))


def in_process(source):
    return forebay.run(source, until_caught_up=True, options=OPTIONS).to_table().num_rows


HOSTS = {"Spark": on_spark, "in process": in_process}


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("kind", [RollingLog, SimpleSegments])
def test_sr4_a_split_that_ends_itself_and_is_only_caught_up_is_refused_by_both_hosts(host, kind):
    """SR-4: as `finished` it would lose what is written later."""
    with pytest.raises(ContractError, match="`caught_up` for a split that `ends_itself`") as caught:
        HOSTS[host](kind())
    assert (caught.value.rule, caught.value.split) == ("SR-4", "segment-1")


@pytest.mark.parametrize("host", HOSTS)
def test_sr4_a_split_that_ends_itself_and_is_finished_is_read_by_both_hosts(host):
    assert HOSTS[host](RollingLog(seals=True)) == 10


@pytest.mark.soak(but=["RollingLogWithLatest"])
@pytest.mark.parametrize("kind", [RollingLog, RollingLogWithLatest, SimpleSegments, Growing])
def test_check_refuses_a_split_that_is_read_once_and_can_grow(kind):
    with pytest.raises(ConformanceError) as caught:
        check(kind(), seconds=10)
    first = str(caught.value).splitlines()[0]
    assert " breaks SR-4: " in first or " breaks DIS-1: " in first, first


def test_dis1_an_end_from_latest_for_a_split_that_ends_itself_is_refused_by_the_planner():
    """DIS-1: the split would be finished at that end."""
    with pytest.raises(ContractError, match="for a split that `ends_itself`") as caught:
        on_spark(RollingLogWithLatest())
    assert (caught.value.rule, caught.value.split) == ("DIS-1", "segment-1")


def test_sr4_a_split_that_is_caught_up_before_the_end_of_its_own_is_refused_on_spark():
    """SR-4: in process the run waits for the rest."""
    with pytest.raises(ContractError, match="before the end 100 of the split's own") as caught:
        on_spark(Growing())
    assert (caught.value.rule, caught.value.split) == ("SR-4", "segment-1")
    Growing.written[0] = 100
    try:
        assert on_spark(Growing()) == 100
    finally:
        Growing.written[0] = 10
