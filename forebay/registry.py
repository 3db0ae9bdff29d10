# SPDX-License-Identifier: Apache-2.0
"""Which source class has which format name: registered in this process, built in, or offered by installed packages.

Nothing is imported before it is asked for, and a package that cannot be loaded is an error of its own name only.
Where several classes claim a name, the winner is: registered in this process, the last one first; then forebay's own;
then entry points of the group `forebay.sources`, by the name of their distribution.
"""

from __future__ import annotations

import difflib
import importlib
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.errors import ConfigurationError, explain_formats

if TYPE_CHECKING:
    from importlib.metadata import Distribution

GROUP = "forebay.sources"
"""The entry-point group in which a package offers its sources: `orders = "shop.orders:Orders"`."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LazySource:
    """A source that is imported when it is asked for.

    Args:
        path: `package.module:Class`.
        install: The command that installs what it needs, for messages; empty if nothing is known.
    """

    path: str
    install: str = ""


BUILT_INS: Mapping[str, LazySource] = {
    "forebay_files": LazySource("forebay.sources.files:FileSource", 'pip install "forebay[files]"'),
    "forebay_kafka": LazySource("forebay.sources.kafka:KafkaSource", 'pip install "forebay[kafka]"'),
    "forebay_rate": LazySource("forebay.sources.rate:RateSource"),
}
"""The sources that come with forebay."""


@dataclass(frozen=True)
class Entry:
    """One claim on a format name.

    Args:
        name: The format name, as it was written.
        target: The class or its path, `package.module:Class`.
        origin: Who claims it, for people: "registered here", "built into forebay", "the package shop 1.2".
        install: The command that installs what it needs, if it is known.
        error: Why it cannot be loaded; None if it can be, or was not tried.
    """

    name: str
    target: type | str
    origin: str
    install: str = ""
    error: ConfigurationError | None = None

    @property
    def path(self) -> str:
        """Where the class is: `package.module:Class`."""
        if isinstance(self.target, str):
            return self.target
        return f"{self.target.__module__}:{self.target.__qualname__}"


@dataclass(frozen=True)
class Clash:
    """A name with two claims: `lookup` gives `winner`."""

    winner: Entry
    loser: Entry

    def __str__(self) -> str:
        return (
            f"two sources are called {self.winner.name!r}: {self.winner.path} ({self.winner.origin}) is used, "
            f"{self.loser.path} ({self.loser.origin}) is not"
        )


class Registry:
    """Finds source classes by format name. Names are compared without regard to case, as Spark does.

    One thread at a time. Packages are looked for at the first question, and again when a name is unknown.

    Args:
        built_ins: Sources that come before those of packages.
        group: The entry-point group of packages; empty: look for none.
    """

    def __init__(self, built_ins: Mapping[str, LazySource] = BUILT_INS, *, group: str = GROUP) -> None:
        self._built_ins = [
            Entry(name, lazy.path, "built into forebay", lazy.install) for name, lazy in built_ins.items()
        ]
        self._group = group
        self._registered: list[Entry] = []
        self._found: list[Entry] | None = None
        self._broken: list[ConfigurationError] = []
        self._warned: set[tuple[str, str, str]] = set()

    def register_class(self, cls: type, name: str | None = None) -> str:
        """Make a class known under its format name, before all others of this name; returns the name.

        Called by `forebay.register` on the driver. Registering a class of the same module and name again replaces it
        silently: a notebook cell was run twice.

        Args:
            cls: The source class.
            name: The format name; what `format_name` says unless given.

        Raises:
            ConfigurationError: The name cannot be a format name.
        """
        name = format_name(cls) if name is None else name
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", name):
            raise ConfigurationError(
                f"{name!r} cannot be the name of a source",
                source=cls.__name__,
                advice="use letters, digits, underscores, dots and hyphens, a letter first",
            )
        entry = Entry(name, cls, "registered here")
        self._registered = [old for old in self._registered if (_fold(old.name), old.path) != (_fold(name), entry.path)]
        self._registered.insert(0, entry)
        self._warn(clash for clash in self.clashes() if _fold(clash.winner.name) == _fold(name))
        return name

    def forget_class(self, name: str) -> None:
        """Take out what `register_class` made known under a name; what is installed stays. Any name may be given."""
        self._registered = [entry for entry in self._registered if _fold(entry.name) != _fold(name)]

    def lookup(self, name: str) -> type:
        """Return the source class of a format name, importing it now.

        Raises:
            ConfigurationError: No source has this name, or the one that has it cannot be loaded; the cause is chained.
        """
        claims = self._claims().get(_fold(name))
        if claims is None:
            self.refresh()
            claims = self._claims().get(_fold(name))
        if claims is None:
            raise self._unknown(name)
        self._warn(Clash(claims[0], loser) for loser in claims[1:])
        return _load(claims[0])

    def names(self) -> tuple[str, ...]:
        """Return all format names, sorted; imports nothing, so some may not be loadable (see `entries`)."""
        return tuple(sorted((claims[0].name for claims in self._claims().values()), key=_fold))

    def entries(self, *, load: bool = False) -> tuple[Entry, ...]:
        """Return the winner of each name, sorted by name.

        Args:
            load: Import each, and put what went wrong into its `error`.
        """
        self._warn(self.clashes())
        winners = sorted((claims[0] for claims in self._claims().values()), key=lambda entry: _fold(entry.name))
        return tuple(_tried(entry) for entry in winners) if load else tuple(winners)

    def clashes(self) -> tuple[Clash, ...]:
        """Return every claim that lost its name to another; each is also logged as a warning, once."""
        return tuple(Clash(claims[0], loser) for claims in self._claims().values() for loser in claims[1:])

    def broken(self) -> tuple[ConfigurationError, ...]:
        """Return one error for each installed package whose entry points cannot even be read."""
        self._claims()
        return tuple(self._broken)

    def refresh(self) -> None:
        """Look for installed packages again: something was installed while this process runs."""
        importlib.invalidate_caches()
        self._found = None

    def _claims(self) -> dict[str, list[Entry]]:
        """The claims on each name, the winner first; the same class again is no claim."""
        if self._found is None:
            self._found, self._broken = _installed(self._group) if self._group else ([], [])
        claims: dict[str, list[Entry]] = {}
        for entry in (*self._registered, *self._built_ins, *self._found):
            rivals = claims.setdefault(_fold(entry.name), [])
            if entry.path not in {rival.path for rival in rivals}:
                rivals.append(entry)
        return claims

    def _warn(self, clashes: Iterable[Clash]) -> None:
        for clash in clashes:
            key = (_fold(clash.winner.name), clash.winner.path, clash.loser.path)
            if key not in self._warned:
                self._warned.add(key)
                _log.warning("%s", clash)

    def not_found(self, name: str) -> ConfigurationError:
        """Return the error for a format that Spark did not find: misspelt, or not made known to the session."""
        known = {_fold(one): one for one in self.names()}
        if _fold(name) not in known:
            return self._unknown(name)
        return ConfigurationError(
            f"this Spark session does not know the format {name!r}",
            source=known[_fold(name)],
            advice="call forebay.register(spark) first, once for each session; forebay.register(spark, ItsClass) for a "
            "class of your own",
        )

    def _unknown(self, name: str) -> ConfigurationError:
        known = self.names()
        near = difflib.get_close_matches(_fold(name), {_fold(one): one for one in known}, 1)
        meant = next((one for one in known if near and _fold(one) == near[0]), None)
        broken = "".join(f"; {error.message}" for error in self._broken)
        return ConfigurationError(
            f"no source is called {name!r}" + (f", did you mean {meant!r}?" if meant else "") + broken,
            source=name,
            advice=f"the sources are {', '.join(known) or 'none'}; "
            "make another known with forebay.register(spark, ItsClass), or install its package",
        )


default_registry = Registry()
"""The registry of this process; tests make their own."""
explain_formats(default_registry.not_found)


def format_name(cls: type) -> str:
    """Return the format name of a class: its own attribute `name`, or else the class name in snake_case."""
    own = vars(cls).get("name")
    if isinstance(own, str) and own:
        return own
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", cls.__name__).lower()


def _fold(name: str) -> str:
    return name.lower()


def _installed(group: str) -> tuple[list[Entry], list[ConfigurationError]]:
    """What installed distributions offer, in the order of their names, and what is wrong with some of them."""
    from importlib.metadata import distributions  # keeps `import forebay` fast

    found: dict[str, list[Entry]] = {}
    broken: list[ConfigurationError] = []
    for distribution in distributions():
        try:
            entries = _offered(distribution, group)
            if entries:
                found[_normal(distribution.metadata["Name"])] = entries
        except Exception as error:  # noqa: BLE001 - a damaged package must not take the others along
            place = getattr(distribution, "_path", "an unknown place")
            broken.append(_wrapped(f"the entry points of the package at {place} cannot be read", error))
    return [entry for key in sorted(found) for entry in found[key]], broken


def _offered(distribution: Distribution, group: str) -> list[Entry]:
    points = [point for point in distribution.entry_points if point.group == group]
    if not points:
        return []
    name = distribution.metadata["Name"]
    if not name:
        raise ValueError("its metadata have no name")
    # The first on sys.path hides those behind it, as for imports, also if it has no sources (any more).
    first = distribution.from_name(name)
    if first.read_text("entry_points.txt") != distribution.read_text("entry_points.txt"):
        return []
    origin = f"the package {name} {distribution.version}"
    return [
        Entry(point.name, point.value.partition("[")[0].strip(), origin, _hint(name, point.extras)) for point in points
    ]


def _normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _hint(distribution: str, extras: Iterable[str]) -> str:
    wanted = ",".join(extras)
    return f'pip install "{distribution}[{wanted}]"' if wanted else ""


def _wrapped(message: str, error: BaseException) -> ConfigurationError:
    wrapped = ConfigurationError(f"{message}: {type(error).__name__}: {error}", advice="repair or remove the package")
    wrapped.__cause__ = error
    return wrapped


def _tried(entry: Entry) -> Entry:
    try:
        _load(entry)
    except ConfigurationError as error:
        return Entry(entry.name, entry.target, entry.origin, entry.install, error)
    return entry


def _load(entry: Entry) -> type:
    if isinstance(entry.target, type):
        return entry.target
    module, _, path = entry.target.partition(":")
    try:
        found: object = importlib.import_module(module)
        for attribute in path.split("."):
            found = getattr(found, attribute)
    except ModuleNotFoundError as error:
        raise _missing(entry, module, error) from error
    except (Exception, SystemExit) as error:
        raise ConfigurationError(
            f"the source {entry.name!r} ({entry.origin}) cannot be loaded from {entry.target}: "
            f"{type(error).__name__}: {error}",
            source=entry.name,
            advice="repair or update the package; the first lines of the chained error say where it failed",
        ) from error
    if not isinstance(found, type):
        raise ConfigurationError(
            f"the source {entry.name!r} ({entry.origin}) is no class: {entry.target} is {type(found).__name__}",
            source=entry.name,
            advice="let the entry point name the source class, as in package.module:Class",
        )
    return found


def _missing(entry: Entry, module: str, error: ModuleNotFoundError) -> ConfigurationError:
    """The error for a module that is not installed: something the source needs, or the source itself."""
    name = error.name or "a module"
    if module == name or module.startswith(f"{name}."):
        message = f"the source {entry.name!r} ({entry.origin}) should be in {module}, which does not exist"
        advice = "install the package again, in a version that has this source"
    else:
        message = f"the source {entry.name!r} ({entry.origin}) needs the module {name!r}, which is not installed"
        advice = entry.install or f"install the package that provides the module {name!r}"
    return ConfigurationError(message, source=entry.name, advice=advice)
