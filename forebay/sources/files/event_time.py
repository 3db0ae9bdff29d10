# SPDX-License-Identifier: Apache-2.0
"""Parses the option `fileEventTime`, which says where the event time of a file comes from."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from forebay.errors import ConfigurationError
from forebay.formats.values.time_columns import DatePattern

Kind = Literal["footer", "partition", "path", "modified"]

OPTION = "fileEventTime"


class FileEventTime(NamedTuple):
    """A parsed value of the option `fileEventTime`: where the event time of a file comes from.

    Attributes:
        kind: `footer`, `partition`, `path` or `modified`.
        argument: The column for `footer` and `partition`, the date pattern for `path`; empty for `modified`.
    """

    kind: Kind
    argument: str = ""

    def pattern(self) -> DatePattern:
        """Return the compiled date pattern. Only for the kind `path`."""
        return DatePattern.inside(self.argument)


def parse_event_time(text: str, source: str) -> FileEventTime:
    """Parse a value of the option `fileEventTime`.

    Args:
        text: The value.
        source: The format name, for errors.

    Raises:
        ConfigurationError: The value or its date pattern is invalid.
    """
    name, _, argument = text.strip().partition(":")
    kind = next((known_kind for known_kind in get_args(Kind) if known_kind == name.strip().lower()), None)
    argument = argument.strip()
    if kind is None or bool(argument) == (kind == "modified"):
        raise ConfigurationError(
            f"the option fileEventTime has the invalid value {text!r}",
            source=source,
            option=OPTION,
            advice="set fileEventTime to footer:<column> (Parquet), partition:<column>, path:<pattern> such as "
            "path:yyyy/MM/dd/HH, or modified",
        )
    event_time = FileEventTime(kind, argument)
    if kind == "path":
        try:
            event_time.pattern()
        except ValueError as error:
            raise ConfigurationError(
                f"fileEventTime: {error}",
                source=source,
                option=OPTION,
                advice="use Spark's letters for dates and times, with other letters in single quotes: "
                "path:'day='yyyy-MM-dd",
            ) from None
    return event_time
