# SPDX-License-Identifier: Apache-2.0
"""State in a directory, and which locations can hold state at all."""

from __future__ import annotations

import errno
import os
import sys
import time

import pytest

from forebay.errors import ConfigurationError, RetriableError
from forebay.state.open_state_store import can_keep_state, open_state_store
from forebay.stores.local import store_error
from forebay.stores.store import StorageOptions


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}", "file://localhost{}"])
def test_a_directory_by_path_or_url_is_the_same_one(tmp_path, form):
    store = open_state_store(form.format(tmp_path / "a b%20c"))
    assert store.put_if_absent("q/1", b"x") is True
    assert (tmp_path / "a b%20c" / "q" / "1").read_bytes() == b"x"
    assert store.names("q/") == ["q/1"]
    store.delete(["q/1", "q/1"])
    assert store.get("q/1") is None


def test_what_is_deleted_leaves_no_directories(tmp_path):
    store = open_state_store(str(tmp_path / "state"))
    names = ["q/claims/1/a", "q/claims/1/b", "q/claims/10/a", "q/x"]
    for name in names:
        store.put_if_absent(name, b"x")
    assert store.names("q/") == ["q/x"]
    store.delete(store.names("q/claims/1/"))
    assert not (tmp_path / "state" / "q" / "claims" / "1").exists()
    assert store.get("q/claims/10/a") == b"x"
    store.delete(names)
    store.delete(names)
    assert list((tmp_path / "state").iterdir()) == []


def test_a_relative_directory_stays_where_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = open_state_store("state")
    store.put_if_absent("a", b"x")
    monkeypatch.chdir("/")
    assert store.get("a") == b"x"


@pytest.mark.parametrize("location", ["hdfs://name/x", "gs://b/x", "abfss://c@a/x", "dbfs:/x", "https://h/x"])
def test_other_stores_are_refused_by_name(location):
    assert not can_keep_state(location)
    with pytest.raises(ConfigurationError, match=location.split(":")[0]) as caught:
        open_state_store(location)
    assert caught.value.option == "stateLocation" and "s3://bucket" in caught.value.advice


@pytest.mark.parametrize("location", ["/x", "x", "x/y:z", "file:/x", "s3://b/x", "S3A://b/x"])
def test_these_can_keep_state(location):
    assert can_keep_state(location)


def test_a_directory_takes_no_credentials(tmp_path):
    with pytest.raises(ConfigurationError, match="takes no stateStorage"):
        open_state_store(str(tmp_path), StorageOptions({"key": "x"}))


def test_an_empty_location_is_refused():
    with pytest.raises(ConfigurationError, match="stateLocation is '', which is no directory"):
        open_state_store("")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named_and_no_file_remains(tmp_path, monkeypatch, number):
    store = open_state_store(str(tmp_path))

    def full(_handle):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RetriableError, match="could not be written") as caught:
        store.put_if_absent("a", b"x")
    assert caught.value.option == "stateLocation" and str(tmp_path) in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_errors_name_the_option_of_the_state(tmp_path):
    store = open_state_store(str(tmp_path))
    (tmp_path / "directory").mkdir()
    with pytest.raises(ConfigurationError) as caught:
        store.get("directory")
    assert caught.value.option == "stateLocation"


def test_a_location_that_is_no_directory_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="is not a directory") as caught:
        open_state_store(str(tmp_path / "file" / "below")).put_if_absent("q/a", b"")
    assert caught.value.option == "stateLocation"


@pytest.mark.parametrize("below", ["x" * 300, "/".join(["x" * 200] * 30)], ids=["component", "path"])
def test_a_location_that_is_too_long_is_refused(tmp_path, below):
    store = open_state_store(str(tmp_path / below))
    for request in (
        lambda: store.get("a"),
        lambda: store.put_if_absent("a", b""),
        lambda: store.names("q/"),
        lambda: store.directories(""),
        lambda: store.delete(["a"]),
    ):
        with pytest.raises(ConfigurationError, match="too long") as caught:
            request()
        assert caught.value.option == "stateLocation" and "another path" in str(caught.value.advice)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has this /proc")
def test_a_location_where_no_directory_can_be_made_is_refused():
    with pytest.raises(ConfigurationError, match="no permission to write") as caught:
        open_state_store("/proc/forebay/state").put_if_absent("q/a", b"")
    assert caught.value.option == "stateLocation"


def test_a_location_that_is_a_broken_link_is_refused(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigurationError, match="is not a directory"):
        open_state_store(str(tmp_path / "link")).put_if_absent("q/a", b"")


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        *((number, ConfigurationError) for number in (errno.EINVAL, errno.EISDIR, errno.ENOTDIR, errno.ENOTSUP)),
        *((number, ConfigurationError) for number in (errno.ELOOP, errno.EILSEQ, errno.EFBIG, errno.ENOSYS)),
        *((number, RetriableError) for number in (errno.EIO, errno.EROFS, errno.ESTALE, errno.EMFILE, errno.ENOENT)),
    ],
)
def test_only_what_waiting_can_end_is_retriable(number, kind):
    assert type(store_error(OSError(number, os.strerror(number)), "/x")) is kind


@pytest.mark.parametrize(("age", "left"), [(7200, []), (10, [".b.tmp"])])
def test_old_files_of_killed_writers_are_deleted_too(tmp_path, age, left):
    store = open_state_store(str(tmp_path))
    store.put_if_absent("q/claims/1/a", b"")
    tmp = tmp_path / "q" / "claims" / "1" / ".b.tmp"
    tmp.write_text("half")
    os.utime(tmp, (time.time() - age,) * 2)
    store.delete(["q/claims/1/a"])
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == left


@pytest.mark.parametrize("url", ["s3://AKIA:canary+7/x=@b/x", "s3://AKIA:12/canary@b/x"])
def test_a_password_with_a_slash_in_the_url_is_refused_and_not_shown(url):
    with pytest.raises(ConfigurationError, match="contains credentials") as caught:
        open_state_store(url)
    assert "canary" not in str(caught.value)
