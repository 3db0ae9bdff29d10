# SPDX-License-Identifier: Apache-2.0
"""Starts a query, or a whole program, again after each kill, until it has come to its end."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from forebay.errors import FatalError
from forebay.testkit.kills.points import KillList
from forebay.testkit.processes import alive, end_session

_WATCHED = {"offset-logged": "offsets", "commit-logged": "commits"}
_POLL = 0.002


class Query(Protocol):
    """What is used of a streaming query."""

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802 - Spark's name
        """Wait for its end; raises what ended it."""


def restart_until_done(start: Callable[[], Query], kills: KillList, *, starts: int = 100) -> int:
    """Start a query, again whenever a kill has ended it, until it ends by itself. Called in the driver.

    For kills of the stream runner and of workers: the driver lives on.

    Args:
        start: Starts the query, on the same checkpoint each time.
        kills: What may end it.
        starts: How often at most.

    Returns:
        How often it was started.

    Raises:
        Exception: What ended the query, where no kill did.
        FatalError: It did not come to its end in so many starts.
    """
    for number in range(1, starts + 1):
        before = len(kills.fired())
        try:
            start().awaitTermination()
        except Exception:  # of whatever kind a kill leaves behind; without a kill it is an error of its own
            if len(kills.fired()) == before:
                raise
        else:
            return number
    raise _endless(starts)


def run_until_done(
    command: Sequence[str],
    kills: KillList,
    *,
    checkpoint: str | os.PathLike[str],
    starts: int = 100,
    timeout: float = 120.0,
) -> int:
    """Run a program that is a driver, again whenever a kill has ended it, until it exits with 0.

    For kills of the driver, its JVM or its Python process. What a dead driver leaves behind (workers, a stream
    runner) is left to end by itself, as on a real machine; only a JVM that outlives its driver is waited for,
    because two drivers on one checkpoint are an error of the operator.

    Args:
        command: The program; it calls `KillList.these_are`.
        kills: What may end it.
        checkpoint: Watched for `offset-logged` and `commit-logged`.
        starts: How often at most.
        timeout: Seconds one run may take.

    Returns:
        How often it was started.

    Raises:
        FatalError: It failed without a kill, took too long, or did not come to its end; with the end of its output.
    """
    leaders: list[int] = []
    try:
        for number in range(1, starts + 1):
            before = len(kills.fired())
            code, output = _run(command, kills, Path(checkpoint), timeout, leaders)
            if code == 0:
                return number
            if code is None or len(kills.fired()) == before:
                what = f"took more than {timeout:g} s" if code is None else f"ended with {code}, and no kill ended it"
                raise FatalError(f"start {number} {what}:\n{output[-4000:]}", advice="read its output")
    finally:
        for leader in leaders:
            end_session(leader)
    raise _endless(starts)


def _run(
    command: Sequence[str], kills: KillList, checkpoint: Path, timeout: float, leaders: list[int]
) -> tuple[int | None, str]:
    """Run once; return the exit code, None if it took too long, and the output."""
    kills.forget_processes()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(  # noqa: S603 - the test's own program
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        leaders.append(process.pid)
        watched = _watched(kills, checkpoint)
        deadline = time.monotonic() + timeout
        while (code := process.poll()) is None and time.monotonic() < deadline:
            _watch(kills, watched)
            time.sleep(_POLL)
        _wait_for_jvm(kills, deadline)
        if code is None:
            end_session(process.pid)
            process.wait()
        output.seek(0)
        return code, output.read().decode(errors="replace")


def _watched(kills: KillList, checkpoint: Path) -> dict[Path, Path]:
    """Return which armed kill, by its file, the appearing of which file carries out."""
    found = {}
    for point, directory in _WATCHED.items():
        for path, kill in kills.armed_files(point):
            found[path] = checkpoint / directory / str(kill.at)
    return found


def _watch(kills: KillList, watched: dict[Path, Path]) -> None:
    for path, appears in list(watched.items()):
        # Not before the driver has told its JVM: the one before it is dead.
        if appears.exists() and kills.processes():
            del watched[path]
            if (kill := kills.take(path)) is not None:
                kills.carry_out(kill)


def _wait_for_jvm(kills: KillList, deadline: float) -> None:
    jvm = kills.processes().get("jvm")
    while jvm is not None and alive(jvm) and time.monotonic() < deadline:
        time.sleep(_POLL)


def _endless(starts: int) -> FatalError:
    return FatalError(
        f"{starts} starts did not bring the query to its end", advice="see which kills fired, and in which order"
    )
