# SPDX-License-Identifier: Apache-2.0
"""Calls one split reader as the framework's fetcher does, but without the rest of the framework."""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from forebay.errors import RetriableError
from forebay.framework.split import Split
from forebay.framework.split_reader import Fetched, SplitReader, check_may_catch_up
from forebay.testkit.findings import Broken, NotApplicable
from forebay.testkit.harness.guarded_calls import calling
from forebay.testkit.harness.session_base import Closing, Silence
from forebay.testkit.harness.subject import Subject, through_json

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
