# SPDX-License-Identifier: Apache-2.0
"""`rowFilter` and `partitionFilter` give the rows of Spark's `where`, and leave out row groups and directories."""

from __future__ import annotations

import datetime as dt
import logging
import random
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

import forebay
from forebay import FileSource, HostOptions
from forebay.errors import ConfigurationError
from forebay.formats.orc.footer import read_tail
from forebay.sources.files.file_index import list_files
from forebay.sources.files.listing import ListOptions
from forebay.stores.file_status import FileStatus
from forebay.stores.stored_file import StoredFile

ROWS, GROUP = 400, 40
COPIES = 26
ZONE = "Europe/Berlin"


def table() -> pa.Table:
    """Rows in groups that differ, with nulls and NaN."""
    rng = random.Random(17)

    def column(make: Any) -> list[Any]:
        return [None if number % 7 == 3 or 120 <= number < 160 else make(number) for number in range(ROWS)]

    day = dt.date(2024, 1, 1)
    noon = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
    return pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "tiny": pa.array(column(lambda number: number // GROUP - 5), pa.int8()),
            "price": pa.array(column(lambda number: Decimal(number) / 8), pa.decimal128(9, 3)),
            "share": pa.array(column(lambda _: rng.choice([0.0, -0.0, 0.1, float("nan"), rng.random()])), pa.float64()),
            "low": pa.array(column(lambda number: -number / 10), pa.float32()),
            "name": pa.array(column(lambda number: f"{'äbz'[number % 3]}{number // GROUP}"), pa.string()),
            "day": pa.array(column(lambda number: day + dt.timedelta(days=number // 10)), pa.date32()),
            "at": pa.array(column(lambda number: noon + dt.timedelta(hours=number)), pa.timestamp("us", "UTC")),
            "yes": pa.array(column(lambda number: number < 200), pa.bool_()),
        }
    )


FILTERS = [
    "id < 40", "id BETWEEN 100 AND 130", "id IN (1, 5, 399, 1000)", "id NOT IN (1, 2)", "id >= 398.5",
    "tiny = -5", "tiny < 1000", "tiny > 1000", "NOT tiny > 1000", "tiny IS NULL", "tiny IS NOT NULL AND id > 300",
    "price > 10", "price = 10.125", "price < 10.1251", "price <> 0", "price >= 99999999",
    "share = 0", "share > 0.5", "NOT share > 0.5", "share <= 0.1", "share != 0.1", "NOT share < 2", "share >= 1e0",
    "low > -0.35", "low = -0.1", "low < -39",
    "name = 'ä3'", "name >= 'z'", "name < 'b5'", "NOT name < 'b5'", "name IN ('b1', 'z9')", "name IS NULL OR id = 0",
    "day = DATE '2024-01-11'", "day >= '2024-02-01'", "day BETWEEN '2024-01-03' AND '2024-01-04'",
    "NOT day < '2024-02-01'",
    "at < TIMESTAMP '2024-01-02 00:00:00'", "at >= '2024-01-10 13:30:00' AND at < '2024-01-11'",
    "at = '2024-01-01T12:00:00Z'", "at > DATE '2024-01-15'",
    "yes = TRUE", "yes = false OR tiny = 4", "NOT yes = true",
    "(id < 10 OR name = 'b9') AND NOT share = 0", "NOT (id < 300 AND name > 'b')", "price > 10 AND tiny IS NULL",
]  # fmt: skip


def write(spark: Any, kind: str, path: str) -> None:
    """Write the rows in groups of `GROUP`, as Parquet or ORC by Arrow, or as ORC by Spark."""
    if kind == "parquet":
        pq.write_table(table(), path, row_group_size=GROUP)
    elif kind == "orc":
        orc.write_table(table(), path, stripe_size=1, batch_size=GROUP)
    else:
        # Spark writes 1,024 rows at least into a stripe.
        rows = spark.createDataFrame(table()).crossJoin(spark.range(COPIES).select())
        rows.orderBy("id").coalesce(1).write.option("orc.stripe.row.count", COPIES * GROUP).orc(path)


# In Spark's ORC files, times are wall-clock times of the JVM, which is in UTC here.
@pytest.mark.soak("orc", "orc of Spark")
@pytest.mark.parametrize(("kind", "zone"), [("parquet", ZONE), ("orc", ZONE), ("orc of Spark", "UTC")])
def test_the_rows_are_those_of_where(
    spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, zone: str
) -> None:
    path, judged = str(tmp_path / "rows"), str(tmp_path / "judged")
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        write(spark, "parquet", judged)
        write(spark, kind, path)
        masks = spark.read.parquet(judged).selectExpr(
            "id", *(f"({text}) AS m{number}" for number, text in enumerate(FILTERS))
        )
        expected = [sorted(row.id for row in rows) for rows in _by_mask(masks.collect(), len(FILTERS))]
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    file_format = "parquet" if kind == "parquet" else "orc"
    for text, wanted in zip(FILTERS, expected, strict=True):
        source = FileSource(path=path, file_format=file_format, row_filter=text, time_zone=zone)
        with caplog.at_level(logging.INFO):
            found = forebay.run(source).to_table()
        copies = COPIES if kind == "orc of Spark" else 1
        assert found.column("id").to_pylist() == [number for number in wanted for _ in range(copies)], text
        assert found.schema.names == table().schema.names
    assert 0 < sum(len(wanted) for wanted in expected) < ROWS * len(FILTERS)
    counts = [(int(out), int(of)) for out, of in re.findall(r"leaves out (\d+) of (\d+) ", caplog.text)]
    assert len(counts) == len(FILTERS)
    assert all(of >= 6 for _, of in counts)
    assert sum(out for out, _ in counts) > 0.3 * sum(of for _, of in counts)


def _by_mask(rows: list[Any], count: int) -> list[list[Any]]:
    return [[row for row in rows if row[f"m{number}"]] for number in range(count)]


def test_a_damaged_stripe_that_cannot_match_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.orc"
    orc.write_table(table(), path, stripe_size=1, batch_size=GROUP)
    data = path.read_bytes()
    with path.open("rb") as raw:
        first = read_tail(raw, StoredFile(FileStatus(str(path), len(data), 0))).stripes[0]
    start, end = first.offset + first.index, first.offset + first.size
    path.write_bytes(data[:start] + b"\xff" * (end - start) + data[end:])
    kept = forebay.run(
        FileSource(path=str(path), row_filter="id >= 360"), options=HostOptions(columns=["id"])
    ).to_table()
    assert kept.num_rows == 40
    with pytest.raises(forebay.DataError):
        forebay.run(FileSource(path=str(path), row_filter="id >= 0"), options=HostOptions(columns=["id"])).to_table()


def test_statistics_of_orc_keep_what_reading_changes(tmp_path: Path) -> None:
    """A value may become null or another one: numbers that do not fit, rounded decimals."""
    path = str(tmp_path / "rows.orc")
    noon = dt.datetime(2024, 1, 1, 12)
    rows = pa.table(
        {
            "n": pa.array([1, 2, 3], pa.int64()),
            "d": pa.array([Decimal("1.26"), Decimal("1.27"), Decimal("99.99")], pa.decimal128(4, 2)),
            "at": pa.array([noon, noon, None], pa.timestamp("us")),
            "x": pa.array([1.5, float("nan"), 1e300], pa.float64()),
            "yes": pa.array([True, False, True]),
        }
    )
    orc.write_table(rows, path)
    schema = pa.schema([("n", pa.int8()), ("d", pa.decimal128(4, 1)), ("at", pa.timestamp("us", "UTC"))])
    schema = schema.append(pa.field("x", pa.int64())).append(pa.field("yes", pa.decimal128(1, 1)))
    for text, wanted in [
        ("d = 1.3", 2), ("d IS NULL", 0), ("at IS NULL", 1), ("at > '2024-01-01 11:59:59'", 2), ("n < 1000", 3),
        ("at >= '2024-01-02'", 0), ("n IS NULL", 0), ("n > 3", 0), ("d > 99.9", 1),
        ("x IS NULL", 2), ("x = 1", 1), ("yes IS NULL", 2), ("yes IS NOT NULL", 1),
    ]:  # fmt: skip
        source = FileSource(path=path, row_filter=text).with_schema(schema)
        assert forebay.run(source).to_table().num_rows == wanted, text


def test_row_groups_that_cannot_match_are_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = str(tmp_path / "rows.parquet")
    pq.write_table(table(), path, row_group_size=GROUP)
    with caplog.at_level(logging.INFO):
        source = FileSource(path=path, row_filter="id BETWEEN 100 AND 130")
        found = forebay.run(source, options=HostOptions(columns=["name"])).to_table()
    assert found.num_rows == 31
    assert found.schema.names == ["name"]
    assert "rowFilter leaves out 8 of 10 row groups" in caplog.text
    # What the statistics do not say is read: bytes that end a row group are damaged here.
    data = Path(path).read_bytes()
    first = pq.read_metadata(path).row_group(0).column(0)
    start = first.dictionary_page_offset or first.data_page_offset
    Path(path).write_bytes(data[:start] + b"\xff" * 16 + data[start + 16 :])
    kept = forebay.run(FileSource(path=path, row_filter="id >= 360"), options=HostOptions(columns=["id"])).to_table()
    assert kept.num_rows == 40
    with pytest.raises(forebay.DataError):
        forebay.run(FileSource(path=path, row_filter="id >= 0"), options=HostOptions(columns=["id"])).to_table()


@pytest.mark.parametrize("name", ["csv", "json"])
def test_rows_of_texts_are_filtered_too(tmp_path: Path, name: str) -> None:
    lines = {
        "csv": "".join(f"{number},x{number % 3}\n" for number in range(1000)),
        "json": "".join(f'{{"id": {number}, "name": "x{number % 3}"}}\n' for number in range(1000)),
    }
    (tmp_path / f"rows.{name}").write_text(lines[name])
    schema = pa.schema({"id": pa.int64(), "name": pa.string()})
    options = {"blockBytes": 1024}
    source = FileSource(path=str(tmp_path), row_filter="id >= 990 AND name = 'x1'", format_options=options)
    assert forebay.run(source.with_schema(schema)).to_table().column("id").to_pylist() == [991, 994, 997]


def test_rows_of_orc_are_filtered_too(tmp_path: Path) -> None:
    path = str(tmp_path / "rows.orc")
    orc.write_table(table().select(["id", "name", "price", "at"]), path)
    for text in ("id BETWEEN 100 AND 130", "name = 'ä3'", "price > 10 AND at >= '2024-01-10 13:30:00'"):
        source = FileSource(path=path, row_filter=text)
        expected = FileSource(path=_as_parquet(tmp_path), row_filter=text)
        assert forebay.run(source).to_table()["id"] == forebay.run(expected).to_table()["id"]


def _as_parquet(directory: Path) -> str:
    path = str(directory / "rows.parquet")
    pq.write_table(table(), path)
    return path


@pytest.fixture
def days(tmp_path: Path) -> Path:
    for year in (2023, 2024):
        for month in ("01", "02", "12"):
            for region in ("eu", "us", "__HIVE_DEFAULT_PARTITION__"):
                folder = tmp_path / f"year={year}" / f"month={month}" / f"region={region}"
                folder.mkdir(parents=True)
                pq.write_table(pa.table({"id": pa.array([year * 100 + int(month)])}), folder / "part.parquet")
    return tmp_path


PARTITIONS = [
    "year = 2024", "year = 2024 AND month >= 2", "month IN (1, 12) OR region = 'eu'", "region IS NULL",
    "region = 'us' AND NOT year < 2024", "NOT region = 'us'", "year > 2030", "MONTH <= 1.5", "region >= 'f'",
]  # fmt: skip


def test_the_partitions_are_those_of_where(spark: Any, days: Path) -> None:
    columns = ("id", "year", "month", "region")
    rows = spark.read.parquet(str(days)).selectExpr(
        *columns, *(f"({text}) AS m{number}" for number, text in enumerate(PARTITIONS))
    )
    for text, wanted in zip(PARTITIONS, _by_mask(rows.collect(), len(PARTITIONS)), strict=True):
        # With a schema: inferred types are those of the directories that are left.
        schema = pa.schema({"id": pa.int64(), "year": pa.int32(), "month": pa.int32(), "region": pa.string()})
        source = FileSource(path=str(days), partition_filter=text).with_schema(schema)
        found = forebay.run(source).to_table().to_pylist()
        key = [tuple(str(row[name]) for name in columns) for row in found]
        assert sorted(key) == sorted(tuple(str(row[name]) for name in columns) for row in wanted), text


def test_directories_that_cannot_match_are_not_listed(
    days: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from forebay.stores.local import LocalStore

    listed: list[str] = []
    children = LocalStore.children

    def counted(self: LocalStore, path: str, keep: Any) -> Any:
        listed.append(path)
        return children(self, path, keep)

    monkeypatch.setattr(LocalStore, "children", counted)
    with caplog.at_level(logging.INFO):
        index = list_files([str(days)], ListOptions(partition_filter="year = 2024 AND month = 12 AND region = 'eu'"))
    assert [file.path for file in index.files] == [f"{days}/year=2024/month=12/region=eu/part.parquet"]
    # The root, a year, a month and a region.
    assert len(listed) == 4
    assert "5 directories were not listed" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition_filter": "id = 1"}, "does not exist"),
        ({"partition_filter": "month = '01'"}, "of type int32"),
        ({"partition_filter": "month ="}, "cannot be parsed"),
        ({"partition_filter": "month = 1", "recursive_file_lookup": True}, "recursiveFileLookup"),
        ({"row_filter": "nothing = 1"}, "does not exist"),
        ({"row_filter": "id = 'x'"}, "of type int64"),
    ],
)
def test_filters_that_cannot_be_applied_are_refused(days: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        forebay.run(FileSource(path=str(days), **options)).to_table()
    assert caught.value.option in ("partitionFilter", "rowFilter")


def test_both_filters_on_spark(spark: Any, days: Path) -> None:
    rows = (
        spark.read.format("forebay_files")
        .option("partitionFilter", "year = 2024")
        .option("rowFilter", "id > 202402 AND month > 2")
        .load(str(days))
    )
    assert sorted((row.id, row.region or "") for row in rows.collect()) == [
        (202412, ""),
        (202412, "eu"),
        (202412, "us"),
    ]
