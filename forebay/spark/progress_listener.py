# SPDX-License-Identifier: Apache-2.0
"""`forebay.record_progress`: writes the progress reports of a session's queries to files, and warns of dropped rows."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from forebay.errors import ConfigurationError
from forebay.inspection.dropped_rows import dropped_rows, dropped_rows_advice
from forebay.inspection.metrics import Instruments, QueryMetrics

_log = logging.getLogger(__name__)


def record_progress(
    spark: SparkSession, directory: str | None = None, *, metrics: bool = False
) -> StreamingQueryListener:
    """Write each progress report of the session's queries to `<directory>/<query id>.jsonl`, and warn of dropped rows.

    `forebay.report(directory)` draws the files. When Spark's watermark drops rows of a query with a source of forebay,
    the listener logs one warning. The warning names the split that is furthest behind, and the option that avoids the
    loss. Spark calls the listener on a separate thread, so the listener cannot delay or end a query.

    Args:
        spark: The session. Queries that are already running are included.
        directory: A local directory, created if needed; None = no files.
        metrics: Record metrics by OpenTelemetry (the extra `metrics`) for the queries that read sources of forebay.

    Returns:
        The listener; `spark.streams.removeListener` ends the recording.

    Raises:
        ConfigurationError: The directory cannot be written, or OpenTelemetry is not installed.
    """
    path = None if directory is None else Path(directory)
    try:
        if path is not None:
            path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"progress cannot be recorded in {directory}: {error}", advice="give a local directory that can be written"
        ) from error
    listener = ProgressListener(path, QueryMetrics(Instruments()) if metrics else None)
    spark.streams.addListener(listener)
    return listener


class ProgressListener(StreamingQueryListener):
    """Appends reports to files. Spark calls it on one thread; an error is logged and has no other effect."""

    def __init__(self, directory: Path | None, metrics: QueryMetrics | None = None) -> None:
        self._directory = directory
        self._metrics = metrics
        self._warned: set[str] = set()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Record the name of the query for the metrics."""
        if self._metrics is not None:
            self._metrics.started(str(event.runId), str(event.id), event.name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Write the report, and warn once per query of rows that were dropped."""
        try:
            report = json.loads(event.progress.json)
            if self._directory is not None:
                with (self._directory / f"{event.progress.id}.jsonl").open("a", encoding="utf-8") as file:
                    file.write(json.dumps(report) + "\n")
            self._warn(str(event.progress.id), report)
            if self._metrics is not None:
                self._metrics.progressed(report)
        except Exception:  # noqa: BLE001 - nothing may reach Spark's listener bus
            _log.warning("the progress report of a micro-batch could not be recorded", exc_info=True)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Record for the metrics that the query ended, with its error if it failed."""
        if self._metrics is not None:
            self._metrics.terminated(str(event.runId), event.exception, event.errorClassOnException)

    def _warn(self, query: str, report: dict[str, object]) -> None:
        if query in self._warned or (advice := dropped_rows_advice(report)) is None:
            return
        self._warned.add(query)
        name = report.get("name") or query
        _log.warning("%s: Spark's watermark dropped %d rows: %s", name, dropped_rows(report), advice)
