# SPDX-License-Identifier: Apache-2.0
"""The default source reader: emits the records that fetcher threads fetched, and tracks the splits' positions."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from forebay.errors import ContractError, FatalError
from forebay.framework.reader import InputStatus, ReaderOutput, SourceReader, SourceReaderContext
from forebay.framework.reading.fetchers import FetcherManager, HandOver, HandOverQueue, done_future
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.source import Source
from forebay.framework.split import Position, Split
from forebay.framework.split_reader import Fetched


@dataclass(slots=True)
class _State:
    """A split and its progress in this reader (SPL-2)."""

    split: Split
    position: Position | None

    def snapshot(self) -> Split:
        return self.split.at(self.position)


class SourceReaderBase(SourceReader):
    """The default reader: `SplitReader`s fetch on fetcher threads, this class emits their batches (RB-1 … RB-9).

    Args:
        source: Makes the split readers, and sets the number of fetchers.
        context: What the host offers to the reader.
        options: Bounds of the queue, retries, time-outs.
        until_caught_up: Finish each split once it has caught up, for hosts that read once.
    """

    def __init__(
        self, source: Source, context: SourceReaderContext, options: HostOptions, *, until_caught_up: bool = False
    ) -> None:
        self._source = source
        self._context = context
        self._once = until_caught_up
        self._queue = HandOverQueue(context.runtime, options.queue_batches, options.queue_bytes)
        self._fetchers = FetcherManager(source, context, self._queue, options, until_caught_up=until_caught_up)
        self._max_held = options.queue_bytes
        self._states: dict[str, _State] = {}
        self._unopened: list[Split] = []
        self._current: HandOver | None = None
        self._parts: deque[Fetched] = deque()
        self._emitted = False
        self._finished: dict[str, Split] = {}
        self._paused: set[str] = set()
        self._held: list[Fetched] = []
        self._held_bytes = 0
        self._full_notice: Future[None] | None = None
        self._no_more_splits = False
        self._available_now = done_future()

    def start(self) -> None:
        """Request one split per fetcher, unless some were restored (RDR-1)."""
        if not self._states and not self._no_more_splits:
            for _ in range((self._source.fetchers or 1) * self._context.fetcher_factor):
                self._context.send_split_request()

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Take more splits; the next poll opens their outputs, before it emits their records (OUT-4)."""
        for split in splits:
            if split.id in self._states:
                raise ContractError(
                    "a split was given to a reader that already holds it",
                    source=self._source.name,
                    split=split.id,
                    rule="SPL-1",
                    advice="make split ids unique and stable",
                )
            self._states[split.id] = _State(split, split.position)
        self._unopened.extend(splits)
        self._fetchers.add_splits(splits)

    def notify_no_more_splits(self) -> None:
        """Record that no split follows, and complete the availability future (RB-7)."""
        self._no_more_splits = True
        self._queue.notify_available()

    def is_available(self) -> Future[None]:
        """Return a completed future while there is a current hand-over, else the future of the queue (RB-7).

        While the buffer for paused splits is full, no hand-over can be taken. Then it is the future of
        `HandOverQueue.notice`.
        """
        if self._current is not None:
            return self._available_now
        return self._full_notice or self._queue.availability()

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        """Emit at most one record batch, from the current hand-over or the next one (RB-2)."""
        while self._unopened:
            output.split_added(self._unopened.pop(0))
        while True:
            if self._current is None and not self._next_hand_over():
                return self._end_or_wait()
            while self._parts:
                part = self._parts.popleft()
                if part.split_id in self._paused:
                    self._hold(part)
                elif self._emit(part, output):
                    self._emitted = True
                    return InputStatus.MORE_AVAILABLE
            had_records, self._emitted = self._emitted, False
            self._finish_hand_over(output)
            if not had_records:
                return InputStatus.MORE_AVAILABLE if self.is_available().done() else self._end_or_wait()

    def snapshot_state(self, checkpoint_id: int) -> Sequence[Split]:
        """Return each unfinished split at the next record not yet emitted (RDR-4)."""
        return [state.snapshot() for state in self._states.values()]

    def pause_or_resume_splits(self, pause: Collection[str], resume: Collection[str]) -> None:
        """Buffer the batches of paused splits, and emit those of resumed ones; pass the change to fetchers (RDR-8)."""
        pause = [split_id for split_id in pause if split_id in self._states]
        self._paused = (self._paused - set(resume)) | set(pause)
        self._release()
        self._fetchers.pause_or_resume_splits(pause, resume)

    def close(self) -> None:
        """End all fetchers within `closeTimeout` (RDR-9).

        Raises:
            FatalError: Threads were still blocked. They are abandoned, and the error names them.
            ForebayError: The `close` of a split reader failed.
        """
        timeout = self._context.options.close_timeout.total_seconds()
        if abandoned := self._fetchers.close(timeout):
            raise FatalError(
                f"these threads blocked closing for more than {timeout:g} s and were abandoned: {', '.join(abandoned)}",
                source=self._source.name,
                rule="RDR-9",
                advice="give the connector's network calls a time-out shorter than closeTimeout",
            )
        if (late := self._fetchers.late_error()) is not None:
            raise late

    def _next_hand_over(self) -> bool:
        """Make the queue's next hand-over the current one; return whether there was one. Raise errors first (RB-1)."""
        # If the buffer is full, fetchers wait until a split is resumed. A later error also completes the notice.
        self._full_notice = self._queue.notice() if self._held_bytes > self._max_held else None
        self._fetchers.check_errors()
        if self._full_notice is not None or (hand_over := self._queue.poll()) is None:
            return False
        self._current = hand_over
        self._parts = deque(hand_over.fetched)
        return True

    def _hold(self, part: Fetched) -> None:
        """Buffer a fetched part of a paused split: it was in the queue, or the split reader cannot pause."""
        self._held.append(part)
        self._held_bytes += _nbytes(part)

    def _release(self) -> None:
        """Move the buffered parts of resumed splits to the front of the current hand-over."""
        released = [part for part in self._held if part.split_id not in self._paused]
        if released:
            self._held = [part for part in self._held if part.split_id in self._paused]
            self._held_bytes = sum(_nbytes(part) for part in self._held)
            self._parts.extendleft(reversed(released))
            self._current = self._current or HandOver(())
            self._queue.notify_available()

    def _emit(self, part: Fetched, output: ReaderOutput) -> bool:
        """Process one part of the hand-over; return whether it emitted records."""
        state = self._states.get(part.split_id)
        if state is None or part.split_id in self._finished:
            raise ContractError(
                "fetch() returned records or an end for a split that the reader does not hold or that has finished",
                source=self._source.name,
                split=part.split_id,
                rule="RB-5",
                advice="finish a split once, with or after its last records",
            )
        emitted = False
        if part.batch is not None and part.batch.num_rows:
            self._check_progress(state, part)
            # Emit first: an interruption before the state is updated repeats records, but loses none (REC-2).
            output.collect(part.split_id, part.batch, part.position)
            emitted = True
        if part.position is not None:
            state.position = part.position
        if part.caught_up and (self._once or not part.finished):
            output.split_caught_up(part.split_id)
        if part.finished:
            self._finished[part.split_id] = state.snapshot()
        return emitted

    def _check_progress(self, state: _State, part: Fetched) -> None:
        problem = None
        key, position, end = self._source.order_key, part.position, state.split.end
        if position is None or position == state.position:
            problem = f"fetch() returned records, but the position stayed at {state.position!r}: a restart repeats them"
        elif end is not None and key(position) > key(end):
            problem = f"fetch() returned records up to {position!r}, beyond the end {end!r}: the next read repeats them"
        elif end is not None and state.position is not None and key(position) < key(state.position):
            problem = f"the position went backwards, from {state.position!r} to {position!r}"
        if problem:
            raise ContractError(
                problem,
                source=self._source.name,
                split=part.split_id,
                position=position,
                rule="SR-2",
                advice="yield the position after the rows, move it forward only, and stop exactly at split.end",
            )

    def _finish_hand_over(self, output: ReaderOutput) -> None:
        """Remove and report finished splits, then recycle the current hand-over, each once (RB-3, RB-4)."""
        finished, self._finished = self._finished, {}
        self._fetchers.forget(finished)
        for split_id in finished:
            del self._states[split_id]
            self._paused.discard(split_id)
            output.split_released(split_id)
        if finished:
            self.on_splits_finished(list(finished.values()))
        current, self._current = self._current, None
        if current is not None and current.recycle is not None:
            current.recycle()

    def on_splits_finished(self, splits: Sequence[Split]) -> None:
        """Request one split for each finished one. Called once per hand-over; `splits` are at their last positions."""
        if not self._no_more_splits:
            for _ in splits:
                self._context.send_split_request()

    def _end_or_wait(self) -> InputStatus:
        """Return the result of `poll_next` if the queue is empty: wait, poll again, or end of input (RB-6)."""
        # A shared fetcher, with its client, is kept for later splits; the fetcher of a single split ends with it.
        none_left = (self._no_more_splits or self._source.fetchers is None) and self._fetchers.shutdown_finished()
        self._fetchers.check_errors()
        if none_left and self._no_more_splits and not self._states:
            return InputStatus.END_OF_INPUT if self._queue.is_empty() else InputStatus.MORE_AVAILABLE
        return InputStatus.MORE_AVAILABLE if self.is_available().done() else InputStatus.NOTHING_AVAILABLE


def _nbytes(part: Fetched) -> int:
    return 0 if part.batch is None else int(part.batch.nbytes)


def create_reader(
    source: Source, context: SourceReaderContext, options: HostOptions, *, until_caught_up: bool = False
) -> SourceReader:
    """Make the source's own reader, or else a `SourceReaderBase`. Called by hosts, on the task thread."""
    own = source.create_reader(context)
    return own if own is not None else SourceReaderBase(source, context, options, until_caught_up=until_caught_up)
