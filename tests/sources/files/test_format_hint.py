# SPDX-License-Identifier: Apache-2.0
"""Inference of the file format from paths and files, and hints at a wrong one."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import forebay
from forebay.errors import ConfigurationError, DataError
from forebay.sources.files import FileSource, file_index
from forebay.sources.files.enumerator import FileEnumerator

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    found = tmp_path / "d"
    found.mkdir()
    (found / "a.csv").write_text("k,v\n1,a\n")
    (found / "b.CSV").write_text("k,v\n2,b\n")
    (found / "empty.json").write_text("")
    (found / "_SUCCESS").write_text("")
    return found


@pytest.fixture
def listings(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Counts listings: one entry for each."""
    found: list[object] = []
    plain = file_index.list_files

    def counted(*args: Any) -> Any:
        found.append(args[0])
        return plain(*args)

    monkeypatch.setattr("forebay.sources.files.scan.list_files", counted)
    return found


def test_the_files_of_a_directory_decide_the_format(directory: Path) -> None:
    source = FileSource(path=str(directory), format_options={"header": "true"})
    assert source.schema().names == ["k", "v"]
    assert forebay.run(source).to_table().num_rows == 2
    assert forebay.run(FileSource(path=f"{directory}/*").with_schema(SCHEMA)).to_table().num_rows == 4


def test_a_source_is_made_without_a_listing_and_its_format_is_looked_up_once(
    directory: Path, listings: list[object]
) -> None:
    source = FileSource(path=str(directory), format_options={"header": "true"})
    FileSource(path=str(directory / "a.csv")).format()
    FileSource(path=str(directory), file_format="csv").format()
    copy = source.with_schema(SCHEMA).with_columns(("k",))
    FileEnumerator(copy)
    assert not listings
    assert [one.format_name() for one in (copy, source, source.with_columns(("v",)))] == ["csv"] * 3
    assert len(listings) == 1
    replace(source, path=str(directory / "a.csv")).format()
    assert len(listings) == 1


def test_tasks_know_the_format_from_planning(directory: Path, listings: list[object]) -> None:
    source = FileSource(path=str(directory)).with_schema(SCHEMA)
    FileEnumerator(source).discover({}, True)
    task = pickle.loads(pickle.dumps(source))
    shutil.rmtree(directory)
    assert task.format_name() == "csv"
    assert len(listings) == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [("c.json", ["2 × .csv", "1 × .json"]), ("c.dat.gz", ["1 × .dat.gz"]), ("c", ["1 × no suffix"])],
)
def test_files_of_no_one_format_are_an_error_of_planning(directory: Path, name: str, words: list[str]) -> None:
    (directory / "b.CSV").rename(directory / "b.csv")
    (directory / name).write_text("1\n")
    for source in (FileSource(path=str(directory)), FileSource(path=str(directory)).with_schema(SCHEMA)):
        with pytest.raises(ConfigurationError) as raised:
            FileEnumerator(source).discover({}, True)
        assert raised.value.option == "fileFormat"
        for word in (*words, str(directory), "csv, json, orc, parquet, text"):
            assert word in str(raised.value)
    with pytest.raises(ConfigurationError, match="do not identify one"):
        FileSource(path=str(directory)).schema()


def test_a_missing_path_is_reported_before_the_format(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as raised:
        FileSource(path=str(tmp_path / "nowhere")).schema()
    assert "nowhere" in str(raised.value)
    assert raised.value.option != "fileFormat"


def test_options_that_no_format_has_are_refused_before_a_listing(directory: Path, listings: list[object]) -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'header'") as raised:
        FileSource(path=str(directory), format_options={"heder": "true"})
    assert raised.value.option == "heder"
    source = FileSource(path=str(directory), format_options={"mergeSchema": "true"})
    assert not listings
    with pytest.raises(ConfigurationError, match="an option of .*parquet files"):
        source.schema()


def test_the_advice_for_a_misspelt_option_names_those_of_the_format() -> None:
    with pytest.raises(ConfigurationError) as raised:
        FileSource(path="f.txt", format_options={"wholetxt": "true"})
    assert "use one of wholetext, lineSep" in str(raised.value.advice)


def test_passwords_in_paths_are_refused_and_not_shown() -> None:
    with pytest.raises(ConfigurationError, match="contains a password") as raised:
        FileSource(paths=["s3://key:hunter2@b/a.csv", "s3://key:hunter2@b/a.json"])
    assert "hunter2" not in str(raised.value)


def test_format_options_may_be_python_values(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_text("k;v\n1;TRUE\n2;0\n")
    source = FileSource(
        path=str(path), format_options={"header": True, "inferSchema": False, "sep": ";", "nullValue": 0}
    )
    assert source.format_options == {"header": "true", "inferSchema": "false", "sep": ";", "nullValue": "0"}
    assert forebay.run(source.with_schema(SCHEMA)).to_table().to_pylist() == [
        {"k": 1, "v": "TRUE"},
        {"k": 2, "v": None},
    ]
    with pytest.raises(ConfigurationError, match="format_options"):
        FileSource(path=str(path), format_options={"header": object()})  # type: ignore[dict-item]


@pytest.mark.parametrize("given", [None, SCHEMA])
def test_a_wrong_format_is_suspected_where_the_suffix_says_another(tmp_path: Path, given: pa.Schema | None) -> None:
    for name, hinted in (("f.csv", True), ("f.dat", False)):
        (tmp_path / name).write_text("k,v\n1,a\n")
        source = FileSource(path=str(tmp_path / name), file_format="parquet")
        with pytest.raises(DataError) as raised:
            forebay.run(source if given is None else source.with_schema(given)).to_table()
        advice = str(raised.value.advice)
        assert "ignoreCorruptFiles" in advice
        assert advice.count("or fileFormat is wrong: the suffix says csv") == hinted
