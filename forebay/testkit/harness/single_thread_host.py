# SPDX-License-Identifier: Apache-2.0
"""A small host on one thread: its coordinator and readers can be killed and restored at any step."""

from __future__ import annotations

import json
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from forebay.framework.coordination.coordinator import Coordinator
from forebay.framework.coordination.inbox import AddSplits, EnumeratorEvent, NoMoreSplits, ToReader
from forebay.framework.enumerator import SourceEvent
from forebay.framework.reader import InputStatus
from forebay.framework.runtime.runtime import Next, ThreadRuntime
from forebay.framework.split import Json, Split
from forebay.testkit.harness.guarded_calls import calling
from forebay.testkit.harness.session_base import Closing, KitContext, Silence
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
        held: The splits of all readers, at the positions to resume from.
        rows: The rows that the readers had emitted before the checkpoint, as text, by split id.
    """

    enumerator: Json
    held: Sequence[Split]
    rows: Mapping[str, Sequence[str]]


class _Context(KitContext):
    """A reader context that passes split requests and source events to the host's coordinator."""

    def __init__(self, host: SingleThreadHost, subtask: int, subject: Subject) -> None:
        super().__init__(host.options, subject.clients)
        self._host = host
        self._subtask = subtask

    @property
    def subtask(self) -> int:
        return self._subtask

    def current_parallelism(self) -> int:
        return self._host.readers

    def send_split_request(self) -> None:
        self._host.coordinator.handle_split_request(self._subtask, None)

    def send_source_event(self, event: SourceEvent) -> None:
        self._host.coordinator.handle_source_event(self._subtask, event)


@dataclass(slots=True)
class _HostReader:
    """The state of one reader: its session, its undelivered messages and the splits it holds."""

    subtask: int
    session: ReaderSession
    mailbox: deque[ToReader] = field(default_factory=deque)
    held: dict[str, Split] = field(default_factory=dict)
    no_more: bool = False
    ended: bool = False
    emitted: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def snapshot(self, checkpoint_id: int) -> list[Split]:
        """Return the splits in the reader's snapshot and those in messages that it has not received yet."""
        held = {split.id: split for split in self.session.snapshot(checkpoint_id)}
        on_the_way = [split for message in self.mailbox if isinstance(message, AddSplits) for split in message.splits]
        return [*held.values(), *on_the_way]


class SingleThreadHost(Closing):
    """Runs a source's coordinator and its readers on one thread.

    A row counts as delivered when a reader emits it. The splits of a failed reader go back to the coordinator at the
    position after the last delivered row, so no row may come twice. A host with `restored` starts with the rows of that
    checkpoint.

    Args:
        subject: The source under test.
        readers: The number of readers.
        restored: The checkpoint to continue from; None to start without one.
        register: The subtasks whose readers start immediately; by default, all of them.
    """

    def __init__(
        self,
        subject: Subject,
        readers: int,
        *,
        restored: HostCheckpoint | None = None,
        register: Iterable[int] | None = None,
    ) -> None:
        self._subject = subject
        self.readers = readers
        self.rows: defaultdict[str, list[str]] = defaultdict(list)
        self.finished: set[str] = set()
        self.assigned: set[str] = set()
        self.steps = 0
        self._readers: dict[int, _HostReader] = {}
        self._failed: list[_HostReader] = []
        self._checkpoint = 0
        source, self.options = subject.coordinated()
        self.coordinator = Coordinator(source, ThreadRuntime(), parallelism=readers, options=self.options)
        if restored is not None:
            self.rows.update({split_id: list(rows) for split_id, rows in restored.rows.items()})
            self.coordinator.reset_to_checkpoint(json.loads(json.dumps(restored.enumerator)))
        self.coordinator.start([through_json(split, subject) for split in restored.held] if restored else [])
        for subtask in range(readers) if register is None else register:
            self.register(subtask)

    # ---- events of the host

    def register(self, subtask: int) -> None:
        """Create the reader of a subtask, register it with the coordinator and start it."""
        context = _Context(self, subtask, self._subject)
        reader = _HostReader(subtask, ReaderSession(self._subject, no_more=False, once=False, context=context))
        self._readers[subtask] = reader
        self.coordinator.register_reader(subtask, None, lambda message: self._receive(reader, message))
        reader.session.start()

    def fail(self, subtask: int) -> None:
        """Close a subtask's reader and report its failure to the coordinator. The caller calls `replace` next."""
        reader = self._readers.pop(subtask)
        self.coordinator.reader_failed(subtask)
        reader.session.close()
        self._failed.append(reader)

    def replace(self) -> None:
        """Return a failed reader's splits to the coordinator at their delivered positions; start another (COO-4)."""
        self.register(self.give_back())

    def give_back(self) -> int:
        """Return a failed reader's splits to the coordinator at their delivered positions. Return its subtask."""
        reader = self._failed.pop()
        back = [through_json(split, self._subject) for split in reader.held.values()]
        self.coordinator.subtask_reset(reader.subtask, self._checkpoint, back)
        return reader.subtask

    def settle(self, seconds: float) -> None:
        """Run steps until none has had an effect for some seconds."""
        due = time.monotonic() + seconds
        while time.monotonic() < due:
            if self.step():
                due = time.monotonic() + seconds

    def checkpoint(self, *, complete: bool = True) -> HostCheckpoint:
        """Take a checkpoint between two steps.

        Args:
            complete: Whether to notify the coordinator and the readers that the checkpoint is complete.
        """
        number = self._checkpoint + 1
        taken: list[tuple[Json, Exception | None]] = []
        self.coordinator.snapshot(number, lambda state, error: taken.append((state, error)))
        silence = Silence(self._subject.patience)
        while not taken:
            # Not a step further: what the coordinator does after the snapshot is no part of the checkpoint.
            self._coordinate(once=True)
            if silence.left < 0:
                raise Broken("the enumerator's snapshot_state() did not return", "do not block in it", rule="ENU-5")
        state, error = taken[0]
        if error is not None:
            raise error
        held = [split for reader in self._readers.values() for split in reader.snapshot(number)]
        taken_now = HostCheckpoint(
            _json_of(state), held, {split_id: list(rows) for split_id, rows in self.rows.items()}
        )
        if complete:
            self._checkpoint = number
            positions = {split.id: split.position for split in held if split.position is not None}
            self.coordinator.notify_checkpoint_complete(number, positions)
            for reader in self._readers.values():
                reader.session.reader.notify_checkpoint_complete(number)
        return taken_now

    def close(self) -> None:
        """Close the readers, then the coordinator with its enumerator."""
        try:
            for reader in self._readers.values():
                reader.session.close()
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
        readers = self._readers.items()
        held = sorted(split_id for _, reader in readers for split_id in reader.held)
        open_ended = [subtask for subtask, reader in readers if not reader.no_more]
        expected = self._subject.plain.rows.keys() if self._subject.plain else set()
        lacking = sorted(expected - self.finished - set(held))
        if lacking:
            return Broken(
                f"no reader has the split {lacking[0]!r}, and nothing happened for {seconds:.1f} s; {len(lacking)} of "
                f"{len(expected)} splits are missing, and readers hold {held}",
                "assign every split that was found or came back, at its position; store unassigned splits in "
                "snapshot_state(), and restore them in restore_state()",
            )
        return Broken(
            f"nothing happened for {seconds:.1f} s; readers hold {held}; readers that were not told that no more "
            f"splits follow: {open_ended}",
            "answer every request, and signal the end once every split is assigned",
        )

    def step(self) -> bool:
        """Run one step of the coordinator and of every reader; return whether any of them made progress."""
        before = self.steps
        self._coordinate()
        for reader in list(self._readers.values()):
            self._deliver(reader)
            self._poll(reader)
        if self.steps == before:
            time.sleep(_PAUSE)
        return self.steps > before

    def in_progress(self) -> list[int]:
        """Return the subtasks of the readers that have emitted rows of a split that they still hold."""
        readers = self._readers.items()
        return [subtask for subtask, reader in readers if any(reader.emitted[split_id] for split_id in reader.held)]

    def all_ended(self) -> bool:
        """Return whether all readers are registered and have ended."""
        return len(self._readers) == self.readers and all(reader.ended for reader in self._readers.values())

    def has_read(self, expected: Mapping[str, Sequence[str]]) -> bool:
        """Return whether the readers have read the whole input.

        A bounded source is read when every reader has ended. An unbounded source is read when each split has returned
        as many rows as `expected` holds for it, and is finished or caught up. A split of a live input, which may grow,
        need not be caught up.

        Args:
            expected: The expected rows as text, by split id.
        """
        if self._subject.source.bounded:
            return self.all_ended()
        quiet = self.finished.union(*(reader.session.output.caught_up for reader in self._readers.values()))
        return all(
            len(self.rows[split_id]) >= len(rows) and (self._subject.live or split_id in quiet)
            for split_id, rows in expected.items()
        )

    def _coordinate(self, *, once: bool = False) -> None:
        """Step the coordinator until it has no work left; with `once`, only one time."""
        with calling("ENU-1", "the enumerator, called by the coordinator,"):
            while self.coordinator.step() is Next.AGAIN and not once:
                pass
        if self.coordinator.error is not None:
            raise self.coordinator.error

    def _receive(self, reader: _HostReader, message: ToReader) -> None:
        reader.mailbox.append(message)
        self.steps += 1
        if isinstance(message, AddSplits):
            reader.held.update((split.id, split) for split in message.splits)
            self.assigned.update(split.id for split in message.splits)

    def _deliver(self, reader: _HostReader) -> None:
        while reader.mailbox:
            match reader.mailbox.popleft():
                case AddSplits(splits):
                    reader.session.add(splits)
                case NoMoreSplits():
                    reader.no_more = True
                    reader.session.no_more()
                case EnumeratorEvent(event):
                    with calling("EVT-1", "the reader's handle_source_event()"):
                        reader.session.reader.handle_source_event(event)

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
            self.coordinator.handle_splits_finished(reader.subtask, [reader.held.pop(split_id)])


def _json_of(state: Json) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return json.loads(json.dumps(state))
    except (TypeError, ValueError) as error:
        raise Broken(
            f"the enumerator's snapshot cannot be written as JSON: {error}",
            "use only None, bool, int, float, str, lists and dicts",
            rule="ENU-5",
        ) from error
