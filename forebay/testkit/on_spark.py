# SPDX-License-Identifier: Apache-2.0
"""`check_on_spark(spark, source)`: the conformance checks that run on Spark, for a source with a small input."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay.errors import ConfigurationError, unwrap
from forebay.framework.inprocess.running import require_source, run
from forebay.framework.source import Source
from forebay.options.secret import Secret
from forebay.options.spec import class_options
from forebay.options.writing import format_options, option_values
from forebay.registry import default_registry
from forebay.testkit.harness.subject import difference
from forebay.testkit.outcomes import (
    Broken,
    ConformanceError,
    Finding,
    NotApplicable,
    NotProvenWarning,
    Report,
    Result,
    Skip,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_RESTARTS = 100
"""Maximum number of starts of the streaming query. Each micro-batch ends one of them."""


def check_on_spark(spark: SparkSession, source: Source, **options: Any) -> Report:  # noqa: ANN401 - values of any option
    """Check how a source reads on Spark: as a batch, as a stream that crashes, and by its format name.

    Use it in a test, after `check`. The input must be small, because the driver collects it several times. It must not
    change.

    Args:
        spark: A session in this process, such as the fixture `spark` of `forebay.testkit.pytest_plugin`.
        source: The source; an unbounded one is read until it is caught up.
        options: Host options of the stream, such as `max_rows_per_trigger=5`. By default, `max_files_per_trigger=1`:
            each micro-batch reads one split with new rows. A source without known ends gets a temporary
            `state_location`.

    Returns:
        The report; see `check`.

    Raises:
        ConformanceError: A rule (SPK of docs/contract.md) is broken.
        ConfigurationError: The session is one of Spark Connect, or the source has a wrong configuration.
    """
    require_source(source, "check_on_spark()")
    if not hasattr(spark, "_jvm"):
        raise ConfigurationError(
            "check_on_spark() needs a session in this process, not one of Spark Connect",
            advice='create one with SparkSession.builder.master("local[2]")',
        )
    started = time.monotonic()
    reads = _Reads(spark, source, options or {"max_files_per_trigger": 1})
    results = [_judge(reads, check) for check in _CHECKS]
    report = Report(source.name, results, 0, time.monotonic() - started, f"{len(reads.expected)} rows")
    if report.failed:
        raise ConformanceError(report)
    if report.skipped:
        warnings.warn(report.headline, NotProvenWarning, stacklevel=2)
    return report


def _judge(reads: _Reads, check: Callable[[_Reads], None]) -> Result:
    rule, _, text = (check.__doc__ or "").removesuffix(".").partition(": ")
    try:
        check(reads)
    except Finding as finding:
        return Result(finding.rule or rule, text, finding.outcome, finding.saw, finding.advice)
    except Exception as error:
        unwrapped = unwrap(error)  # Spark wraps the errors of a connector
        if isinstance(unwrapped, ConfigurationError):
            raise unwrapped from error
        if unwrapped is None and type(error).__module__.startswith(("pyspark.", "py4j.")):
            saw = f"Spark failed outside of the source: {error}"
            return Result(rule, text, "skipped", saw, "read the error, and run the check again")
        cause = unwrapped or error
        return Result(rule, text, "failed", f"{type(cause).__name__}: {cause}", "correct this error of a read on Spark")
    return Result(rule, text, "passed")


class _Reads:
    """The source on a Spark session, and the results that several checks share."""

    def __init__(self, spark: SparkSession, source: Source, options: Mapping[str, Any]) -> None:
        self.spark = spark
        self.source = source
        self.options = options

    @cached_property
    def expected(self) -> list[str]:
        """The rows of a read in this process, as sorted texts."""
        with run(self.source, until_caught_up=not self.source.bounded) as batches:
            return sorted(map(repr, batches.to_table().to_pylist()))

    @cached_property
    def frame(self) -> DataFrame:
        """The source as a batch DataFrame."""
        from forebay.spark.register import read

        return read(self.spark, self.source)

    @cached_property
    def secrets(self) -> dict[str, str]:
        """The values of the source's secrets, by option."""
        values = ((spec.name, getattr(self.source, spec.python_name)) for spec in class_options(type(self.source)))
        return {name: value.reveal() for name, value in values if isinstance(value, Secret) and value.reveal()}

    def compare(self, frame: DataFrame, how: str, advice: str) -> None:
        """Raise `Broken` if a DataFrame has other rows than the read in this process. Their order may differ."""
        rows = sorted(map(repr, frame.toArrow().to_pylist()))
        if rows != self.expected:
            raise Broken(f"{how}: {difference(rows, self.expected)}", advice)


def _is_one_table(reads: _Reads) -> None:
    """SPK-1: each action of a batch read on Spark has the rows of a read without Spark; columns can be selected."""
    if not reads.expected:
        reads.compare(reads.frame, "a batch read", _SAME)
        raise Skip("the source has no rows, so nothing was compared", "check a source with rows")
    for action in ("first", "second"):
        reads.compare(reads.frame, f"the {action} action of a batch read", _SAME)
    for name in reads.frame.columns:
        count = reads.frame.select(f"`{name}`").toArrow().num_rows
        if count != len(reads.expected):
            raise Broken(
                f"select({name!r}) has {count} rows, not {len(reads.expected)}",
                "let with_columns() drop columns, but no rows: see rule SRC-8",
            )


def _replays_each_micro_batch(reads: _Reads) -> None:
    """SPK-2: a stream that crashes in each micro-batch replays its rows, and gives each row of the source once."""
    sink = _Crashing()
    with tempfile.TemporaryDirectory(prefix="forebay-kit-", ignore_cleanup_errors=True) as directory:
        for _ in range(_RESTARTS):
            if _run_until_crash(reads, sink, directory):
                break
        else:
            raise Skip(f"{_RESTARTS} micro-batches did not read the whole input", "check a source with less input")
        _find_secrets(reads, _texts_below(Path(directory)), "the checkpoint")
    rows = sorted(row for batch in sink.rows.values() for row in batch)
    if rows != reads.expected:
        counts = Counter(rows)
        counts.subtract(reads.expected)
        wrong = [f"{count:+d} × {row}" for row, count in counts.items() if count][:3]
        raise Broken(f"in {len(sink.rows)} micro-batches rows came too often (+) or too rarely (-): {wrong}", _SAME)


def _reads_by_options(reads: _Reads) -> None:
    """SPK-3: spark.read.format(name) with the options as text gives the same rows."""
    from forebay.spark.register import register

    kind, name = type(reads.source), reads.source.name
    installed = any(entry.name == name and entry.origin != "registered here" for entry in default_registry.entries())
    if installed and default_registry.lookup(name) is not kind:
        raise NotApplicable(f"another class is installed as the format {name!r}, so options do not create this source")
    specs = class_options(kind)
    try:
        texts = format_options(specs, option_values(reads.source)) | reads.secrets
    except (ConfigurationError, TypeError) as error:
        raise NotApplicable(f"the value of an option cannot be written as text: {error}") from error
    register(reads.spark, kind)
    frame = reads.spark.read.format(name).options(**texts).load()
    reads.compare(frame, f"format({name!r}) with the options {sorted(texts)}", _OPTIONS)
    _find_secrets(reads, _plan_of(frame), "the plan")


def _hides_secrets(reads: _Reads) -> None:
    """SPK-4: no secret is in a plan, in a checkpoint or in the text of the source."""
    if not reads.secrets:
        raise NotApplicable("no option of the source is a Secret with a value")
    _find_secrets(reads, repr(reads.source), "repr() of the source")
    _find_secrets(reads, _plan_of(reads.frame), "the plan")


_CHECKS = (_is_one_table, _replays_each_micro_batch, _reads_by_options, _hides_secrets)
_SAME = "return the same rows between two positions in every read, on every machine: see check() and rule RDR-5"
_OPTIONS = "declare each setting of the source as an annotated attribute with option()"


class _Crashed(Exception):
    """Ends the query in the first attempt at a micro-batch."""


class _Crashing:
    """A sink that keeps the rows of each micro-batch, and fails in the first attempt at each micro-batch."""

    def __init__(self) -> None:
        self.rows: dict[int, list[str]] = {}
        self.error: Broken | None = None

    def __call__(self, frame: DataFrame, number: int) -> None:
        rows = sorted(map(repr, frame.toArrow().to_pylist()))
        if number not in self.rows:
            self.rows[number] = rows
            raise _Crashed
        if rows != self.rows[number]:
            problem = difference(rows, self.rows[number])
            self.error = Broken(f"micro-batch {number} was replayed after a crash: {problem}", _SAME)
            raise self.error


def _run_until_crash(reads: _Reads, sink: _Crashing, directory: str) -> bool:
    """Run the query until the sink fails or the query ends; return whether the query ended."""
    from pyspark.errors import StreamingQueryException

    from forebay.spark.register import read_stream

    known = len(sink.rows)
    frame = read_stream(reads.spark, reads.source, **reads.options)
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", directory)
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        if sink.error is not None:
            raise sink.error from None
        if len(sink.rows) > known:
            return False
        option = getattr(unwrap(error), "option", None)
        if option != "stateLocation" or "state_location" in reads.options:
            raise  # the source or Spark failed, not the sink
        reads.options = {**reads.options, "state_location": f"{directory}/forebay"}
        return False
    finally:
        query.stop()
        _find_secrets(reads, json.dumps([_plain(each) for each in query.recentProgress]), "the progress of the query")
    return True


def _plain(progress: Any) -> str:  # noqa: ANN401 - a dict before Spark 4, an object since
    return progress if isinstance(progress, str) else str(getattr(progress, "json", progress))


def _plan_of(frame: DataFrame) -> str:
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        frame.explain(True)
    return text.getvalue()


def _texts_below(directory: Path) -> str:
    return "\n".join(
        path.read_text(encoding="utf-8", errors="replace") for path in directory.rglob("*") if path.is_file()
    )


def _find_secrets(reads: _Reads, text: str, where: str) -> None:
    for name, value in reads.secrets.items():
        if value in text:
            why = f"the secret of the option {name!r} is in {where}"
            raise Broken(why, "put no secret into split ids, positions, states, errors or logs", rule="SPK-4")
