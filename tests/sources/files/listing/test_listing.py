# SPDX-License-Identifier: Apache-2.0
"""Listing of local directories: files, skipped files, and errors."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from forebay.errors import ConfigurationError, RetriableError
from forebay.sources.files.file_index import FileIndex, list_files
from forebay.sources.files.listing import ListOptions, is_data_name, is_hidden
from forebay.stores import local

ODD = ["a b", "😀", "p%2Fq", "two\nlines", "br[1]", "cu{a,b}", "st*r?", "back\\slash", "h#x", "a:b", "é", "'\"$"]


def names(index: FileIndex, root: str) -> list[str]:
    return [file.path.removeprefix(root + "/") for file in index.files]


def test_a_directory_gives_its_files_by_path_with_size_and_time(tree):
    root = tree({"b.csv": "22", "a.csv": "1", "c.csv": ""})
    index = list_files([root])
    assert names(index, root) == ["a.csv", "b.csv", "c.csv"]
    assert [file.size for file in index.files] == [1, 2, 0]
    assert [file.modified_at for file in index.files] == [Path(file.path).stat().st_mtime_ns for file in index.files]


@pytest.mark.parametrize("name", ODD)
def test_unusual_names_are_listed_named_and_matched(tree, name):
    root = tree({f"{name}.csv": "x", f"{name}/{name}.csv": "y", "other": ""})
    assert names(list_files([root]), root) == sorted([f"{name}.csv", "other"])
    escaped = "".join("\\" + char if char in "*?[]{}\\" else char for char in name)
    assert names(list_files([f"{root}/{escaped}.csv"]), root) == [f"{name}.csv"]
    assert names(list_files([f"{root}/{escaped}"]), root) == [f"{name}/{name}.csv"]


def test_nested_directories_are_left_out_and_counted(tree):
    root = tree({"x.csv": "", "sub/y.csv": "", "sub/deep/z.csv": ""})
    index = list_files([root])
    assert names(index, root) == ["x.csv"]
    assert index.left_out == (f"{root}/sub/deep/z.csv", f"{root}/sub/y.csv")


def test_recursive_lookup_takes_all_levels_and_no_partition_columns(tree):
    root = tree({"x.csv": "", "a=1/y.csv": "", "a=1/deep/z.csv": ""})
    index = list_files([root], ListOptions(recursive_file_lookup=True))
    assert names(index, root) == ["a=1/deep/z.csv", "a=1/y.csv", "x.csv"]
    assert len(index.partition_schema) == 0
    assert index.left_out == ()


def test_hidden_names_are_skipped(tree):
    root = tree(dict.fromkeys(["_x", ".y", "z._COPYING_", "_dir/a", ".dir/b", "_a=1", "_metadata", "ok"], ""))
    assert names(list_files([root], ListOptions(recursive_file_lookup=True)), root) == ["_a=1", "ok"]


@pytest.mark.parametrize(
    ("name", "hidden", "data"),
    [
        ("x", False, True),
        ("_x", True, False),
        (".x", True, False),
        ("_x=1", False, True),
        (".x=1", True, False),
        ("x._COPYING_", True, True),
        ("_metadata", False, False),
        ("_metadata.1", False, False),
        ("_common_metadata", False, False),
        ("x_", False, True),
    ],
)
def test_the_rules_for_names(name, hidden, data):
    assert (is_hidden(name), is_data_name(name)) == (hidden, data)


def test_a_hidden_directory_named_outright_is_read(tree):
    root = tree({"_dir/a": ""})
    assert names(list_files([f"{root}/_dir"]), root) == ["_dir/a"]
    assert names(list_files([f"{root}/_dir/a", f"{root}/_*"]), root) == ["_dir/a"]


def test_a_file_reached_by_several_paths_is_listed_once(tree):
    root = tree({"a/x": "", "b/y": ""})
    assert names(list_files([f"{root}/a", f"{root}/a/x", f"{root}/*", f"file:{root}//a/"]), root) == ["a/x", "b/y"]
    for detour in (f"{root}/b/../a", f"{root}/b/../*", f"{root}/*/../a/x", f"{root}/b/../[ab]"):
        assert set(names(list_files([f"{root}/a", f"{root}/b", detour]), root)) == {"a/x", "b/y"}
        assert len(list_files([f"{root}/a", f"{root}/b", detour]).files) == 2


def test_a_base_path_may_be_written_with_a_detour(tree):
    root = tree({"t/k=1/x": "", "u/y": ""})
    for path, base in (("t", "u/../t"), ("u/../t/k=1", "t"), ("u/../t", "t/../t")):
        index = list_files([f"{root}/{path}"], ListOptions(base_path=f"{root}/{base}"))
        assert index.partition_schema.names == ["k"]
        assert names(index, root) == ["t/k=1/x"]


def test_in_a_url_two_dots_are_a_name(memory):
    """Keys of objects may contain `..`."""
    fs = __import__("fsspec").filesystem("memory")
    root = memory({"a/x": b""})
    fs.store[f"{root.removeprefix('memory:/')}/a/../y"] = fs.store[f"{root.removeprefix('memory:/')}/a/x"]
    assert names(list_files([f"{root}/a/.."]), root) == ["a/../y"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("2024-*/{a,b}.csv", ["2024-01/a.csv", "2024-01/b.csv", "2024-02/a.csv"]),
        ("{2024-01/a,2023-12/c}.csv", ["2023-12/c.csv", "2024-01/a.csv"]),
        ("*/[^b-c].csv", ["2024-01/a.csv", "2024-02/a.csv"]),
        ("*", ["2023-12/c.csv", "2024-01/a.csv", "2024-01/b.csv", "2024-02/a.csv"]),
        ("2024-01", ["2024-01/a.csv", "2024-01/b.csv"]),
        ("{2024-01,2023-12}", ["2023-12/c.csv", "2024-01/a.csv", "2024-01/b.csv"]),
        ("2024-0?/a*", ["2024-01/a.csv", "2024-02/a.csv"]),
    ],
)
@pytest.mark.parametrize("remote", [False, True])
def test_globs_in_paths(tree, memory, pattern, found, remote):
    files = ["2024-01/a.csv", "2024-01/b.csv", "2024-02/a.csv", "2023-12/c.csv"]
    root = memory(dict.fromkeys(files, b"")) if remote else tree(dict.fromkeys(files, ""))
    assert names(list_files([f"{root}/{pattern}"]), root) == found


def test_a_relative_path_gives_absolute_names_even_where_the_directory_looks_like_a_glob(tree, monkeypatch):
    root = tree({"[x]/a.csv": ""})
    monkeypatch.chdir(f"{root}/[x]")
    assert names(list_files(["*.csv"]), root) == ["[x]/a.csv"]
    assert names(list_files(["."]), root) == ["[x]/a.csv"]


@pytest.mark.parametrize("path", ["/nope", "/nope*", "/a.csv/x", "/a.csv/*", "/" + "n" * 300])
def test_a_path_that_matches_nothing_is_an_error_with_its_name(tree, path):
    root = tree({"a.csv": ""})
    for options in (ListOptions(), ListOptions(ignore_missing_files=True)):
        with pytest.raises(ConfigurationError, match="path does not exist") as caught:
            list_files([root, root + path], options)
        assert repr(root + path) in str(caught.value)


def test_a_file_whose_name_is_a_glob_gets_a_hint(tree):
    root = tree({"br[1].csv": ""})
    with pytest.raises(ConfigurationError) as caught:
        list_files([f"{root}/br[1].csv"])
    assert "br\\[1\\].csv" in str(caught.value.advice)


def test_no_path_is_an_error():
    with pytest.raises(ConfigurationError, match="path is not set"):
        list_files([])


def test_an_empty_directory_gives_no_files(tree):
    assert not list_files([tree({})]).files


def test_nothing_is_remembered_between_listings(tree, memory):
    for root, write in ((tree({"a": ""}), None), (memory({"a": b""}), memory)):
        assert names(list_files([root]), root) == ["a"]
        if write is None:
            Path(root, "b").write_text("")
        else:
            import fsspec

            fsspec.filesystem("memory").pipe(f"{root}/b", b"")
        assert names(list_files([root]), root) == ["a", "b"]


def test_the_name_filter_looks_at_names_only(tree):
    root = tree({"a=1/x.csv": "", "a=1/y.json": "", "a=b/z.json": ""})
    index = list_files([root], ListOptions(path_glob_filter="*.{csv,txt}"))
    assert names(index, root) == ["a=1/x.csv"]
    assert str(index.partition_schema.field("a").type) == "string"  # the filter comes after the discovery
    assert names(list_files([root], ListOptions(path_glob_filter="x.csv")), root) == ["a=1/x.csv"]
    with pytest.raises(ConfigurationError, match="not closed"):
        list_files([root], ListOptions(path_glob_filter="{x"))


def test_times_of_change_filter_by_milliseconds_in_the_session_zone(tree):
    root = tree({"before": "", "at": "", "after": ""})
    noon = 1_717_243_200 * 10**9  # 2024-06-01T12:00:00Z
    for name, moment in (("before", noon - 1), ("at", noon + 999_999), ("after", noon + 1_000_000)):
        os.utime(f"{root}/{name}", ns=(0, moment))
    for text, zone in (("2024-06-01T12:00:00", "UTC"), ("2024-06-01T08:00:00", "America/New_York")):
        assert names(list_files([root], ListOptions(modified_after=text, timezone=zone)), root) == ["after"]
        assert names(list_files([root], ListOptions(modified_before=text, timezone=zone)), root) == ["before"]
    with pytest.raises(ConfigurationError, match="modifiedAfter"):
        list_files([root], ListOptions(modified_after="yesterday"))


def test_a_local_file_of_1970_has_a_time(tree):
    root = tree({"old": ""})
    os.utime(f"{root}/old", (0, 0))
    assert names(list_files([root], ListOptions(modified_before="2024-06-01T12:00:00")), root) == ["old"]


def test_a_broken_link_is_an_error_unless_missing_files_are_ignored(tree):
    root = tree({"a": ""})
    Path(f"{root}/bad").symlink_to("/nowhere")
    Path(f"{root}/.#lock").symlink_to("/nowhere")
    with pytest.raises(ConfigurationError, match=r"broken link.*/bad.*'/nowhere'"):
        list_files([root])
    assert names(list_files([root], ListOptions(ignore_missing_files=True)), root) == ["a"]


def test_links_to_files_and_directories_are_followed_under_their_own_names(tree):
    target, root = tree({"x": "123", "d/y": "45"}), tree({"a": ""})
    Path(f"{root}/file").symlink_to(f"{target}/x")
    Path(f"{root}/dir").symlink_to(f"{target}/d")
    index = list_files([root], ListOptions(recursive_file_lookup=True))
    assert names(index, root) == ["a", "dir/y", "file"]
    assert [file.size for file in index.files] == [0, 2, 3]


@pytest.mark.parametrize("link", ["sub/up", "sub/self"])
def test_a_circle_of_links_is_an_error_not_a_walk_without_end(tree, link):
    root = tree({"sub/x": "", "other/y": ""})
    Path(f"{root}/{link}").symlink_to({"sub/up": root, "sub/self": f"{root}/sub"}[link])
    with pytest.raises(ConfigurationError, match="one of its own parent"):
        list_files([root])


def test_two_directories_that_link_to_each_other_are_a_circle_too(tree):
    root = tree({"a/x": "", "b/y": ""})
    Path(f"{root}/a/l").symlink_to(f"{root}/b")
    Path(f"{root}/b/m").symlink_to(f"{root}/a")
    with pytest.raises(ConfigurationError, match="one of its own parent"):
        list_files([f"{root}/a"])


def test_pipes_are_no_data(tree):
    root = tree({"a": ""})
    os.mkfifo(f"{root}/pipe")
    assert names(list_files([root]), root) == ["a"]
    with pytest.raises(ConfigurationError, match="neither a file nor a directory"):
        list_files([f"{root}/pipe"])


def test_a_name_that_is_no_text_is_refused(tree):
    root = tree({"a": ""})
    Path(os.fsdecode(os.fsencode(root) + b"/caf\xe9")).touch()
    with pytest.raises(ConfigurationError, match="not UTF-8"):
        list_files([root])


class Entry:
    """A directory entry that disappears, or loses its permission, between listing and `stat`."""

    def __init__(self, entry: os.DirEntry[str], error: int) -> None:
        self.name, self.path, self._error = entry.name, entry.path, error

    def is_dir(self) -> bool:
        return False

    def is_symlink(self) -> bool:
        return False

    def stat(self) -> os.stat_result:
        raise OSError(self._error, os.strerror(self._error))


class Scan:
    def __init__(self, path: str, error: int) -> None:
        with os.scandir(path) as entries:
            self._entries = [Entry(entry, error) if entry.name == "failing" else entry for entry in entries]

    def __enter__(self):
        return iter(self._entries)

    def __exit__(self, *_args):
        return None


@pytest.mark.parametrize(
    ("error", "expected"),
    [(errno.ENOENT, RetriableError), (errno.EACCES, ConfigurationError), (errno.EIO, RetriableError)],
)
def test_an_entry_that_fails_between_listing_and_stat_is_named(tree, monkeypatch, error, expected):
    root = tree({"a": "", "failing": ""})
    monkeypatch.setattr(local, "_scan", lambda path: Scan(path, error))
    with pytest.raises(expected, match="/failing"):
        list_files([root])
    if error == errno.ENOENT:
        assert names(list_files([root], ListOptions(ignore_missing_files=True)), root) == ["a"]


@pytest.mark.parametrize(("error", "expected"), [(errno.EACCES, ConfigurationError), (errno.ESTALE, RetriableError)])
@pytest.mark.parametrize("ignore", [False, True])
def test_a_directory_that_cannot_be_listed_fails_the_whole_listing(tree, monkeypatch, error, expected, ignore):
    root = tree({"a": "", "sub/b": ""})

    def scan(path):
        if path.endswith("/sub"):
            raise OSError(error, os.strerror(error))
        return os.scandir(path)

    monkeypatch.setattr(local, "_scan", scan)
    with pytest.raises(expected, match="/sub"):
        list_files([root], ListOptions(ignore_missing_files=ignore))


def test_a_directory_that_goes_away_meanwhile_is_tried_again_or_ignored(tree, monkeypatch):
    root = tree({"a": "", "sub/b": ""})

    def scan(path):
        if path.endswith("/sub"):
            raise FileNotFoundError(errno.ENOENT, "gone")
        return os.scandir(path)

    monkeypatch.setattr(local, "_scan", scan)
    with pytest.raises(RetriableError, match="/sub"):
        list_files([root])
    assert names(list_files([root], ListOptions(ignore_missing_files=True)), root) == ["a"]


def test_each_local_file_costs_one_stat_and_hidden_ones_none(tree, monkeypatch):
    root = tree({f"a={day}/f{number}": "" for day in range(3) for number in range(10)} | {"_hidden": ""})
    counts = {"stat": 0, "scan": 0}

    class Counting:
        def __init__(self, entry):
            self._entry, self.name, self.path = entry, entry.name, entry.path
            self.is_dir, self.is_symlink = entry.is_dir, entry.is_symlink

        def stat(self):
            counts["stat"] += 1
            return self._entry.stat()

    class CountingScan:
        def __init__(self, path):
            counts["scan"] += 1
            with os.scandir(path) as entries:
                self._entries = [Counting(entry) for entry in entries]

        def __enter__(self):
            return iter(self._entries)

        def __exit__(self, *_args):
            return None

    monkeypatch.setattr(local, "_scan", CountingScan)
    assert len(list_files([root]).files) == 30
    assert counts == {"stat": 30, "scan": 4}


def test_local_files_need_no_fsspec(tree):
    root = tree({"a=1/x": "", "a=2/y": ""})
    program = (
        "import sys; sys.modules['fsspec'] = None\n"
        "from forebay.sources.files.file_index import list_files\n"
        "from forebay.stores.stored_file import StoredFile\n"
        f"index = list_files([{root!r}])\n"
        "print([StoredFile(file).open().read() for file in index.files], index.partition_schema.names)\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[b'', b''] ['a']\n"
