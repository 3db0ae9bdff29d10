# SPDX-License-Identifier: Apache-2.0
"""Records metrics by OpenTelemetry: of runs in this process (`forebay.record_metrics`) and of Spark's queries.

Needs `opentelemetry-api`, the extra `metrics`. The SDK and the exporter are the user's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, Self

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.framework.inprocess.running import Run
from forebay.inspection.event_time import dropped_rows, ours
from forebay.retry import RetryCount
from forebay.table.index.monitor import Alert
from forebay.version import __version__


class Metric(NamedTuple):
    """One metric: its kind, its unit in UCUM, and what it means."""

    kind: str
    unit: str
    text: str


METRICS: Final[Mapping[str, Metric]] = {
    "forebay.rows": Metric("counter", "{row}", "rows read"),
    "forebay.bytes": Metric("counter", "By", "bytes read: Arrow data in a run; on Spark the planned ranges, if known"),
    "forebay.batches": Metric("counter", "{batch}", "record batches of a run, micro-batches on Spark"),
    "forebay.lag.rows": Metric("gauge", "{row}", "rows that are not read yet, if known"),
    "forebay.lag.bytes": Metric("gauge", "By", "bytes that are not read yet, if known"),
    "forebay.splits": Metric("gauge", "{split}", "known splits, by `forebay.state`: open, behind, done"),
    "forebay.watermark.lag": Metric("gauge", "s", "how far the watermark is behind the clock"),
    "forebay.retries": Metric(
        "counter", "{retry}", "transient failures of the source, such as a time-out; most are retried"
    ),
    "forebay.errors": Metric(
        "counter", "{error}", "reads that failed, by `error.type`; on Spark, all failed queries of the session"
    ),
    "forebay.dropped": Metric("counter", "{row}", "rows that Spark's watermark dropped"),
    "forebay.stage.duration": Metric("histogram", "s", "time of each stage, by `forebay.stage`"),
}
"""All metrics, by name. Attributes: `forebay.source`, and on Spark `forebay.query`."""


def _meter() -> Any:  # noqa: ANN401 - of a library that may be missing
    """Return the meter of forebay.

    Raises:
        ConfigurationError: OpenTelemetry is not installed.
    """
    try:
        from opentelemetry.metrics import get_meter
    except ImportError as error:
        raise ConfigurationError(
            "metrics need OpenTelemetry, which is not installed",
            advice="pip install 'forebay[metrics]', with an SDK and an exporter such as "
            "opentelemetry-exporter-prometheus",
        ) from error
    return get_meter("forebay", __version__)


def alert_metrics() -> Callable[[str, Sequence[Alert]], None]:
    """Return a function for `each_round` of an `IndexDaemon`: it sets the gauge `forebay.index.alert`.

    The gauge is 1 while a rule is broken. It has `forebay.object_type`, `forebay.rule` and `forebay.subject`.

    Raises:
        ConfigurationError: OpenTelemetry is not installed.
    """
    gauge = _meter().create_gauge("forebay.index.alert", unit="{alert}", description="1: a rule is broken")
    known: set[tuple[str, str, str]] = set()

    def record(object_type: str, broken: Sequence[Alert]) -> None:
        now = {(object_type, alert.rule, alert.subject) for alert in broken}
        known.update(now)
        for each in sorted(each for each in known if each[0] == object_type):
            names = ("forebay.object_type", "forebay.rule", "forebay.subject")
            gauge.set(int(each in now), dict(zip(names, each, strict=True)))

    return record


class Instruments:
    """The instruments of OpenTelemetry that record `METRICS`. Thread-safe.

    Raises:
        ConfigurationError: OpenTelemetry is not installed.
    """

    def __init__(self) -> None:
        meter = _meter()
        self._instruments: dict[str, Any] = {
            name: getattr(meter, f"create_{metric.kind}")(name, unit=metric.unit, description=metric.text)
            for name, metric in METRICS.items()
        }

    def record(self, name: str, value: float, attributes: Mapping[str, str]) -> None:
        """Record a value of a metric."""
        method = {"counter": "add", "gauge": "set", "histogram": "record"}[METRICS[name].kind]
        getattr(self._instruments[name], method)(value, dict(attributes))


def record_metrics(read: Run, *, every: float = 10.0) -> RecordedRun:
    """Record the metrics of a run in this process while it is read.

    ```python
    with forebay.record_metrics(forebay.run(source)) as batches:
        for batch in batches: ...
    ```

    For metrics of Spark's queries, call `forebay.record_progress(spark, metrics=True)`.

    Args:
        read: The result of `forebay.run`, before its first record batch.
        every: Minimum seconds between two recordings of lag, splits and watermark.

    Returns:
        An iterator of the run's record batches, which closes the run at the end of a `with` block.

    Raises:
        ConfigurationError: OpenTelemetry is not installed.
    """
    return RecordedRun(read, every)


class RecordedRun(Iterator[pa.RecordBatch]):
    """An iterator over a run that records its metrics. Only the thread that reads the run may use this object.

    Args:
        run: The run, before its first record batch.
        every: Minimum seconds between two recordings of lag, splits and watermark.
    """

    def __init__(self, run: Run, every: float) -> None:
        self.run = run
        """The run, for its other methods."""
        self._instruments = Instruments()
        self._source = {"forebay.source": run.source.name}
        self._every = every
        self._due = float("-inf")
        self._retries = RetryCount.failures_in_process
        self._handed_over: float | None = None

    def __next__(self) -> pa.RecordBatch:
        """Return the next record batch of the run, and record its metrics. Raises the errors of the run."""
        began = time.monotonic()
        if self._handed_over is not None:
            self._record_stage("process", began - self._handed_over)
        self._handed_over = None
        try:
            batch = next(self.run)
        except StopIteration:
            self._record_state()
            raise
        except TimeoutError:
            raise
        except Exception as error:
            self._record("forebay.errors", 1, {"error.type": type(error).__name__})
            self._record_retries()
            raise
        self._handed_over = time.monotonic()
        self._record_stage("read", self._handed_over - began)
        self._record("forebay.rows", batch.num_rows)
        self._record("forebay.bytes", batch.nbytes)
        self._record("forebay.batches", 1)
        if self._handed_over >= self._due:
            self._due = self._handed_over + self._every
            self._record_state()
        return batch

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run.__exit__(kind, error, trace)

    def _record(self, name: str, value: float, more: Mapping[str, str] | None = None) -> None:
        self._instruments.record(name, value, {**self._source, **(more or {})})

    def _record_stage(self, stage: str, seconds: float) -> None:
        self._record("forebay.stage.duration", seconds, {"forebay.stage": stage})

    def _record_retries(self) -> None:
        known, self._retries = self._retries, RetryCount.failures_in_process
        if self._retries > known:
            self._record("forebay.retries", self._retries - known)

    def _record_state(self) -> None:
        self._record_retries()
        if (backlog := self.run.backlog()) is not None:
            self._record("forebay.splits", backlog.splits - backlog.finished, {"forebay.state": "open"})
            self._record("forebay.splits", backlog.finished, {"forebay.state": "done"})
            if backlog.bytes_left is not None:
                self._record("forebay.lag.bytes", backlog.bytes_left)
        if (watermark := self.run.watermark) is not None:
            self._record("forebay.watermark.lag", time.time() - watermark / 1e6)


class Recorder(Protocol):
    """Records values of metrics: `Instruments`, or a test double."""

    def record(self, name: str, value: float, attributes: Mapping[str, str]) -> None:
        """Record a value of a metric."""


class QueryMetrics:
    """Records the metrics in the progress reports of Spark's queries. Only one thread may use it.

    Args:
        recorder: Records the values.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._names: dict[str, str] = {}
        self._retried: dict[tuple[str, int], int] = {}

    def started(self, run_id: str, query_id: str, name: str | None) -> None:
        """Store the name of a query, or its id if it has no name, for `terminated`."""
        self._names[run_id] = name or query_id

    def progressed(self, report: Mapping[str, Any]) -> None:
        """Record a progress report of a query, as Spark's JSON. A query without a source of forebay is ignored."""
        sources = [(number, each, ours(each.get("latestOffset"))) for number, each in enumerate(report["sources"])]
        query = {"forebay.query": str(report.get("name") or report["id"])}
        if not any(state for _, _, state in sources):
            return
        for number, source, state in sources:
            if state is not None:
                self._source(report["runId"], number, source, state, query)
        for stage, milliseconds in report.get("durationMs", {}).items():
            self._recorder.record("forebay.stage.duration", milliseconds / 1000, query | {"forebay.stage": stage})
        if dropped := dropped_rows(report):
            self._recorder.record("forebay.dropped", dropped, query)
        if watermark := report.get("eventTime", {}).get("watermark"):
            at = datetime.fromisoformat(report["timestamp"]) - datetime.fromisoformat(watermark)
            self._recorder.record("forebay.watermark.lag", at.total_seconds(), query)

    def terminated(self, run_id: str, error: str | None, error_class: str | None) -> None:
        """Record the error that ended a query, if one did."""
        name = self._names.pop(run_id, "unknown")
        self._retried = {key: value for key, value in self._retried.items() if key[0] != run_id}
        if error is not None:
            kind = error_class or "unknown"
            self._recorder.record("forebay.errors", 1, {"forebay.query": name, "error.type": kind})

    def _source(
        self, run: str, number: int, source: Mapping[str, Any], state: Mapping[str, Any], query: Mapping[str, str]
    ) -> None:
        at = {**query, "forebay.source": str(state["source"])}
        last, lag, discovery = state.get("last") or {}, state["behind"], state.get("discovery") or {}
        rows = int(source.get("numInputRows") or 0)
        self._recorder.record("forebay.rows", rows, at)
        if rows:  # an idle query reports its last micro-batch again
            self._recorder.record("forebay.batches", 1, at)
            self._recorder.record("forebay.bytes", int(last.get("bytes") or 0), at)
        for unit in ("rows", "bytes"):
            if unit in lag:
                self._recorder.record(f"forebay.lag.{unit}", int(lag[unit]), at)
        for name, count in state["splits"].items():
            self._recorder.record("forebay.splits", int(count), {**at, "forebay.state": name})
        retried = int(discovery.get("retried") or 0)
        known = self._retried.get((run, number), 0)
        self._retried[run, number] = retried
        if retried > known:
            self._recorder.record("forebay.retries", retried - known, at)
