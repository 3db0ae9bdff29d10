# SPDX-License-Identifier: Apache-2.0
"""What sources need of a Spark session, captured where the session is known, and checks of its workers."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import shutil
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyspark import TaskContext
from pyspark.sql import SparkSession

from forebay.errors import ConfigurationError
from forebay.framework.runtime.host_options import HostOptions, default_location
from forebay.framework.source import Source
from forebay.options import Secret, class_options, given_options, hide_options, merge_specs, parse_options
from forebay.registry import default_registry
from forebay.spark import processes
from forebay.version import __version__

# -- Reads the time zone of the query to which a task belongs (S18).


OPTION: Final = "time_zone"
"""The Python name of the option that follows the session unless the user sets it."""

_PROPERTY: Final = "spark.sql.session.timeZone"


def in_zone_of_task(source: Source) -> Source:
    """Return the source with the time zone of the query that runs this task, if that zone is known.

    Called on the task thread, if the user set no time zone option. Spark passes the settings of the session at the
    start of the query to its tasks; the settings captured by `register` may be older or missing. If the time zone of a
    session was never set, Spark passes none.
    """
    context = TaskContext.get()
    zone = None if context is None else context.getLocalProperty(_PROPERTY)
    spec = next((spec for spec in class_options(type(source)) if spec.python_name == OPTION), None)
    if not zone or spec is None:
        return source
    value = spec.convert(zone, source=source.name)
    if value == getattr(source, OPTION):
        return source
    # A copy keeps the resolved schema and columns.
    moved = copy.copy(source)
    object.__setattr__(moved, OPTION, value)
    moved.check()
    return moved


# -- Creates the source of a format in Spark's processes, with settings captured from the session.


STORAGE: Final = "storage"
"""The Python name of the option `storage.*`."""


@dataclass(frozen=True)
class Session:
    """Settings of the Spark session that planners and tasks cannot read. `register` and `read` capture them (S18)."""

    parallelism: int | None = None
    time_zone: str | None = None
    checkpoint_location: str | None = None
    s3a: Mapping[str, Secret] = dataclasses.field(default_factory=dict)

    def defaults(self) -> dict[str, object]:
        """Return default values for the options of source and host, by Python name."""
        known = {"time_zone": self.time_zone, "state_location": default_location(self.checkpoint_location)}
        return {name: value for name, value in known.items() if value is not None} | {"state_storage": self.s3a}

    def source_storage(self, source: type[Source]) -> dict[str, Secret]:
        """Return the default of `storage.*`: the session's S3 settings, if the source declares `takes_s3a_settings`."""
        return dict(self.s3a) if getattr(source, "takes_s3a_settings", False) else {}


@dataclass(frozen=True)
class Made:
    """The source and the host's options that `Origin.make` returns for one `load()`.

    Args:
        source: The source.
        options: The host's options.
        follows_zone: Whether the time zone comes from the session instead of the user's options.
    """

    source: Source
    options: HostOptions
    follows_zone: bool = False


class Origin(ABC):
    """Creates the source of a format from the options of one `load()`. Picklable."""

    name: str

    @abstractmethod
    def make(self, user_options: Mapping[str, str], session: Session) -> Made:
        """Return the source and the host's options. Called in the planner process, once per `load()`.

        Raises:
            ConfigurationError: The source cannot be loaded here, or an option is unknown, missing or invalid.
        """


@dataclass(frozen=True)
class Installed(Origin):
    """A source class that every process finds by name: built in, or from an installed package."""

    name: str

    def make(self, user_options: Mapping[str, str], session: Session) -> Made:
        """Look up the class, and create the source."""
        return _make(_source_class(default_registry.lookup(self.name), self.name), self.name, user_options, session)


@dataclass(frozen=True)
class PickledClass(Origin):
    """A pickled source class: from a notebook, a script, or the user's own module."""

    name: str
    payload: bytes = dataclasses.field(repr=False)

    def make(self, user_options: Mapping[str, str], session: Session) -> Made:
        """Unpickle the class, and create the source."""
        return _make(
            _source_class(processes.loads(self.payload, self.name), self.name), self.name, user_options, session
        )


@dataclass(frozen=True)
class PickledSource(Origin):
    """A pickled source object. Plans and logs do not show its options, which include secrets."""

    name: str
    payload: bytes = dataclasses.field(repr=False)
    options: HostOptions

    def make(self, user_options: Mapping[str, str], session: Session) -> Made:
        """Unpickle the source, whose options are already set. `user_options` has only options of the host."""
        parse_options((), user_options, source=self.name)
        source: Source = processes.loads(self.payload, self.name)
        hide_options(source)
        options = self.options
        if options.state_location is None:
            options = dataclasses.replace(options, state_location=default_location(session.checkpoint_location))
        if not options.state_storage:
            options = dataclasses.replace(options, state_storage=dict(session.s3a))
        storage = session.source_storage(type(source))
        if storage and not getattr(source, STORAGE):
            source = copy.copy(source)  # keeps its schema and columns
            object.__setattr__(source, STORAGE, storage)
        return Made(source, options)


def checked_class(cls: object) -> type[Source]:
    """Check that a class is a complete source class, and return it. Called in the user's process.

    Raises:
        ConfigurationError: The object is not a source class, or methods are missing.
        ContractError: The options of the class are invalid, or have the same names as options of the host.
    """
    checked = _source_class(cls, getattr(cls, "__name__", repr(cls)))
    missing = sorted(getattr(checked, "__abstractmethods__", ()))
    if missing:
        raise ConfigurationError(
            f"{checked.__name__} does not define {' and '.join(f'{name}()' for name in missing)}",
            source=checked.name,
            advice="define the missing methods, as docs/writing-a-source.md shows",
        )
    hidden = [name for name in _methods(checked) if not callable(getattr(checked, name))]
    if hidden:
        raise ConfigurationError(
            f"{checked.__name__}.{hidden[0]} is {getattr(checked, hidden[0])!r}, not a method",
            source=checked.name,
            advice=f"write it as a method: def {hidden[0]}(self): return …",
        )
    merge_specs(class_options(checked), class_options(HostOptions))
    return checked


def _methods(cls: type[Source]) -> list[str]:
    """Return the names of the methods that a source class must define."""
    bases = [base for base in cls.__mro__ if base.__module__.startswith("forebay.framework.")]
    return [name for base in bases for name, value in vars(base).items() if inspect.isfunction(value)]


def _source_class(cls: object, name: str) -> type[Source]:
    if isinstance(cls, type) and issubclass(cls, Source):
        return cls
    what = f"an instance of {type(cls).__name__}" if isinstance(cls, Source) else repr(cls)
    raise ConfigurationError(
        f"{what} is not a source class",
        source=name,
        advice="register the class; to read a source object, call forebay.read(spark, source)",
    )


def _make(cls: type[Source], name: str, options: Mapping[str, str], session: Session) -> Made:
    own, host = class_options(cls), class_options(HostOptions)
    specs = merge_specs(own, host)
    storage = session.source_storage(cls)
    defaults = session.defaults() | ({STORAGE: storage} if storage else {})
    values = parse_options(specs, options, source=name, defaults=defaults, owner=cls)
    source = cls(**{spec.python_name: values[spec.python_name] for spec in own})
    follows = any(spec.python_name == OPTION for spec in own) and OPTION not in given_options(specs, options)
    return Made(source, HostOptions(**{spec.python_name: values[spec.python_name] for spec in host}), follows)


# -- The settings of Hadoop's S3 connector in a Spark session, which planners and tasks cannot read (S18).


_PREFIX: Final = "fs.s3a."
_SPARK: Final = "spark.hadoop."
# Looked up in Hadoop's configuration too, where programs and core-site.xml set them.
_IN_HADOOP: Final = (
    "access.key", "secret.key", "session.token", "endpoint", "endpoint.region", "path.style.access",
    "connection.ssl.enabled", "aws.credentials.provider", "assumed.role.arn", "assumed.role.session.name",
    "assumed.role.external.id", "assumed.role.sts.endpoint", "requester.pays.enabled", "encryption.algorithm",
    "proxy.host", "security.credential.provider.path",
)  # fmt: skip
_DEFAULTS: Final = "core-default.xml"
_BETWEEN: Final = "\0\n"


def s3a_settings(spark: SparkSession, context: Any) -> dict[str, Secret]:  # noqa: ANN401 - None over Spark Connect
    """Return the `fs.s3a.*` settings that are not Hadoop's defaults. Called on the driver, by `register` and `read`.

    The values are secrets, because they may be credentials. Over Spark Connect, only settings of the session are
    visible.
    """
    settings: dict[str, str] = {}
    java = getattr(context, "_jsc", None)
    if java is not None:
        hadoop = java.hadoopConfiguration()
        for name in (f"{_PREFIX}{short}" for short in _IN_HADOOP):
            value = hadoop.get(name)
            if value and _DEFAULTS not in list(hadoop.getPropertySources(name) or ()):
                settings[name] = value
    for name, value in _settings(spark).items():
        plain = name.removeprefix(_SPARK)
        if plain.startswith(_PREFIX) and (plain == name or plain not in settings):
            settings[plain] = value
    return {name: secret for name, value in settings.items() if (secret := _secret(value)) is not None}


def _settings(spark: SparkSession) -> dict[str, str]:
    """Return all settings of the session, with one call of the JVM. `spark.conf.getAll` makes several for each."""
    java = getattr(spark.conf, "_jconf", None)
    if java is None:  # Spark Connect
        return spark.conf.getAll
    pairs = java.getAll().mkString(_BETWEEN).split(_BETWEEN)  # each is "name -> value"
    return {name: value for name, _, value in (pair.partition(" -> ") for pair in pairs)}


def _secret(text: str) -> Secret | None:
    try:
        return Secret(text)
    except ConfigurationError:  # it looks like a reference to a secret but is not valid: no setting of Hadoop
        return None


# -- Checks that Spark's workers run a Python with forebay.


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


class WorkerPython(NamedTuple):
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
        worker: WorkerPython = WorkerPython(*context.parallelize([0], 1).map(_probe()).collect()[0])
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
        row = spark.range(1).select(probe("id")).collect()[0][0]
    except Exception as error:
        if IN_QUERY_FUNCTION in str(error):
            raise in_query_function() from error
        raise _server_refusal(f"a test job of one row failed: {_last_line(error)}") from error
    worker = WorkerPython(row[0], row[1], row[2])
    if worker.version is None:
        raise _server_refusal(f"its workers run {worker.executable}: {worker.problem}")
    _warn_of_version(worker, _SERVER_ADVICE)
    _checked.add(session)


def _server_probe() -> Callable[[int], list[str | None]]:
    probe = _probe()
    return lambda number: list(probe(number))


def _server_refusal(problem: str) -> ConfigurationError:
    return ConfigurationError(f"the server of Spark Connect cannot run forebay: {problem}", advice=_SERVER_ADVICE)


def _warn_of_version(worker: WorkerPython, advice: str) -> None:
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
    executable = shutil.which(command)
    if executable is None:
        return False
    theirs, ours = Path(executable), Path(sys.executable)
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
