# SPDX-License-Identifier: Apache-2.0
"""Converts columns of texts to dates and timestamps."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import ConfigurationError
from forebay.formats.values.columns import Converted, Converter, Plain, by_value, cast_or_parse, token_view
from forebay.formats.values.dates import (
    MICROS,
    Zone,
    days_of,
    parse_date,
    parse_timestamp,
    parse_timestamp_ntz,
    session_zone,
    zone,
)
from forebay.options import class_options, option

# -- Converts Java's date patterns to regular expressions, and refuses patterns that these cannot express exactly.


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
        times = (self.timestamp(match[0], session_zone) for match in self.expression.finditer(text))
        return {micros for micros in times if micros is not None}

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
        match = self.expression.fullmatch(text)
        if match is None:
            return None, None
        parts = match.groupdict()
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
        match = _TOKENS.match(text, at)
        if match is None:
            raise ValueError(f"the pattern {text!r} has a quote that is not closed")
        at = match.end()
        depth += {"[": 1, "]": -1}.get(match[0], 0)
        if depth < 0:
            raise ValueError(f"the pattern {text!r} closes an optional part that was not opened")
        if match[2] is None:
            out.append(_literal(text, match))
        elif match[2] == "S" and text[: match.start()][-1:].isalpha():
            raise ValueError(f"the pattern {text!r} has digits directly before the fraction, which Spark cannot parse")
        else:
            out.append(_letter(text, match[0], used, following=text[at : at + 1], year=year))
    if depth:
        raise ValueError(f"the pattern {text!r} has an optional part that is not closed")
    if "hour12" in used and ("half" not in used or "hour" in used):
        raise ValueError(
            f"the pattern {text!r} has 'h' without 'a', or beside 'H', which cannot be read as Spark reads it"
        )
    return "".join(out)


def _literal(text: str, match: re.Match[str]) -> str:
    part = match[0]
    if part in "{}#":
        raise ValueError(f"the pattern {text!r} has the reserved character {part}")
    if part[0] == "'":
        return re.escape(match[1].replace("''", "'") or "'")
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
    for match in _TOKENS.finditer(text):
        part = match[0]
        if part[0] == "'":
            out.append(re.escape(match[1].replace("''", "'") or "'"))
        elif not match[2]:
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


# -- The options of CSV and JSON for dates and times, and the error for an invalid option of these formats.


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


_NAIVE = pa.timestamp("us")
_UTC = pa.timestamp("us", tz="UTC")
_DAY = r"[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"
_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
_TIME = rf"[ T]{_CLOCK}(?:\.[0-9]{{1,6}})?"
_OFFSET = r"(?:Z|[+-](?:0[0-9]|1[0-7]):[0-5][0-9])"
_STEP = 12 * 3600
_MAX_STEPS = 120
_TRIED_FIRST = 16
_ARROW_RULES_END = 2_114_380_800 * MICROS  # 2037; Arrow has no rules for later years


def date_parser(options: TimeOptions, pattern: DatePattern | None = None) -> Callable[[str], int | None]:
    """Return the function that parses a date to days since 1970-01-01, or to None.

    `pattern` replaces the option `dateFormat`.
    """
    pattern = options.pattern("date_format") if pattern is None else pattern
    read = parse_date if pattern is None else pattern.date
    return _or_without_gmt(read, parse_date) if options.lenient("date_format") else read


def timestamp_parser(options: TimeOptions, *, instants: bool) -> Callable[[str], int | None]:
    """Return the function that parses a timestamp to µs since 1970, or to None. Without `instants` it reads no zone."""
    name = "timestamp_format" if instants else "timestamp_ntz_format"
    pattern, session = options.pattern(name), options.zone
    if not instants:
        return parse_timestamp_ntz if pattern is None else pattern.timestamp_ntz
    by_default = partial(parse_timestamp, session_zone=session)
    read = by_default if pattern is None else partial(pattern.timestamp, session_zone=session)
    return _or_without_gmt(read, by_default) if options.lenient(name) else read


def _or_without_gmt(
    read: Callable[[str], int | None], by_default: Callable[[str], int | None]
) -> Callable[[str], int | None]:
    """Return `read`, and for a text that it does not read `by_default` of the text without `GMT`, as in Spark."""

    def parse(text: str) -> int | None:
        value = read(text)
        return by_default(text.replace("GMT", "")) if value is None else value

    return parse


def date_converter(options: TimeOptions, *, prefer_date: bool = False) -> Converter:
    """Return the converter for a column of dates. `prefer_date` is the option `preferDate` of CSV."""
    pattern = options.pattern("date_format")
    if pattern is None and prefer_date and options.enable_date_time_parsing_fallback is False:
        pattern = DatePattern.of("yyyy-MM-dd")
    parse = date_parser(options, pattern)
    if pattern is not None and pattern.text != "yyyy-MM-dd":
        return _by_pattern(pa.date32(), pattern, parse, options.zone)
    plains: list[Plain] = [(f"^{_DAY}$", lambda plain: plain.cast(pa.date32()))]
    return lambda tokens: cast_or_parse(tokens, pa.date32(), parse, plains)


def timestamp_converter(data_type: pa.TimestampType, options: TimeOptions) -> Converter:
    """Return the converter for a column of timestamps: instants if the type has a zone, else wall-clock times."""
    instants = data_type.tz is not None
    parse = timestamp_parser(options, instants=instants)
    pattern, session = options.pattern("timestamp_format" if instants else "timestamp_ntz_format"), options.zone
    if pattern is not None:
        return _by_pattern(data_type, pattern, parse, session)

    def wall(tokens: pa.Array) -> pa.Array:
        values = tokens.cast(_NAIVE)
        return localized(values, session).cast(data_type) if instants else values

    return _Timestamps(data_type, wall, parse)


class _Timestamps:
    """Converts columns of timestamps in Spark's default forms. Remembers whether the last column had zones."""

    def __init__(
        self,
        data_type: pa.TimestampType,
        wall: Callable[[pa.Array], pa.Array],
        parse: Callable[[str], int | None],
    ) -> None:
        self._type = data_type
        self._wall = wall
        self._parse = parse
        self._zoned = False

    def __call__(self, tokens: pa.Array) -> Converted:
        ways = [self._all_zoned, self._all_wall] if self._zoned else [self._all_wall, self._all_zoned]
        for way in ways:
            values = way(tokens)
            if values is not None:
                self._zoned = way == self._all_zoned
                return values, ()
        plains: list[Plain] = [
            (f"^{_DAY}(?:{_TIME})?$", self._wall),
            # Spark truncates to microseconds.
            (rf"^{_DAY}[ T]{_CLOCK}\.[0-9]{{7,}}$", lambda plain: self._wall(pc.utf8_slice_codeunits(plain, 0, 26))),
        ]
        if self._type.tz is not None:
            plains.append((f"^{_DAY}{_TIME}{_OFFSET}$", lambda plain: plain.cast(_UTC).cast(self._type)))
        return by_value(tokens, self._type, self._parse, plains)

    def _all_wall(self, tokens: pa.Array) -> pa.Array | None:
        try:
            # A failed cast of a few values is cheaper: Arrow writes an error for every value.
            self._wall(tokens[:_TRIED_FIRST])
            return self._wall(tokens)
        except pa.ArrowInvalid:
            return None

    def _all_zoned(self, tokens: pa.Array) -> pa.Array | None:
        if self._type.tz is None or not _surely_zoned(tokens):
            return None
        try:
            return tokens.cast(_UTC).cast(self._type)
        except pa.ArrowInvalid:
            return None


def _surely_zoned(tokens: pa.Array) -> bool:
    """Return whether every token is a timestamp with seconds and with a zone that Spark accepts."""
    if not len(tokens) or tokens.null_count == len(tokens):
        return False
    sizes = pc.min_max(pc.binary_length(tokens)).as_py()
    size = sizes["min"]
    if size == sizes["max"] and not tokens.null_count and size >= 20:
        data, count = token_view(tokens), len(tokens)
        if data[size - 1 :: size].tobytes() == b"Z" * count and data[16::size].tobytes() == b":" * count:
            return True
    return pc.all(pc.match_substring_regex(tokens, rf"^.{{10}}[ T].{{5}}:.*{_OFFSET}$")).as_py() is True


def _by_pattern(
    data_type: pa.DataType, pattern: DatePattern, parse: Callable[[str], int | None], session: Zone
) -> Converter:
    """Return the converter for a user's pattern.

    If the pattern allows it, a column is rewritten to ISO 8601 in bulk.
    """
    forms = pattern.iso_forms()
    if pa.types.is_timestamp(data_type) and data_type.tz is None:
        # As in Spark and in `parse`, a time with a zone is malformed for a type without zones.
        forms = [form for form in forms if not form.zoned]

    def convert(tokens: pa.Array) -> Converted:
        for form in forms:
            if pc.all(pc.match_substring_regex(tokens, form.expression)).as_py() is not False:
                try:
                    return _cast_iso(form, data_type, session, tokens), ()
                except pa.ArrowInvalid:  # a day that the month does not have
                    break
        # The cast cannot fail for days up to 28.
        plains: list[Plain] = [
            (
                form.expression.replace("(0[1-9]|[12][0-9]|3[01])", "(0[1-9]|1[0-9]|2[0-8])"),
                partial(_cast_iso, form, data_type, session),
            )
            for form in forms
        ]
        return by_value(tokens, data_type, parse, plains)

    return convert


def _cast_iso(form: IsoForm, data_type: pa.DataType, session: Zone, tokens: pa.Array) -> pa.Array:
    if pa.types.is_date32(data_type):
        return pc.replace_substring_regex(tokens, form.expression, form.day).cast(data_type)
    texts = pc.replace_substring_regex(tokens, form.expression, form.time)
    if not isinstance(data_type, pa.TimestampType) or data_type.tz is None:
        return texts.cast(_NAIVE)
    return (texts.cast(_UTC) if form.zoned else localized(texts.cast(_NAIVE), session)).cast(data_type)


def localized(values: pa.Array, zone: Zone) -> pa.Array:
    """Convert wall-clock times in a zone to instants, by java.time's rules for gaps and overlaps."""
    offset = zone.fixed if zone.region is None else _only_offset(values, zone)
    if offset is None:
        return _shifted_by_rules(values, zone)
    if offset:
        values = pc.subtract(values.view(pa.int64()), pa.scalar(offset * MICROS, pa.int64()))
    return values.view(_UTC)


def _only_offset(values: pa.Array, zone: Zone) -> int | None:
    """Return the offset of a zone from UTC in seconds that holds for all values.

    Returns None if there are several, or if the values are far apart.
    """
    ends = pc.min_max(values.view(pa.int64())).as_py()
    if ends["min"] is None:
        return 0
    low, high = ends["min"] // MICROS, ends["max"] // MICROS
    if high - low > _STEP * _MAX_STEPS:
        return None
    offset = zone.offset(low)
    same = all(zone.offset(wall) == offset for wall in (*range(low, high, _STEP), high))
    return offset if same else None


def _shifted_by_rules(values: pa.Array, zone: Zone) -> pa.Array:
    late = pc.fill_null(pc.greater_equal(values, pa.scalar(_ARROW_RULES_END, _NAIVE)), False)
    try:
        key = zone.region.key if zone.region is not None else "UTC"
        early = pc.if_else(late, pa.scalar(None, _NAIVE), values)
        shifted = pc.assume_timezone(early, key, ambiguous="earliest", nonexistent="raise").cast(_UTC)
    except pa.ArrowInvalid:  # a time in a gap, or no time zone database for Arrow
        return _shifted_one_by_one(values, zone)
    if late.true_count:
        shifted = pc.replace_with_mask(shifted, late, _shifted_one_by_one(values.filter(late), zone))
    return shifted


def _shifted_one_by_one(values: pa.Array, zone: Zone) -> pa.Array:
    walls = values.view(pa.int64()).to_pylist()
    offsets = {second: zone.offset(second) for second in {wall // MICROS for wall in walls if wall is not None}}
    shifted = [None if wall is None else wall - offsets[wall // MICROS] * MICROS for wall in walls]
    return pa.array(shifted, pa.int64()).view(_UTC)
