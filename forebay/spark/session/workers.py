# SPDX-License-Identifier: Apache-2.0
"""Checks that Spark's workers run a Python with forebay."""

from __future__ import annotations

import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyspark.sql import SparkSession

from forebay.errors import ConfigurationError
from forebay.version import __version__

_ADVICE = (
    "set os.environ['PYSPARK_PYTHON'] = sys.executable before the Spark session is created (export PYSPARK_PYTHON=… "
    "in a shell, spark.pyspark.python on a cluster), and start a new session"
)

_SERVER_ADVICE = (
    "install this version of forebay, and the packages of the source, in the Python of the Connect server and its "
    "workers (PYSPARK_PYTHON or spark.pyspark.python where the server starts, with the client's minor version), and "
    "start the server again"
)

IN_QUERY_FUNCTION: Final = "ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION"
"""Spark's error class for a call that runs a query inside a query function of a declarative pipeline."""

_checked: set[str] = set()
"""Ids of the Spark applications, and of the Spark Connect sessions, whose workers were checked."""


class Worker(NamedTuple):
    """The Python interpreter of a worker, and the version of forebay that it can import."""

    executable: str
    version: str | None
    problem: str


def check_workers(spark: SparkSession) -> None:
    """Check that Spark's workers can import forebay.

    Runs a small job once per Spark application if the workers have another interpreter, and once per session of
    Spark Connect, where the workers belong to the server.

    Raises:
        ConfigurationError: The workers cannot import forebay.
    """
    context = getattr(spark, "_sc", None)
    if context is None:
        _check_server(spark)
        return
    if context.applicationId in _checked or same_interpreter(context.pythonExec):
        return
    try:
        worker: Worker = Worker(*context.parallelize([0], 1).map(_probe()).collect()[0])
    except Exception as error:
        raise _refusal(context.pythonExec, _last_line(error)) from error
    if worker.version is None:
        raise _refusal(worker.executable, worker.problem)
    _warn_of_version(worker, _ADVICE)
    _checked.add(context.applicationId)


def in_query_function() -> ConfigurationError:
    """Return the error for `register`, `read` and `read_stream` inside a query function of a declarative pipeline."""
    return ConfigurationError(
        "forebay cannot register a source inside a query function of a pipeline: Spark runs nothing there",
        advice="call forebay.register, forebay.read and forebay.read_stream at the top of the file, and return the "
        "DataFrame, or spark.readStream.format(…).load(), from the function",
    )


def _check_server(spark: SparkSession) -> None:
    from pyspark.sql.connect.functions import udf
    from pyspark.sql.types import ArrayType, StringType

    session = str(getattr(spark, "session_id", ""))
    if session in _checked:
        return
    probe: Any = udf(_server_probe(), ArrayType(StringType()), useArrow=False)
    try:
        found = spark.range(1).select(probe("id")).collect()[0][0]
    except Exception as error:
        if IN_QUERY_FUNCTION in str(error):
            raise in_query_function() from error
        raise _server_refusal(f"a test job of one row failed: {_last_line(error)}") from error
    worker = Worker(found[0], found[1], found[2])
    if worker.version is None:
        raise _server_refusal(f"its workers run {worker.executable}: {worker.problem}")
    _warn_of_version(worker, _SERVER_ADVICE)
    _checked.add(session)


def _server_probe() -> Callable[[int], list[str | None]]:
    probe = _probe()
    return lambda number: list(probe(number))


def _server_refusal(problem: str) -> ConfigurationError:
    return ConfigurationError(f"the server of Spark Connect cannot run forebay: {problem}", advice=_SERVER_ADVICE)


def _warn_of_version(worker: Worker, advice: str) -> None:
    if worker.version != __version__:
        warnings.warn(
            f"Spark's workers run {worker.executable} with forebay {worker.version}, and this is forebay "
            f"{__version__} in {sys.executable}; {advice}",
            UserWarning,
            stacklevel=4,
        )


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
