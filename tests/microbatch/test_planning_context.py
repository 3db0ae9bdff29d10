# SPDX-License-Identifier: Apache-2.0
"""A SplitEnumerator with one virtual reader."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from forebay.errors import ConfigurationError, ContractError, FatalError
from forebay.framework.enumerator import SourceEvent, SplitEnumerator
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay.framework.tasks.assign_tasks import plan_bounded


class Raw(SplitEnumerator):
    """Assigns one split per request."""

    def __init__(self, context, splits=("a", "b", "c")):
        self.context = context
        self.splits = [Split(one) for one in splits]
        self.log = []

    def start(self):
        self.log.append("start")

    def add_reader(self, subtask):
        self.log.append(f"reader {subtask}")

    def handle_split_request(self, subtask, host):
        self.log.append("request")
        if self.splits:
            self.context.assign_splits({subtask: [self.splits.pop(0)]})
        else:
            self.context.signal_no_more_splits(subtask)

    def add_splits_back(self, splits, subtask):
        raise AssertionError

    def snapshot_state(self, checkpoint_id):
        return None

    def close(self):
        self.log.append("close")


def plan(make, *, bounded=True, **options):
    made = []

    class Given(Source):
        name = "given"

        @property
        def bounded(self):
            return bounded

        def schema(self):
            return pa.schema({"n": pa.int64()})

        def create_enumerator(self, context):
            made.append(make(context))
            return made[0]

        def create_split_reader(self, context):
            raise NotImplementedError

    tasks = plan_bounded(Given(), HostOptions(**options), parallelism=4)
    return sorted(one.id for task in tasks for one in task), made[0]


def test_the_enumerator_is_asked_until_it_signals_the_end():
    ids, enumerator = plan(Raw)
    assert ids == ["a", "b", "c"]
    assert enumerator.log == ["start", "reader 0", *["request"] * 4, "close"]


def test_pushed_splits_are_planned_without_a_request():
    class Push(Raw):
        def add_reader(self, subtask):
            self.context.assign_splits({subtask: self.splits})
            self.context.signal_no_more_splits(subtask)

        def handle_split_request(self, subtask, host):
            raise AssertionError("pushed, and then asked")

    assert plan(Push)[0] == ["a", "b", "c"]


def test_the_reader_is_one_of_one_and_registered_before_it_asks():
    class Looks(Raw):
        def start(self):
            self.log.append(dict(self.context.registered_readers()))

        def handle_split_request(self, subtask, host):
            self.log.append((dict(self.context.registered_readers()), self.context.current_parallelism()))
            self.context.signal_no_more_splits(subtask)

    _, enumerator = plan(Looks)
    assert enumerator.log[0] == {}
    assert ({0: None}, 1) in enumerator.log


def test_splits_found_by_an_async_call_are_planned_and_its_handler_runs_on_the_planning_thread():
    class Discovers(Raw):
        def start(self):
            self.threads = [threading.current_thread()]
            self.context.call_async(self.discover, self.found, delay=0.01)

        def discover(self):
            self.threads.append(threading.current_thread())
            return ["x", "y"]

        def found(self, result, error):
            self.threads.append(threading.current_thread())
            self.context.assign_splits({0: [Split(one) for one in result]})
            self.context.signal_no_more_splits(0)

        def handle_split_request(self, subtask, host):
            """Ignores requests: it assigns once discovery is done."""

    ids, enumerator = plan(Discovers)
    assert ids == ["x", "y"]
    planning, work, handler = enumerator.threads
    assert planning is handler
    assert work is not planning


def test_a_periodic_call_goes_on_after_an_error():
    class Retries(Raw):
        tries = 0
        assigned = False

        def start(self):
            self.context.call_async(self.discover, self.found, period=0.01)

        def discover(self):
            self.tries += 1
            if self.tries < 3:
                raise OSError("not yet")
            return "x"

        def found(self, result, error):
            if error is None and not self.assigned:  # the call may have run again meanwhile
                self.assigned = True
                self.context.assign_splits({0: [Split(result)]})
                self.context.signal_no_more_splits(0)

        def handle_split_request(self, subtask, host):
            """Waits for discovery."""

    assert plan(Retries)[0] == ["x"]


def test_an_enumerator_that_never_signals_the_end_is_an_error_in_bounded_time():
    class Silent(Raw):
        def handle_split_request(self, subtask, host):
            """Never answers."""

    with pytest.raises(FatalError, match=r"did not call signal_no_more_splits\(0\) within") as caught:
        plan(Silent, planning_timeout="50ms")
    assert (caught.value.source, caught.value.rule) == ("given", "ENU-2")


def test_a_source_event_is_refused_by_name():
    class NewBoundary(SourceEvent):
        pass

    class Sends(Raw):
        def add_reader(self, subtask):
            self.context.send_event_to_reader(subtask, NewBoundary())

    with pytest.raises(ConfigurationError, match="NewBoundary") as caught:
        plan(Sends)
    assert caught.value.rule == "EVT-1"


def test_an_assignment_to_another_reader_plans_nothing():
    class Wrong(Raw):
        def handle_split_request(self, subtask, host):
            self.context.assign_splits({0: [Split("a")], 1: [Split("b")]})

    with pytest.raises(ContractError, match="reader 1") as caught:
        plan(Wrong)
    assert caught.value.rule == "CTX-2"


def test_a_repeated_split_id_is_refused():
    with pytest.raises(ContractError, match="two splits have the id") as caught:
        plan(lambda context: Raw(context, ["a", "b", "a"]))
    assert (caught.value.split, caught.value.rule) == ("a", "SPL-1")


@pytest.mark.parametrize("method", ["start", "add_reader", "handle_split_request", "close"])
def test_a_foreign_error_says_where_and_the_enumerator_is_closed(method):
    log = []

    class Broken(Raw):
        def close(self):
            log.append("closed")

    def fail(*_args):
        log.append("closed")
        raise ZeroDivisionError("by zero")

    def make(context):
        enumerator = Broken(context)
        setattr(enumerator, method, fail)
        return enumerator

    with pytest.raises(FatalError, match=rf"{method}\(\) failed with ZeroDivisionError: by zero") as caught:
        plan(make)
    assert caught.value.source == "given"
    assert "closed" in log


def test_work_still_running_at_the_end_is_dropped():
    release = threading.Event()

    class Slow(Raw):
        def start(self):
            self.context.call_async(lambda: release.wait(60), self.late)

        def late(self, result, error):
            raise AssertionError("the handler ran after the end")

    ids, _ = plan(Slow)
    release.set()
    assert ids == ["a", "b", "c"]


@pytest.mark.parametrize("how", ["remembers", "periodic", "delayed"])
def test_a_bounded_read_of_an_unbounded_raw_source_fails_at_once(how):
    """A stream's enumerator never signals, so planning ends once all its calls have returned."""

    class Endless(Raw):
        def start(self):
            if how == "periodic":
                self.context.call_async(lambda: None, lambda _result, _error: None, period=3600.0)
            if how == "delayed":
                self.context.call_async(lambda: self.log.append("late"), lambda _result, _error: None, delay=0.05)

        def handle_split_request(self, subtask, host):
            if self.splits:
                super().handle_split_request(subtask, host)

    with pytest.raises(ConfigurationError, match="an unbounded source cannot be read once") as caught:
        plan(Endless, bounded=False, planning_timeout="1h")
    assert caught.value.source == "given"
    assert "spark.readStream" in caught.value.advice


def test_an_unbounded_raw_source_that_signals_in_a_bounded_read_is_read():
    class Once(Raw):
        def start(self):
            self.context.call_async(lambda: None, lambda _result, _error: self.go(), delay=0.01)
            self.ready = False

        def go(self):
            self.ready = True
            super().handle_split_request(0, None)

        def handle_split_request(self, subtask, host):
            if self.ready:
                super().handle_split_request(subtask, host)

    assert plan(Once, bounded=False)[0] == ["a", "b", "c"]
