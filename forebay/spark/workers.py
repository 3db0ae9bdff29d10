# SPDX-License-Identifier: Apache-2.0
"""Checks that Spark's workers run a Python with forebay."""

from __future__ import annotations

import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession

from forebay.errors import ConfigurationError
from forebay.version import __version__

_ADVICE = (
    "set os.environ['PYSPARK_PYTHON'] = sys.executable before the Spark session is created (export PYSPARK_PYTHON=… "
    "in a shell, spark.pyspark.python on a cluster), and start a new session"
)

_checked: set[str] = set()


class Worker(NamedTuple):
    """The Python interpreter of a worker, and the forebay that it can import."""

    executable: str
    version: str | None
    problem: str


def check_workers(spark: SparkSession) -> None:
    """Check that workers with another interpreter can import forebay. Runs a small job once per Spark application.

    On Spark Connect nothing is checked, because the workers belong to a server.
    """
    context = getattr(spark, "_sc", None)
    if context is None or context.applicationId in _checked or same_interpreter(context.pythonExec):
        return
    try:
        worker: Worker = Worker(*context.parallelize([0], 1).map(_probe()).collect()[0])
    except Exception as error:
        raise _refusal(context.pythonExec, _last_line(error)) from error
    if worker.version is None:
        raise _refusal(worker.executable, worker.problem)
    if worker.version != __version__:
        warnings.warn(
            f"Spark's workers run {worker.executable} with forebay {worker.version}, and this is forebay "
            f"{__version__} in {sys.executable}; {_ADVICE}",
            UserWarning,
            stacklevel=3,
        )
    _checked.add(context.applicationId)


def same_interpreter(command: str) -> bool:
    """Return whether a command, such as the value of PYSPARK_PYTHON, runs this interpreter with these packages.

    Virtual environments are compared by directory, because their `python` may link to a shared one.
    """
    found = shutil.which(command)
    if found is None:
        return False
    theirs, ours = Path(found), Path(sys.executable)
    return theirs.parent.resolve() == ours.parent.resolve() and theirs.samefile(ours)


def _probe() -> Callable[[int], tuple[str, str | None, str]]:
    def probe(_: int) -> tuple[str, str | None, str]:
        # Pickled by value, to run on workers without forebay.
        import sys

        try:
            import pyarrow as pa  # noqa: F401

            from forebay.version import __version__ as version
        except ImportError as error:
            return sys.executable, None, str(error)
        return sys.executable, version, ""

    return probe


def _refusal(executable: str, problem: str) -> ConfigurationError:
    return ConfigurationError(
        f"Spark's workers run {executable}, not {sys.executable}, and cannot import forebay there: {problem}",
        option="PYSPARK_PYTHON",
        advice=_ADVICE,
    )


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if "Error" in line or "PYTHON_VERSION_MISMATCH" in line]
    return lines[-1] if lines else type(error).__name__
