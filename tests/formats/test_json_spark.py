# SPDX-License-Identifier: Apache-2.0
"""JSON against Spark's own reader, value for value."""

from __future__ import annotations

import datetime as dt
import io
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from text_files.json_records import AROUND, ENCODED, LENIENT, TORTURE, TYPES, VALUES, mutated, schema_of, spelled
from text_files.rows import plain, rows

from forebay.errors import ForebayError
from forebay.formats.json.cells import CellReader
from forebay.formats.json.format import JsonFormat
from forebay.formats.json.options import JsonOptions
from forebay.formats.values.ddl import parse_schema
from forebay.options import class_options

OPTION_NAMES = {spec.name: spec.python_name for spec in class_options(JsonOptions)}
ZONE = "America/New_York"


@dataclass(frozen=True)
class MemoryFile:
    data: bytes
    path: str = "/data/part-1.json"

    @property
    def size(self) -> int:
        return len(self.data)

    def open(self) -> BinaryIO:
        return io.BytesIO(self.data)


def ours(data: bytes, schema: pa.Schema, options: dict[str, Any]) -> list[str] | str:
    named = {OPTION_NAMES[name]: value for name, value in options.items()}
    try:
        reader = JsonFormat(JsonOptions(**{"time_zone": ZONE, **named}))
        batches = [batch for batch, _ in reader.read(MemoryFile(data), schema)]
    except ForebayError:
        return "refused"
    for batch in batches:
        batch.validate(full=True)
    return rows(pa.Table.from_batches(batches, schema))


def theirs(
    spark: SparkSession, path: Path, text: str | StructType, options: dict[str, Any]
) -> tuple[pa.Schema, list[str] | str]:
    spelled = {name: str(value).lower() if value in (True, False) else str(value) for name, value in options.items()}
    frame = spark.read.options(**spelled).schema(text).json(str(path))
    try:
        found: list[str] | str = rows(frame.toArrow())
    except Exception:  # noqa: BLE001 - Spark has many classes for one kind of failure
        found = "refused"
    return to_arrow_schema(frame.schema, timezone="UTC"), found


def compare(spark: SparkSession, tmp_path: Path, lines: list[bytes], text: str, **options: Any) -> None:
    """All lines at once; if that differs, say which line does."""
    differing = _differing(spark, tmp_path / "lines.json", lines, text, options)
    assert not differing, "\n".join(differing)


def _differing(spark: SparkSession, path: Path, lines: list[bytes], text: str, options: dict[str, Any]) -> list[str]:
    data = b"".join(line + b"\n" for line in lines)
    path.write_bytes(data)
    schema, expected = theirs(spark, path, text, options)
    found = ours(data, schema, options)
    if found == expected:
        return []
    if len(lines) == 1:
        return [f"{lines[0]!r} with {options}: ours {found}, Spark {expected}"]
    half = len(lines) // 2
    parts = [_differing(spark, path, part, text, options) for part in (lines[:half], lines[half:])]
    return [line for part in parts for line in part] or [f"only together: {lines!r}"]


@pytest.mark.soak(but=["int", "double", "string", "timestamp", "decimal(5,2)", "struct<a:int>"])
@pytest.mark.parametrize("kind", TYPES)
def test_every_value_is_read_as_every_type_like_spark(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    compare(spark, tmp_path, [*TORTURE, *ENCODED], schema_of(kind))


@pytest.mark.parametrize("options", LENIENT, ids=lambda options: " ".join(options) or "default")
@pytest.mark.parametrize(
    "kind", ["string", *(pytest.param(kind, marks=pytest.mark.soak) for kind in ("int", "timestamp"))]
)
def test_broken_records_leave_the_same_values_as_in_spark(
    spark: SparkSession, tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    rnd = random.Random(kind)
    lines = [mutated(rnd.choice(TORTURE), rnd) for _ in range(600)]
    # Jackson confuses a name that begins with the byte FF with an earlier one.
    compare(spark, tmp_path, [line for line in lines if b'"\xff' not in line], schema_of(kind), **options)


SIMPLE: dict[str, tuple[str, st.SearchStrategy[Any]]] = {
    "boolean": ("boolean", st.booleans()),
    "tinyint": ("tinyint", st.integers(-128, 127)),
    "int": ("int", st.integers(-(2**31), 2**31 - 1)),
    "bigint": ("bigint", st.integers(-(2**63), 2**63 - 1)),
    "float": ("float", st.floats(width=32)),
    "double": ("double", st.floats()),
    "string": ("string", st.text(st.characters(exclude_categories=["Cs"]))),
    "binary": ("binary", st.binary()),
    "date": ("date", st.dates()),
    "timestamp": ("timestamp", st.datetimes(timezones=st.timezones() | st.just(dt.UTC))),
    "ntz": ("timestamp_ntz", st.datetimes()),
    "decimal": ("decimal(20,3)", st.decimals(-(10**16), 10**16, places=3)),
    "wide": ("decimal(38,10)", st.decimals(-(10**27), 10**27, places=10)),
}


@st.composite
def typed(draw: st.DrawFn, depth: int = 2) -> tuple[str, st.SearchStrategy[Any]]:
    kind = draw(st.sampled_from(["simple", "simple", "array", "struct", "map"] if depth else ["simple"]))
    if kind == "simple":
        text, values = SIMPLE[draw(st.sampled_from(sorted(SIMPLE)))]
        return text, st.none() | values
    text, values = draw(typed(depth - 1))
    if kind == "array":
        return f"array<{text}>", st.none() | st.lists(values, max_size=3)
    if kind == "map":
        return f"map<string,{text}>", st.none() | st.dictionaries(st.text("abc", max_size=2), values, max_size=3)
    return f"struct<p:{text},q:int>", st.none() | st.fixed_dictionaries(
        {"p": values}, optional={"q": st.integers(0, 9)}
    )


@st.composite
def tables(draw: st.DrawFn) -> tuple[str, list[bytes]]:
    columns = [draw(typed()) for _ in range(draw(st.integers(1, 5)))]
    text = ", ".join(f"c{place} {kind}" for place, (kind, _) in enumerate(columns))
    optional = {f"c{place}": values for place, (_, values) in enumerate(columns)}
    records = draw(st.lists(st.fixed_dictionaries({}, optional=optional), max_size=12))
    ascii_only = draw(st.booleans())
    return f"{text}, _corrupt_record string", [
        json.dumps(spelled(record), ensure_ascii=ascii_only).encode("utf-8", "surrogatepass") for record in records
    ]


@settings(
    max_examples=settings().max_examples // 4, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(table=tables())
def test_generated_tables_read_as_spark_reads_them(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, table: tuple[str, list[bytes]]
) -> None:
    text, lines = table
    compare(spark, tmp_path_factory.mktemp("generated"), lines, text)


def test_what_spark_writes_is_read_back(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.sql(
        """
        select id, cast(id % 100 as tinyint) b, id * 1.5D d, cast(id / 3 as float) f, id % 2 = 0 flag,
        if(id % 3 = 0, null, concat('text "', id, '" é😀\\n')) t, cast(concat('bin', id) as binary) bin,
        date_add(date'1890-01-01', cast(id * 97 as int)) day,
        timestamp_micros(id * 86400000123456 - 3000000000000000) ts,
        cast(timestamp_micros(id * 86400000123456) as timestamp_ntz) ntz, cast(id * -1.01 as decimal(38, 18)) n,
        array(id, null, id + 1) l, array(named_struct('x', id, 'y', array(cast(id as string)))) ls,
        map(concat('k', id), named_struct('v', id)) m, named_struct('a', id, 'b', array(array(id))) st
        from range(0, 500)
        """
    )
    frame.coalesce(1).write.json(str(tmp_path / "written"))
    (path,) = (tmp_path / "written").glob("*.json")
    schema, expected = theirs(spark, path, frame.schema, {})
    assert ours(path.read_bytes(), schema, {}) == expected


CASES: dict[str, tuple[bytes, dict[str, Any]]] = {
    "depth 999": (b'{"z":1,"q":' + b"[" * 999 + b"]" * 999 + b',"y":2}', {}),
    "depth 1000": (b'{"z":1,"q":' + b"[" * 1000 + b"]" * 1000 + b',"y":2}', {}),
    "1000 digits": (b'{"z":1,"q":' + b"1" * 1000 + b',"y":2}', {}),
    "1001 digits": (b'{"z":1,"q":' + b"1" * 1001 + b',"y":2}', {}),
    "long name": (b'{"z":1,"' + b"n" * 50_000 + b'":1,"y":2}', {}),
    "too long name": (b'{"z":1,"' + b"n" * 50_001 + b'":1,"y":2}', {}),
    "too long string": (b'{"z":1,"a":"' + b"n" * 20_000_001 + b'","y":2}\n{"z":2}', {}),
    "marks": (b'\xef\xbb\xbf{"z":1}\n\xef\xbb\xbf{"z":2}\n{"z":3}', {}),
    "nothing but a mark": (b'{"z":1}\n\xef\xbb\xbf\n\xff\xfe\n\xef\xbb\xbf \n{"z":3}', {}),
    "two marks": (b"\xef\xbb\xbf\xef\xbb\xbf", {}),
    "mark in UTF-8": (b'\xef\xbb\xbf{"z":1}\n\xef\xbb\xbf{"z":2}\n{\0}\0\n{"z":3}', {"encoding": "UTF-8"}),
    "blank lines": (b'\n\n  \n{"z":1}\n\t\n\r\n{"z":2}\r\n\r\n{"z":3}\r{"z":4}', {}),
    "nothing": (b"", {}),
    "several in a line": (b'{"z":1}{"z":2}\n{"z":3} {"z":4}\n[{"z":5},{"z":6}] x\n[]\n{}', {}),
    "newline in a string": (b'{"z":1,"a":"x\ny"}', {}),
    "names twice": (b'{"z":1,"z":2}\n{"z":1,"z":"x"}\n{"z":"x","z":1}\n{"z":1,"z":null}', {}),
    "half names": (b'{"z":1,"\\ud800":1}\n{"z":2,"\\ud83d\\ude00":1}\n{"z":3,"s":{"\xed\xa0\x80":1}}', {}),
    "lineSep": (b'{"z":1}|{"z":\n2}|{"z":3}|', {"lineSep": "|"}),
    "lineSep of two": (b'{"z":1}ab{"z":2}ab{"z":3,"a":"\n"}ab\nab', {"lineSep": "ab"}),
    "FAILFAST": (b'{"z":1}\nbad', {"mode": "FAILFAST"}),
    "mark in ISO-8859-1": (b'\xef\xbb\xbf{"z":1}\n{"z":2}', {"encoding": "ISO-8859-1", "lineSep": "\n"}),
    "UTF-16LE": ('{"z":1,"a":"é"}\n{"z":2}\n'.encode("utf-16-le"), {"encoding": "UTF-16LE", "lineSep": "\n"}),
    "ISO-8859-1": (b'{"z":1,"a":"\xe9"}\n{"z":2}', {"encoding": "ISO-8859-1", "lineSep": "\n"}),
    "not UTF-8": (b'{"z":1,"a":"\xe9x"}\n{"z":2}', {"encoding": "UTF-8"}),
}
DOCUMENTS = {
    "object": b'{"z":\n1,\n"a":"x"}',
    "array": b'[\n{"z":1},\n {"z":2,\r\n"s":{"x":\n3}}\n]\n',
    "more behind": b'[{"z":1}]\n{"z":2}',
    "torn": b'[{"z":1},\n{"z":',
    "one bad value": b'[{"z":1},\n{"z":"q","y":2},{"z":3}]',
    "null inside": b'[{"z":1},null]',
    "nested": b'[[{"z":1}]]',
    "number": b"5",
    "nothing": b"",
    "blanks": b" \n ",
    "empty array": b"[]",
    "raw text": b'[{"z":1,"a":{"k":\n [1, 2]}}]',
    "mark": b'\xef\xbb\xbf[{"z":1}]',
    "two marks": b'\xef\xbb\xbf\xef\xbb\xbf{"z":1}',
    "nothing but a mark": b"\xef\xbb\xbf",
    "torn behind a mark": b'\xef\xbb\xbf[{"z":1},',
    "torn UTF-16": b'{\0"\0',
    "UTF-16": '[{"z":1,"a":"é"}]'.encode("utf-16"),
    "UTF-16BE": '{"z":1,"a":"é"}'.encode("utf-16-be"),
    "UTF-32": '{"z":1,"a":"é"}'.encode("utf-32"),
    "not UTF-8": b'[{"z":1,"a":"\xff"},{"z":2}]',
}
CASES |= {f"multiLine {name}": (data, {"multiLine": True}) for name, data in DOCUMENTS.items()}
CASES["multiLine not UTF-8 in UTF-8"] = (DOCUMENTS["not UTF-8"], {"multiLine": True, "encoding": "UTF-8"})
CASES["multiLine mark in UTF-8"] = (DOCUMENTS["mark"], {"multiLine": True, "encoding": "UTF-8"})
CASES["multiLine FAILFAST"] = (DOCUMENTS["one bad value"], {"multiLine": True, "mode": "FAILFAST"})


CASES_SCHEMA = "z int, a string, s struct<x:int>, y int, _corrupt_record string"
Judged = dict[str, tuple[pa.Schema, list[str] | str]]


@pytest.fixture(scope="module")
def judged(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """The schema and rows of Spark for each case. Files with the same options are read at once."""
    found: Judged = {}
    for options in ({}, {"multiLine": True}):
        names = [name for name, (_, given) in CASES.items() if given == options]
        directory = tmp_path_factory.mktemp("cases")
        for number, name in enumerate(names):
            (directory / f"{number:02}.json").write_bytes(CASES[name][0])
        frame = spark.read.options(**options).schema(CASES_SCHEMA).json(str(directory))
        schema = to_arrow_schema(frame.schema, timezone="UTC")
        table = frame.select("*", "_metadata.file_name").toArrow()
        files = [int(name[:2]) for name in table["file_name"].to_pylist()]
        read = rows(table.drop_columns(["file_name"]))
        for number, name in enumerate(names):
            found[name] = schema, [row for row, file in zip(read, files, strict=True) if file == number]
    return found


@pytest.mark.soak(
    but=[
        "1001 digits",
        "nothing but a mark",
        "names twice",
        "FAILFAST",
        "UTF-16LE",
        "not UTF-8",
        "multiLine array",
        "multiLine torn",
        "multiLine null inside",
    ]
)
@pytest.mark.parametrize("name", CASES)
def test_whole_files_are_read_like_spark(spark: SparkSession, judged: Judged, tmp_path: Path, name: str) -> None:
    data, options = CASES[name]
    if name not in judged:
        path = tmp_path / "case.json"
        path.write_bytes(data)
        judged[name] = theirs(spark, path, CASES_SCHEMA, options)
    schema, expected = judged[name]
    assert ours(data, schema, options) == expected


@pytest.mark.soak
def test_a_line_of_50_megabytes_is_read_like_spark(spark: SparkSession, tmp_path: Path) -> None:
    data = b'{"z":1,"a":"' + b"n" * 50_000_000 + b'","y":2}\n{"z":2}'
    (tmp_path / "case.json").write_bytes(data)
    schema, expected = theirs(spark, tmp_path / "case.json", CASES_SCHEMA, {})
    assert ours(data, schema, {}) == expected


@pytest.mark.parametrize("mode", ["DROPMALFORMED", "PERMISSIVE"])
def test_without_a_column_for_them_malformed_records_follow_the_mode(
    spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    lines = [b'{"z":1}', b'{"z":"x","y":5}', b"bad", b'[{"z":2},{"z":"x"}]', b'{"z":3,"a":"x"}']
    compare(spark, tmp_path, lines, "z int, y int", mode=mode)


STAMPS = [
    *("01/02/2020 03:04", "2020-01-02T03:04:05.123+01:00", "2020-01-02T03:04:05.1Z", "20200102", "2020-01-02 03:04:05"),
    *("2020-01-02 03:04:05.5", "1/2/2020 03:04", "2020-02-30 03:04:05", "32/01/2020 00:00", "2020-03-08 02:30:00", ""),
]


@pytest.mark.parametrize("fallback", [None, True])
@pytest.mark.parametrize(
    "pattern", ["dd/MM/yyyy HH:mm", "yyyy-MM-dd'T'HH:mm:ss.SSSXXX", "yyyyMMdd", "yyyy-MM-dd HH:mm:ss[.SSS]"]
)
def test_formats_of_dates_and_times_are_read_like_spark(
    spark: SparkSession, tmp_path: Path, pattern: str, fallback: bool | None
) -> None:
    lines = [json.dumps({"t": stamp, "n": stamp, "d": stamp}).encode() for stamp in STAMPS]
    options: dict[str, Any] = {"timestampFormat": pattern, "timestampNTZFormat": pattern, "dateFormat": pattern}
    if fallback is not None:
        options["enableDateTimeParsingFallback"] = fallback
    compare(spark, tmp_path, lines, "t timestamp, n timestamp_ntz, d date, _corrupt_record string", **options)


INFERRED: dict[str, tuple[bytes, dict[str, Any]]] = {
    "mixed": (b'{"b":1,"a":1.5,"c":"x","d":true,"e":null,"f":[1,2.5],"g":{"y":1,"x":"q"}}\n{"b":2,"z":1}', {}),
    "large": (b'{"a":1,"b":1.5}\n{"a":12345678901234567890,"b":12345678901234567890}', {}),
    "huge": (b'{"a":123456789012345678901234567890123456789012}', {}),
    "kinds": (b'{"a":1,"b":1,"c":1,"d":[1]}\n{"a":"x","b":true,"c":{"b":1},"d":{"b":1}}', {}),
    "array": (b'{"a":[1,"x",null,{"q":1}]}', {}),
    "empty": (b'{"a":"","b":[],"c":{},"d":null,"e":[[]],"f":[{}],"g":[null],"h":{"i":null}}', {}),
    "empty, then numbers": (b'{"a":""}\n{"a":5}\n{"b":[""]}\n{"b":[1]}', {}),
    "malformed": (b'{"a":1}\nbad\n5\n[1]\nnull', {}),
    "arrays at the root": (b'[{"a":1},{"b":2}]\n[]', {}),
    "order": ('{"b":1,"A":1,"a1":1,"é":1,"😀":1,"\uffff":1,"":2}'.encode(), {}),
    "one name twice": (b'{"a":1,"a":"x"}', {}),
    "marks": (b'\xef\xbb\xbf{"a":1}\n\xef\xbb\xbf{"b":1}\n\xef\xbb\xbf', {}),
    "marks in UTF-8": (b'\xef\xbb\xbf{"a":1}\n\xef\xbb\xbf{"b":1}', {"encoding": "UTF-8"}),
    "two marks before a document": (b'\xef\xbb\xbf\xef\xbb\xbf{"a":1}', {"multiLine": True}),
    "behind the end": (b'{"a":1} xx\n{"b":1}{"c":1}', {}),
    "nested": (b'{"a":{"b":{"c":[{"d":1},{"e":"x"}]}}}\n{"a":{"b":{"c":[{"d":1.5}]}}}', {}),
    "nothing": (b"\n\n", {}),
    "primitivesAsString": (b'{"a":1,"b":1.5,"c":[true],"d":{"e":12345678901234567890}}', {"primitivesAsString": True}),
    "dropFieldIfAllNull": (b'{"a":"","b":[],"c":{},"d":null,"e":[[]],"f":1}', {"dropFieldIfAllNull": True}),
    "prefersDecimal": (
        b'{"a":0.10,"d":0.0,"e":1e-7,"f":123456789012345678901234567890.123456789,"g":"12.50","i":"0.001","j":"1,000"}',
        {"prefersDecimal": True},
    ),
    "inferTimestamp": (
        b'{"a":"2020-01-01T00:00:00Z","b":"2020-01-01 00:00:00","c":"2020-01-01","d":"x"}',
        {"inferTimestamp": True},
    ),
    "its format": (b'{"a":"01/02/2020","b":"2020-01-01"}', {"inferTimestamp": True, "timestampFormat": "dd/MM/yyyy"}),
    "malformed, dropped": (b'{"a":1}\nbad\n5', {"mode": "DROPMALFORMED"}),
    "malformed, named": (b'{"a":1}\nbad\n5', {"columnNameOfCorruptRecord": "zz"}),
    "document": (b'[{"a":1},\n{"b":"x"}]', {"multiLine": True}),
    "torn document": (b'[{"a":1},', {"multiLine": True}),
}


@pytest.mark.soak(
    but=["mixed", "huge", "empty, then numbers", "malformed", "one name twice", "dropFieldIfAllNull", "inferTimestamp"]
)
@pytest.mark.parametrize("name", INFERRED)
def test_schemas_are_inferred_like_spark(spark: SparkSession, tmp_path: Path, name: str) -> None:
    data, options = INFERRED[name]
    path = tmp_path / "case.json"
    path.write_bytes(data)
    expected: Any
    try:
        spelled_options = {key: str(value) for key, value in options.items()}
        expected = to_arrow_schema(spark.read.options(**spelled_options).json(str(path)).schema, timezone="UTC")
    except Exception:  # noqa: BLE001 - Spark has many classes for one kind of failure
        expected = "refused"
    found: Any
    try:
        named = {OPTION_NAMES[key]: value for key, value in options.items()}
        found = JsonFormat(JsonOptions(**{"time_zone": ZONE, **named})).infer_schema([MemoryFile(data)])
    except ForebayError:
        found = "refused"
    assert found == expected


IRREGULAR_TEXTS = [
    *(None, b"", b"  ", b"\t\r\n", b"null", b"1", b'"x"', b"[]", b'[{"z":1}]', b'[{"z":1},{"z":2}]', b"{}", b" {} x"),
    *(
        b'{"z":1} {"z":2}',
        b'{"z":1}\n{"z":2}',
        b'{"z":1}x',
        b'{\n"z":\r1\n}',
        b'{"z":1',
        b'{"a":"x\ny"}',
        b"\x00",
        b"{",
    ),
    *(
        b'\xef\xbb\xbf{"z":1}',
        b'\xff{"z":1}',
        b'{"z":1}\xff',
        b'{"z":1,"a":"\xff\xc3("}',
        b'{"a\xff":1,"z":2}',
        b"\xff",
    ),
    *(
        b'{\x00"\x00z\x00"\x00:\x001\x00}\x00',
        b'\x00{\x00"\x00z\x00"\x00:\x001\x00}',
        b'\xc2\xa0{"z":1}',
        b'\x0b{"z":1}',
    ),
]


def compare_column(spark: SparkSession, texts: list[bytes | None], *ddls: str, **options: Any) -> None:
    """Texts in a column, ours beside from_json, as each type; if that differs, say which text does."""
    column = pa.array(texts, pa.binary())
    numbered = pa.table({"n": pa.array(range(len(texts)), pa.int32()), "v": column})
    spelled = {name: str(value).lower() if value in (True, False) else str(value) for name, value in options.items()}
    frame = spark.createDataFrame(numbered).coalesce(1)
    parsed = [fn.from_json(fn.col("v").cast("string"), ddl, spelled).alias(f"v{at}") for at, ddl in enumerate(ddls)]
    found = frame.select("n", *parsed).toArrow()
    for at, ddl in enumerate(ddls):
        compare_texts(texts, ddl, found.select(["n", f"v{at}"]).rename_columns(["n", "v"]), options)


def compare_texts(texts: list[bytes | None], ddl: str, theirs: pa.Table, options: dict[str, Any]) -> None:
    column = pa.array(texts, pa.binary())
    named = {OPTION_NAMES[name]: value for name, value in options.items()}
    found = CellReader(parse_schema(ddl, "schema"), JsonOptions(**{"time_zone": ZONE, **named})).read(column)
    found.values.validate(full=True)
    spark_s, mine = rows(theirs), rows(pa.table({"n": theirs.column("n"), "v": found.values}))
    corrupt = len(parse_schema(ddl, "schema")) - 1
    reported = [value is not None and value[corrupt] is not None for value in plain(found.values)]
    differing = [
        f"{text!r} as {ddl} with {options}: ours {one}, Spark {other}"
        for text, one, other, bad in zip(texts, mine, spark_s, reported, strict=True)
        if one != other and not (bad and is_corrupt(other) and not is_standard(text))
    ]
    assert not differing, "\n".join(differing[:20])
    # What from_json calls corrupt is bad; and so is what is no UTF-8, of which from_json sees nothing.
    spoiled = [text is not None and text.decode(errors="ignore").encode() != text for text in texts]
    assert found.bad == [row for row in range(len(texts)) if reported[row] or spoiled[row]]


def is_corrupt(row: str) -> bool:
    """Whether a row of Spark's has a text in its last column."""
    return not row.endswith("None))")


def is_standard(text: bytes | None) -> bool:
    """Whether a text is JSON. What is left of one that is not depends on where a parser stands when it notices.

    A file's bytes and a column's characters have parsers of their own in Jackson, and these stand in other places.
    """
    try:
        json.loads((text or b"").decode())
    except ValueError:
        return False
    return True


# Types of which from_json reads the same texts, in one Spark job.
READ_TOGETHER = [
    [kind for kind in TYPES if "string" not in kind and kind != "binary"],
    [kind for kind in TYPES if "string" in kind],
    ["binary"],
]


@pytest.mark.soak(but=["strings"])
@pytest.mark.parametrize("kinds", READ_TOGETHER, ids=["all values", "strings", "binary"])
def test_a_column_of_irregular_texts_is_read_like_from_json(spark: SparkSession, kinds: list[str]) -> None:
    # A value of another type that is read as a string keeps its text, as in a file; from_json formats it.
    values = [value for value in VALUES if "string" not in kinds[0] or value.startswith(b'"')]
    if kinds == ["binary"]:  # no base64, which the two parsers notice at other places
        values = [value for value in values if value.isascii()]
    texts = [around % value for around in AROUND for value in values]
    compare_column(spark, [*texts, *IRREGULAR_TEXTS], *map(schema_of, kinds))


@pytest.mark.parametrize("options", LENIENT, ids=lambda options: " ".join(options) or "default")
def test_a_column_of_broken_texts_is_read_like_from_json(spark: SparkSession, options: dict[str, Any]) -> None:
    rnd = random.Random("column")
    texts = [mutated(rnd.choice(TORTURE), rnd) for _ in range(600)]
    compare_column(spark, [text for text in texts if b'"\xff' not in text], schema_of("int"), **options)


@settings(
    max_examples=settings().max_examples // 6, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(table=tables(), irregular=st.lists(st.tuples(st.integers(0, 12), st.sampled_from(IRREGULAR_TEXTS)), max_size=4))
def test_a_column_of_generated_texts_is_read_like_from_json(
    spark: SparkSession, table: tuple[str, list[bytes]], irregular: list[tuple[int, bytes | None]]
) -> None:
    ddl, lines = table
    texts: list[bytes | None] = list(lines)
    for at, text in irregular:
        texts.insert(at, text)
    compare_column(spark, texts, ddl)
