# SPDX-License-Identifier: Apache-2.0
"""A planner that aligns splits, under a driver that logs, waits, kills and restarts; `aligned_rules` judges it."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from forebay.errors import RetriableError
from forebay.framework.microbatch.offset_codec import InlineOffsetCodec
from forebay.framework.microbatch.stream_planner import open_stream
from forebay.framework.runtime.host_options import HostOptions
from forebay.options import Duration
from forebay_simulator.aligned_log import FEATURES, SECOND, AlignedEnumerator, AlignedLog, AlignedSource, Recipe
from forebay_simulator.aligned_rules import AlignmentRules
from forebay_simulator.inline import InlineRuntime
from forebay_simulator.outside import Broken, Crash

_DRIFTS = (0.0, 0.001, 5.0, 10.0, 120.0)
_DELAYS = (0.0, 0.25, 5.0, 30.0)
_ROWS = (None, None, 1, 3, 10)
_STEPS = 25
_COUNTS = ("batches", "rows", "crashes", "held", "late")
_LONG = 3000.0
"""Seconds after which everything is written."""


@dataclass(frozen=True, slots=True)
class AlignedOutcome:
    """The result of one seed: the first broken rule or None, and how much happened."""

    recipe: Recipe
    problem: str | None
    batches: int
    rows: int
    crashes: int
    held: int
    late: int

    @property
    def replay(self) -> str:
        """The command that shows this simulation again."""
        without = f" --without {','.join(sorted(self.recipe.without))}" if self.recipe.without else ""
        return f"python -m forebay_simulator --alignment --seed {self.recipe.seed}{without} --trace"


def simulate_alignment(recipe: Recipe, trace: Callable[[str], None] | None = None) -> AlignedOutcome:
    """Run the simulation of a seed; the same recipe does the same everywhere."""
    logger = logging.getLogger("forebay")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    log = AlignedLog(recipe, round(_delay(recipe) * SECOND))
    say = trace or (lambda _line: None)
    queries = [_Query(log, number, say) for number in range(2 if recipe.draws("two-queries", 0.1) else 1)]
    problem = None
    for one in log.partitions.values():
        say(f"{one}")
    try:
        steps = [query.run() for query in queries]
        while steps:
            steps = [one for one in steps if next(one, None) is not None]
    except Broken as broken:
        problem = str(broken)
    except Exception as error:  # noqa: BLE001 - any error of the planner is the outcome
        problem = f"{type(error).__name__}: {error}"
    finally:
        logger.setLevel(level)
    if problem is not None:
        say(f"broken: {problem}")
    totals = [sum(getattr(one, name) for one in queries) for name in _COUNTS]
    return AlignedOutcome(recipe, problem, *totals)


def shrink(outcome: AlignedOutcome) -> AlignedOutcome:
    """Leave out features and partitions as long as there is a problem."""
    for name in (*FEATURES, "p0", "p1", "p2", "p3", "p4"):
        smaller = simulate_alignment(Recipe(outcome.recipe.seed, outcome.recipe.without | {name}))
        if _kind(smaller) == _kind(outcome):
            outcome = smaller
    return outcome


def _kind(outcome: AlignedOutcome) -> str:
    """Return the problem without numbers and names: a smaller case must show the same one."""
    return re.sub(r"\[.*\]|\S*\d\S*", "", outcome.problem or "")


def describe_alignments(outcomes: Sequence[AlignedOutcome]) -> Mapping[str, int]:
    """Return the sums of many outcomes."""
    sums = {name: sum(getattr(one, name) for one in outcomes) for name in _COUNTS}
    return {"schedules": len(outcomes), **sums, "problems": sum(one.problem is not None for one in outcomes)}


def _delay(recipe: Recipe) -> float:
    return recipe.chance("delay").choice(_DELAYS) * recipe.draws("delay", 0.7)


def _shown(options: HostOptions) -> str:
    names = ("alignment_max_drift", "watermark_delay", "idle_timeout", "max_rows_per_trigger", "min_rows_per_trigger")
    return ", ".join(f"{name} {getattr(options, name)}" for name in names)


@lru_cache
def _host_options(
    drift: float, delay: float, timeout: float | None, limit: int | None, least: int | None
) -> HostOptions:
    return HostOptions(
        retries=0,
        alignment_max_drift=Duration(drift),
        watermark_delay=Duration(delay),
        idle_timeout=None if timeout is None else Duration(timeout),
        max_trigger_delay=Duration(10.0),
        max_rows_per_trigger=limit,
        min_rows_per_trigger=least,
    )


class _Query:
    """One query: its log of offsets survives its processes."""

    def __init__(self, log: AlignedLog, number: int, say: Callable[[str], None]) -> None:
        self.log, self.say = log, say
        self.chance = log.recipe.chance(f"query {number}")
        self.varying = log.recipe.draws("options", 0.2)
        self.drifts = [self.chance.choice(_DRIFTS) for _ in range(2 if self.varying else 1)]
        drift, delay = max(0.001, *self.drifts, 0.001), _delay(log.recipe)
        self.rules = AlignmentRules(log, round(delay * SECOND), round(drift * SECOND))
        rules = self.rules
        enumerators = {"create": staticmethod(lambda: AlignedEnumerator(log, rules))}
        self.source = type("Simulated", (AlignedSource,), {"name": "aligned", **enumerators})()
        self.codec = InlineOffsetCodec(self.source)
        self.planner: Any = None
        self.wal: list[str] = []
        self.last: dict[str, tuple[int, int]] = {}
        self.read: dict[str, int] = {}
        self.batches = self.rows = self.crashes = self.held = 0
        self.timeout = self.chance.choice((3.0, 30.0)) if log.recipe.draws("idle", 0.5) else None

    @property
    def late(self) -> int:
        """How many records on time Spark dropped, of splits that were not active."""
        return self.rules.dropped_late

    # ---- the schedule

    def run(self) -> Iterator[bool]:
        """Run some processes, and last ones without faults that read everything; yields after each step."""
        for _ in range(_STEPS):
            act, seconds = self.chance.random(), self.chance.choice((0.0, 0.01, 1.0, 5.0, 20.0))
            try:
                self._step(act, seconds)
            except Crash:
                self.crashes += 1
                self._end("killed")
            except RetriableError as error:
                self._end(f"the query failed: {error.message}")
            yield True
        self.log.calm = True
        self.log.clock.advance(_LONG)
        yield from self._finish()

    def _step(self, act: float, seconds: float) -> None:
        if act < 0.25:
            self.log.clock.advance(seconds)
        elif act < 0.32:
            self._end("ended")
        elif act < 0.40 and self.log.recipe.draws("available-now", 0.4):
            self._available_now()
        elif act < 0.45 and "crashes" not in self.log.recipe.without:
            self._poll(lost=True)
            self._end("killed before the log")
        else:
            self._poll()

    def _finish(self) -> Iterator[bool]:
        """Whatever was written is read, but for what an active split holds; AvailableNow reads that, too."""
        for _ in range(1 if self.timeout is None else len(self.log.partitions) + 2):  # each time one more may be idle
            quiet, most = 0, 20 + 2 * sum(len(one.times) for one in self.log.partitions.values())
            for _ in range(most):
                self.log.clock.advance(1.0)
                quiet = 0 if self._poll() else quiet + 1
                if quiet > 4:
                    break
                yield True
            else:
                raise Broken(f"no end after {most} calls")
            self.log.clock.advance(self.timeout or 0.0)
        if self.timeout is not None and (left := self._unread()):
            raise Broken(f"{left} are held beyond the idle timeout")
        self._available_now()
        if left := self._unread():
            raise Broken(f"{left} are not read")

    def _unread(self) -> list[str]:
        there = [one for one in self.log.present() if one.id not in self.rules.finished]
        return [one.id for one in there if self.read.get(one.id, 0) != len(one.times)]

    # ---- one process

    def _open(self, *, ending: bool = False) -> None:
        options, rules = self._options(), self.rules
        runtime = InlineRuntime(self.log.clock, self.chance.randrange(1 << 30))
        self.planner = open_stream(self.source, options, parallelism=2, runtime=runtime)
        self.start = self.wal[-1] if self.wal else json.dumps(self.planner.initial())
        rules.begin(self.planner, options, self._positions(self.start), ending=ending)
        self.say(f"{self.log.clock.monotonic():.2f} s: a process begins, ending={ending}, {_shown(options)}")
        if ending:
            self.planner.prepare_available_now()
        if self.wal and self.chance.random() < 0.5:  # a replay of the last micro-batch
            before = self.wal[-2] if len(self.wal) > 1 else json.dumps(self.planner.initial())
            if self._slices(before, self.wal[-1]) != self.last:
                raise Broken("a replay reads something else")

    def _end(self, why: str) -> None:
        self.say(f"{self.log.clock.monotonic():.2f} s: {why}")
        self.planner = None

    def _options(self) -> HostOptions:
        chance = self.chance
        drift, limit, least = chance.choice(self.drifts), chance.choice(_ROWS), chance.choice((None, None, 2))
        if "limits" in self.log.recipe.without or self.log.calm:
            limit = least = None
        return _host_options(drift, _delay(self.log.recipe), self.timeout, limit, None if limit == 1 else least)

    def _available_now(self) -> None:
        self._open(ending=True)
        while self._poll():
            pass
        target = self.rules.target or {}
        left = [one for one, end in target.items() if self.rules.open.get(one, end) < end]
        if left:
            raise Broken(f"an AvailableNow run left {left}")
        self._end("the run is done")

    def _poll(self, *, lost: bool = False) -> bool:
        """Ask for the next micro-batch, and read it; return whether there was one."""
        if self.planner is None:
            self._open()
        self.rules.begin_call()
        found = json.dumps(self.planner.latest(json.loads(self.start)))
        self.rules.end_call()
        ends = {} if found == self.start else self._positions(found, ended=True)
        limited = self.planner._limits or self.planner._options.min_rows_per_trigger
        if not limited:
            self.held += self.rules.check_held(ends)
        if found == self.start or lost:
            return False
        self._deliver(found)
        return True

    def _deliver(self, found: str) -> None:
        parts = self._slices(self.start, found)
        self.say(f"{self.log.clock.monotonic():.2f} s: limit {self.rules.limit}, {self.rules.watermark()}: {parts}")
        for split_id, (begin, end) in parts.items():
            if begin != self.read.get(split_id, 0):
                raise Broken(f"{split_id} goes on at {begin}, after {self.read.get(split_id, 0)}")
            self.read[split_id] = end
        limit = self.planner._options.max_rows_per_trigger
        count = sum(end - begin for begin, end in parts.values())
        if limit is not None and count > limit:
            raise Broken(f"{count} rows are more than maxRowsPerTrigger, {limit}")
        self.batches, self.rows = self.batches + 1, self.rows + count
        self.wal.append(found)
        self.start, self.last = found, parts
        self.rules.deliver(parts, self._positions(found))

    def _slices(self, start: str, end: str) -> dict[str, tuple[int, int]]:
        tasks = self.planner.tasks(json.loads(start), json.loads(end))
        slices = sorted((one.id, one.position, one.end) for task in tasks for one in task.slices)
        parts: dict[str, tuple[int, int]] = {}
        for split_id, begin, stop in slices:
            if split_id in parts and parts[split_id][1] != begin:
                raise Broken(f"the slices of {split_id} do not meet")
            parts[split_id] = (parts.get(split_id, (begin, 0))[0], stop)
        return parts

    def _positions(self, offset: str, *, ended: bool = False) -> dict[str, int]:
        """Return the positions of the splits after a micro-batch, of open ones or of all."""
        read = self.codec.read(json.loads(offset))
        return {one.split.id: one.to for one in read.splits if ended or not one.ends}  # type: ignore[misc]
