# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading

import pytest

from forebay.errors import ContractError, FatalError
from forebay.framework.coordination.coordinator import Coordinator
from forebay.framework.coordination.inbox import AddSplits, EnumeratorEvent, NoMoreSplits
from forebay.framework.enumerator import SourceEvent
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import Next, ThreadRuntime
from forebay.framework.split import Split


class Ping(SourceEvent):
    pass


def test_assignments_are_incremental_and_keep_their_order(recorded):
    """CTX-1: incremental, in order per subtask."""
    recorded.register(0, 1)
    recorded.context.assign_splits({0: [Split("b"), Split("a")], 1: [Split("c")]})
    recorded.context.assign_splits({0: [Split("d")]})
    assert recorded.readers[0].ids == ["b", "a", "d"]
    assert recorded.readers[1].ids == ["c"]


def test_an_assignment_is_recorded_before_it_is_sent(recorded):
    """CTX-1: the tracker contains the split before the gateway gets it."""
    held = []
    tracker = recorded.coordinator._tracker
    recorded.coordinator.register_reader(0, None, lambda _message: held.extend(tracker._open[0]))
    recorded.run()
    recorded.context.assign_splits({0: [Split("a")]})
    assert [split.id for split in held] == ["a"]


def test_a_big_assignment_goes_out_in_bounded_messages(recorded):
    """CTX-1: at most 1000 splits a message, all of them, in order."""
    recorded.register(0)
    recorded.context.assign_splits({0: [Split(str(n)) for n in range(2500)]})
    assert [len(message.splits) for message in recorded.readers[0].messages] == [1000, 1000, 500]
    assert recorded.readers[0].ids == [str(n) for n in range(2500)]


def test_assigning_to_an_unregistered_reader_names_it_and_assigns_nothing(recorded):
    """CTX-2: testAssignSplitsToUnregisteredReader from the coordinator thread; none of the batch is assigned."""
    recorded.register(0)
    with pytest.raises(ContractError, match="reader 1 is not registered") as caught:
        recorded.context.assign_splits({0: [Split("a")], 1: [Split("b")]})
    assert caught.value.rule == "CTX-2"
    assert recorded.readers[0].messages == []
    assert recorded.snapshot(1) is None and recorded.coordinator._tracker.take(0, 0) == []
    recorded.context.assign_splits({0: [Split("a")]})  # its id is still free
    assert recorded.readers[0].ids == ["a"]


def test_a_split_that_is_given_out_is_not_given_again(recorded):
    """SPL-1: unique among the living; free again once finished or returned."""
    recorded.register(0, 1)
    recorded.context.assign_splits({0: [Split("a")]})
    for assignment in ({1: [Split("a")]}, {0: [Split("b")], 1: [Split("b")]}, {0: [Split("c"), Split("c")]}):
        with pytest.raises(ContractError) as caught:
            recorded.context.assign_splits(assignment)
        assert caught.value.rule == "SPL-1"
    recorded.finish(0, "a")
    recorded.context.assign_splits({1: [Split("a")]})
    recorded.reset(1)
    recorded.context.assign_splits({0: [Split("a")]})
    assert recorded.readers[0].ids == ["a", "a"]


def test_what_is_no_split_is_not_assigned(recorded):
    recorded.register(0)
    with pytest.raises(ContractError, match="not a Split"):
        recorded.context.assign_splits({0: ["a"]})


@pytest.mark.parametrize("subtask", [-1, 2])
def test_no_more_splits_is_bounds_checked(recorded, subtask):
    """CTX-3: the index is bounds-checked."""
    recorded.register(0, 1)
    with pytest.raises(ContractError) as caught:
        recorded.context.signal_no_more_splits(subtask)
    assert caught.value.rule == "CTX-3"


def test_no_more_splits_to_a_reader_that_is_not_there_is_an_error(recorded):
    """CTX-3: the signal would be lost, and the reader would never end."""
    with pytest.raises(ContractError, match="not registered"):
        recorded.context.signal_no_more_splits(1)


def test_requests_after_no_more_splits_are_dropped(recorded):
    """CTX-3: later split requests from that subtask are dropped."""
    recorded.register(0, 1)
    recorded.context.signal_no_more_splits(0)
    recorded.journal.clear()
    recorded.request(0, 1)
    assert recorded.journal == [("handle_split_request", 1, None)]
    assert recorded.readers[0].no_more_signals == 1


def test_a_reset_clears_no_more_splits(recorded):
    """CTX-3: testSubtaskRestartAndRequestSplitsAgain; it must be signalled again."""
    recorded.register(0)
    recorded.context.signal_no_more_splits(0)
    recorded.reset(0)
    recorded.register(0)
    recorded.journal.clear()
    recorded.request(0)
    assert recorded.journal == [("handle_split_request", 0, None)]
    recorded.context.signal_no_more_splits(0)
    assert recorded.readers[0].no_more_signals == 1


def test_splits_after_no_more_splits_are_refused(recorded):
    """CTX-3: such a reader may have ended; a split for it would be lost."""
    recorded.register(0)
    recorded.context.signal_no_more_splits(0)
    with pytest.raises(ContractError) as caught:
        recorded.context.assign_splits({0: [Split("a")]})
    assert caught.value.rule == "CTX-3"


def test_registered_readers_is_a_read_only_view(recorded):
    """CTX-4: testRegisterReader, testTaskFailureUnregistersReader."""
    recorded.register(1, 0)
    before = recorded.context.registered_readers()
    assert dict(before) == {0: "host-0", 1: "host-1"} and list(before) == [0, 1]
    with pytest.raises(TypeError):
        before[2] = None
    recorded.coordinator.reader_failed(1)
    recorded.run()
    assert dict(recorded.context.registered_readers()) == {0: "host-0"}
    assert dict(before) == {0: "host-0", 1: "host-1"}
    assert recorded.context.current_parallelism() == 2


def test_async_work_runs_elsewhere_and_its_handler_in_a_step(recorded):
    """CTX-5: the callable off the coordinator, the handler on it."""
    trace = []
    recorded.context.call_async(lambda: trace.append("work") or 42, lambda result, error: trace.append((result, error)))
    recorded.run()
    assert trace == []
    recorded.runtime.run_submitted()
    assert trace == ["work"]
    recorded.run()
    assert trace == ["work", (42, None)]


def test_an_error_of_async_work_goes_to_the_handler(recorded):
    """CTX-6: the run survives unless the handler raises."""
    error, results = ValueError("no"), []

    def work():
        raise error

    recorded.context.call_async(work, lambda result, caught: results.append((result, caught)))
    recorded.run_until_idle()
    assert results == [(None, error)]
    assert recorded.coordinator.error is None


def test_an_error_of_a_handler_fails_the_run_with_that_object(recorded):
    """CTX-6: ExecutorNotifierTest, a handler error reaches the uncaught handler."""
    error = ValueError("no")

    def handler(_result, _error):
        raise error

    recorded.context.call_async(lambda: 1, handler)
    with pytest.raises(ValueError, match="no"):
        recorded.run_until_idle()
    assert recorded.coordinator.error is error
    assert recorded.coordinator.step() is Next.DONE


def test_a_periodic_call_keeps_its_rate_and_survives_errors(recorded):
    """CTX-7: fixed rate; an error in one run does not stop later runs."""
    runs, results = [], []

    def work():
        runs.append(recorded.runtime.clock.monotonic())
        raise OSError("down")

    recorded.context.call_async(work, lambda _result, error: results.append(type(error)), delay=1, period=10)
    assert recorded.wait() == 1
    for step in (1, 10, 10):
        recorded.advance(step)
    assert runs == [1, 11, 21] and results == [OSError] * 3


def test_the_runs_of_a_periodic_call_never_overlap(recorded):
    """CTX-7: a tick that comes due while the work still runs is skipped; the grid stays."""
    runs = []
    recorded.context.call_async(lambda: runs.append(1), lambda *_: None, period=10)
    recorded.run()
    recorded.runtime.clock.advance(25)
    recorded.run()
    assert len(recorded.runtime.submitted) == 1
    recorded.run_until_idle()
    assert recorded.wait() == 5
    recorded.advance(5)
    assert len(runs) == 2


@pytest.mark.parametrize("when", [{"delay": -1}, {"period": 0}])
def test_impossible_times_are_refused(recorded, when):
    with pytest.raises(ContractError) as caught:
        recorded.context.call_async(lambda: 1, lambda *_: None, **when)
    assert caught.value.rule == "CTX-7"


def test_an_action_is_queued_behind_what_waits(recorded):
    """CTX-8: runInCoordinatorThread queues."""
    recorded.coordinator.register_reader(0, None, lambda _message: None)
    recorded.context.run_in_coordinator_thread(lambda: recorded.journal.append("action"))
    recorded.run()
    assert recorded.journal[-2:] == [("add_reader", 0), "action"]


def test_an_error_of_an_action_fails_the_run(recorded):
    """CTX-8: testExceptionInRunnableFailsTheJob."""
    error = KeyError("x")

    def action():
        raise error

    recorded.context.run_in_coordinator_thread(action)
    with pytest.raises(KeyError):
        recorded.run()
    assert recorded.coordinator.error is error


class OnThreads:
    """A coordinator on a real thread of its own."""

    def __init__(self, scripted_source, recorder_class):
        self.runtime = ThreadRuntime()
        self.journal = []
        source = scripted_source(lambda context: recorder_class(context, self.journal))
        self.coordinator = Coordinator(source, self.runtime, parallelism=2, options=HostOptions())
        self.coordinator.start()
        self.coordinator.register_reader(0, None, self._receive)
        self.messages = []
        self.threads = []
        self.handle = self.runtime.start("coordinator", self.coordinator)

    def _receive(self, message):
        self.messages.append(message)
        self.threads.append(threading.current_thread().name)

    @property
    def context(self):
        return self.coordinator._context


@pytest.fixture
def on_threads(scripted_source, recorder_class):
    made = OnThreads(scripted_source, recorder_class)
    yield made
    made.coordinator.close(5)
    assert made.handle.join(5)


def test_a_call_from_a_foreign_thread_moves_to_the_coordinator_and_waits(on_threads):
    """CTX-9: testAssignSplitsFromOtherThread; the call returns once the coordinator thread has assigned."""
    handled = threading.Event()
    on_threads.context.run_in_coordinator_thread(handled.set)
    assert handled.wait(5)
    on_threads.context.assign_splits({0: [Split("a")]})
    assert on_threads.messages == [AddSplits((Split("a"),))]
    assert on_threads.threads == ["coordinator"]


def test_an_error_of_a_foreign_call_goes_to_its_caller_alone(on_threads):
    """CTX-9: testAssignSplitsToUnregisteredReader from another thread (CTX-2); the run goes on."""
    with pytest.raises(ContractError, match="not registered"):
        on_threads.context.assign_splits({1: [Split("a")]})
    assert on_threads.coordinator.error is None
    on_threads.context.assign_splits({0: [Split("a")]})


def test_a_foreign_caller_is_released_when_the_coordinator_closes(recorded):
    """CTX-9: a call to a coordinator that no longer steps fails instead of waiting for ever."""
    errors = []

    def call():
        try:
            recorded.context.signal_no_more_splits(0)
        except FatalError as error:
            errors.append(error.rule)

    thread = threading.Thread(target=call)
    thread.start()
    while not recorded.coordinator._inbox._calls:
        pass
    recorded.coordinator.close(5)
    thread.join(5)
    assert errors == ["CTX-9"]
    late = threading.Thread(target=call)
    late.start()
    late.join(5)
    assert errors == ["CTX-9", "CTX-9"]


def test_events_and_assignments_keep_their_order(recorded):
    """CTX-10: one channel per reader."""
    recorded.register(0)
    event = Ping()
    recorded.context.assign_splits({0: [Split("a")]})
    recorded.context.send_event_to_reader(0, event)
    recorded.context.assign_splits({0: [Split("b")]})
    recorded.context.signal_no_more_splits(0)
    assert [type(message) for message in recorded.readers[0].messages] == [
        AddSplits,
        EnumeratorEvent,
        AddSplits,
        NoMoreSplits,
    ]
    assert recorded.readers[0].events == [event]


def test_an_event_to_a_reader_that_is_not_there_is_an_error(recorded):
    """CTX-10: sending to a subtask that is not ready."""
    with pytest.raises(ContractError) as caught:
        recorded.context.send_event_to_reader(0, Ping())
    assert caught.value.rule == "CTX-10"


def test_work_in_flight_when_the_host_closes_is_dropped(recorded):
    """CTX-11: testCallableInterruptedDuringShutdownDoNotFailJob."""
    results = []

    def work():
        raise RuntimeError("interrupted")

    recorded.context.call_async(work, lambda *outcome: results.append(outcome))
    recorded.run()
    recorded.coordinator.close(0.0)
    recorded.runtime.run_submitted()
    assert recorded.coordinator.step() is Next.DONE
    assert results == [] and recorded.coordinator.error is None
