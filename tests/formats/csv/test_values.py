# SPDX-License-Identifier: Apache-2.0
"""Values of single CSV fields, in bulk and one by one: both ways give the same."""

from __future__ import annotations

import datetime as dt
import math
import random
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.formats.csv.format import converter
from forebay.formats.csv.options import CsvOptions
from forebay.formats.values.dates import parse_timestamp, zone
from forebay.formats.values.numbers import parse_bool, parse_decimal, parse_double, parse_float, parse_int
from forebay.formats.values.time_columns import DatePattern, _Timestamps, localized

EPOCH = dt.datetime(1970, 1, 1)
INSTANT = pa.timestamp("us", tz="UTC")


def converted(kind: pa.DataType, tokens: list[str | None], **options) -> tuple[list, list[int]]:
    values, bad = converter(pa.field("x", kind), CsvOptions(**options))(pa.array(tokens, pa.string()))
    assert values.type == kind
    if pa.types.is_temporal(kind):  # Python's own calendar ends with the year 9999
        values = values.view(pa.int32() if kind == pa.date32() else pa.int64())
    return values.to_pylist(), list(bad)


def alone(kind: pa.DataType, tokens: list[str | None], **options) -> tuple[list, list[int]]:
    """The same, one column for each token, so that no other token changes the conversion."""
    found = [converted(kind, [token], **options) for token in tokens]
    return [values[0] for values, _ in found], [row for row, (_, bad) in enumerate(found) if bad]


TOKENS = {
    pa.int8(): st.one_of(st.integers(-200, 200).map(str), st.sampled_from(["+1", "0x1F", " 1", "1.0", "", "1e1", "٣"])),
    pa.int64(): st.one_of(st.integers(-(2**65), 2**65).map(str), st.sampled_from(["+1", "-", "1_0", "007", "--1"])),
    pa.float64(): st.one_of(
        st.floats().map(repr), st.sampled_from(["1f", " 1 ", "NaN", "Inf", "inf", "0x1p3", "1e400", ".5", "5.", "1_0"])
    ),
    pa.float32(): st.one_of(st.floats(width=32).map(repr), st.sampled_from(["1e39", "16777217", "1e-50", "1D", "+2"])),
    pa.bool_(): st.sampled_from(["true", "false", "TRUE", "fAlse", "1", "0", "t", " true", "yes"]),
    pa.decimal128(6, 2): st.one_of(
        st.decimals(-20_000, 20_000, places=3).map(str),
        st.sampled_from(["1e2", "+5", ".5", "5.", "1,000", "1e400", "9999.995", "9999.994", "x", " 1", "-0"]),
    ),
    pa.date32(): st.one_of(
        st.dates().map(str), st.sampled_from(["2020-1-2", "2020", "2020-02-30", "2020-01-02 x", "12345-01-01"])
    ),
    pa.timestamp("us"): st.one_of(
        st.datetimes().map(str),
        st.datetimes().map(dt.datetime.isoformat),
        st.sampled_from(["2020-01-02", "2020-01-02 03", "2020-01-02 03:04:05.1234567", "2020-01-02 03:04:05Z", "x"]),
    ),
    INSTANT: st.one_of(
        st.datetimes(dt.datetime(1800, 1, 1)).map(str),
        st.datetimes(dt.datetime(1800, 1, 1)).map(lambda time: time.isoformat() + "Z"),
        st.datetimes(dt.datetime(1800, 1, 1)).map(lambda time: time.isoformat() + "+01:30"),
        st.sampled_from(
            ["2024-03-10 02:30:00", "2024-11-03 01:30:00", "2020-01-02 03:04Z", "2020-01-02T03:04:05-23:00"]
        ),
    ),
}


@pytest.mark.parametrize("kind", TOKENS, ids=str)
@given(st.data())
def test_a_column_holds_what_each_token_gives_alone(kind, data) -> None:
    tokens = data.draw(st.lists(st.one_of(st.none(), TOKENS[kind]), max_size=8))
    options = {"time_zone": data.draw(st.sampled_from(["UTC", "America/New_York", "+05:30"]))}
    together, bad = converted(kind, tokens, **options)
    single, single_bad = alone(kind, tokens, **options)
    assert bad == single_bad
    assert list(map(repr, together)) == list(map(repr, single))


@pytest.mark.parametrize(
    ("pattern", "tokens"),
    [
        ("dd/MM/yyyy", ["31/01/2020", "30/02/2020", "1/1/2020", "28/02/2021", "01/01/20200"]),
        ("yyyyMMdd", ["20200131", "20200231", "2020-01-31", "20210228"]),
        ("yyyy-MM-dd[ HH:mm]", ["2020-01-31", "2020-01-31 23:59", "2020-01-31 24:00", "2020-01-31 "]),
    ],
)
def test_dates_by_pattern_are_the_same_in_bulk_and_alone(pattern, tokens) -> None:
    expected = [DatePattern.of(pattern).date(token) for token in tokens]
    values, bad = converted(pa.date32(), tokens, date_format=pattern)
    assert values == expected
    assert bad == [row for row, day in enumerate(expected) if day is None]
    good = [token for token, day in zip(tokens, expected, strict=True) if day is not None]
    assert converted(pa.date32(), good, date_format=pattern)[1] == []


@pytest.mark.parametrize(
    "pattern",
    [
        "yyyy-MM-dd'T'HH:mm:ss[.SSS][XXX]",
        "dd.MM.yyyy HH:mm",
        "yyyyMMddHHmmss",
        "MM/dd/yyyy hh:mm a",
        "dd MMM yyyy HH:mm:ss",
    ],
)
@given(times=st.lists(st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1)), max_size=5))
def test_timestamps_by_pattern_are_the_same_in_bulk_and_alone(pattern, times) -> None:
    codes = {
        "yyyy": "%Y",
        "MMM": "%b",
        "MM": "%m",
        "dd": "%d",
        "HH": "%H",
        "hh": "%I",
        "mm": "%M",
        "ss": "%S",
        " a": " %p",
    }
    form = pattern.replace("'T'", "T").replace("[.SSS][XXX]", "")
    for letters, code in codes.items():
        form = form.replace(letters, code)
    tokens = [time.strftime(form) for time in times]
    compiled, where = DatePattern.of(pattern), zone("Europe/Berlin")
    expected = [compiled.timestamp(token, where) for token in tokens]
    assert None not in expected
    assert converted(INSTANT, tokens, timestamp_format=pattern, time_zone="Europe/Berlin") == (expected, [])


@pytest.mark.parametrize("then", ["", "Z", "+01:30", "x", None])
@pytest.mark.parametrize("first", ["", "Z", "+01:30", "x", None])
@pytest.mark.parametrize("kind", [INSTANT, pa.timestamp("us")], ids=str)
def test_another_shape_may_begin_late_in_a_column(kind, first, then) -> None:
    ends = [first] * 20 + [then] * 20
    tokens = [None if end is None else f"2024-01-02T03:04:{n:02}{end}" for n, end in enumerate(ends)]
    assert converted(kind, tokens) == alone(kind, tokens)


def test_a_few_tokens_show_whether_there_are_zones() -> None:
    """Arrow writes an error for every value that it cannot cast, which takes longer than to cast them all."""
    tried = []

    def wall(tokens: pa.Array) -> pa.Array:
        tried.append(len(tokens))
        return tokens.cast(pa.timestamp("us")).cast(INSTANT)

    read = _Timestamps(INSTANT, wall, parse_timestamp)
    for end, sizes in [("Z", [16]), ("Z", []), ("", [16, 1000]), ("", [16, 1000])]:
        tried.clear()
        values, bad = read(pa.array(["2024-01-02T03:04:05" + end] * 1000))
        assert (len(values), tried, bad) == (1000, sizes, ())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("+7", 7),
        ("-128", -128),
        ("128", None),
        ("", None),
        ("-", None),
        ("٣", 3),
        ("１２", 12),
        ("𝟏", None),
        ("1 ", None),
    ],
)
def test_integers_are_java_s(text, value) -> None:
    assert parse_int(text, 8) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (" 1.5\t", 1.5), ("1d", 1.0), ("1F", 1.0), ("-.5e1", -5.0), ("Infinity", math.inf), ("-Infinity", -math.inf),
        ("+NaN", math.nan), ("0x1.8p1", 3.0), ("1e999", math.inf), ("inf", None), ("nan", None), ("1e", None),
        ("", None),
        ("0x10", None), ("1__0", None), ("١", None), ("-0x1p9999", -math.inf),
    ],
)  # fmt: skip
def test_doubles_are_java_s(text, value) -> None:
    assert repr(parse_double(text)).replace("-nan", "nan") == repr(value)


def test_floats_are_rounded_once() -> None:
    halfway = "1.00000017881393432617187499"
    assert parse_float(halfway) == 1.00000011920928955078125
    assert parse_float("1e39f") == math.inf
    assert parse_float("0x1p130") == math.inf
    assert parse_float("0x1p3") == 8.0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.005", "1.01"), ("-1.005", "-1.01"), ("1,234.5", "1234.50"), ("1e3", "1000.00"), ("9999.995", None),
        ("1e99999999999", None), ("1e-99999", "0.00"), ("0e500", "0.00"), (".", None), ("1.", "1.00"), ("٣", "3.00"),
        ("--1", None), ("1e", None),
    ],
)  # fmt: skip
def test_decimals_are_rounded_half_up_and_must_fit(text, value) -> None:
    assert parse_decimal(text, 6, 2) == (None if value is None else Decimal(value))


@pytest.mark.parametrize("sign", ["", "-"])
@pytest.mark.parametrize("digits", [300, 4301, 100_000])
def test_an_exponent_of_any_length_is_read_or_no_value(sign, digits) -> None:
    assert parse_decimal(f"1e{sign}{'9' * digits}", 10, 2) is None
    assert parse_decimal(f"1e{sign}{'0' * digits}1", 10, 2) == (Decimal("0.10") if sign else Decimal("10.00"))


def long_decimals(count: int) -> list[str]:
    """Numbers around the borders of 128 bits, the same in each run."""
    chance = random.Random(6)
    found = ["1", "0.5", "-0", "+3", "9" * 5000, "1e" + "9" * 5000, "0." + "0" * 5000 + "1", "99999", "1e37", "1e38"]
    while len(found) < count:
        size = chance.choice([1, 2, 5, 18, 30, 36, 37, 38, 39, 40, 45, 77, 80])
        digits = "9" * size if chance.random() < 0.3 else "".join(chance.choices("0123456789", k=size))
        point = chance.randint(0, size)
        text = chance.choice(["", "", "-", "+"]) + chance.choice([digits, f"{digits[:point]}.{digits[point:]}"])
        if chance.random() < 0.3:
            text += f"e{chance.choice(['', '-', '+'])}{chance.choice([0, 1, 2, 5, 30, 37, 38, 39, 76, 400])}"
        found.append(text)
    return found


DECIMALS = [(38, 0), (38, 1), (38, 18), (38, 37), (38, 38), (37, 0), (19, 18), (18, 0), (10, 2), (1, 0), (1, 1)]


@pytest.mark.soak(but=["38-18", "10-2", "1-1"])
@pytest.mark.parametrize(("precision", "scale"), DECIMALS)
def test_decimals_of_any_length_are_the_same_in_bulk_and_alone(precision, scale) -> None:
    tokens = long_decimals(400)
    expected = [parse_decimal(token, precision, scale) for token in tokens]
    kind = pa.decimal128(precision, scale)
    rows = [row for row, value in enumerate(expected) if value is None]
    assert converted(kind, list(tokens)) == (expected, rows)
    assert alone(kind, list(tokens)) == (expected, rows)


def test_booleans_are_true_and_false_in_any_case() -> None:
    assert [parse_bool(text) for text in ("true", "FALSE", "fal\u017fe", "1", "tru", " true")] == [
        True,
        False,
        False,
        None,
        None,
        None,
    ]


@given(st.lists(st.datetimes(dt.datetime(1850, 1, 1), dt.datetime(2400, 1, 1)), max_size=4), st.booleans())
def test_columns_become_instants_as_single_times_do(times, near) -> None:
    where = zone("America/New_York")
    if near:
        times = [dt.datetime(2024, 3, 9) + (time - times[0]) % dt.timedelta(days=3) for time in times]
    values = localized(pa.array(times, pa.timestamp("us")), where).cast(pa.int64()).to_pylist()
    assert values == [parse_timestamp(time.isoformat(), where) for time in times]


@pytest.mark.parametrize("special", ["2024-11-03 01:30:00", "2024-03-10 02:30:00"])
@pytest.mark.parametrize(
    "others", [["2024-01-01 00:00:00", "2024-08-01 00:00:00"], ["2024-08-01 00:00:00", "2050-01-01 00:00:00"]]
)
def test_overlaps_and_gaps_are_resolved_as_in_java_among_times_far_apart(special, others) -> None:
    where = zone("America/New_York")
    expected = [parse_timestamp(token, where) for token in (special, *others)]
    assert converted(INSTANT, [special, *others], time_zone="America/New_York") == (expected, [])
    # 01:30 before the change; 02:30 counted from before it: both have the offset that was.
    hours = 5 + 1.5 - 1 if special.endswith("01:30:00") else 5 + 2.5
    assert (expected[0] or 0) % (86_400 * 10**6) == hours * 3600 * 10**6
