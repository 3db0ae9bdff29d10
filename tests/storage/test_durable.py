# SPDX-License-Identifier: Apache-2.0
"""Atomic writes and claims, also when the disk fails half-way."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from forebay.errors import ConfigurationError, RetriableError
from forebay.storage.durable import put_if_absent, write_atomically


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_write_replaces_the_whole_content_and_makes_directories(tmp_path):
    path = tmp_path / "a" / "b" / "state.json"
    write_atomically(str(path), b"first, and longer")
    write_atomically(str(path), b"second")
    assert path.read_bytes() == b"second"
    assert names(path.parent) == ["state.json"]


def test_a_failed_replacement_leaves_the_old_content_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "state"
    write_atomically(str(path), b"old")

    def broken(_self, _target):
        raise OSError(errno.EIO, "disk on fire")

    monkeypatch.setattr(Path, "replace", broken)
    with pytest.raises(RetriableError, match="disk on fire"):
        write_atomically(str(path), b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["state"]


def test_content_is_on_disk_before_the_name_is(tmp_path, monkeypatch):
    order: list[str] = []
    real_fsync, real_replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (order.append("sync"), real_fsync(handle))[1])
    monkeypatch.setattr(Path, "replace", lambda self, to: (order.append("rename"), real_replace(self, to))[1])
    write_atomically(str(tmp_path / "state"), b"x")
    assert order == ["sync", "rename", "sync"]


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


def test_a_file_system_without_links_is_refused(tmp_path, monkeypatch):
    def no_links(*_args):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(ConfigurationError, match="hard links"):
        put_if_absent(str(tmp_path / "claim"), b"x")
    assert names(tmp_path) == []
