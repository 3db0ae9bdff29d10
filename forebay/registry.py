# SPDX-License-Identifier: Apache-2.0
"""Finds source classes by format name: registered in this process, built in, or offered by installed packages.

A source is imported on lookup, so a broken package affects only its own formats. If several classes claim a name, the
precedence is: registered in this process, the latest first; built in; entry points of the group `forebay.sources`, in
the order of their distributions' names.
"""

from __future__ import annotations

import difflib
import importlib
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from forebay.errors import ConfigurationError, explain_unknown_formats_with

if TYPE_CHECKING:
    from importlib.metadata import Distribution

GROUP: Final = "forebay.sources"
"""The entry-point group in which a package offers its sources: `orders = "shop.orders:Orders"`."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Registration:
    """A class that claims a format name.

    Args:
        name: The format name, in the case that its class or package declares.
        target: The class or its path, `package.module:Class`.
        origin: Where the claim comes from, for messages: "registered here", "the package shop 1.2".
        install: The command that installs the dependencies, for messages; empty if unknown.
    """

    name: str
    target: type | str
    origin: str = "built into forebay"
    install: str = ""

    @property
    def path(self) -> str:
        """The path of the class: `package.module:Class`."""
        if isinstance(self.target, str):
            return self.target
        return f"{self.target.__module__}:{self.target.__qualname__}"


BUILT_INS: Final = (
    Registration("forebay_files", "forebay.sources.files:FileSource", install='pip install "forebay[files]"'),
    Registration("forebay_kafka", "forebay.sources.kafka:KafkaSource", install='pip install "forebay[kafka]"'),
    Registration("forebay_hybrid", "forebay.sources.hybrid:HybridOptions"),
    Registration("forebay_rate", "forebay.sources.rate:RateSource"),
)
"""The sources that forebay contains."""


class Registry:
    """Finds source classes by format name, case-insensitively like Spark. Not thread-safe.

    Installed packages are scanned on first use, and again when a name is unknown.
    """

    def __init__(
        self, built_ins: Iterable[Registration] = BUILT_INS, *, group: str = GROUP, kind: str = "source"
    ) -> None:
        self._built_ins = tuple(built_ins)
        self._group = group
        self._kind = kind
        self._registered: list[Registration] = []
        self._installed: list[Registration] | None = None
        self._broken: list[str] = []
        self._warned: set[str] = set()

    def register_class(self, cls: type) -> str:
        """Register a class under its format name, with precedence over all others of this name; return the name.

        Called by `forebay.register` on the driver. It silently replaces a class of the same module
        and name, because a notebook cell that is run again defines its class again.

        Raises:
            ConfigurationError: The name is not a valid format name.
        """
        name = format_name(cls)
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", name):
            raise ConfigurationError(
                f"{name!r} is not a valid format name",
                source=cls.__name__,
                advice="use letters, digits, underscores, dots and hyphens, and begin with a letter or an underscore",
            )
        entry = Registration(name, cls, "registered here")
        key = (name.lower(), entry.path)
        self._registered = [entry, *(old for old in self._registered if (old.name.lower(), old.path) != key)]
        self._warn(self._claims()[name.lower()])
        return name

    def forget_class(self, name: str) -> None:
        """Remove the registered classes of a format name. Built-in and installed sources of this name stay."""
        self._registered = [entry for entry in self._registered if entry.name.lower() != name.lower()]

    def lookup(self, name: str) -> type:
        """Import and return the source class of a format name.

        Raises:
            ConfigurationError: No source has this name, or it cannot be loaded; the cause is chained.
        """
        claims = self._claims().get(name.lower())
        if claims is None:
            self.refresh()
            claims = self._claims().get(name.lower())
        if claims is None:
            raise self._unknown(name)
        self._warn(claims)
        return _load(claims[0], self._kind)

    def entries(self) -> tuple[Registration, ...]:
        """Return the entry that `lookup` uses for each name, sorted by name. No source is imported."""
        claims = self._claims()
        for rivals in claims.values():
            self._warn(rivals)
        return tuple(claims[key][0] for key in sorted(claims))

    def refresh(self) -> None:
        """Make the next call scan the installed packages again."""
        importlib.invalidate_caches()
        self._installed = None

    def not_found(self, name: str) -> ConfigurationError:
        """Return the error for a format that Spark did not find: misspelt, or not registered in the session."""
        known = next((entry.name for entry in self.entries() if entry.name.lower() == name.lower()), None)
        if known is None:
            return self._unknown(name)
        return ConfigurationError(
            f"this Spark session does not know the format {name!r}",
            source=known,
            advice="call forebay.register(spark) once in each session; for a class of your own, "
            "forebay.register(spark, ItsClass)",
        )

    def _claims(self) -> dict[str, list[Registration]]:
        """Return the entries by format name in lower case. The first entry of a name wins; each class occurs once."""
        if self._installed is None:
            self._installed, self._broken = _scan(self._group) if self._group else ([], [])
        claims: dict[str, list[Registration]] = {}
        for entry in (*self._registered, *self._built_ins, *self._installed):
            rivals = claims.setdefault(entry.name.lower(), [])
            if entry.path not in {rival.path for rival in rivals}:
                rivals.append(entry)
        return claims

    def _warn(self, claims: list[Registration]) -> None:
        """Log a warning for each entry that the first entry of the same name hides, once."""
        winner, *losers = claims
        for loser in losers:
            message = (
                f"two {self._kind}s are called {winner.name!r}: {winner.path} ({winner.origin}) is used, "
                f"{loser.path} ({loser.origin}) is not"
            )
            if message not in self._warned:
                self._warned.add(message)
                _log.warning("%s", message)

    def _unknown(self, name: str) -> ConfigurationError:
        known = {entry.name.lower(): entry.name for entry in self.entries()}
        near = difflib.get_close_matches(name.lower(), known, 1)
        meant = f" (did you mean {known[near[0]]!r}?)" if near else ""
        return ConfigurationError(
            f"no source has the name {name!r}{meant}" + "".join(f"; {problem}" for problem in self._broken),
            source=name,
            advice=f"use one of the known sources ({', '.join(known.values()) or 'none'}), register your own class by "
            "forebay.register(spark, ItsClass) (on the command line: give MODULE:Class), or install the package that "
            "provides the source",
        )


default_registry: Final = Registry()
"""The registry of this process."""
explain_unknown_formats_with(default_registry.not_found)


def format_name(cls: type) -> str:
    """Return the format name of a class: its own attribute `name`, or the class name in snake_case."""
    own = vars(cls).get("name")
    if isinstance(own, str) and own:
        return own
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", cls.__name__).lower()


def _scan(group: str) -> tuple[list[Registration], list[str]]:
    """Return the entries of the installed packages, sorted by package name, and a text for each unreadable package."""
    from importlib.metadata import distributions  # keeps `import forebay` fast

    by_distribution: dict[str, list[Registration]] = {}
    broken: list[str] = []
    for distribution in distributions():
        try:
            entries = _offered(distribution, group)
            if entries:
                by_distribution[re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()] = entries
        except Exception as error:  # noqa: BLE001 - a damaged package must not affect the others
            path = getattr(distribution, "_path", "an unknown path")
            broken.append(f"the entry points of the package at {path} cannot be read: {type(error).__name__}: {error}")
    return [entry for key in sorted(by_distribution) for entry in by_distribution[key]], broken


def _offered(distribution: Distribution, group: str) -> list[Registration]:
    points = [point for point in distribution.entry_points if point.group == group]
    if not points:
        return []
    name = distribution.metadata["Name"]
    if not name:
        raise ValueError("the metadata of the package has no name")
    # The first distribution of a name on sys.path hides the others, as for imports, even if it offers no sources.
    first = distribution.from_name(name)
    if first.read_text("entry_points.txt") != distribution.read_text("entry_points.txt"):
        return []
    origin = f"the package {name} {distribution.version}"
    entries = []
    for point in points:
        extras = ",".join(point.extras)
        install = f'pip install "{name}[{extras}]"' if extras else ""
        entries.append(Registration(point.name, point.value.partition("[")[0].strip(), origin, install))
    return entries


def _load(entry: Registration, kind: str) -> type:
    if isinstance(entry.target, type):
        return entry.target
    module, _, path = entry.target.partition(":")
    try:
        loaded: object = importlib.import_module(module)
        for attribute in path.split("."):
            loaded = getattr(loaded, attribute)
    except ModuleNotFoundError as error:
        raise _missing(f"the {kind} {entry.name!r} ({entry.origin})", entry, module, error) from error
    except (Exception, SystemExit) as error:
        raise ConfigurationError(
            f"the {kind} {entry.name!r} ({entry.origin}) cannot be loaded from {entry.target}: "
            f"{type(error).__name__}: {error}",
            source=entry.name,
            advice="repair or update the package; the chained error shows where it failed",
        ) from error
    if not isinstance(loaded, type):
        raise ConfigurationError(
            f"the {kind} {entry.name!r} ({entry.origin}) is not a class: {entry.target} is {type(loaded).__name__}",
            source=entry.name,
            advice=f"write the entry point as package.module:Class, where Class is the class of the {kind}",
        )
    return loaded


def _missing(what: str, entry: Registration, module: str, error: ModuleNotFoundError) -> ConfigurationError:
    """Return the error for a module that is not found: the module with the class, or a dependency of it."""
    name = error.name or "a module"
    if module == name or module.startswith(f"{name}."):
        message = f"{what} should be in {module}, which does not exist"
        advice = "install a version of the package that has this module"
    else:
        message = f"{what} needs the module {name!r}, which is not installed"
        advice = entry.install or f"install the package that provides the module {name!r}"
    return ConfigurationError(message, source=entry.name, advice=advice)
