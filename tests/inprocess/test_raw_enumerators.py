# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pickle
from dataclasses import dataclass

import pytest

import forebay
from forebay.errors import ContractError
from forebay.framework.inprocess import run
from forebay.framework.reading.source_reader import SourceReaderBase
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.split import Split


@dataclass(frozen=True)
class Half(forebay.SourceEvent):
    """A reader has delivered that much; or, to a reader, may go on."""

    subtask: int


class Talking(forebay.SplitEnumerator):
    """Gives each reader a second split on its event."""

    def __init__(self, context, splits):
        self.context = context
        self.left = [Split(split_id, 0) for split_id in splits]
        self.heard = []

    def handle_split_request(self, subtask, host):
        self._next(subtask)

    def handle_source_event(self, subtask, event):
        self.heard.append((subtask, event))
        self.context.send_event_to_reader(subtask, Half(subtask))
        self._next(subtask)

    def add_splits_back(self, splits, subtask):
        self.left = [*splits, *self.left]

    def snapshot_state(self, checkpoint_id):
        return [split.to_json() for split in self.left]

    def restore_state(self, state):
        self.left = [Split.from_json(split) for split in state]

    def _next(self, subtask):
        if self.left:
            self.context.assign_splits({subtask: [self.left.pop(0)]})
        else:
            self.context.signal_no_more_splits(subtask)


class TalkingReader(SourceReaderBase):
    """Requests splits by an event."""

    def __init__(self, source, context, reported):
        super().__init__(source, context, HostOptions())
        self.context = context
        self.reported = reported

    def on_splits_finished(self, splits):
        self.context.send_source_event(Half(self.context.subtask))

    def handle_source_event(self, event):
        self.reported.append(event)


def test_source_events_go_both_ways(world, source, one_thread, kit):
    """EVT-1, ENU-8, CTX-10: testEnumeratorReaderCommunication; splits are given by events alone."""
    made, reported = [], []

    def make(context):
        made.append(Talking(context, world.sizes))
        return made[0]

    world.make_enumerator = make
    world.make_reader = lambda context: TalkingReader(source, context, reported)
    rows = kit.rows_of(run(source, runtime=one_thread))
    assert sorted(rows) == world.everything()
    assert [subtask for subtask, _ in made[0].heard] == [event.subtask for _, event in made[0].heard]
    assert len(made[0].heard) == 3 and sorted(reported, key=str) == sorted(
        (event for _, event in made[0].heard), key=str
    )


def test_a_reader_that_expects_no_event_refuses_it(world, source, one_thread):
    """EVT-1: an unknown event is an error that names it."""

    class Chatty(Talking):
        def add_reader(self, subtask):
            self.context.send_event_to_reader(subtask, Half(subtask))

    world.make_enumerator = lambda context: Chatty(context, world.sizes)
    with pytest.raises(ContractError, match="Half") as caught:
        next(run(source, runtime=one_thread))
    assert caught.value.rule == "EVT-1"


def test_an_enumerator_that_expects_no_event_refuses_it(world, source, one_thread):
    """ENU-8: never handled partially."""
    world.make_reader = lambda context: TalkingReader(source, context, [])
    with pytest.raises(ContractError, match="Half") as caught:
        list(run(source, runtime=one_thread))
    assert caught.value.rule == "ENU-8"


def test_a_raw_enumerator_is_checkpointed_and_restored(world, kit, tmp_path):
    """ENU-5, ENU-6: snapshot of the enumerator + splits of readers = everything; none lost or twice."""
    world.make_enumerator = lambda context: Talking(context, world.sizes)
    reading = run(kit.source_over(world), parallelism=2, checkpoint=tmp_path, runtime=kit.OneThread())
    rows = kit.rows_of([next(reading), next(reading)])
    reading.checkpoint()
    reading._engine.close(orderly=False)
    world.make_enumerator = lambda context: Talking(context, [])
    again = run(kit.source_over(world), parallelism=1, checkpoint=tmp_path, runtime=kit.OneThread())
    rows = rows[:3] + kit.rows_of(again)
    assert sorted(rows) == world.everything()


def test_a_raw_enumerator_gets_the_splits_of_a_failed_reader_back(world, source, one_thread, kit):
    """ENU-3: before the replacement registers."""
    observed = []

    def before_fetch(split_id, position):
        if (split_id, position) == ("a", 3) and not observed:
            observed.append(1)
            raise OSError("gone")

    world.before_fetch = before_fetch
    world.make_enumerator = lambda context: Talking(context, world.sizes)
    assert sorted(kit.rows_of(run(source, runtime=one_thread))) == world.everything()
    assert observed


def test_a_raw_enumerator_may_stop_an_unbounded_run(world, source, one_thread, kit):
    """SRC-5: such a source may still choose to stop."""
    world.bounded = False
    world.sizes = {}
    world.make_enumerator = lambda context: Talking(context, [])
    assert list(run(source, parallelism=2, runtime=one_thread)) == []


def test_an_enumerator_that_keeps_itself_busy_starves_nobody(world, source, one_thread, kit):
    """CTX-8: one action of the coordinator, then one of the readers."""

    class Busy(Talking):
        def start(self):
            self.again()

        def again(self):
            self.context.run_in_coordinator_thread(self.again)

    world.make_enumerator = lambda context: Busy(context, world.sizes)
    reading = run(source, runtime=one_thread)
    rows = []
    for _ in range(10_000):
        reading._engine.ask()
        reading._engine.step()
        one_thread.turn()
        batch = reading._engine.take()
        if batch is not None:
            rows += kit.rows_of([batch])
        if len(rows) == 13:
            break
    assert sorted(rows) == world.everything()
    reading._engine.close(orderly=False)


class Looking(forebay.SplitEnumerator):
    """Finds splits that end, by asynchronous calls, and gives each reader one when it asks."""

    def __init__(self, context, world):
        self.context = context
        self.world = world
        self.known = set()
        self.left = []
        self.asking = []

    def start(self):
        self.context.call_async(lambda: dict(self.world.sizes), self.found, period=1.0)

    def found(self, sizes, error):
        self.left += [Split(split_id, 0, size) for split_id, size in sizes.items() if split_id not in self.known]
        self.known |= sizes.keys()
        self.assign()

    def handle_split_request(self, subtask, host):
        self.asking.append(subtask)
        self.context.call_async(lambda: None, lambda _result, _error: self.assign())  # the answer takes its time

    def assign(self):
        while self.left and self.asking:
            self.context.assign_splits({self.asking.pop(0): [self.left.pop(0)]})

    def add_splits_back(self, splits, subtask):
        self.left = [*splits, *self.left]

    def snapshot_state(self, checkpoint_id):
        return None


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("sizes", [{}, {"a": 8, "b": 1, "c": 5, "d": 3}])
def test_a_run_until_caught_up_asks_a_raw_enumerator_until_it_has_no_more(world, kit, sizes, parallelism):
    """Otherwise a run would end after the first of many jobs, and never without a job."""
    world.bounded, world.sizes = False, sizes
    world.make_enumerator = lambda context: Looking(context, world)
    reading = run(
        kit.source_over(world), parallelism=parallelism, until_caught_up=True, poll_timeout=60, runtime=kit.OneThread()
    )
    assert sorted(kit.rows_of(reading)) == world.everything()


class Progress(forebay.SourceEvent):
    """Without a decorator."""

    subtask: int
    rows: int = 0


def test_evt1_a_source_event_is_a_dataclass_without_a_decorator():
    """EVT-1: as splits and sources are; a decorator is allowed as well."""
    assert Progress(1, rows=2) == Progress(subtask=1, rows=2) != Progress(1)
    assert pickle.loads(pickle.dumps(Progress(1, 2))) == Progress(1, 2)
    assert len({Progress(1), Progress(1), Half(1)}) == 2

    class Own(forebay.SourceEvent):
        def __init__(self, text):
            self.words = text.split()

    class Quarter(Half):
        """Of a frozen one."""

    assert Own("a b").words == ["a", "b"]
    assert Quarter(3).subtask == 3
