# SPDX-License-Identifier: Apache-2.0
"""Sessions: one source reader, or one split reader, driven as a host or a fetcher drives it."""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress

import pyarrow as pa

from forebay.errors import RetriableError
from forebay.framework.reader import InputStatus, SourceReader
from forebay.framework.reading.source_reader import create_reader
from forebay.framework.simple import SimpleSource
from forebay.framework.split import Position, Split
from forebay.framework.split_reader import Fetched, SplitReader, check_may_catch_up
from forebay.testkit.harness.calls import Closing, KitContext, Silence, calling
from forebay.testkit.harness.subject import Mark, Subject, through_json
from forebay.testkit.outcomes import Broken, Finding, NotApplicable

# -- Polls one source reader as a host does, and waits only for its availability future.


_POLL = 0.05


class _Output:
    """A reader output that stores all rows, positions and notices of the reader."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self.rows: defaultdict[str, list[str]] = defaultdict(list)
        self.marks: defaultdict[str, list[Mark]] = defaultdict(list)
        self.added: set[str] = set()
        self.released: set[str] = set()
        self.caught_up: set[str] = set()
        self.record_batches: list[pa.RecordBatch] = []

    def collect(self, split_id: str, batch: pa.RecordBatch, position: Position | None) -> None:
        self.rows[split_id] += self._subject.rows(batch, split_id)
        self.marks[split_id].append((len(self.rows[split_id]), position))
        self.caught_up.discard(split_id)
        self.record_batches.append(batch)

    def split_added(self, split: Split) -> None:
        self.added.add(split.id)

    def split_caught_up(self, split_id: str) -> None:
        self.caught_up.add(split_id)

    def split_released(self, split_id: str) -> None:
        self.released.add(split_id)


class ReaderSession(Closing):
    """One reader, from `create_reader` to `close`.

    Args:
        subject: The source whose reader is polled.
        splits: The splits that the reader gets before it starts.
        rows: Maximum rows of a record batch, if the source lets the host decide.
        no_more: Tell the reader before it starts that no split follows.
        once: Finish a split without an end when it is caught up, as a host does that reads only once.
        poll_interval: Seconds between two polls of a caught-up split.
        context: The reader's context; None for the kit's own. The owner of a given context calls `start`.
        stored: Convert splits to JSON and back, as a checkpoint does.
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
        stored: bool = True,
    ) -> None:
        self._subject = subject
        self._stored = stored
        self._once = once and not subject.source.bounded
        self._closed = False
        self._ended = False
        self.given: set[str] = set()
        self.output = _Output(subject)
        self._context = context or subject.context(subject.options(rows=rows, poll_interval=poll_interval))
        with calling("RDR-2", "create_reader()"):
            self.reader: SourceReader = create_reader(
                subject.source, self._context, self._context.options, until_caught_up=self._once
            )
        try:
            self.add(splits)
            if no_more:
                self.no_more()
            if context is None:
                self.start()
        except BaseException:  # also an interrupt: clean up, and raise it again
            self.abandon()
            raise

    @property
    def rows(self) -> defaultdict[str, list[str]]:
        """The rows of each split so far."""
        return self.output.rows

    @property
    def batches(self) -> int:
        """The number of record batches so far."""
        return len(self.output.record_batches)

    def start(self) -> None:
        """Start the reader. Called once, before `poll`."""
        with calling("RDR-2", "start()"):
            self.reader.start()

    def add(self, splits: Sequence[Split]) -> None:
        """Give the reader splits."""
        if splits:
            self.given.update(split.id for split in splits)
            with calling("RDR-7", "the reader's add_splits()"):
                self.reader.add_splits(
                    [through_json(split, self._subject) if self._stored else split for split in splits]
                )

    def no_more(self) -> None:
        """Tell the reader that no split follows."""
        with calling("RDR-2", "notify_no_more_splits()"):
            self.reader.notify_no_more_splits()

    def snapshot(self, checkpoint_id: int = 1) -> list[Split]:
        """Return the reader's splits as a checkpoint stores them."""
        with calling("RDR-4", "snapshot_state()"):
            return list(self.reader.snapshot_state(checkpoint_id))

    def poll(self) -> InputStatus:
        """Call `poll_next` once. Raise `Broken` if it emits several record batches, or ends the input too early."""
        before = self.batches
        with calling("RDR-2", "poll_next()"):
            status = self.reader.poll_next(self.output)
        if self.batches > before + 1:
            raise Broken(
                f"one poll_next() emitted {self.batches - before} record batches",
                "collect one record batch, then return MORE_AVAILABLE",
                rule="RDR-2",
            )
        if status is InputStatus.END_OF_INPUT:
            self._ended = True
            self._check_nothing_left()
        return status

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Poll until `until()` holds, or the input ends; wait only for the availability future.

        Without `until`, also stop when a source's own `SourceReader` is caught up, because it may never end the input.
        """
        silence = Silence(self._subject.patience)
        done = until or (lambda: self._subject.has_own_reader and bool(self.given) and self.caught_up())
        while not self._ended and not done():
            before = (self.batches, len(self.output.released))
            status = self.poll()
            if (self.batches, len(self.output.released)) != before:
                silence.reset()
                continue
            silence.count_call(
                lambda count, seconds: (
                    f"{count} polls in {seconds:.2f} s gave no record: the future of is_available() was done, "
                    "although there was nothing to read"
                ),
                "complete the future of is_available() only when there is something to read",
            )
            if status is InputStatus.NOTHING_AVAILABLE:
                self._wait(silence, done)
            elif silence.left <= 0:
                raise self._silent(silence)

    def idle(self, seconds: float) -> None:
        """Poll for `seconds`, in which no more data is expected."""
        deadline = time.monotonic() + seconds
        self.run(lambda: time.monotonic() > deadline)

    def caught_up_ids(self) -> set[str]:
        """Return the ids of the splits that are finished or, if the session reads once, caught up."""
        return self.output.released | (self.output.caught_up if self._once else set())

    def caught_up(self) -> bool:
        """Return whether `caught_up_ids` has every split of the reader."""
        return self.given <= self.caught_up_ids()

    def pause_or_resume(self, pause: Sequence[str], resume: Sequence[str]) -> None:
        """Pause and resume some splits."""
        with calling("RDR-8", "pause_or_resume_splits()"):
            self.reader.pause_or_resume_splits(pause, resume)

    def close(self) -> None:
        """Close the reader, once."""
        if not self._closed:
            self._closed = True
            with calling("RDR-9", "the reader's close()"):
                self.reader.close()
            self._context.hand_back()

    def _wait(self, silence: Silence, done: Callable[[], bool]) -> None:
        """Wait for the availability future, unless `done()` holds meanwhile."""
        with calling("RDR-3", "is_available()"):
            future = self.reader.is_available()
        while not future.done() and not done():
            if silence.left <= 0:
                raise self._silent(silence)
            with suppress(FutureTimeoutError):
                future.result(min(silence.left, _POLL))

    def _check_nothing_left(self) -> None:
        left = self.given - self.output.released
        if unknown := sorted(left - self.output.added):
            raise Broken(
                f"END_OF_INPUT came although the splits {unknown} from add_splits() were never begun",
                "take splits at any time before notify_no_more_splits(), and call output.split_added for each",
                rule="RDR-7",
            )
        if left:
            raise Broken(
                f"END_OF_INPUT came although output.split_released() was not called for the splits {sorted(left)}",
                "return END_OF_INPUT only when every split is read and released",
                rule="RDR-6",
            )

    def _silent(self, silence: Silence) -> Finding:
        left = sorted(self.given - self.output.released)
        source, seconds = self._subject.source, silence.seconds
        if left and isinstance(source, SimpleSource):
            broken = Broken(
                f"split {left[0]!r}: read() gave {len(self.rows[left[0]])} rows and has not returned; nothing came "
                f"for {seconds:.1f} s",
                "return from read() when the split is "
                + ("at its end" if source.bounded else "caught up (read() is called again after pollInterval)")
                + "; set a timeout for calls to other systems",
            )
        else:
            broken = Broken(
                f"nothing came for {seconds:.1f} s; unfinished: {left or 'none, and no END_OF_INPUT'}",
                "finish every split, also an empty one; report caught_up for a split without more data for now; "
                "complete is_available() when there is data",
            )
        return self._subject.silent(broken)


# -- Calls one split reader as the framework's fetcher does, but without the rest of the framework.


WAKE_AFTER = 0.25
"""Seconds after which a fetch is woken, unless a check sets another time."""

_RETRIES = 3
"""Maximum calls of `fetch` in a row that may raise `RetriableError`."""


class SplitReaderSession(Closing):
    """Calls one split reader from `create_split_reader` to `close`, on the caller's thread.

    A second thread calls `wake_up` repeatedly while a fetch blocks, so that `fetch` of a correct reader always returns.

    Args:
        subject: The source whose split reader is driven.
        splits: The splits to add at the start.
        poll_interval: Seconds between two polls of a caught-up split.
        wake_after: Returns the seconds from the start of the next fetch to its first `wake_up`.
    """

    def __init__(
        self,
        subject: Subject,
        splits: Sequence[Split] = (),
        *,
        poll_interval: float = 0.02,
        wake_after: Callable[[], float] = lambda: WAKE_AFTER,
    ) -> None:
        if subject.has_own_reader:
            raise NotApplicable("the source has its own SourceReader")
        self._subject = subject
        self._wake_after = wake_after
        self._failures = 0
        self.rows: defaultdict[str, list[str]] = defaultdict(list)
        self._given: dict[str, Split] = {}
        self.added: set[str] = set()
        self.finished: set[str] = set()
        self.caught_up: set[str] = set()
        self.longest = 0.0
        self.blamed = "SR-1"
        """The rule that is broken if a fetch does not return."""
        self._context = subject.context(subject.options(poll_interval=poll_interval))
        with calling("RDR-2", "create_split_reader()"):
            self.reader: SplitReader = subject.source.create_split_reader(self._context)
        self._alarm = _Alarm(self.reader.wake_up)
        try:
            self.add(splits)
        except BaseException:  # also an interrupt: clean up, and raise it again
            self.abandon()
            raise

    def add(self, splits: Sequence[Split]) -> None:
        """Convert the splits to JSON and back, as a restore from a checkpoint does, and add them to the reader."""
        if splits:
            self.added.update(split.id for split in splits)
            self._given.update((split.id, split) for split in splits)
            with calling("SR-3", "the split reader's add_splits()"):
                self.reader.add_splits([through_json(split, self._subject) for split in splits])

    def wake(self) -> None:
        """Call the reader's `wake_up` while no fetch runs."""
        with calling("SR-1", "wake_up()"):
            self.reader.wake_up()

    def fetch(self) -> Sequence[Fetched]:
        """Call the reader's `fetch` once, and record the rows, ends and caught-up splits that it returns.

        Return an empty list after a `RetriableError`; raise the error if too many calls in a row fail.
        """
        started = time.monotonic()
        try:
            with calling(self.blamed, "fetch(), although wake_up() was called,"):
                self._alarm.set(self._wake_after())
                fetched: Sequence[Fetched] = list(self.reader.fetch())
        except RetriableError:
            self._failures += 1
            if self._failures > _RETRIES:
                raise
            return []
        finally:
            self._alarm.set(math.inf)
        self.longest = max(self.longest, time.monotonic() - started)
        for part in fetched:
            self._keep(part)
        return fetched

    def left(self) -> set[str]:
        """Return the ids of the splits that are not finished and, if the source is unbounded, not caught up."""
        return self.added - self.finished - (set() if self._subject.source.bounded else self.caught_up)

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Fetch until `until()` returns True; by default, until `left()` is empty.

        Raises:
            Broken: The reader returned nothing for the subject's `patience`, or `fetch` does not block.
        """
        done = until or (lambda: not self.left())
        silence = Silence(self._subject.patience)
        while not done():
            if any(part.finished or (part.batch is not None and part.batch.num_rows) for part in self.fetch()):
                silence.reset()
                self._failures = 0
                continue
            silence.count_call(
                lambda count, seconds: (
                    f"{count} calls of fetch() in {seconds:.2f} s returned no record: fetch() does not wait"
                ),
                "let fetch() block until there are records, or wake_up() is called",
            )
            if silence.left < 0:
                raise Broken(
                    f"for {silence.seconds:.1f} s fetch() returned neither records nor an end; unfinished: "
                    f"{sorted(self.left())}",
                    "report every split finished, also one that is empty or already at its end",
                )

    def fetch_unless_done(self) -> None:
        """Fetch once, unless `left()` is empty: the framework does not fetch without a split to read."""
        if self.left():
            self.fetch()

    def pause_or_resume(self, pause: Sequence[str], resume: Sequence[str]) -> bool:
        """Call the reader's `pause_or_resume_splits`. Return whether the reader pauses splits itself."""
        with calling("SR-5", "pause_or_resume_splits()"):
            return self.reader.pause_or_resume_splits(pause, resume)

    def close(self) -> None:
        """Close the reader, and give its leased clients back."""
        self._alarm.stop()
        with calling("SR-6", "the split reader's close()"):
            self.reader.close()
        self._context.hand_back()

    def _keep(self, part: object) -> None:
        if not isinstance(part, Fetched):
            raise Broken(
                f"fetch() returned {part!r:.200}, which is not a Fetched", "return a sequence of Fetched", rule="SR-2"
            )
        if part.split_id not in self.added:
            raise Broken(
                f"fetch() returned something for {part.split_id!r}, which was never added",
                "return only splits that were added, under their own ids",
                rule="SR-4",
            )
        if part.split_id in self.finished:
            again = "a second end" if part.finished else "more"
            raise Broken(
                f"after the end of split {part.split_id!r} fetch() returned {again}",
                "finish a split once, with or after its last records, and stop reading it",
                rule="SR-4",
            )
        if part.batch is not None:
            self.rows[part.split_id] += self._subject.rows(part.batch, part.split_id)
        if part.finished:
            self.finished.add(part.split_id)
        if part.caught_up:
            if not part.finished:
                check_may_catch_up(self._given[part.split_id])
            self.caught_up.add(part.split_id)
        elif part.batch is not None:
            self.caught_up.discard(part.split_id)


class _Alarm:
    """A thread that calls `wake_up` at a set time, and then at intervals until a new time is set."""

    def __init__(self, wake_up: Callable[[], None]) -> None:
        self._wake_up = wake_up
        self._due = math.inf
        self._changed = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="forebay-testkit-alarm", daemon=True)
        self._thread.start()

    def set(self, after: float) -> None:
        self._due = time.monotonic() + after
        self._changed.set()

    def stop(self) -> None:
        self._stopped = True
        self.set(math.inf)
        self._thread.join(1.0)

    def _run(self) -> None:
        while not self._stopped:
            left = self._due - time.monotonic()
            if left > 0:
                self._changed.wait(None if left == math.inf else left)
                self._changed.clear()
            else:
                self._due = time.monotonic() + WAKE_AFTER
                self._wake_up()
