# SPDX-License-Identifier: Apache-2.0
"""ORC files without Spark: positions, slices, columns, memory, and what is refused."""

from __future__ import annotations

import datetime as dt
import io
import itertools
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import orc

from forebay.errors import ConfigurationError, DataError
from forebay.formats.orc.format import OrcFormat, OrcOptions

Files = Callable[..., Any]


def written(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    orc.write_table(table, sink, **options)
    return sink.getvalue()


def table_of(rows: int) -> pa.Table:
    return pa.table(
        {
            "a": pa.array([None if row % 7 == 0 else row for row in range(rows)], pa.int64()),
            "s": [f"text {row * row % 997}" for row in range(rows)],
            "n": [None if row % 5 == 0 else {"x": row, "y": [str(row)] * (row % 3)} for row in range(rows)],
            "m": pa.array([[(str(row), row)] * (row % 2) for row in range(rows)], pa.map_(pa.string(), pa.int64())),
        }
    )


@pytest.fixture(scope="module")
def striped() -> tuple[pa.Table, bytes]:
    table = table_of(60_000)
    data = written(table, stripe_size=1 << 14, batch_size=512, compression="zlib", dictionary_key_size_threshold=1)
    assert orc.ORCFile(io.BytesIO(data)).nstripes > 3
    return table, data


@pytest.mark.parametrize("codec", ["uncompressed", "zlib", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("dictionary", [0.0, 1.0])
def test_every_codec_is_read(memory_file: Files, codec: str, dictionary: float) -> None:
    table = table_of(3_000)
    file = memory_file(written(table, compression=codec, dictionary_key_size_threshold=dictionary))
    schema = OrcFormat().infer_schema([file])
    found = pa.Table.from_batches([batch for batch, _ in OrcFormat().read(file, schema)])
    assert found.to_pylist() == table.to_pylist()


def test_slices_begin_at_stripes_and_give_every_row_once(striped: tuple[pa.Table, bytes], memory_file: Files) -> None:
    table, data = striped
    reader, file = OrcFormat(), memory_file(data)
    schema = reader.infer_schema([file])
    cuts = [0, *reader.borders(file, len(data) // 4), None]
    assert 3 <= len(cuts) <= 6
    parts = [
        batch
        for start, end in itertools.pairwise(cuts)
        for batch, _ in reader.read(file, schema, position=start or 0, end=end)
    ]
    assert pa.Table.from_batches(parts).cast(table.schema).equals(table)


@pytest.mark.parametrize(("position", "end"), [(0, 1), (1, 2), (511, 513), (9_999, 16_000), (19_999, None), (5, 5)])
def test_a_read_begins_and_ends_at_any_row(
    striped: tuple[pa.Table, bytes], memory_file: Files, position: int, end: int | None
) -> None:
    table, data = striped
    reader, file = OrcFormat(), memory_file(data)
    found = list(reader.read(file, reader.infer_schema([file]), columns=["s", "a"], position=position, end=end))
    rows = [row for batch, _ in found for row in batch.to_pylist()]
    assert rows == table.select(["s", "a"]).slice(position, None if end is None else end - position).to_pylist()
    after = position
    for batch, at in found:
        after += batch.num_rows
        assert at == after


def test_fields_that_are_not_wanted_are_not_read(striped: tuple[pa.Table, bytes], memory_file: Files) -> None:
    table, data = striped
    schema = pa.schema([("N", pa.struct([("Y", pa.list_(pa.string()))])), ("new", pa.int8())])
    found = pa.Table.from_batches([batch for batch, _ in OrcFormat().read(memory_file(data), schema)])
    wanted = [{"N": value and {"Y": value["y"]}, "new": None} for value in table["n"][:9_000].to_pylist()]
    assert found.num_rows == table.num_rows
    assert found[:9_000].to_pylist() == wanted


def test_fields_inside_the_values_of_a_map_are_left_out(memory_file: Files) -> None:
    # To leave these out by the names of columns makes Arrow end the process.
    values = pa.map_(pa.string(), pa.struct([("x", pa.int64()), ("y", pa.string())]))
    rows = pa.array([[("a", {"x": 1, "y": "b"}), ("c", None)], None, []], values)
    schema = pa.schema([("m", pa.map_(pa.string(), pa.struct([("x", pa.int64())])))])
    found = next(OrcFormat().read(memory_file(written(pa.table({"m": rows}))), schema))[0]
    assert found.to_pylist() == [{"m": [("a", {"x": 1}), ("c", None)]}, {"m": None}, {"m": []}]


def test_long_values_come_in_small_batches(memory_file: Files) -> None:
    # One value of 64 KB, 40,000 times: 2.5 GB as strings, and 100 KB as a file.
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 40_000, pa.int32()), ["x" * 65_536]).slice(0, 2_000)
    data = written(pa.table({"s": text.cast(pa.string())}), compression="zlib", dictionary_key_size_threshold=1)
    batches = OrcFormat().read(memory_file(data), pa.schema([("s", pa.string())]))
    sizes = [(batch.num_rows, batch.nbytes) for batch, _ in batches]
    assert sum(rows for rows, _ in sizes) == 2_000
    assert max(size for _, size in sizes) <= 80 << 20


def test_timestamps_beyond_the_range_of_nanoseconds_are_exact(memory_file: Files) -> None:
    times = [dt.datetime(2262, 4, 12, 23, 47, 16, 854775), dt.datetime(9999, 12, 31, 23, 59, 59, 999999), None]
    data = written(pa.table({"t": pa.array(times, pa.timestamp("us"))}))
    schema = pa.schema([("t", pa.timestamp("us", "UTC"))])
    found = next(OrcFormat(OrcOptions(time_zone="UTC")).read(memory_file(data), schema))[0].column(0).to_pylist()
    assert found == [time and time.replace(tzinfo=dt.UTC) for time in times]


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()])
def test_decimals_become_the_nearest_number(memory_file: Files, kind: pa.DataType) -> None:
    texts = ["-357.143", "8.299", "1.005", "123456.789", "0.100", "9007199254740993.000", None]
    decimals = pa.array(texts).cast(pa.decimal128(20, 3))
    file = memory_file(written(pa.table({"d": decimals})))
    batch = next(OrcFormat().read(file, pa.schema([("d", kind)])))[0]
    assert batch.column(0).equals(pa.array([text and float(text) for text in texts]).cast(kind))


def test_types_that_do_not_match_name_column_and_file(memory_file: Files) -> None:
    file = memory_file(written(pa.table({"n": [{"x": 1}]})), "/data/f.orc")
    schema = pa.schema([("n", pa.struct([("x", pa.date32())]))])
    with pytest.raises(ConfigurationError, match=r"column 'n\.x' is bigint in /data/f\.orc"):
        list(OrcFormat().read(file, schema))


@pytest.mark.parametrize("size", [0.0, 0.3, 0.9, 0.999])
def test_a_file_that_is_cut_off_is_damaged(striped: tuple[pa.Table, bytes], memory_file: Files, size: float) -> None:
    data = striped[1][: int(len(striped[1]) * size)] or b"ORC"
    with pytest.raises(DataError) as raised:
        OrcFormat().infer_schema([memory_file(data)])
    assert raised.value.option == "ignoreCorruptFiles"


@pytest.mark.parametrize("when", ["0001-01-01", "1899-12-31"])
def test_times_before_1900_are_refused(memory_file: Files, when: str) -> None:
    """Spark takes them for times of the old calendar and of Java's old time zones."""
    times = pa.array([dt.datetime(2020, 1, 1), dt.datetime.fromisoformat(when)], pa.timestamp("us"))
    for kind in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
        file = memory_file(written(pa.table({"t": times.cast(kind), "a": [1, 2]})))
        with pytest.raises(DataError, match="column 't' of .* holds times before 1900") as raised:
            list(OrcFormat().read(file, pa.schema([("t", pa.timestamp("us", "UTC"))])))
        assert "spark.read.format('orc')" in (raised.value.advice or "")
        assert next(OrcFormat().read(file, pa.schema([("a", pa.int64())])))[0].to_pylist() == [{"a": 1}, {"a": 2}]


def test_columns_without_names_are_refused(memory_file: Files) -> None:
    """As Hive writes them: Spark matches them by position."""
    file = memory_file(written(pa.table({"_col0": [1], "_col1": ["a"]})))
    for read in (lambda: OrcFormat().infer_schema([file]), lambda: list(OrcFormat().read(file, pa.schema([])))):
        with pytest.raises(ConfigurationError, match="begin with _col") as raised:
            read()
        assert "spark.read.format('orc')" in (raised.value.advice or "")
