# SPDX-License-Identifier: Apache-2.0
"""Converts columns of texts to dates and timestamps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from forebay.formats.values.date_patterns import DatePattern, IsoForm
from forebay.formats.values.datetimes import MICROS, parse_date, parse_timestamp, parse_timestamp_ntz
from forebay.formats.values.text_columns import Converted, Converter, Plain, by_value, cast_or_parse, token_view
from forebay.formats.values.time_options import TimeOptions
from forebay.formats.values.zones import Zone

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


def date_converter(options: TimeOptions, *, prefer_date: bool = False) -> Converter:
    """Return the converter for a column of dates. `prefer_date` is the option `preferDate` of CSV."""
    pattern = options.pattern("date_format")
    if pattern is None and prefer_date and options.enable_date_time_parsing_fallback is False:
        pattern = DatePattern.of("yyyy-MM-dd")
    parse = _first_of(
        parse_date if pattern is None else pattern.date,
        (lambda text: parse_date(text.replace("GMT", ""))) if options.lenient("date_format") else None,
    )
    if pattern is not None and pattern.text != "yyyy-MM-dd":
        return _by_pattern(pa.date32(), pattern, parse, options.zone)
    plains: list[Plain] = [(f"^{_DAY}$", lambda plain: plain.cast(pa.date32()))]
    return lambda tokens: cast_or_parse(tokens, pa.date32(), parse, plains)


def timestamp_converter(wanted: pa.TimestampType, options: TimeOptions) -> Converter:
    """Return the converter for a column of timestamps: instants if the type has a zone, else wall-clock times."""
    instants = wanted.tz is not None
    name = "timestamp_format" if instants else "timestamp_ntz_format"
    pattern, session = options.pattern(name), options.zone
    read: Callable[[str], int | None]
    if instants:
        read = partial(parse_timestamp, session_zone=session)
        main = read if pattern is None else partial(pattern.timestamp, session_zone=session)
        parse = _first_of(main, (lambda text: read(text.replace("GMT", ""))) if options.lenient(name) else None)
    else:
        parse = parse_timestamp_ntz if pattern is None else pattern.timestamp_ntz

    def wall(tokens: pa.Array) -> pa.Array:
        values = tokens.cast(_NAIVE)
        return localized(values, session).cast(wanted) if instants else values

    if pattern is not None:
        return _by_pattern(wanted, pattern, parse, session)
    return _Timestamps(wanted, wall, parse)


class _Timestamps:
    """Converts columns of timestamps in Spark's default forms. Remembers whether the last column had zones."""

    def __init__(
        self,
        wanted: pa.TimestampType,
        wall: Callable[[pa.Array], pa.Array],
        parse: Callable[[str], int | None],
    ) -> None:
        self._wanted = wanted
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
        if self._wanted.tz is not None:
            plains.append((f"^{_DAY}{_TIME}{_OFFSET}$", lambda plain: plain.cast(_UTC).cast(self._wanted)))
        return by_value(tokens, self._wanted, self._parse, plains)

    def _all_wall(self, tokens: pa.Array) -> pa.Array | None:
        try:
            # A failed cast of a few values is cheaper: Arrow writes an error for every value.
            self._wall(tokens[:_TRIED_FIRST])
            return self._wall(tokens)
        except pa.ArrowInvalid:
            return None

    def _all_zoned(self, tokens: pa.Array) -> pa.Array | None:
        if self._wanted.tz is None or not _surely_zoned(tokens):
            return None
        try:
            return tokens.cast(_UTC).cast(self._wanted)
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


def _first_of(
    main: Callable[[str], int | None], fallback: Callable[[str], int | None] | None
) -> Callable[[str], int | None]:
    if fallback is None:
        return main

    def parse(text: str) -> int | None:
        value = main(text)
        return fallback(text) if value is None else value

    return parse


def _by_pattern(
    wanted: pa.DataType, pattern: DatePattern, parse: Callable[[str], int | None], session: Zone
) -> Converter:
    """Return the converter for a user's pattern.

    If the pattern allows it, a column is rewritten to ISO 8601 in bulk.
    """
    forms = pattern.iso_forms()
    if pa.types.is_timestamp(wanted) and wanted.tz is None:
        # As in Spark and in `parse`, a time with a zone is malformed for a type without zones.
        forms = [form for form in forms if not form.zoned]

    def convert(tokens: pa.Array) -> Converted:
        for form in forms:
            if pc.all(pc.match_substring_regex(tokens, form.expression)).as_py() is not False:
                try:
                    return _cast_iso(form, wanted, session, tokens), ()
                except pa.ArrowInvalid:  # a day that the month does not have
                    break
        # The cast cannot fail for days up to 28.
        plains: list[Plain] = [
            (
                form.expression.replace("(0[1-9]|[12][0-9]|3[01])", "(0[1-9]|1[0-9]|2[0-8])"),
                partial(_cast_iso, form, wanted, session),
            )
            for form in forms
        ]
        return by_value(tokens, wanted, parse, plains)

    return convert


def _cast_iso(form: IsoForm, wanted: pa.DataType, session: Zone, tokens: pa.Array) -> pa.Array:
    if pa.types.is_date32(wanted):
        return pc.replace_substring_regex(tokens, form.expression, form.day).cast(wanted)
    texts = pc.replace_substring_regex(tokens, form.expression, form.time)
    if not isinstance(wanted, pa.TimestampType) or wanted.tz is None:
        return texts.cast(_NAIVE)
    return (texts.cast(_UTC) if form.zoned else localized(texts.cast(_NAIVE), session)).cast(wanted)


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
