# SPDX-License-Identifier: Apache-2.0
"""Functions for users: `register` makes source classes known to Spark, `read` and `read_stream` read source objects."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.types import StructType

from forebay.errors import ConfigurationError, ForebayError
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.source import Source
from forebay.inspection.event_time import dropped_rows, dropped_rows_advice
from forebay.inspection.metrics import Instruments, QueryMetrics
from forebay.options import class_options, parse_options
from forebay.registry import default_registry
from forebay.spark import processes
from forebay.spark.data_source import format_class
from forebay.spark.session import (
    IN_QUERY_FUNCTION,
    Installed,
    Origin,
    PickledClass,
    PickledSource,
    Session,
    check_workers,
    checked_class,
    in_query_function,
    s3a_settings,
)

# -- `forebay.record_progress`: writes the progress reports of a session's queries to files, and warns of dropped rows.


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


_REDACTION = "spark.sql.redaction.options.regex"
_LOGINS = r"(?i)(storage\.|kafka\.(sasl|ssl)\.)"
"""The options whose values Spark's plans do not show. An access key id is no secret, but identifies its owner."""

OLDEST_SPARK = (4, 2)
"""Minimum version of Spark: older versions pass neither start offset nor read limit to `latestOffset`."""


def register(spark: SparkSession, *sources: type[Source]) -> tuple[str, ...]:
    """Make sources available as `spark.read.format(name)` in one session.

    Without arguments, `register` registers forebay's sources and those of all installed packages. Packages are imported
    on use, so a broken package affects only the queries that use that package.

    A class may be defined in a package, a module beside the script, a notebook cell or a function. The call pickles the
    class, so register a class again after a change. The call also captures the session's parallelism, time zone and
    checkpoint location.

    Args:
        spark: The session; call `register` for each session.
        sources: Source classes, subclasses of `SimpleSource` or `Source`.

    Returns:
        The format names.

    Raises:
        ConfigurationError: Spark is too old, its workers cannot import forebay, or a class cannot be used.
        ContractError: The options of a class are invalid.
    """
    _check_session(spark)
    _hide_options(spark)
    session = capture(spark)
    origins = [_origin(cls) for cls in sources] if sources else _all()
    names = [origin.name.lower() for origin in origins]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise ConfigurationError(
            f"two of the sources to register have the name {twice!r}",
            source=twice,
            advice='set `name = "…"` on one of the classes',
        )
    made = []
    for origin in origins:
        try:
            _register(spark, origin, session)
        except ConfigurationError as error:
            # A class that cannot be used must not fail a later `register` of all sources.
            default_registry.forget_class(origin.name)
            if sources:
                raise
            _log.warning("%s is not registered: %s", origin.name, error)
        else:
            made.append(origin.name)
    return tuple(made)


def read(
    spark: SparkSession, source: Source, *, schema: StructType | str | None = None, **options: object
) -> DataFrame:
    """Return a DataFrame of a source object.

    ```python
    forebay.read(spark, Orders(url="…", token=Secret("env:TOKEN")), num_partitions=8)
    ```

    The source is pickled, so its options do not appear in plans, and `register` is not needed. The read is planned
    once, so every action on the DataFrame reads the same rows. The exception is an unbounded source without `latest`:
    each action reads it up to its current end.

    Args:
        spark: The session.
        source: The source.
        schema: Read with this schema, if the source supports it.
        options: Options of the host: `num_partitions`, `columns`, … (see `HostOptions`).

    Raises:
        ConfigurationError: Spark is too old, its workers cannot import forebay, the source cannot be pickled, or an
            option is unknown.
    """
    origin = _register_object(spark, source, options, "read")
    reader = spark.read.format(origin.name)
    return (reader if schema is None else reader.schema(schema)).load()


def read_stream(
    spark: SparkSession, source: Source, *, schema: StructType | str | None = None, **options: object
) -> DataFrame:
    """Return a streaming DataFrame of a source object.

    ```python
    frame = forebay.read_stream(spark, Orders(url="…", token=Secret("env:TOKEN")), max_files_per_trigger=10)
    query = frame.writeStream.option("checkpointLocation", "…").toTable("orders")
    forebay.progress(query)
    ```

    The source is pickled, as by `read`. A query that restarts from its checkpoint uses the new source object; a changed
    option that must stay the same raises ConfigurationError.

    Args:
        spark: The session.
        source: The source; a bounded one is read once to its end.
        schema: Read with this schema, if the source supports it.
        options: Options of the host: `max_files_per_trigger`, `state_location`, … (see `HostOptions`).

    Raises:
        ConfigurationError: See `read`.
    """
    origin = _register_object(spark, source, options, "read_stream")
    reader = spark.readStream.format(origin.name)
    return (reader if schema is None else reader.schema(schema)).load()


def _hide_options(spark: SparkSession) -> None:
    """Make Spark hide the login options of stores and Kafka in its plans; by itself it goes by a few words only."""
    pattern = spark.conf.get(_REDACTION, "") or ""
    if _LOGINS in pattern:
        return
    try:
        spark.conf.set(_REDACTION, f"{pattern}|{_LOGINS}" if pattern else _LOGINS)
    except PySparkException as error:  # some services let nobody change settings
        _log.warning("Spark's plans may show access key ids: %s cannot be set: %s", _REDACTION, error)


def capture(spark: SparkSession) -> Session:
    """Return the settings of the session that planners and workers need (S18)."""
    context = getattr(spark, "_sc", None)
    return Session(
        parallelism=_server_parallelism(spark) if context is None else int(context.defaultParallelism),
        time_zone=spark.conf.get("spark.sql.session.timeZone", None),
        checkpoint_location=_checkpoints(spark, context),
        s3a=s3a_settings(spark, context),
    )


def _server_parallelism(spark: SparkSession) -> int | None:
    """Return `spark.default.parallelism` of a Connect server. Its number of cores is not visible."""
    named = spark.conf.get("spark.default.parallelism", None)
    return int(named) if named is not None and named.isdecimal() and int(named) else None


def _checkpoints(spark: SparkSession, context: object) -> str | None:
    """Return the checkpoint location of the session as a URL, with Spark's default scheme."""
    named = spark.conf.get("spark.sql.streaming.checkpointLocation", None)
    if named is None or re.match(r"[A-Za-z][A-Za-z0-9+.\-]+:", named):
        return named
    java = getattr(context, "_jsc", None)
    if java is None:
        return None  # Spark Connect does not expose the default file system
    system = str(java.hadoopConfiguration().get("fs.defaultFS") or "file:///")
    if system.startswith("file:"):
        return named
    return f"{system.rstrip('/')}{named}" if named.startswith("/") else None


def _register_object(spark: SparkSession, source: object, options: Mapping[str, object], call: str) -> Origin:
    """Register a source object in the session under a unique name. `call` is the user's call, for errors."""
    if not isinstance(source, Source):
        raise ConfigurationError(
            f"{source!r} is not a source", advice=f"create one first: forebay.{call}(spark, Orders(url=…))"
        )
    _check_session(spark)
    _hide_options(spark)
    checked_class(type(source))
    host = HostOptions(**parse_options(class_options(HostOptions), options, source=source.name))
    payload = processes.dumps(source, source.name)
    digest = hashlib.sha256(payload + repr(host).encode()).hexdigest()[:16]
    origin = PickledSource(f"{source.name}_{digest}", payload, host)
    _register(spark, origin, capture(spark))
    return origin


def _check_session(spark: SparkSession) -> None:
    match = re.match(r"(\d+)\.(\d+)", pyspark.__version__)
    if match is None or (int(match[1]), int(match[2])) < OLDEST_SPARK:
        raise ConfigurationError(
            f"this is PySpark {pyspark.__version__}, and forebay needs 4.2 or newer",
            advice='pip install "pyspark>=4.2"',
        )
    if not hasattr(spark, "dataSource"):
        raise ConfigurationError(
            f"{spark!r} is not a Spark session", advice="give the session first: forebay.register(spark, …)"
        )
    check_workers(spark)


def _origin(cls: object) -> Origin:
    checked = checked_class(cls)
    payload = processes.dumps(checked, checked.name)
    # Registered after pickling: a class that cannot be pickled must not fail a later `register` of all sources.
    return PickledClass(default_registry.register_class(checked), payload)


def _all() -> list[Origin]:
    origins: list[Origin] = []
    for entry in default_registry.entries():
        if isinstance(entry.target, str):
            origins.append(Installed(entry.name))
            continue
        try:
            origins.append(_origin(entry.target))
        except ForebayError as error:  # from an earlier call: it must not fail this one
            _log.warning("%s is not registered: %s", entry.name, error)
    return origins


def _register(spark: SparkSession, origin: Origin, session: Session) -> None:
    try:
        with _active(spark):
            spark.dataSource.register(format_class(origin, session))
    except Exception as error:
        if IN_QUERY_FUNCTION in str(error):
            raise in_query_function() from error
        raise ConfigurationError(
            f"Spark refuses the format name {origin.name!r}: {error}",
            source=origin.name,
            advice='set `name = "…"` on the class to a name that Spark does not use itself',
        ) from error


@contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Make a session the active one, because Spark checks there whether a name is taken.

    Otherwise a name that is registered in one session could not be registered in its `newSession()`.
    """
    java = getattr(spark, "_jsparkSession", None)
    if java is None:  # Spark Connect: the server does it
        yield
        return
    sessions = getattr(spark._jvm, "org.apache.spark.sql.classic.SparkSession")  # noqa: SLF001 - there is no public way
    before = sessions.getActiveSession()
    sessions.setActiveSession(java)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()
