# SPDX-License-Identifier: Apache-2.0
"""The hybrid source as the format `forebay_hybrid`: two sources, each by options with a prefix."""

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
    """The hybrid source from text options: `first.format`, `first.path`, …, then `then.format`, `then.subscribe`, ….

    Three sources or more, and a switch function, need Python: `HybridSource`.
    """

    name: ClassVar[str] = HybridSource.name
    takes_s3a_settings: ClassVar[bool] = True

    first: dict[str, str] = option(prefix="first.", doc="options of the source to read first; first.format names it")
    then: dict[str, str] = option(prefix="then.", doc="options of the source to read next; then.format names it")
    common_columns: tuple[str, ...] | None = option(
        default=None, doc="the columns to read, if the two sources do not have the same"
    )
    time_zone: str | None = option(default=None, doc="the time zone of both sources; by default that of the session")
    storage: dict[str, Secret] = option(prefix="storage.", doc="the storage settings of both sources")

    def check(self) -> None:
        """Create the two sources.

        Raises:
            ConfigurationError: A format is missing or unknown, or an option of a source is wrong.
        """
        legs = [self._leg("first", self.first), self._leg("then", self.then)]
        self._set(_legs=checked_legs(legs), _switch=None, _columns=self.common_columns)

    def _leg(self, prefix: str, given: Mapping[str, str]) -> Source:
        """Create a source from its options, with the settings that are common to both."""
        named = [key for key in given if key.lower() == _FORMAT]
        if not named:
            raise ConfigurationError(
                f"the source of the options {prefix}.* has no format",
                source=self.name,
                option=f"{prefix}.{_FORMAT}",
                advice=f'add .option("{prefix}.{_FORMAT}", "forebay_files"), or another installed format',
            )
        cls = default_registry.lookup(given[named[0]])
        if not issubclass(cls, Source) or issubclass(cls, HybridSource):
            raise ConfigurationError(
                f"{given[named[0]]} cannot be a part of a hybrid",
                source=self.name,
                option=f"{prefix}.{_FORMAT}",
                advice="name other formats; forebay.HybridSource in Python takes any number of sources",
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
