# SPDX-License-Identifier: Apache-2.0
"""A split reader at work under the kit, without the framework around it: added to, fetched from, woken, closed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from forebay.errors import RetriableError
from forebay.framework.split import Split
from forebay.framework.split_reader import Fetched, SplitReader
from forebay.testkit.outcomes import Broken, NotApplicable
from forebay.testkit.session import SPIN_COUNT, SPIN_SECONDS
from forebay.testkit.subject import Subject, travelled
from forebay.testkit.watch import calling

_WAKE_AFTER = 0.25
_RETRIES = 3


class Fetching:
    """One split reader, from its making to its closing; used in a `with` block, on one thread as on a fetcher's.

    A fetch that blocks is woken after a moment, again and again: so a good reader always comes back.

    Args:
        subject: Whose split reader.
        splits: What it is given.
        rows: Rows of a record batch, if the source lets the host say.
        poll_interval: How long a caught-up split rests.
        wake_after: Seconds after which a fetch is woken.
    """

    def __init__(
        self,
        subject: Subject,
        splits: Sequence[Split] = (),
        *,
        rows: int = 1,
        poll_interval: float = 0.02,
        wake_after: Callable[[], float | None] = lambda: None,
    ) -> None:
        if subject.has_own_reader:
            raise NotApplicable("the source brings a SourceReader of its own")
        self._subject = subject
        self._wake_after = wake_after
        self._failures = 0
        self.rows: dict[str, list[str]] = {}
        self.added: set[str] = set()
        self.finished: set[str] = set()
        self.caught_up: set[str] = set()
        self.longest = 0.0
        self.blamed = "SR-1"
        self._context = subject.context(subject.options(rows=rows, poll_interval=poll_interval))
        with calling("RDR-2", "create_split_reader()"):
            self.reader: SplitReader = subject.source.create_split_reader(self._context)
        self._alarm = _Alarm(self.reader.wake_up)
        try:
            self.add(splits)
        except BaseException:  # cleaned up after, also when interrupted, and raised again
            self._close_quietly()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self._close_quietly()

    def add(self, splits: Sequence[Split]) -> None:
        """Give the reader splits, as they come off the wire."""
        if splits:
            self.added.update(split.id for split in splits)
            with calling("SR-3", "the split reader's add_splits()"):
                self.reader.add_splits([travelled(split, self._subject) for split in splits])

    def wake(self) -> None:
        """Wake the reader from outside a fetch."""
        with calling("SR-1", "wake_up()"):
            self.reader.wake_up()

    def fetch(self) -> Sequence[Fetched]:
        """Fetch once and note what came.

        Raises:
            Broken: What came is not what a fetch may return.
        """
        started = time.monotonic()
        try:
            with calling(self.blamed, "fetch(), although wake_up() was called,"), self._alarm.set(self._wake_after()):
                fetched: Sequence[Fetched] = list(self.reader.fetch())
        except RetriableError:
            self._failures += 1
            if self._failures > _RETRIES:
                raise
            return []
        self.longest = max(self.longest, time.monotonic() - started)
        for part in fetched:
            self._note(part)
        return fetched

    def left(self) -> set[str]:
        """Return the splits not finished; for an unbounded source, being caught up is enough (see `Fetched`)."""
        return self.added - self.finished - (set() if self._subject.source.bounded else self.caught_up)

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Fetch until `until()` holds; by default until no split is left.

        Raises:
            Broken: The reader spins, or nothing came for too long.
        """
        done = until or (lambda: not self.left())
        quiet, since = 0, time.monotonic()
        while not done():
            if any(part.finished or (part.batch is not None and part.batch.num_rows) for part in self.fetch()):
                quiet, since, self._failures = 0, time.monotonic(), 0
                continue
            quiet += 1
            taken = time.monotonic() - since
            if quiet >= SPIN_COUNT and taken < SPIN_SECONDS * quiet / SPIN_COUNT:
                raise Broken(
                    f"{quiet} calls of fetch() in {taken:.2f} s brought no record: it does not wait for one",
                    "let fetch() block until there is something, or wake_up() comes",
                    rule="RDR-3",
                )
            if taken > self._subject.patience:
                left = sorted(self.left())
                raise Broken(
                    f"for {taken:.1f} s fetch() brought neither records nor an end; unfinished: {left}",
                    "report every split finished, also one that is empty or already at its end",
                )

    def fetch_unless_done(self) -> None:
        """Fetch once, if a split is left: without one the framework does not fetch."""
        if self.left():
            self.fetch()

    def pause_or_resume(self, pause: Sequence[str], resume: Sequence[str]) -> bool:
        """Pause and resume some splits; return whether the reader does it."""
        with calling("SR-5", "pause_or_resume_splits()"):
            return self.reader.pause_or_resume_splits(pause, resume)

    def close(self) -> None:
        """Close the reader."""
        self._alarm.stop()
        with calling("SR-6", "the split reader's close()"):
            self.reader.close()
        self._context.hand_back()

    def _close_quietly(self) -> None:
        """Close after another error, which is the one to tell."""
        with suppress(Exception):
            self.close()

    def _note(self, part: object) -> None:
        if not isinstance(part, Fetched):
            raise Broken(f"fetch() returned {part!r:.200}", "return a sequence of Fetched", rule="SR-2")
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
                "finish a split once, with or after its last records, and forget it",
                rule="SR-4",
            )
        if part.batch is not None:
            self.rows.setdefault(part.split_id, []).extend(self._subject.rows(part.batch, part.split_id))
        if part.finished:
            self.finished.add(part.split_id)
        if part.caught_up:
            self.caught_up.add(part.split_id)
        elif part.batch is not None:
            self.caught_up.discard(part.split_id)


class _Alarm:
    """A thread that calls `wake_up` when a fetch lasts: once after a chosen moment, then again and again."""

    def __init__(self, wake_up: Callable[[], None]) -> None:
        self._wake_up = wake_up
        self._changed = threading.Condition()
        self._due: float | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="forebay-testkit-alarm", daemon=True)
        self._thread.start()

    def set(self, after: float | None) -> Self:
        with self._changed:
            self._due = time.monotonic() + (_WAKE_AFTER if after is None else after)
            self._changed.notify()
        return self

    def __enter__(self) -> None:
        """Set already."""

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._due = None

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join(1.0)

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._stopped:
                    return
                now = time.monotonic()
                if self._due is None or self._due > now:
                    self._changed.wait(None if self._due is None else self._due - now)
                    continue
                self._due = now + _WAKE_AFTER
            self._wake_up()
