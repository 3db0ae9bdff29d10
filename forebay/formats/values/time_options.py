# SPDX-License-Identifier: Apache-2.0
"""The options of CSV and JSON for dates and times, and the error for an invalid option of these formats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from forebay.errors import ConfigurationError
from forebay.formats.values.date_patterns import DatePattern
from forebay.formats.values.zones import Zone, session_zone
from forebay.options import class_options, option


@dataclass(frozen=True, kw_only=True)
class TimeOptions:
    """The options of CSV and JSON for dates and times.

    Raises:
        ConfigurationError: A value is invalid.
    """

    format_name: ClassVar[str]
    """The name of the format in errors."""

    date_format: str | None = None
    timestamp_format: str | None = None
    timestamp_ntz_format: str | None = option(default=None, name="timestampNTZFormat")
    enable_date_time_parsing_fallback: bool | None = None
    time_zone: str = "UTC"

    def __post_init__(self) -> None:
        _ = self.zone
        for name in ("date_format", "timestamp_format", "timestamp_ntz_format"):
            self.pattern(name)

    @property
    def zone(self) -> Zone:
        """The time zone of timestamps that do not name one."""
        return session_zone(self.time_zone)

    def pattern(self, name: str) -> DatePattern | None:
        """Return the compiled pattern of an option such as `date_format`; None if the option is not set.

        `name` is the Python name of the option.
        """
        text = getattr(self, name)
        if text is None:
            return None
        try:
            return DatePattern.of(text)
        except ValueError as error:
            raise self._wrong(name, str(error)) from None

    def lenient(self, name: str) -> bool:
        """Return whether a value may have one of Spark's default forms if it does not match the option `name`."""
        fallback = self.enable_date_time_parsing_fallback
        return getattr(self, name) is None if fallback is None else fallback

    def _wrong(self, field: str, why: str) -> ConfigurationError:
        """Return the ConfigurationError for an option's value.

        `field` is the option's Python name, `why` the reason.
        """
        name = next(spec.name for spec in class_options(type(self)) if spec.python_name == field)
        return ConfigurationError(
            f"the option {name} of the {self.format_name} format is not valid: {why}",
            option=name,
            advice=f"change the option, or read with Spark's own {self.format_name} reader",
        )
