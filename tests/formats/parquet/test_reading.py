# SPDX-License-Identifier: Apache-2.0
"""Parquet without Spark: slices, types asked for, damage, old calendars, memory."""

from __future__ import annotations

import datetime as dt
import itertools
import pickle
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import BinaryIO, Self

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.errors import ConfigurationError, DataError, RetriableError
from forebay.formats.parquet.format import ParquetFormat, ParquetOptions


@dataclass(frozen=True)
class LocalFile:
    path: str

    @property
    def size(self) -> int:
        return Path(self.path).stat().st_size

    def open(self) -> BinaryIO:
        return open(self.path, "rb", buffering=0)


def write(path: Path, columns: dict[str, pa.Array] | pa.Table, **options: object) -> LocalFile:
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    pq.write_table(table, path, **options)  # type: ignore[arg-type]
    return LocalFile(str(path))


def read(file: LocalFile, schema: pa.Schema | None = None, **options: object) -> pa.Table:
    reader = ParquetFormat()
    schema = reader.infer_schema([file]) if schema is None else schema
    batches = [batch for batch, _ in reader.read(file, schema, **options)]  # type: ignore[arg-type]
    return pa.Table.from_batches(batches) if batches else schema.empty_table()


def read_as(file: LocalFile, data_type: pa.DataType) -> list[object]:
    return read(file, pa.schema([pa.field("c", data_type)])).column("c").to_pylist()


NESTED = pa.table(
    {
        "n": pa.array(range(1000), pa.int64()),
        "s": pa.array([None if i % 7 == 0 else f"text {i % 13}" for i in range(1000)]),
        "l": pa.array([None if i % 5 == 0 else [None, *range(i % 4)] for i in range(1000)], pa.list_(pa.int32())),
        "m": pa.array(
            [None if i % 6 == 0 else [(f"k{j}", j) for j in range(i % 3)] for i in range(1000)],
            pa.map_(pa.string(), pa.int32()),
        ),
        "r": pa.array([None if i % 3 == 0 else {"a": i, "b": [{"x": str(i)}] * (i % 3)} for i in range(1000)]),
    }
)
WIDER = pa.schema(
    [
        pa.field("r", pa.struct([pa.field("B", pa.list_(pa.struct([pa.field("x", pa.binary())]))), ("q", pa.int8())])),
        pa.field("l", pa.list_(pa.int64())),
        pa.field("M", pa.map_(pa.string(), pa.float64())),
        pa.field("n", pa.decimal128(22, 2)),
        pa.field("missing", pa.list_(pa.string())),
    ]
)


@pytest.mark.soak(but=["as it is"])
@settings(max_examples=settings().max_examples // 5)
@pytest.mark.parametrize("schema", [None, WIDER], ids=["as it is", "converted"])
@given(
    group=st.integers(1, 400),
    cuts=st.lists(st.integers(0, 1000), max_size=6),
    rows=st.sampled_from([3, 64, 4096]),
    data=st.data(),
)
def test_any_slices_give_every_row_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    schema: pa.Schema | None,
    group: int,
    cuts: list[int],
    rows: int,
    data: st.DataObject,
) -> None:
    file = write(tmp_path_factory.mktemp("slices") / "f.parquet", NESTED, row_group_size=group)
    reader = ParquetFormat()
    schema = reader.infer_schema([file]) if schema is None else schema
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("forebay.formats.units._BATCH_ROWS", rows)
        patch.setattr("forebay.formats.units._LEAST_ROWS", 1)
        whole = read(file, schema)
        edges = [0, *sorted(cuts), None]
        parts: list[pa.RecordBatch] = []
        for position, end in itertools.pairwise(edges):
            for batch, _ in reader.read(file, schema, position=position or 0, end=end):
                batch.validate(full=True)
                parts.append(batch)
        assert pa.Table.from_batches(parts).equals(whole)
        pairs = list(reader.read(file, schema))
        stop = data.draw(st.integers(0, len(pairs) - 1))
        rest = list(reader.read(file, schema, position=pairs[stop][1]))
    assert [batch for pair in (pairs[: stop + 1], rest) for batch, _ in pair]
    joined = pa.Table.from_batches([batch for batch, _ in [*pairs[: stop + 1], *rest]])
    assert joined.to_pylist() == whole.to_pylist()
    assert whole.num_rows == 1000


def test_borders_are_row_group_starts_of_about_the_size_asked_for(tmp_path: Path) -> None:
    file = write(tmp_path / "f.parquet", NESTED, row_group_size=100)
    reader = ParquetFormat()
    assert reader.borders(file, 1) == list(range(100, 1000, 100))
    assert reader.borders(file, 1 << 30) == []
    halves = reader.borders(file, file.size // 2)
    assert len(halves) in (1, 2)
    assert set(halves) <= set(range(100, 1000, 100))
    assert reader.sliceable(file)


def test_columns_come_in_the_order_asked_for_and_alone(tmp_path: Path) -> None:
    file = write(tmp_path / "f.parquet", NESTED)
    reader = ParquetFormat()
    schema = reader.infer_schema([file])
    batch, position = next(reader.read(file, schema, columns=["s", "n"]))
    assert batch.schema.names == ["s", "n"]
    assert batch.num_rows == position
    counted = list(reader.read(file, schema, columns=[], position=10, end=30))
    assert [(batch.num_columns, batch.num_rows, at) for batch, at in counted] == [(0, 20, 30)]


def test_a_column_the_file_lacks_is_null_and_names_ignore_case(tmp_path: Path) -> None:
    file = write(tmp_path / "f.parquet", {"Abc": pa.array([1, 2])})
    asked = pa.schema([("abc", pa.int64()), ("other", pa.string())])
    assert read(file, asked).to_pylist() == [{"abc": 1, "other": None}, {"abc": 2, "other": None}]
    exact = ParquetFormat(ParquetOptions(case_sensitive=True))
    assert next(exact.read(file, asked))[0].to_pylist() == [{"abc": None, "other": None}] * 2
    only_missing = pa.schema([("other", pa.string())])
    assert read(file, only_missing).to_pylist() == [{"other": None}] * 2


def test_two_columns_that_differ_in_case_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "f.parquet", {"a": pa.array([1]), "A": pa.array([2])})
    with pytest.raises(ConfigurationError, match="two columns have the same name"):
        ParquetFormat().infer_schema([file])
    with pytest.raises(ConfigurationError, match="matches several columns of .*: 'a', 'A'"):
        read(file, pa.schema([("a", pa.int64())]))
    exact = ParquetFormat(ParquetOptions(case_sensitive=True))
    assert exact.infer_schema([file]).names == ["a", "A"]


def test_a_struct_of_which_no_field_is_wanted_keeps_its_nulls(tmp_path: Path) -> None:
    file = write(tmp_path / "f.parquet", {"c": pa.array([{"a": 1}, None, {"a": None}])})
    assert read_as(file, pa.struct([("z", pa.int32())])) == [{"z": None}, None, {"z": None}]
    assert read_as(file, pa.struct([])) == [{}, None, {}]


DAY = dt.date(2020, 1, 1)
READABLE = {
    "int to long": (pa.array([7], pa.int32()), pa.int64(), 7),
    "int to double": (pa.array([7], pa.int32()), pa.float64(), 7.0),
    "int to decimal": (pa.array([7], pa.int32()), pa.decimal128(12, 2), Decimal("7.00")),
    "int to date": (pa.array([18262], pa.int32()), pa.date32(), DAY),
    "int to short": (pa.array([7], pa.int32()), pa.int16(), 7),
    "long to decimal": (pa.array([7]), pa.decimal128(20, 0), Decimal(7)),
    "long to duration": (pa.array([7]), pa.duration("us"), dt.timedelta(microseconds=7)),
    "date to int": (pa.array([DAY]), pa.int32(), 18262),
    "date to long": (pa.array([DAY]), pa.int64(), 18262),
    "date to timestamp": (pa.array([DAY]), pa.timestamp("us"), dt.datetime(2020, 1, 1)),
    "unsigned 8": (pa.array([200], pa.uint8()), pa.int16(), 200),
    "unsigned 16": (pa.array([60000], pa.uint16()), pa.int32(), 60000),
    "unsigned 32": (pa.array([4_000_000_000], pa.uint32()), pa.int64(), 4_000_000_000),
    "unsigned 64": (pa.array([2**64 - 1], pa.uint64()), pa.decimal128(20, 0), Decimal(2**64 - 1)),
    "float to double": (pa.array([1.5], pa.float32()), pa.float64(), 1.5),
    "text to binary": (pa.array(["é"]), pa.binary(), "é".encode()),
    "binary to text": (pa.array([b"abc"]), pa.string(), "abc"),
    "fixed to binary": (pa.array([b"ab"], pa.binary(2)), pa.binary(), b"ab"),
    "half float to binary": (pa.array([1.5], pa.float16()), pa.binary(), b"\x00>"),
    "millis": (pa.array([1001], pa.timestamp("ms")), pa.timestamp("us"), dt.datetime(1970, 1, 1, 0, 0, 1, 1000)),
    "millis to long": (pa.array([1001], pa.timestamp("ms")), pa.int64(), 1001),
    "micros to long": (pa.array([1001], pa.timestamp("us", "UTC")), pa.int64(), 1001),
    "nanos to long": (pa.array([1001], pa.timestamp("ns")), pa.int64(), 1001),
    "time to long": (pa.array([1001], pa.time64("us")), pa.int64(), 1001),
    "zoned to local": (
        pa.array([1], pa.timestamp("us", "UTC")),
        pa.timestamp("us"),
        dt.datetime(1970, 1, 1, 0, 0, 0, 1),
    ),
    "wider decimal": (pa.array([Decimal("1.25")], pa.decimal128(9, 2)), pa.decimal128(38, 10), Decimal("1.2500000000")),
    "dictionary": (pa.array(["a"]).dictionary_encode(), pa.string(), "a"),
    "large text": (pa.array(["a"], pa.large_string()), pa.string(), "a"),
    "text view": (pa.array(["a"], pa.string_view()), pa.string(), "a"),
    "large list": (pa.array([[1]], pa.large_list(pa.int32())), pa.list_(pa.int64()), [1]),
    "fixed list": (pa.array([[1, 2]], pa.list_(pa.int32(), 2)), pa.list_(pa.int32()), [1, 2]),
    "list of dictionary": (
        pa.array([["a"]], pa.list_(pa.dictionary(pa.int32(), pa.string()))),
        pa.list_(pa.string()),
        ["a"],
    ),
    "null to int": (pa.nulls(1), pa.int32(), None),
    "int to null": (pa.array([1]), pa.null(), None),
}


@pytest.mark.parametrize("name", READABLE)
def test_types_that_spark_reads_as_another_are_read_so(tmp_path: Path, name: str) -> None:
    values, asked, expected = READABLE[name]
    file = write(tmp_path / "f.parquet", {"c": values})
    table = read(file, pa.schema([pa.field("c", asked)]))
    assert table.schema.field("c").type == asked
    assert table.column("c").to_pylist() == [expected]


UNREADABLE = {
    "long to int": (pa.array([7]), pa.int32()),
    "text to int": (pa.array(["7"]), pa.int32()),
    "int to text": (pa.array([7]), pa.string()),
    "double to float": (pa.array([7.0]), pa.float32()),
    "narrower decimal": (pa.array([Decimal("1.25")], pa.decimal128(9, 2)), pa.decimal128(9, 3)),
    "decimal to long": (pa.array([Decimal("1.25")], pa.decimal128(9, 2)), pa.int64()),
    "unsigned 32 to int": (pa.array([1], pa.uint32()), pa.int32()),
    "unsigned 64 to long": (pa.array([1], pa.uint64()), pa.int64()),
    "long to timestamp": (pa.array([7]), pa.timestamp("us")),
    "nanos to timestamp": (pa.array([7], pa.timestamp("ns")), pa.timestamp("us")),
    "list to struct": (pa.array([[1]]), pa.struct([("a", pa.int64())])),
    "text to list": (pa.array(["a"]), pa.list_(pa.string())),
    "inside a list": (pa.array([["a"]]), pa.list_(pa.int32())),
    "inside a struct": (pa.array([{"a": "x"}]), pa.struct([("a", pa.int32())])),
    "time": (pa.array([1001], pa.time64("us")), pa.time64("us")),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_types_that_do_not_fit_are_refused_with_file_and_column(tmp_path: Path, name: str) -> None:
    values, asked = UNREADABLE[name]
    file = write(tmp_path / "f.parquet", {"c": values})
    with pytest.raises(ConfigurationError, match=r"column 'c.*f\.parquet and cannot be read as"):
        read_as(file, asked)


def test_a_number_too_large_for_the_type_asked_for_is_an_error(tmp_path: Path) -> None:
    file = write(tmp_path / "f.parquet", {"c": pa.array([1, 300], pa.int32())})
    with pytest.raises(DataError, match="value of column 'c' of .*f.parquet does not fit into int8"):
        read_as(file, pa.int8())


@pytest.mark.parametrize("data_type", [pa.timestamp("ns"), pa.time32("ms"), pa.float16(), pa.decimal256(50, 1)])
def test_types_spark_does_not_know_are_refused_when_inferring(tmp_path: Path, data_type: pa.DataType) -> None:
    file = write(tmp_path / "f.parquet", {"c": pa.array([None], data_type)})
    with pytest.raises(ConfigurationError, match="column 'c' of .* Spark does not read"):
        ParquetFormat().infer_schema([file])


def test_int96_is_a_timestamp(tmp_path: Path) -> None:
    moments = [dt.datetime(1900, 1, 1, 12, 0, 0, 1), dt.datetime(2262, 12, 31, 23, 59, 59, 999999), None]
    file = write(
        tmp_path / "f.parquet",
        {"c": pa.array(moments, pa.timestamp("us")), "l": pa.array([[m] for m in moments])},
        use_deprecated_int96_timestamps=True,
        store_schema=False,
    )
    table = read(file)
    assert table.schema.field("c").type == pa.timestamp("us", "UTC")
    assert [None if m is None else m.replace(tzinfo=None) for m in table.column("c").to_pylist()] == moments
    assert table.column("l").to_pylist()[0][0].replace(tzinfo=None) == moments[0]
    assert read_as(file, pa.timestamp("us")) == moments


def test_the_schema_spark_left_in_the_footer_wins(tmp_path: Path) -> None:
    text = (
        '{"type":"struct","fields":[{"name":"a","type":"short","nullable":false,"metadata":{}},'
        '{"name":"b","type":{"type":"array","elementType":{"type":"struct","fields":[{"name":"x","type":'
        '"decimal(10,2)","nullable":true,"metadata":{}}]},"containsNull":true},"nullable":true,"metadata":{}},'
        '{"name":"d","type":"interval day to second","nullable":true,"metadata":{}}]}'
    )
    table = pa.table({"a": pa.array([1], pa.int32()), "d": pa.array([5])})
    table = table.replace_schema_metadata({"org.apache.spark.sql.parquet.row.metadata": text})
    file = write(tmp_path / "f.parquet", table)
    schema = ParquetFormat().infer_schema([file])
    assert schema.field("a") == pa.field("a", pa.int16(), nullable=True)
    assert schema.field("b").type == pa.list_(pa.struct([("x", pa.decimal128(10, 2))]))
    assert read(file).to_pylist() == [{"a": 1, "b": None, "d": dt.timedelta(microseconds=5)}]
    broken = write(
        tmp_path / "g.parquet",
        table.replace_schema_metadata({"org.apache.spark.sql.parquet.row.metadata": "StructType("}),
    )
    assert ParquetFormat().infer_schema([broken]).names == ["a", "d"]
    strange = text.replace('"short"', '"variant"')
    file = write(
        tmp_path / "h.parquet", table.replace_schema_metadata({"org.apache.spark.sql.parquet.row.metadata": strange})
    )
    with pytest.raises(ConfigurationError, match="type variant"):
        ParquetFormat().infer_schema([file])


def test_merge_schema_joins_all_files_and_the_default_takes_the_first_by_path(tmp_path: Path) -> None:
    b = write(tmp_path / "b.parquet", {"x": pa.array([Decimal(1)], pa.decimal128(12, 2)), "new": pa.array(["n"])})
    a = write(tmp_path / "a.parquet", {"X": pa.array([Decimal(1)], pa.decimal128(9, 2))})
    assert ParquetFormat().infer_schema([b, a]) == pa.schema([("X", pa.decimal128(9, 2))])
    merging = ParquetFormat(ParquetOptions(merge_schema=True))
    assert merging.infer_schema([b, a]) == pa.schema([("X", pa.decimal128(12, 2)), ("new", pa.string())])
    c = write(tmp_path / "c.parquet", {"x": pa.array([1])})
    with pytest.raises(DataError, match=r"column 'X' is int64 in .*c\.parquet but decimal128\(12, 2\)"):
        merging.infer_schema([a, b, c])


def test_an_empty_file_has_no_rows_and_no_schema(tmp_path: Path) -> None:
    (tmp_path / "f.parquet").write_bytes(b"")
    file = LocalFile(str(tmp_path / "f.parquet"))
    assert read(file, pa.schema([("a", pa.int32())])).num_rows == 0
    assert ParquetFormat().borders(file, 1) == []
    with pytest.raises(DataError, match="not a complete Parquet file"):
        ParquetFormat().infer_schema([file])


def test_a_file_without_row_groups_has_no_rows(tmp_path: Path) -> None:
    with pq.ParquetWriter(tmp_path / "f.parquet", pa.schema([("a", pa.int32())])):
        pass
    file = LocalFile(str(tmp_path / "f.parquet"))
    assert read(file).num_rows == 0
    assert read(file).schema == pa.schema([("a", pa.int32())])
    assert ParquetFormat().borders(file, 1) == []


@pytest.mark.parametrize("keep", [3, 100, 0.5, -1])
def test_a_truncated_file_is_a_data_error_that_names_it(tmp_path: Path, keep: float) -> None:
    whole = Path(write(tmp_path / "f.parquet", NESTED).path).read_bytes()
    cut = whole[: int(keep * len(whole)) if isinstance(keep, float) else int(keep)]
    (tmp_path / "cut.parquet").write_bytes(cut)
    with pytest.raises(DataError, match=r"cut\.parquet is not a complete Parquet file"):
        ParquetFormat().infer_schema([LocalFile(str(tmp_path / "cut.parquet"))])


def test_damage_in_the_middle_is_a_data_error_that_names_the_file(tmp_path: Path) -> None:
    file = write(tmp_path / "f.parquet", {"a": pa.array(range(100_000))}, compression="zstd", use_dictionary=False)
    damaged = bytearray(Path(file.path).read_bytes())
    damaged[4:200] = b"\xff" * 196
    Path(file.path).write_bytes(damaged)
    with pytest.raises(DataError, match=r"f\.parquet is not a complete Parquet file"):
        read(file)


class _Failing(LocalFile):
    def open(self) -> BinaryIO:
        raw = super().open()

        class Flaky:
            reads = 0

            def read(self, size: int = -1) -> bytes:
                self.reads += 1
                if self.reads > 1:
                    raise RetriableError("the network is gone")
                return raw.read(size)

            def __enter__(self) -> Self:
                return self

            def __exit__(self, *_: object) -> None:
                raw.close()

            seek, tell = raw.seek, raw.tell

        return Flaky()  # type: ignore[return-value]


def test_an_error_of_the_storage_is_not_taken_for_damage(tmp_path: Path) -> None:
    file = _Failing(write(tmp_path / "f.parquet", {"a": pa.array(range(1_000_000))}, use_dictionary=False).path)
    with pytest.raises(RetriableError, match="the network is gone"):
        list(ParquetFormat().read(file, pa.schema([("a", pa.int64())])))


def test_short_reads_of_the_storage_are_completed(tmp_path: Path) -> None:
    class Short(LocalFile):
        def open(self) -> BinaryIO:
            raw = super().open()
            read = raw.read

            class Part:
                def read(self, size: int = -1) -> bytes:
                    return read(max(1, size // 3))

                def __enter__(self) -> Self:
                    return self

                def __exit__(self, *_: object) -> None:
                    raw.close()

                seek, tell = raw.seek, raw.tell

            return Part()  # type: ignore[return-value]

    file = write(tmp_path / "f.parquet", NESTED)
    assert read(Short(file.path)).equals(read(file))


OLD = {b"org.apache.spark.version": b"2.4.0", b"org.apache.spark.timeZone": b"UTC"}


def old_file(path: Path, metadata: dict[bytes, bytes]) -> LocalFile:
    days = pa.array([-171465, -141427, -141438, -719164, 0], pa.int32()).view(pa.date32())
    micros = pa.array([-171465 * 86_400_000_000 + 5, -1, -141428 * 86_400_000_000, None, 0], pa.int64())
    table = pa.table({"d": days, "t": micros.view(pa.timestamp("us", "UTC")), "n": micros.view(pa.timestamp("us"))})
    return write(path, table.replace_schema_metadata(metadata))


def test_dates_in_the_old_calendar_are_rebased_as_spark_does(tmp_path: Path) -> None:
    table = read(old_file(tmp_path / "f.parquet", OLD))
    assert table.column("d").to_pylist()[:4] == [
        dt.date(1500, 7, 9),
        dt.date(1582, 10, 15),
        dt.date(1582, 9, 24),
        dt.date(1, 1, 1),
    ]
    moments = [None if m is None else m.replace(tzinfo=None) for m in table.column("t").to_pylist()]
    assert moments[0] == dt.datetime(1500, 7, 9, 0, 0, 0, 5)
    assert moments[2] == dt.datetime(1582, 10, 4)
    assert table.column("n").to_pylist()[2] == dt.datetime(1582, 10, 14)


def test_files_that_do_not_name_their_calendar_follow_the_option(tmp_path: Path) -> None:
    file = old_file(tmp_path / "f.parquet", {})
    schema = pa.schema([("d", pa.date32())])
    assert next(ParquetFormat().read(file, schema))[0].column(0).cast(pa.int32()).to_pylist()[0] == -171465
    legacy = ParquetFormat(ParquetOptions(datetime_rebase_mode="LEGACY"))
    assert next(legacy.read(file, schema))[0].column(0).to_pylist()[0] == dt.date(1500, 7, 9)
    careful = ParquetFormat(ParquetOptions(datetime_rebase_mode="EXCEPTION"))
    with pytest.raises(DataError, match="does not name their calendar"):
        next(careful.read(file, schema))
    with pytest.raises(DataError, match="does not name their calendar"):
        next(careful.read(file, pa.schema([("t", pa.timestamp("us", "UTC"))])))


def test_old_timestamps_of_another_zone_are_refused_not_guessed(tmp_path: Path) -> None:
    file = old_file(tmp_path / "f.parquet", {**OLD, b"org.apache.spark.timeZone": b"Europe/Berlin"})
    with pytest.raises(DataError, match="Spark 2's calendar and the time zone Europe/Berlin"):
        read(file, pa.schema([("t", pa.timestamp("us", "UTC"))]))
    assert read(file, pa.schema([("d", pa.date32())])).num_rows == 5


def test_long_strings_behind_a_dictionary_do_not_make_huge_batches(tmp_path: Path) -> None:
    words = pa.array(["x" * 20_000 + str(i) for i in range(20)])
    column = pa.DictionaryArray.from_arrays(pa.array([i % 20 for i in range(50_000)], pa.int32()), words)
    file = write(tmp_path / "f.parquet", {"s": column}, store_schema=False)
    assert file.size < 1 << 20
    sizes = [batch.nbytes for batch, _ in ParquetFormat().read(file, pa.schema([("s", pa.string())]))]
    assert max(sizes) < 20 << 20
    assert sum(sizes) > 900 << 20


@pytest.mark.soak
def test_a_row_group_of_any_size_is_read_in_little_memory(tmp_path: Path) -> None:
    rows = 5_000_000
    columns = dict.fromkeys("abc", pa.array(range(rows), pa.int64()))
    file = write(tmp_path / "f.parquet", columns, row_group_size=rows, compression="none", use_dictionary=False)
    del columns
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    most = 0
    for batch, _ in ParquetFormat().read(file, pa.schema([(name, pa.int64()) for name in "abc"])):
        assert batch.num_rows <= 16_384
        most = max(most, pool.bytes_allocated() - before)
    assert most < 40 << 20
    assert file.size > 110 << 20


def test_names_with_dots_spaces_and_emoji_are_read(tmp_path: Path) -> None:
    names = ["a.b", "a", "with space", "😀", "%2F", "new\nline"]
    columns = {name: pa.array([index]) for index, name in enumerate(names)}
    columns["a"] = pa.array([{"b": 9, "c.d": 8}])
    file = write(tmp_path / "f.parquet", columns)
    expected = {**{name: index for index, name in enumerate(names)}, "a": {"b": 9, "c.d": 8}}
    assert read(file).to_pylist() == [expected]
    assert read(file, pa.schema([("a.b", pa.int64())])).to_pylist() == [{"a.b": 0}]
    assert read_one_field(file) == [{"c.d": 8}]


def read_one_field(file: LocalFile) -> list[object]:
    schema = pa.schema([pa.field("a", pa.struct([("c.d", pa.int64())]))])
    return read(file, schema).column("a").to_pylist()


def test_dictionaries_inside_structs_are_read_across_row_groups(tmp_path: Path) -> None:
    words = pa.array(["a", "b", "a", None]).dictionary_encode()
    table = pa.table({"c": pa.StructArray.from_arrays([words], ["w"]), "n": pa.array(range(4))})
    file = write(tmp_path / "f.parquet", table, row_group_size=2)
    schema = pa.schema([pa.field("c", pa.struct([("w", pa.string())])), ("n", pa.int64())])
    expected = [{"c": {"w": word}, "n": index} for index, word in enumerate(["a", "b", "a", None])]
    assert read(file, schema).to_pylist() == expected
    assert read(file, schema, position=1, end=3).to_pylist() == expected[1:3]


def test_the_format_survives_pickling(tmp_path: Path) -> None:
    reader = ParquetFormat(ParquetOptions(merge_schema=True))
    assert pickle.loads(pickle.dumps(reader)) == reader
