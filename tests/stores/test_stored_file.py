# SPDX-License-Identifier: Apache-2.0
"""Opening a listed file, and noticing that it has changed."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from forebay.errors import DataError
from forebay.formats.base import InputFile
from forebay.sources.files.file_index import list_files
from forebay.stores.store import StorageOptions
from forebay.stores.stored_file import StoredFile


def as_formats_see_it(file: StoredFile) -> InputFile:
    """Checked by mypy: formats accept a stored file."""
    return file


def listed(path: str) -> StoredFile:
    return StoredFile(list_files([path]).files[0])


@pytest.fixture
def file(tree):
    return listed(tree({"a b%2F😀.csv": "hello"}) + "/a b%2F😀.csv")


def test_it_reads_seeks_and_travels(file):
    again = pickle.loads(pickle.dumps(file))
    with as_formats_see_it(again).open() as stream:
        stream.seek(1)
        assert stream.read() == b"ello"
        again.verify_unchanged(stream)
    again.verify_unchanged()
    assert (again.path, again.size) == (file.path, 5)


def test_a_file_rewritten_after_listing_fails_by_name(file):
    Path(file.path).write_text("jello")
    os.utime(file.path, ns=(0, file.status.modified_at + 1))
    with pytest.raises(DataError, match="changed since it was listed") as caught:
        file.open()
    assert file.path in str(caught.value)


def test_a_file_grown_after_listing_fails_though_its_time_is_the_same(file):
    Path(file.path).write_text("hello, world")
    os.utime(file.path, ns=(0, file.status.modified_at))
    with pytest.raises(DataError, match=r"5 bytes.*12 bytes"):
        file.open()


def test_a_file_deleted_after_listing_fails_by_name(file):
    Path(file.path).unlink()
    with pytest.raises(DataError, match="no longer exists"):
        file.open()
    with pytest.raises(DataError, match="no longer exists"):
        file.verify_unchanged()


def test_a_change_while_reading_is_detected_at_the_end(file):
    with file.open() as stream:
        stream.read(2)
        with Path(file.path).open("r+b") as other:
            other.write(b"JELLO")
        os.utime(file.path, ns=(0, file.status.modified_at + 1))
        with pytest.raises(DataError, match="changed"):
            file.verify_unchanged(stream)


def test_a_file_replaced_or_deleted_while_reading_was_read_whole(file):
    with file.open() as stream:
        Path(file.path).unlink()
        Path(file.path).write_text("other")
        assert stream.read() == b"hello"
        file.verify_unchanged(stream)


def test_its_text_shows_no_credentials(file):
    secret = StoredFile(file.status, StorageOptions({"password": "hunter22"}))
    assert "hunter22" not in repr(secret)


def test_a_file_of_a_remote_store_is_checked_too(memory):
    root = memory({"x.csv": b"abc"})
    file = listed(root)
    assert file.path == f"{root}/x.csv"
    with file.open() as stream, file.open() as other:
        assert (stream.read(1), other.read(2), stream.read()) == (b"a", b"ab", b"bc")
        file.verify_unchanged(stream)
    memory({"x.csv": b"abd"})
    with pytest.raises(DataError, match="changed"):
        file.open()
    with pytest.raises(DataError, match="changed"):
        file.verify_unchanged()
