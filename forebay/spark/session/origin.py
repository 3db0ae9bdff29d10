# SPDX-License-Identifier: Apache-2.0
"""Creates the source of a format in Spark's processes, with settings captured from the session."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from forebay.errors import ConfigurationError
from forebay.framework.microbatch.offsets.state_location import default_location
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.source import Source
from forebay.options import Secret, class_options, given_options, hide_options, merge_specs, parse_options
from forebay.registry import default_registry
from forebay.spark.processes import pickling
from forebay.spark.session.time_zone import OPTION

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
    def make(self, given: Mapping[str, str], session: Session) -> Made:
        """Return the source and the host's options. Called in the planner process, once per `load()`.

        Raises:
            ConfigurationError: The source cannot be loaded here, or an option is unknown, missing or invalid.
        """


@dataclass(frozen=True)
class Installed(Origin):
    """A source class that every process finds by name: built in, or from an installed package."""

    name: str

    def make(self, given: Mapping[str, str], session: Session) -> Made:
        """Look up the class, and create the source."""
        return _make(_source_class(default_registry.lookup(self.name), self.name), self.name, given, session)


@dataclass(frozen=True)
class PickledClass(Origin):
    """A pickled source class: from a notebook, a script, or the user's own module."""

    name: str
    payload: bytes = dataclasses.field(repr=False)

    def make(self, given: Mapping[str, str], session: Session) -> Made:
        """Unpickle the class, and create the source."""
        return _make(_source_class(pickling.loads(self.payload, self.name), self.name), self.name, given, session)


@dataclass(frozen=True)
class PickledSource(Origin):
    """A pickled source object. Plans and logs do not show its options, which include secrets."""

    name: str
    payload: bytes = dataclasses.field(repr=False)
    options: HostOptions

    def make(self, given: Mapping[str, str], session: Session) -> Made:
        """Unpickle the source, whose options are already set. `given` has only options of the host."""
        parse_options((), given, source=self.name)
        source: Source = pickling.loads(self.payload, self.name)
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


def _make(cls: type[Source], name: str, given: Mapping[str, str], session: Session) -> Made:
    own, host = class_options(cls), class_options(HostOptions)
    specs = merge_specs(own, host)
    storage = session.source_storage(cls)
    defaults = session.defaults() | ({STORAGE: storage} if storage else {})
    values = parse_options(specs, given, source=name, defaults=defaults, owner=cls)
    source = cls(**{spec.python_name: values[spec.python_name] for spec in own})
    follows = any(spec.python_name == OPTION for spec in own) and OPTION not in given_options(specs, given)
    return Made(source, HostOptions(**{spec.python_name: values[spec.python_name] for spec in host}), follows)
