# SPDX-License-Identifier: Apache-2.0
"""The environment of a simulation: the input, the faults, and the expected state that checks compare with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from random import Random

from manual_clock import ManualClock

from forebay.errors import RetriableError
from forebay.framework.reader import SourceReader
from forebay.framework.split import Position
from forebay.framework.split_reader import SplitReader
from forebay_simulator.runtime import SimulatedRuntime
from forebay_simulator.scenario import NUMBERS, Fault, Scenario, SplitScript

_BUDGET = 12
"""Maximum number of each fault in one process: without more faults it must finish."""

_BUDGETS = {
    Fault.READER_CRASH: 3,  # as many replacements in a row as the host allows
    Fault.WAKE: 60,
    Fault.STALL: 3,
    Fault.PAUSE: 10,
    Fault.SNAPSHOT_FAILURE: 4,
    Fault.STORE_FAILURE: 6,
    Fault.SLOW_CONSUMER: 20,
    Fault.KILL: 1,
    Fault.STOP: 1,
}

RETRIES = 3
"""The host's option: maximum failures in a row of a fetch or a first discovery."""


class Injected(Exception):
    """An error that a simulation raised on purpose."""


class InjectedFailure(RetriableError):
    """A retriable error that a simulation raised on purpose."""


class Killed(BaseException):
    """Ends the process."""


def is_injected(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, was raised on purpose."""
    while error is not None:
        if isinstance(error, (Injected, InjectedFailure)):
            return True
        error = error.__cause__
    return False


class World:
    """The environment of one simulation, across its processes.

    Args:
        scenario: Input, options and faults.
        trace: Takes a line for each event.
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
        # State that outlives a process: delivered and stored rows, splits reported to the author.
        self.ever_delivered = dict.fromkeys(self.scripts, 0)
        self.stored = dict.fromkeys(self.scripts, 0)
        self.ended: set[str] = set()
        self.retired: set[str] = set()
        self._trace = trace
        self._forget(None)

    def begin(self, runtime: SimulatedRuntime) -> None:
        """Begin a process with the stored state."""
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
        """Return whether a fault happens now, and count it."""
        rate = self.scenario.rates.get(fault)
        if rate is None or self.chance.random() >= rate or not self._left[fault]:
            return False
        self._left[fault] -= 1
        self.counts[fault] += 1
        self.note(f"! {fault.name} {what}")
        return True

    def crash(self, where: str) -> None:
        """Raise an error that ends the reader, if the fault happens now."""
        if self.happens(Fault.READER_CRASH, where):
            raise Injected(where)

    def maybe_fail(self, fault: Fault, where: str) -> None:
        """Raise a retriable error, if the fault happens now."""
        if self.happens(fault, where):
            raise InjectedFailure(where, advice="nothing: it was injected")

    def maybe_fail_in_a_row(self, fault: Fault, where: str) -> None:
        """Raise a retriable error, if the fault happens now; in one process at most as often as the host retries."""
        if self.failures_in_a_row < RETRIES and self.happens(fault, where):
            self.failures_in_a_row += 1
            raise InjectedFailure(where, advice="nothing: it was injected")

    def kill(self, where: str) -> None:
        """End the process, if the fault happens now."""
        if self.process < len(self.scenario.parallelism) and self.happens(Fault.KILL, where):
            raise Killed(where)

    def job_delay(self) -> float:
        """Draw the delay of a job's next step."""
        return self.chance.uniform(0, 30) if self.happens(Fault.SLOW_JOB) else 0.0

    def disturb(self) -> None:
        """Wake and stall workers, before any step."""
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
        """Whether a worker may have looked blocked: it was stalled, or interrupted by a joining worker."""
        return self.stalled or (self.runtime is not None and self.runtime.stuck_joins > 0)

    # ---- checks

    def note(self, line: str) -> None:
        """Trace a line."""
        if self._trace is not None:
            self._trace(f"{self.clock.monotonic():9.3f} {line}")

    def broken(self, what: str) -> None:
        """Keep the first broken rule. It is not raised: the machinery would handle it as a connector's error."""
        self.note(f"BROKEN: {what}")
        self.problem = self.problem or what

    def available(self, split: SplitScript) -> int:
        """Return the position after the last record of a split that has arrived."""
        return split.size if self.scenario.bounded else split.available(self.clock.monotonic())

    def all_delivered(self) -> bool:
        """Whether every record was delivered in this process, or is stored as delivered before."""
        return all(self.delivered[split_id] == len(rows) for split_id, rows in self.rows.items())

    def deliver(self, numbers: list[int], reported: tuple[str, Position | None] | None) -> None:
        """Check a delivered record batch: the next records of one split, once, in order."""
        split_id = f"s{numbers[0] // NUMBERS}"
        rows, at = self.rows[split_id], self.delivered[split_id]
        self.note(f"> {split_id} records {[number % NUMBERS for number in numbers]}")
        if numbers != rows[at : at + len(numbers)]:
            self.broken(f"{split_id}: {numbers} came where {rows[at : at + 5]} … were next (index {at})")
            return
        self.delivered[split_id] = at + len(numbers)
        self.replayed += max(0, min(self.ever_delivered[split_id] - at, len(numbers)))
        self.ever_delivered[split_id] = max(self.ever_delivered[split_id], self.delivered[split_id])
        index = None if reported is None else self.scripts[split_id].row_index(reported[1])
        if reported is None or reported[0] != split_id or index != self.delivered[split_id]:
            self.broken(f"{split_id}: after record {self.delivered[split_id]} the host says it delivered {reported}")

    def cover(self) -> None:
        """Note that the consumer requested the next batch."""
        self.covered = dict(self.delivered)

    def store(self, indexes: Mapping[str, int], ended: Collection[str]) -> None:
        """Check a checkpoint against the covered records, and keep it.

        Args:
            indexes: The number of delivered records of each split in it.
            ended: The finished splits in it.
        """
        self.ended = {*ended, *self.retired}
        for split_id, covered in self.covered.items():
            said = len(self.rows[split_id]) if split_id in self.retired else indexes.get(split_id, 0)
            if said != covered:
                self.broken(f"{split_id}: a checkpoint says {said} records are delivered, and {covered} are covered")
        self.stored = dict(self.covered)

    def check_finished(self, split_id: str, position: Position | None) -> None:
        """Check that a split reported as finished is stored completely."""
        whole = len(self.rows[split_id])
        if self.stored[split_id] != whole or self.scripts[split_id].row_index(position) != whole:
            self.broken(f"{split_id} was told finished at {position}; {self.stored[split_id]} of {whole} are stored")
        self.retired.add(split_id)

    def check_committed(self, split_id: str, position: Position) -> None:
        """Check that records reported as committed are stored."""
        if self.scripts[split_id].row_index(position) > self.stored[split_id]:
            self.broken(f"{split_id} was told committed up to {position}; {self.stored[split_id]} records are stored")
