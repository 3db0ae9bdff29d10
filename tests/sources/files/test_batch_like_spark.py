# SPDX-License-Identifier: Apache-2.0
"""`forebay_files` and Spark's own readers on the same files (Shows 4).

What the format gives Spark is asked of its data source in this process, task by task. One test reads it through Spark.
"""

from __future__ import annotations

import bz2
import gzip
import json
import os
import pickle
import shutil
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from generated_files.outcomes import plain

pytest.importorskip("pyspark")

from pyspark.sql.functions import make_valid_utf8
from pyspark.sql.types import StructType

from forebay.spark.conform import arrow_schema
from forebay.spark.data_source import format_class
from forebay.spark.session import Installed, Session

Write = Callable[..., str]
Row = tuple[int, str | None]
ROWS: list[Row] = [(1, "a"), (2, None), (3, "ä 😀"), (4, " x "), (-5, "y,z")]


class Ours:
    """What the data source of the format gives Spark: the schema, the tasks, and their rows."""

    def __init__(self, options: Mapping[str, str], schema: str | None, zone: str) -> None:
        found = format_class(Installed("forebay_files"), Session(time_zone=zone))(options)
        self.schema: Any = found.schema() if schema is None else StructType.fromDDL(schema)
        self.columns = [name for name, _ in kinds(self)]
        self._reader = found.reader(self.schema)
        self.tasks = self._reader.partitions()

    def toArrow(self) -> pa.Table:  # noqa: N802 - as a DataFrame has it
        tasks = pickle.loads(pickle.dumps(self.tasks))
        batches = [batch for task in tasks for batch in self._reader.read(task)]
        return pa.Table.from_batches(batches, arrow_schema(self.schema))

    def count(self) -> int:
        return int(self.toArrow().num_rows)


class Both:
    """Reads the same files with both readers."""

    def __init__(self, spark: Any, name: str, **usual: str) -> None:
        self._spark = spark
        self._format = name
        self._usual = usual

    def options(self, given: Mapping[str, object]) -> dict[str, str]:
        return {name: str(value) for name, value in {**self._usual, **given}.items()}

    def ours(self, paths: str | Sequence[str], schema: str | None = None, **options: object) -> Ours:
        where = {"path": paths} if isinstance(paths, str) else {"paths": json.dumps(list(paths))}
        zone = self._spark.conf.get("spark.sql.session.timeZone")
        return Ours({"fileFormat": self._format, **self.options(options), **where}, schema, zone)

    def on_spark(self, paths: str, **options: object) -> Any:
        reader = self._spark.read.format("forebay_files").options(fileFormat=self._format, **self.options(options))
        return reader.load(paths)

    def theirs(self, paths: str | Sequence[str], schema: str | None = None, **options: object) -> Any:
        reader = self._spark.read.format(self._format).options(**self.options(options))
        reader = reader if schema is None else reader.schema(schema)
        return reader.load(paths if isinstance(paths, str) else list(paths))

    def same(self, paths: str | Sequence[str], schema: str | None = None, **options: object) -> list[Any]:
        """Compare names, types and rows; return the rows."""
        ours, theirs = self.ours(paths, schema, **options), self.theirs(paths, schema, **options)
        return self.compare(ours, theirs)

    def compare(self, ours: Any, theirs: Any) -> list[Any]:
        assert kinds(ours) == kinds(theirs)
        found = ours.toArrow()
        assert rows_of(found) == rows_of(theirs.toArrow())
        return list(found.to_pylist())


def rows_of(table: pa.Table) -> list[str]:
    """Return rows as text, in an order of their own: tasks may end in any order."""
    values = [column.cast(plain(column.type)).to_pylist() for column in table.columns]
    return sorted(map(repr, zip(*values, strict=True)))


def kinds(frame: Any) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in frame.schema]


@pytest.fixture
def both(spark: Any, kind: Any) -> Both:
    return Both(spark, kind.name, **kind.options)


# Listing does not depend on the format: `make test` compares one, `make soak` all. Of lines Spark infers no schema.
any_format = pytest.mark.parametrize(
    "kind",
    ["text", *(pytest.param(name, marks=pytest.mark.soak) for name in ("csv", "json", "parquet"))],
    indirect=True,
)


# ---- schemas and partition columns


def test_a_schema_inferred_and_one_given(both: Both, write: Write, kind: Any) -> None:
    suffix = kind.suffix
    root = write(kind.name, {"b" + suffix: ROWS[:3], "a" + suffix: ROWS[3:], "c" + suffix: []})
    assert len(both.same(root)) == len(ROWS)
    assert len(both.same(root, kind.schema)) == len(ROWS)
    if kind.name != "text":
        both.same(root, "v string, k double" if kind.name == "json" else "k bigint, v string, w date")


def test_compressed_files(both: Both, write: Write, kind: Any) -> None:
    if kind.name == "parquet":
        pytest.skip("Parquet is compressed inside")
    suffix = kind.suffix + ".gz"
    root = write(kind.name, {"a" + suffix: ROWS, "b" + suffix: []}, compressed=True)
    assert len(both.same(root)) == len(ROWS)


@pytest.mark.parametrize("kind", ["csv", "json", "text"], indirect=True)
def test_files_with_the_long_suffixes_of_compression(both: Both, tmp_path: Path, kind: Any) -> None:
    lines = {"csv": b"k,v\n1,a\n2,b\n", "json": b'{"k":1}\n{"k":2}\n', "text": b"1\n2\n"}[kind.name]
    zstd = bytes(pa.Codec("zstd").compress(lines))
    names = {".gzip": gzip.compress(lines), ".zstd": zstd, ".gz": gzip.compress(lines), ".zst": zstd, "": lines}
    for number, (suffix, data) in enumerate(names.items()):
        (tmp_path / f"{number}{kind.suffix}{suffix}").write_bytes(data)
    assert len(both.same(str(tmp_path))) == 10


@pytest.mark.parametrize("kind", ["text"], indirect=True)
def test_whole_files_that_decompress_to_nothing_are_rows(both: Both, tmp_path: Path, kind: Any) -> None:
    empty = {
        "gz": gzip.compress(b""),
        "bz2": bz2.compress(b""),
        "deflate": zlib.compress(b""),
        "zst": bytes(pa.Codec("zstd").compress(b"")),
    }
    for suffix, data in empty.items():
        (tmp_path / f"x.txt.{suffix}").write_bytes(data)
    (tmp_path / "no bytes.txt").write_bytes(b"")
    (tmp_path / "no bytes.txt.gz").write_bytes(b"")
    (tmp_path / "mark.txt").write_bytes(b"\xef\xbb\xbf")
    assert len(both.same(str(tmp_path), wholetext=True)) == 5
    assert both.same(str(tmp_path), wholetext=False) == []


@pytest.mark.soak("parquet")
@pytest.mark.parametrize("kind", ["parquet"], indirect=True)
def test_a_column_of_the_files_may_be_called_metadata(both: Both, tmp_path: Path, kind: Any) -> None:
    paths = pa.array([{"file_path": "a"}, {"file_path": "b"}, {"file_path": None}])
    for number, values in enumerate((pa.array([1, None, 3]), paths)):
        root = tmp_path / str(number)
        root.mkdir()
        pq.write_table(pa.table({"k": [1, 2, 3], "_metadata": values}), root / "a.parquet")
        assert len(both.same(str(root))) == 3
        assert len(both.same(str(root), "k bigint")) == 3
        frame = both.on_spark(str(root), rowFilter="k > 1").select("_metadata")
        assert frame.toArrow().to_pylist() == [{"_metadata": value} for value in values.to_pylist()[1:]]
    assert [row["_metadata"] for row in both.same(str(tmp_path / "0"), "k bigint, _metadata bigint")] == [1, None, 3]


PARTITIONED = [
    "i=1/d=2024-01-02/n=1.5/s=x y/",
    "i=2/d=2024-01-03/n=2/s=a%2Fb/",
    "i=12345678901/d=__HIVE_DEFAULT_PARTITION__/n=3e2/s=😀/",
]


def test_partition_columns_and_metadata(both: Both, write: Write, kind: Any) -> None:
    root = write(kind.name, {f"{each}f 1%2F{kind.suffix}": ROWS[:2] for each in PARTITIONED})
    ours = both.ours(root, includeMetadata=True)
    theirs = both.theirs(root).select("*", "_metadata")
    rows = both.compare(ours, theirs)
    assert len(rows) == 6
    assert {str(row["_metadata"]["file_name"]) for row in rows} == {f"f%201%252F{kind.suffix}"}
    # A read without columns of the files still counts their rows.
    both.compare(both.ours(root, columns="s,i"), both.theirs(root).select("s", "i"))


@pytest.mark.parametrize("kind", ["parquet"], indirect=True)
def test_spark_gets_the_rows_that_the_data_source_gives(both: Both, write: Write, kind: Any) -> None:
    root = write(kind.name, {f"{each}f 1%2F{kind.suffix}": ROWS for each in PARTITIONED})
    ours = both.on_spark(root, includeMetadata=True, numPartitions=2)
    theirs = both.theirs(root).select("*", "_metadata")
    assert ours.rdd.getNumPartitions() == 2
    assert len(both.compare(ours, theirs)) == 15
    few = ("_metadata.file_path", "i", "v")
    both.compare(ours.select(*few).where("i = 2"), theirs.select(*few).where("i = 2"))
    counts = [frame.groupBy("i").count() for frame in (both.on_spark(root, columns="i"), both.theirs(root))]
    assert len(both.compare(*counts)) == 3


@any_format
def test_partition_columns_of_a_users_type(both: Both, write: Write, kind: Any) -> None:
    suffix = kind.suffix
    root = write(kind.name, {f"p=01/q=1{suffix}/f{suffix}": ROWS[:2], f"p=1/q=2/f{suffix}": ROWS[:1]})
    schema = kind.schema + ", p string, q string"
    rows = both.same(root, schema)
    assert {row["p"] for row in rows} == {"01", "1"}
    # Spark puts partition columns last; forebay keeps the order of the user's schema.
    moved = "q string, " + kind.schema + ", p string"
    names = both.ours(root, moved).columns
    both.compare(both.ours(root, moved), both.theirs(root, moved).select(*names))
    # Spark adds partition columns that a schema does not name.
    assert both.ours(root, kind.schema).columns == both.theirs(root, kind.schema).columns[:-2]


@any_format
def test_partition_types_are_strings_if_they_are_not_inferred(both: Both, write: Write, spark: Any, kind: Any) -> None:
    root = write(kind.name, {f"p=1/f{kind.suffix}": ROWS[:2]})
    spark.conf.set("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
    try:
        theirs = both.theirs(root)
        assert kinds(theirs)[-1] == ("p", "string")
        both.compare(both.ours(root, partitionTypeInference=False), theirs)
    finally:
        spark.conf.unset("spark.sql.sources.partitionColumnTypeInference.enabled")


@any_format
def test_a_column_that_is_also_a_directory_takes_the_directorys_value(both: Both, write: Write, kind: Any) -> None:
    name = "value" if kind.name == "text" else "K"
    root = write(kind.name, {f"{name}=7/f{kind.suffix}": ROWS[:2], f"{name}=8/f{kind.suffix}": ROWS[:1]})
    rows = both.compare(both.ours(root), both.theirs(root))
    assert {row[name] for row in rows} == {7, 8}


@any_format
def test_base_path(both: Both, write: Write, kind: Any) -> None:
    suffix = kind.suffix
    root = write(kind.name, {f"p=1/q=a/f{suffix}": ROWS[:2], f"p=2/q=b/f{suffix}": ROWS[2:]})
    assert "p" in both.same(f"{root}/p=1", basePath=root)[0]
    assert "p" not in both.same(f"{root}/p=1")[0]
    assert "p" in both.same([f"{root}/p=1/q=a", f"{root}/p=2/q=b"], basePath=root)[0]
    both.same(f"{root}/p=*/q=a/*", basePath=root)


# ---- which files


@any_format
def test_which_files_are_read(both: Both, write: Write, kind: Any) -> None:
    suffix = kind.suffix
    names = [
        "a" + suffix,
        "b.other",
        "_hidden" + suffix,
        ".hidden" + suffix,
        "w._COPYING_",
        "sub/c" + suffix,
        "_a=1/x" + suffix,
    ]
    root = write(kind.name, {name: [(number, name)] for number, name in enumerate(names)})
    shutil.rmtree(root + "/_a=1")
    assert len(both.same(root)) == 2
    assert len(both.same(root, recursiveFileLookup=True)) == 3
    assert len(both.same(root, pathGlobFilter="*" + suffix)) == 1
    assert len(both.same(root + "/{a,b}*")) == 2
    assert len(both.same(root + "/[ab]?*")) == 2
    assert len(both.same(root + "/*")) == 3
    # Spark reads a file as often as it is named; forebay reads it once.
    assert both.ours([root + "/a" + suffix, root]).count() == 2
    assert len(both.same([f"{root}/a{suffix}", f"{root}/sub"])) == 2


@any_format
def test_modified_before_and_after(both: Both, write: Write, kind: Any) -> None:
    suffix = kind.suffix
    root = write(kind.name, {f"{year}{suffix}": [(year, "x")] for year in (2020, 2021, 2022)})
    for year in (2020, 2021, 2022):
        os.utime(f"{root}/{year}{suffix}", (0, 1_577_880_000 + (year - 2020) * 31_622_400))
    assert len(both.same(root, modifiedBefore="2021-06-01T00:00:00")) == 2
    assert len(both.same(root, modifiedAfter="2021-06-01T00:00:00")) == 1
    assert len(both.same(root, modifiedAfter="2020-06-01T00:00:00", modifiedBefore="2021-06-01T00:00:00")) == 1
    assert both.same(root, kind.schema, modifiedBefore="1999-01-01T00:00:00") == []


@any_format
def test_names_with_all_kinds_of_characters(both: Both, write: Write, kind: Any) -> None:
    suffix = kind.suffix
    names = ["a b", "%2F", "%", "new\nline", "😀", "quote\"'", "hash#?&", "back\\slash", "ключ", "colon:", "tab\t"]
    root = write(kind.name, {f"{name}{suffix}": [(number, "x")] for number, name in enumerate(names)})
    assert both.ours(root, includeMetadata=True).count() == len(names)
    # To Spark a colon begins a scheme.
    (Path(root) / f"colon:{kind.suffix}").unlink()
    both.compare(both.ours(root, includeMetadata=True), both.theirs(root).select("*", "_metadata"))
    assert both.ours(f"{root}/😀{suffix}").count() == 1


@any_format
def test_what_a_spark_sink_did_not_commit_is_not_data(
    both: Both, spark: Any, tmp_path: Path, write: Write, kind: Any
) -> None:
    source = write("parquet", {"a.parquet": ROWS})
    frame = spark.readStream.schema("k bigint, v string").parquet(source)
    frame = frame.selectExpr("concat(k, ' ', v) AS value").where("value is not null") if kind.name == "text" else frame
    out = str(tmp_path / "out")
    writer = frame.writeStream.format(kind.name).option("checkpointLocation", str(tmp_path / "checkpoint"))
    if kind.name == "csv":
        writer = writer.option("header", "true")
    query = writer.trigger(availableNow=True).start(out)
    query.awaitTermination()
    good = next(path for path in Path(out).iterdir() if path.is_file() and not path.name.startswith((".", "_")))
    shutil.copy(good, Path(out) / ("part-uncommitted" + kind.suffix))
    assert len(both.same(out)) == len(ROWS) - (kind.name == "text")
    assert both.ours(out + "/*").count() == 2 * (len(ROWS) - (kind.name == "text"))


@any_format
def test_an_empty_directory_with_a_schema_has_no_rows(both: Both, tmp_path: Path, kind: Any) -> None:
    (tmp_path / "empty").mkdir()
    assert both.same(str(tmp_path / "empty"), kind.schema) == []


# ---- columns


def test_columns_are_chosen_in_the_order_wanted(both: Both, write: Write, kind: Any) -> None:
    root = write(kind.name, {f"p=1/f{kind.suffix}": ROWS})
    inside = "value" if kind.name == "text" else "v"
    theirs = both.theirs(root).select("p", inside)
    both.compare(both.ours(root, columns=f"p,{inside}"), theirs)
    assert both.ours(root).count() == len(ROWS)


@pytest.mark.soak("parquet")
def test_many_slices_for_spark_give_the_rows_of_one(spark: Any, write: Write, kind: Any) -> None:
    rows: list[Row] = [(number, f"row {number}") for number in range(3000)]
    root = write(kind.name, {"f" + kind.suffix: rows})
    both = Both(spark, kind.name, **kind.options)
    ours = both.ours(root, maxPartitionBytes=3000, numPartitions=5, includeMetadata=True)
    assert len(ours.tasks) == 5
    found = ours.toArrow()
    assert rows_of(found.drop_columns(["_metadata"])) == rows_of(both.theirs(root).toArrow())
    places = {(row["file_block_start"], row["file_block_length"]) for row in found["_metadata"].to_pylist()}
    blocks = sorted(places)
    assert len(blocks) > 5
    assert [start for start, _ in blocks] == [sum(size for _, size in blocks[:at]) for at in range(len(blocks))]


# ---- missing and damaged files


@any_format
def test_ignore_missing_files(both: Both, write: Write, kind: Any) -> None:
    suffix = kind.suffix
    root = write(kind.name, {f"{number}{suffix}": [(number, "x")] for number in range(4)})
    frame = both.ours(root, kind.schema, ignoreMissingFiles=True)
    theirs = both.theirs(root, kind.schema, ignoreMissingFiles=True)
    assert frame.count() == 4
    os.unlink(f"{root}/2{suffix}")
    assert len(both.compare(frame, theirs)) == 3


def test_ignore_corrupt_files(both: Both, write: Write, kind: Any) -> None:
    suffix = kind.suffix + ("" if kind.name == "parquet" else ".gz")
    rows: list[Row] = [(number, os.urandom(8).hex()) for number in range(5000)]
    root = write(kind.name, {f"a{suffix}": ROWS, f"b{suffix}": rows}, compressed=kind.name != "parquet")
    path = Path(root) / f"b{suffix}"
    path.write_bytes(path.read_bytes()[:-2000])
    options: dict[str, object] = {"ignoreCorruptFiles": True}
    small = {} if kind.name == "parquet" else {"blockBytes": 4096}
    ours = rows_of(both.ours(root, kind.schema, **options, **small).toArrow())
    theirs = rows_of(both.theirs(root, kind.schema, **options).toArrow())
    complete = write(kind.name, {"g" + kind.suffix: [*ROWS, *rows]})
    good = rows_of(both.theirs(complete, kind.schema).toArrow())
    # The rows before the damage are kept: here in whole blocks, by Spark up to the last, perhaps partial, line.
    assert set(ours) <= set(good)
    assert len(ROWS) <= len(ours) <= len(theirs)
    assert len(theirs) - len(ours) < 600
    assert both.ours(root, **options).columns == both.theirs(root, **options).columns


# ---- records


BAD = {
    "csv": 'k,v,w\n1,a,1.5\n2\n3,c,3.5,more\nx,d,4.5\n5,"e\n6,f,six\n\n8,h,8.5\n',
    "json": '{"k": 1, "v": "a"}\n{"k": 2\n{"k": "x", "v": "c"}\n[1]\n\n{"k": 5, "v": 5}\n"text"\n{"k": 7}\n',
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("schema", ["k int, v string, w double", "k int, v string, w double, bad string, p int"])
def test_modes(spark: Any, tmp_path: Path, name: str, schema: str) -> None:
    path = tmp_path / "p=1" / f"f.{name}"
    path.parent.mkdir()
    path.write_text(BAD[name])
    both = Both(spark, name, columnNameOfCorruptRecord="bad", **({"header": "true"} if name == "csv" else {}))
    names = [part.split()[0] for part in schema.split(",")]
    for mode in ("PERMISSIVE", "DROPMALFORMED"):
        # Spark reads only the columns of the query, and does not check the others.
        theirs = both.theirs(str(tmp_path), schema, mode=mode).select(names)
        both.compare(both.ours(str(tmp_path), schema, mode=mode), theirs)
    for reader in (both.ours, both.theirs):
        with pytest.raises(Exception, match="(?i)mode"):
            reader(str(tmp_path), schema, mode="FAILFAST", ignoreCorruptFiles=True).toArrow()


@pytest.mark.parametrize("name", BAD)
def test_a_schema_inferred_from_damaged_records(spark: Any, tmp_path: Path, name: str) -> None:
    path = tmp_path / f"f.{name}"
    path.write_text(BAD[name])
    usual = {"header": "true", "inferSchema": "true"} if name == "csv" else {}
    both = Both(spark, name, columnNameOfCorruptRecord="bad", **usual)
    for mode in ("PERMISSIVE", "DROPMALFORMED"):
        both.same(str(path), mode=mode)


@pytest.mark.parametrize("name", [*BAD, "text"])
def test_bytes_that_are_no_utf_8(spark: Any, tmp_path: Path, name: str) -> None:
    path = tmp_path / "f"
    path.write_bytes(
        {"csv": b"1,a\xffb\n2,b\n", "json": b'{"k": 1, "v": "a\xffb"}\n{"k": 2}\n', "text": b"a\xffb\n"}[name]
    )
    schema = "value string" if name == "text" else "k int, v string, _corrupt_record string"
    both = Both(spark, name)
    ours, theirs = both.ours(str(path), schema), both.theirs(str(path), schema)
    # Spark passes the bytes on as a string, and replaces them for display.
    strings = [name for name, kind in kinds(theirs) if kind == "string"]
    theirs = theirs.withColumns({name: make_valid_utf8(name) for name in strings})
    both.compare(ours, theirs)


def test_columns_with_unusual_and_repeated_names(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_text('a b,a.b,😀,"x""y",a b,A B,\n1,2,3,4,5,6,7\n')
    rows = Both(spark, "csv", header="true", inferSchema="true").same(str(path))
    assert len(rows[0]) == 7
    path = tmp_path / "f.json"
    path.write_text('{"a b": 1, "a.b": 2, "😀": {"x\\ny": 3}, "%2F": null}\n')
    assert len(Both(spark, "json").same(str(path))[0]) == 4


# ---- time zones


@pytest.mark.parametrize("zone", ["America/St_Johns", "Asia/Kathmandu"])
def test_other_time_zones(spark: Any, write: Write, tmp_path: Path, zone: str) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", zone)
    both = Both(session, "parquet")
    root = write(
        "parquet",
        {"t=2024-07-01 12%3A00%3A00/u=2024-01-01/f.parquet": ROWS[:2], "t=1900-01-01 00%3A00%3A00/u=1/f.parquet": ROWS},
    )
    assert len(both.same(root)) == 7
    data = str(tmp_path / "times")
    session.sql(
        "SELECT timestamp'1893-05-05 01:02:03.456789' AS a, timestamp_ntz'2020-01-01' AS b, date'1700-01-01' AS c"
    ).write.parquet(data)
    both.same(data)
    for each in ("csv", "json"):
        text = tmp_path / f"f.{each}"
        text.write_text(
            "a\n2020-07-01 10:00:00\n2020-01-01T00:00:00+01:00\n"
            if each == "csv"
            else '{"a": "2020-07-01 10:00:00"}\n{"a": "2020-01-01T00:00:00+01:00"}\n'
        )
        Both(session, each).same(str(text), "a timestamp")


def test_a_gzip_of_several_members_is_read_whole(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "m.txt.gz").write_bytes(gzip.compress(b"a\n") + gzip.compress(b"b\n"))
    assert len(Both(spark, "text").same(str(tmp_path / "m.txt.gz"))) == 2
