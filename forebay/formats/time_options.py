# SPDX-License-Identifier: Apache-2.0
"""The options about dates and times, which CSV and JSON have in common."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.formats.date_patterns import DatePattern
from forebay.formats.option_names import wrong_option
from forebay.values.zones import Zone, session_zone


@dataclass(frozen=True, kw_only=True)
class TimeOptions:
    """How to read dates and times. Each field but the first is Spark's option of the same name in camel case.

    Raises:
        ConfigurationError: There is no such zone, or a pattern cannot be honoured exactly.
    """

    file_format: str
    """The name of the format, for errors."""
    date_format: str | None
    timestamp_format: str | None
    timestamp_ntz_format: str | None
    enable_date_time_parsing_fallback: bool | None
    time_zone: str
    prefer_date: bool

    def __post_init__(self) -> None:
        _ = self.zone
        for name in ("date_format", "timestamp_format", "timestamp_ntz_format"):
            self.pattern(name)

    @property
    def zone(self) -> Zone:
        """The zone of timestamps that name none."""
        return session_zone(self.time_zone)

    def pattern(self, name: str) -> DatePattern | None:
        """The compiled pattern of one of the three format options, None where the option is not set."""
        text = getattr(self, name)
        if text is None:
            return None
        try:
            return DatePattern.of(text)
        except ValueError as error:
            raise wrong_option(self.file_format, name, str(error)) from None
