# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading
from functools import partial

import pytest

from forebay.errors import ContractError, FatalError
from forebay.framework.enumerator import SourceEvent
from forebay.framework.runtime.runtime import ThreadRuntime
from forebay.framework.split import Split


class Ping(SourceEvent):
    pass


def failing(error):
    def fail(*_args):
        raise error

    return fail


@pytest.fixture
def context(recorded):
    """The context of a started enumerator, with its reader registered."""
    recorded.register("here")
    return recorded.coordinator


def test_assignments_are_incremental_and_keep_their_order(recorded, context):
    """CTX-1: incremental, in order."""
    context.assign_splits({0: [Split("b"), Split("a")]})
    context.assign_splits({0: []})
    context.assign_splits({0: [Split("d")]})
    assert recorded.reader.ids == ["b", "a", "d"]


def test_an_assignment_is_recorded_before_it_is_sent(recorded, context):
    """CTX-1: the split cannot be assigned again, even while the reader takes it."""
    refused = []

    def add_splits(splits):
        with pytest.raises(ContractError) as caught:
            context.assign_splits({0: splits})
        refused.append(caught.value.rule)

    recorded.reader.add_splits = add_splits
    context.assign_splits({0: [Split("a")]})
    assert refused == ["SPL-1"]


def test_assigning_to_an_unregistered_reader_names_it_and_assigns_nothing(recorded, context):
    """CTX-2: testAssignSplitsToUnregisteredReader from the coordinator thread; none of the batch is assigned."""
    with pytest.raises(ContractError, match="reader 1 is not registered") as caught:
        context.assign_splits({0: [Split("a")], 1: [Split("b")]})
    assert caught.value.rule == "CTX-2"
    assert recorded.reader.messages == []
    context.assign_splits({0: [Split("a")]})  # its id is still free
    assert recorded.reader.ids == ["a"]


def test_nothing_can_be_assigned_before_the_reader_registers(recorded):
    """CTX-2."""
    with pytest.raises(ContractError, match="reader 0 is not registered"):
        recorded.coordinator.assign_splits({0: [Split("a")]})


def test_a_split_that_is_given_out_is_not_given_again(recorded, context):
    """SPL-1: unique among the living; free again once finished or returned."""
    context.assign_splits({0: [Split("a")]})
    for splits in ([Split("a")], [Split("c"), Split("c")], [Split("c"), Split("a")]):
        with pytest.raises(ContractError) as caught:
            context.assign_splits({0: splits})
        assert caught.value.rule == "SPL-1"
    recorded.finish("a")
    context.assign_splits({0: [Split("a")]})
    recorded.replace(Split("a", 3))
    context.assign_splits({0: [Split("a", 3), Split("c")]})
    assert recorded.reader.splits == [Split("a", 3), Split("c")]


def test_a_split_that_the_reader_has_from_before_is_not_given_again(recorded, context):
    """SPL-1: the host has recorded it, so the coordinator need not."""
    context.assign_splits({0: [Split("a")]})
    context.held = {"a"}
    context.forget([Split("a")])
    with pytest.raises(ContractError) as caught:
        context.assign_splits({0: [Split("a")]})
    assert caught.value.rule == "SPL-1"
    context.held = ()
    context.assign_splits({0: [Split("a")]})
    assert recorded.reader.ids == ["a", "a"]


def test_what_is_no_split_is_not_assigned(context):
    with pytest.raises(ContractError, match="not a Split"):
        context.assign_splits({0: ["a"]})


@pytest.mark.parametrize("subtask", [-1, 1])
def test_no_more_splits_is_bounds_checked(recorded, context, subtask):
    """CTX-3: the index is bounds-checked."""
    with pytest.raises(ContractError) as caught:
        context.signal_no_more_splits(subtask)
    assert caught.value.rule == "CTX-3" and recorded.reader.messages == []


def test_no_more_splits_to_a_reader_that_is_not_there_is_an_error(recorded):
    """CTX-3: the signal would be lost, and the reader would never end."""
    with pytest.raises(ContractError, match="not registered"):
        recorded.coordinator.signal_no_more_splits(0)
    assert not recorded.coordinator.no_more


def test_requests_after_no_more_splits_are_dropped(recorded, context):
    """CTX-3: later split requests are dropped."""
    recorded.request()
    context.signal_no_more_splits(0)
    recorded.request()
    assert recorded.journal == [("start",), ("add_reader", 0), ("handle_split_request", 0, "here")]
    assert recorded.reader.messages == ["no more"]


def test_a_reset_clears_no_more_splits(recorded, context):
    """CTX-3: testSubtaskRestartAndRequestSplitsAgain; it must be signalled again."""
    context.signal_no_more_splits(0)
    recorded.replace()
    recorded.request()
    assert recorded.journal[-1] == ("handle_split_request", 0, None)
    context.signal_no_more_splits(0)
    assert recorded.reader.messages == ["no more"]


def test_splits_after_no_more_splits_are_refused(recorded, context):
    """CTX-3: such a reader may have ended; a split for it would be lost."""
    context.signal_no_more_splits(0)
    with pytest.raises(ContractError) as caught:
        context.assign_splits({0: [Split("a")]})
    assert caught.value.rule == "CTX-3" and recorded.reader.ids == []


def test_registered_readers_is_a_read_only_view(recorded):
    """CTX-4: testRegisterReader, testTaskFailureUnregistersReader."""
    assert dict(recorded.coordinator.registered_readers()) == {}
    recorded.register("here")
    before = recorded.coordinator.registered_readers()
    assert dict(before) == {0: "here"}
    with pytest.raises(TypeError):
        before[1] = None
    recorded.coordinator.reader_failed([])
    assert dict(recorded.coordinator.registered_readers()) == {}
    assert dict(before) == {0: "here"}
    assert recorded.coordinator.current_parallelism() == 1


def test_async_work_runs_elsewhere_and_its_handler_in_a_step(recorded, context):
    """CTX-5: the callable off the coordinator, the handler on it."""
    trace = []
    context.call_async(lambda: trace.append("work") or 42, lambda result, error: trace.append((result, error)))
    recorded.run()
    assert trace == []
    recorded.runtime.run_submitted()
    assert trace == ["work"]
    recorded.run()
    assert trace == ["work", (42, None)]


def test_an_error_of_async_work_goes_to_the_handler(recorded, context):
    """CTX-6: the run survives unless the handler raises."""
    error, results = ValueError("no"), []
    context.call_async(failing(error), lambda result, caught: results.append((result, caught)))
    recorded.run_until_idle()
    assert results == [(None, error)]


@pytest.mark.parametrize("call", ["call_async", "run_in_coordinator_thread"])
def test_an_error_of_a_handler_or_an_action_fails_the_run(recorded, context, call):
    """CTX-6, CTX-8: ExecutorNotifierTest, testExceptionInRunnableFailsTheJob; the error is the cause."""
    error = ValueError("no")
    if call == "call_async":
        context.call_async(lambda: 1, failing(error))
    else:
        context.run_in_coordinator_thread(failing(error))
    with pytest.raises(FatalError, match="a handler of the enumerator failed") as caught:
        recorded.run_until_idle()
    assert caught.value.__cause__ is error and caught.value.source == "scripted"


def test_a_periodic_call_keeps_its_rate_and_survives_errors(recorded, context):
    """CTX-7: fixed rate; an error in one run does not stop later runs."""
    runs, results = [], []

    def work():
        runs.append(recorded.runtime.clock.monotonic())
        raise OSError("down")

    context.call_async(work, lambda _result, error: results.append(type(error)), delay=1, period=10)
    assert recorded.wait() == 1
    for step in (1, 10, 10):
        recorded.advance(step)
    assert runs == [1, 11, 21] and results == [OSError] * 3


def test_the_runs_of_a_periodic_call_never_overlap(recorded, context):
    """CTX-7: a tick is skipped while the work runs, and until its result is handled; the grid stays."""
    runs = []
    context.call_async(lambda: runs.append(1), lambda *_: None, period=10)
    recorded.run()
    recorded.runtime.clock.advance(25)
    assert recorded.wait() == 5
    assert recorded.runtime.run_submitted() == 1  # its result waits to be handled
    recorded.runtime.clock.advance(10)
    assert context.due_in() == 5 and recorded.runtime.submitted == []
    recorded.run()
    recorded.advance(5)
    assert len(runs) == 2


@pytest.mark.parametrize("when", [{"delay": -1}, {"period": 0}])
def test_impossible_times_are_refused(context, when):
    with pytest.raises(ContractError) as caught:
        context.call_async(lambda: 1, lambda *_: None, **when)
    assert caught.value.rule == "CTX-7"


@pytest.mark.parametrize("handler_of", [lambda poll: poll, partial])
def test_the_coordinator_is_idle_once_every_call_has_a_result(recorded, context, handler_of):
    """A poll that plans itself again does not count: it would never be idle."""
    idle = []

    def poll(_result, _error):
        context.call_async(lambda: None, handler_of(poll), delay=10)
        idle.append(context.is_idle())

    assert context.is_idle()
    context.call_async(lambda: None, handler_of(poll))
    assert not context.is_idle()
    recorded.run_until_idle()
    assert idle == [True] and context.is_idle() and context.due_in() == 10
    context.run_in_coordinator_thread(lambda: None)
    assert not context.is_idle()


def test_an_action_is_queued_behind_what_waits(recorded):
    """CTX-8: runInCoordinatorThread queues."""
    recorded.coordinator.run_in_coordinator_thread(recorded.register)
    recorded.coordinator.run_in_coordinator_thread(lambda: recorded.journal.append("action"))
    assert recorded.journal == [("start",)]
    recorded.run()
    assert recorded.journal[1:] == [("add_reader", 0), "action"]


@pytest.fixture
def on_threads(stage_of_recorder):
    """A stage with a registered reader, whose coordinator runs on a thread of its own."""
    stage, ready, over = stage_of_recorder(ThreadRuntime()), threading.Event(), threading.Event()
    coordinator = stage.coordinator
    for action in (stage.begin, stage.register, ready.set):
        coordinator.run_in_coordinator_thread(action)

    def work():
        while not over.is_set():
            coordinator.signal.clear()
            while coordinator.run_next():
                pass
            coordinator.signal.wait(5)

    thread = threading.Thread(target=work, name="coordinator", daemon=True)
    thread.start()
    assert ready.wait(5)
    yield stage
    over.set()
    coordinator.close(5)
    thread.join(5)
    assert not thread.is_alive()


def test_a_call_from_a_foreign_thread_moves_to_the_coordinator_and_waits(on_threads):
    """CTX-9: testAssignSplitsFromOtherThread; the call returns once the coordinator thread has assigned."""
    names, coordinator = [], on_threads.coordinator
    on_threads.reader.add_splits = lambda _splits: names.append(threading.current_thread().name)
    coordinator.assign_splits({0: [Split("a")]})
    assert names == ["coordinator"]


def test_an_error_of_a_foreign_call_goes_to_its_caller_alone(on_threads):
    """CTX-9: testAssignSplitsToUnregisteredReader from another thread (CTX-2); the run goes on."""
    coordinator = on_threads.coordinator
    with pytest.raises(ContractError, match="not registered"):
        coordinator.assign_splits({1: [Split("a")]})
    coordinator.assign_splits({0: [Split("a")]})
    assert on_threads.reader.ids == ["a"]


def test_a_foreign_caller_is_released_when_the_coordinator_closes(context):
    """CTX-9: a call to a coordinator that no longer steps fails instead of waiting for ever."""
    errors = []

    def call():
        try:
            context.signal_no_more_splits(0)
        except FatalError as error:
            errors.append(error.rule)

    threads = [threading.Thread(target=call, daemon=True) for _ in range(2)]
    threads[0].start()
    while context.is_idle():
        pass
    context.close(5)
    threads[1].start()
    for thread in threads:
        thread.join(5)
    assert errors == ["CTX-9", "CTX-9"] and not context.no_more


def test_events_and_assignments_keep_their_order(recorded, context):
    """CTX-10: one channel to the reader."""
    event = Ping()
    context.assign_splits({0: [Split("a")]})
    context.send_event_to_reader(0, event)
    context.assign_splits({0: [Split("b")]})
    context.signal_no_more_splits(0)
    assert recorded.reader.messages == ["a", event, "b", "no more"]


def test_an_event_to_a_reader_that_is_not_there_is_an_error(recorded):
    """CTX-10: sending to a subtask that is not ready."""
    with pytest.raises(ContractError) as caught:
        recorded.coordinator.send_event_to_reader(0, Ping())
    assert caught.value.rule == "CTX-10"


def test_work_in_flight_when_the_host_closes_is_dropped(recorded, context):
    """CTX-11: testCallableInterruptedDuringShutdownDoNotFailJob."""
    results = []
    context.call_async(failing(RuntimeError("interrupted")), lambda *outcome: results.append(outcome))
    recorded.run()
    context.close(0.0)
    recorded.runtime.run_submitted()
    context.run_in_coordinator_thread(lambda: results.append("late"))
    assert not context.run_next()
    assert results == []
