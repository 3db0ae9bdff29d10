# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading

import pytest

from forebay.errors import ContractError, FatalError
from forebay.framework.coordination.coordinator import Coordinator
from forebay.framework.enumerator import SourceEvent
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import Next, ThreadRuntime
from forebay.framework.split import Split


class Ping(SourceEvent):
    pass


def recorded_stage(stage_of, recorder_class, **on):
    """A stage that is not started; `on` has the recorder's callbacks."""
    journal = []

    def make(context):
        recorder = recorder_class(context, journal)
        recorder.on.update(on)
        return recorder

    stage = stage_of(make)
    stage.journal = journal
    return stage


def failing(error):
    def fail(*_args):
        raise error

    return fail


def test_everything_the_enumerator_sees_runs_in_order_in_steps(recorded):
    """ENU-1: queued from any thread, run one by one; start is the first."""
    assert recorded.journal == [("start",)]
    event = Ping()
    recorded.coordinator.register_reader(0, "here", lambda _message: None)
    recorded.coordinator.handle_split_request(0, "here")
    recorded.coordinator.handle_source_event(0, event)
    assert recorded.journal == [("start",)]
    recorded.coordinator.step()
    assert recorded.journal[1:] == [("add_reader", 0)]
    recorded.run()
    assert recorded.journal[2:] == [("handle_split_request", 0, "here"), ("handle_source_event", 0, event)]


def test_a_request_of_a_reader_that_failed_is_skipped(recorded):
    """ENU-2: its replacement requests a split again."""
    recorded.register(0, 1)
    recorded.journal.clear()
    recorded.coordinator.reader_failed(0)
    recorded.coordinator.handle_split_request(0, None)
    recorded.request(1)
    assert recorded.journal == [("handle_split_request", 1, None)]


@pytest.mark.parametrize(
    "use",
    [
        lambda c: c.register_reader(0, None, lambda _message: None),
        lambda c: c.handle_split_request(0, None),
        lambda c: c.handle_source_event(0, Ping()),
        lambda c: c.handle_splits_finished(0, []),
        lambda c: c.reader_failed(0),
        lambda c: c.subtask_reset(0, 1),
        lambda c: c.snapshot(1, lambda *_: None),
        lambda c: c.notify_checkpoint_complete(1, {}),
    ],
)
def test_any_use_before_start_is_an_error(stage_of, recorder_class, use):
    """COO-1: testThrowExceptionWhenNotStarted."""
    with pytest.raises(ContractError) as caught:
        use(recorded_stage(stage_of, recorder_class).coordinator)
    assert caught.value.rule == "COO-1"


def test_a_reset_to_a_checkpoint_after_start_is_an_error(recorded):
    """COO-1: testRestCheckpointAfterCoordinatorStarted."""
    with pytest.raises(ContractError) as caught:
        recorded.coordinator.reset_to_checkpoint({})
    assert caught.value.rule == "COO-1"
    with pytest.raises(ContractError):
        recorded.coordinator.start()


def test_no_checkpoint_data_makes_a_fresh_enumerator(stage_of, recorder_class):
    """COO-2: None is a fresh start, not a restore."""
    stage = recorded_stage(stage_of, recorder_class)
    stage.coordinator.reset_to_checkpoint(None)
    stage.coordinator.start()
    stage.run()
    assert stage.journal == [("start",)]


def test_a_restore_gives_the_state_then_starts_then_gives_the_splits_of_readers_back(stage_of, recorder_class):
    """ENU-6, COO-5: no reader is registered; what readers held goes through the enumerator."""
    stage = recorded_stage(stage_of, recorder_class)
    stage.coordinator.reset_to_checkpoint({"n": 4})
    stage.coordinator.start([Split("a", 3)])
    stage.register(0)
    assert stage.journal == [
        ("restore_state", {"n": 4}),
        ("start",),
        ("add_splits_back", ["a"], None),
        ("add_reader", 0),
    ]


@pytest.mark.parametrize("where", ["start", "restore_state", "add_reader", "handle_split_request", "add_splits_back"])
@pytest.mark.parametrize("error", [ValueError("no"), MemoryError("none"), KeyboardInterrupt()])
def test_any_throwable_fails_the_run_with_that_object(stage_of, recorder_class, where, error):
    """COO-3: testFailJobWhenExceptionThrownFromStart, testErrorThrownFromSplitEnumerator."""
    stage = recorded_stage(stage_of, recorder_class, **{where: failing(error)})
    stage.coordinator.reset_to_checkpoint({})
    stage.coordinator.start([Split("a")])
    stage.coordinator.register_reader(0, None, lambda _message: None)
    stage.coordinator.handle_split_request(0, None)
    with pytest.raises(type(error)):
        stage.run()
    assert stage.coordinator.error is error
    assert stage.coordinator.signal.is_set()
    stage.coordinator.close(1)
    assert stage.journal[-1] == ("close",)


def test_a_failing_creation_fails_the_run(stage_of):
    """COO-3, SRC-3: testFailJobWhenExceptionThrownFromEnumeratorCreation; nothing is there to close."""
    error = OSError("no")
    stage = stage_of(failing(error))
    stage.coordinator.start()
    with pytest.raises(OSError, match="no"):
        stage.run()
    assert stage.coordinator.error is error
    stage.coordinator.close(1)


def test_a_creation_that_makes_something_else_is_refused(stage_of):
    """SRC-1: named, not an attribute error later."""
    stage = stage_of(lambda _context: object())
    stage.coordinator.start()
    with pytest.raises(ContractError, match="create_enumerator"):
        stage.run()


def test_an_error_names_its_source(stage_of, recorder_class):
    for error in (FatalError("broken"), ValueError("broken")):
        stage = recorded_stage(stage_of, recorder_class, start=failing(error))
        stage.coordinator.start()
        with pytest.raises(type(error)):
            stage.run()
        text = str(error) + "".join(getattr(error, "__notes__", []))
        assert "scripted" in text


def test_a_failing_snapshot_fails_only_that_checkpoint(stage_of, recorder_class):
    """COO-3: the exception to the rule."""
    stage = recorded_stage(stage_of, recorder_class, snapshot_state=failing(ValueError("no")))
    stage.coordinator.start()
    stage.run()
    with pytest.raises(ValueError, match="no"):
        stage.snapshot(1)
    assert stage.coordinator.error is None
    stage.register(0)
    assert stage.journal[-1] == ("add_reader", 0)


def test_a_failed_reader_is_only_unregistered(recorded):
    """COO-4: its splits come back at the reset."""
    recorded.register(0)
    recorded.context.assign_splits({0: [Split("a")]})
    recorded.journal.clear()
    recorded.coordinator.reader_failed(0)
    recorded.run()
    assert recorded.journal == [] and not recorded.context.registered_readers()


def test_a_reset_unregisters_clears_the_signal_then_returns_splits(stage_of, recorder_class):
    """COO-4: the order, as add_splits_back observes it."""
    observed = []

    def back(_splits, _subtask):
        observed.append((dict(stage.context.registered_readers()), sorted(stage.context._no_more_sent)))

    stage = recorded_stage(stage_of, recorder_class, add_splits_back=back)
    stage.coordinator.start()
    stage.register(0)
    stage.context.signal_no_more_splits(0)
    stage.reset(0)
    assert observed == [({}, [])]


def test_uncompleted_assignments_come_back_once(recorded):
    """ENU-3: testSubtaskFailedAndRevertUncompletedAssignments."""
    recorded.register(0, 1)
    recorded.context.assign_splits({0: [Split("a")]})
    recorded.checkpoint(1)
    recorded.context.assign_splits({0: [Split("b")], 1: [Split("x")]})
    recorded.snapshot(2)
    recorded.context.assign_splits({0: [Split("c")]})
    recorded.reset(0, checkpoint=1)
    assert recorded.journal[-1] == ("add_splits_back", ["b", "c"], 0)
    recorded.reset(0, checkpoint=1)
    assert recorded.journal[-1] == ("add_splits_back", [], 0)


def test_completed_assignments_do_not_come_back(recorded):
    """ENU-3: testFailedSubtaskDoNotRevertCompletedCheckpoint."""
    recorded.register(0)
    recorded.context.assign_splits({0: [Split("a")]})
    recorded.checkpoint(1)
    recorded.reset(0, checkpoint=1)
    assert recorded.journal[-1] == ("add_splits_back", [], 0)


def test_held_splits_come_back_with_their_progress_and_what_never_arrived_after_them(stage_of, recorder_class):
    """ENU-3: the host's splits take precedence over the tracker's; finished splits stay finished."""
    returned = []
    stage = recorded_stage(stage_of, recorder_class, add_splits_back=lambda splits, _subtask: returned.extend(splits))
    stage.coordinator.start()
    stage.register(0)
    stage.context.assign_splits({0: [Split(name) for name in ("done", "read", "under way")]})
    stage.finish(0, "done")
    stage.reset(0, held=[Split("read", 7)])
    assert returned == [Split("read", 7), Split("under way")]


def test_a_late_end_of_a_split_that_came_back_is_ignored(recorded):
    recorded.register(0)
    recorded.context.assign_splits({0: [Split("a")]})
    recorded.reset(0)
    recorded.journal.clear()
    recorded.finish(0, "a")
    assert recorded.journal == []


def test_the_tracker_is_cut_before_the_enumerator_is_asked(stage_of, recorder_class):
    """COO-6: both see the same cut."""
    observed = []
    stage = recorded_stage(
        stage_of,
        recorder_class,
        snapshot_state=lambda _checkpoint: observed.append(
            (stage.coordinator._tracker._open, sorted(stage.coordinator._tracker._cut))
        ),
        notify_checkpoint_complete=lambda _checkpoint: observed.append(sorted(stage.coordinator._tracker._cut)),
    )
    stage.coordinator.start()
    stage.register(0)
    stage.context.assign_splits({0: [Split("a")]})
    stage.checkpoint(5)
    assert observed == [({}, [5]), []]


def test_a_snapshot_is_taken_in_order_with_everything_else(recorded):
    """COO-6: the checkpoint includes all actions queued before it."""
    recorded.coordinator.register_reader(0, None, lambda _message: None)
    recorded.snapshot(1)
    assert recorded.journal[-2:] == [("add_reader", 0), ("snapshot_state", 1)]


def test_closing_closes_the_enumerator_once(recorded):
    """ENU-9: testClosed."""
    recorded.coordinator.close(1)
    recorded.coordinator.close(1)
    assert recorded.journal == [("start",), ("close",)]
    assert recorded.coordinator.step() is Next.DONE


def test_closing_without_a_start_does_nothing(stage_of, recorder_class):
    """ENU-9: testClosedWithoutStart."""
    stage = recorded_stage(stage_of, recorder_class)
    stage.coordinator.close(1)
    assert stage.journal == []


def test_an_error_of_closing_is_raised(stage_of, recorder_class):
    stage = recorded_stage(stage_of, recorder_class, close=failing(OSError("no")))
    stage.coordinator.start()
    stage.run()
    with pytest.raises(OSError, match="no"):
        stage.coordinator.close(1)


def test_a_handler_that_never_returns_does_not_keep_the_enumerator_open(scripted_source, recorder_class):
    """ENU-9: testBlockOnClose; the close waits for its time-out, then closes all the same."""
    release, blocked, journal = threading.Event(), threading.Event(), []

    def make(context):
        recorder = recorder_class(context, journal)
        recorder.on["start"] = lambda: (blocked.set(), release.wait(30))
        return recorder

    runtime = ThreadRuntime()
    coordinator = Coordinator(scripted_source(make), runtime, parallelism=1, options=HostOptions())
    coordinator.start()
    handle = runtime.start("coordinator", coordinator)
    assert blocked.wait(5)
    coordinator.close(0.05)
    assert journal == [("start",), ("close",)]
    release.set()
    assert handle.join(5)


def test_closing_waits_for_async_work_that_is_about_to_end(scripted_source, recorder_class):
    """ENU-9: leaves no threads, if they end in time."""
    release, ended = threading.Event(), threading.Event()
    made = []

    def make(context):
        made.append(recorder_class(context, []))
        made[0].on["start"] = lambda: context.call_async(lambda: (release.wait(30), ended.set()), lambda *_: None)
        made[0].on["close"] = release.set
        return made[0]

    runtime = ThreadRuntime()
    coordinator = Coordinator(scripted_source(make), runtime, parallelism=1, options=HostOptions())
    coordinator.start()
    while coordinator.step() is Next.AGAIN:
        pass
    coordinator.close(30)
    assert ended.is_set()
