# SPDX-License-Identifier: Apache-2.0
"""Reads a source in new processes, as Spark's tasks and a restarted run do: other ids, hash seeds and time zones."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay.testkit.findings import NotApplicable, OutOfTime

_ZONES = ("UTC", "Asia/Kolkata")
"""The time zones of the processes, one for each: without daylight saving time, and no full hours apart."""

CHILD = "FOREBAY_TESTKIT_CHILD"
"""The environment variable that is set in the processes that `read_elsewhere` starts."""


def read_elsewhere(source: Source, splits: Sequence[Split], seconds: float) -> list[dict[str, list[str]]]:
    """Read splits in several new processes at the same time. Return the rows as text by split id, for each process.

    Raises:
        OutOfTime: The processes took longer than `seconds`.
        NotApplicable: The source cannot be sent to another process, or cannot be read there: its input may live in this
            process.
    """
    _need_importable(type(source))
    job = {"path": [entry or os.getcwd() for entry in sys.path], "seconds": seconds}
    payload = pickle.dumps((job, pickle.dumps((source, list(splits)))))
    code = f"from {__name__} import main; main()"
    with tempfile.TemporaryDirectory(prefix="forebay-testkit-") as directory:
        (place := Path(directory, "job")).write_bytes(payload)
        results = [Path(directory, f"{number}.json") for number in range(len(_ZONES))]
        processes = []
        for number, zone in enumerate(_ZONES):
            environment = {**os.environ, "TZ": zone, "PYTHONHASHSEED": str(number), CHILD: "1"}
            command = [sys.executable, "-P", "-c", code, str(place), str(results[number]), str(number)]
            with results[number].with_suffix(".log").open("wb") as log:
                processes.append(
                    subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # noqa: S603 - this Python
                )
        deadline = time.monotonic() + seconds
        try:
            for process in processes:
                process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise OutOfTime from None
        finally:
            for process in processes:
                process.kill()
                process.wait()
        for process, result in zip(processes, results, strict=True):
            if process.returncode:
                last = result.with_suffix(".log").read_text(errors="replace").strip().splitlines()[-1:] or [""]
                why = f"the source cannot be read in another process, as its input may live in this one: {last[0]:.200}"
                raise NotApplicable(why)
        return [json.loads(result.read_text()) for result in results]


def _need_importable(kind: type[Source]) -> None:
    """Raise `NotApplicable` if another process cannot import the class, as one of a script, a test or a notebook."""
    found: object = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    if kind.__module__ == "__main__" or found is not kind:
        raise NotApplicable("the class of the source cannot be imported in another process: put it into a module")


def main() -> None:
    """Read the splits of a job. Called in the new process, with the paths of the job and of the result."""
    job, pickled = pickle.loads(Path(sys.argv[1]).read_bytes())  # noqa: S301 - written by `read_elsewhere`
    sys.path[:] = job["path"]
    importlib.invalidate_caches()
    from forebay.testkit.harness.reads import read
    from forebay.testkit.harness.subject import Subject

    if os.getpid() % len(_ZONES) != int(sys.argv[3]):
        process = os.getpid() + 1  # order by a process id shows only if the ids differ in their last bit
        os.getpid = lambda: process
    source, splits = pickle.loads(pickled)  # noqa: S301 - as above
    subject = Subject(source, seconds=6 * job["seconds"], seed=0, live=True)
    rows = {split.id: read(subject, [split], rows=100).rows[split.id] for split in splits}
    Path(sys.argv[2]).write_text(json.dumps(rows))
