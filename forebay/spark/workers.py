# SPDX-License-Identifier: Apache-2.0
"""Notice that Spark's workers run another Python than the user, and say what to set."""

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
    "set os.environ['PYSPARK_PYTHON'] = sys.executable before the Spark session is made (export PYSPARK_PYTHON=… in a "
    "shell, spark.pyspark.python on a cluster), and start a new session"
)

_checked: set[str] = set()


class Worker(NamedTuple):
    """What a worker says about itself."""

    executable: str
    version: str | None
    problem: str


def check_workers(spark: SparkSession) -> None:
    """Compare the interpreter of the workers with this one; if they differ, run a tiny job to see if it will do.

    Called by `register` and `read` in the user's process. The job runs once per Spark application. On Spark Connect
    nothing is checked: the workers belong to a server.

    Raises:
        ConfigurationError: Workers cannot import forebay.
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
    """Whether a command, as in PYSPARK_PYTHON, runs this interpreter with these packages.

    A virtual environment is told by its directory: its `python` is a link to one that others share.
    """
    found = shutil.which(command)
    if found is None:
        return False
    theirs, ours = Path(found), Path(sys.executable)
    return theirs.parent.resolve() == ours.parent.resolve() and theirs.samefile(ours)


def _probe() -> Callable[[int], tuple[str, str | None, str]]:
    def probe(_: int) -> tuple[str, str | None, str]:
        # Pickled by value, because a worker without forebay must be able to say so.
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
