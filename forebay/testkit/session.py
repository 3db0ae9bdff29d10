# SPDX-License-Identifier: Apache-2.0
"""A reader at work under the kit: polled as a host polls, driven by nothing but its availability future."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from types import TracebackType
from typing import Self

import pyarrow as pa

from forebay.framework.reader import InputStatus, SourceReader
from forebay.framework.reading.source_reader import create_reader
from forebay.framework.simple import SimpleSource
from forebay.framework.split import Position, Split
from forebay.testkit.between import between
from forebay.testkit.outcomes import Broken
from forebay.testkit.subject import KitContext, Subject, travelled
from forebay.testkit.traces import Trace
from forebay.testkit.watch import calling

SPIN_COUNT = 400
SPIN_SECONDS = 0.4
"""So many answers without a record in a row, in so short a time, are a busy loop (RDR-3)."""


_LOOK = 0.05

_MOST_SPLITS = 4
_MOST_ROWS = 120
_LEAST_MARKS = 4
"""Splits that are read row by row, and how far."""

_LARGE_SPLITS = 64
_LARGE_ROWS = 10_000
"""A larger input is not read as a whole."""


class _Output:
    """What came out of a reader."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self.rows: dict[str, list[str]] = {}
        self.marks: dict[str, list[tuple[int, Position | None]]] = {}
        self.added: dict[str, Split] = {}
        self.released: set[str] = set()
        self.caught_up: set[str] = set()
        self.record_batches: list[pa.RecordBatch] = []

    def collect(self, split_id: str, batch: pa.RecordBatch, position: Position | None) -> None:
        rows = self.rows.setdefault(split_id, [])
        rows += self._subject.rows(batch, split_id)
        self.marks.setdefault(split_id, []).append((len(rows), position))
        self.caught_up.discard(split_id)
        self.record_batches.append(batch)

    @property
    def batches(self) -> int:
        return len(self.record_batches)

    def split_added(self, split: Split) -> None:
        self.added[split.id] = split

    def split_caught_up(self, split_id: str) -> None:
        self.caught_up.add(split_id)

    def split_released(self, split_id: str) -> None:
        self.released.add(split_id)


class Session:
    """One reader, from its making to its closing; used in a `with` block.

    Args:
        subject: Whose reader.
        splits: What it is given before it starts.
        rows: Rows of a record batch, if the source lets the host say.
        no_more: Say at once that no split follows.
        once: Finish a split without an end when it is caught up, as hosts do that read once.
        poll_interval: How long a caught-up split rests.
        context: What the reader sees of its host, if not the kit's plain one; its owner calls `start`.
        travel: Give it splits that went through JSON, as through a checkpoint, not the objects themselves.
    """

    def __init__(
        self,
        subject: Subject,
        splits: Sequence[Split] = (),
        *,
        rows: int = 1,
        no_more: bool = True,
        once: bool = True,
        poll_interval: float = 0.02,
        context: KitContext | None = None,
        travel: bool = True,
    ) -> None:
        self._subject = subject
        self._travel = travel
        self._once = once
        self.given: set[str] = set()
        self._closed = False
        self.output = _Output(subject)
        self.ended = False
        self._context = context or subject.context(subject.options(rows=rows, poll_interval=poll_interval))
        options = self._context.options
        once = once and not subject.source.bounded
        with calling("RDR-2", "create_reader()"):
            self.reader: SourceReader = create_reader(subject.source, self._context, options, until_caught_up=once)
        try:
            self.add(splits)
            if no_more:
                self.no_more()
            if context is None:
                self.start()
        except BaseException:  # cleaned up after, also when interrupted, and raised again
            self.abandon()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self.abandon()

    def start(self) -> None:
        """Let the reader begin, as the last step of making it."""
        with calling("RDR-2", "start()"):
            self.reader.start()

    def add(self, splits: Sequence[Split]) -> None:
        """Give the reader splits."""
        if not splits:
            return
        self.given.update(split.id for split in splits)
        with calling("RDR-7", "the reader's add_splits()"):
            self.reader.add_splits([travelled(split, self._subject) if self._travel else split for split in splits])

    def no_more(self) -> None:
        """Say that no split follows."""
        with calling("RDR-2", "notify_no_more_splits()"):
            self.reader.notify_no_more_splits()

    def snapshot(self) -> list[Split]:
        """Return what the reader's checkpoint holds."""
        with calling("RDR-4", "snapshot_state()"):
            return list(self.reader.snapshot_state(1))

    def poll(self) -> InputStatus:
        """Poll once.

        Raises:
            Broken: More than one record batch came, or the end came too early.
        """
        before = self.output.batches
        with calling("RDR-2", "poll_next()"):
            status = self.reader.poll_next(self.output)
        if self.output.batches > before + 1:
            raise Broken(
                f"one poll_next() gave {self.output.batches - before} record batches",
                "collect one record batch, then return MORE_AVAILABLE",
                rule="RDR-2",
            )
        if status is InputStatus.END_OF_INPUT:
            self.ended = True
            self._check_nothing_left()
        return status

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Poll until `until()` holds, or the input ends; wait for nothing but the availability future.

        An unbounded source may bring a reader that cannot be told to read once: being caught up is then the end.

        Raises:
            Broken: The reader spins, or nothing came for too long.
        """
        quiet, since = 0, time.monotonic()
        done = until or (lambda: self._subject.has_own_reader and bool(self.given) and self.caught_up())
        while not self.ended and not done():
            seen = (self.output.batches, len(self.output.released))
            status = self.poll()
            if (self.output.batches, len(self.output.released)) != seen:
                quiet, since = 0, time.monotonic()
                continue
            quiet += 1
            self._check_spin(quiet, since)
            if status is InputStatus.NOTHING_AVAILABLE:
                self._wait(since, done)
            elif time.monotonic() - since > self._subject.patience:
                raise self._silent(since)

    def idle(self, seconds: float) -> None:
        """Go on polling for a while, when nothing may be left to come."""
        deadline = time.monotonic() + seconds
        self.run(lambda: time.monotonic() > deadline)

    def caught_up_ids(self) -> set[str]:
        """Return the splits that are finished or, where that is enough, have nothing more for now."""
        enough = self._once and not self._subject.source.bounded
        return self.output.released | (self.output.caught_up if enough else set())

    def caught_up(self) -> bool:
        """Whether that is every split."""
        return self.given <= self.caught_up_ids()

    def pause_or_resume(self, pause: Sequence[str], resume: Sequence[str]) -> None:
        """Pause and resume some splits."""
        with calling("RDR-8", "pause_or_resume_splits()"):
            self.reader.pause_or_resume_splits(pause, resume)

    def rows(self, split_id: str) -> list[str]:
        """Return what came for a split."""
        return self.output.rows.get(split_id, [])

    def close(self) -> None:
        """Close the reader."""
        if not self._closed:
            self._closed = True
            with calling("RDR-9", "the reader's close()"):
                self.reader.close()
            self._context.hand_back()

    def abandon(self) -> None:
        """Close after another error, which is the one to tell."""
        with suppress(Exception):
            self.close()

    def _check_spin(self, quiet: int, since: float) -> None:
        taken = time.monotonic() - since
        if quiet >= SPIN_COUNT and taken < SPIN_SECONDS * quiet / SPIN_COUNT:
            raise Broken(
                f"{quiet} polls in {taken:.2f} s gave no record: is_available() is done although nothing is there",
                "let the future complete when there is something to read",
                rule="RDR-3",
            )

    def _wait(self, since: float, done: Callable[[], bool]) -> None:
        """Wait for the availability future, and for nothing else, unless `done()` holds meanwhile."""
        with calling("RDR-3", "is_available()"):
            future = self.reader.is_available()
        while not future.done() and not done():
            left = since + self._subject.patience - time.monotonic()
            if left <= 0:
                raise self._silent(since)
            with suppress(FutureTimeoutError):
                future.result(min(left, _LOOK))

    def _check_nothing_left(self) -> None:
        left = self.given - self.output.released
        if unknown := sorted(left - self.output.added.keys()):
            raise Broken(
                f"END_OF_INPUT came although the splits {unknown}, given to add_splits(), were never begun",
                "take splits at any time before notify_no_more_splits(), and tell output.split_added of each",
                rule="RDR-7",
            )
        if left:
            raise Broken(
                f"END_OF_INPUT came although the splits {sorted(left)} were not released",
                "return END_OF_INPUT only when every split is read",
                rule="RDR-6",
            )

    def _silent(self, since: float) -> Broken:
        left = sorted(self.given - self.output.released)
        if left and isinstance(self._subject.source, SimpleSource):
            bounded, rows = self._subject.source.bounded, len(self.rows(left[0]))
            return Broken(
                f"split {left[0]!r}: read() gave {rows} rows and has not returned; nothing came for "
                f"{time.monotonic() - since:.1f} s",
                f"return from read() when it is {'at its end' if bounded else 'caught up'}"
                + ("" if bounded else ", it is called again after pollInterval")
                + "; give outside calls a time-out",
            )
        return Broken(
            f"nothing came for {time.monotonic() - since:.1f} s; unfinished: {left or 'none, and no END_OF_INPUT'}",
            "finish every split, also an empty one; say caught_up for one that has nothing more for now; complete "
            "is_available() when there is something to read",
        )


def read_undisturbed(subject: Subject) -> None:
    """Read the input once, and keep what came: some splits row by row, and all rows of what is not large."""
    splits = subject.ended(list({split.id: split for split in subject.discover()}.values()))
    sample = splits
    if len(splits) > _MOST_SPLITS:
        sample = sorted(subject.random("splits").sample(splits, _MOST_SPLITS), key=lambda split: split.id)
    traces = [_read_trace(subject, split) for split in sample]
    subject.keep(traces, _read_everything(subject, splits, traces))


def _read_everything(
    subject: Subject, splits: Sequence[Split], traces: Sequence[Trace]
) -> dict[str, Sequence[str]] | None:
    """Return the rows of all splits, read in large record batches; None if the input is large, or slow."""
    known = {trace.split.id: trace.rows for trace in traces if trace.whole}
    rows: dict[str, Sequence[str]] = {}
    slow = time.monotonic() + subject.patience
    for split in splits:
        if len(splits) > _LARGE_SPLITS or time.monotonic() > slow:
            return None
        if split.id in known:
            rows[split.id] = known[split.id]
        else:
            with Session(subject, [split], rows=1_000) as session:
                session.run(lambda: session.caught_up() or len(session.rows(split.id)) > _LARGE_ROWS)  # noqa: B023 - called at once
                rows[split.id] = session.rows(split.id)
        if sum(len(one) for one in rows.values()) > _LARGE_ROWS:
            return None
    return rows


def _read_trace(subject: Subject, split: Split) -> Trace:
    """Read one split, or the first rows of a long one, one row at a time if the source can."""
    with Session(subject, [split]) as session:
        output = session.output
        session.run(
            lambda: (
                session.caught_up()
                or (len(session.rows(split.id)) >= _MOST_ROWS and len(output.marks[split.id]) >= _LEAST_MARKS)
            )
        )
        whole = session.caught_up()
    marks = [(0, split.position), *output.marks.get(split.id, [])]
    last = marks[-1][1]
    if not whole or (split.end is None and not subject.source.bounded and last is not None):
        split = split.slice(split.position, last)
    values = [row for batch in output.record_batches for row in batch.to_pylist()]
    return Trace(
        split, tuple(session.rows(split.id)), tuple(marks), whole, between(marks, values, subject.source.order_key)
    )
