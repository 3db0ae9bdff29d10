# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay.errors import ContractError, FatalError, RetriableError
from forebay.framework.enumerator import SourceEvent
from forebay.framework.inprocess.engine import SnapshotError
from forebay.framework.runtime.runtime import ThreadRuntime
from forebay.framework.split import Split


class Ping(SourceEvent):
    pass


def failing(error):
    def fail(*_args):
        raise error

    return fail


def test_everything_the_enumerator_sees_runs_in_order_in_steps(stage_of_recorder):
    """ENU-1: queued from any thread, run one by one; start is the first."""
    stage, event = stage_of_recorder(), Ping()
    coordinator = stage.coordinator
    for action in (
        stage.begin,
        lambda: stage.register("here"),
        coordinator.request,
        lambda: coordinator.handle_source_event(event),
    ):
        coordinator.run_in_coordinator_thread(action)
    assert stage.journal == []
    assert coordinator.run_next()
    assert stage.journal == [("start",)]
    assert coordinator.run_next()
    assert stage.journal[1:] == [("add_reader", 0)]
    stage.run()
    assert stage.journal[2:] == [("handle_split_request", 0, "here"), ("handle_source_event", 0, event)]


def test_a_request_of_a_reader_that_failed_is_skipped(recorded):
    """ENU-2: its replacement requests a split again."""
    recorded.register()
    recorded.coordinator.run_in_coordinator_thread(recorded.request)
    recorded.coordinator.reader_failed([])
    recorded.run()
    assert recorded.journal[1:] == [("add_reader", 0), ("add_splits_back", [], 0)]


@pytest.mark.parametrize(
    "use",
    [
        lambda c: c.restore({}),
        lambda c: c.begin(),
        lambda c: c.register(None, None),
        lambda c: c.handle_source_event(Ping()),
        lambda c: c.splits_finished([]),
        lambda c: c.reader_failed([]),
        lambda c: c.snapshot(1),
        lambda c: c.checkpoint_complete(1),
    ],
)
def test_any_use_before_start_is_an_error(stage_of_recorder, use):
    """COO-1: testThrowExceptionWhenNotStarted."""
    with pytest.raises(ContractError) as caught:
        use(stage_of_recorder().coordinator)
    assert caught.value.rule == "COO-1"


def test_no_checkpoint_data_makes_a_fresh_enumerator(recorded):
    """COO-2: None is a fresh start, not a restore."""
    assert recorded.journal == [("start",)]


def test_a_restore_gives_the_state_then_starts_then_gives_the_splits_of_readers_back(stage_of_recorder):
    """ENU-6, COO-5: no reader is registered; what the reader held goes through the enumerator."""
    stage = stage_of_recorder()
    stage.begin({"n": 4}, [Split("a", 3)])
    assert dict(stage.coordinator.registered_readers()) == {}
    stage.register()
    assert stage.journal == [
        ("restore_state", {"n": 4}),
        ("start",),
        ("add_splits_back", ["a"], None),
        ("add_reader", 0),
    ]


METHODS = [
    "restore_state",
    "start",
    "add_splits_back",
    "add_reader",
    "handle_split_request",
    "handle_source_event",
    "handle_splits_finished",
    "notify_checkpoint_complete",
]


@pytest.mark.parametrize("where", METHODS)
@pytest.mark.parametrize("error", [ValueError("no"), MemoryError("none"), FatalError("no"), KeyboardInterrupt()])
def test_any_throwable_fails_the_run_with_that_object(stage_of_recorder, where, error):
    """COO-3: testFailJobWhenExceptionThrownFromStart, testErrorThrownFromSplitEnumerator; it is the cause."""
    stage = stage_of_recorder(**{where: failing(error)})
    for host_call in (
        lambda: stage.begin({}, [Split("a")]),
        stage.register,
        stage.request,
        lambda: stage.coordinator.handle_source_event(Ping()),
        lambda: stage.finish("a"),
        lambda: stage.coordinator.checkpoint_complete(1),
    ):
        stage.coordinator.run_in_coordinator_thread(host_call)
    with pytest.raises((FatalError, KeyboardInterrupt)) as caught:
        stage.run()
    raised = caught.value
    assert stage.journal[-1][0] == where and error in (raised, raised.__cause__)
    if isinstance(raised, FatalError):
        assert raised.source == "scripted" and (raised is error or f"{where}() failed" in str(raised))
    stage.coordinator.close(1)
    assert stage.journal[-1] == ("close",)


def test_a_failing_creation_fails_the_run(stage_of):
    """COO-3, SRC-3: testFailJobWhenExceptionThrownFromEnumeratorCreation; nothing is there to close."""
    error = OSError("no")
    stage = stage_of(failing(error))
    with pytest.raises(FatalError, match=r"create_enumerator\(\) failed with OSError: no") as caught:
        stage.begin()
    assert caught.value.__cause__ is error
    stage.coordinator.close(1)


def test_a_creation_that_makes_something_else_is_refused(stage_of):
    """SRC-1: named, not an attribute error later."""
    with pytest.raises(ContractError, match="create_enumerator"):
        stage_of(lambda _context: object()).begin()


def test_a_failing_snapshot_fails_only_that_checkpoint(stage_of_recorder):
    """COO-3: the exception to the rule; the host gets the error as it is."""
    stage = stage_of_recorder(snapshot_state=failing(ValueError("no")))
    stage.begin()
    with pytest.raises(ValueError, match="no"):
        stage.coordinator.snapshot(1)
    stage.register()
    assert stage.journal[-1] == ("add_reader", 0)


def test_a_failure_unregisters_clears_the_signal_then_returns_splits(stage_of_recorder):
    """COO-4: the order, as add_splits_back observes it."""
    observed = []

    def back(splits, _subtask):
        observed.append((dict(stage.coordinator.registered_readers()), stage.coordinator.no_more, splits))

    stage = stage_of_recorder(add_splits_back=back)
    stage.begin()
    stage.register()
    stage.coordinator.signal_no_more_splits(0)
    stage.coordinator.reader_failed([Split("a", 4)])
    assert observed == [({}, False, [Split("a", 4)])]


def test_returned_splits_come_before_the_replacement_which_they_can_be_assigned_to(stage_of_recorder):
    """ENU-3: testSubtaskFailedAndRevertUncompletedAssignments."""
    returned = []
    stage = stage_of_recorder(add_splits_back=lambda splits, _subtask: returned.extend(splits))
    stage.begin()
    stage.register()
    stage.coordinator.assign_splits({0: [Split("done"), Split("read"), Split("fresh")]})
    stage.finish("done")
    stage.replace(Split("read", 7), Split("fresh"))
    assert stage.journal[-2:] == [("add_splits_back", ["read", "fresh"], 0), ("add_reader", 0)]
    stage.coordinator.assign_splits({0: returned})
    assert stage.reader.splits == [Split("read", 7), Split("fresh")]


def test_closing_closes_the_enumerator_once(recorded):
    """ENU-9: testClosed."""
    recorded.coordinator.close(1)
    recorded.coordinator.close(1)
    assert recorded.journal == [("start",), ("close",)]
    assert not recorded.coordinator.run_next()


def test_closing_without_a_start_does_nothing(stage_of_recorder):
    """ENU-9: testClosedWithoutStart."""
    stage = stage_of_recorder()
    stage.coordinator.run_in_coordinator_thread(stage.begin)
    stage.coordinator.close(1)
    assert not stage.coordinator.run_next()
    assert stage.journal == []


def test_an_error_of_closing_is_raised(stage_of_recorder):
    stage = stage_of_recorder(close=failing(OSError("no")))
    stage.begin()
    with pytest.raises(OSError, match="no"):
        stage.coordinator.close(1)


def test_a_handler_that_never_returns_does_not_keep_the_enumerator_open(stage_of_recorder):
    """ENU-9: testBlockOnClose; the close waits for its time-out, then closes all the same."""
    release, blocked = threading.Event(), threading.Event()
    stage = stage_of_recorder(ThreadRuntime(), start=lambda: (blocked.set(), release.wait(30)))
    stage.coordinator.run_in_coordinator_thread(stage.begin)
    thread = threading.Thread(target=stage.run, daemon=True)
    thread.start()
    assert blocked.wait(5)
    stage.coordinator.close(0.05)
    assert stage.journal == [("start",), ("close",)]
    release.set()
    thread.join(5)
    assert not thread.is_alive()


def test_closing_waits_for_async_work_that_is_about_to_end(stage_of_recorder):
    """ENU-9: leaves no threads, if they end in time."""
    release, ended = threading.Event(), threading.Event()
    stage = stage_of_recorder(ThreadRuntime(), close=release.set)
    stage.begin()
    stage.coordinator.call_async(lambda: (release.wait(30), ended.set()), lambda *_: None)
    stage.run()
    stage.coordinator.close(30)
    assert ended.is_set()


# ---- in a run, with checkpoints


class Giving:
    """An engine whose enumerator assigns the splits that a test gives, and records those that come back."""

    def __init__(self, driven, recorder_class):
        self.returned = []
        self.made = []
        self.run = driven(lambda context: self.made.append(recorder_class(context, [])) or self.made[0], bounded=False)
        self.recorder = self.made[0]
        self.recorder.on["add_splits_back"] = lambda splits, _subtask: self.returned.append(splits)

    def assign(self, *splits):
        self.recorder.context.assign_splits({0: splits})
        self.run.run()


@pytest.fixture
def giving(driven, recorder_class):
    return lambda: Giving(driven, recorder_class)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["assign", "deliver", "finish", "complete", "abort", "no snapshot"]), max_size=12))
def test_whatever_is_assigned_and_unfinished_comes_back_once(giving, script):
    """TRK-1, TRK-2, TRK-3: at its delivered position, whichever checkpoints completed, failed or were aborted."""
    one, expected = giving(), {}
    for number, action in enumerate([*script, "fail", "assign", *script, "fail"]):
        oldest = min(expected, default=None)
        match action:
            case "assign":
                expected[f"{number:02}"] = 0
                one.assign(Split(f"{number:02}", 0))
            case "deliver" if oldest:
                expected[oldest] += 1
                one.run.deliver(oldest, expected[oldest])
            case "finish" if oldest:
                del expected[oldest]
                one.run.finish(oldest)
            case "complete":
                one.run.engine.checkpoint()
            case "abort":
                one.run.store.error = RetriableError("disk full")
                with pytest.raises(RetriableError):
                    one.run.engine.checkpoint()
                one.run.store.error = None
            case "no snapshot":
                one.recorder.on["snapshot_state"] = failing(ValueError("no"))
                with pytest.raises(SnapshotError):
                    one.run.engine.checkpoint()
                del one.recorder.on["snapshot_state"]
            case "fail":
                one.run.replace_reader()
                assert one.returned == [[Split(split_id, at) for split_id, at in sorted(expected.items())]]
                one.assign(*one.returned.pop())


def test_the_enumerator_and_the_reader_see_one_cut(giving):
    """COO-6: no action runs between the two snapshots; the enumerator is notified of what is written."""
    one = giving()
    one.assign(Split("early", 0))

    def snapshot(_checkpoint):
        assign = one.recorder.context.assign_splits
        one.recorder.context.run_in_coordinator_thread(lambda: assign({0: [Split("late", 0)]}))

    one.recorder.on["snapshot_state"] = snapshot
    one.recorder.on["notify_checkpoint_complete"] = lambda number: written.append((number, len(one.run.store.written)))
    written = []
    one.run.engine.checkpoint()
    assert one.run.store.written[0].splits == [Split("early", 0)] and written == [(1, 1)]
    one.run.run()
    assert one.run.engine.deliveries.held() == ["early", "late"]


def test_a_checkpoint_contains_what_the_reader_sent_before_it(giving):
    """COO-6: an event that is in neither snapshot would be lost at a restart."""
    one = giving()
    heard = []
    one.recorder.on["handle_source_event"] = lambda _subtask, event: heard.append(type(event).__name__)
    one.recorder.on["snapshot_state"] = lambda _checkpoint: list(heard)
    one.run.commands.append(lambda reader, _output: reader.context.send_source_event(Ping()))
    while one.run.commands:
        one.run.engine.step()
    one.run.engine.checkpoint()
    assert one.run.store.written[0].enumerator == ["Ping"]
