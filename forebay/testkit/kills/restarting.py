# SPDX-License-Identifier: Apache-2.0
"""Restarts a query, or a whole driver program, after each kill, until it ends by itself."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from forebay.errors import ContractError, FatalError
from forebay.testkit.kills.points import KillList
from forebay.testkit.servers.processes import alive, end_session

# -- `MicroBatchFiles`: a sink that shows whether every row of a stream arrived exactly once.


class Frame(Protocol):
    """The methods of a DataFrame that the sink calls."""

    def collect(self) -> Sequence[tuple[object, ...]]:
        """Return the rows."""

    def count(self) -> int:
        """Return how many rows there are."""


class MicroBatchFiles:
    """A sink for `foreachBatch`: writes one file per micro-batch. A replay replaces the file, so rows are not repeated.

    The sink reads each micro-batch twice. It checks that all reads of a micro-batch, also after a restart, return the
    same rows.

    Args:
        directory: The directory of the files; created by the first write.
        kills: The kill list for the points `sink-begins` and `sink-written`.
    """

    def __init__(self, directory: str | os.PathLike[str], kills: KillList | None = None) -> None:
        self._root = Path(directory)
        self._kills = kills

    def __call__(self, frame: Frame, micro_batch: int) -> None:
        """Write one micro-batch. Called by Spark in the driver's process, on a thread of the query.

        Raises:
            ContractError: Two reads of the micro-batch returned different rows.
        """
        self._meet("sink-begins")
        counted = frame.count()
        texts = sorted(json.dumps(list(row), default=str) for row in frame.collect())
        if counted != len(texts):
            raise _differs(micro_batch, f"one action read {counted} rows, the next one {len(texts)}")
        self._root.mkdir(parents=True, exist_ok=True)
        path = self._root / f"{micro_batch:08}"
        if path.exists() and (before := path.read_text().splitlines()) != texts:
            lost, new = sorted(set(before) - set(texts)), sorted(set(texts) - set(before))
            raise _differs(
                micro_batch,
                f"it held {len(before)} rows, and its replay has {len(texts)}; gone: {lost[:3]}, new: {new[:3]}",
            )
        temporary = self._root / f".{micro_batch}.{os.getpid()}"
        temporary.write_text("".join(f"{text}\n" for text in texts))
        temporary.replace(path)
        self._meet("sink-written")

    def rows(self) -> list[str]:
        """Return all rows, sorted. Each row is a JSON list of its values, in the order of the columns.

        A value that JSON cannot represent, such as a timestamp, is written as its `str`.
        """
        return sorted(line for path in self._files() for line in path.read_text().splitlines())

    def micro_batches(self) -> int:
        """Return how many micro-batches were written."""
        return len(self._files())

    def _files(self) -> list[Path]:
        return sorted(self._root.glob("[0-9]*"))

    def _meet(self, point: str) -> None:
        if self._kills is not None:
            self._kills.meet(point)


def _differs(micro_batch: int, what: str) -> ContractError:
    return ContractError(
        f"two reads of micro-batch {micro_batch} differ: {what}",
        rule="S6",
        advice="a read must depend on its split alone: the same rows in the same order, exactly up to split.end",
    )


_WATCHED = {"offset-logged": "offsets", "commit-logged": "commits"}
_POLL = 0.002


class AwaitableQuery(Protocol):
    """The method of a `StreamingQuery` that `restart_until_done` calls."""

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802 - Spark's name
        """Wait until the query ends, at most `timeout` seconds. Raise the error that ended the query."""


def restart_until_done(start: Callable[[], AwaitableQuery], kills: KillList, *, starts: int = 100) -> int:
    """Start a query, again after each kill that ended it, until it ends by itself. Called in the driver.

    For kills of the stream runner and of workers, which the driver survives.

    Args:
        start: Starts the query, on the same checkpoint each time.
        kills: The kills that may end it.
        starts: Maximum number of starts.

    Returns:
        The number of starts.

    Raises:
        Exception: The query's error, if no kill ended it.
        FatalError: The query did not end within `starts` starts.
    """
    for number in range(1, starts + 1):
        before = len(kills.fired())
        try:
            start().awaitTermination()
        except Exception:  # a kill leaves errors of any kind; without a kill it is the query's own
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
    """Run a driver program, again after each kill that ended it, until it exits with 0.

    For kills of the driver, its JVM or its Python process. Workers and stream runners of a dead driver end by
    themselves, as on a real machine. The function waits for a JVM that outlives its driver, because two drivers on one
    checkpoint are a mistake of the user.

    Args:
        command: The program; it calls `KillList.these_are`.
        kills: The kills that may end it.
        checkpoint: The checkpoint directory, watched for `offset-logged` and `commit-logged`.
        starts: Maximum number of starts.
        timeout: Maximum seconds of one run.

    Returns:
        The number of starts.

    Raises:
        FatalError: The program failed without a kill, took too long, or did not end. The text has the end of its
            output.
    """
    leaders: list[int] = []
    try:
        for number in range(1, starts + 1):
            before = len(kills.fired())
            code, output = _run(command, kills, Path(checkpoint), timeout, leaders)
            if code == 0:
                return number
            if code is None or len(kills.fired()) == before:
                what = f"took more than {timeout:g} s" if code is None else f"ended with code {code}, without a kill"
                raise FatalError(f"start {number} {what}:\n{output[-4000:]}", advice="read this output")
    finally:
        for leader in leaders:
            end_session(leader)
    raise _endless(starts)


def _run(
    command: Sequence[str], kills: KillList, checkpoint: Path, timeout: float, leaders: list[int]
) -> tuple[int | None, str]:
    """Run the command once. Return its exit code (None after the timeout) and its output."""
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
    """Map the file of each armed kill at `offset-logged` or `commit-logged` to the checkpoint file that triggers it."""
    return {
        path: checkpoint / directory / str(kill.at)
        for point, directory in _WATCHED.items()
        for path, kill in kills.armed_files(point)
    }


def _watch(kills: KillList, watched: dict[Path, Path]) -> None:
    for path, appears in list(watched.items()):
        # Not before the driver has registered its JVM: the previous one is dead.
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
        f"the query did not end in {starts} starts", advice="check KillList.fired() and the log of the query"
    )
