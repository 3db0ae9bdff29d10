# SPDX-License-Identifier: Apache-2.0
"""The output of `forebay.progress` for a run: files and bytes that are done, and nothing in a log."""

from __future__ import annotations

import io
import sys
import types
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pyarrow as pa
import pytest

import forebay
from forebay import FileSource, SimpleSource, Split
from forebay.inspection import progress as progress_module
from forebay.inspection.progress import progress

LINES = pa.schema([("value", pa.string())])
SIZES = (200_000, 300_000, 500_000)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Count(SimpleSource):
    """Two splits of unknown sizes."""

    def schema(self) -> pa.Schema:
        return pa.schema([("n", pa.int64())])

    def splits(self) -> list[Split]:
        return [Split("a", 0), Split("b", 0)]

    def read(self, split: Split) -> Iterator[dict[str, int]]:
        yield from ({"n": n} for n in range(3))


@pytest.fixture
def files(tmp_path: Path) -> FileSource:
    for number, size in enumerate(SIZES):
        (tmp_path / f"{number}.txt").write_text(("x" * 99 + "\n") * (size // 100))
    return FileSource(path=str(tmp_path)).with_schema(LINES)


def words(line: str) -> list[str]:
    """A line without its rates, which nobody knows."""
    return [word for word in line.split(", ") if not word.endswith("/s")]


def test_files_and_bytes_count_when_a_file_is_finished(files: FileSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "_SHARE", 0)  # an update at each record batch, however long it takes
    out = io.StringIO()
    rows = sum(batch.num_rows for batch in progress(forebay.run(files), every=0, file=out))
    assert rows == sum(SIZES) // 100
    assert [words(line) for line in out.getvalue().splitlines()] == [
        ["forebay_files 0 %: 0 of 3 files", "0.0 of 1.0 MB"],
        ["forebay_files 20 %: 1 of 3 files", "0.2 of 1.0 MB"],
        ["forebay_files 50 %: 2 of 3 files", "0.5 of 1.0 MB"],
        ["forebay_files 100 %: 3 of 3 files", "1.0 of 1.0 MB"],
    ]
    assert all(" MB/s, " in line and line.endswith(" rows/s") for line in out.getvalue().splitlines())


def test_updates_are_no_more_frequent_than_wanted(files: FileSource) -> None:
    out = io.StringIO()
    list(progress(forebay.run(files), every=3600, file=out))
    assert [words(line)[0] for line in out.getvalue().splitlines()] == [
        "forebay_files 0 %: 0 of 3 files",
        "forebay_files 100 %: 3 of 3 files",
    ]


def test_splits_of_unknown_size_are_counted() -> None:
    out = io.StringIO()
    list(progress(forebay.run(Count()), every=0, file=out))
    lines = out.getvalue().splitlines()
    assert words(lines[0]) == ["count 0 %: 0 of 2 splits"]
    assert words(lines[-1]) == ["count 100 %: 2 of 2 splits"]
    assert "MB" not in out.getvalue()


def test_a_log_gets_nothing(files: FileSource, capfd: pytest.CaptureFixture[str]) -> None:
    assert sum(batch.num_rows for batch in progress(forebay.run(files), every=0)) == sum(SIZES) // 100
    assert capfd.readouterr() == ("", "")


def test_a_terminal_is_drawn_in_place_beside_the_data(files: FileSource, monkeypatch: pytest.MonkeyPatch) -> None:
    import_module("rich")
    error, out = Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", error)
    monkeypatch.setattr(sys, "stdout", out)
    table = pa.Table.from_batches(progress(forebay.run(files), every=0), LINES)
    assert table.num_rows == sum(SIZES) // 100
    assert "3 of 3 files" in error.getvalue() and "█" in error.getvalue() and "\x1b[" in error.getvalue()
    assert not out.getvalue()


def test_a_notebook_shows_one_cell(files: FileSource, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    handle = types.SimpleNamespace(update=shown.append)

    def display(what: str, *, display_id: bool) -> object:
        shown.append(what)
        return handle

    ipython = types.SimpleNamespace(get_ipython=lambda: types.SimpleNamespace(kernel=1))
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(HTML=str, display=display))
    list(progress(forebay.run(files), every=0))
    assert '<progress value="0.000" max="1">' in shown[0] and "3 of 3 files" in shown[-1]


def test_a_broken_output_does_not_end_the_read(files: FileSource) -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError("the terminal went away")

    batches = list(progress(forebay.run(files), every=0, file=Broken()))
    assert sum(batch.num_rows for batch in batches) == sum(SIZES) // 100


def test_a_read_that_stops_early_can_go_on(files: FileSource) -> None:
    with forebay.run(files) as run:
        first = next(iter(progress(run, file=io.StringIO())))
        rest = sum(batch.num_rows for batch in run)
    assert first.num_rows + rest == sum(SIZES) // 100
