# SPDX-License-Identifier: Apache-2.0
"""RB-5 and RB-6 in rare interleavings of threads, forced at the step where they matter."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from forebay.errors import ContractError, FatalError
from forebay.framework.reader import InputStatus, SourceReaderContext
from forebay.framework.reading.fetchers import HandOver
from forebay.framework.reading.source_reader import SourceReaderBase
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.split import Split
from forebay.framework.split_reader import Fetched, SplitReader
from forebay.testkit.scripted import Counting, CountingSplitReader, RecordingContext, RecordingOutput, counting_batch

ROWS = Fetched("a", counting_batch("a", 0, 1), 1)
END = Fetched("a", None, 0, finished=True)

NOTHING = InputStatus.NOTHING_AVAILABLE
MORE = InputStatus.MORE_AVAILABLE
ENDED = InputStatus.END_OF_INPUT


class Silent(Counting):
    """A source whose fetches wait until the reader is closed."""

    def create_split_reader(self, context: SourceReaderContext) -> SplitReader:
        released = threading.Event()

        class Waiting(CountingSplitReader):
            def wake_up(self) -> None:
                released.set()

        def wait() -> None:
            released.wait(300)

        return Waiting(on_fetch=wait)


class Steps:
    """A reader, and actions at the step where it checks for running fetchers."""

    def __init__(self, threads: int | None) -> None:
        self.output = RecordingOutput()
        self.recycled = 0
        self.reader = SourceReaderBase(Silent(sizes={}, threads=threads), RecordingContext(), HostOptions())

    def hand_over(self, *parts: Fetched) -> None:
        assert self.reader._queue.offer(HandOver(parts, self._recycle), threading.Event())

    def meanwhile(self, happens: Callable[[], None], *, none_left: bool) -> None:
        def shutdown_finished() -> bool:
            happens()
            return none_left

        self.reader._fetchers.shutdown_finished = shutdown_finished  # type: ignore[method-assign]  # the forced step

    def poll(self) -> InputStatus:
        return self.reader.poll_next(self.output)

    def _recycle(self) -> None:
        self.recycled += 1


@pytest.fixture(params=[1, None], ids=["one fetcher", "one for each split"])
def steps(request: pytest.FixtureRequest) -> Iterator[Steps]:
    made = Steps(request.param)
    yield made
    made.reader.close()


def nothing() -> None:
    """Nothing happens in between."""


def refused(steps: Steps) -> tuple[str | None, str | None]:
    with pytest.raises(ContractError, match="does not hold") as raised:
        for _ in range(3):
            steps.poll()
    assert steps.output.collected == []
    return raised.value.rule, raised.value.split


def test_rb5_the_reader_refuses_what_its_fetchers_let_through(steps: Steps) -> None:
    """RB-5: records of a split that was never added; the id is named."""
    steps.hand_over(ROWS)
    assert refused(steps) == ("RB-5", "a")


@pytest.mark.parametrize("hand_overs", [[[END, ROWS]], [[END], [ROWS]]], ids=["in one hand-over", "in the next"])
def test_rb5_the_reader_refuses_records_of_a_split_that_has_finished(
    steps: Steps, hand_overs: list[list[Fetched]]
) -> None:
    """RB-5: at once, and once its state is dropped."""
    steps.reader.add_splits([Split("a", 0, 5)])
    for parts in hand_overs:
        steps.hand_over(*parts)
    assert refused(steps) == ("RB-5", "a")


def test_rb6_what_comes_while_the_last_fetcher_ends_is_read_before_the_end(steps: Steps) -> None:
    """RB-6: FLINK-19253, testPollNextReturnMoreAvailableWhenAllSplitFetcherCloseWithLeftoverElementInQueue."""
    steps.reader.notify_no_more_splits()
    steps.meanwhile(steps.hand_over, none_left=True)
    assert steps.poll() is MORE
    steps.meanwhile(nothing, none_left=True)
    assert (steps.poll(), steps.recycled) == (ENDED, 1)


def test_rb6_an_error_that_comes_while_the_last_fetcher_ends_wins(steps: Steps) -> None:
    """RB-6: FLINK-19717."""
    steps.reader.notify_no_more_splits()
    steps.meanwhile(lambda: steps.reader._fetchers._keep_error(FatalError("too late?")), none_left=True)
    with pytest.raises(FatalError, match="too late"):
        steps.poll()


def test_rb6_no_end_while_a_fetcher_is_left(steps: Steps) -> None:
    """RB-6: it may still report an error."""
    steps.reader.notify_no_more_splits()
    steps.meanwhile(nothing, none_left=False)
    assert ENDED not in [steps.poll() for _ in range(3)]
    steps.meanwhile(nothing, none_left=True)
    assert steps.poll() is ENDED


def test_rb6_no_end_before_no_more_splits(steps: Steps) -> None:
    """RB-6, RDR-6."""
    steps.meanwhile(nothing, none_left=True)
    assert [steps.poll() for _ in range(3)] == [NOTHING] * 3
    steps.reader.notify_no_more_splits()
    assert steps.poll() is ENDED


def test_rb6_no_end_while_a_split_is_held(steps: Steps) -> None:
    """RB-6 (ours): a split without any result has not ended."""
    steps.reader.add_splits([Split("a", 0, 5)])
    steps.reader.notify_no_more_splits()
    steps.meanwhile(nothing, none_left=True)
    assert ENDED not in [steps.poll() for _ in range(3)]
    steps.hand_over(END)
    assert steps.poll() is ENDED
