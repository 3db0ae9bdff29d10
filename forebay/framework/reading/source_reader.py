# SPDX-License-Identifier: Apache-2.0
"""The supplied reader: pulls what fetcher threads fetched, and owns the progress of its splits."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from forebay.errors import ContractError, FatalError
from forebay.framework.host_options import HostOptions
from forebay.framework.reader import InputStatus, ReaderOutput, SourceReader, SourceReaderContext
from forebay.framework.reading.fetcher_manager import FetcherManager
from forebay.framework.reading.queue import HandOver, HandOverQueue
from forebay.framework.source import Source
from forebay.framework.split import Position, Split
from forebay.framework.split_reader import Fetched


@dataclass(slots=True)
class _State:
    """The mutable twin of a split while it is read (SPL-2)."""

    split: Split
    position: Position | None

    def snapshot(self) -> Split:
        return self.split.at(self.position)


class SourceReaderBase(SourceReader):
    """A reader over fetcher threads: `SplitReader`s fetch, this one emits, advances and finishes (RB-1 … RB-9).

    Args:
        source: Makes the split readers and says how many fetchers there are.
        context: The host's side.
        options: Bounds of the queue, retries, time-outs.
        until_caught_up: A split is finished once it is caught up, for hosts that read once.
    """

    def __init__(
        self, source: Source, context: SourceReaderContext, options: HostOptions, *, until_caught_up: bool = False
    ) -> None:
        self._source = source
        self._context = context
        self._once = until_caught_up
        runtime = context.runtime
        self._queue = HandOverQueue(runtime, options.queue_batches, options.queue_bytes)
        self._fetchers = FetcherManager(
            source.name,
            lambda: source.create_split_reader(context),
            source.fetchers,
            self._queue,
            runtime,
            options,
            until_caught_up=until_caught_up,
        )
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
        self._gate_notice: Future[None] | None = None
        self._no_more_splits = False
        self._available_now: Future[None] = Future()
        self._available_now.set_result(None)

    def start(self) -> None:
        """Ask for as many splits as can be read at once, unless some were restored (RDR-1)."""
        if not self._states and not self._no_more_splits:
            for _ in range(self._source.fetchers or 1):
                self._context.send_split_request()

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Take more splits; their outputs open at the next poll, before any record (OUT-4)."""
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
        """Note that no split follows; completes the availability future (RB-7)."""
        self._no_more_splits = True
        self._queue.notify_available()

    def is_available(self) -> Future[None]:
        """Return a done future while something is in hand, the queue's otherwise (RB-7).

        While the gate is full no hand-over can be taken, so that one waits says nothing: then it is the next notice.
        """
        if self._current is not None:
            return self._available_now
        return self._gate_notice or self._queue.availability()

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        """Emit one record batch at most; go on to the next hand-over when the one in hand is used up (RB-2)."""
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
        """Return every unfinished split at the next record not yet emitted (RDR-4)."""
        return [state.snapshot() for state in self._states.values()]

    def pause_or_resume_splits(self, pause: Collection[str], resume: Collection[str]) -> None:
        """Close and open the gate of some splits, here and, where it can, in the split reader (RDR-8)."""
        pause = [split_id for split_id in pause if split_id in self._states]
        self._paused = (self._paused - set(resume)) | set(pause)
        self._release()
        self._fetchers.pause_or_resume_splits(pause, resume)

    def close(self) -> None:
        """End all fetchers within the close time-out (RDR-9).

        Raises:
            FatalError: Threads were still blocked and have been abandoned; named in the text.
            ForebayError: A split reader failed while it was closed.
        """
        timeout = self._context.options.close_timeout.total_seconds()
        abandoned = self._fetchers.close(timeout)
        if abandoned:
            raise FatalError(
                f"blocked for more than {timeout:g} s while closing, abandoned: {', '.join(abandoned)}",
                source=self._source.name,
                rule="RDR-9",
                advice="give the connector's network calls a time-out shorter than closeTimeout",
            )
        late = self._fetchers.late_error()
        if late is not None:
            raise late

    def _next_hand_over(self) -> bool:
        """Take the queue's next hand-over into hand, errors first (RB-1)."""
        # The gate is full: fetchers must wait until a split is resumed. Of an error after this the notice tells.
        self._gate_notice = self._queue.notice() if self._held_bytes > self._max_held else None
        self._fetchers.check_errors()
        if self._gate_notice is not None:
            return False
        hand_over = self._queue.poll()
        if hand_over is None:
            return False
        self._current = hand_over
        self._parts = deque(hand_over.fetched)
        return True

    def _hold(self, part: Fetched) -> None:
        """Keep what came for a paused split: the queue may hold some, and some split readers cannot pause."""
        self._held.append(part)
        self._held_bytes += _nbytes(part)

    def _release(self) -> None:
        """Put what was held for splits that run again before everything else that is in hand."""
        released = [part for part in self._held if part.split_id not in self._paused]
        if released:
            self._held = [part for part in self._held if part.split_id in self._paused]
            self._held_bytes = sum(_nbytes(part) for part in self._held)
            self._parts.extendleft(reversed(released))
            self._current = self._current or HandOver(())
            self._queue.notify_available()

    def _emit(self, part: Fetched, output: ReaderOutput) -> bool:
        """Use one part of the hand-over; return whether records went out."""
        state = self._states.get(part.split_id)
        if state is None or part.split_id in self._finished:
            raise ContractError(
                "records or an end came for a split that the reader does not hold, or that has finished",
                source=self._source.name,
                split=part.split_id,
                rule="RB-5",
                advice="finish a split once, with or after its last records",
            )
        emitted = False
        if part.batch is not None and part.batch.num_rows:
            self._check_progress(state, part)
            # Out first, then the state: an interruption between the two repeats, and never loses (REC-2).
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
            problem = f"records came, but the position stayed at {state.position!r}: a resumed read would repeat them"
        elif end is not None and key(position) > key(end):
            problem = f"records up to {position!r} came, but the read ends at {end!r}: the next read would repeat them"
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
        """Drop finished splits, tell of them once, then recycle once (RB-3, RB-4)."""
        finished, self._finished = self._finished, {}
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
        """Called once per hand-over with the splits it finished, at their last position; asks for as many more."""
        if not self._no_more_splits:
            for _ in splits:
                self._context.send_split_request()

    def _end_or_wait(self) -> InputStatus:
        """Decide what an empty queue means (RB-6)."""
        # A fetcher that others' splits may still need stays, with its client; one split's own goes with the split.
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
    """Make the source's own reader, or the supplied one. Called by hosts, on the task thread."""
    own = source.create_reader(context)
    return own if own is not None else SourceReaderBase(source, context, options, until_caught_up=until_caught_up)
