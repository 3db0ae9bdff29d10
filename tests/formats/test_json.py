# SPDX-License-Identifier: Apache-2.0
"""JSON without Spark: slices, modes, and equal results of the three tiers."""

from __future__ import annotations

import datetime as dt
import gzip
import io
import itertools
import json
import pickle
import tracemalloc
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, BinaryIO

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay.errors import ConfigurationError, DataError
from forebay.formats.json.arrow import ArrowTier, is_utf8
from forebay.formats.json.blocks import BlockReader, column
from forebay.formats.json.format import JsonFormat
from forebay.formats.json.inference import KindReader
from forebay.formats.json.jackson import JacksonParser, RecordReader
from forebay.formats.json.jackson_tokens import BadValue, decoded_base64
from forebay.formats.json.options import REFUSED, JsonOptions
from forebay.options import class_options


@dataclass(frozen=True)
class MemoryFile:
    data: bytes
    path: str = "/data/part-1.json"

    @property
    def size(self) -> int:
        return len(self.data)

    def open(self) -> BinaryIO:
        return io.BytesIO(self.data)


CORRUPT = pa.field("_corrupt_record", pa.string())
SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.list_(pa.float64())), CORRUPT])


def read(data: bytes, schema: pa.Schema = SCHEMA, *, columns: list[str] | None = None, **options: Any) -> list[Any]:
    found = [batch for batch, _ in JsonFormat(JsonOptions(**options)).read(MemoryFile(data), schema, columns=columns)]
    for batch in found:
        batch.validate(full=True)
    return [row for batch in found for row in batch.to_pylist()]


def values(rows: list[Any], name: str) -> list[Any]:
    return [row[name] for row in rows]


LINES = st.one_of(
    st.builds(
        lambda a, b, c: json.dumps({"a": a, "b": b, "c": c}, ensure_ascii=False).encode(),
        st.none() | st.integers(-(2**70), 2**70),
        st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
        st.none() | st.lists(st.integers(-5, 5) | st.floats(allow_nan=False), max_size=3),
    ),
    st.sampled_from(
        [b"", b"  ", b"bad", b'{"a":', b'{"a":1}{"a":2}', b'[{"a":1},{"a":2}]', b"null", b'{"a":"x","b":1}']
    ),
    st.binary(max_size=6).map(lambda part: part.replace(b"\n", b"").replace(b"\r", b"").replace(b"\0", b"")),
)


@given(
    lines=st.lists(LINES, max_size=30),
    ends=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    cuts=st.lists(st.integers(0, 600), max_size=5),
    block=st.sampled_from([1, 20, 100, 1 << 20]),
    stop=st.integers(0, 1000),
)
def test_any_slices_give_every_record_once_and_in_order(
    lines: list[bytes], ends: bytes, cuts: list[int], block: int, stop: int
) -> None:
    file = MemoryFile(ends.join(lines))
    reader = JsonFormat(JsonOptions(block_bytes=block))

    def rows(position: int = 0, end: int | None = None) -> list[tuple[list[str], int]]:
        return [(shown(batch), after) for batch, after in reader.read(file, SCHEMA, position=position, end=end)]

    whole = [row for part, _ in rows() for row in part]
    edges = [0, *sorted(cuts), None]
    sliced = [row for low, high in itertools.pairwise(edges) for part, _ in rows(low or 0, high) for row in part]
    assert sliced == whole
    parts = rows()
    kept = parts[: stop % (len(parts) + 1)]
    rest = rows(kept[-1][1] if kept else 0)
    assert [row for part, _ in [*kept, *rest] for row in part] == whole


def shown(batch: pa.RecordBatch) -> list[str]:
    """Rows as text; strings as bytes, because a malformed record may be invalid UTF-8."""
    columns = [
        array.view(pa.binary()).to_pylist() if pa.types.is_string(array.type) else array.to_pylist()
        for array in batch.columns
    ]
    return [repr(row) for row in zip(*columns, strict=True)]


FIELDS = [
    pa.field("i", pa.int32()),
    pa.field("b", pa.int8()),
    pa.field("f", pa.float32()),
    pa.field("d", pa.float64()),
    pa.field("t", pa.string()),
    pa.field("x", pa.binary()),
    pa.field("day", pa.date32()),
    pa.field("ts", pa.timestamp("us", "UTC")),
    pa.field("ntz", pa.timestamp("us")),
    pa.field("n", pa.decimal128(5, 2)),
    pa.field("m", pa.decimal128(38, 10)),
    pa.field("flag", pa.bool_()),
    pa.field("s", pa.struct([("i", pa.int32()), ("d", pa.float64()), ("n", pa.decimal128(20, 0))])),
    pa.field("l", pa.list_(pa.struct([("ts", pa.timestamp("us", "UTC")), ("d", pa.float32())]))),
]
SPELLED = [
    *(
        "0",
        "-0",
        "-0.0",
        "1",
        "127",
        "200",
        "-129",
        "2147483648",
        "1.0",
        "1e2",
        "1e39",
        "-1e400",
        "1e-400",
        "0.1",
        "NaN",
    ),
    *("Infinity", "-INF", "Inf", "12345", "999.99", "999.995", "123456789012345678901234567890123456", "true", "null"),
    *(
        '""',
        '"x"',
        '"12.5"',
        '"1,000"',
        '"NaN"',
        '"aGk="',
        '"aGk"',
        '"é😀"',
        '"\\ud83d\\ude00"',
        '"\\ud83d"',
        '"\\n\\u0000"',
    ),
    *(
        '"2020-01-02"',
        '"2020-01-02T03:04:05.5Z"',
        '"2020-01-02 03:04"',
        '"2020-01-02T03:04Z"',
        '"2020-02-30"',
        '"1700-01-01"',
    ),
    *(
        '"2020-03-29T02:30:00"',
        '"2020-01-02T03:04:05+19:00"',
        "1577836800",
        "{}",
        "[]",
        '{"i":1}',
        '[{"d":1.5}]',
        "[null]",
    ),
    *(
        '{"i":1,"i":2}',
        '{"d":-0,"i":"x"}',
        '[{"ts":"2020-01-01"},{"ts":5}]',
        "[1]",
        '{"n":99999999999999999999}',
        "tru",
        "01",
    ),
]


@st.composite
def records(draw: st.DrawFn) -> bytes:
    pairs = draw(
        st.lists(st.tuples(st.sampled_from([*(item.name for item in FIELDS), "other"]), st.sampled_from(SPELLED)))
    )
    text = "{" + ",".join(f'"{name}":{value}' for name, value in pairs) + "}"
    return (text + draw(st.sampled_from(["", "", "", "}", " x", '{"i":1}', " "]))).encode()


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(record=records())
def test_arrow_reads_a_safe_record_like_the_jackson_parser(record: bytes) -> None:
    options = JsonOptions(time_zone="Europe/Berlin")
    jackson = JacksonParser(FIELDS, options).read(record)
    assert repr(RecordReader(FIELDS, options).read(record)) == repr(jackson)
    batch, leftovers = ArrowTier(FIELDS, options).read_lines([record])
    if batch is not None and not leftovers:
        batch.validate(full=True)
        assert not jackson.bad
        arrays = [column([row[place] for row in jackson.rows], item.type) for place, item in enumerate(FIELDS)]
        expected = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(FIELDS))
        assert repr(batch.to_pylist()) == repr(expected.to_pylist())


PRIMITIVES = [
    *("0", "-0", "-0.0", "1", "127", "200", "2147483648", "9223372036854775808", "1.0", "1e2", "0e5", "1e39", "-1e400"),
    *(
        "00",
        "01",
        "-01",
        "0x1F",
        "+1",
        ".5",
        "5.",
        "-.5",
        "1.e5",
        "1.E5",
        "-00",
        "-01.5",
        "1e",
        "NaN",
        "inf",
        "Infinity",
        "true",
        "false",
        "null",
    ),
    *("True", "tru", "", "1 ", " 1", "1,", "1_0", "--1", "{}", "[1]", "9" * 1001),
]
TEXTS = [
    *(
        "",
        "x",
        "12.5",
        "é😀",
        "2020-01-02",
        "2020-01-02T03:04:05.5Z",
        "2020-01-02 03:04",
        "2020-02-30",
        "2020-03-29T02:30:00",
    ),
    *("aGk=", "aGk", "a\tb", "a\x7f", "\\n", "\\u0041", ",", ":", "{", "}", "NaN", "\ufeff"),
]
FORM = [("i", "7"), ("f", "1.5"), ("g", "true"), ("t", '"x"'), ("d", '"2020-01-02"'), ("m", '"2020-01-02T03:04:05Z"')]
FORM_TYPES = {
    "i": [pa.int8(), pa.int64(), pa.float32(), pa.string(), pa.decimal128(9, 2)],
    "f": [pa.float64(), pa.float32(), pa.string()],
    "g": [pa.bool_(), pa.string()],
    "t": [pa.string(), pa.binary(), pa.int32()],
    "d": [pa.date32(), pa.string(), pa.timestamp("us")],
    "m": [pa.timestamp("us", "UTC"), pa.string()],
}


@st.composite
def uniform_blocks(draw: st.DrawFn) -> tuple[pa.Schema, bytes]:
    parts = draw(st.lists(st.sampled_from(FORM), min_size=1, unique=True))
    comma, colon = draw(st.sampled_from([(",", ":"), (", ", ": ")]))
    nested = draw(st.booleans())

    def line(values: list[str]) -> str:
        inside = comma.join(f'"{name}"{colon}{value}' for (name, _), value in zip(parts, values, strict=True))
        return f'{{"s"{colon}{{{inside}}}{comma}"z"{colon}1}}' if nested else f"{{{inside}}}"

    usual = line([value for _, value in parts])
    irregular = st.tuples(
        *(
            st.just(value) | st.sampled_from(PRIMITIVES) | st.sampled_from(TEXTS).map('"{}"'.format)
            for _, value in parts
        )
    )
    others = st.sampled_from(
        [
            *("", " ", "null", "[1]", usual + " ", "\ufeff" + usual, "é" + usual[1:], usual * 2, usual[:-1], usual[2:]),
            # Lines of which one has the quotes that another lacks, and values without a value.
            *(
                "{}",
                '"',
                '""',
                usual + '"',
                usual[: len(usual) // 2],
                usual[len(usual) // 2 :],
                usual.replace(colon, ""),
            ),
            *(usual.replace('"', "", 2), usual.replace(comma, "\n"), usual.replace(comma, "\r"), usual + "\r", "\r\n"),
        ]
    )
    mixed = draw(st.lists(irregular.map(lambda values: line(list(values))) | others, max_size=6))
    lines = [usual] * 40
    for text in mixed:
        lines[draw(st.integers(0, 39))] = text
    fields = [pa.field(name, draw(st.sampled_from(FORM_TYPES[name]))) for name, _ in parts]
    if nested:
        fields = [pa.field("s", pa.struct(fields)), pa.field("z", pa.int32())]
    end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    return pa.schema([*fields, CORRUPT]), (end.join(lines) + draw(st.sampled_from(["", end, "\n\n"]))).encode()


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(block=uniform_blocks())
def test_uniform_lines_have_the_same_rows_one_by_one(block: tuple[pa.Schema, bytes]) -> None:
    schema, data = block
    options = JsonOptions(time_zone="Europe/Berlin")
    slow = BlockReader(schema, options, "f")
    slow._arrow = None
    assert shown(BlockReader(schema, options, "f").read(data, 0)) == shown(slow.read(data, 0))


def test_uniform_lines_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"".join(b'{"a": %d, "x": {"b": "%d", "y": 1.5}, "b": null}\n' % (n, n) for n in range(3000))
    schema = pa.schema([pa.field("a", pa.int64()), pa.field("x", pa.struct([("b", pa.string()), ("y", pa.float64())]))])
    monkeypatch.setattr(RecordReader, "read", forbidden)
    monkeypatch.setattr("forebay.formats.json.arrow.parsed", forbidden)
    rows = read(data, schema)
    assert rows[2999] == {"a": 2999, "x": {"b": "2999", "y": 1.5}}
    assert values(rows, "a") == list(range(3000))


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_only_irregular_lines_of_a_uniform_block_are_read_one_by_one(
    monkeypatch: pytest.MonkeyPatch, end: bytes
) -> None:
    lines = [b'{"a":%d,"b":"%d"}' % (n, n) for n in range(3000)]
    irregular = {0: b'{"a":7}', 1: b'{"b":"x","a":1}', 1500: b'{"b":1,"a":"1"}', 2000: b'{"a":01,"b":""}', 2999: b'"a"'}
    for place, line in irregular.items():
        lines[place] = line
    lines.insert(2500, b"")
    read_alone = records_read_alone(monkeypatch)
    monkeypatch.setattr("forebay.formats.json.arrow.parsed", forbidden)
    rows = read(end.join(lines), block_bytes=1 << 20)
    assert read_alone == list(irregular.values())
    assert values(rows, "a") == [7, 1, *range(2, 1500), None, *range(1501, 2000), None, *range(2001, 2999), None]


def forbidden(*_: object) -> None:
    raise AssertionError("a record was read by itself")


def records_read_alone(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The records that are read one by one from now on."""
    read_alone: list[bytes] = []
    real = RecordReader.read

    def counted(self: RecordReader, record: bytes) -> Any:
        read_alone.append(record)
        return real(self, record)

    monkeypatch.setattr(RecordReader, "read", counted)
    return read_alone


REGULAR = b"".join(b'{"a":%d,"b":"%d","c":[%d]}\n' % (n, n, n) for n in range(5000))


def test_regular_lines_are_never_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecordReader, "read", forbidden)
    assert values(read(REGULAR), "a") == list(range(5000))
    assert values(read(REGULAR.replace(b"\n", b"\r\n")), "a") == list(range(5000))
    assert values(read(REGULAR.replace(b"\n", b"\n\n \n")), "a") == list(range(5000))
    assert values(read(REGULAR.replace(b"\n", b"|"), line_sep="|"), "a") == list(range(5000))


def test_a_few_irregular_lines_do_not_make_the_others_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    irregular = {100: b'{"a":1.5}', 2000: b"bad", 2001: b'{"b":7}', 4000: b'{"a":1}{"a":2}', 4500: b'{"c":[NaN]}'}
    lines = REGULAR.splitlines()
    for place, line in irregular.items():
        lines[place] = line
    read_alone = records_read_alone(monkeypatch)
    rows = read(b"\n".join(lines))
    assert len(rows) == 5000
    assert [rows[place]["a"] for place in irregular] == [None, None, None, 1, None]
    assert rows[2001]["b"] == "7"
    assert rows[2000]["_corrupt_record"] == "bad"
    assert set(irregular.values()) <= set(read_alone)
    assert len(read_alone) < 200


def test_irregular_lines_alone_are_read_too() -> None:
    data = b"".join(b"{'a':%d}\n" % n for n in range(3000))
    assert values(read(data, block_bytes=2000), "a") == list(range(3000))


def test_documents_that_crash_arrow_are_not_passed_to_it() -> None:
    rows = read(b'null\n5\nnull\n[1]\n"x"\n{null}\n')
    assert values(rows, "_corrupt_record") == ["null", "5", "null", "[1]", '"x"', "{null}"]


def test_malformed_records_follow_the_mode() -> None:
    data = b'{"a":1}\n{"a":"x","b":"kept"}\nbad\n{"a":2}\n'
    rows = read(data)
    assert values(rows, "a") == [1, None, None, 2]
    assert values(rows, "b") == [None, "kept", None, None]
    assert values(rows, "_corrupt_record") == [None, '{"a":"x","b":"kept"}', "bad", None]
    assert values(read(data, mode="DROPMALFORMED"), "a") == [1, 2]
    with pytest.raises(DataError, match=r"part-1\.json is malformed or does not fit the schema: '\{\"a\":\"x\""):
        read(data, mode="FAILFAST")
    for bad, why in (
        (b'{"a":"x"}', "the field a does not fit BIGINT"),
        (b'{"a":', "malformed JSON near byte 0: the record ends inside an object"),
        (b'[{"a":1},{"a":"x"}]', "an element of this array is not an object, or does not fit the schema"),
        (b'[{"a":1},', "malformed JSON near byte 7: the record ends inside"),
        (b'{"a":"x"}\xff', "the field a does not fit BIGINT"),
        (b'{"a":1,"b":"\xff"}', "byte 12 is not UTF-8"),
        ('{"a":"x"}'.encode("utf-16"), "the field a does not fit BIGINT"),
        (b'{"a":"' + b"x" * (2 << 20) + b'"}', "xxxx'…\n"),
        (b"5", "it is not a JSON object"),
    ):
        with pytest.raises(DataError, match=why):
            read(b'{"a":1}\n' + bad + b"\n", mode="FAILFAST")
    named = pa.schema([("wrong", pa.string()), ("a", pa.int64())])
    assert values(read(data, named, column_name_of_corrupt_record="wrong"), "wrong")[2] == "bad"


def test_only_the_columns_wanted_decide_whether_a_record_is_malformed() -> None:
    data = b'{"a":"x","b":"y"}\n'
    assert read(data, columns=["b", "_corrupt_record"]) == [{"b": "y", "_corrupt_record": None}]
    assert read(data, columns=["_corrupt_record", "a"]) == [{"_corrupt_record": data.decode().strip(), "a": None}]


def test_no_columns_at_all_still_count_the_records() -> None:
    found = list(JsonFormat().read(MemoryFile(REGULAR + b"\nbad\n"), SCHEMA, columns=[]))
    assert [(batch.num_columns, batch.num_rows) for batch, _ in found] == [(0, 5001)]


@pytest.mark.parametrize("options", [{}, {"encoding": "UTF-8"}, {"multi_line": True}], ids=str)
def test_a_malformed_record_is_kept_as_text_whatever_its_bytes_are(options: dict[str, Any]) -> None:
    (row,) = read(b'{"b":"\xff\xc3("}', **options)
    assert row == {"a": None, "b": None, "c": None, "_corrupt_record": '{"b":"\ufffd\ufffd("}'}


@pytest.mark.parametrize("limit", [9, 10, 11])
def test_a_record_cut_inside_a_character_is_kept_as_text(limit: int) -> None:
    (row,) = read("{'€€€€€€€€€€".encode(), max_record_bytes=limit)
    text = row["_corrupt_record"]
    assert text.rstrip("\ufffd").rstrip("€") == "{'"
    assert limit == 11 or "\ufffd" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b'{"q":"\xed\xa0\x80"}', '{"q":"\ufffd"}'),
        (b'{"\xc0\xaf":1}', '{"\ufffd\ufffd":1}'),
        (b'["\xf5\x80\x80\x80"]', '["\ufffd\ufffd\ufffd\ufffd"]'),
    ],
)
def test_a_value_that_is_read_as_its_text_is_text_whatever_its_bytes_are(value: bytes, text: str) -> None:
    assert read(b'{"b":' + value + b"}") == [{"a": None, "b": text, "c": None, "_corrupt_record": None}]
    maps = pa.schema([pa.field("m", pa.map_(pa.string(), pa.string()))])
    assert read(b'{"m":{"k":' + value + b"}}", maps) == [{"m": [("k", text)]}]


def test_a_long_name_takes_no_memory_for_lines_without_it() -> None:
    long, short = b'{"' + b"n" * 40_000 + b'":1}\n', b'{"a":1}\n' * 100_000
    pa.default_memory_pool().release_unused()
    before = pa.default_memory_pool().max_memory()
    rows = read(long + short, pa.schema([pa.field("a", pa.int64())]))
    assert (len(rows), values(rows[-1:], "a")) == (100_001, [1])
    assert pa.default_memory_pool().max_memory() - before < 100 << 20


@pytest.mark.parametrize("last", ["", "!"])
def test_base64_in_lines_takes_little_memory(last: str) -> None:
    text = "QUJD\n" * 50_000 + last
    tracemalloc.start()
    try:
        if last:
            with pytest.raises(BadValue):
                decoded_base64(text)
        else:
            assert decoded_base64(text) == b"ABC" * 50_000
        assert tracemalloc.get_traced_memory()[1] < 4 * len(text)
    finally:
        tracemalloc.stop()


def test_uniform_blocks_may_have_more_lines_and_other_constants_than_the_first() -> None:
    lines = [b'{"a":1,"b":"x"}'] * 10 + [b'{"a":2,"b":"y"}'] * 3000 + [b'{"a":3,"c":[1]}', b'{"a":4 ,"b":"z"}'] * 5
    data = b"\n".join(lines)
    for block_bytes in (100, 2000, 10_000):
        rows = read(data, block_bytes=block_bytes)
        assert values(rows, "a") == [1] * 10 + [2] * 3000 + [3, 4] * 5
        assert values(rows, "b") == ["x"] * 10 + ["y"] * 3000 + [None, "z"] * 5


def test_a_record_longer_than_the_limit_is_malformed_and_the_next_is_read() -> None:
    data = b'{"a":1}\n{"b":"' + b"x" * 100_000 + b'"}\n{"a":2}\n'
    rows = read(data, max_record_bytes=10_000)
    assert values(rows, "a") == [1, None, 2]
    assert str(rows[1]["_corrupt_record"]).startswith('{"b":"xxx')
    assert len(read(data)[1]["b"]) == 100_000


def test_a_column_for_malformed_records_must_be_a_string() -> None:
    with pytest.raises(ConfigurationError, match="must be a string, not int64"):
        read(b"", pa.schema([("_corrupt_record", pa.int64())]))


@pytest.mark.parametrize("data_type", [pa.duration("us"), pa.time64("us"), pa.map_(pa.int32(), pa.int32()), pa.uint8()])
def test_types_json_cannot_be_read_as_are_refused(data_type: pa.DataType) -> None:
    with pytest.raises(
        ConfigurationError, match=r"column 'c.element' has the type .*, which the JSON format does not support"
    ):
        read(b"{}\n", pa.schema([pa.field("c", pa.list_(data_type))]))


def test_every_type_is_read() -> None:
    line = (
        b'{"i":1,"b":-1,"f":0.1,"d":1e3,"t":{"raw" : [1]},"x":"aGk=","day":"2020-01-02",'
        b'"ts":"2020-01-02T00:00:00+01:00",'
        b'"ntz":"1969-12-31 23:59:59.5","n":"1,5","m":1e-10,"flag":true,'
        b'"s":{"i":null,"n":7},"l":[{"ts":"1900-01-01"},null]}\n'
    )
    (row,) = read(line, pa.schema(FIELDS))
    assert row["t"] == '{"raw" : [1]}'
    assert (row["x"], row["day"], row["n"], row["m"]) == (
        b"hi",
        dt.date(2020, 1, 2),
        Decimal("15.00"),
        Decimal("1e-10"),
    )
    assert row["ts"] == dt.datetime(2020, 1, 1, 23, tzinfo=dt.UTC)
    assert row["ntz"] == dt.datetime(1969, 12, 31, 23, 59, 59, 500_000)
    assert row["s"] == {"i": None, "d": None, "n": Decimal(7)}
    assert row["l"] == [{"ts": dt.datetime(1900, 1, 1, tzinfo=dt.UTC), "d": None}, None]


def test_maps_keep_the_order_and_the_repetitions_of_names() -> None:
    schema = pa.schema([pa.field("m", pa.map_(pa.string(), pa.int32()))])
    assert read(b'{"m":{"z":1,"a":null,"z":2}}\n', schema) == [{"m": [("z", 1), ("a", None), ("z", 2)]}]


DOCUMENT = b'[\n{"a":1,\n"b":"x"}, {"a":2},{"a":\n3}\n]\n'


@pytest.mark.parametrize("block", [1, 1 << 20])
def test_a_document_is_read_over_lines_and_resumed_between_its_records(block: int) -> None:
    reader = JsonFormat(JsonOptions(multi_line=True, block_bytes=block))
    file = MemoryFile(DOCUMENT)
    pairs = list(reader.read(file, SCHEMA))
    whole = [row for batch, _ in pairs for row in batch.to_pylist()]
    assert values(whole, "a") == [1, 2, 3]
    for place, (_, after) in enumerate(pairs):
        rest = [row for batch, _ in reader.read(file, SCHEMA, position=after) for row in batch.to_pylist()]
        head = [row for batch, _ in pairs[: place + 1] for row in batch.to_pylist()]
        assert head + rest == whole
    assert not reader.sliceable(file)
    assert reader.borders(file, 1) == []


@pytest.mark.parametrize(("before", "then"), [(1, 1 << 20), (20, 1 << 20), (20, 1)])
def test_a_document_is_resumed_by_a_reader_of_other_blocks(before: int, then: int) -> None:
    file = MemoryFile(DOCUMENT)
    pairs = list(JsonFormat(JsonOptions(multi_line=True, block_bytes=before)).read(file, SCHEMA))
    other = JsonFormat(JsonOptions(multi_line=True, block_bytes=then))
    for place, (_, after) in enumerate(pairs):
        head = [row for batch, _ in pairs[: place + 1] for row in batch.to_pylist()]
        rest = [row for batch, _ in other.read(file, SCHEMA, position=after) for row in batch.to_pylist()]
        assert values(head + rest, "a") == [1, 2, 3]
        upto = [row for batch, _ in other.read(file, SCHEMA, end=after) for row in batch.to_pylist()]
        assert upto == head


def test_more_is_read_at_a_time_for_more_columns() -> None:
    fields = [pa.field(f"c{index}", pa.int64()) for index in range(32)]
    options = JsonOptions()
    assert options.bytes_at_once(pa.schema([])) == options.bytes_at_once(pa.schema(fields[:16])) == 1 << 20
    assert options.bytes_at_once(pa.schema(fields)) == 2 << 20
    assert options.bytes_at_once(pa.schema([pa.field("s", pa.struct(fields)), pa.field("l", pa.list_(pa.int8()))])) == (
        33 << 16
    )
    assert options.bytes_at_once(pa.schema([pa.field("s", pa.struct(fields * 9))])) == 4 << 20
    assert JsonOptions(block_bytes=7).bytes_at_once(pa.schema(fields)) == 7


def test_a_document_with_something_malformed_is_one_malformed_record() -> None:
    assert read(b'[{"a":1},\n{"a":', multi_line=True) == [
        {"a": None, "b": None, "c": None, "_corrupt_record": '[{"a":1},\n{"a":'}
    ]
    rows = read(b'[{"a":1},{"a":"x"}]', multi_line=True)
    assert values(rows, "a") == [1, None]
    assert values(rows, "_corrupt_record") == ['[{"a":1},{"a":"x"}]'] * 2
    assert read(b'[{"a":1},{"a":"x"}]', multi_line=True, mode="DROPMALFORMED") == []
    assert values(read(DOCUMENT, multi_line=True, max_record_bytes=5), "a") == [None]


def test_compressed_files_are_read_and_not_cut() -> None:
    file = MemoryFile(gzip.compress(REGULAR), "/data/part-1.json.gz")
    reader = JsonFormat()
    assert not reader.sliceable(file)
    assert sum(batch.num_rows for batch, _ in reader.read(file, SCHEMA)) == 5000
    torn = MemoryFile(file.data[:-30], file.path)
    with pytest.raises(DataError, match=r"part-1\.json\.gz"):
        list(reader.read(torn, SCHEMA))


def test_other_encodings_are_read_and_not_cut() -> None:
    file = MemoryFile('{"b":"é"}\n{"a":2}\n'.encode("utf-16-le"))
    reader = JsonFormat(JsonOptions(encoding="UTF-16LE", line_sep="\n"))
    assert not reader.sliceable(file)
    rows = [row for batch, _ in reader.read(file, SCHEMA) for row in batch.to_pylist()]
    assert (rows[0]["b"], rows[1]["a"]) == ("é", 2)


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "WRONG"},
        {"line_sep": ""},
        {"encoding": "UTF-16"},
        {"encoding": "UTF-16LE"},
        {"encoding": "KOI8-R", "line_sep": "\n"},
        {"sampling_ratio": 0.0},
        {"time_zone": "Nowhere"},
        {"timestamp_format": "YYYY"},
        {"max_record_bytes": 0},
    ],
)
def test_values_of_options_that_cannot_be_honoured_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as raised:
        JsonOptions(**options)
    assert "CSV" not in str(raised.value)


def test_a_wide_encoding_of_json_lines_is_refused_with_a_way_out() -> None:
    for encoding, advice in (("utf-16", "UTF-16LE or UTF-16BE, and lineSep"), ("UTF-32", "convert the files to UTF-8")):
        with pytest.raises(ConfigurationError, match=f"needs multiLine; for JSON lines, .*{advice}"):
            JsonOptions(encoding=encoding, line_sep="\n")


SPARK_OPTIONS = (
    "samplingRatio primitivesAsString prefersDecimal allowComments allowUnquotedFieldNames "
    "allowSingleQuotes allowNumericLeadingZeros allowNonNumericNumbers allowBackslashEscapingAnyCharacter "
    "allowUnquotedControlChars compression mode dropFieldIfAllNull ignoreNullFields locale dateFormat "
    "timestampFormat timestampNTZFormat timeFormat enableDateTimeParsingFallback multiLine lineSep pretty "
    "sortKeys inferTimestamp columnNameOfCorruptRecord timeZone writeNonAsciiCharacterAsCodePoint "
    "singleVariantColumn useUnsafeRow encoding charset maxNestingDepth maxNumLen maxStringLen "
)


def test_each_option_of_sparks_reader_is_honoured_or_refused_by_name() -> None:
    accepted = {name for spec in class_options(JsonOptions) for name in (spec.name, *spec.aliases)}
    assert set(SPARK_OPTIONS.split()) <= accepted | set(REFUSED)
    assert not accepted & set(REFUSED)


@pytest.mark.parametrize(
    "others",
    [
        b"",
        b"bad\n",
        b'"text"\n[{"a":"x","z":1}]\n',
        b'{"a":"x"}\n{"a":99999999999999999999}\n{"a":NaN}\n\n \n{"b":[]}\n',
    ],
)
def test_inference_by_arrow_says_the_same_as_record_by_record(others: bytes) -> None:
    data = (
        b'{"a":1,"t":"2020-01-01T00:00:00Z","e":"","l":[[1],[]],"s":{"y":1,"x":[]},"n":null}\n'
        b'{"a":2.5,"t":"","e":null,"l":[[2.5]],"s":{"x":["q"]},"b":true}\n'
    )
    inferred = JsonFormat().infer_schema([MemoryFile(data + others + data)])
    assert inferred == JsonFormat().infer_schema([MemoryFile(line) for line in (data + others).splitlines()])
    assert set(inferred.names) >= {"a", "b", "e", "l", "n", "s", "t"}
    # A pattern of timestamps in strings is looked for in each record alone.
    alone = JsonFormat(JsonOptions(infer_timestamp=True, timestamp_format="yyyy")).infer_schema(
        [MemoryFile(data + others)]
    )
    assert inferred == alone


def test_a_few_irregular_lines_do_not_make_inference_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = REGULAR.splitlines()
    lines[100], lines[2000], lines[4000] = b'{"a":"x"}', b"bad", b'{"a":1}{"a":2}'
    alone: list[bytes] = []
    real = KindReader.read

    def counted(self: KindReader, record: bytes) -> Any:
        alone.append(record)
        return real(self, record)

    monkeypatch.setattr(KindReader, "read", counted)
    schema = JsonFormat().infer_schema([MemoryFile(b"\n".join(lines))])
    assert schema.names == ["_corrupt_record", "a", "b", "c"]
    assert schema.field("a").type == pa.string()
    assert len(alone) < 200


def test_a_malformed_record_stops_inference_in_the_mode_failfast() -> None:
    with pytest.raises(DataError, match="'bad'"):
        JsonFormat(JsonOptions(mode="FAILFAST")).infer_schema([MemoryFile(b'{"a":1}\nbad\n')])


def test_two_columns_that_differ_in_case_cannot_be_inferred() -> None:
    with pytest.raises(ConfigurationError, match="two columns have the same name"):
        JsonFormat().infer_schema([MemoryFile(b'{"a":1,"A":2}\n')])


def test_a_sample_is_the_same_sample_every_time() -> None:
    data = b"".join(b'{"f%d":1}\n' % n for n in range(200))
    reader = JsonFormat(JsonOptions(sampling_ratio=0.3))
    names = reader.infer_schema([MemoryFile(data)]).names
    assert 20 < len(names) < 120
    assert reader.infer_schema([MemoryFile(data)]).names == names


def test_invalid_utf8_is_detected() -> None:
    assert is_utf8("é😀".encode())
    assert not is_utf8(b"\xed\xa0\x80")
    assert is_utf8(b"")


def test_the_format_survives_pickling() -> None:
    reader = JsonFormat(JsonOptions(multi_line=True))
    assert pickle.loads(pickle.dumps(reader)) == reader
