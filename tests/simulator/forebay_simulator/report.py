# SPDX-License-Identifier: Apache-2.0
"""A report on many simulations: a table of sums, and each failure with the command that replays it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from forebay_simulator.scenario import Fault
from forebay_simulator.simulation import Outcome

_DAY = 86_400.0


@dataclass(slots=True)
class Report:
    """The sums of many outcomes; printed, it is a table.

    Args:
        wall_seconds: How long they took together.
    """

    wall_seconds: float = 0.0
    failures: list[Outcome] = field(default_factory=list)
    schedules: int = 0
    steps: int = 0
    longest: int = 0
    virtual_seconds: float = 0.0
    records: int = 0
    replayed: int = 0
    processes: Counter[str] = field(default_factory=Counter)
    faults: Counter[Fault] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        """Count one outcome."""
        self.schedules += 1
        self.steps += outcome.steps
        self.longest = max(self.longest, outcome.steps)
        self.virtual_seconds += outcome.seconds
        self.records += outcome.records
        self.replayed += outcome.replayed
        self.processes.update(ending.partition(" ")[0] for ending in outcome.endings)
        self.faults.update(outcome.faults)
        if outcome.problem is not None:
            self.failures.append(outcome)

    def __str__(self) -> str:
        return "\n".join([*self._lines(), *(f"\n{described(outcome)}" for outcome in self.failures)])

    def _lines(self) -> Iterator[str]:
        rate = self.schedules / self.wall_seconds if self.wall_seconds else 0.0
        ended = ", ".join(f"{count:,} {how}" for how, count in self.processes.most_common())
        yield f"schedules  {self.schedules:,} in {self.wall_seconds:.1f} s, {rate:.0f} a second"
        yield f"steps      {self.steps:,}, at most {self.longest:,} in one schedule"
        yield f"time       {self.virtual_seconds / _DAY:.1f} days, virtually"
        yield f"records    {self.records:,}, and {self.replayed:,} again after a restart"
        yield f"processes  {sum(self.processes.values()):,}: {ended}"
        yield f"faults     {sum(self.faults.values()):,}"
        for fault in Fault:
            yield f"  {fault.name:<18} {self.faults[fault]:>8,}  {fault.value}"
        yield f"problems   {len(self.failures):,}"


def described(outcome: Outcome) -> str:
    """Return the problem of one simulation and the command that replays it."""
    return f"seed {outcome.seed}: {outcome.problem}\n  replay: {outcome.replay}"
