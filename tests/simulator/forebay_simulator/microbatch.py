# SPDX-License-Identifier: Apache-2.0
"""A stream's planner, killed and restarted under a driver that logs, replays and retries as Spark does.

Everything is in one thread and under one seed. The sink keeps one result for each micro-batch, by its number; what was
delivered is what it holds. Broken rules are: a row that comes twice or not at all, a replay that reads something
else, a limit passed, a split that starves, an offset that goes back.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forebay.errors import RetriableError
from forebay.framework.microbatch.offset_codec import InlineOffsetCodec
from forebay.framework.microbatch.stream_planner import StreamPlanner, open_stream
from forebay.framework.runtime.host_options import HostOptions
from forebay.options import ByteSize, Duration
from forebay_simulator.inline import InlineRuntime
from forebay_simulator.outside import Broken, Crash, Kind, Outside, OutsideSource, Row, StreamScript
from forebay_simulator.stream_rules import StreamRules

MOST_TURNS = 600
"""Micro-batches of one run; more are a run that never ends."""

_TRIGGERS = ("default", "default", "now", "now", "once")


@dataclass(frozen=True, slots=True)
class StreamOutcome:
    """The result of one seed.

    Args:
        seed: The seed.
        problem: The first broken rule, or None.
        processes: How many there were.
        crashes: How many of them were killed.
        turns: Micro-batches.
        replays: How many of them were read again by a later process.
        rows: Rows delivered.
    """

    seed: int
    problem: str | None
    processes: int
    crashes: int
    turns: int
    replays: int
    rows: int

    @property
    def replay(self) -> str:
        """The command that shows this simulation again."""
        return f"python -m forebay_simulator --streams --seed {self.seed} --trace"


def simulate_stream(seed: int, trace: Callable[[str], None] | None = None) -> StreamOutcome:
    """Run the simulation of a seed; the same seed does the same everywhere.

    Args:
        seed: Decides everything.
        trace: Takes a line for each event.
    """
    logger = logging.getLogger("forebay")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    driver = _Driver(seed, trace or (lambda _line: None))
    problem = None
    try:
        driver.run_all()
    except Broken as broken:
        problem = str(broken)
    except Exception as error:  # noqa: BLE001 - any error of the planner is the outcome
        problem = f"{type(error).__name__}: {error}"
    finally:
        logger.setLevel(level)
    if problem is not None:
        driver.trace(f"broken: {problem}")
    rows = sum(map(len, driver.sink.values()))
    return StreamOutcome(seed, problem, driver.processes, driver.crashes, len(driver.wal), driver.replays, rows)


def draw_outside(chance: random.Random) -> Outside:
    """Make the outside of a seed."""
    bounded, in_order = chance.random() < 0.3, chance.random() < 0.3
    kind = Kind(
        bounded=bounded,
        in_order=in_order,
        knows_ends=chance.random() < 0.5,
        drops=chance.random() < 0.3,
        forgets=chance.random() < 0.4,
        texts=chance.random() < 0.25,
        failure_rate=chance.choice((0.0, 0.0, 0.1, 0.3)),
        lag=chance.choice((0.0, 0.0, 0.3)),
    )
    scripts = []
    for number in range(chance.choice((0, 1, 2, 3, 5, 8))):
        closed = in_order or chance.random() < 0.4
        first = chance.choice((0, 0, None, 5))
        scripts.append(
            StreamScript(
                f"s{number}",
                (first or 0) + chance.choice((0, 1, 3, 8, 30)),
                first,
                0.0 if bounded else chance.choice((0.0, 0.0, chance.uniform(0, 60))),
                0.0 if bounded or in_order else chance.choice((0.0, 0.3, 3.0)),
                closed,
                chance.uniform(30, 120) if not bounded and chance.random() < 0.3 else float("inf"),
            )
        )
    return Outside(chance, kind, scripts)


class _Driver:
    """Spark's side, and the state that survives a process: the write-ahead log, the commit log, the sink."""

    def __init__(self, seed: int, trace: Callable[[str], None]) -> None:
        self.chance = random.Random(seed)
        self.trace = trace
        self.outside = draw_outside(self.chance)
        self.outside.crash_rate = self.chance.choice((0.0, 0.01, 0.05, 0.2))
        self.wal: list[str] = []
        self.committed: set[int] = set()
        self.sink: dict[int, list[Row]] = {}
        self.first_rows: dict[int, list[Row]] = {}
        self.rules = StreamRules(self.outside)
        # As with asynchronous progress tracking: a micro-batch is known to be done only once the next one is logged.
        self.lazy = self.chance.random() < 0.3
        self.processes = self.crashes = self.replays = 0
        self.codec: InlineOffsetCodec
        self.planner: StreamPlanner
        self.options: HostOptions
        trace(f"{self.outside.kind}")
        for script in self.outside.scripts.values():
            trace(f"{script}")

    # ---- runs

    def run_all(self) -> None:
        """Run several processes, and a last one without faults that must finish the input."""
        for _ in range(self.chance.randint(1, 8)):
            try:
                self._run(self.chance.choice(_TRIGGERS))
            except Crash:
                self.crashes += 1
                self.trace("killed")
            except RetriableError as error:
                if not self.outside.failures:
                    raise
                self.trace(f"the query failed: {error.message}")
            self._wait()
        self.outside.calm = True
        self.outside.clock.advance(200.0)
        self._run("now")
        self.rules.check_complete(self.sink)

    def _run(self, trigger: str) -> None:
        self.processes += 1
        source = type("Simulated", (OutsideSource,), {"outside": self.outside, "name": "simulated"})()
        self.options = self._draw_options()
        self.trace(f"process {self.processes} at {self.outside.now():.1f} s, trigger {trigger}, {self._limits()}")
        runtime = InlineRuntime(self.outside.clock, self.chance.randrange(1 << 30))
        self.planner = open_stream(source, self.options, parallelism=self.chance.choice((1, 2, 5)), runtime=runtime)
        self.codec = InlineOffsetCodec(source)
        self.rules.begin()
        if trigger == "now":
            self.planner.prepare_available_now()
        start = self._recover()
        most = MOST_TURNS if trigger == "now" else 1 if trigger == "once" else self.chance.randint(1, 12)
        for _ in range(most):
            found = self._latest(start, limited=trigger != "once")
            if trigger == "now":
                self.rules.first_look()
            if found == start and self.wal:
                if trigger == "now":
                    return
            else:
                self._batch(start, found, limited=trigger != "once")
                start = found
            if trigger == "default" or self.chance.random() < 0.3:
                self._wait()
        if trigger == "now":
            raise Broken(f"an AvailableNow run did not end after {MOST_TURNS} micro-batches (S17)")

    def _recover(self) -> str:
        """Recover as Spark does: replay the last micro-batch, unless it was committed."""
        initial = json.dumps(self.planner.initial())
        last = len(self.wal) - 1
        if last < 0:
            return initial
        if last not in self.committed:
            self.replays += 1
            self.trace(f"replay of {last}")
            # Spark does not log the start of batch 0; asynchronous tracking leaves out others (trap 2).
            back = self.chance.choice((1, 1, 1, 2, 3))
            if last and json.loads(self.wal[last])["n"] == json.loads(self.wal[last - 1])["n"]:
                back = 1  # the same in other words: both traps at once are beyond what a start can tell
            self._execute(self.wal[max(0, last - back)] if last else initial, last)
        elif self.chance.random() < 0.1:
            stripped = json.dumps(json.loads(self.wal[last]), separators=(",", ":"))  # trap 1
            self.wal[last] = stripped
        return self.wal[last]

    def _latest(self, start: str, *, limited: bool) -> str:
        self.outside.maybe_crash()
        found = json.dumps(self.planner.latest(json.loads(start), limited=limited))
        self.outside.maybe_crash()
        return found

    def _batch(self, start: str, end: str, *, limited: bool) -> None:
        number = len(self.wal)
        before, after = self.codec.read(json.loads(start)), self.codec.read(json.loads(end))
        if json.loads(start) != json.loads(end):  # else other words for the same: a micro-batch of nothing (trap 1)
            self.rules.check_plan(before, after, self.options if limited else None)
        self.trace(f"{self.outside.now():.1f} s: {number} = {end}")
        self.wal.append(end)
        self.outside.offsets = len(self.wal)
        self.outside.maybe_crash()
        if number:
            self.planner.commit(json.loads(self.wal[number - 1]))
            self.committed.add(number - 1)
        self._execute(start, number)

    def _execute(self, start: str, number: int) -> None:
        """Read a micro-batch into the sink, as often as its actions and retries do."""
        end = self.wal[number]
        for _ in range(self.chance.choice((1, 1, 1, 2, 3))):
            rows = self._read(start, end)
            if self.first_rows.setdefault(number, rows) != rows:
                raise Broken(f"micro-batch {number} read {self.first_rows[number]} before, and {rows} now (S2, S6)")
            self.outside.maybe_crash()
        self.sink[number] = self.first_rows[number]
        self.outside.maybe_crash()
        if not self.lazy:
            self.committed.add(number)
        self.outside.maybe_crash()

    def _read(self, start: str, end: str) -> list[Row]:
        rows: list[Row] = []
        for task in self.planner.tasks(json.loads(start), json.loads(end)):
            for one in task.slices:
                rows.extend(self.outside.rows(one))
        return sorted(rows)

    def _wait(self) -> None:
        self.outside.clock.advance(self.chance.choice((0.0, 0.01, 1.0, 5.0, 20.0)))

    # ---- what a run may take

    def _draw_options(self) -> HostOptions:
        kind, chance = self.outside.kind, self.chance
        counts_rows = not kind.texts and not (kind.bounded and not kind.knows_ends)
        given: dict[str, Any] = {"retries": 1}
        if self.outside.calm:
            return HostOptions(**given)
        if counts_rows and chance.random() < 0.5:
            given["max_rows_per_trigger"] = chance.choice((1, 2, 5, 20))
        if chance.random() < 0.4:
            given["max_bytes_per_trigger"] = ByteSize(chance.choice((1, 15, 50, 200)))
        if chance.random() < 0.3:
            given["max_files_per_trigger"] = chance.choice((1, 2, 4))
        if counts_rows and chance.random() < 0.2:
            given["min_rows_per_trigger"] = min(chance.choice((2, 10)), given.get("max_rows_per_trigger", 10))
            given["max_trigger_delay"] = Duration(30.0)
        if chance.random() < 0.3:
            given["refresh_interval"] = Duration(chance.choice((0.0, 3.0)))
        return HostOptions(**given)

    def _limits(self) -> str:
        given = self.options
        most = (given.max_rows_per_trigger, given.max_bytes_per_trigger, given.max_files_per_trigger)
        return f"most rows, bytes and splits {most}, least rows {given.min_rows_per_trigger}"


def describe_streams(outcomes: Sequence[StreamOutcome]) -> Mapping[str, int]:
    """Return the sums of many outcomes."""
    return {
        "schedules": len(outcomes),
        "processes": sum(one.processes for one in outcomes),
        "killed": sum(one.crashes for one in outcomes),
        "micro-batches": sum(one.turns for one in outcomes),
        "replayed": sum(one.replays for one in outcomes),
        "rows": sum(one.rows for one in outcomes),
        "problems": sum(one.problem is not None for one in outcomes),
    }
