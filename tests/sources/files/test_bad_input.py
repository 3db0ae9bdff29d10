# SPDX-License-Identifier: Apache-2.0
"""Bad input is an error with file, line or option and the next step, or is handled by the mode."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay
from forebay.errors import ConfigurationError, DataError, ForebayError, RetriableError
from forebay.options import Secret
from forebay.sources.files import FileSource, FileSplit
from forebay.sources.files.catalog import names
from forebay.sources.files.enumerator import FileEnumerator
from forebay.sources.files.split_reader import FileSplitReader
from forebay.stores.stored_file import StoredFile

Write = Callable[..., str]
Row = tuple[int, str | None]
ROWS: list[Row] = [(1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, "e")]


def table(source: FileSource) -> pa.Table:
    return forebay.run(source).to_table()


def says(error: ForebayError, *parts: str) -> None:
    """Check that the text has all of these, the source, and the next step."""
    for part in ("forebay_files", "next step: ", *parts):
        assert part in str(error), f"{part!r} is not in\n{error}"


def source_of(kind: Any, path: str, **options: Any) -> FileSource:
    return FileSource(path=path, file_format=kind.name, format_options=kind.options, **options)


def resolved(source: FileSource) -> FileSource:
    return source.with_schema(source.schema())


def planned(source: FileSource) -> list[FileSplit]:
    return [split for split in FileEnumerator(source).discover({}, True).splits if isinstance(split, FileSplit)]


def drained(source: FileSource, splits: list[FileSplit]) -> int:
    reader = FileSplitReader(source)
    reader.add_splits(splits)
    left, rows = len(splits), 0
    try:
        while left:
            for part in reader.fetch():
                left -= part.finished
                rows += 0 if part.batch is None else part.batch.num_rows
    finally:
        reader.close()
    return rows


# ---- options


@pytest.mark.parametrize("file_format", ["csv", "json", "parquet"])
@pytest.mark.parametrize("option", ["maxStringLen", "maxNumLen", "maxNestingDepth"])
def test_an_option_that_is_hardly_alike_is_not_suggested(file_format: str, option: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        FileSource(path=f"x.{file_format}", format_options={option: "1"})
    assert "did you mean" not in raised.value.message
    assert ("not supported for json" in raised.value.message) == (file_format == "json")


@pytest.mark.parametrize("option", ["dateFormat", "timestampFormat", "timestampNTZFormat"])
@pytest.mark.parametrize(("file_format", "other"), [("CSV", "JSON"), ("JSON", "CSV")])
def test_the_error_for_a_pattern_names_the_format_that_is_read(file_format: str, other: str, option: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{option} of the {file_format} format") as raised:
        FileSource(path=f"x.{file_format.lower()}", format_options={option: "QQQ"})
    assert other not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"heder": "true"}, ["'heder'", "did you mean 'header'"]),
        ({"delimeter": ";"}, ["'delimeter'", "did you mean 'delimiter'"]),
        ({"pathGlobFiltre": "*"}, ["'pathGlobFiltre'", "did you mean 'pathGlobFilter'"]),
        ({"numPartition": "2"}, ["'numPartition'", "did you mean 'numPartitions'"]),
        ({"mergeSchema": "true"}, ["'mergeSchema'", "an option of orc and parquet files"]),
        ({"allowComments": "true"}, ["'allowComments'", "an option of json files"]),
        ({"qwertyuiop": "true"}, ["'qwertyuiop'"]),
        ({"charToEscapeQuoteEscaping": "x"}, ["'charToEscapeQuoteEscaping'", "not supported"]),
        ({"maxCachedFiles": "10"}, ["'maxCachedFiles'", "not supported", "discoveryInterval"]),
        ({"ignoredPathSegmentRegex": "x.*"}, ["'ignoredPathSegmentRegex'", "not supported", "hidden names"]),
        ({"ignoreInvalidPartitionPaths": "true"}, ["'ignoreInvalidPartitionPaths'", "not supported", "contradict"]),
        ({"archivePathFilter": "*"}, ["'archivePathFilter'", "not supported", "archives"]),
        ({"discardCachedInputRatio": "0.5"}, ["'discardCachedInputRatio'", "not supported", "discoveryInterval"]),
        ({"compression": "gzip"}, ["'compression'", "writing"]),
        ({"header": "perhaps"}, ["'header'", "'perhaps'"]),
        ({"sep": "abc"}, ["sep"]),
        ({"mode": "NICE"}, ["mode", "PERMISSIVE"]),
    ],
)
def test_a_wrong_option_is_named_with_what_was_meant(tmp_path: Path, options: dict[str, str], words: list[str]) -> None:
    (tmp_path / "f.csv").write_text("1\n")
    with pytest.raises(ConfigurationError) as raised:
        FileSource(path=str(tmp_path / "f.csv"), format_options=options)
    says(raised.value, *words)
    assert raised.value.option is not None


def test_a_wrong_glob_is_named_by_its_option(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("1\n")
    for options, option in (({"path": f"{tmp_path}/[f.csv"}, "path"), ({"path_glob_filter": "[f"}, "pathGlobFilter")):
        with pytest.raises(ConfigurationError, match="a bracket is not closed") as raised:
            FileSource(**{"path": str(tmp_path), "file_format": "csv", **options}).schema()
        assert raised.value.option == option


def test_two_names_of_one_option_must_agree() -> None:
    with pytest.raises(ConfigurationError) as raised:
        FileSource(path="f.csv", format_options={"sep": ";", "delimiter": "|"})
    says(raised.value, "'sep'", "'delimiter'", "different values")
    FileSource(path="f.csv", format_options={"sep": ";", "delimiter": ";"})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"maxPartitionBytes": "lots"}, ["'maxPartitionBytes'", "'lots'"]),
        ({"includeMetadata": "2"}, ["'includeMetadata'", "'2'"]),
        ({"modifiedBefore": "yesterday"}, ["'yesterday'", "modifiedBefore", "yyyy-MM-dd"]),
        ({"timeZone": "Mars/Base"}, ["'Mars/Base'", "timeZone"]),
    ],
)
def test_options_of_wrong_types(tmp_path: Path, options: dict[str, str], words: list[str]) -> None:
    (tmp_path / "f.csv").write_text("1\n")
    with pytest.raises(ConfigurationError) as raised:
        table(FileSource.from_options({"path": str(tmp_path / "f.csv"), **options}))
    says(raised.value, *words)


def test_the_format_must_be_known(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as raised:
        FileSource(path=str(tmp_path)).schema()
    says(
        raised.value,
        "not set",
        "no files",
        str(tmp_path),
        "option: fileFormat",
        ", ".join(sorted(names())),
    )
    with pytest.raises(ConfigurationError) as raised:
        FileSource(path=str(tmp_path), file_format="parket")
    says(raised.value, "'parket'", "did you mean 'parquet'")
    with pytest.raises(ConfigurationError) as raised:
        FileSource(path=str(tmp_path), file_format="xml")
    says(raised.value, "'xml'", "spark.read.format('xml')")
    with pytest.raises(ConfigurationError) as raised:
        FileSource(paths=["a.csv", "b.json"])
    says(raised.value, "not set")
    with pytest.raises(ConfigurationError) as raised:
        FileSource()
    says(raised.value, "path is not set", "option: path")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("x/a.csv", "csv"),
        ("x/a.CSV.gz", "csv"),
        ("s3://b/x.jsonl.zst", "json"),
        ("a.snappy.parquet", "parquet"),
        ("d.parquet/", "parquet"),
        ("/logs/*.log", "text"),
        ("x/a.csv.GZ", "csv"),
        ("zip://d/a.csv::file:///p.zip", "csv"),
        ("tar://*.json.gz::p.tar", "json"),
        ("simplecache::s3://b/a.parquet", "parquet"),
        ("http://h/a.csv?sig=x/y.json", "csv"),
    ],
)
def test_the_suffix_decides_the_format(path: str, name: str) -> None:
    assert FileSource(path=path).format_name() == name
    assert FileSource(path="x", file_format=name.upper()).format().name == name


# ---- paths


def test_a_missing_path(kind: Any, tmp_path: Path) -> None:
    for path in (str(tmp_path / "no such"), str(tmp_path / "*.none")):
        with pytest.raises(ConfigurationError) as raised:
            table(source_of(kind, path))
        says(raised.value, path, "does not exist", "option: path")


def test_a_relative_path_says_where_it_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("no such", "a/*.none"):
        with pytest.raises(ConfigurationError) as raised:
            table(FileSource(path=path, file_format="text"))
        says(raised.value, repr(path), f"looked for as '{tmp_path}/{path}'")
    with pytest.raises(ConfigurationError) as raised:
        table(FileSource(path=f"{tmp_path}/no such", file_format="text"))
    assert "looked for" not in str(raised.value)


def test_a_header_that_differs_names_source_and_file(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("a,c\n1,2\n")
    source = FileSource(path=str(tmp_path), file_format="csv", format_options={"header": True, "enforceSchema": False})
    with pytest.raises(ConfigurationError) as raised:
        table(source.with_schema(pa.schema([("a", pa.int64()), ("b", pa.int64())])))
    says(raised.value, f"{tmp_path}/f.csv has the column 'c'", "option: enforceSchema")
    assert (raised.value.source, raised.value.split) == ("forebay_files", f"{tmp_path}/f.csv")


def test_an_empty_directory(kind: Any, tmp_path: Path) -> None:
    source = source_of(kind, str(tmp_path))
    if kind.name == "text":
        assert table(source).num_rows == 0
    else:
        with pytest.raises(ConfigurationError) as raised:
            table(source)
        says(raised.value, str(tmp_path), "no files", "give a schema")
    assert table(source.with_schema(pa.schema([("value", pa.string())]))).num_rows == 0


@pytest.mark.parametrize(("name", "text"), [("csv", ""), ("json", "\n"), ("json", "{}\n")])
def test_files_without_a_column(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "f").write_text(text)
    with pytest.raises(ConfigurationError) as raised:
        table(FileSource(path=str(tmp_path), file_format=name))
    says(raised.value, str(tmp_path), "no column", "give a schema")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file(kind: Any, write: Write) -> None:
    root = write(kind.name, {"f" + kind.suffix: ROWS})
    os.chmod(f"{root}/f{kind.suffix}", 0)
    with pytest.raises(ConfigurationError) as raised:
        table(source_of(kind, root))
    says(raised.value, f"{root}/f{kind.suffix}", "no permission")


def test_a_file_that_the_system_does_not_let_open(kind: Any, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write(kind.name, {"f" + kind.suffix: ROWS})
    source = resolved(source_of(kind, root, ignore_corrupt_files=True))

    def refused(path: Path, *_args: object, **_options: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    splits = planned(source)
    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(ConfigurationError) as raised:
        drained(source, splits)
    assert f"{root}/f{kind.suffix}" in str(raised.value)
    assert "no permission" in str(raised.value)


# ---- damaged files


def test_a_truncated_file(kind: Any, write: Write) -> None:
    suffix = kind.suffix + ("" if kind.name == "parquet" else ".gz")
    rows = [(number, os.urandom(6).hex()) for number in range(20_000)]
    root = write(kind.name, {"a" + suffix: ROWS, "b" + suffix: rows}, compressed=kind.name != "parquet")
    path = Path(root, "b" + suffix)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(DataError) as raised:
        table(source_of(kind, root).with_schema(resolved(source_of(kind, root + "/a*")).full_schema()))
    says(raised.value, str(path), "not a complete", "ignoreCorruptFiles")
    good = resolved(source_of(kind, root + "/a*")).full_schema()
    # The rows before the damage are kept, in whole blocks.
    small = replace(
        source_of(kind, root, ignore_corrupt_files=True),
        format_options=kind.options if kind.name == "parquet" else {**kind.options, "blockBytes": "4096"},
    )
    kept = table(small.with_schema(good)).num_rows
    assert kept < len(ROWS) + len(rows)
    assert (kept > len(ROWS)) == (kind.name != "parquet")
    # Schema inference skips it too.
    if kind.name not in ("csv", "json"):
        assert table(small).num_rows == kept


def test_only_damaged_files_cannot_be_passed_over_for_a_schema(tmp_path: Path) -> None:
    (tmp_path / "f.parquet").write_bytes(b"PAR1 not really PAR1")
    with pytest.raises(DataError) as raised:
        table(FileSource(path=str(tmp_path), file_format="parquet", ignore_corrupt_files=True))
    says(raised.value, str(tmp_path / "f.parquet"))


def test_a_schema_that_contradicts_parquet(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": ["x"]}), tmp_path / "f.parquet")
    for ignore in (False, True):
        source = FileSource(path=str(tmp_path / "f.parquet"), ignore_corrupt_files=ignore)
        with pytest.raises((ConfigurationError, DataError)) as raised:
            table(source.with_schema(pa.schema([("a", pa.int32())])))
        says(raised.value, str(tmp_path / "f.parquet"), "'a'")


# ---- a directory that changes


def change(path: Path, how: str) -> None:
    before = path.stat()
    data = path.read_bytes()
    if how == "deleted":
        path.unlink()
    elif how == "appended":
        with path.open("ab") as stream:
            stream.write(b"\n")
    elif how == "replaced":
        other = path.with_name("other")
        other.write_bytes(data)
        os.utime(other, ns=(0, before.st_mtime_ns + 1))
        other.replace(path)
    elif how == "emptied":
        path.write_bytes(b"")


@pytest.mark.parametrize("how", ["deleted", "appended", "replaced", "emptied"])
def test_a_file_that_changes_between_planning_and_reading(kind: Any, write: Write, how: str) -> None:
    path = Path(write(kind.name, {"f" + kind.suffix: ROWS}), "f" + kind.suffix)
    ignoring: list[dict[str, bool]] = [{}, {"ignore_corrupt_files": True}]
    if how != "deleted":
        ignoring.append({"ignore_corrupt_files": True, "ignore_missing_files": True})
    sources = [resolved(source_of(kind, str(path), **options)) for options in ignoring]
    splits = planned(sources[0])
    change(path, how)
    for source in sources:
        with pytest.raises(DataError) as raised:
            drained(source, splits)
        says(raised.value, str(path), "no longer exists" if how == "deleted" else "has changed")
        assert raised.value.split == str(path)


@pytest.mark.parametrize("how", ["appended", "emptied"])
def test_a_file_that_is_written_over_while_it_is_read(write: Write, how: str) -> None:
    rows = [(number, "x" * 50) for number in range(1000)]
    path = Path(write("csv", {"f.csv": rows}), "f.csv")
    source = resolved(
        FileSource(path=str(path), format_options={"header": "true", "blockBytes": "4096"}, ignore_corrupt_files=True)
    )
    reader = FileSplitReader(source)
    reader.add_splits(planned(source))
    assert reader.fetch()[0].batch is not None
    change(path, how)
    with pytest.raises(DataError) as raised:
        for _ in range(100):
            reader.fetch()
    says(raised.value, str(path), "has changed")
    reader.close()


def test_a_file_that_is_deleted_while_it_is_open_is_read_whole(write: Write) -> None:
    rows = [(number, "x" * 50) for number in range(1000)]
    path = Path(write("csv", {"f.csv": rows}), "f.csv")
    source = resolved(FileSource(path=str(path), format_options={"header": "true", "blockBytes": "4096"}))
    reader = FileSplitReader(source)
    reader.add_splits(planned(source))
    (first,) = reader.fetch()
    path.unlink()
    found = first.batch.num_rows if first.batch is not None else 0
    while not first.finished:
        (first,) = reader.fetch()
        found += 0 if first.batch is None else first.batch.num_rows
    assert found == len(rows)


def test_missing_files_are_left_out_only_if_the_user_says_so(kind: Any, write: Write) -> None:
    root = write(kind.name, {f"{number}{kind.suffix}": ROWS for number in range(3)})
    source = resolved(source_of(kind, root, ignore_missing_files=True))
    splits = planned(source)
    os.unlink(f"{root}/1{kind.suffix}")
    assert drained(source, splits) == 2 * len(ROWS)


# ---- a store that fails for a moment


class Flaky:
    """Opens a stored file whose reads fail once, after some bytes."""

    def __init__(self, stream: Any, failures: list[int]) -> None:
        self._stream = stream
        self._failures = failures

    def read(self, size: int = -1) -> Any:
        self._fail()
        return self._stream.read(size)

    def readinto(self, buffer: Any) -> Any:
        self._fail()
        return self._stream.readinto(buffer)

    def _fail(self) -> None:
        if self._failures and self._stream.tell() >= self._failures[0]:
            self._failures.pop(0)
            raise RetriableError("the store did not answer")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()


def test_a_retried_fetch_continues_where_it_was(kind: Any, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(number, f"value {number}") for number in range(2000)]
    path = write(kind.name, {"f" + kind.suffix: rows}) + "/f" + kind.suffix
    small = {} if kind.name == "parquet" else {"blockBytes": "1024"}
    source = FileSource(path=path, file_format=kind.name, format_options={**kind.options, **small})
    source = resolved(source)
    whole = table(source).to_pylist()
    failures = [0, 2000, 9000]
    opened = StoredFile.open
    monkeypatch.setattr(StoredFile, "open", lambda self: Flaky(opened(self), failures))
    reader = FileSplitReader(source)
    reader.add_splits(planned(source))
    found: list[dict[str, object]] = []
    retried, finished = 0, False
    while not finished:
        try:
            (part,) = reader.fetch()
        except RetriableError:
            retried += 1
            continue
        finished = part.finished
        found += [] if part.batch is None else part.batch.to_pylist()
    assert retried == 3 - len(failures) >= 1
    assert found == whole


# ---- secrets


@pytest.mark.parametrize(
    ("option", "name"), [("path", "path"), ("base_path", "basePath"), ("source_archive_dir", "sourceArchiveDir")]
)
def test_a_url_with_a_password_is_refused_at_once(option: str, name: str) -> None:
    given = {"path": "/data", option: "ftp://me:hunter22@127.0.0.1:1/x.csv"}
    with pytest.raises(ConfigurationError, match="contains a password") as raised:
        FileSource(file_format="csv", **given)
    assert raised.value.option == name
    assert "hunter22" not in str(raised.value)


def test_storage_options_are_never_shown(tmp_path: Path) -> None:
    source = FileSource(path="memory://nowhere/x.parquet", storage={"token": Secret("hunter2hunter2")})
    with pytest.raises(ForebayError) as raised:
        table(source)
    assert "hunter2" not in f"{raised.value!s} {raised.value!r} {source!r} {source.storage_options()!r}"
    split = FileSplit("memory://nowhere/x.parquet", size=1, modified_at=0)
    assert "hunter2" not in str(split.to_json()) + repr(source.stored(split.status))
    with pytest.raises(ForebayError) as raised:
        drained(replace(source).with_schema(pa.schema([("a", pa.int64())])), [split])
    assert "hunter2" not in str(raised.value)
    with pytest.raises(ConfigurationError) as raised:
        table(FileSource(path="s3://key:hunter2hunter2@bucket/x.parquet"))
    assert "hunter2" not in str(raised.value)


# ---- records


BAD_CSV = "k,v\n1,a\n2\n3,c,more\n4,d\n"


def csv(path: Path, **options: str) -> FileSource:
    source = FileSource(path=str(path), format_options={"header": "true", **options})
    return source.with_schema(pa.schema([("k", pa.int64()), ("v", pa.string()), ("_corrupt_record", pa.string())]))


def test_csv_rows_with_too_few_or_too_many_fields(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_text(BAD_CSV)
    assert table(csv(path)).to_pylist() == [
        {"k": 1, "v": "a", "_corrupt_record": None},
        {"k": 2, "v": None, "_corrupt_record": "2"},
        {"k": 3, "v": "c", "_corrupt_record": "3,c,more"},
        {"k": 4, "v": "d", "_corrupt_record": None},
    ]
    dropped = table(csv(path, mode="DROPMALFORMED"))
    assert dropped.column("k").to_pylist() == [1, 4]
    for ignore in (False, True):
        with pytest.raises(DataError) as raised:
            table(replace(csv(path, mode="failfast"), ignore_corrupt_files=ignore).with_schema(csv(path).full_schema()))
        says(raised.value, str(path), "option: mode", "position: ", "PERMISSIVE")


def test_a_damaged_json_record_in_each_mode(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_text('{"k": 1}\n{"k": oh\n{"k": 3}\n')
    source = FileSource(path=str(path))
    schema = pa.schema([("k", pa.int64()), ("_corrupt_record", pa.string())])
    assert table(source.with_schema(schema)).to_pylist() == [
        {"k": 1, "_corrupt_record": None},
        {"k": None, "_corrupt_record": '{"k": oh'},
        {"k": 3, "_corrupt_record": None},
    ]
    assert table(source).column("_corrupt_record").to_pylist() == [None, '{"k": oh', None]
    dropping = replace(source, format_options={"mode": "DROPMALFORMED"}).with_schema(schema)
    assert table(dropping).column("k").to_pylist() == [1, 3]
    for ignore in (False, True):
        failing = replace(source, format_options={"mode": "FAILFAST"}, ignore_corrupt_files=ignore)
        with pytest.raises(DataError) as raised:
            table(failing.with_schema(schema))
        says(raised.value, str(path), "position: ", "mode", "PERMISSIVE")


def test_a_failfast_error_of_a_compressed_file_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "f.csv.gz"
    path.write_bytes(gzip.compress(BAD_CSV.encode()))
    source = csv(path, mode="FAILFAST")
    with pytest.raises(DataError) as raised:
        table(replace(source, ignore_corrupt_files=True).with_schema(source.full_schema()))
    says(raised.value, str(path), "option: mode")


@pytest.mark.parametrize("name", ["csv", "text"])
def test_invalid_utf_8_becomes_replacement_characters(tmp_path: Path, name: str) -> None:
    path = tmp_path / "f"
    path.write_bytes({"csv": b"1,a\xffb\xc3\n", "text": b"a\xffb\xc3\n"}[name])
    schema = pa.schema([("value", pa.string())] if name == "text" else [("k", pa.int64()), ("v", pa.string())])
    (row,) = table(FileSource(path=str(path), file_format=name).with_schema(schema)).to_pylist()
    assert row[schema.names[-1]] == "a\ufffdb\ufffd"


def test_invalid_utf_8_makes_a_json_record_malformed(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_bytes(b'{"k": 1, "v": "a\xffb"}\n{"k": 2, "v": "b"}\n')
    schema = pa.schema([("k", pa.int64()), ("v", pa.string()), ("_corrupt_record", pa.string())])
    found = table(FileSource(path=str(path)).with_schema(schema))
    assert found.column("v").to_pylist() == [None, "b"]
    # Spark keeps the bytes in a string that Python cannot read.
    assert found.column("_corrupt_record").to_pylist() == ['{"k": 1, "v": "a\ufffdb"}', None]


# That JSON refuses such a string, as Spark does, is compared in tests/formats/test_json_spark.py.
@pytest.mark.soak(but=["text"])
@pytest.mark.parametrize("name", ["csv", "json", "text"])
def test_a_line_of_50_megabytes(tmp_path: Path, name: str) -> None:
    path = tmp_path / "f"
    long = b"x" * (50 << 20)
    lines = {"csv": b"1,%s\n2,b\n", "json": b'{"k": 1, "v": "%s"}\n{"k": 2, "v": "b"}\n', "text": b"%s\nb\n"}[
        name
    ] % long
    path.write_bytes(lines)
    schema = pa.schema([("value", pa.string())] if name == "text" else [("k", pa.int64()), ("v", pa.string())])
    source = FileSource(path=str(path), file_format=name).with_schema(schema)
    lengths = [len(row[schema.names[-1]] or "") for row in table(source).to_pylist()]
    # Spark's JSON parser refuses strings of more than 20,000,000 characters: the record is malformed.
    assert lengths == [0 if name == "json" else len(long), 1]


def test_duplicate_column_names(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_text("a,b,A\n1,2,3\n")
    names = FileSource(path=str(path), format_options={"header": "true"}).schema().names
    assert names == ["a0", "b", "A2"]
    (tmp_path / "f.json").write_text('{"a": 1, "b": 2, "a": 3}\n')
    pq.write_table(pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]), tmp_path / "f.parquet")
    with pytest.raises(ConfigurationError) as raised:
        table(FileSource(path=str(tmp_path / "f.parquet")))
    says(raised.value, str(tmp_path / "f.parquet"), "'a'")


# ---- through Spark


def test_errors_keep_their_type_and_advice_through_spark(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text(BAD_CSV)

    def failing(path: str = str(tmp_path), **options: str) -> ForebayError:
        reader = spark.read.format("forebay_files").options(**{"fileFormat": "csv", "header": "true", **options})
        with pytest.raises(Exception, match="forebay") as raised:
            reader.schema("k int, v string").load(path).collect()
        found = forebay.unwrap(raised.value)
        assert found is not None
        return found

    unknown = failing(heder="true")
    assert isinstance(unknown, ConfigurationError)
    assert unknown.option == "heder"
    assert "did you mean 'header'" in unknown.message
    record = failing(mode="FAILFAST", ignoreCorruptFiles="true")
    assert isinstance(record, DataError)
    assert (record.option, record.split) == ("mode", str(tmp_path / "f.csv"))
    assert record.advice is not None
    missing = failing(path=str(tmp_path / "none"))
    assert isinstance(missing, ConfigurationError)
    assert str(tmp_path / "none") in missing.message
