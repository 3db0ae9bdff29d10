# SPDX-License-Identifier: Apache-2.0
"""A little host, all on one thread: a coordinator and some readers, that can be killed and restored at any step."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from forebay.framework.coordination.coordinator import Coordinator
from forebay.framework.coordination.messages import AddSplits, EnumeratorEvent, NoMoreSplits, ToReader
from forebay.framework.events import SourceEvent
from forebay.framework.reader import InputStatus
from forebay.framework.runtime.runtime import Next, ThreadRuntime
from forebay.framework.split import Json, Split
from forebay.testkit.outcomes import Broken
from forebay.testkit.session import Session
from forebay.testkit.subject import KitContext, Subject, travelled
from forebay.testkit.watch import calling

_PAUSE = 0.003


@dataclass(frozen=True, slots=True)
class Cut:
    """A completed checkpoint, as it comes back from a disk.

    Args:
        enumerator: The enumerator's snapshot.
        held: What readers held, at the positions to go on from.
        rows: What had been emitted by then, by split.
    """

    enumerator: Json
    held: Sequence[Split]
    rows: dict[str, list[str]]


class _Context(KitContext):
    """A reader context whose requests and events reach the coordinator."""

    def __init__(self, rig: Rig, subtask: int, subject: Subject) -> None:
        super().__init__(rig.options, subject.clients)
        self._rig = rig
        self._subtask = subtask

    @property
    def subtask(self) -> int:
        return self._subtask

    def current_parallelism(self) -> int:
        return self._rig.readers

    def send_split_request(self) -> None:
        self._rig.coordinator.handle_split_request(self._subtask, None)

    def send_source_event(self, event: SourceEvent) -> None:
        self._rig.coordinator.handle_source_event(self._subtask, event)


@dataclass(slots=True)
class _Slot:
    """One subtask: its reader, and what it was given."""

    session: Session
    mailbox: deque[ToReader] = field(default_factory=deque)
    held: dict[str, Split] = field(default_factory=dict)
    told: bool = False
    ended: bool = False
    emitted: dict[str, int] = field(default_factory=dict)


class Rig:
    """Coordinator and readers; used in a `with` block.

    Rows count as delivered when the reader emits them: after a reader is killed its splits go back at that position,
    so nothing may come twice. After a crash of everything, work goes on from a `Cut`, and so does the count.

    Args:
        subject: The source.
        readers: How many.
        cut: What to go on from.
        register: The subtasks that register at once; all by default.
    """

    def __init__(
        self, subject: Subject, readers: int, *, cut: Cut | None = None, register: Iterable[int] | None = None
    ) -> None:
        self._subject = subject
        self.readers = readers
        self.rows: dict[str, list[str]] = {key: list(rows) for key, rows in cut.rows.items()} if cut else {}
        self.finished: set[str] = set()
        self.assigned: set[str] = set()
        self.steps = 0
        self._slots: dict[int, _Slot] = {}
        self._checkpoint = 0
        source, self.options = subject.coordinated()
        self.coordinator = Coordinator(source, ThreadRuntime(), parallelism=readers, options=self.options)
        if cut is not None:
            self.coordinator.reset_to_checkpoint(json.loads(json.dumps(cut.enumerator)))
        self.coordinator.start([travelled(split, subject) for split in cut.held] if cut else [])
        for subtask in range(readers) if register is None else register:
            self.register(subtask)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            with suppress(Exception):
                self.close()

    # ---- what happens to it

    def register(self, subtask: int) -> None:
        """Let a reader begin."""
        slot = _Slot(Session(self._subject, no_more=False, once=False, context=_Context(self, subtask, self._subject)))
        self._slots[subtask] = slot
        self.coordinator.register_reader(subtask, None, lambda message: self._receive(slot, message))
        slot.session.start()

    def fail(self, subtask: int) -> None:
        """Let a reader fail: the coordinator hears of it, and the reader is gone. `replace` follows."""
        slot = self._slots.pop(subtask)
        self.coordinator.reader_failed(subtask)
        held = list(slot.held.values())
        slot.session.close()
        self._failed = (subtask, held)

    def replace(self) -> None:
        """Give back what the failed reader held, at its delivered positions, and let its replacement begin (COO-4)."""
        subtask, held = self._failed
        back = [travelled(split, self._subject) for split in held]
        self.coordinator.subtask_reset(subtask, self._checkpoint, back)
        self.register(subtask)

    def kill(self, subtask: int) -> None:
        """Let a reader fail and be replaced."""
        self.fail(subtask)
        self.replace()

    def checkpoint(self, *, complete: bool = True) -> Cut:
        """Take a checkpoint between two steps.

        Args:
            complete: Tell everybody that it is durable.
        """
        number = self._checkpoint + 1
        taken: list[tuple[Json, Exception | None]] = []
        self.coordinator.snapshot(number, lambda state, error: taken.append((state, error)))
        since = time.monotonic()
        while not taken:
            # Not a step further: what the coordinator does behind the snapshot is no part of the checkpoint.
            self._coordinate(once=True)
            if time.monotonic() - since > self._subject.patience:
                raise Broken("the enumerator's snapshot_state() was never answered", "do not block", rule="ENU-5")
        state, error = taken[0]
        if error is not None:
            raise error
        held = [split for slot in self._slots.values() for split in self._snapshot(slot, number)]
        cut = Cut(_json_of(state), held, {key: list(rows) for key, rows in self.rows.items()})
        if complete:
            self._checkpoint = number
            positions = {split.id: split.position for split in held if split.position is not None}
            self.coordinator.notify_checkpoint_complete(number, positions)
            for slot in self._slots.values():
                slot.session.reader.notify_checkpoint_complete(number)
        return cut

    def close(self) -> None:
        """Close readers and enumerator."""
        try:
            for slot in self._slots.values():
                slot.session.close()
        finally:
            with calling("ENU-9", "the enumerator's close()"):
                self.coordinator.close(self._subject.patience)

    # ---- running

    def run(self, until: Callable[[], bool]) -> None:
        """Step until `until()` holds.

        Raises:
            Broken: Nothing happened for too long.
        """
        since = time.monotonic()
        while not until():
            if self.step():
                since = time.monotonic()
            elif time.monotonic() - since > self._subject.patience:
                waiting = sorted(split_id for slot in self._slots.values() for split_id in slot.held)
                untold = [subtask for subtask, slot in self._slots.items() if not slot.told]
                raise Broken(
                    f"nothing happened for {time.monotonic() - since:.1f} s; readers hold {waiting}, "
                    f"and {len(self.assigned)} splits were assigned in all; not told that no more follow: {untold}",
                    "make every split that comes back assignable again, answer every request, and signal the end",
                )

    def step(self) -> bool:
        """Do a little of everything; return whether anything happened."""
        before = self.steps
        self._coordinate()
        for slot in list(self._slots.values()):
            self._deliver(slot)
            self._poll(slot)
        if self.steps == before:
            time.sleep(_PAUSE)
        return self.steps > before

    def everything_told(self) -> bool:
        """Whether every reader has come to its end."""
        return len(self._slots) == self.readers and all(slot.ended for slot in self._slots.values())

    def caught_up(self, wanted: dict[str, int]) -> bool:
        """Whether every split of an unbounded source has given its rows, and, unless it grows, nothing more for now."""
        quiet = {split_id for slot in self._slots.values() for split_id in slot.session.output.caught_up}
        quiet |= self.finished
        return all(
            len(self.rows.get(key, ())) >= count and (self._subject.live or key in quiet)
            for key, count in wanted.items()
        )

    def _coordinate(self, *, once: bool = False) -> None:
        """Let the coordinator do what waits, or one step of it."""
        with calling("ENU-1", "the enumerator, called by the coordinator,"):
            while self.coordinator.step() is Next.AGAIN and not once:
                pass
        if self.coordinator.error is not None:
            raise self.coordinator.error

    def _receive(self, slot: _Slot, message: ToReader) -> None:
        slot.mailbox.append(message)
        self.steps += 1
        if isinstance(message, AddSplits):
            slot.held.update((split.id, split) for split in message.splits)
            self.assigned.update(split.id for split in message.splits)

    def _deliver(self, slot: _Slot) -> None:
        while slot.mailbox:
            match slot.mailbox.popleft():
                case AddSplits(splits):
                    slot.session.add(splits)
                case NoMoreSplits():
                    slot.told = True
                    slot.session.no_more()
                case EnumeratorEvent(event):
                    with calling("EVT-1", "the reader's handle_source_event()"):
                        slot.session.reader.handle_source_event(event)

    def _poll(self, slot: _Slot) -> None:
        if slot.ended:
            return
        session, output = slot.session, slot.session.output
        slot.ended = session.poll() is InputStatus.END_OF_INPUT
        for split_id, rows in output.rows.items():
            seen = slot.emitted.get(split_id, 0)
            if len(rows) > seen:
                self.rows.setdefault(split_id, []).extend(rows[seen:])
                slot.emitted[split_id] = len(rows)
                slot.held[split_id] = slot.held[split_id].at(output.marks[split_id][-1][1])
                self.steps += 1
        subtask = next(number for number, one in self._slots.items() if one is slot)
        for split_id in output.released & slot.held.keys():
            self.finished.add(split_id)
            self.steps += 1
            self.coordinator.handle_splits_finished(subtask, [slot.held.pop(split_id)])
        self.steps += slot.ended

    def _snapshot(self, slot: _Slot, number: int) -> list[Split]:
        """Return the reader's own snapshot, and what is still on its way to it."""
        with calling("RDR-4", "snapshot_state()"):
            found = {split.id: split for split in slot.session.reader.snapshot_state(number)}
        on_the_way = [split for message in slot.mailbox if isinstance(message, AddSplits) for split in message.splits]
        return [*found.values(), *on_the_way]


def _json_of(state: Json) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return json.loads(json.dumps(state))
    except (TypeError, ValueError) as error:
        raise Broken(
            f"the enumerator's snapshot cannot be written as JSON: {error}",
            "keep to None, bool, int, float, str, lists and dicts",
            rule="ENU-5",
        ) from error
