# SPDX-License-Identifier: Apache-2.0
"""FET-1 … FET-6: one fetcher, stepped by hand."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
from manual_clock import ManualClock

from forebay.errors import ContractError, ForebayError, RetriableError
from forebay.framework.reading.fetchers import Fetcher, HandOver, HandOverQueue
from forebay.framework.runtime.runtime import Next, ThreadRuntime, WaitFor
from forebay.framework.split import Split
from forebay.framework.split_reader import Fetched, SplitReader
from forebay.retry import RetryPolicy
from forebay.testkit.scripted import CountingSplitReader, counting_batch


class Bench:
    """A fetcher, its queue, and its errors."""

    def __init__(
        self,
        reader: SplitReader,
        *,
        capacity: int = 2,
        retries: int = 2,
        until_caught_up: bool = False,
        clock: ManualClock | None = None,
        runtime: ThreadRuntime | None = None,
    ) -> None:
        runtime = runtime or ThreadRuntime(clock, seed=1)
        self.errors: list[ForebayError] = []
        self.queue = HandOverQueue(runtime, capacity, 1 << 30)
        self.fetcher = Fetcher(
            "bench",
            reader,
            self.queue,
            runtime,
            retry=RetryPolicy(retries=retries),
            until_caught_up=until_caught_up,
            on_error=self.errors.append,
        )

    def steps_until_wait(self) -> None:
        for _ in range(1000):
            if self.fetcher.step() is not Next.AGAIN:
                return
        raise AssertionError("the fetcher never waits")

    def drain(self) -> list[Fetched]:
        parts: list[Fetched] = []
        while True:
            self.steps_until_wait()
            hand_over = self.queue.poll()
            if hand_over is None:
                return parts
            parts.extend(hand_over.fetched)
            if hand_over.recycle is not None:
                hand_over.recycle()


def test_fet1_changes_come_first_in_order_then_fetches() -> None:
    """FET-1: queued changes in FIFO order, then fetch, then wait."""
    calls: list[str] = []

    class Reader(CountingSplitReader):
        def add_splits(self, splits: Sequence[Split]) -> None:
            calls.append("add " + ",".join(split.id for split in splits))
            super().add_splits(splits)

        def fetch(self) -> Sequence[Fetched]:
            calls.append("fetch")
            return super().fetch()

    bench = Bench(Reader())
    bench.fetcher.add_splits([Split("a", 0, 5)])
    bench.fetcher.add_splits([Split("b", 0, 5)])
    bench.drain()
    assert calls == ["add a", "add b", "fetch", "fetch"]
    assert bench.fetcher.step() is Next.WAIT


def test_fet2_a_change_wakes_a_running_fetch() -> None:
    """FET-2: enqueue and wake the running one."""
    reader = CountingSplitReader()
    bench = Bench(reader)
    bench.fetcher.add_splits([Split("a", 0, 100)])
    bench.fetcher.step()
    reader.on_fetch = lambda: bench.fetcher.add_splits([Split("b", 0, 1)])
    bench.fetcher.step()
    assert reader.wake_ups == 1


def test_fet3_a_refused_hand_over_is_offered_again_before_any_new_fetch() -> None:
    """FET-3: no record is lost or repeated."""
    bench = Bench(CountingSplitReader(batch_rows=1), capacity=1)
    bench.fetcher.add_splits([Split("a", 0, 50)])
    values: list[object] = []
    for _ in range(1000):
        for _ in range(5):
            bench.fetcher.step()  # woken while the queue is full, often
        hand_over = bench.queue.poll()
        if hand_over is None:
            continue
        values += [value for part in hand_over.fetched if part.batch for value in part.batch.column("n").to_pylist()]
    assert values == list(range(50))


def test_fet4_a_finished_split_leaves_only_after_its_end_is_in_the_queue() -> None:
    """FET-4: while the last hand-over waits for room the fetcher is not idle."""
    bench = Bench(CountingSplitReader(), capacity=1)
    bench.queue.offer(HandOver([]), bench.fetcher.signal)
    bench.fetcher.add_splits([Split("a", 0, 3)])
    bench.steps_until_wait()
    assert not bench.fetcher.is_idle()
    bench.queue.poll()
    bench.steps_until_wait()
    assert bench.fetcher.is_idle()


def test_fet5_a_new_fetcher_is_idle_and_one_with_a_split_is_not() -> None:
    """FET-5: testNewFetcherIsIdle, testFetcherNotIdleAfterSplitAdded."""
    bench = Bench(CountingSplitReader())
    assert bench.fetcher.is_idle()
    bench.fetcher.add_splits([Split("a", 0, 3)])
    assert not bench.fetcher.is_idle()


def test_fet5_going_idle_completes_waiting_futures() -> None:
    """FET-5: testNotifiesWhenGoingIdle, testNotifiesOlderFuture."""
    bench = Bench(CountingSplitReader())
    bench.fetcher.add_splits([Split("a", 0, 3)])
    bench.steps_until_wait()
    bench.queue.poll()
    waiting = bench.queue.availability()
    assert not waiting.done()
    bench.fetcher.step()
    assert waiting.done()


@pytest.mark.parametrize("state", ["new", "reading", "full", "paused", "idle"])
def test_fet6_closes_from_every_state(state: str) -> None:
    """FET-6, SR-6: running, blocked at the queue, paused; the reader is closed exactly once."""
    reader = CountingSplitReader()
    bench = Bench(reader, capacity=1)
    if state in ("reading", "full", "paused"):
        bench.fetcher.add_splits([Split("a", 0, 1000)])
    if state == "paused":
        bench.fetcher.pause_or_resume(["a"], [])
    if state in ("full", "paused", "idle"):
        bench.steps_until_wait()
    bench.fetcher.close()
    assert bench.fetcher.step() is Next.DONE
    assert reader.closed == 1
    assert bench.errors == []


def test_fet6_closing_after_recycling_waits_for_everything_handed_over() -> None:
    """FET-6: the split reader closes only once the marker after all earlier hand-overs is recycled."""
    reader = CountingSplitReader()
    bench = Bench(reader)
    bench.fetcher.add_splits([Split("a", 0, 3)])
    bench.steps_until_wait()
    bench.fetcher.close(after_recycling=True)
    bench.steps_until_wait()
    first, marker = bench.queue.poll(), bench.queue.poll()
    assert first is not None
    assert marker is not None
    assert bench.fetcher.step() is Next.WAIT
    assert reader.closed == 0
    assert marker.recycle is not None
    marker.recycle()
    assert bench.fetcher.step() is Next.DONE
    assert reader.closed == 1


def test_sr6_an_error_closes_the_reader_once_and_is_reported_once() -> None:
    """SR-6, FM-1: close on the path of an error too."""
    reader = CountingSplitReader()
    boom = KeyError("boom")

    def fail() -> None:
        raise boom

    reader.on_fetch = fail
    bench = Bench(reader)
    bench.fetcher.add_splits([Split("a", 0, 3)])
    bench.fetcher.step()
    assert bench.fetcher.step() is Next.DONE
    assert [error.__cause__ for error in bench.errors] == [boom]
    assert (bench.errors[0].source, bench.errors[0].split) == ("bench", "a")
    assert reader.closed == 1


def test_a_retriable_error_is_tried_again_with_back_off_and_then_surfaces() -> None:
    """The framework retries; after that many failures in a row the error ends the read."""
    reader = CountingSplitReader()
    failures = [RetriableError("one"), RetriableError("two")]

    def fail() -> None:
        if failures:
            raise failures.pop(0)

    reader.on_fetch = fail
    bench = Bench(reader, retries=2)
    bench.fetcher.add_splits([Split("a", 0, 3)])
    bench.fetcher.step()
    waits = []
    while not bench.queue.availability().done():
        result = bench.fetcher.step()
        if isinstance(result, WaitFor):
            waits.append(result.seconds)
            bench.fetcher._retry_at = 0.0
    assert [0 < wait < 2 for wait in waits] == [True, True]
    failures += [RetriableError(str(number)) for number in range(3)]
    bench.fetcher.add_splits([Split("b", 0, 3)])
    for _ in range(10):
        bench.fetcher._retry_at = 0.0
        bench.fetcher.step()
    assert [error.message.startswith("2 (3 tries in ") for error in bench.errors] == [True]


class OneIsDown(CountingSplitReader):
    """Every second fetch fails for the split `down`; the other ones bring something of another split."""

    def __init__(self, *, caught_up: bool = False) -> None:
        super().__init__()
        self.tries = self.fetches = 0
        self.caught_up = caught_up

    def fetch(self) -> Sequence[Fetched]:
        self.fetches += 1
        if self.fetches % 2:
            self.tries += 1
            raise RetriableError("no answer", split="down")
        at = self.fetches // 2
        return [
            Fetched("well", None if self.caught_up else counting_batch("well", at, 1), at, caught_up=self.caught_up)
        ]


@pytest.mark.parametrize("caught_up", [False, True])
def test_a_split_that_always_fails_is_an_error_however_well_another_one_does(
    caplog: pytest.LogCaptureFixture, caught_up: bool
) -> None:
    """Otherwise its failure would go unnoticed, and its records would never arrive."""
    reader = OneIsDown(caught_up=caught_up)
    bench = Bench(reader, capacity=1000, retries=2)
    bench.fetcher.add_splits([Split("down", 0), Split("well", 0)])
    for _ in range(100):
        bench.fetcher._retry_at = 0.0
        if bench.fetcher.step() is Next.DONE:
            break
    assert [(error.message[:20], error.split) for error in bench.errors] == [("no answer (3 tries i", "down")]
    assert reader.tries == 3
    assert [record.getMessage().partition("(try ")[2][0] for record in caplog.records] == ["1", "2"]


def test_a_pause_that_a_service_asks_for_holds_every_fetcher_of_its_source(caplog) -> None:
    """Readers that share a rate limit pause together."""
    caplog.set_level(logging.INFO)
    clock = ManualClock()
    runtime = ThreadRuntime(clock)
    readers = [CountingSplitReader(), CountingSplitReader()]
    benches = [Bench(reader, runtime=runtime) for reader in readers]

    def refuse() -> None:
        raise RetriableError("429", retry_after=30)

    readers[0].on_fetch = refuse
    for bench in benches:
        bench.fetcher.add_splits([Split("a", 0, 3)])
        bench.fetcher.step()
    assert benches[0].fetcher.step() == WaitFor(30)
    clock.advance(10)
    assert [benches[1].fetcher.step() for _ in range(2)] == [WaitFor(20)] * 2
    waits = [record.getMessage() for record in caplog.records if "another reader" in record.getMessage()]
    assert len(waits) == 1 and "fetch() waits 20.0 s, as the service asked" in waits[0]
    clock.advance(20)
    assert benches[1].fetcher.step() is Next.AGAIN
    assert not benches[1].errors


def test_a_pause_that_ends_a_read_holds_no_other_reader() -> None:
    """It is longer than `retryTimeout`. Whoever reads next, perhaps another service, asks for itself."""
    runtime = ThreadRuntime(ManualClock())
    readers = [CountingSplitReader(), CountingSplitReader()]
    benches = [Bench(reader, runtime=runtime) for reader in readers]

    def refuse() -> None:
        raise RetriableError("429", retry_after=999_999_999)

    readers[0].on_fetch = refuse
    for bench in benches:
        bench.fetcher.add_splits([Split("a", 0, 3)])
        bench.fetcher.step()
        bench.fetcher.step()
    assert [error.message[:18] for error in benches[0].errors] == ["429 (1 try in 0.0 "]
    assert not benches[1].errors and benches[1].fetcher.step() is Next.AGAIN


def test_failures_that_lie_far_apart_are_not_in_a_row() -> None:
    """A quiet split delivers nothing between failures, although each retry succeeded."""
    clock = ManualClock()
    bench = Bench(OneIsDown(), capacity=1000, retries=2, clock=clock)
    bench.fetcher.add_splits([Split("down", 0), Split("well", 0)])
    for _ in range(50):
        clock.advance(601)
        bench.fetcher.step()
    assert bench.errors == []


def test_rb5_records_of_a_split_that_was_never_added_are_refused() -> None:
    """RB-5: the id is named."""

    class Stray(CountingSplitReader):
        def fetch(self) -> Sequence[Fetched]:
            return [Fetched("stray", counting_batch("stray", 0, 1), 1)]

    bench = Bench(Stray())
    bench.fetcher.add_splits([Split("a", 0, 3)])
    bench.fetcher.step()
    bench.fetcher.step()
    (error,) = bench.errors
    assert isinstance(error, ContractError)
    assert (error.rule, error.split) == ("RB-5", "stray")


def test_until_caught_up_finishes_an_open_split_and_ignores_what_follows() -> None:
    """A host that reads once treats "caught up" as the end."""

    class Tail(CountingSplitReader):
        def fetch(self) -> Sequence[Fetched]:
            return [Fetched("a", counting_batch("a", 0, 2), 2), Fetched("a", caught_up=True), Fetched("a", None, 9)]

    bench = Bench(Tail(), until_caught_up=True)
    bench.fetcher.add_splits([Split("a")])
    parts = bench.drain()
    assert [part.finished for part in parts] == [False, True]
    assert bench.fetcher.is_idle()
    assert bench.errors == []


def test_until_caught_up_does_not_hide_records_of_unknown_splits() -> None:
    """RB-5: only splits that the fetcher finished itself, once caught up, are skipped."""

    class Stray(CountingSplitReader):
        def fetch(self) -> Sequence[Fetched]:
            return [Fetched("A", counting_batch("A", 0, 2), 2)]

    bench = Bench(Stray(), until_caught_up=True)
    bench.fetcher.add_splits([Split("a")])
    bench.fetcher.step()
    bench.fetcher.step()
    assert [(error.rule, error.split) for error in bench.errors] == [("RB-5", "A")]
