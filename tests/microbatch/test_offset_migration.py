# SPDX-License-Identifier: Apache-2.0
"""A stream that starts from the checkpoint of another source."""

from __future__ import annotations

import pyarrow as pa
import pytest
from forebay_simulator.inline import InlineRuntime

from forebay.errors import ConfigurationError
from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.microbatch.stream_planner import open_stream
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.source import Source
from forebay.framework.split import Split

OLD = {"a": 3}


class Logs(Source):
    """Two logs of ten rows; `b` starts at its end if it is there from the start."""

    @property
    def bounded(self):
        return False

    def schema(self):
        return pa.schema({"n": pa.int64()})

    def create_enumerator(self, context):
        return LogsEnumerator()

    def create_split_reader(self, context):
        raise NotImplementedError


class LogsEnumerator(DiscoveryEnumerator):
    """Understands `{log: position}`."""

    def discover(self, known, first):
        new = [Split(log, 10 if first else 0) for log in "ab" if log not in known]
        return Discovered([*known.values(), *new])

    def latest(self, splits):
        return {split.id: 10 for split in splits}

    def adopt(self, offset):
        return [Split(log, at) for log, at in offset.items()] if set(offset) <= {"a", "b"} else None


def planner():
    return open_stream(Logs(), HostOptions(), parallelism=1, runtime=InlineRuntime())


def read(planner, start, end):
    return sorted((one.id, one.position, one.end) for task in planner.tasks(start, end) for one in task.slices)


def test_it_continues_from_the_other_source_and_later_discoveries_are_not_first_ones():
    first = planner()
    end = first.latest(OLD)
    assert read(first, OLD, end) == [("a", 3, 10), ("b", 0, 10)]
    assert end["n"] == 0 and end["source"] == "logs"
    again = planner()
    assert again.latest(end) == end
    assert read(again, end, end) == []


def test_an_offset_that_is_not_planned_yet_may_be_adopted_again():
    one = planner()
    assert [read(one, OLD, one.latest(OLD))[0] for _ in range(2)] == [("a", 3, 10)] * 2


def test_an_unfinished_micro_batch_of_the_other_source_is_refused():
    with pytest.raises(ConfigurationError, match="planned by another source") as caught:
        planner().tasks({"a": 1}, OLD)
    assert "run the query once with the old source" in caught.value.advice
    planner().commit(OLD)


def test_an_offset_that_is_not_adopted_is_refused():
    with pytest.raises(ConfigurationError, match="was not written by forebay"):
        planner().latest({"logOffset": 3})
