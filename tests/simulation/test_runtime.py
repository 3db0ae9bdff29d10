# SPDX-License-Identifier: Apache-2.0
"""The simulated runtime: the order of steps, virtual time, and misuse of locks."""

from __future__ import annotations

import random

import pytest
from forebay_simulator import Livelock, Schedule, SimulatedRuntime

from forebay.framework.runtime.runtime import Next, WaitFor


class Scripted:
    """Returns the outcomes of a list, or of its functions, then DONE."""

    def __init__(self, runtime, *script):
        self.signal = runtime.signal()
        self.script = list(script)
        self.times = []
        self.runtime = runtime

    def step(self):
        self.times.append(self.runtime.clock.monotonic())
        if not self.script:
            return Next.DONE
        outcome = self.script.pop(0)
        return outcome() if callable(outcome) else outcome


def make(seed=1, **schedule):
    return SimulatedRuntime(random.Random(seed), schedule=Schedule(**schedule), max_steps=1000)


def run(runtime):
    while runtime.step():
        pass


def test_time_passes_only_when_nobody_can_step():
    runtime = make()
    one = Scripted(runtime, Next.AGAIN, WaitFor(5.0))
    other = Scripted(runtime, Next.AGAIN, Next.AGAIN, Next.AGAIN)
    runtime.start("one", one)
    runtime.start("other", other)
    run(runtime)
    assert one.times == [0.0, 0.0, pytest.approx(5.0)]
    assert other.times == [0.0] * 4
    assert runtime.alive() == []


def test_time_may_pass_although_somebody_could_step_if_the_seed_says_so():
    runtime = make(jump=0.5)
    worker = Scripted(runtime, *[Next.AGAIN] * 20)
    runtime.start("worker", worker)
    run(runtime)
    assert worker.times == sorted(worker.times) and worker.times[-1] > 0


def test_who_waits_steps_when_signalled_and_a_signal_before_the_wait_counts():
    runtime = make()
    worker = Scripted(runtime, Next.WAIT)
    runtime.start("worker", worker)
    run(runtime)
    assert len(worker.times) == 1 and runtime.alive() == ["worker"]
    worker.signal.set()
    run(runtime)
    assert len(worker.times) == 2
    early = Scripted(runtime, lambda: early.signal.set() or Next.WAIT)
    runtime.start("early", early)
    run(runtime)
    assert len(early.times) == 2


def test_the_seed_decides_who_steps():
    def order(seed):
        runtime, steps = make(seed), []
        for name in "abc":
            runtime.start(name, Scripted(runtime, *[lambda name=name: steps.append(name) or Next.AGAIN] * 5))
        run(runtime)
        return "".join(steps)

    assert order(1) == order(1)
    assert len({order(seed) for seed in range(10)}) == 10


def test_a_wait_inside_a_step_happens_behind_it():
    runtime = make()
    signal = runtime.signal()
    worker = Scripted(runtime, lambda: Next.AGAIN if not signal.wait(3.0) else Next.DONE)
    runtime.start("worker", worker)
    run(runtime)
    assert worker.times == [0.0, pytest.approx(3.0)]
    patient = Scripted(runtime, lambda: Next.AGAIN if not signal.wait() else Next.DONE)
    runtime.start("patient", patient)
    run(runtime)
    assert len(patient.times) == 1
    signal.set()
    run(runtime)
    assert len(patient.times) == 2
    assert signal.wait(1.0)


def test_a_join_steps_the_others_or_lets_time_pass():
    runtime = make()
    asleep = runtime.start("asleep", Scripted(runtime, WaitFor(10.0)))
    assert not asleep.join(4.0)
    assert runtime.clock.monotonic() == pytest.approx(4.0)
    assert asleep.join(100.0) and not asleep.alive()
    assert runtime.clock.monotonic() == pytest.approx(10.0)


def test_a_join_on_somebody_who_never_ends_is_given_up():
    runtime = make()
    busy = runtime.start("busy", Scripted(runtime, *[Next.AGAIN] * 900))
    assert not busy.join(1.0)
    assert runtime.clock.monotonic() >= 1.0


def test_a_job_runs_later_and_tells_later_still():
    delays = iter((2.0, 3.0))
    runtime = SimulatedRuntime(random.Random(1), job_delay=lambda: next(delays))
    results = []
    now = runtime.clock.monotonic
    runtime.submit("job", now, lambda result, error: results.extend((result, error, now())))
    run(runtime)
    assert results[1] is None
    assert [results[0], results[2]] == [pytest.approx(2.0), pytest.approx(5.0)]


def test_a_failing_job_tells_its_error():
    runtime, results = make(), []
    runtime.submit("job", lambda: 1 // 0, lambda result, error: results.append((result, type(error))))
    assert runtime.alive() == [] and runtime.alive(jobs=True) == ["job"]
    run(runtime)
    assert results == [(None, ZeroDivisionError)]


def test_others_step_around_locks_and_inside_blocking_calls_but_never_under_a_lock():
    runtime = make(interrupt=1.0)
    lock, others, inside = runtime.lock(), [], []

    def locked():
        with lock:
            inside.append(True)
            with runtime.lock():
                pass
            inside.pop()
        return Next.AGAIN

    runtime.start("holder", Scripted(runtime, locked, lambda: runtime.interleave() or Next.AGAIN))
    runtime.start(
        "other", Scripted(runtime, *[lambda: others.append((bool(inside), runtime.steps)) or Next.AGAIN] * 50)
    )
    run(runtime)
    assert runtime.problem is None
    assert others and not any(under for under, _ in others)


def test_a_worker_is_never_stepped_inside_its_own_step():
    runtime = make(interrupt=1.0)
    lock, depth, deepest = runtime.lock(), [], []

    def nested():
        depth.append(1)
        deepest.append(len(depth))
        with lock:
            pass
        depth.pop()
        return Next.AGAIN

    runtime.start("one", Scripted(runtime, *[nested] * 20))
    run(runtime)
    assert set(deepest) == {1}


def test_a_lock_taken_twice_is_a_problem():
    runtime = make()
    lock = runtime.lock()

    def twice():
        with lock, lock:
            return Next.DONE

    runtime.start("greedy", Scripted(runtime, twice))
    run(runtime)
    assert runtime.problem == "a lock is taken again by its holder, in a step of greedy"


def test_a_lock_held_at_the_end_of_a_step_is_a_problem():
    runtime = make()
    lock = runtime.lock()
    runtime.start("keeper", Scripted(runtime, lambda: lock.__enter__() and Next.AGAIN))
    runtime.step()
    assert runtime.problem == "a lock is held at the end of a step, in a step of keeper"


def test_a_join_under_a_lock_is_a_problem():
    runtime = make()
    handle = runtime.start("other", Scripted(runtime))
    with runtime.lock():
        handle.join(1.0)
    assert runtime.problem is not None and "a join under a lock" in runtime.problem


def test_too_many_steps_are_a_livelock():
    runtime = make()
    runtime.start("spinner", Scripted(runtime, *[Next.AGAIN] * 2000))
    with pytest.raises(Livelock, match="no end after 1000 steps"):
        run(runtime)


def test_a_stalled_worker_steps_later_although_signalled():
    runtime = make()
    worker = Scripted(runtime, Next.WAIT)
    runtime.start("worker", worker)
    runtime.step()
    assert runtime.stall(7.0, but="nobody") == "worker"
    worker.signal.set()
    run(runtime)
    assert worker.times == [0.0, pytest.approx(7.0)]
