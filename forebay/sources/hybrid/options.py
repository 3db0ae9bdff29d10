# SPDX-License-Identifier: Apache-2.0
"""The format `forebay_hybrid`: a hybrid of two sources, whose options have the prefixes `first.` and `then.`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from forebay.errors import ConfigurationError
from forebay.framework.source import Source
from forebay.options import Secret, class_options, given_options, option
from forebay.registry import default_registry
from forebay.sources.hybrid.legs import checked_legs
from forebay.sources.hybrid.source import HybridSource

_FORMAT = "format"


class HybridOptions(HybridSource):
    """A hybrid of two sources, set by text options: `first.format`, `first.path`, … and `then.format`, ….

    For three sources or more, or for a switch function, use `HybridSource` in Python.
    """

    name: ClassVar[str] = HybridSource.name
    takes_s3a_settings: ClassVar[bool] = True

    first: dict[str, str] = option(prefix="first.", doc="options of the source to read first; first.format names it")
    then: dict[str, str] = option(prefix="then.", doc="options of the source to read next; then.format names it")
    common_columns: tuple[str, ...] | None = option(
        default=None, doc="the columns to read, if the two sources have different columns"
    )
    time_zone: str | None = option(default=None, doc="the time zone of both sources; by default the session's")
    storage: dict[str, Secret] = option(prefix="storage.", doc="the storage settings of both sources")

    def check(self) -> None:
        """Create the two sources from the options.

        Raises:
            ConfigurationError: A format is missing or unknown, or an option of a source is wrong.
        """
        legs = [self._leg("first", self.first), self._leg("then", self.then)]
        self._set(_legs=checked_legs(legs), _switch=None, _columns=self.common_columns)

    def _leg(self, prefix: str, given: Mapping[str, str]) -> Source:
        """Create a source from the options with `prefix`; `timeZone` and `storage.*` are its defaults."""
        named = [key for key in given if key.lower() == _FORMAT]
        if not named:
            raise ConfigurationError(
                f"the option {prefix}.{_FORMAT} is not set, so the source of the options {prefix}.* is unknown",
                source=self.name,
                option=f"{prefix}.{_FORMAT}",
                advice=f'add .option("{prefix}.{_FORMAT}", "forebay_files"), or another installed format',
            )
        cls = default_registry.lookup(given[named[0]])
        if not issubclass(cls, Source) or issubclass(cls, HybridSource):
            raise ConfigurationError(
                f"the format {given[named[0]]} cannot be a part of a hybrid",
                source=self.name,
                option=f"{prefix}.{_FORMAT}",
                advice=f"set {prefix}.{_FORMAT} to a format other than {self.name}; for more than two sources, use "
                "forebay.HybridSource in Python",
            )
        own = class_options(cls)
        options: dict[str, object] = {key: value for key, value in given.items() if key not in named}
        present = given_options(own, options)
        for spec in own:
            common = getattr(self, spec.python_name) if spec.python_name in ("time_zone", "storage") else None
            if common and spec.python_name not in present:
                options |= (
                    {f"storage.{key}": value for key, value in common.items()} if spec.prefix else {spec.name: common}
                )
        return cls.from_options(options)
