# SPDX-License-Identifier: Apache-2.0
"""Directories written by Spark's streaming file sink."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import ConfigurationError, DataError, DataLossError, RetriableError
from forebay.sources.files import listing as sink_log
from forebay.sources.files.file_index import list_files
from forebay.sources.files.listing import ListOptions
from forebay.sources.files.partitions import unescape


def line(path: str, action: str = "add") -> str:
    return json.dumps(
        {"path": path, "size": 1, "isDir": False, "modificationTime": 1, "blockReplication": 1, "blockSize": 1}
        | {"action": action}
    )


Sink = Callable[..., str]


@pytest.fixture
def sink(tree) -> Sink:
    """Makes the directory of a sink with files 0…9 and these log files, given as lists of names."""

    def make(**log: list[str]) -> str:
        root = tree({str(number): "x" for number in range(10)})
        Path(root, "_spark_metadata").mkdir()
        for name, files in log.items():
            lines = ["v1", *(line(f"file://{root}/{file}") for file in files)]
            Path(root, "_spark_metadata", name[1:].replace("_", ".")).write_text("\n".join(lines))
        return root

    return make


def names(root: str, **options: Any) -> list[str]:
    return [file.path.removeprefix(root + "/") for file in list_files([root], ListOptions(**options)).files]


def test_only_committed_files_are_data(sink):
    assert names(sink(_0=["1", "3"], _1=["5"])) == ["1", "3", "5"]


def test_a_compact_file_stands_for_all_before_it(sink):
    assert names(sink(_0=["9"], _1=["8"], _2_compact=["1", "2"], _3=["3"])) == ["1", "2", "3"]
    assert names(sink(_2_compact=["1"], _3=["3"], _5_compact=["1", "3", "4"])) == ["1", "3", "4"]


def test_temporary_and_checksum_files_of_the_log_are_no_log(sink):
    root = sink(_0=["1"])
    for name in (".1.crc", ".1.abc.tmp", "1.tmp", "x"):
        Path(root, "_spark_metadata", name).write_text("junk")
    assert names(root) == ["1"]


def test_a_log_without_batches_means_nothing_is_committed(sink):
    assert names(sink()) == []


def test_deleted_files_are_not_data(sink):
    root = sink(_0=["1", "2"])
    Path(root, "_spark_metadata", "1").write_text("v1\n" + line(f"file://{root}/2", "delete"))
    assert names(root) == ["1"]


def test_names_in_the_log_are_unescaped(tree):
    root = tree({"p=a b%2F/x": "1", "p=a b%2F/y": "2"})
    Path(root, "_spark_metadata").mkdir()
    Path(root, "_spark_metadata", "0").write_text("v1\n" + line(f"file://{root}/p=a%20b%252F/x"))
    index = list_files([root])
    assert [file.name for file in index.files] == ["x"]
    assert [unescape(texts[0]) for texts in index.partition_texts] == ["a b/"]


def test_a_committed_file_that_is_gone_is_a_loss_unless_missing_files_are_ignored(sink):
    root = sink(_0=["1", "2"])
    Path(root, "1").unlink()
    with pytest.raises(DataLossError, match=f"{root}/1"):
        list_files([root])
    assert names(root, ignore_missing_files=True) == ["2"]


def test_a_gap_in_the_log_is_an_error(sink):
    with pytest.raises(DataError, match="a file for micro-batch 2, but none for 1"):
        list_files([sink(_0=["1"], _2=["2"])])
    with pytest.raises(DataError, match="a file for micro-batch 1, but none for 0"):
        list_files([sink(_1=["1"])])


@pytest.mark.parametrize("text", ["", "junk", "v1\n{", "v1\n{}", "v1\n[]", 'v1\n"x"'])
def test_a_damaged_log_is_an_error_with_its_line(sink, text):
    root = sink(_0=["1"])
    Path(root, "_spark_metadata", "0").write_text(text)
    with pytest.raises(DataError, match="damaged") as caught:
        list_files([root])
    assert caught.value.position == f"line {2 if text.startswith('v1') else 1}"


def test_a_log_of_another_version_is_refused(sink):
    root = sink(_0=["1"])
    Path(root, "_spark_metadata", "0").write_text("v2\n")
    with pytest.raises(ConfigurationError, match="version v2"):
        list_files([root])


def test_a_sink_below_the_path_and_one_reached_by_a_link_are_honoured_too(sink, tmp_path):
    root = sink(_0=["1", "3"])
    (tmp_path / "linked").symlink_to(root)
    linked = [
        file.path for file in list_files([str(tmp_path / "linked")], ListOptions(recursive_file_lookup=True)).files
    ]
    assert linked == [f"{root}/1", f"{root}/3"]
    above = tmp_path / "above"
    above.mkdir()
    Path(above, "plain").write_text("")
    shutil.move(root, above / "out")
    for log in Path(above, "out", "_spark_metadata").iterdir():
        log.write_text(log.read_text().replace(root, f"{above}/out"))
    assert names(str(above), recursive_file_lookup=True) == ["out/1", "out/3", "plain"]


def test_a_glob_over_the_files_looks_at_no_log(sink):
    root = sink(_0=["1"])
    assert [file.name for file in list_files([f"{root}/*"]).files] == [str(number) for number in range(10)]
    assert list_files([f"{root}/_spark_metadata", f"{root}/_spark_metadata/0"]).files == ()


def test_a_log_compacted_while_it_is_read_is_read_again(sink, monkeypatch):
    root = sink(_0=["1"], _1=["2"])
    log = Path(root, "_spark_metadata")
    real = sink_log._entries
    calls: list[str] = []

    def compacting(store, path):
        if not calls:
            calls.append(path)
            (log / "2.compact").write_text("\n".join(["v1", *(line(f"file://{root}/{name}") for name in "123")]))
            (log / "0").unlink()
            (log / "1").unlink()
        return real(store, path)

    monkeypatch.setattr(sink_log, "_entries", compacting)
    assert names(root) == ["1", "2", "3"]


def test_a_log_that_never_holds_still_can_be_tried_again(sink, monkeypatch):
    def gone(_store, path):
        raise FileNotFoundError(path)

    monkeypatch.setattr(sink_log, "_entries", gone)
    with pytest.raises(RetriableError, match="kept changing"):
        list_files([sink(_0=["1"])])


def test_a_log_in_a_store_with_two_scheme_names_is_understood(memory):
    root = memory({"x": b"", "y": b""})
    memory({"_spark_metadata/0": f"v1\n{line(root + '/x')}".encode()})
    assert [file.name for file in list_files([root]).files] == ["x"]


@pytest.mark.soak
def test_a_real_sink_of_spark_with_a_compacted_log(spark, tmp_path):
    source, out = tmp_path / "in", str(tmp_path / "out")
    source.mkdir()
    spark.conf.set("spark.sql.streaming.fileSink.log.compactInterval", "3")
    for number in range(5):
        (source / f"{number}.csv").write_text(f"{number},a b%/{number % 2}\n")
        writer = spark.readStream.schema("v int, p string").csv(str(source)).writeStream.format("csv").partitionBy("p")
        writer.option("checkpointLocation", str(tmp_path / "ck")).trigger(availableNow=True).start(
            out
        ).awaitTermination()
    assert Path(out, "_spark_metadata", "2.compact").exists()
    Path(out, "p=a b%25%2F0", "part-uncommitted.csv").write_text("99")
    index = list_files([out])
    mine = sorted(
        (Path(file.path).read_text().strip(), unescape(texts[0]))
        for file, texts in zip(index.files, index.partition_texts, strict=True)
    )
    theirs = sorted((row.v, row.p) for row in spark.read.schema("v string, p string").csv(out).collect())
    assert mine == theirs and len(mine) == 5
