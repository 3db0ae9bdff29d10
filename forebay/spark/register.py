# SPDX-License-Identifier: Apache-2.0
"""The calls of the user's process: make sources known to a session, read and stream one that was made in Python."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from forebay.errors import ConfigurationError, ForebayError
from forebay.framework.host_options import HostOptions
from forebay.framework.source import Source
from forebay.options import class_options, parse_options
from forebay.registry import default_registry
from forebay.spark import pickling
from forebay.spark.data_source import format_class
from forebay.spark.origin import Installed, Origin, PickledClass, PickledSource, Session, demand
from forebay.spark.workers import check_workers

_log = logging.getLogger(__name__)

OLDEST_SPARK = (4, 2)
"""Before it, a stream is told neither where it starts nor how much to take."""


def register(spark: SparkSession, *sources: type[Source]) -> tuple[str, ...]:
    """Make sources usable as `spark.read.format(name)` in one session. Called by users, in their own process.

    Without sources: everything that is installed, that is forebay's own and that of every installed package. None of
    it is imported before it is used, and what is broken is an error only of the query that uses it.

    A class may come from anywhere: a package, a module beside the script, a notebook cell, a function. It travels as
    it is now; after a change register it again. What planners and workers cannot see of the session is captured now:
    its parallelism, time zone and checkpoint location.

    Args:
        spark: The session; each session needs its own call.
        sources: Source classes, subclasses of `SimpleSource` or `Source`.

    Returns:
        The format names.

    Raises:
        ConfigurationError: Spark is too old, its workers cannot import forebay, or a class cannot be used.
        ContractError: The options of a class are not well defined.
    """
    _check_session(spark)
    session = capture(spark)
    origins = [_origin(cls) for cls in sources] if sources else _all()
    names = [origin.name.lower() for origin in origins]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise ConfigurationError(
            f"two of these sources are called {twice!r}",
            source=twice,
            advice='set `name = "…"` on one of the classes',
        )
    made = []
    for origin in origins:
        try:
            _register(spark, origin, session)
        except ConfigurationError as error:
            # It can be used nowhere, and must not fail a later `register` of all that is known.
            default_registry.forget_class(origin.name)
            if sources:
                raise
            _log.warning("%s is left out: %s", origin.name, error)
        else:
            made.append(origin.name)
    return tuple(made)


def read(
    spark: SparkSession, source: Source, *, schema: StructType | str | None = None, **options: object
) -> DataFrame:
    """Return a DataFrame of a source that was made in Python. Called by users, in their own process.

    ```python
    forebay.read(spark, Orders(url="…", token=Secret("env:TOKEN")), num_partitions=8)
    ```

    The source travels whole: nothing of it becomes text, so nothing of it shows in a plan. It needs no `register`.
    What there is to read is looked up once: every action on the DataFrame reads the same, unless the source is
    unbounded and does not say its `latest`; then each reads up to what there is.

    Args:
        spark: The session.
        source: What to read.
        schema: Read with this schema, if the source can.
        options: Those of the host: `num_partitions`, `columns`, … (see `HostOptions`).

    Raises:
        ConfigurationError: Spark is too old, its workers cannot import forebay, the source cannot travel, or an
            option is unknown.
    """
    origin = _made_here(spark, source, options, "read")
    reader = spark.read.format(origin.name)
    return (reader if schema is None else reader.schema(schema)).load()


def read_stream(
    spark: SparkSession, source: Source, *, schema: StructType | str | None = None, **options: object
) -> DataFrame:
    """Return a streaming DataFrame of a source that was made in Python. Called by users, in their own process.

    ```python
    frame = forebay.read_stream(spark, Orders(url="…", token=Secret("env:TOKEN")), max_files_per_trigger=10)
    query = frame.writeStream.option("checkpointLocation", "…").toTable("orders")
    forebay.progress(query)
    ```

    The source travels whole, as with `read`. A query that is started again on its checkpoint goes on where it was,
    with the source as it is made now: an option that may not change between two runs is refused by name.

    Args:
        spark: The session.
        source: What to read; also a bounded one, which is read once to its end.
        schema: Read with this schema, if the source can.
        options: Those of the host: `max_files_per_trigger`, `state_location`, … (see `HostOptions`).

    Raises:
        ConfigurationError: Spark is too old, its workers cannot import forebay, the source cannot travel, or an
            option is unknown.
    """
    origin = _made_here(spark, source, options, "read_stream")
    reader = spark.readStream.format(origin.name)
    return (reader if schema is None else reader.schema(schema)).load()


def capture(spark: SparkSession) -> Session:
    """Return what planners and workers will need of the session (S18)."""
    context = getattr(spark, "_sc", None)
    return Session(
        parallelism=None if context is None else int(context.defaultParallelism),
        time_zone=spark.conf.get("spark.sql.session.timeZone", None),
        checkpoint_location=_checkpoints(spark, context),
    )


def _checkpoints(spark: SparkSession, context: object) -> str | None:
    """Return the directory of the session's checkpoints, with the scheme that Spark takes for a path without one."""
    named = spark.conf.get("spark.sql.streaming.checkpointLocation", None)
    if named is None or re.match(r"[A-Za-z][A-Za-z0-9+.\-]+:", named):
        return named
    java = getattr(context, "_jsc", None)
    if java is None:
        return None  # over Spark Connect nobody says in which file system the path is
    system = str(java.hadoopConfiguration().get("fs.defaultFS") or "file:///")
    if system.startswith("file:"):
        return named
    return f"{system.rstrip('/')}{named}" if named.startswith("/") else None


def _made_here(spark: SparkSession, source: object, options: Mapping[str, object], call: str) -> Origin:
    """Make a source that exists in this process known to the session, under a name of its own."""
    if not isinstance(source, Source):
        raise ConfigurationError(
            f"{source!r} is not a source", advice=f"make one first: forebay.{call}(spark, Orders(url=…))"
        )
    _check_session(spark)
    demand(type(source))
    host = HostOptions(**parse_options(class_options(HostOptions), options, source=source.name))
    payload = pickling.dumps(source, source.name)
    digest = hashlib.sha256(payload + repr(host).encode()).hexdigest()[:16]
    origin = PickledSource(f"{source.name}_{digest}", payload, host)
    _register(spark, origin, capture(spark))
    return origin


def _check_session(spark: SparkSession) -> None:
    found = re.match(r"(\d+)\.(\d+)", pyspark.__version__)
    if found is None or (int(found[1]), int(found[2])) < OLDEST_SPARK:
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
    checked = demand(cls)
    payload = pickling.dumps(checked, checked.name)
    # Known only once it can travel, or it would fail every later `register` of all that is known.
    return PickledClass(default_registry.register_class(checked), payload)


def _all() -> list[Origin]:
    origins: list[Origin] = []
    for entry in default_registry.entries():
        if isinstance(entry.target, str):
            origins.append(Installed(entry.name))
            continue
        try:
            origins.append(_origin(entry.target))
        except ForebayError as error:  # registered before, by another call: it must not fail this one
            _log.warning("%s is left out: %s", entry.name, error)
    return origins


def _register(spark: SparkSession, origin: Origin, session: Session) -> None:
    try:
        with _active(spark):
            spark.dataSource.register(format_class(origin, session))
    except Exception as error:
        raise ConfigurationError(
            f"Spark refuses the format name {origin.name!r}: {error}",
            source=origin.name,
            advice='set `name = "…"` on the class, one that Spark does not use itself',
        ) from error


@contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Make a session the active one meanwhile: in that one, whichever it is, Spark looks whether a name is taken.

    What is known to one session could not be registered in its `newSession()`.
    """
    java = getattr(spark, "_jsparkSession", None)
    if java is None:  # over Spark Connect the server sees to it
        yield
        return
    sessions = getattr(spark._jvm, "org.apache.spark.sql.classic.SparkSession")  # noqa: SLF001 - has no other door
    before = sessions.getActiveSession()
    sessions.setActiveSession(java)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()
