# SPDX-License-Identifier: Apache-2.0
"""Conditional deletes and copies on S3, with a fake of s3fs."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.errors import RetriableError
from forebay.stores.file_status import FileStatus
from forebay.stores.remote import RemoteStore
from forebay.stores.storage_options import NO_OPTIONS

fsspec = pytest.importorskip("fsspec")
READ = FileStatus("like-s3://bucket/in/a.txt", 3, 0, "old")
AbstractFileSystem: Any = fsspec.spec.AbstractFileSystem


class Answered(Exception):
    """The error of botocore."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.response = {"Error": {"Code": code}}


class LikeS3(AbstractFileSystem):  # type: ignore[misc]
    """One bucket of ETags."""

    protocol = "like-s3"
    cachable = False
    etags: dict[str, str]
    knows_conditions = True
    fails = ""

    def split_path(self, path: str) -> tuple[str, str, None]:
        bucket, _, key = path.partition("/")
        return bucket, key, None

    def call_s3(self, method: str, *, Bucket: str, Key: str, IfMatch: str) -> None:  # noqa: N803 - S3's names
        assert method == "delete_object"
        if not self.knows_conditions:
            self.answer("NotImplemented", OSError(38, "not implemented"))
        self.check(f"{Bucket}/{Key}", IfMatch)
        del self.etags[f"{Bucket}/{Key}"]

    def check(self, path: str, etag: str) -> None:
        if self.fails:
            self.answer(self.fails, OSError(16, "busy"))
        if path not in self.etags:
            raise FileNotFoundError(path)
        if etag != f'"{self.etags[path]}"':
            self.answer("PreconditionFailed", OSError(22, "one of the pre-conditions did not hold"))

    def answer(self, code: str, error: OSError) -> None:
        raise error from Answered(code)

    def cp_file(self, path: str, target: str, CopySourceIfMatch: str) -> None:  # noqa: N803 - S3's name
        self.check(path, CopySourceIfMatch)
        self.etags[target] = self.etags[path]
        LikeS3.between(self)

    def between(self) -> None:
        """A change by others between the copy and the deletion."""

    def rm_file(self, path: str) -> None:
        del self.etags[path]

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        assert exist_ok


@pytest.fixture
def etags(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    fsspec.register_implementation("like-s3", LikeS3, clobber=True)
    found = {"bucket/in/a.txt": "old"}
    monkeypatch.setattr(LikeS3, "etags", found, raising=False)
    return found


def take(how: str) -> bool:
    store = RemoteStore(READ.path, NO_OPTIONS)
    return store.delete(READ) if how == "delete" else store.move(READ, "like-s3://bucket/archive/a.txt")


@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize("how", ["delete", "move"])
def test_what_was_read_goes(etags: dict[str, str], monkeypatch: pytest.MonkeyPatch, how: str, knows: bool) -> None:
    monkeypatch.setattr(LikeS3, "knows_conditions", knows)
    assert take(how) is True
    assert etags == ({} if how == "delete" else {"bucket/archive/a.txt": "old"})


@pytest.mark.parametrize("how", ["delete", "move"])
def test_a_newer_object_stays(etags: dict[str, str], how: str) -> None:
    etags["bucket/in/a.txt"] = "newer"
    assert take(how) is False
    assert etags == {"bucket/in/a.txt": "newer"}
    etags.clear()
    assert take(how) is False


def test_one_that_comes_between_copy_and_deletion_stays(etags: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LikeS3, "between", lambda _: etags.update({"bucket/in/a.txt": "newer"}))
    assert take("move") is False
    assert etags == {"bucket/in/a.txt": "newer", "bucket/archive/a.txt": "old"}


@pytest.mark.parametrize("how", ["delete", "move"])
def test_other_answers_are_errors(etags: dict[str, str], monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(LikeS3, "fails", "SlowDown")
    with pytest.raises(RetriableError, match="busy"):
        take(how)
    assert etags == {"bucket/in/a.txt": "old"}
