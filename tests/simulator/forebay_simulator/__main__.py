# SPDX-License-Identifier: Apache-2.0
"""`python -m forebay_simulator`: many seeds with progress and a table, or one seed step by step."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

from forebay_simulator.aligned import describe_alignments, shrink, simulate_alignment
from forebay_simulator.aligned_log import Recipe
from forebay_simulator.microbatch import describe_streams, simulate_stream
from forebay_simulator.report import Report, described
from forebay_simulator.simulation import Outcome, simulate

_MOST_FAILURES = 10
_SEEDS_AT_A_TIME = 50


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 without problems, 1 otherwise."""
    asked = _parser().parse_args(arguments)
    if asked.alignment:
        return _alignments(asked)
    if asked.streams and asked.seed is not None:
        return _streams(range(asked.seed, asked.seed + 1), trace=asked.trace)
    if asked.seed is not None:
        return _one(asked.seed, trace=asked.trace)
    if asked.trace:
        _parser().error("--trace needs --seed: it shows one simulation step by step")
    if asked.streams:
        return _streams(range(asked.first, asked.first + asked.seeds))
    return _many(range(asked.first, asked.first + asked.seeds), max(1, asked.jobs))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m forebay_simulator",
        description="Simulate the in-process host over scripted sources: every seed is one schedule, with its faults.",
    )
    parser.add_argument("--seeds", type=int, default=5000, metavar="N", help="how many seeds (5000)")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the first of them (0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes (one per core)")
    parser.add_argument("--seed", type=int, metavar="N", help="only this one")
    parser.add_argument("--streams", action="store_true", help="the planner of streams, under Spark's log and replays")
    parser.add_argument("--alignment", action="store_true", help="the planner that aligns splits in event time")
    parser.add_argument("--without", default="", metavar="NAMES", help="with --alignment: leave these features out")
    parser.add_argument("--trace", action="store_true", help="with --seed: show every step")
    return parser


def _one(seed: int, *, trace: bool) -> int:
    outcome = simulate(seed, _say if trace else None)
    if outcome.problem is not None:
        _say(described(outcome))
        return 1
    _say(
        f"seed {seed}: nothing was wrong; {outcome.steps} steps, {outcome.seconds:.1f} virtual s,"
        f" processes: {'; '.join(ending.splitlines()[0] for ending in outcome.endings)}"
    )
    return 0


def _streams(seeds: range, *, trace: bool = False) -> int:
    """Simulate streams, in this process: a seed takes milliseconds."""
    began = time.monotonic()
    outcomes = []
    failed = []
    for seed in seeds:
        outcomes.append(outcome := simulate_stream(seed, _say if trace else None))
        if outcome.problem is not None:
            failed.append(outcome)
            if len(failed) == _MOST_FAILURES:
                break
    for name, count in describe_streams(outcomes).items():
        _say(f"{name:<13} {count:>9,}")
    _say(f"seconds       {time.monotonic() - began:>9.1f}")
    for outcome in failed:
        _say(f"\nseed {outcome.seed}: {outcome.problem}\n  replay: {outcome.replay}")
    return 1 if failed else 0


def _alignments(asked: argparse.Namespace) -> int:
    """Simulate alignment, in this process; the first problems are shrunk."""
    seeds = range(asked.first, asked.first + asked.seeds) if asked.seed is None else (asked.seed,)
    without = frozenset(filter(None, asked.without.split(",")))
    outcomes = []
    failed = []
    for seed in seeds:
        outcomes.append(outcome := simulate_alignment(Recipe(seed, without), _say if asked.trace else None))
        if outcome.problem is not None:
            failed.append(outcome if asked.trace else shrink(outcome))
            if len(failed) == _MOST_FAILURES:
                break
    for name, count in describe_alignments(outcomes).items():
        _say(f"{name:<13} {count:>9,}")
    for outcome in failed:
        _say(f"\nseed {outcome.recipe.seed}: {outcome.problem}\n  replay: {outcome.replay}")
    return 1 if failed else 0


def _many(seeds: range, jobs: int) -> int:
    report = Report()
    began = time.monotonic()
    with _outcomes(seeds, jobs) as outcomes:
        for outcome in outcomes:
            report.add(outcome)
            report.wall_seconds = time.monotonic() - began
            _progress(report, len(seeds))
            if len(report.failures) == _MOST_FAILURES:
                _say(f"stopped after {_MOST_FAILURES} problems")
                break
    _say(str(report))
    return 1 if report.failures else 0


@contextmanager
def _outcomes(seeds: range, jobs: int) -> Iterator[Iterable[Outcome]]:
    if jobs == 1 or len(seeds) <= _SEEDS_AT_A_TIME:
        yield map(simulate, seeds)
        return
    # Spawned processes: a fork would inherit the threads of this one.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            yield pool.map(simulate, seeds, chunksize=_SEEDS_AT_A_TIME)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _progress(report: Report, total: int) -> None:
    """On a terminal one line that changes; elsewhere a line at each tenth."""
    done = report.schedules
    line = f"{done:,} of {total:,} seeds, {len(report.failures)} problems, {report.wall_seconds:.0f} s"
    if sys.stderr.isatty():
        if done % 20 == 0 or done == total:
            sys.stderr.write(f"\r{line}" + "\n" * (done == total))
    elif done * 10 // total > (done - 1) * 10 // total:
        sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
