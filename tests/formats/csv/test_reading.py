# SPDX-License-Identifier: Apache-2.0
"""CSV without Spark: slices, positions, modes, headers, limits, and refused options."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import ConfigurationError, DataError
from forebay.formats.csv.format import CsvFormat
from forebay.formats.csv.options import REFUSED, CsvOptions
from forebay.options import class_options

AB = pa.schema({"a": pa.int32(), "b": pa.string()})
WITH_CORRUPT = pa.schema({"a": pa.int32(), "_corrupt_record": pa.string(), "b": pa.string()})

# Spark's names, from org.apache.spark.sql.catalyst.csv.CSVOptions 4.2.0.
SPARK_OPTIONS = [
    "header",
    "inferSchema",
    "ignoreLeadingWhiteSpace",
    "ignoreTrailingWhiteSpace",
    "preferDate",
    "escapeQuotes",
    "quoteAll",
    "enforceSchema",
    "quote",
    "escape",
    "comment",
    "maxColumns",
    "maxCharsPerColumn",
    "mode",
    "charToEscapeQuoteEscaping",
    "locale",
    "dateFormat",
    "timestampFormat",
    "timestampNTZFormat",
    "timeFormat",
    "enableDateTimeParsingFallback",
    "multiLine",
    "samplingRatio",
    "emptyValue",
    "lineSep",
    "inputBufferSize",
    "columnNameOfCorruptRecord",
    "nullValue",
    "nanValue",
    "positiveInf",
    "negativeInf",
    "timeZone",
    "unescapedQuoteHandling",
    "encoding",
    "charset",
    "compression",
    "codec",
    "sep",
    "delimiter",
    "columnPruning",
    "singleVariantColumn",
    "extension",
]
OPTION_NAMES = {spec.name: spec.python_name for spec in class_options(CsvOptions)}


def rows(data: bytes, schema: pa.Schema, memory_file, *, position=0, end=None, columns=None, **options) -> list[tuple]:
    found = []
    for batch, _ in CsvFormat(CsvOptions(**options)).read(
        memory_file(data), schema, columns=columns, position=position, end=end
    ):
        batch.validate(full=True)
        found += [tuple(row.values()) for row in batch.to_pylist()]
    return found


def test_every_option_of_spark_is_honoured_or_refused_with_a_reason() -> None:
    accepted = {name for spec in class_options(CsvOptions) for name in (spec.name, *spec.aliases)}
    assert set(SPARK_OPTIONS) <= accepted | set(REFUSED)
    assert all(len(reason) > 10 for reason in REFUSED.values())
    assert not set(REFUSED) & accepted


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sep", "||"),
        ("sep", "§"),
        ("sep", ""),
        ("sep", "\\"),
        ("quote", "''"),
        ("escape", "é"),
        ("comment", "//"),
        ("encoding", "Shift_JIS"),
        ("mode", "permissive"),
        ("unescaped_quote_handling", "GUESS"),
        ("line_sep", ""),
        ("line_sep", "abc"),
        ("time_zone", "Mars/Base"),
        ("date_format", "EEE dd"),
        ("timestamp_format", "yyyy-MM-dd hh:mm"),
        ("timestamp_ntz_format", "yyyyMMddHHmmssSSS"),
        ("sampling_ratio", 0.0),
        ("max_record_bytes", 0),
    ],
)
def test_what_cannot_be_honoured_exactly_is_refused_by_the_name_of_the_option(field, value) -> None:
    with pytest.raises(ConfigurationError) as caught:
        CsvOptions(**{field: value})
    assert OPTION_NAMES[str(caught.value.option)] == field
    assert caught.value.advice


PIECES = st.sampled_from(
    [
        "1",
        "22",
        "x",
        ",",
        ",",
        "\n",
        "\n",
        "\r\n",
        '"',
        '""',
        "\\",
        " ",
        "\t",
        "é",
        "#",
        "\0",
        "a,b\n",
        '"q,q"',
        "7,y\n",
        "\ufeff",
    ]
)
TEXTS = st.lists(PIECES, max_size=30).map("".join)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "header": st.booleans(),
        "escape": st.sampled_from(['"', ""]),
        "comment": st.just("#"),
        "null_value": st.sampled_from(["x", "1"]),
        "empty_value": st.just("E"),
        "ignore_leading_white_space": st.booleans(),
        "ignore_trailing_white_space": st.booleans(),
        "unescaped_quote_handling": st.sampled_from(["STOP_AT_CLOSING_QUOTE", "SKIP_VALUE"]),
        "mode": st.sampled_from(["PERMISSIVE", "DROPMALFORMED"]),
    },
)


@given(TEXTS, st.lists(st.integers(1, 80), max_size=4), st.integers(1, 40), OPTIONS)
def test_the_union_of_any_slices_is_the_whole_each_record_once_and_in_order(
    memory_file, text, cuts, block_bytes, options
) -> None:
    data = text.encode()
    whole = rows(data, WITH_CORRUPT, memory_file, **options)
    borders = [0, *sorted(cuts), None]
    sliced = [
        row
        for start, end in pairwise(borders)
        for row in rows(data, WITH_CORRUPT, memory_file, position=start, end=end, block_bytes=block_bytes, **options)
    ]
    assert sliced == whole


@given(TEXTS, st.integers(1, 40), OPTIONS, st.booleans())
def test_what_was_read_up_to_a_position_and_the_rest_from_it_are_the_whole(
    memory_file, text, block_bytes, options, multi_line
) -> None:
    reader = CsvFormat(CsvOptions(block_bytes=block_bytes, multi_line=multi_line, **options))
    file = memory_file(text.encode())
    whole = rows(file.data, WITH_CORRUPT, memory_file, multi_line=multi_line, **options)
    before: list[tuple] = []
    for batch, position in reader.read(file, WITH_CORRUPT):
        before += [tuple(row.values()) for row in batch.to_pylist()]
        rest = [
            tuple(row.values())
            for after, _ in reader.read(file, WITH_CORRUPT, position=position)
            for row in after.to_pylist()
        ]
        assert before + rest == whole


@given(TEXTS, OPTIONS, st.permutations(WITH_CORRUPT.names), st.integers(0, 3))
def test_fewer_columns_in_any_order_hold_what_all_columns_hold(memory_file, text, options, order, count) -> None:
    options = {**options, "mode": "PERMISSIVE"}
    # Values of columns that are not read are not judged: only strings cannot be wrong.
    schema = pa.schema({name: pa.string() for name in WITH_CORRUPT.names})
    whole = rows(text.encode(), schema, memory_file, **options)
    places = [schema.names.index(name) for name in order[:count]]
    some = rows(text.encode(), schema, memory_file, columns=order[:count], **options)
    assert some == [tuple(row[place] for place in places) for row in whole]


def test_no_columns_give_batches_that_know_their_number_of_rows(memory_file) -> None:
    ((batch, _),) = CsvFormat().read(memory_file(b"1,a\n2,b\n3\n"), AB, columns=[])
    assert (batch.num_rows, batch.num_columns) == (3, 0)


def test_batches_have_the_types_of_the_schema(memory_file) -> None:
    schema = pa.schema(
        {
            "a": pa.int8(),
            "b": pa.large_string(),
            "c": pa.timestamp("ns", tz="Europe/Berlin"),
            "d": pa.decimal128(5, 1),
            "e": pa.large_binary(),
            "f": pa.timestamp("s"),
        }
    )
    ((batch, position),) = CsvFormat().read(memory_file(b"1,x,2020-01-01 00:00:00,1.25,y,2020-01-01T00:00:01"), schema)
    assert batch.schema == schema
    assert position == 50
    assert batch.column(2).cast(pa.int64()).to_pylist() == [1577836800 * 10**9]
    assert batch.column(3).to_pylist() == [Decimal("1.3")]


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int32()), pa.uint8(), pa.duration("us"), pa.null(), pa.time64("us"), pa.decimal256(50, 2)]
)
def test_a_type_that_csv_does_not_have_is_refused_with_the_name_of_the_column(memory_file, kind) -> None:
    with pytest.raises(ConfigurationError, match="'reserved'"):
        list(CsvFormat().read(memory_file(b"1\n"), pa.schema({"reserved": kind})))


def test_a_column_that_comes_twice_in_the_schema_is_refused(memory_file) -> None:
    schema = pa.schema([("a", pa.int32()), ("a", pa.string())])
    with pytest.raises(ConfigurationError, match="'a' twice"):
        list(CsvFormat().read(memory_file(b"1,2\n"), schema))


def test_a_column_that_is_not_in_the_schema_is_refused_with_the_choice(memory_file) -> None:
    with pytest.raises(ConfigurationError, match="'c'") as caught:
        list(CsvFormat().read(memory_file(b"1,2\n"), AB, columns=["c"]))
    assert "'a', 'b'" in str(caught.value.advice)


def test_the_column_for_corrupt_records_must_be_text(memory_file) -> None:
    schema = pa.schema({"a": pa.int32(), "_corrupt_record": pa.int32()})
    with pytest.raises(ConfigurationError) as caught:
        list(CsvFormat().read(memory_file(b"1\n"), schema))
    assert caught.value.option == "columnNameOfCorruptRecord"


DAMAGED = b"1,x\nfour,y\n3\n4,z,too many\n5,ok\n"


def test_permissive_gives_what_can_be_read_and_the_text_of_the_rest(memory_file) -> None:
    assert rows(DAMAGED, WITH_CORRUPT, memory_file) == [
        (1, None, "x"),
        (None, "four,y", "y"),
        (3, "3", None),
        (4, "4,z,too many", "z"),
        (5, None, "ok"),
    ]


def test_dropmalformed_drops_them(memory_file) -> None:
    assert rows(DAMAGED, AB, memory_file, mode="DROPMALFORMED") == [(1, "x"), (5, "ok")]


@pytest.mark.parametrize("multi_line", [False, True])
def test_failfast_names_the_file_the_place_the_column_and_the_record(memory_file, multi_line) -> None:
    with pytest.raises(DataError, match=r"in the column 'a' \(int32\): four,y") as caught:
        rows(DAMAGED, AB, memory_file, mode="FAILFAST", multi_line=multi_line)
    assert caught.value.source == "/data/part-1.csv"
    assert caught.value.position == "record 2, between bytes 0 and 31"
    assert "PERMISSIVE" in str(caught.value.advice)


def test_failfast_names_every_column_and_a_wrong_number_of_values(memory_file) -> None:
    two = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    with pytest.raises(DataError, match=r"in the columns 'a' \(int64\), 'b' \(int64\): x,y") as caught:
        rows(b"1,2\n3,4\nx,y\nz,1\n", two, memory_file, mode="FAILFAST", block_bytes=4)
    assert str(caught.value.position).startswith("record 3, between bytes 8 and")
    with pytest.raises(DataError, match=r"does not fit the schema: it does not have 2 values: 5") as caught:
        rows(b"1,2\n5\n", two, memory_file, mode="FAILFAST")
    assert str(caught.value.position).startswith("record 2, ")


def test_failfast_counts_from_where_the_read_began(memory_file) -> None:
    reading = CsvFormat(CsvOptions(mode="FAILFAST")).read(memory_file(b"1,x\n2,y\n3,z\nno,z\n"), AB, position=8)
    with pytest.raises(DataError, match="'a'") as caught:
        list(reading)
    assert caught.value.position == "record 2 after byte 8, between bytes 8 and 17"


def test_a_record_over_the_limit_is_malformed(memory_file) -> None:
    data = b"1,a\n2," + b"x" * 200 + b"\n3,c\n"
    found = rows(data, WITH_CORRUPT, memory_file, max_record_bytes=100)
    assert found[::2] == [(1, None, "a"), (3, None, "c")]
    assert (found[1][0], found[1][2]) == (None, None)
    assert found[1][1].startswith("2,xxx")
    assert rows(data, AB, memory_file, max_record_bytes=100, mode="DROPMALFORMED") == [(1, "a"), (3, "c")]
    with pytest.raises(DataError, match="maxRecordBytes"):
        rows(data, AB, memory_file, max_record_bytes=100, mode="FAILFAST")


def test_a_quote_that_is_never_closed_is_an_error_beyond_the_limit(memory_file, monkeypatch) -> None:
    monkeypatch.setattr("forebay.formats.csv.read._HEAD_BYTES", 100)
    data = b'1,a\n2,"' + b"x\n" * 5000
    with pytest.raises(DataError, match="maxRecordBytes") as caught:
        rows(data, AB, memory_file, multi_line=True, max_record_bytes=1000, block_bytes=100)
    assert caught.value.position == "byte 4"


def test_a_very_long_line_comes_whole(memory_file) -> None:
    value = "x" * 5_000_000
    data = f"1,{value}\n2,b\n".encode()
    for multi_line in (False, True):
        assert rows(data, AB, memory_file, block_bytes=65_536, multi_line=multi_line) == [(1, value), (2, "b")]


@pytest.mark.parametrize(
    ("option", "data"),
    [("max_columns", b"1,2,3,4\n"), ("max_chars_per_column", b"1,abcd\n"), ("max_chars_per_column", b'1,"abcd\n')],
)
def test_beyond_spark_s_limits_reading_stops_with_the_name_of_the_option(memory_file, option, data) -> None:
    with pytest.raises(DataError) as caught:
        rows(data, AB, memory_file, **{option: 3})
    assert OPTION_NAMES[str(caught.value.option)] == option


def test_raise_error_stops_at_a_stray_quote(memory_file) -> None:
    with pytest.raises(DataError, match="unescaped quote"):
        rows(b'1,"a"b\n', AB, memory_file, unescaped_quote_handling="RAISE_ERROR")


@pytest.mark.parametrize("multi_line", [False, True])
def test_a_header_must_match_only_if_asked(memory_file, multi_line) -> None:
    options = {"header": True, "multi_line": multi_line}
    assert rows(b"x,y,z\n1,a\n", AB, memory_file, **options) == [(1, "a")]
    assert rows(b"A,B\n1,a\n", AB, memory_file, enforce_schema=False, **options) == [(1, "a")]
    for header, message in [(b"a,c", "'c'"), (b"a", "1 columns"), (b"b,a", "'b'")]:
        with pytest.raises(ConfigurationError, match=message) as caught:
            rows(header + b"\n1,a\n", AB, memory_file, enforce_schema=False, **options)
        assert caught.value.option == "enforceSchema"


def test_a_header_that_is_not_utf8_gives_names(memory_file) -> None:
    for options in ({}, {"multi_line": True}):
        schema = CsvFormat(CsvOptions(header=True, **options)).infer_schema([memory_file(b"a\xff,b\n1,2\n")])
        assert schema.names == ["a\ufffd", "b"]


@pytest.mark.parametrize("header", [b"a\nb,c", b'"a\nb",c', b'"a\nb","c"'])
def test_a_line_feed_in_a_header_is_text_where_another_separator_ends_lines(memory_file, header) -> None:
    options = CsvOptions(header=True, line_sep="|")
    assert CsvFormat(options).infer_schema([memory_file(header + b"|1,2|")]).names == ["a\nb", "c"]


@pytest.mark.parametrize("multi_line", [False, True])
def test_a_header_that_does_not_match_is_logged_and_read_by_position(memory_file, caplog, multi_line) -> None:
    options = {"header": True, "multi_line": multi_line}
    assert rows(b"A,B\n1,a\n", AB, memory_file, **options) == [(1, "a")]
    assert not caplog.records
    for header, problem in [
        (b"a,c", "has the column 'c' in its header where the schema has 'b'"),
        (b"b,a", "has the column 'b' in its header where the schema has 'a'"),
        (b"a", "has 1 columns in its header, but the schema has 2"),
    ]:
        caplog.clear()
        assert rows(header + b"\n1,a\n", AB, memory_file, **options) == [(1, "a")]
        (record,) = caplog.records
        assert (record.name, record.levelname) == ("forebay.formats.csv.read", "WARNING")
        message = record.getMessage()
        assert message.startswith(f"/data/part-1.csv {problem}; columns match by position: ")
        assert "correct the schema" in message and "enforceSchema" in message


def test_a_mismatch_is_logged_once_per_file_however_it_is_sliced(memory_file, caplog) -> None:
    data = b"\n#x\na,c\n1,a\n2,b\n"
    for cut in range(1, len(data)):
        caplog.clear()
        for position, end in ((0, cut), (cut, None)):
            rows(data, AB, memory_file, header=True, comment="#", position=position, end=end)
        assert len(caplog.records) == 1, cut


@pytest.mark.parametrize("multi_line", [False, True])
def test_names_made_from_a_header_match_it_and_inference_logs_nothing(memory_file, caplog, multi_line) -> None:
    files = [memory_file(b"x,X,,NA\n1,2,3,4\n"), memory_file(b"x,y,z,w\n1,2,3,4\n", "/data/part-2.csv")]
    reader = CsvFormat(CsvOptions(header=True, infer_schema=True, null_value="NA", multi_line=multi_line))
    schema = reader.infer_schema(files)
    assert schema.names == ["x0", "X1", "_c2", "_c3"]
    assert not caplog.records
    for file in files:
        assert [batch.num_rows for batch, _ in reader.read(file, schema)] == [1]
    assert ["part-2" in record.getMessage() for record in caplog.records] == [True]


def test_blank_lines_and_comments_may_stand_before_the_header_even_across_slices(memory_file) -> None:
    data = b"\n  \n#x\n\na,b\n1,c\n"
    for cut in range(1, len(data)):
        first = rows(data, AB, memory_file, header=True, comment="#", end=cut)
        second = rows(data, AB, memory_file, header=True, comment="#", position=cut)
        assert first + second == [(1, "c")]


def test_a_slice_far_into_the_file_does_not_look_for_the_header(memory_file, monkeypatch) -> None:
    opened = []
    file = memory_file(b"a,b\n" + b"1,c\n" * 400_000)
    reader = CsvFormat(CsvOptions(header=True))
    counting = type(
        "File", (), {"path": "/x.csv", "size": file.size, "open": lambda self: (opened.append(1), file.open())[1]}
    )()
    assert sum(batch.num_rows for batch, _ in reader.read(counting, AB, position=1_200_000)) == 100_001
    assert len(opened) == 1


def test_an_empty_file_has_no_rows(memory_file) -> None:
    for options in ({}, {"header": True}, {"multi_line": True}, {"header": True, "multi_line": True}):
        assert rows(b"", AB, memory_file, **options) == []
        assert rows(b"\n\n", AB, memory_file, **options) == []


def test_a_newline_always_ends_a_record_unless_multiline(memory_file) -> None:
    data = b'1,"a\nb"\n'
    assert rows(data, WITH_CORRUPT, memory_file) == [(1, None, "a"), (None, 'b"', None)]
    assert rows(data, WITH_CORRUPT, memory_file, multi_line=True) == [(1, None, "a\nb")]


@pytest.mark.parametrize("encoding", ["UTF-16", "UTF-16LE", "UTF-16BE", "UTF-32", "ISO-8859-1", "us-ascii", "utf-8"])
@pytest.mark.parametrize("multi_line", [False, True])
def test_text_in_other_encodings_is_read_and_kept_whole(memory_file, encoding, multi_line) -> None:
    text = "1,abc\n2,x\n" if encoding == "us-ascii" else "1,äbc\n2,ü\n"
    reader = CsvFormat(CsvOptions(encoding=encoding, multi_line=multi_line))
    file = memory_file(text.encode(encoding))
    found = [tuple(row.values()) for batch, _ in reader.read(file, AB) for row in batch.to_pylist()]
    assert found == [(int(line[0]), line[2:]) for line in text.splitlines()]
    assert reader.sliceable(file) is (encoding == "utf-8" and not multi_line)


@pytest.mark.parametrize(("encoding", "order"), [("UTF-16", "utf-16-be"), ("UTF-32", "utf-32-be")])
def test_without_a_mark_wide_characters_are_big_endian_as_in_java(memory_file, encoding, order) -> None:
    for text in ("1,äbc\n2,ü\n", "", "7"):
        for multi_line in (False, True):
            found = rows(text.encode(order), AB, memory_file, encoding=encoding, multi_line=multi_line)
            assert found == [(int(line[0]), line[2:] or None) for line in text.splitlines()]


@pytest.mark.parametrize("multi_line", [False, True])
def test_a_byte_order_mark_amid_a_file_is_text_wherever_reading_begins(memory_file, multi_line) -> None:
    text = pa.schema([("a", pa.string()), ("b", pa.string())])
    data = 'a,b\n\ufeffx,y\n\ufeff\n"q"r,s\n'.encode()
    expected = [("\ufeffx", "y"), ("\ufeff", None), ("q", "s")]
    found = rows(data, text, memory_file, header=True, multi_line=multi_line)
    assert [(a, b) for a, b in found][:2] == expected[:2]
    assert len(found) == 3
    assert rows(data, text, memory_file, position=4, multi_line=multi_line) == found


def test_the_number_of_fields_most_records_have_is_learnt(memory_file) -> None:
    data = b"".join(b"%d,x,%d\n" % (number, number) for number in range(1000)) + b"7,y\n"
    found = rows(data, WITH_CORRUPT, memory_file, block_bytes=2000)
    assert found[:2] == [(0, "0,x,0", "x"), (1, "1,x,1", "x")]
    assert found[-2:] == [(999, "999,x,999", "x"), (7, None, "y")]
    assert len(found) == 1001
    wide = pa.schema({"a": pa.int32(), "b": pa.string(), "c": pa.int32(), "d": pa.int32()})
    assert rows(data, wide, memory_file, block_bytes=2000)[500] == (500, "x", 500, None)


def test_a_file_may_hold_the_characters_of_placeholders(memory_file) -> None:
    reserved = "".join(map(chr, range(0xFDD0, 0xFDF0)))
    for taken in (reserved[:5], reserved[1:3]):
        data = f'1,"{taken}\\"b\\\\"\n'.encode()
        assert rows(data, AB, memory_file) == [(1, taken + '"b\\')]


@pytest.mark.parametrize("options", [{}, {"multi_line": True}], ids=str)
def test_a_block_with_all_characters_of_placeholders_is_read_as_any_other(memory_file, options) -> None:
    reserved = "".join(map(chr, range(0xFDD0, 0xFDF0)))
    data = f'1,"{reserved}\\"b\\\\"\n#2,x\n\n3,"a,b"\n4\n'
    expected = [(1, None, reserved + '"b\\'), (3, None, "a,b"), (4, "4", None)]
    assert rows(data.encode(), WITH_CORRUPT, memory_file, comment="#", **options) == expected
    if not options:
        lines = data.replace("\n", "|").replace("b", "b\r\n").encode()
        found = rows(lines, WITH_CORRUPT, memory_file, comment="#", line_sep="|")
        assert [row[2] for row in found] == [reserved + '"b\r\n\\', "a,b\r\n", None]


def test_batches_are_neither_tiny_nor_huge(memory_file) -> None:
    sizes = [batch.num_rows for batch, _ in CsvFormat().read(memory_file(b"1,x\n" * 300_000), AB)]
    assert sum(sizes) == 300_000
    assert min(sizes) > 8_000
    assert max(sizes) <= 70_000


def test_closing_the_generator_closes_the_file(memory_file) -> None:
    file = memory_file(b"1,a\n" * 1000)
    raw = file.open()
    found = CsvFormat(CsvOptions(block_bytes=100)).read(
        type("File", (), {"path": "/x.csv", "size": 4000, "open": lambda self: raw})(), AB
    )
    next(found)
    found.close()  # type: ignore[attr-defined]
    assert raw.closed


def test_windows_of_multiline_files_grow_until_a_record_fits(memory_file, monkeypatch) -> None:
    monkeypatch.setattr("forebay.formats.csv.read._HEAD_BYTES", 8)
    data = b'1,"' + b"line\r\n" * 100 + b'"\r\n2,b\r\n'
    assert rows(data, AB, memory_file, multi_line=True, block_bytes=16) == [(1, "line\n" * 100), (2, "b")]


def test_dates_and_times_in_usual_shapes(memory_file) -> None:
    schema = pa.schema({"d": pa.date32(), "t": pa.timestamp("us", tz="UTC"), "n": pa.timestamp("us")})
    data = b"1969-12-31,1969-12-31 23:59:59.5,1500-01-01T00:00:00\n"
    (row,) = rows(data, schema, memory_file, time_zone="America/New_York")
    assert row == (
        dt.date(1969, 12, 31),
        dt.datetime(1970, 1, 1, 4, 59, 59, 500_000, dt.UTC),
        dt.datetime(1500, 1, 1),
    )


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_an_empty_value_after_a_quoted_one_at_the_end_of_the_file_is_null(memory_file, end) -> None:
    schema = pa.schema({"a": pa.int32(), "b": pa.int32(), "_corrupt_record": pa.string()})
    assert rows(b'"8",' + end, schema, memory_file, null_value="x") == [(8, None, None)]
