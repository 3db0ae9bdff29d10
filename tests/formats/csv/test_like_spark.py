# SPDX-License-Identifier: Apache-2.0
"""CSV against Spark's own reader, value for value: damaged, ambiguous and generated files, many in each Spark job."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from text_files.csv_files import (
    ARROW,
    ODD,
    file_of,
    file_of_white_lines,
    for_spark,
    options_of,
    options_of_white_lines,
    plain_value,
)

from forebay.formats.csv.format import CsvFormat
from forebay.formats.csv.options import CsvOptions

Files = Callable[..., Any]


def listed(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of a column. Dates and times are numbers, since Python's calendar ends with the year 9999."""
    if pa.types.is_date(column.type):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    return column.to_pylist()


def of_spark(
    spark: SparkSession, directory: Path, files: Sequence[bytes], ddl: str, options: dict[str, Any]
) -> list[list[str]]:
    """The rows of each file, read by one Spark job."""
    directory.mkdir()
    for number, data in enumerate(files):
        (directory / f"{number:05}.csv").write_bytes(data)
    frame = spark.read.schema(ddl).options(**for_spark(options)).csv(str(directory))
    table = frame.select("*", "_metadata.file_name").toArrow()
    rows: list[list[str]] = [[] for _ in files]
    for *values, name in zip(*map(listed, table.columns), strict=True):
        rows[int(name[:5])].append(", ".join(map(repr, values)))
    return rows


def of_ours(
    memory_file: Files, data: bytes, schema: pa.Schema, options: dict[str, Any], cuts: Sequence[int] = ()
) -> list[str]:
    reader = CsvFormat(CsvOptions(**options))
    batches = [
        batch
        for start, end in pairwise([0, *cuts, None])
        for batch, _ in reader.read(memory_file(data), schema, position=start, end=end)
    ]
    lists = [[value for batch in batches for value in listed(batch.column(place))] for place in range(len(schema))]
    return [", ".join(map(repr, values)) for values in zip(*lists, strict=True)]


@pytest.mark.parametrize("multi_line", [False, True])
@settings(
    max_examples=settings().max_examples // 12,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(st.integers(0, 10**9))
def test_generated_files_read_as_spark_reads_them(spark_utc, memory_file, tmp_path_factory, multi_line, seed) -> None:
    chance = random.Random(seed)
    options = options_of(chance, multi_line=multi_line)
    kinds = [chance.choice([*ARROW, "string", "string"]) for _ in range(chance.choice([1, 2, 3, 4]))]
    columns = [(f"c{place}", kind) for place, kind in enumerate(kinds)]
    if "mode" not in options:
        columns.insert(chance.randrange(len(columns) + 1), ("_corrupt_record", "string"))
    schema = pa.schema([(name, ARROW[kind]) for name, kind in columns])
    ddl = ", ".join(f"{name} {kind}" for name, kind in columns)
    files = [file_of(chance, kinds, options) for _ in range(60)]
    expected = of_spark(spark_utc, tmp_path_factory.mktemp("csv") / "files", files, ddl, options)
    for data, rows in zip(files, expected, strict=True):
        block_bytes = chance.choice([1 << 20, 40, 200])
        cuts = (
            [] if multi_line else sorted({chance.randint(1, len(data) + 1) for _ in range(chance.choice([0, 0, 1, 3]))})
        )
        assert of_ours(memory_file, data, schema, {**options, "block_bytes": block_bytes}, cuts) == rows, (
            options,
            data,
            cuts,
        )


@settings(
    max_examples=settings().max_examples // 10,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(st.integers(0, 10**9))
def test_lines_of_white_space_are_no_records_as_for_spark(spark_utc, memory_file, tmp_path_factory, seed) -> None:
    chance = random.Random(seed)
    options = options_of_white_lines(chance)
    end = options.get("line_sep") or chance.choice(["\n", "\r\n"])
    width = chance.randint(1, 4)
    columns = [("a", "int"), ("b", "string"), ("c", "string"), ("d", "int")][:width]
    schema = pa.schema([*((name, ARROW[kind]) for name, kind in columns), ("_corrupt_record", pa.string())])
    ddl = ", ".join(f"{name} {kind}" for name, kind in [*columns, ("_corrupt_record", "string")])
    files = [data for _ in range(40) if len(data := file_of_white_lines(chance, end)) > 8]
    expected = of_spark(spark_utc, tmp_path_factory.mktemp("csv") / "files", files, ddl, options)
    for data, rows in zip(files, expected, strict=True):
        case = (options, width, data)
        block_bytes = chance.choice([1 << 20, 200])
        assert of_ours(memory_file, data, schema, {**options, "block_bytes": block_bytes}) == rows, case
        reader = CsvFormat(CsvOptions(**options, block_bytes=block_bytes))
        for some in (["a"], ["_corrupt_record"], []):
            read = reader.read(memory_file(data), schema, columns=some)
            assert sum(batch.num_rows for batch, _ in read) == len(rows), (some, case)


# A value with all characters that could replace others, and with escapes.
RESERVED = f'1,"{"".join(map(chr, range(0xFDD0, 0xFDF0)))}\\"b\r\n"|'.encode()
TORTURE: list[tuple[dict[str, Any], list[bytes]]] = [
    ({}, [
        b'"",x\n', b",x\n", b'x,""\n', b"x,\n", b"a,b,c\n", b"a\n", b"   \n", b"\n\n", b"\x00a,b\n", b"\x00\n",
        b" \x01\n",
        b'"a\nb",c\n', b'a"b,c\n', b'"a"b,c\n', b'"a""b",c\n', b'"a\\"b",c\n', b'"a" ,c\n', b' "a",c\n', b'"a,b\n',
        b'a,"b\n', b"a\\,b,c\n", b"\xef\xbb\xbfa,b\n", b"a,\xff\xfe\n", b"a,\xe2\x82\n", b"a,b\r\nc,d\r\n",
        b"a,b\rc,d\n",
        b'"a\\\\",b\n', b'"a\\b",c\n', b'"a\\\\"b",c\n', b'"\\"",\n', b'"","",""\n', b'"a,",b\n', b'",a",b\n',
        b'"a"\n"b"\n',
        b"a,b\x0c\nc\n", b'","\n', b'"a""\n', b'""a"",b\n', b"\xed\xa0\x80,b\n", b"a,\xed\xa0\n", b"a,b", b"",
    ]),
    ({}, [b'"he said ""yes"" twice",x\n', b'"first, ""yes"", then no",x\n', b'"""as a whole""",x\n', b'"5"" pipe",x\n',
        b'"{""k"":""v"",""w"":1}",b\n', b'"ends,",x ""y""\n', b'1,"a"" b"\n', b'1,"a""b"\n', b'"a""b",\n', b'"a"" ,b\n',
        b'"a, ""b"" \\"c",x\n', b'1,"a""b#\n', b'"a ""b"" c\nd ""e""",x\n']),
    ({"header": True}, [b"a,b\n1,2\n", b"\n\na,b\n1,2\n", b"a\n1,2\n", b"a,b,c\n1,2\n", b'"a\n1,2\n',
        b"\xef\xbb\xbfa,b\n1,2\n", b"a,b"]),
    ({}, [marks + line for marks in (b"\xef\xbb\xbf" * 2, b"\xef\xbb\xbf" * 3)
        for line in (b"a,b\n", b'"a",b\n"c",d\n', b'"",b\n', b",b\n", b"a,b\n\xef\xbb\xbf\xef\xbb\xbfc,d\n", b"#c\n")]),
    ({"header": True}, [b"\xef\xbb\xbf" * 2 + b"a,b\n1,2\n", b"\xef\xbb\xbf" * 2 + b'"a",b\n1,2\n']),
    ({}, [blanks + b"\xef\xbb\xbf" * marks + b"a,b\n\xef\xbb\xbfc,d\n"
        for blanks in (b"\n", b" \r\x01\n", b"\xef\xbb\xbf\n") for marks in (1, 2)]),
    ({"comment": "#"}, [b"#\n\n\xef\xbb\xbfa,b\n"]),
    ({"header": True}, [start + line for start in (b"\n\xef\xbb\xbf", b"\xef\xbb\xbf" * 2)
        for line in (b"\nc,d\n", b" \nc,d\n", b"a,b\nc,d\n", b"a,b\n\xef\xbb\xbfc,d\n")]),
    ({"encoding": "ISO-8859-1"}, [b"\xef\xbb\xbf" * marks + b"a,b\n\xef\xbb\xbfc,d\n" for marks in range(4)]),
    ({"encoding": "UTF-16LE", "line_sep": "\n"}, [marks + "a,b\nc,d\n".encode("utf-16-le")
        for marks in (b"\xff\xfe", b"\xff\xfe\xff\xfe", b"\xef\xbb\xbf", b"\xef\xbb\xbf\xff\xfe")]),
    ({"encoding": "ISO-8859-1", "multi_line": True}, [b"\xef\xbb\xbfa,b\n"]),
    ({"multi_line": True}, [b"\xef\xbb\xbf" * 2 + b"a,b\nc,d\n", b"\xef\xbb\xbf" * 2 + b'"a\n",b\nc,d\n']),
    ({"null_value": "NA"}, [b'"",x\n', b",x\n", b'x,""\n', b"x,\n", b'NA,"NA"\n', b'x," NA"\n']),
    ({"null_value": "NA", "empty_value": "EV"}, [b'"",x\n', b",x\n", b'x,""\n', b"EV,NA\n"]),
    ({"escape": '"'}, [b'"a""b",c\n', b'"""a""",b\n', b'"a"b",c\n', b'"",b\n', b'"""",b\n', b'"a\\",b\n', b'"a""\n',
        b'"a""b\n']),
    ({"comment": "#"}, [b"#a,b\nc,d\n", b" #a,b\n", b"a,#b\n", b'"#a",b\n']),
    ({"comment": "#", "header": True}, [b"#a,b\nc,d\ne,f\n", b" #a,b\nc,d\n"]),
    ({"ignore_leading_white_space": True}, [b'  "a" ,  b\n', b"  ,  \n", b' "a,b", c\n', b'"a",  \n']),
    ({"line_sep": "\n"}, [b"a,b\r\nc,d\r\n", b'"a","b"\r\n']),
    ({"line_sep": "|"}, [b'1,"a,b\r\n"|', b'1,"x\ny"|2,p\nq|', b'1,"p""\nq"|', b'1,"a\n\\"b"|', b'"a\n"b",c|d,"e\nf"|',
        RESERVED]),
    ({"sep": "\t"}, [b"\t\t\n", b"a\t\n", b"\ta\n", b" \t \n", b'"a\tb"\tc\n', b'""\t""\n']),
    ({"multi_line": True}, [b'"a\nb",c\nd,e\n', b'"a\r\nb",c\r\nd,e\r\n', b"a,b\n\n  \nc,d\n", b'"a,b\nc,d\ne,f\n',
        b"a,b\rc,d\r", b'x,y\n"a""b\n",c\n']),
]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "files"), TORTURE, ids=[f"{number} {options}" for number, (options, _) in enumerate(TORTURE)]
)
def test_hand_written_cases_read_as_spark_reads_them(spark_utc, memory_file, tmp_path, options, files) -> None:
    schema = pa.schema([(name, pa.string()) for name in ("a", "b", "_corrupt_record")])
    expected = of_spark(spark_utc, tmp_path / "files", files, "a string, b string, _corrupt_record string", options)
    found = [of_ours(memory_file, data, schema, options) for data in files]
    assert dict(zip(files, found, strict=True)) == dict(zip(files, expected, strict=True))


@settings(
    max_examples=settings().max_examples // 8,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(st.integers(0, 10**9))
def test_schemas_are_inferred_as_spark_infers_them(spark_utc, memory_file, tmp_path_factory, seed) -> None:
    chance = random.Random(seed)
    options: dict[str, Any] = {"infer_schema": chance.random() < 0.9}
    others = {
        "header": True,
        "comment": "#",
        "prefer_date": False,
        "multi_line": True,
        "null_value": "NA",
        "date_format": "dd/MM/yyyy",
        "timestamp_format": "yyyy-MM-dd HH:mm:ss",
        "nan_value": "nan",
    }
    options.update({name: value for name, value in others.items() if chance.random() < 0.25})
    lines = [chance.choice(["a,b,c,d", "a,A,,b", "a,b", '"a b",b,NA,c,e'])] if "header" in options else []
    pools = [
        [plain_value(chance, kin) for _ in range(3)] + chance.choices(ODD[kin], k=chance.choice([0, 0, 1, 2]))
        for kin in chance.choices(list(ODD), k=4)
    ]
    for _ in range(chance.randint(0, 5)):
        values = [chance.choice(pool).replace('"', "") for pool in pools]
        lines.append(",".join(f'"{value}"' if "," in value else value for value in values))
    data = "\n".join(lines).encode()
    path = tmp_path_factory.mktemp("csv") / "x.csv"
    path.write_bytes(data)
    schema = spark_utc.read.options(**for_spark(options)).csv(str(path)).schema
    found = CsvFormat(CsvOptions(**options)).infer_schema([memory_file(data)])
    expected = [(item.name, ARROW.get(item.dataType.simpleString(), item.dataType.simpleString())) for item in schema]
    expected = [(name, _decimal(kind) if isinstance(kind, str) else kind) for name, kind in expected]
    assert [(item.name, item.type) for item in found] == expected, (options, data)


def _decimal(name: str) -> pa.DataType:
    precision, scale = name.removeprefix("decimal(").removesuffix(")").split(",")
    return pa.decimal128(int(precision), int(scale))


@pytest.mark.parametrize("encoding", ["ISO-8859-1", "US-ASCII", "UTF-16", "UTF-16LE"])
def test_encodings_read_as_spark_reads_them(spark_utc, memory_file, tmp_path, encoding) -> None:
    # Spark cuts lines before it decodes them, so wide encodings come out right with multiLine only.
    options = {"encoding": encoding, "multi_line": encoding.startswith("UTF")}
    text = 'a,b\nä,\u20ac\n"x",y\n'
    files = [text.encode(encoding, "replace"), b"a,\xe4\xff\n" if not options["multi_line"] else "1,2".encode(encoding)]
    if encoding == "UTF-16":
        files.append(text.encode("UTF-16BE"))  # without a mark
    expected = of_spark(spark_utc, tmp_path / "files", files, "a string, b string", options)
    schema = pa.schema([("a", pa.string()), ("b", pa.string())])
    assert [of_ours(memory_file, data, schema, options) for data in files] == expected


@pytest.mark.soak(but=["yyyy-MM-dd'T'HH:mm:ssXXX-None", "dd/MM/yyyy HH:mm Z-True"])
@pytest.mark.parametrize("fallback", [None, True, False])
@pytest.mark.parametrize("pattern", ["yyyy-MM-dd'T'HH:mm:ssXXX", "yyyy-MM-dd HH:mm:ss[XXX]", "dd/MM/yyyy HH:mm Z"])
def test_zones_in_patterns_of_times_without_zone_are_read_as_by_spark(
    spark_utc, memory_file, tmp_path, pattern, fallback
) -> None:
    options: dict[str, Any] = {"timestamp_ntz_format": pattern, "enable_date_time_parsing_fallback": fallback}
    options = {name: value for name, value in options.items() if value is not None}
    zoned = b"2020-01-02T03:04:05+01:00\n2020-01-02 03:04:05Z\n31/12/2019 23:59 +0100\n"
    files = [zoned, b"2020-01-02T03:04:05Z\n", b"2020-01-02 03:04:05\n", zoned + b"2020-01-02 03:04:05\n\n2020-02-30\n"]
    schema = pa.schema([("t", pa.timestamp("us")), ("_corrupt_record", pa.string())])
    expected = of_spark(spark_utc, tmp_path / "files", files, "t timestamp_ntz, _corrupt_record string", options)
    found = [of_ours(memory_file, data, schema, options) for data in files]
    assert dict(zip(files, found, strict=True)) == dict(zip(files, expected, strict=True))


def test_decimals_of_any_length_read_as_spark_reads_them(spark_utc, memory_file, tmp_path) -> None:
    kinds = [(38, 0), (38, 1), (38, 18), (38, 38), (19, 18), (10, 2), (1, 1)]
    chance = random.Random(8)
    tokens = ["9" * 39, "9" * 5000, "1e" + "9" * 5000, "1e-" + "9" * 5000, "0e" + "9" * 5000, "99999", "1e37", "1e38"]
    for _ in range(300):
        digits = "".join(chance.choices("0123456789", k=chance.choice([1, 5, 37, 38, 39, 40, 77])))
        point = chance.randint(0, len(digits))
        tokens.append(
            chance.choice([digits, f"{digits[:point]}.{digits[point:]}"]) + chance.choice(["", "", "e3", "e-38"])
        )
    data = "".join(",".join([token] * len(kinds)) + "\n" for token in tokens).encode()
    schema = pa.schema([(f"c{at}", pa.decimal128(*kind)) for at, kind in enumerate(kinds)])
    ddl = ", ".join(f"c{at} decimal{kind}" for at, kind in enumerate(kinds))
    (expected,) = of_spark(spark_utc, tmp_path / "files", [data], ddl, {})
    found = of_ours(memory_file, data, schema, {})
    assert len(found) == len(expected) == len(tokens)
    assert not [each for each in zip(tokens, found, expected, strict=True) if each[1] != each[2]]


@pytest.mark.soak(but=["{}-False"])
@pytest.mark.parametrize("multi_line", [False, pytest.param(True, marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"escape": '"'},
        {"unescaped_quote_handling": "STOP_AT_CLOSING_QUOTE"},
        {"unescaped_quote_handling": "SKIP_VALUE"},
        {"unescaped_quote_handling": "BACK_TO_DELIMITER"},
    ],
    ids=str,
)
def test_long_stray_quotes_read_as_spark_reads_them(spark_utc, memory_file, tmp_path, options, multi_line) -> None:
    pieces = ['"', '""', '"x', '"\\', '" x', '\\\\"', '\\"', "\\", '" ', '"\r\n', "1,2\n"]
    if options.get("unescaped_quote_handling") != "BACK_TO_DELIMITER":
        pieces += ['",', '",\\"']  # Spark fails where it goes back to more than one of them
    files = [f'1,"a{piece * 400}{end}'.encode() for piece in pieces for end in ('b",3\nc,d\n', '"\nc,d\n', "")]
    expected = of_spark(
        spark_utc, tmp_path / "files", files, "a string, b string", {**options, "multi_line": multi_line}
    )
    schema = pa.schema([("a", pa.string()), ("b", pa.string())])
    for block_bytes in (1 << 20, 100):
        given = {**options, "multi_line": multi_line, "block_bytes": block_bytes}
        found = [of_ours(memory_file, data, schema, given) for data in files]
        assert dict(zip(files, found, strict=True)) == dict(zip(files, expected, strict=True))


def test_numbers_of_many_digits_read_as_spark_reads_them(spark_utc, memory_file, tmp_path) -> None:
    many = 5000
    tokens = ["7" * many, "0" * many, "0" * many + "7", "-" + "0" * many + "7", "7" * many + "x", "0" * many + "x"]
    tokens += ["9" * 19, "9" * 20, "-" + "9" * 20, "9" * 10, "\u0663" * 9, "\u0660" * many, "\u0663" * many]
    tokens += ["0." + "7" * many, "7" * many + ".", "." + "7" * many, "7." + "7" * many + "e1x", "0x" + "f" * many]
    tokens += ["0x" + "f" * many + "p1", "0x1." + "f" * many + "p1", "1e" + "7" * many, "1e-" + "7" * many]
    kinds = {
        "int": pa.int32(),
        "bigint": pa.int64(),
        "tinyint": pa.int8(),
        "double": pa.float64(),
        "float": pa.float32(),
    }
    data = "".join(",".join([token] * len(kinds)) + "\n" for token in tokens).encode()
    schema = pa.schema([(f"c{at}", kind) for at, kind in enumerate(kinds.values())])
    ddl = ", ".join(f"c{at} {kind}" for at, kind in enumerate(kinds))
    (expected,) = of_spark(spark_utc, tmp_path / "files", [data], ddl, {})
    found = of_ours(memory_file, data, schema, {})
    assert not [each for each in zip(tokens, found, expected, strict=True) if each[1] != each[2]]
