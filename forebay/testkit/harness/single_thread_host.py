# SPDX-License-Identifier: Apache-2.0
"""A small host on one thread: its enumerator and reader can be killed and restored at any step."""

from __future__ import annotations

import json
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from forebay.errors import ContractError
from forebay.framework.coordination.coordinator import Coordinator
from forebay.framework.coordination.discovering import DiscoveringEnumerator, begin_enumerator
from forebay.framework.enumerator import SourceEvent
from forebay.framework.reader import InputStatus
from forebay.framework.runtime.runtime import ThreadRuntime
from forebay.framework.split import Json, Split
from forebay.testkit.harness.calls import Closing, KitContext, Silence, calling
from forebay.testkit.harness.sessions import ReaderSession
from forebay.testkit.harness.subject import Subject, through_json
from forebay.testkit.outcomes import Broken

_PAUSE = 0.003
"""Seconds between two steps in which nothing happens."""


@dataclass(frozen=True, slots=True)
class HostCheckpoint:
    """The contents of one checkpoint of a `SingleThreadHost`.

    Args:
        enumerator: The enumerator's snapshot.
        held: The splits of the reader, at the positions to resume from.
        finished: Ids of the splits that were read to their end.
        rows: The rows that the reader had emitted before the checkpoint, as text, by split id.
    """

    enumerator: Json
    held: Sequence[Split]
    finished: Collection[str]
    rows: Mapping[str, Sequence[str]]


class _Context(KitContext):
    """A reader context that passes split requests and source events to the host's coordinator."""

    def __init__(self, host: SingleThreadHost, subject: Subject) -> None:
        super().__init__(host.options, subject.clients)
        self._coordinator = host.coordinator

    def send_split_request(self) -> None:
        self._coordinator.run_in_coordinator_thread(self._coordinator.request)

    def send_source_event(self, event: SourceEvent) -> None:
        self._coordinator.run_in_coordinator_thread(lambda: self._coordinator.handle_source_event(event))


class _HostReader:
    """The reader of a host: its session, the messages that it has not got yet, and the splits that it holds."""

    def __init__(self, host: SingleThreadHost, session: ReaderSession) -> None:
        self.session = session
        self.held: dict[str, Split] = {}
        self.no_more = False
        self.ended = False
        self.emitted: defaultdict[str, int] = defaultdict(int)
        self._host = host
        self._messages: deque[Callable[[], None]] = deque()
        self._coming: list[Split] = []

    # ---- called by the coordinator

    def add_splits(self, splits: Sequence[Split]) -> None:
        if again := next((split for split in splits if split.id in self._host.finished), None):
            raise ContractError(
                f"the split {again.id!r} was assigned again after it had been read to its end",
                split=again.id,
                rule="SPL-1",
                advice="assign a finished split no more: drop it in handle_splits_finished(), also after a restart",
            )
        self._host.steps += 1
        self._host.assigned.update(split.id for split in splits)
        self.held.update((split.id, split) for split in splits)
        self._coming += splits
        self._messages.append(self._add_coming)

    def notify_no_more_splits(self) -> None:
        self._host.steps += 1
        self._messages.append(self._end)

    def handle_source_event(self, event: SourceEvent) -> None:
        self._host.steps += 1
        self._messages.append(lambda: self.session.reader.handle_source_event(event))

    # ---- called by the host

    def deliver(self) -> None:
        while self._messages:
            with calling("EVT-1", "the reader, called by the host,"):
                self._messages.popleft()()

    def snapshot(self, checkpoint_id: int) -> list[Split]:
        """Return the splits in the reader's snapshot and those that it has not received yet."""
        held = {split.id: split for split in self.session.snapshot(checkpoint_id)}
        return [*held.values(), *self._coming]

    def _add_coming(self) -> None:
        coming, self._coming = self._coming, []
        self.session.add(coming)

    def _end(self) -> None:
        self.no_more = True
        self.session.no_more()


class SingleThreadHost(Closing):
    """Runs a source's enumerator and its reader on one thread.

    A row counts as delivered when the reader emits it. The splits of a failed reader go back to the enumerator at the
    position after the last delivered row, so no row may come twice. A host with `restored` starts with the rows of that
    checkpoint.

    Args:
        subject: The source under test.
        restored: The checkpoint to continue from; None to start without one.
        register: Whether the reader starts immediately.
    """

    def __init__(self, subject: Subject, *, restored: HostCheckpoint | None = None, register: bool = True) -> None:
        self._subject = subject
        self.rows: defaultdict[str, list[str]] = defaultdict(list)
        self.finished: set[str] = set()
        self.assigned: set[str] = set()
        self.steps = 0
        self._reader: _HostReader | None = None
        self._checkpoint = 0
        self._discovering: DiscoveringEnumerator | None = None
        source, self.options = subject.coordinated()
        runtime = ThreadRuntime()
        self.coordinator = Coordinator(source.name, runtime)
        if restored is not None:
            self.rows.update({split_id: list(rows) for split_id, rows in restored.rows.items()})
            self.finished.update(restored.finished)
        with self._closed_on_error(), calling("ENU-1", "the enumerator, called by the coordinator,"):
            self._discovering = begin_enumerator(
                source,
                self.coordinator,
                self.options,
                runtime.random,
                state=None if restored is None else json.loads(json.dumps(restored.enumerator)),
                splits=[through_json(split, subject) for split in restored.held] if restored else [],
            )
            if register:
                self.register()

    # ---- events of the host

    def register(self) -> None:
        """Create the reader, register it with the coordinator and start it."""
        session = ReaderSession(self._subject, no_more=False, once=False, context=_Context(self, self._subject))
        reader = self._reader = _HostReader(self, session)
        self.coordinator.run_in_coordinator_thread(lambda: self.coordinator.register(reader, None))
        session.start()

    def fail(self) -> None:
        """Close the reader, and return its splits to the enumerator at their delivered positions (COO-4).

        The enumerator sees all that the reader sent before.
        """
        with calling("ENU-1", "the enumerator, called by the coordinator,"):
            self.coordinator.run_queued()
        reader, self._reader = self._reader, None
        assert reader is not None  # noqa: S101 - the caller has registered it
        reader.session.close()
        back = [through_json(split, self._subject) for split in reader.held.values()]
        with calling("ENU-3", "the enumerator, called by the coordinator,"):
            self.coordinator.reader_failed(back)

    def settle(self, seconds: float) -> None:
        """Run steps until none has had an effect for some seconds."""
        due = time.monotonic() + seconds
        while time.monotonic() < due:
            if self.step():
                due = time.monotonic() + seconds

    def checkpoint(self, *, complete: bool = True) -> HostCheckpoint:
        """Take a checkpoint between two steps.

        Args:
            complete: Whether to notify the enumerator and the reader that the checkpoint is complete.
        """
        number = self._checkpoint + 1
        with calling("ENU-1", "the enumerator, called by the coordinator,"):
            self.coordinator.run_queued()
        with calling("ENU-5", "the enumerator's snapshot_state()"):
            state = self.coordinator.snapshot(number)
        held = [] if self._reader is None else self._reader.snapshot(number)
        taken = HostCheckpoint(
            _json_of(state), held, set(self.finished), {split_id: list(rows) for split_id, rows in self.rows.items()}
        )
        if complete:
            self._checkpoint = number
            positions = {split.id: split.position for split in held if split.position is not None}
            with calling("ENU-7", "the enumerator, told of a complete checkpoint,"):
                self.coordinator.checkpoint_complete(number)
                if self._discovering is not None:
                    self._discovering.committed(positions)
            if self._reader is not None:
                self._reader.session.reader.notify_checkpoint_complete(number)
        return taken

    def close(self) -> None:
        """Close the reader, then the enumerator."""
        try:
            if self._reader is not None:
                self._reader.session.close()
        finally:
            with calling("ENU-9", "the enumerator's close()"):
                self.coordinator.close(self._subject.patience)

    # ---- running

    def run(self, until: Callable[[], bool]) -> None:
        """Call `step` until `until()` returns True.

        Raises:
            Broken: Nothing happened for the subject's `patience`.
        """
        silence = Silence(self._subject.patience)
        while not until():
            if self.step():
                silence.reset()
            elif silence.left < 0:
                raise self._subject.silent(self._stuck(silence.seconds))

    def _stuck(self, seconds: float) -> Broken:
        held = sorted(self._reader.held) if self._reader is not None else []
        expected = self._subject.plain.rows.keys() if self._subject.plain else set()
        lacking = sorted(expected - self.finished - set(held))
        if lacking:
            return Broken(
                f"the reader lacks the split {lacking[0]!r}, and nothing happened for {seconds:.1f} s; {len(lacking)} "
                f"of {len(expected)} splits are missing, and the reader holds {held}",
                "assign every split that was found or came back, at its position; store unassigned splits in "
                "snapshot_state(), and restore them in restore_state()",
            )
        told = self._reader is not None and self._reader.no_more
        return Broken(
            f"nothing happened for {seconds:.1f} s; the reader holds {held}, and was {'' if told else 'not '}told that "
            "no more splits follow",
            "answer every request, and signal the end once every split is assigned",
        )

    def step(self) -> bool:
        """Run one step of the enumerator and of the reader; return whether any of them made progress."""
        before = self.steps
        with calling("ENU-1", "the enumerator, called by the coordinator,"):
            while self.coordinator.run_next():
                pass
        if self._reader is not None:
            self._reader.deliver()
            self._poll(self._reader)
        if self.steps == before:
            time.sleep(_PAUSE)
        return self.steps > before

    def in_progress(self) -> bool:
        """Return whether the reader has emitted rows of a split that it still holds."""
        reader = self._reader
        return reader is not None and any(reader.emitted[split_id] for split_id in reader.held)

    def ended(self) -> bool:
        """Return whether the reader has ended."""
        return self._reader is not None and self._reader.ended

    def has_read(self, expected: Mapping[str, Sequence[str]]) -> bool:
        """Return whether the reader has read the whole input.

        A bounded source is read when the reader has ended. An unbounded source is read when each split has returned
        as many rows as `expected` holds for it, and is finished or caught up. A split of a live input, which may grow,
        need not be caught up.

        Args:
            expected: The expected rows as text, by split id.
        """
        if self._subject.source.bounded:
            return self.ended()
        quiet = self.finished | (set() if self._reader is None else self._reader.session.output.caught_up)
        return all(
            len(self.rows[split_id]) >= len(rows) and (self._subject.live or split_id in quiet)
            for split_id, rows in expected.items()
        )

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        """Close the host if the `with` block fails: it is not entered yet."""
        try:
            yield
        except BaseException:  # also Ctrl-C: nobody else closes the host
            self.abandon()
            raise

    def _poll(self, reader: _HostReader) -> None:
        if reader.ended:
            return
        output = reader.session.output
        reader.ended = reader.session.poll() is InputStatus.END_OF_INPUT
        self.steps += reader.ended
        for split_id, rows in output.rows.items():
            if new := rows[reader.emitted[split_id] :]:
                self.rows[split_id] += new
                reader.emitted[split_id] = len(rows)
                reader.held[split_id] = reader.held[split_id].at(output.marks[split_id][-1][1])
                self.steps += 1
        for split_id in output.released & reader.held.keys():
            self.finished.add(split_id)
            self.steps += 1
            with calling("ENU-1", "the enumerator, called by the coordinator,"):
                self.coordinator.splits_finished([reader.held.pop(split_id)])


def _json_of(state: Json) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return json.loads(json.dumps(state))
    except (TypeError, ValueError) as error:
        raise Broken(
            f"the enumerator's snapshot cannot be written as JSON: {error}",
            "use only None, bool, int, float, str, lists and dicts",
            rule="ENU-5",
        ) from error
