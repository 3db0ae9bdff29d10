# SPDX-License-Identifier: Apache-2.0
"""Random CSV and JSON files, plain and compressed: the rows of Spark's own readers, in batch and as a stream.

A case is a directory of files with one schema and one set of options, from a number. Spark's own reader reads it in
batch; `forebay_files` reads it on Spark, in batch and as a stream with limits of its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from text_files import csv_files, json_files
from text_files.compression import NOT_SPARKS, stored
from text_files.rows import rows

import forebay

pytest.importorskip("pyspark")

Rows = dict[str, list[str]]
"""The rows of each file as text, by the number at the beginning of its name."""
METADATA = "_metadata struct<file_name: string, file_block_start: bigint>"


@dataclass
class Case:
    """Files of one schema, and options by Spark's names.

    Attributes:
        kind: The format.
        ddl: The columns.
        options: What both readers get.
        files: Content by number.
        ours: What forebay gets beside that, in batch.
        limits: What it gets beside that in a stream.
    """

    kind: str
    ddl: str
    options: dict[str, str]
    files: dict[str, bytes]
    ours: dict[str, str] = field(default_factory=dict)
    limits: dict[str, str] = field(default_factory=dict)


def csv_case(number: int, count: int) -> Case:
    chance = random.Random(f"csv {number}")
    if white := chance.random() < 0.25:
        options = csv_files.options_of_white_lines(chance)
        kinds = ["int", "string", "string", "int"][: chance.randint(1, 4)]
    else:
        options = csv_files.options_of(chance, multi_line=chance.random() < 0.3)
        kinds = [chance.choice([*csv_files.ARROW, "string", "string"]) for _ in range(chance.choice([1, 2, 3, 4]))]
    encoding = "UTF-8"
    if chance.random() < 0.15:
        wide = ["UTF-16", "UTF-16LE", "UTF-16BE"] if options.get("multi_line") else []
        options["encoding"] = encoding = chance.choice(["ISO-8859-1", "US-ASCII", *wide])
    columns = [f"c{place} {kind}" for place, kind in enumerate(kinds)]
    if "mode" not in options and chance.random() < 0.8:
        columns.insert(chance.randrange(len(columns) + 1), "_corrupt_record string")
    end = options.get("line_sep") or chance.choice(["\n", "\r\n"])
    files = []
    while len(files) < count:
        data = csv_files.file_of_white_lines(chance, end) if white else csv_files.file_of(chance, kinds, options)
        if encoding != "UTF-8":
            data = data.decode(errors="replace").encode(encoding, "replace")
            if chance.random() < 0.1 and not encoding.startswith("UTF-"):
                data = csv_files.BOM + data
        if not csv_files.goes_astray(data, options):
            files.append(data)
    return _case(chance, "csv", columns, csv_files.for_spark(options), files)


def json_case(number: int, count: int) -> Case:
    chance = random.Random(f"json {number}")
    options = json_files.options_of(chance)
    ddl, records = json_files.records_of(chance, options)
    columns = [ddl]
    if chance.random() < 0.75:
        name = chance.choice(["_corrupt_record", "_corrupt_record", "bad"])
        columns.insert(chance.randrange(2), f"{name} string")
        if name == "bad":
            options["columnNameOfCorruptRecord"] = name
    files = [json_files.file_of(chance, records, options) for _ in range(count)]
    spelled = {name: str(value).lower() if value in (True, False) else value for name, value in options.items()}
    return _case(chance, "json", columns, spelled, files)


def _case(chance: random.Random, kind: str, columns: list[str], options: dict[str, str], files: list[bytes]) -> Case:
    case = Case(kind, ", ".join(columns), options, {f"{place:05}": data for place, data in enumerate(files)})
    if chance.random() < 0.3:
        case.ours["maxPartitionBytes"] = chance.choice(["60b", "1k"])
    if chance.random() < 0.3:
        case.ours["maxRowsPerBatch"] = chance.choice(["1", "7"])
    if chance.random() < 0.3:
        case.ours["blockBytes"] = chance.choice(["100", "1000"])
    case.limits["maxFilesPerTrigger"] = str(chance.randint(len(files) // 6 + 1, len(files) // 2 + 1))
    if chance.random() < 0.2:
        case.limits["maxBytesPerTrigger"] = f"{sum(map(len, files)) // 6 + 1}b"
    return case


def write(case: Case, number: int, place: Path) -> tuple[Path, Path]:
    """Write the files; return the directory for forebay, and that for Spark.

    Some of the files are compressed. Those that Spark cannot decompress are plain in its directory.
    """
    chance = random.Random(f"compressed {case.kind} {number}")
    directories = place / "ours", place / "theirs"
    for directory in directories:
        directory.mkdir()
    share = chance.choice([0, 0.05, 0.5, 1])
    # Of CSV with multiLine, Spark looks for line ends in the first stream of bzip2 only.
    streams = 1 if case.kind == "csv" and "multiLine" in case.options else 2
    for name, data in case.files.items():
        suffix, packed = stored(chance, data, bzip2_streams=streams)
        compressed = chance.random() < share
        for directory in directories:
            if compressed and not (suffix.lower() == NOT_SPARKS and directory.name == "theirs"):
                (directory / f"{name}.{case.kind}.{suffix}").write_bytes(packed)
            else:
                (directory / f"{name}.{case.kind}").write_bytes(data)
    return directories


def by_file(table: pa.Table, case: Case) -> Rows:
    """The rows of each file, in order; the last column is the name, and the one before it where a slice begins."""
    found: dict[str, list[tuple[int, str]]] = {name: [] for name in case.files}
    names, starts = (table.column(place).to_pylist() for place in (-1, -2))
    columns = table.select(list(range(table.num_columns - 2)))
    for name, start, row in zip(names, starts, rows(columns), strict=True):
        found[name[:5]].append((start, row))
    return {name: [row for _, row in sorted(each, key=lambda item: item[0])] for name, each in found.items()}


def chosen(frame: Any) -> Any:
    names = [f"`{name}`" for name in frame.columns if name != "_metadata"]
    return frame.select(*names, "_metadata.file_block_start", "_metadata.file_name")


def theirs(spark: Any, case: Case, path: Path) -> Rows | str:
    reader = spark.read.format(case.kind).options(**case.options).schema(case.ddl)
    try:
        return by_file(chosen(reader.load(str(path))).toArrow(), case)
    except Exception:  # noqa: BLE001 - Spark has many classes for one kind of failure
        return "refused"


def ours(spark: Any, case: Case, path: Path) -> Rows | str:
    reader = spark.read.format("forebay_files").options(fileFormat=case.kind, **case.options, **case.ours)
    return _or_refused(
        lambda: by_file(chosen(reader.schema(f"{case.ddl}, {METADATA}").load(str(path))).toArrow(), case)
    )


def streamed(spark: Any, case: Case, path: Path) -> Rows | str:
    reader = spark.readStream.format("forebay_files").options(fileFormat=case.kind, **case.options, **case.ours)
    frame = chosen(reader.options(**case.limits).schema(f"{case.ddl}, {METADATA}").load(str(path)))
    batches: list[pa.Table] = []

    def read() -> Rows:
        writer = frame.writeStream.foreachBatch(lambda batch, _: batches.append(batch.toArrow()))
        query = writer.option("checkpointLocation", f"{path}.checkpoint").trigger(availableNow=True).start()
        assert query.awaitTermination(500)
        return by_file(pa.concat_tables(batches), case) if batches else {name: [] for name in case.files}

    return _or_refused(read)


def _or_refused(read: Callable[[], Rows]) -> Rows | str:
    try:
        return read()
    except Exception as failure:
        error = forebay.unwrap(failure)
        if error is None:
            raise
        return f"refused: {error}"


def differences(case: Case, how: str, mine: Rows | str, expected: Rows | str) -> list[str]:
    if isinstance(mine, str) or isinstance(expected, str):
        both = isinstance(mine, str) and isinstance(expected, str)
        return [] if both else [f"{how}, {case.options} {case.ours}: ours {mine!s:.600}, Spark {expected!s:.200}"]
    return [
        f"{how}, file {name}, {case.kind} {case.ddl} {case.options} {case.ours} {case.limits}, {data!r}:\n"
        + "\n".join(f"  ours  {a}\n  Spark {b}" for a, b in zip_longest(mine[name], expected[name]) if a != b)
        for name, data in case.files.items()
        if mine[name] != expected[name]
    ]


@pytest.fixture(scope="module")
def session(spark: Any) -> Iterator[Any]:
    """Spark without compiled stages: each schema would cost a compilation."""
    spark.conf.set("spark.sql.codegen.wholeStage", "false")
    yield spark
    spark.conf.unset("spark.sql.codegen.wholeStage")


def check(session: Any, case: Case, number: int, place: Path) -> Rows | str:
    """Compare all reads of a case; return what Spark's own reader gives."""
    directory, of_spark = write(case, number, place)
    expected = theirs(session, case, of_spark)
    found = differences(case, "batch", ours(session, case, directory), expected)
    found += differences(case, "stream", streamed(session, case, directory), expected)
    assert not found, f"{len(found)} differences:\n" + "\n".join(found[:10])
    return expected


def cases(whole: int, count: int) -> list[Any]:
    """A small directory, and others of `count` files each."""
    others = [pytest.param(number, count, id=f"{number} of {count} files") for number in range(whole)]
    return [pytest.param(0, 12, id="small"), *others]


@pytest.mark.soak
@pytest.mark.parametrize(("number", "count"), cases(60, 50))
def test_random_csv_files_have_sparks_rows_in_batch_and_in_a_stream(
    session: Any, tmp_path: Path, number: int, count: int
) -> None:
    assert check(session, csv_case(number, count), number, tmp_path) != "refused"


@pytest.mark.soak
@pytest.mark.parametrize(("number", "count"), cases(90, 200))
def test_random_json_files_have_sparks_rows_in_batch_and_in_a_stream(
    session: Any, tmp_path: Path, number: int, count: int
) -> None:
    assert check(session, json_case(number, count), number, tmp_path) != "refused"


@pytest.mark.soak
@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("case_of", [csv_case, json_case], ids=["csv", "json"])
def test_failfast_refuses_the_files_that_spark_refuses(
    session: Any, tmp_path: Path, case_of: Callable[[int, int], Case], number: int
) -> None:
    case = case_of(number, 12)
    case.options["mode"] = "FAILFAST"
    found = []
    for name, data in case.files.items():
        (tmp_path / name).mkdir()
        found.append(check(session, replace(case, files={name: data}), number, tmp_path / name) == "refused")
    assert any(found)
