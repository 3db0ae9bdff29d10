# SPDX-License-Identifier: Apache-2.0
"""Atomic writes and claims, also when the disk fails half-way."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from forebay.errors import ConfigurationError, RetriableError
from forebay.state.local_state_store import put_if_absent, remove_unfinished


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_file_is_whole_and_its_directories_are_made(tmp_path):
    path = tmp_path / "a" / "b" / "state.json"
    assert put_if_absent(str(path), b"content")
    assert path.read_bytes() == b"content"
    assert names(path.parent) == ["state.json"]


def test_a_failed_write_leaves_no_files(tmp_path, monkeypatch):
    def broken(*_args):
        raise OSError(errno.EIO, "disk on fire")

    monkeypatch.setattr(os, "link", broken)
    with pytest.raises(RetriableError, match="disk on fire"):
        put_if_absent(str(tmp_path / "state"), b"new", without_links=True)
    assert names(tmp_path) == []


def test_content_is_on_disk_before_the_name_is(tmp_path, monkeypatch):
    order: list[str] = []
    real_fsync, real_link = os.fsync, os.link
    monkeypatch.setattr(os, "fsync", lambda handle: (order.append("sync"), real_fsync(handle))[1])
    monkeypatch.setattr(os, "link", lambda *paths: (order.append("link"), real_link(*paths))[1])
    put_if_absent(str(tmp_path / "state"), b"x")
    assert order == ["sync", "link", "sync"]


def test_the_first_put_wins_and_later_ones_change_nothing(tmp_path):
    path = str(tmp_path / "claims" / "0")
    assert put_if_absent(path, b"mine") is True
    assert put_if_absent(path, b"yours") is False
    assert Path(path).read_bytes() == b"mine"
    assert names(tmp_path / "claims") == ["0"]


def test_of_many_writers_one_wins_and_its_content_stands(tmp_path):
    path = str(tmp_path / "claim")
    start = threading.Barrier(8)
    won: list[int] = []

    def claim(number: int) -> None:
        start.wait()
        if put_if_absent(path, b"%d" % number * 1000):
            won.append(number)

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert Path(path).read_bytes() == b"%d" % won[0] * 1000


def test_a_file_system_without_links_is_refused_by_default(tmp_path, monkeypatch):
    def no_links(*_args):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    path = str(tmp_path / "claim")
    with pytest.raises(ConfigurationError, match="hard links"):
        put_if_absent(path, b"x")
    assert names(tmp_path) == []
    assert [put_if_absent(path, content, without_links=True) for content in (b"mine", b"yours")] == [True, False]
    assert Path(path).read_bytes() == b"mine" and names(tmp_path) == ["claim"]


def test_only_unfinished_files_of_the_prefix_are_removed(tmp_path):
    kept = [".checkpoint-3.json", "checkpoint-3.json", "mine.tmp", ".other-1.json.ab.tmp"]
    for name in [*kept, ".checkpoint-4.json.0123.tmp", ".checkpoint-5.json.ab.tmp"]:
        (tmp_path / name).write_bytes(b"x")
    remove_unfinished(tmp_path, "checkpoint-")
    assert names(tmp_path) == sorted(kept)
