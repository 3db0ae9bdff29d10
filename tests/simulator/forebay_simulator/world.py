# SPDX-License-Identifier: Apache-2.0
"""What lies outside the machinery in a simulation: the input, the faults, the books that everything is checked by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from random import Random

from forebay.clock import ManualClock
from forebay.errors import RetriableError
from forebay.framework.reader import SourceReader
from forebay.framework.split import Position
from forebay.framework.split_reader import SplitReader
from forebay_simulator.runtime import SimulatedRuntime
from forebay_simulator.scenario import NUMBERS, Fault, Scenario, SplitScript

_BUDGET = 12
"""How often each fault comes at most in one process: what is left afterwards must come to its end."""

_BUDGETS = {
    Fault.READER_CRASH: 3,  # as many replacements in a row as the host allows
    Fault.WAKE: 60,
    Fault.STALL: 3,
    Fault.PAUSE: 10,
    Fault.SNAPSHOT_TROUBLE: 4,
    Fault.STORE_TROUBLE: 6,
    Fault.SLOW_CONSUMER: 20,
    Fault.KILL: 1,
    Fault.STOP: 1,
}

RETRIES = 3
"""The host's option: as often a fetch or a first discovery may fail in a row."""


class Injected(Exception):
    """An error that a simulation raised on purpose."""


class InjectedTrouble(RetriableError):
    """A retriable error that a simulation raised on purpose."""


class Killed(BaseException):
    """The process dies here."""


def is_injected(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, was raised on purpose."""
    while error is not None:
        if isinstance(error, (Injected, InjectedTrouble)):
            return True
        error = error.__cause__
    return False


class World:
    """The outside of one simulation, across its processes.

    Args:
        scenario: What there is.
        trace: Takes a line for everything that happens.
    """

    def __init__(self, scenario: Scenario, trace: Callable[[str], None] | None = None) -> None:
        self.scenario = scenario
        self.clock = ManualClock()
        self.chance = Random(scenario.seed)
        self.scripts = {split.id: split for split in scenario.splits}
        self.rows = {split.id: split.rows() for split in scenario.splits}
        self.counts: Counter[Fault] = Counter()
        self.problem: str | None = None
        self.process = 0
        self.replayed = 0
        # What outlives a process: what was delivered, what is stored, of what the author heard.
        self.seen = dict.fromkeys(self.scripts, 0)
        self.stored = dict.fromkeys(self.scripts, 0)
        self.ended: set[str] = set()
        self.retired: set[str] = set()
        self._trace = trace
        self._forget(None)

    def begin(self, runtime: SimulatedRuntime) -> None:
        """A process begins, with nothing but what is stored."""
        self.process += 1
        self._forget(runtime)

    def _forget(self, runtime: SimulatedRuntime | None) -> None:
        self.runtime = runtime
        self.delivered = dict(self.stored)
        self.covered = dict(self.stored)
        self.readers: list[SourceReader] = []
        self.holder: dict[str, SourceReader] = {}
        self.split_readers: list[SplitReader] = []
        self.failures_in_a_row = 0
        self.stalled = False
        self.out = set(self.ended)
        self._left = {fault: _BUDGETS.get(fault, _BUDGET) for fault in self.scenario.rates}

    # ---- faults

    def happens(self, fault: Fault, what: object = "") -> bool:
        """Whether a fault comes now."""
        rate = self.scenario.rates.get(fault)
        if rate is None or self.chance.random() >= rate or not self._left[fault]:
            return False
        self._left[fault] -= 1
        self.counts[fault] += 1
        self.note(f"! {fault.name} {what}")
        return True

    def crash(self, where: str) -> None:
        """Raise an error that costs the reader, if it comes now."""
        if self.happens(Fault.READER_CRASH, where):
            raise Injected(where)

    def trouble(self, fault: Fault, where: str) -> None:
        """Raise a retriable error, if it comes now."""
        if self.happens(fault, where):
            raise InjectedTrouble(where, advice="nothing: it was injected")

    def trouble_in_a_row(self, fault: Fault, where: str) -> None:
        """Raise a retriable error, if it comes now; but in one process no more than the host bears in a row."""
        if self.failures_in_a_row < RETRIES and self.happens(fault, where):
            self.failures_in_a_row += 1
            raise InjectedTrouble(where, advice="nothing: it was injected")

    def kill(self, where: str) -> None:
        """End the process, if it is to end now."""
        if self.process < len(self.scenario.parallelism) and self.happens(Fault.KILL, where):
            raise Killed(where)

    def job_delay(self) -> float:
        """Draw how long a job waits for its next step."""
        return self.chance.uniform(0, 30) if self.happens(Fault.SLOW_JOB) else 0.0

    def disturb(self) -> None:
        """Wake and stall, before any step."""
        runtime = self.runtime
        if runtime is None:
            return
        if self.happens(Fault.WAKE):
            if self.split_readers and self.chance.random() < 0.5:
                self.chance.choice(self.split_readers).wake_up()
            else:
                self.note(f"  woken: {runtime.wake()}")
        if self.happens(Fault.STALL):
            self.stalled = True
            self.note(f"  stalled: {runtime.stall(self.chance.choice((0.1, 5.0, 50.0)), but='consumer')}")

    @property
    def seemed_blocked(self) -> bool:
        """Whether some worker may have looked like a blocked thread: it was stalled, or interrupted by who waited."""
        return self.stalled or (self.runtime is not None and self.runtime.stuck_joins > 0)

    # ---- the books

    def note(self, line: str) -> None:
        """Trace a line."""
        if self._trace is not None:
            self._trace(f"{self.clock.monotonic():9.3f} {line}")

    def broken(self, what: str) -> None:
        """Note a broken rule. Only noted: the machinery handles exceptions of connectors. The first one counts."""
        self.note(f"BROKEN: {what}")
        self.problem = self.problem or what

    def available(self, split: SplitScript) -> int:
        """Return the position after the last record of a split that has arrived."""
        return split.size if self.scenario.bounded else split.available(self.clock.monotonic())

    def all_delivered(self) -> bool:
        """Whether every record has come in this process, or is stored as delivered before."""
        return all(self.delivered[split_id] == len(rows) for split_id, rows in self.rows.items())

    def deliver(self, numbers: list[int], told: tuple[str, Position | None] | None) -> None:
        """Check the record batch that the consumer got: the next records of one split, once, in order."""
        split_id = f"s{numbers[0] // NUMBERS}"
        rows, at = self.rows[split_id], self.delivered[split_id]
        self.note(f"> {split_id} records {[number % NUMBERS for number in numbers]}")
        if numbers != rows[at : at + len(numbers)]:
            self.broken(f"{split_id}: {numbers} came where {rows[at : at + 5]} … were next (index {at})")
            return
        self.delivered[split_id] = at + len(numbers)
        self.replayed += max(0, min(self.seen[split_id] - at, len(numbers)))
        self.seen[split_id] = max(self.seen[split_id], self.delivered[split_id])
        index = None if told is None else self.scripts[split_id].row_index(told[1])
        if told is None or told[0] != split_id or index != self.delivered[split_id]:
            self.broken(f"{split_id}: after record {self.delivered[split_id]} the host says it delivered {told}")

    def cover(self) -> None:
        """The consumer asked for the next batch."""
        self.covered = dict(self.delivered)

    def store(self, indexes: Mapping[str, int], ended: Collection[str]) -> None:
        """Check what a checkpoint says against what is covered, and keep it.

        Args:
            indexes: How many records of each split it holds as delivered.
            ended: The splits that it holds as finished.
        """
        self.ended = {*ended, *self.retired}
        for split_id, covered in self.covered.items():
            said = len(self.rows[split_id]) if split_id in self.retired else indexes.get(split_id, 0)
            if said != covered:
                self.broken(f"{split_id}: a checkpoint says {said} records are delivered, and {covered} are covered")
        self.stored = dict(self.covered)

    def told_finished(self, split_id: str, position: Position | None) -> None:
        """The author heard that a split has ended."""
        whole = len(self.rows[split_id])
        if self.stored[split_id] != whole or self.scripts[split_id].row_index(position) != whole:
            self.broken(f"{split_id} was told finished at {position}; {self.stored[split_id]} of {whole} are stored")
        self.retired.add(split_id)

    def told_committed(self, split_id: str, position: Position) -> None:
        """The author heard up to where a split is durably delivered."""
        if self.scripts[split_id].row_index(position) > self.stored[split_id]:
            self.broken(f"{split_id} was told committed up to {position}; {self.stored[split_id]} records are stored")
