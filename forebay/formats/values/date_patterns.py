# SPDX-License-Identifier: Apache-2.0
"""Converts Java's date patterns to regular expressions, and refuses patterns that these cannot express exactly."""

from __future__ import annotations

import re
from dataclasses import dataclass

from forebay.formats.values.datetimes import MICROS, days_of
from forebay.formats.values.zones import Zone, zone

_LONG_MONTHS = "january|february|march|april|may|june|july|august|september|october|november|december"
_MONTHS = [name[:3] for name in _LONG_MONTHS.split("|")]
_INT32, _INT64 = 2**31, 2**63
_NUMBER = {"M": "month", "d": "day", "H": "hour", "h": "hour12", "m": "minute", "s": "second"}
_COLON_OFFSET = 3 * "X"
"""Java's pattern letters for an offset with a colon: one letter means hours, two mean hours and minutes."""
_ZONES = {
    "X": r"Z|[+-]\d\d(?:\d\d)?",
    "XX": r"Z|[+-]\d{4}",
    _COLON_OFFSET: r"Z|[+-]\d\d:\d\d",
    "x": r"[+-]\d\d(?:\d\d)?",
    "xx": r"[+-]\d{4}",
    "xxx": r"[+-]\d\d:\d\d",
    "Z": r"[+-]\d{4}",
    "ZZ": r"[+-]\d{4}",
    "ZZZ": r"[+-]\d{4}",
}
_YEAR = r"\d{4}|\+\d{5,10}|-\d{4,10}"
_TOKENS = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z']", re.DOTALL)


@dataclass(frozen=True, slots=True)
class IsoForm:
    """An RE2 expression for texts of a date pattern, and the replacements that turn a match into ISO 8601 for Arrow."""

    expression: str
    day: str
    time: str
    zoned: bool


@dataclass(frozen=True, slots=True)
class DatePattern:
    """A compiled date pattern, which parses texts. Picklable."""

    text: str
    expression: re.Pattern[str]

    @staticmethod
    def of(text: str) -> DatePattern:
        """Compile a pattern.

        Raises:
            ValueError: The pattern is invalid, or has an unsupported part.
        """
        return DatePattern(text, re.compile(_expression(text), re.ASCII | re.IGNORECASE))

    @staticmethod
    def inside(text: str) -> DatePattern:
        """Compile a pattern for `timestamps_in`.

        Raises:
            ValueError: The pattern is invalid, has an unsupported part, or has no year.
        """
        expression = _expression(text, year=r"\d{4}")
        if "(?P<year>" not in expression:
            raise ValueError(f"the pattern {text!r} has no year (yyyy)")
        return DatePattern(text, re.compile(rf"(?<!\d)(?:{expression})(?!\d)", re.ASCII | re.IGNORECASE))

    def timestamps_in(self, text: str, session_zone: Zone) -> set[int]:
        """Return the timestamps of all matches in a longer text, such as a path, in µs since 1970.

        A match does not begin or end inside a number. A match without a zone is wall-clock time in `session_zone`.
        """
        found = (self.timestamp(match[0], session_zone) for match in self.expression.finditer(text))
        return {micros for micros in found if micros is not None}

    def date(self, text: str) -> int | None:
        """Parse a date; return days since 1970-01-01, or None if the text does not match."""
        wall, zone_name = self._wall(text)
        return None if wall is None or (zone_name and _zone(zone_name) is None) else wall // (86_400 * MICROS)

    def timestamp(self, text: str, session_zone: Zone) -> int | None:
        """Parse a timestamp; return µs since 1970-01-01 UTC, or None if the text does not match.

        A text without a zone is wall-clock time in `session_zone`.
        """
        wall, zone_name = self._wall(text)
        where = _zone(zone_name) if zone_name else session_zone
        return None if wall is None or where is None else _int64(wall - where.offset(wall // MICROS) * MICROS)

    def timestamp_ntz(self, text: str) -> int | None:
        """Parse a timestamp without a zone; return wall-clock µs since 1970-01-01T00:00:00.

        Returns None if the text does not match, or has a zone.
        """
        wall, zone_name = self._wall(text)
        return None if wall is None or zone_name else _int64(wall)

    def _wall(self, text: str) -> tuple[int | None, str | None]:
        found = self.expression.fullmatch(text)
        if found is None:
            return None, None
        parts = found.groupdict()
        return _wall(parts), parts.get("zone")

    def iso_forms(self) -> list[IsoForm]:
        """Return the forms by which a column of texts can be rewritten to ISO 8601 for Arrow.

        There is one form for each choice of optional parts. Returns [] if such a rewrite is not possible.
        """
        forms = [_iso_form(variant) for variant in _variants(self.text)]
        return [form for form in forms if form is not None]


def _zone(name: str) -> Zone | None:
    try:
        return zone(name.upper())
    except ValueError:
        return None


def _days(parts: dict[str, str | None]) -> int | None:
    name = (parts.get("month_name") or "").lower()
    month = _MONTHS.index(name[:3]) + 1 if name else int(parts.get("month") or 1)
    year = parts.get("year") or "1970"
    if year.startswith("-") and not int(year):
        return None
    days = days_of(int(year), month, int(parts.get("day") or 1))
    return days if days is not None and -_INT32 <= days < _INT32 else None


def _wall(parts: dict[str, str | None]) -> int | None:
    days = _days(parts)
    hour = int(parts.get("hour") or 0)
    if parts.get("hour12"):
        hour = int(parts["hour12"] or 0)
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if (parts.get("half") or "").lower() == "pm" else 0)
    minute, second = int(parts.get("minute") or 0), int(parts.get("second") or 0)
    if days is None or hour > 23 or minute > 59 or second > 59:
        return None
    micros = int((parts.get("fraction") or "").ljust(6, "0")[:6])
    return (days * 86_400 + hour * 3600 + minute * 60 + second) * MICROS + micros


def _int64(micros: int) -> int | None:
    return micros if -_INT64 <= micros < _INT64 else None


def _expression(text: str, year: str = _YEAR) -> str:
    """Return the regular expression of a pattern. Each field is a named group; the group of the year is `year`."""
    out: list[str] = []
    used: set[str] = set()
    depth = at = 0
    while at < len(text):
        found = _TOKENS.match(text, at)
        if found is None:
            raise ValueError(f"the pattern {text!r} has a quote that is not closed")
        at = found.end()
        depth += {"[": 1, "]": -1}.get(found[0], 0)
        if depth < 0:
            raise ValueError(f"the pattern {text!r} closes an optional part that was not opened")
        if found[2] is None:
            out.append(_literal(text, found))
        elif found[2] == "S" and text[: found.start()][-1:].isalpha():
            raise ValueError(f"the pattern {text!r} has digits directly before the fraction, which Spark cannot parse")
        else:
            out.append(_letter(text, found[0], used, following=text[at : at + 1], year=year))
    if depth:
        raise ValueError(f"the pattern {text!r} has an optional part that is not closed")
    if "hour12" in used and ("half" not in used or "hour" in used):
        raise ValueError(
            f"the pattern {text!r} has 'h' without 'a', or beside 'H', which cannot be read as Spark reads it"
        )
    return "".join(out)


def _literal(text: str, found: re.Match[str]) -> str:
    part = found[0]
    if part in "{}#":
        raise ValueError(f"the pattern {text!r} has the reserved character {part}")
    if part[0] == "'":
        return re.escape(found[1].replace("''", "'") or "'")
    return {"[": "(?:", "]": ")?"}.get(part) or re.escape(part)


def _letter(text: str, part: str, used: set[str], *, following: str, year: str) -> str:
    letter, count = part[0], len(part)
    if part == "yyyy":
        name, expression = "year", year
    elif part in ("MMM", "LLL"):
        name, expression = "month_name", "|".join(_MONTHS)
    elif part in ("MMMM", "LLLL"):
        name, expression = "month_name", _LONG_MONTHS
    elif letter in _NUMBER and count == 2:
        name, expression = _NUMBER[letter], r"\d\d"
    elif letter in _NUMBER and count == 1 and not (following.isalpha() or following == "["):
        name, expression = _NUMBER[letter], r"\d{1,2}"
    elif letter == "S" and count <= 9:
        name, expression = "fraction", rf"\d{{1,{count}}}"
    elif part == "a":
        name, expression = "half", "am|pm"
    elif part in _ZONES:
        name, expression = "zone", _ZONES[part]
    else:
        raise ValueError(
            f"the part {part!r} of the pattern {text!r} is not supported: it cannot be read exactly as Spark reads it"
        )
    if name in used:
        raise ValueError(f"the pattern {text!r} has the {name} twice")
    used.add(name)
    return f"(?P<{name}>{expression})"


_ISO_FIELDS = {
    "yyyy": r"([0-9]{4})",
    "MM": r"(0[1-9]|1[0-2])",
    "dd": r"(0[1-9]|[12][0-9]|3[01])",
    "HH": r"([01][0-9]|2[0-3])",
    "mm": r"([0-5][0-9])",
    "ss": r"([0-5][0-9])",
    _COLON_OFFSET: r"(Z|[+-](?:0[0-9]|1[0-7]):[0-5][0-9])",
}
_MAX_VARIANTS = 8


def _variants(text: str) -> list[str]:
    """Return the pattern once for each choice of its optional parts; [] if there are too many choices."""
    done: list[str] = []
    todo = [text]
    while todo:
        variant = todo.pop()
        inner = re.search(r"\[([^\[\]]*)\]", variant)
        if inner is None:
            done.append(variant)
        else:
            before, after = variant[: inner.start()], variant[inner.end() :]
            todo += [before + after, before + inner[1] + after]
        if len(done) + len(todo) > _MAX_VARIANTS:
            return []
    return done


def _iso_form(text: str) -> IsoForm | None:
    """Return the ISO form of a pattern without optional parts; None unless all its fields have a fixed width."""
    out: list[str] = []
    places: dict[str, str] = {}
    for found in _TOKENS.finditer(text):
        part = found[0]
        if part[0] == "'":
            out.append(re.escape(found[1].replace("''", "'") or "'"))
        elif not found[2]:
            out.append(re.escape(part))
        else:
            key = "S" if part[0] == "S" else part
            field = f"([0-9]{{1,{min(len(part), 6)}}})" if key == "S" else _ISO_FIELDS.get(part)
            if field is None or key in places:
                return None
            out.append(field)
            places[key] = rf"\{len(places) + 1}"
    day = "-".join(places.get(part, default) for part, default in (("yyyy", "1970"), ("MM", "01"), ("dd", "01")))
    time = ":".join(places.get(part, "00") for part in ("HH", "mm", "ss"))
    fraction = "." + places["S"] if "S" in places else ""
    zone = places.get(_COLON_OFFSET, "")
    return IsoForm(f"^{''.join(out)}$", day, f"{day} {time}{fraction}{zone}", _COLON_OFFSET in places)
