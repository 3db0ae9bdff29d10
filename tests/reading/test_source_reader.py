# SPDX-License-Identifier: Apache-2.0
"""RB-1 … RB-9, RDR and FM rules of the default reader, with real threads."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence

import pytest

from forebay.errors import ContractError, FatalError, RetriableError
from forebay.framework.reader import InputStatus, SourceReaderContext
from forebay.framework.reading.fetchers import HandOver
from forebay.framework.reading.source_reader import SourceReaderBase, create_reader
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.split import Split
from forebay.framework.split_reader import Fetched, SplitReader
from forebay.options import Duration
from forebay.testkit.scripted import Counting, CountingSplitReader, RecordingContext, RecordingOutput, counting_batch

PATIENCE = 300.0

pytestmark = pytest.mark.timeout(60)  # a reader that forgets to resume hangs, and each test takes less than a second


class Made(Counting):
    """A counting source over split readers a test makes; `makers` is by id, for sources must pickle."""

    maker: str = ""

    def create_split_reader(self, context: SourceReaderContext) -> SplitReader:
        return MAKERS[self.maker]()


MAKERS: dict[str, Callable[[], SplitReader]] = {}


def reader_over(
    make: Callable[[], SplitReader], *, threads: int | None = 1, **options: object
) -> tuple[SourceReaderBase, RecordingOutput, RecordingContext]:
    key = str(len(MAKERS))
    MAKERS[key] = make
    host = HostOptions(**options)  # type: ignore[arg-type]  # the test names its options
    context = RecordingContext(options=host)
    return SourceReaderBase(Made(sizes={}, threads=threads, maker=key), context, host), RecordingOutput(), context


def poll_until(reader: SourceReaderBase, output: RecordingOutput, what: Callable[[InputStatus], bool]) -> InputStatus:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        status = reader.poll_next(output)
        if what(status):
            return status
        if status is InputStatus.NOTHING_AVAILABLE:
            wait(reader)
    raise AssertionError(f"not reached in {PATIENCE} s; got {len(output.collected)} record batches")


def wait(reader: SourceReaderBase) -> None:
    done = threading.Event()
    reader.is_available().add_done_callback(lambda _: done.set())
    done.wait(1.0)


def until(what: Callable[[], bool]) -> None:
    """Poll until other threads make a condition true."""
    deadline = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def at_end(status: InputStatus) -> bool:
    return status is InputStatus.END_OF_INPUT


@pytest.mark.parametrize("threads", [1, 2, None])
@pytest.mark.parametrize("batch_rows", [1, 7, 1000])
def test_read_all_splits_in_order(threads: int | None, batch_rows: int) -> None:
    """RDR-6, FM-5: SourceReaderTestBase.testRead, over one fetcher, N, and one per split."""
    reader, output, _ = reader_over(lambda: CountingSplitReader(batch_rows), threads=threads)
    sizes = {"a": 100, "b": 0, "c": 33}
    reader.add_splits([Split(one, 0, size) for one, size in sizes.items()])
    reader.notify_no_more_splits()
    poll_until(reader, output, at_end)
    assert {one: output.rows(one) for one in sizes} == {one: list(range(size)) for one, size in sizes.items()}
    assert sorted(output.released) == sorted(sizes)
    assert reader.poll_next(output) is InputStatus.END_OF_INPUT
    reader.close()


def test_wake_up_loses_and_doubles_nothing_order_included() -> None:
    """SR-1, FET-3: SplitFetcherTest.testWakeup: 3 splits × 10,000 records, capacity 1, woken all the time."""
    woken = []

    class Waking(CountingSplitReader):
        def wake_up(self) -> None:
            woken.append(1)

    reader, output, _ = reader_over(lambda: Waking(batch_rows=5), queue_batches=1)
    reader.add_splits([Split(one, 0, 10_000) for one in "abc"])
    reader.notify_no_more_splits()
    fetcher = reader._fetchers._running["0"].fetcher
    stop = threading.Event()

    def wake() -> None:
        while not stop.is_set():
            fetcher.pause_or_resume([], [])  # a change that changes nothing, enqueued with a wake-up
            time.sleep(0.0002)

    waker = threading.Thread(target=wake)
    waker.start()
    try:
        poll_until(reader, output, at_end)
    finally:
        stop.set()
        waker.join()
    assert {one: output.rows(one) for one in "abc"} == {one: list(range(10_000)) for one in "abc"}
    assert woken
    reader.close()


def test_rdr1_asks_for_a_split_only_when_none_was_restored() -> None:
    """RDR-1: FileSourceReaderTest."""
    fresh, _, context = reader_over(CountingSplitReader)
    fresh.start()
    assert context.split_requests == 1
    restored, _, context = reader_over(CountingSplitReader)
    restored.add_splits([Split("a", 0, 1)])
    restored.start()
    assert context.split_requests == 0
    fresh.close()
    restored.close()


def test_rdr4_snapshot_has_every_unfinished_split_at_its_next_record() -> None:
    """RDR-4: SourceReaderTestBase.testSnapshot; unread splits too."""
    reader, output, _ = reader_over(lambda: CountingSplitReader(batch_rows=4))
    reader.add_splits([Split("a", 0, 8), Split("b", 3, 100)])
    assert [(one.id, one.position) for one in reader.snapshot_state(1)] == [("a", 0), ("b", 3)]
    reader.add_splits([unread := Split("c", None, 0)])
    assert unread in reader.snapshot_state(1), "also one that was not begun"
    reader.close()
    reader, output, _ = reader_over(lambda: CountingSplitReader(batch_rows=4))
    reader.add_splits([Split("a", 0, 8), Split("b", 3, 100)])
    poll_until(reader, output, lambda _: len(output.collected) == 3)
    expected = {"a": len(output.rows("a")), "b": 3 + len(output.rows("b"))}
    assert {one.id: one.position for one in reader.snapshot_state(2)} == expected
    poll_until(reader, output, lambda _: "a" in output.released)
    assert [one.id for one in reader.snapshot_state(3)] == ["b"]
    reader.close()


def test_rb1_an_error_overtakes_hand_overs_still_queued_but_not_records_in_hand() -> None:
    """RB-1: check errors with no hand-over in hand, before the queue."""
    in_hand = threading.Event()

    class Three(CountingSplitReader):
        fetches = 0

        def fetch(self) -> Sequence[Fetched]:
            self.fetches += 1
            if self.fetches == 1:
                return [Fetched("a", counting_batch("a", number, number + 1), number + 1) for number in range(2)]
            if self.fetches == 2:
                return [Fetched("a", counting_batch("a", 2, 3), 3)]
            in_hand.wait(PATIENCE)
            raise ValueError("third fetch")

    reader, output, _ = reader_over(Three)
    reader.add_splits([Split("a", 0, 5)])
    poll_until(reader, output, lambda _: len(output.collected) == 1)
    fetcher = reader._fetchers._running["0"].handle
    in_hand.set()
    assert fetcher.join(PATIENCE), "which has told its error by then"
    assert reader.poll_next(output) is InputStatus.MORE_AVAILABLE
    assert output.rows("a") == [0, 1]
    with pytest.raises(FatalError, match="third fetch"):
        poll_until(reader, output, at_end)
    assert output.rows("a") == [0, 1]
    reader.close()


def test_rb2_one_record_batch_per_poll_then_on_to_the_next_hand_over() -> None:
    """RB-2: one emission a poll; a used-up hand-over does not cost an empty poll."""
    fetches, fourth, on = itertools.count(1), threading.Event(), threading.Event()

    def fetching() -> None:
        if next(fetches) == 4:
            fourth.set()  # a fetch begins once the one before has handed over
            on.wait(PATIENCE)

    reader, output, _ = reader_over(lambda: CountingSplitReader(batch_rows=1, on_fetch=fetching), queue_batches=5)
    reader.add_splits([Split("a", 0, 4)])
    poll_until(reader, output, lambda _: len(output.collected) == 1)
    assert fourth.wait(PATIENCE)
    for count in (2, 3):
        assert reader.poll_next(output) is InputStatus.MORE_AVAILABLE
        assert len(output.collected) == count
    on.set()
    reader.close()


def test_rb3_a_split_is_finished_once_after_its_last_record_and_its_output_released() -> None:
    """RB-3, RB-4: state dropped, output released, one call for all; then recycle; nothing of it afterwards."""
    order: list[str] = []

    class Ordered(SourceReaderBase):
        def on_splits_finished(self, splits: Sequence[Split]) -> None:
            order.append("finished " + ",".join(f"{one.id}@{one.position}" for one in splits))

    MAKERS["rb3"] = lambda: CountingSplitReader(batch_rows=2)
    reader = Ordered(Made(sizes={}, maker="rb3"), RecordingContext(), HostOptions())
    output = RecordingOutput()
    reader.add_splits([Split("a", 0, 2)])
    poll_until(reader, output, lambda _: len(output.collected) == 1)
    assert order == []
    reader.notify_no_more_splits()
    poll_until(reader, output, at_end)
    assert order == ["finished a@2"]
    assert output.released == ["a"]
    reader.close()


def test_rb5_an_end_reported_twice_is_refused() -> None:
    """RB-5, SR-4: finished exactly once."""

    class Twice(CountingSplitReader):
        def fetch(self) -> Sequence[Fetched]:
            return [Fetched("a", None, 1, finished=True), Fetched("a", counting_batch("a", 1, 2), 2)]

    reader, output, _ = reader_over(Twice)
    reader.add_splits([Split("a", 0, 5)])
    with pytest.raises(ContractError, match="does not hold") as raised:
        poll_until(reader, output, at_end)
    assert (raised.value.rule, raised.value.split) == ("RB-5", "a")
    reader.close()


def test_rb6_left_over_hand_overs_are_read_before_the_end() -> None:
    """RB-6: testPollNextReturnMoreAvailableWhenAllSplitFetcherCloseWithLeftoverElementInQueue."""
    reader, output, _ = reader_over(lambda: CountingSplitReader(batch_rows=1), threads=None, queue_batches=50)
    reader.add_splits([Split(one, 0, 5) for one in "abcd"])
    reader.notify_no_more_splits()
    until(lambda: all(one.fetcher.is_idle() for one in reader._fetchers._running.values()))
    assert len(reader._queue._waiting) == 20
    poll_until(reader, output, at_end)
    assert sum(batch.num_rows for _, batch, _ in output.collected) == 20
    reader.close()


def test_rb6_an_exception_wins_over_the_end() -> None:
    """RB-6: FLINK-19717."""

    class FailAtEnd(CountingSplitReader):
        def close(self) -> None:
            raise OSError("close failed")

    reader, output, _ = reader_over(FailAtEnd)
    reader.add_splits([Split("a", 0, 5)])
    reader.notify_no_more_splits()
    with pytest.raises(FatalError, match="close failed"):
        for _ in range(1000):
            poll_until(reader, output, lambda _: True)
            time.sleep(0.001)
    reader.close()


@pytest.mark.parametrize("threads", [1, None])
def test_rdr6_a_reader_without_splits_ends_only_after_no_more_splits(threads: int | None) -> None:
    """RDR-6: after no-more-splits; never before, also once all its splits are read."""
    reader, output, _ = reader_over(CountingSplitReader, threads=threads)
    assert reader.poll_next(output) is InputStatus.NOTHING_AVAILABLE
    reader.add_splits([Split("a", 0, 5)])
    poll_until(reader, output, lambda _: "a" in output.released)
    for _ in range(20):
        assert reader.poll_next(output) is not InputStatus.END_OF_INPUT
        time.sleep(0.01)
    reader.notify_no_more_splits()
    assert reader.is_available().done()
    assert poll_until(reader, output, at_end) is InputStatus.END_OF_INPUT
    reader.close()


def test_rb7_available_while_something_is_in_hand() -> None:
    """RB-7: done while there is a current hand-over, the queue's future otherwise."""
    reader, output, _ = reader_over(lambda: CountingSplitReader(batch_rows=5))
    assert not reader.is_available().done()
    reader.add_splits([Split("a", 0, 5)])
    poll_until(reader, output, lambda _: len(output.collected) == 1)
    assert reader.is_available().done()
    reader.close()


def test_rb8_a_fetcher_error_surfaces_with_its_cause_and_again_at_every_poll() -> None:
    """RB-8, FM-1: testExceptionInSplitReader, testExceptionPropagation: the same root cause each time."""
    boom = KeyError("boom")

    def fail() -> None:
        raise boom

    reader, output, _ = reader_over(lambda: CountingSplitReader(on_fetch=fail))
    reader.add_splits([Split("a", 0, 5)])
    reader.notify_no_more_splits()
    for _ in range(2):
        with pytest.raises(FatalError, match="KeyError") as raised:
            poll_until(reader, output, at_end)
        assert raised.value.__cause__ is boom
        assert raised.value.source == "made"
    reader.close()


def test_fm1_a_typed_error_keeps_its_type() -> None:
    """FM-1: the user sees the connector's error."""

    def fail() -> None:
        raise RetriableError("throttled", advice="wait")

    reader, output, _ = reader_over(lambda: CountingSplitReader(on_fetch=fail), retries=0)
    reader.add_splits([Split("a", 0, 5)])
    with pytest.raises(RetriableError, match="throttled"):
        poll_until(reader, output, at_end)
    reader.close()


@pytest.mark.parametrize("can_pause", [True, False])
def test_rdr8_a_paused_split_emits_nothing_and_goes_on_from_the_same_record(*, can_pause: bool) -> None:
    """RDR-8, SR-5, FM-4: with a split reader that pauses itself, and with the framework's buffer."""
    reader, output, _ = reader_over(lambda: CountingSplitReader(batch_rows=1, can_pause=can_pause), queue_batches=3)
    reader.add_splits([Split("a", 0, 500), Split("b", 0, 500)])
    reader.notify_no_more_splits()
    poll_until(reader, output, lambda _: len(output.rows("a")) >= 50)
    reader.pause_or_resume_splits(["a", "unknown"], [])
    before = output.rows("a")
    poll_until(reader, output, lambda _: "b" in output.released)
    assert output.rows("a") == before
    assert output.rows("b") == list(range(500))
    reader.pause_or_resume_splits([], ["a"])
    poll_until(reader, output, at_end)
    assert output.rows("a") == list(range(500))
    reader.close()


def test_rdr8_the_gate_is_bounded_and_opens_again() -> None:
    """RDR-8 (ours): once too much is held for paused splits, fetching stops until they resume."""
    reader, output, _ = reader_over(lambda: CountingSplitReader(batch_rows=100, can_pause=False), queue_bytes=10_000)
    reader.add_splits([Split("a", 0, 100_000)])
    reader.notify_no_more_splits()
    poll_until(reader, output, lambda _: len(output.collected) == 1)
    reader.pause_or_resume_splits(["a"], [])
    for _ in range(200):
        reader.poll_next(output)
        time.sleep(0.001)
    assert reader._held_bytes < 30_000
    reader.pause_or_resume_splits([], ["a"])
    poll_until(reader, output, at_end)
    assert output.rows("a") == list(range(100_000))
    reader.close()


@pytest.mark.parametrize("when", ["fetching", "queue full"])
def test_rdr9_close_is_bounded_and_leaves_no_thread(when: str) -> None:
    """RDR-9: while a fetch is blocked, while the queue is full."""
    fetching, released = threading.Event(), threading.Event()

    class Blocking(CountingSplitReader):
        def wake_up(self) -> None:
            released.set()

    def block() -> None:
        fetching.set()
        if when == "fetching":
            released.wait(PATIENCE)

    reader, _, _ = reader_over(lambda: Blocking(batch_rows=1, on_fetch=block), queue_batches=1)
    before = threading.active_count()
    reader.add_splits([Split("a", 0, 1000)])
    assert fetching.wait(PATIENCE)
    if when == "queue full":
        until(lambda: bool(reader._queue._refused))
    reader.close()
    reader.close()
    assert threading.active_count() == before


def test_rdr9_a_thread_that_will_not_come_back_is_named() -> None:
    """RDR-9: abandoned after the close time-out, with an error."""
    fetching, release = threading.Event(), threading.Event()

    def block() -> None:
        fetching.set()
        release.wait(PATIENCE)

    reader, _, _ = reader_over(lambda: CountingSplitReader(on_fetch=block), close_timeout=Duration(0.2))
    reader.add_splits([Split("a", 0, 1000)])
    assert fetching.wait(PATIENCE)
    with pytest.raises(FatalError, match="made fetcher 0"):
        reader.close()
    release.set()


def test_fm3_no_splits_after_close() -> None:
    """FM-3: creating a fetcher after close is an error; closing with dead fetchers, and twice, is not."""
    reader, _, _ = reader_over(CountingSplitReader)
    manager = reader._fetchers
    manager.add_splits([Split("a", 0, 3)])
    assert manager.close(5.0) == []
    assert manager.close(5.0) == []
    with pytest.raises(FatalError, match="closed"):
        manager.add_splits([Split("b", 0, 3)])


def test_fm2_an_ended_fetcher_is_replaced_when_a_split_comes() -> None:
    """FM-2: testIdleShutdown…, testAddSplitToExistingFetcher."""
    made: list[CountingSplitReader] = []

    def make() -> SplitReader:
        made.append(CountingSplitReader())
        return made[-1]

    reader, output, _ = reader_over(make, threads=None)
    for one in ("a", "b"):
        reader.add_splits([Split(one, 0, 5)])
        poll_until(reader, output, lambda _, one=one: one in output.released)
        poll_until(reader, output, lambda status: status is InputStatus.NOTHING_AVAILABLE)
    assert len(made) == 2
    reader.close()


def test_out4_the_output_of_a_split_opens_before_its_first_record() -> None:
    """OUT-4: from the moment the split is added, not from its first record."""
    reader, output, _ = reader_over(lambda: CountingSplitReader(can_pause=True))
    reader.add_splits([Split("a", 0, 5), Split("b", 0, 5)])
    reader.pause_or_resume_splits(["a", "b"], [])
    reader.poll_next(output)
    assert output.added == ["a", "b"]
    reader.close()


def test_spl1_a_split_given_twice_is_refused() -> None:
    """SPL-1: Flink silently overwrites the state; we refuse."""
    reader, _, _ = reader_over(CountingSplitReader)
    reader.add_splits([Split("a", 0, 5)])
    with pytest.raises(ContractError, match="already holds"):
        reader.add_splits([Split("a", 3, 5)])
    reader.close()


class _Step(CountingSplitReader):
    """Returns positions that a test chooses."""

    def __init__(self, *parts: Fetched) -> None:
        super().__init__()
        self._parts = list(parts)

    def fetch(self) -> Sequence[Fetched]:
        return [self._parts.pop(0)] if self._parts else []


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([Fetched("a", counting_batch("a", 0, 1), 0)], "stayed at 0"),
        ([Fetched("a", counting_batch("a", 0, 1), None)], "stayed at 0"),
        ([Fetched("a", counting_batch("a", 0, 1), 900)], "beyond the end 700"),
        ([Fetched("a", counting_batch("a", 0, 1), 50), Fetched("a", counting_batch("a", 0, 1), 20)], "went backwards"),
    ],
)
def test_sr2_positions_must_move_forward_and_stop_at_the_end(parts: list[Fetched], message: str) -> None:
    """SR-2 (ours), host-traps 20: positions that would repeat or lose records are refused at once."""
    reader, output, _ = reader_over(lambda: _Step(*parts))
    reader.add_splits([Split("a", 0, 700)])
    with pytest.raises(ContractError, match=message):
        poll_until(reader, output, at_end)
    reader.close()


def test_create_reader_prefers_the_sources_own() -> None:
    """`create_reader` returns None for the default reader."""
    supplied = create_reader(Counting(sizes={}), RecordingContext(), HostOptions())
    assert type(supplied) is SourceReaderBase
    supplied.close()


def test_rb4_a_hand_over_is_recycled_once_on_the_poll_that_finds_it_used_up() -> None:
    """RB-4: never while a record of it is pending; testRecordsWithSplitsNotRecycledWhenRecordsLeft, …WhenEmpty."""
    recycled: list[int] = []

    class Silent(CountingSplitReader):
        def fetch(self) -> Sequence[Fetched]:
            threading.Event().wait(0.01)
            return []

    reader, output, _ = reader_over(Silent)
    reader.add_splits([Split("a", 0, 2)])
    parts = [Fetched("a", counting_batch("a", number, number + 1), number + 1) for number in range(2)]
    reader._queue.offer(HandOver(parts, recycle=lambda: recycled.append(1)), threading.Event())
    for expected in (1, 2):
        poll_until(reader, output, lambda _, expected=expected: len(output.collected) >= expected)
        assert recycled == []
    reader.poll_next(output)
    assert recycled == [1]
    reader.close()


def test_rdr2_polling_never_blocks_while_a_fetch_does() -> None:
    """RDR-2: poll_next comes back at once with NOTHING_AVAILABLE."""
    release = threading.Event()
    reader, output, _ = reader_over(lambda: CountingSplitReader(on_fetch=lambda: release.wait(PATIENCE)))
    reader.add_splits([Split("a", 0, 5)])
    began = time.monotonic()
    statuses = {reader.poll_next(output) for _ in range(100)}
    blocked = time.monotonic() - began
    release.set()
    assert InputStatus.END_OF_INPUT not in statuses
    assert blocked < PATIENCE / 2
    reader.close()


def test_rdr3_a_reader_is_driven_by_its_futures_alone_without_spinning() -> None:
    """RDR-3: no hang, and no more polls than data and false hints account for."""
    reader, output, _ = reader_over(lambda: CountingSplitReader(batch_rows=10, on_fetch=lambda: time.sleep(0.001)))
    reader.add_splits([Split("a", 0, 500)])
    reader.notify_no_more_splits()
    polls = 0
    while (status := reader.poll_next(output)) is not InputStatus.END_OF_INPUT:
        polls += 1
        if status is InputStatus.NOTHING_AVAILABLE:
            arrived = threading.Event()
            reader.is_available().add_done_callback(lambda _, arrived=arrived: arrived.set())
            assert arrived.wait(PATIENCE)
    assert output.rows("a") == list(range(500))
    assert polls < 4 * 50 + 20
    reader.close()


def test_rdr7_splits_may_be_added_while_others_are_read() -> None:
    """RDR-7, SRC-4: at any time before no-more-splits."""
    reader, output, _ = reader_over(lambda: CountingSplitReader(batch_rows=3))
    for number in range(5):
        reader.add_splits([Split(str(number), number, 30)])
        poll_until(reader, output, lambda _, number=number: len(output.collected) > number)
    reader.notify_no_more_splits()
    poll_until(reader, output, at_end)
    assert {one: output.rows(one) for one in output.added} == {str(one): list(range(one, 30)) for one in range(5)}
    reader.close()


def test_rec2_the_position_moves_after_the_batch_went_out() -> None:
    """REC-2: an interruption between emit and update repeats records, and loses none."""

    class Full(RecordingOutput):
        def collect(self, split_id, batch, position):
            raise MemoryError("downstream is full")

    reader, _, _ = reader_over(lambda: CountingSplitReader(batch_rows=3))
    reader.add_splits([Split("a", 0, 30)])
    with pytest.raises(MemoryError):
        poll_until(reader, Full(), at_end)
    assert [one.position for one in reader.snapshot_state(1)] == [0]
    reader.close()


def test_rdr9_a_split_reader_that_fails_to_close_is_reported() -> None:
    """RDR-9, SR-6: an error of closing is not swallowed."""

    class Stuck(CountingSplitReader):
        def close(self) -> None:
            raise FatalError("read() did not return within closeTimeout", split="a", rule="RDR-9")

    reader, output, _ = reader_over(lambda: Stuck(batch_rows=1))
    reader.add_splits([Split("a", 0, 1000)])
    poll_until(reader, output, lambda _: bool(output.collected))
    with pytest.raises(FatalError, match="did not return within closeTimeout"):
        reader.close()
