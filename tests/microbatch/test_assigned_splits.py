# SPDX-License-Identifier: Apache-2.0
"""A SplitEnumerator in a stream: its assigned splits are planned, and nothing is lost or duplicated."""

from __future__ import annotations

import json
import threading

import pyarrow as pa
import pytest
from manual_clock import ManualClock

from forebay.errors import ConfigurationError, ContractError, FatalError
from forebay.framework.enumerator import SourceEvent, SplitEnumerator
from forebay.framework.microbatch.stream_planner import open_stream
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import ThreadRuntime
from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay.framework.split_reader import Fetched, SplitReader
from forebay.framework.tasks.read_task import run_task

SIZES = {"a": 3, "b": 1, "c": 4, "d": 2, "e": 5}
SCHEMA = pa.schema({"split": pa.string(), "n": pa.int64()})


class Reads(SplitReader):
    """Every split in one fetch, up to its end or to its size."""

    def __init__(self):
        self.splits = []

    def add_splits(self, splits):
        self.splits.extend(splits)

    def fetch(self):
        found = []
        for split in self.splits:
            at, end = split.position or 0, SIZES[split.id] if split.end is None else split.end
            rows = pa.RecordBatch.from_pylist([{"split": split.id, "n": n} for n in range(at, end)], SCHEMA)
            found.append(Fetched(split.id, rows, end, finished=True))
        self.splits = []
        return found

    def wake_up(self):
        """Never blocks."""


class Raw(SplitEnumerator):
    """Assigns one split per request, and keeps the rest as its state."""

    def __init__(self, context, splits=tuple(SIZES)):
        self.context = context
        self.left = list(splits)
        self.log = []

    def restore_state(self, state):
        self.left = list(state)
        self.log.append(f"restore {''.join(state)}")

    def start(self):
        self.log.append("start")

    def add_reader(self, subtask):
        self.log.append(f"reader {subtask}")

    def split(self, split_id):
        return Split(split_id)

    def handle_split_request(self, subtask, host):
        self.log.append("request")
        if self.left:
            self.context.assign_splits({subtask: [self.split(self.left.pop(0))]})
        else:
            self.context.signal_no_more_splits(subtask)

    def add_splits_back(self, splits, subtask):
        raise AssertionError("the host owns what it was given")

    def handle_splits_finished(self, subtask, splits):
        self.log.append(f"finished {subtask} {''.join(split.id for split in splits)}")

    def snapshot_state(self, checkpoint_id):
        self.log.append(f"snapshot {checkpoint_id}")
        return list(self.left)

    def notify_checkpoint_complete(self, checkpoint_id):
        self.log.append(f"complete {checkpoint_id}")

    def close(self):
        self.log.append("close")


class Pushes(Raw):
    """Discovers in call_async, and assigns two splits at a time without requests."""

    def start(self):
        super().start()
        self.context.call_async(lambda: 2, self.found)

    def found(self, count, error):
        given, self.left = self.left[:count], self.left[count:]
        self.context.assign_splits({0: [self.split(one) for one in given]})
        if self.left:
            self.context.call_async(lambda: 2, self.found)
        else:
            self.context.signal_no_more_splits(0)

    def handle_split_request(self, subtask, host):
        self.log.append("request")


class Query:
    """One query through one or more planners; its offsets go through JSON, as in Spark's log."""

    def __init__(self, make=Raw, *, bounded=True, **options):
        self.enumerators = []
        enumerators, is_bounded = self.enumerators, bounded

        class Given(Source):
            name = "given"
            bounded = is_bounded

            def schema(self):
                return SCHEMA

            def create_enumerator(self, context):
                enumerators.append(make(context))
                return enumerators[-1]

            def create_split_reader(self, context):
                return Reads()

        self.source = Given()
        self.options = HostOptions(**options)
        self.runtime = ThreadRuntime()
        self.restart()
        self.offsets = [self.through_json(self.planner.initial())]

    def restart(self):
        self.planner = open_stream(self.source, self.options, parallelism=2, runtime=self.runtime)

    def through_json(self, offset):
        return json.loads(json.dumps(dict(offset)))

    @property
    def enumerator(self):
        return self.enumerators[-1]

    def plan(self):
        """Plan the next micro-batch; return whether there was new data."""
        end = self.planner.latest(self.offsets[-1])
        if end is self.offsets[-1]:
            return False
        self.offsets.append(self.through_json(end))
        return True

    def ids(self, n):
        """The splits that micro-batch `n` reads, by its offset."""
        tasks = self.planner.tasks(self.offsets[n], self.offsets[n + 1])
        return [split.id for task in tasks for split in task.slices]

    def read(self, n):
        return [
            (row["split"], row["n"])
            for task in self.planner.tasks(self.offsets[n], self.offsets[n + 1])
            for delivered in run_task(task)
            for row in delivered.batch.to_pylist()
        ]

    def run(self, turns=20):
        """Read until some turns bring nothing; return the rows of each micro-batch."""
        rows, idle = [], 0
        while idle < turns:
            if self.plan():
                rows.append(self.read(len(self.offsets) - 2))
                idle = 0
            else:
                idle += 1
        return rows


EVERYTHING = sorted((split, n) for split, size in SIZES.items() for n in range(size))


@pytest.mark.parametrize("make", [Raw, Pushes])
def test_everything_is_read_once(make):
    batches = Query(make).run(turns=200)
    assert sorted(row for rows in batches for row in rows) == EVERYTHING


def test_a_split_without_end_is_read_whole_and_is_over_then():
    query = Query(lambda context: Raw(context, ["a"]))
    assert query.plan() and query.read(0) == [("a", 0), ("a", 1), ("a", 2)]
    assert not query.plan()
    assert [entry[1] for entry in query.offsets[1]["splits"]] == [True]


def test_it_is_asked_only_while_the_micro_batch_has_room():
    query = Query(max_files_per_trigger=2)
    assert query.plan()
    assert query.ids(0) == ["a", "b"] and query.enumerator.log.count("request") == 2
    assert query.plan()
    assert query.ids(1) == ["c", "d"] and query.enumerator.log.count("request") == 4


def test_what_is_pushed_beyond_the_room_waits_in_the_offset_beside_the_state_of_the_same_call():
    class All(Raw):
        def add_reader(self, subtask):
            self.context.assign_splits({0: [Split(one) for one in self.left[:4]]})
            self.left = self.left[4:]

    query = Query(All, max_files_per_trigger=1)
    assert query.plan()
    assert query.ids(0) == ["a"]
    assert [entry[0] for entry in query.offsets[1]["splits"]] == ["a", "b", "c", "d"]
    assert query.offsets[1]["enum"] == {"state": ["e"]}
    assert "request" not in query.enumerator.log


@pytest.mark.parametrize("make", [Raw, Pushes])
@pytest.mark.parametrize("replayed", [False, True], ids=["after", "during"])
def test_a_restart_at_every_step_loses_and_doubles_nothing(make, replayed):
    for step in range(1, 7):
        query = Query(make, max_files_per_trigger=1)
        rows = []
        while len(query.offsets) <= step and query.plan():
            rows += query.read(len(query.offsets) - 2)
        query.restart()
        if replayed and len(query.offsets) > 1:
            last = len(query.offsets) - 2
            assert query.read(last) == query.read(last)
        rows += [row for batch in query.run(turns=200) for row in batch]
        assert sorted(rows) == EVERYTHING, step


def test_a_restored_enumerator_is_restored_then_started_and_gets_no_splits_back():
    query = Query(max_files_per_trigger=2)
    assert query.plan() and query.plan()
    query.restart()
    assert query.plan()
    assert query.enumerator.log[:3] == ["restore e", "start", "reader 0"]
    assert query.ids(2) == ["e"]


def test_finished_splits_and_complete_checkpoints_are_reported_before_the_next_request():
    query = Query(max_files_per_trigger=2)
    assert query.plan() and query.plan()
    log = query.enumerator.log
    assert log[-8:] == [
        *["request"] * 2, "snapshot 0", "finished 0 ab", "complete 0", *["request"] * 2, "snapshot 1",
    ]  # fmt: skip


def test_finished_splits_are_reported_again_after_a_restart_only_if_the_state_lacks_them():
    query = Query(max_files_per_trigger=2)
    assert query.plan() and query.plan()
    query.restart()
    assert query.plan()
    assert [line for line in query.enumerator.log if "fin" in line] == ["finished 0 cd"]


def test_the_last_finished_splits_are_reported_although_no_micro_batch_follows():
    query = Query()
    query.run(turns=1)
    assert query.enumerator.log[-2:] == ["finished 0 abcde", "complete 0"]


def test_what_finished_is_not_remembered_for_ever():
    query = Query(lambda context: Raw(context, []), bounded=True, max_files_per_trigger=1)
    assert query.plan()
    for count in range(12):
        query.enumerator.context.assign_splits({0: [Split("abcde"[count % 5])]})
        assert query.plan()
    assert len(query.offsets[-1].get("done", [])) <= 2


def test_no_more_splits_is_remembered_over_a_restart():
    query = Query()
    query.run(turns=2)
    assert query.enumerator.log.count("request") == 6
    assert query.offsets[-1]["enum"]["noMore"]
    query.restart()
    query.run(turns=2)
    assert "request" not in query.enumerator.log


def test_the_first_micro_batch_waits_for_what_start_set_off():
    release = threading.Event()

    class Slow(Pushes):
        def start(self):
            self.context.call_async(lambda: release.wait(30) and 2, self.found)
            threading.Timer(0.05, release.set).start()

    query = Query(Slow)
    assert query.plan()
    assert {"a", "b"} <= set(query.ids(0))


def test_an_available_now_run_waits_for_the_calls_that_follow_too():
    query = Query(Pushes)
    query.planner.prepare_available_now()
    assert query.plan()
    assert sorted(query.ids(0)) == list(SIZES)


def test_an_available_now_run_takes_all_there_is_within_its_limits():
    query = Query(max_files_per_trigger=2)
    query.planner.prepare_available_now()
    batches = query.run(turns=2)
    assert [len({split for split, _ in rows}) for rows in batches] == [2, 2, 1]


def test_an_available_now_run_reports_finished_splits_and_leaves_new_ones_to_the_next_run():
    class Follows(Raw):
        def handle_splits_finished(self, subtask, splits):
            super().handle_splits_finished(subtask, splits)
            if splits[0].id == "a":
                self.context.assign_splits({0: [Split("e")]})

        def handle_split_request(self, subtask, host):
            if self.left:
                super().handle_split_request(subtask, host)

    query = Query(lambda context: Follows(context, "abcd"), max_files_per_trigger=1)
    query.planner.prepare_available_now()
    assert [rows[0][0] for rows in query.run(turns=2)] == ["a", "b", "c", "d"]
    assert [line for line in query.enumerator.log if "fin" in line] == [f"finished 0 {one}" for one in "abcd"]
    assert len(query.offsets[-1].get("done", ())) <= 1
    query.restart()
    query.planner.prepare_available_now()
    assert query.plan() and query.ids(4) == ["e"]


def test_later_polls_run_queued_actions_and_wait_for_nothing():
    worked, release = threading.Event(), threading.Event()

    class Later(Raw):
        def handle_splits_finished(self, subtask, splits):
            if not worked.is_set():
                self.context.call_async(self.work, self.found)

        def work(self):
            worked.set()
            release.wait(30)
            return "e"

        def found(self, result, error):
            self.context.assign_splits({0: [Split(result)]})

    query = Query(lambda context: Later(context, ["a"]), bounded=True, max_files_per_trigger=1)
    assert query.plan()
    assert not query.plan()
    assert worked.wait(30) and not query.plan()
    release.set()
    while not query.plan():
        pass
    assert query.ids(1) == ["e"]


def test_a_periodic_discovery_goes_on_in_later_polls():
    class Periodic(Raw):
        def start(self):
            self.context.call_async(lambda: None, self.found, period=0.001)

        def found(self, result, error):
            if self.left:
                self.context.assign_splits({0: [Split(self.left.pop(0))]})

        def handle_split_request(self, subtask, host):
            """Assigns without requests."""

    query = Query(Periodic)
    while len(query.offsets) <= len(SIZES):
        query.plan()
    assert [query.ids(n) for n in range(len(SIZES))] == [["a"], ["b"], ["c"], ["d"], ["e"]]


class Scheduled(Raw):
    """Makes one asynchronous call when it starts, and logs its work and its results."""

    def __init__(self, context, how):
        super().__init__(context, ())
        self.how = how

    def start(self):
        self.results = 0
        self.works = []
        self.gate = threading.Event()
        self.gate.set()
        self.context.clock.advance(5)
        self.context.call_async(self.work, self.handle, **self.how)

    def work(self):
        self.works.append(self.results)
        self.gate.wait(30)

    def handle(self, result, error):
        self.results += 1


def scheduled(**how):
    """A stream over `Scheduled` with a manual clock, and a function that waits for the end of all work."""
    query = Query(lambda context: Scheduled(context, how))
    query.runtime = ThreadRuntime(ManualClock())
    query.restart()
    assert query.plan()

    def finish_work():
        query.enumerator.gate.set()
        for thread in threading.enumerate():
            if thread.name.startswith("forebay-given-async-"):
                thread.join(30)

    return query, finish_work


def test_a_periodic_call_starts_again_only_when_its_last_result_is_handled():
    query, finish_work = scheduled(period=0.5)
    enumerator, clock = query.enumerator, query.runtime.clock
    assert enumerator.results == 1
    enumerator.gate.clear()
    clock.advance(0.5)
    query.plan()
    finish_work()  # the result comes after the poll, and waits for the next one
    for _ in range(2):
        clock.advance(0.5)
        query.plan()
        finish_work()
    query.plan()
    assert enumerator.works == [0, 1, 2]


def test_a_delay_counts_from_the_call_not_from_the_begin_of_its_poll():
    query, finish_work = scheduled(delay=3)
    for seconds, works in ((0, 0), (2, 0), (1, 1)):
        query.runtime.clock.advance(seconds)
        query.plan()
        finish_work()
        assert len(query.enumerator.works) == works


def test_a_request_that_finds_nothing_is_answered_later_and_not_repeated():
    class Remembers(Raw):
        def handle_split_request(self, subtask, host):
            self.log.append("request")

    query = Query(Remembers)
    query.run(turns=5)
    assert query.enumerator.log.count("request") == 1
    query.enumerator.context.assign_splits({0: [Split("b")]})
    assert query.plan() and query.ids(1) == ["b"]
    assert query.enumerator.log.count("request") == 2


def test_splits_may_be_assigned_from_another_thread():
    class Remembers(Raw):
        def handle_split_request(self, subtask, host):
            """Assigns in another call."""

    query = Query(Remembers)
    assert query.plan()
    thread = threading.Thread(target=lambda: query.enumerator.context.assign_splits({0: [Split("c")]}))
    thread.start()
    thread.join()
    assert query.plan() and query.ids(1) == ["c"]


def test_an_unbounded_source_reads_splits_with_ends_as_they_come():
    class EndedSplits(Raw):
        def split(self, split_id):
            return Split(split_id, 0, SIZES[split_id])

    query = Query(EndedSplits, bounded=False, max_files_per_trigger=2)
    assert sorted(row for rows in query.run(turns=3) for row in rows) == EVERYTHING


def test_a_split_without_end_of_an_unbounded_source_is_refused_by_name():
    query = Query(bounded=False)
    with pytest.raises(ConfigurationError, match="the current end of this split is unknown") as caught:
        query.plan()
    assert caught.value.split == "a"


def test_an_id_that_is_given_out_already_is_refused():
    query = Query(lambda context: Raw(context, ["a", "b", "a"]))
    with pytest.raises(ContractError, match="two splits have the id") as caught:
        query.plan()
    assert (caught.value.split, caught.value.rule) == ("a", "SPL-1")


def test_a_source_event_is_refused_by_name():
    class NewBoundary(SourceEvent):
        pass

    class Sends(Raw):
        def add_reader(self, subtask):
            self.context.send_event_to_reader(subtask, NewBoundary())

    with pytest.raises(ConfigurationError, match="NewBoundary"):
        Query(Sends).plan()


def test_a_state_that_is_not_json_is_refused():
    class Strange(Raw):
        def snapshot_state(self, checkpoint_id):
            return {"left": set(self.left)}

    with pytest.raises(ContractError, match="cannot be written as JSON") as caught:
        Query(Strange).plan()
    assert caught.value.rule == "ENU-5"


@pytest.mark.parametrize("method", ["start", "add_reader", "handle_split_request", "snapshot_state"])
def test_a_foreign_error_says_which_call_failed(method):
    def make(context):
        enumerator = Raw(context)

        def fail(*_args):
            raise ZeroDivisionError("by zero")

        setattr(enumerator, method, fail)
        return enumerator

    with pytest.raises(FatalError, match=rf"{method}\(\) failed with ZeroDivisionError") as caught:
        Query(make).plan()
    assert caught.value.source == "given"


def test_a_call_that_never_answers_is_an_error_in_bounded_time():
    release = threading.Event()

    class Silent(Raw):
        def start(self):
            self.context.call_async(lambda: release.wait(60), lambda result, error: None)

    with pytest.raises(FatalError, match=r"call_async\(\) returned no result") as caught:
        Query(lambda context: Silent(context, []), planning_timeout="1s").plan()
    release.set()
    assert caught.value.rule == "ENU-2"


def test_an_enumerator_that_gives_splits_for_ever_does_not_stop_an_available_now_run_for_ever():
    class Endless(Raw):
        count = 0

        def handle_split_request(self, subtask, host):
            self.count += 1
            self.context.assign_splits({0: [Split(str(self.count))]})

    query = Query(Endless, planning_timeout="100ms")
    query.planner.prepare_available_now()
    with pytest.raises(FatalError, match="did not stop assigning"):
        query.plan()


def test_an_enumerator_that_takes_long_in_a_later_poll_goes_on_in_the_next_one():
    clock = ManualClock()

    class Slow(Raw):
        def handle_split_request(self, subtask, host):
            clock.advance(0.3)
            if self.left:
                super().handle_split_request(subtask, host)

    query = Query(lambda context: Slow(context, ""))
    query.runtime = ThreadRuntime(clock)
    query.restart()
    assert query.plan() and not query.plan()
    ids = [str(number) for number in range(100)]
    query.enumerator.left = ids[1:]
    query.enumerator.context.assign_splits({0: [Split(ids[0])]})
    found = []
    while query.plan():
        found.append(query.ids(len(query.offsets) - 2))
    assert sorted(one for part in found for one in part) == sorted(ids)
    assert len(found) > 2, "one poll, of 10 s, gives a part"


def test_an_enumerator_that_keeps_itself_busy_does_not_stop_the_stream():
    class Busy(Raw):
        def start(self):
            self.again()

        def again(self):
            self.context.run_in_coordinator_thread(self.again)

    assert sorted(row for rows in Query(Busy).run(turns=1) for row in rows) == EVERYTHING


def test_going_back_to_an_earlier_offset_makes_a_new_enumerator():
    query = Query(max_files_per_trigger=2)
    assert query.plan() and query.plan() and query.plan()
    del query.offsets[2:]
    assert query.plan()
    assert query.enumerators[0].log[-1] == "close"
    assert query.enumerator.log[:3] == ["restore cde", "start", "reader 0"]
    assert query.ids(1) == ["c", "d"]


def test_closing_closes_the_enumerator():
    query = Query()
    assert query.plan()
    query.planner.close()
    assert query.enumerator.log[-1] == "close"
