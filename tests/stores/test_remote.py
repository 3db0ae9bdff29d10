# SPDX-License-Identifier: Apache-2.0
"""Stores behind fsspec: names, caches, errors."""

from __future__ import annotations

import datetime as dt
import ftplib
import subprocess
import sys
import uuid
import zipfile
from importlib import import_module
from typing import Any

import pytest

from forebay.errors import ConfigurationError, RetriableError
from forebay.sources.files.file_index import list_files
from forebay.sources.files.listing import ListOptions
from forebay.stores.file_status import FileStatus
from forebay.stores.remote import nanoseconds, says_gone, status
from forebay.stores.store import StorageOptions
from forebay.stores.stored_file import StoredFile

fsspec = import_module("fsspec")


def paths(root: str, **options: Any) -> list[str]:
    return [file.path.removeprefix(root) for file in list_files([root], ListOptions(**options)).files]


def test_a_remote_tree_is_listed_as_a_local_one(memory):
    files = ["x", "_y", "a b=1%2F2/😀", "sub/deep/z", "sub/_tmp/q"]
    root = memory(dict.fromkeys(files, b"12"))
    assert paths(root, recursive_file_lookup=True) == ["/a b=1%2F2/😀", "/sub/deep/z", "/x"]
    assert list_files([f"{root}/x"]).files[0].size == 2
    index = list_files([f"{root}/*=*"], ListOptions(base_path=root))
    assert index.partition_schema.names == ["a b"]
    assert index.partition_texts[0] == ("1%2F2",)


def test_a_missing_remote_path_is_named(memory):
    root = memory({"x": b""})
    with pytest.raises(ConfigurationError, match=f"path does not exist: '{root}/nope'"):
        list_files([f"{root}/nope"])


def test_an_archive_inside_a_store_is_a_store(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("d/x.csv", "1")
        archive.writestr("d/y.csv", "22")
    root = f"zip://d::file://{tmp_path}/a.zip"
    index = list_files([root])
    assert [file.path for file in index.files] == [
        f"zip://d/x.csv::file://{tmp_path}/a.zip",
        f"zip://d/y.csv::file://{tmp_path}/a.zip",
    ]
    with StoredFile(index.files[1]).open() as stream:
        assert stream.read() == b"22"
    assert len(list_files([f"zip://*/x*::file://{tmp_path}/a.zip"]).files) == 1


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("nope://x/y", "correct the scheme"),
        ("zip://*::s3://bucket/x.zip", 'pip install "forebay[files]"'),
        ("abfss://c@account/x", 'pip install "forebay[files]" adlfs'),
    ],
)
def test_a_scheme_without_its_package_says_what_to_install(url, advice, monkeypatch):
    # fsspec keeps the classes it has imported.
    monkeypatch.delitem(import_module("fsspec.registry")._registry, "s3", raising=False)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.setitem(sys.modules, "adlfs", None)
    with pytest.raises(ConfigurationError, match=url.split(":", maxsplit=1)[0]) as caught:
        list_files([url])
    assert advice in str(caught.value.advice)


def test_without_fsspec_a_url_says_what_to_install():
    program = (
        "import sys; sys.modules['fsspec'] = None\n"
        "from forebay.sources.files.file_index import list_files\n"
        "from forebay.errors import ConfigurationError\n"
        "try: list_files(['gs://b/x'])\n"
        "except ConfigurationError as error: print(error.advice)\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == 'pip install "forebay[files]" gcsfs\n'


AbstractFileSystem: Any = fsspec.spec.AbstractFileSystem


class Faulty(AbstractFileSystem):  # type: ignore[misc]
    """A store of one directory that raises the errors of the test."""

    protocol = "faulty"
    cachable = False
    error: Exception | None = None
    read_error: Exception | None = None
    emptied = 0

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        Faulty.options = options

    def invalidate_cache(self, path: str | None = None) -> None:
        Faulty.emptied += 1

    def info(self, path: str, **_options: Any) -> dict[str, Any]:
        if path.rstrip("/").endswith(".csv"):
            return {"name": path, "size": 3, "type": "file", "ETag": '"1"'}
        return {"name": path, "size": 0, "type": "directory"}

    def ls(self, path: str, detail: bool = True, **_options: Any) -> list[Any]:
        if path.endswith("sub") and Faulty.error is not None:
            raise Faulty.error
        here = [{"name": f"{path}/a.csv", "size": 3, "type": "file", "ETag": '"1"'}]
        if not path.endswith("sub"):
            here += [{"name": f"{path}/sub/", "size": 0, "type": "directory"}, {"name": f"{path}/", "size": 0}]
        return here

    def open(self, path: str, mode: str = "rb", **_options: Any) -> Any:
        import io

        class Broken(io.BytesIO):
            def read(self, size: int | None = -1) -> bytes:
                if Faulty.read_error is not None:
                    raise Faulty.read_error
                return super().read(size)

        return Broken(b"abc")


@pytest.fixture
def faulty():
    fsspec.register_implementation("faulty", Faulty, clobber=True)
    Faulty.error = Faulty.read_error = None
    Faulty.emptied = 0
    return f"faulty://{uuid.uuid4().hex[:6]}"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (PermissionError("403 for key hunter22"), ConfigurationError),
        (OSError("reset by peer, hunter22"), RetriableError),
        (TimeoutError("hunter22"), RetriableError),
        (RuntimeError("hunter22"), RetriableError),
        (ValueError("hunter22"), ConfigurationError),
        (FileNotFoundError("sub"), RetriableError),
    ],
)
def test_a_listing_that_fails_half_way_fails_and_keeps_the_secret(faulty, error, expected):
    Faulty.error = error
    options = ListOptions(storage=StorageOptions({"secret": "hunter22"}), recursive_file_lookup=True)
    with pytest.raises(expected, match="/sub") as caught:
        list_files([faulty], options)
    assert "hunter22" not in str(caught.value)


@pytest.mark.parametrize(
    ("cause", "gone"),
    [
        (None, True),
        (KeyError("an archive has no such member"), True),
        (StopIteration(), True),
        (OSError("Arrow's own: path does not exist"), True),
        (ftplib.error_perm("550 no such file"), True),
        (ftplib.error_perm("530 not logged in"), False),
        (ftplib.error_temp("421 too many users"), False),
        (ConnectionResetError("reset by peer"), False),
        (TimeoutError("no answer"), False),
    ],
)
def test_a_stores_not_found_that_stands_for_another_error_does_not_mean_gone(cause, gone):
    error = FileNotFoundError("a.csv")
    error.__cause__ = cause
    assert says_gone(error) is gone


def test_caches_are_off_and_emptied_and_options_arrive(faulty):
    list_files([faulty], ListOptions(storage=StorageOptions({"secret": "hunter22"})))
    assert Faulty.emptied >= 1
    assert Faulty.options == {"use_listings_cache": False, "secret": "hunter22"}


def test_the_marker_of_a_directory_is_no_file(faulty):
    assert paths(faulty, recursive_file_lookup=True) == ["/a.csv", "/sub/a.csv"]


def test_a_read_that_fails_half_way_can_be_tried_again(faulty):
    file = StoredFile(list_files([faulty]).files[0])
    assert file.status.etag == "1"
    with file.open() as stream:
        buffer = bytearray(2)
        assert (stream.read(1), stream.readinto(buffer), bytes(buffer)) == (b"a", 2, b"bc")  # type: ignore[attr-defined]
        stream.seek(0)
        Faulty.read_error = OSError("reset by peer")
        with pytest.raises(RetriableError, match=r"a\.csv.*reset by peer"):
            stream.read()


@pytest.mark.parametrize(
    ("moment", "nanos"),
    [
        (dt.datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=dt.UTC), 1_000_005_000),
        (dt.datetime(1970, 1, 1, 0, 0, 1), 1_000_000_000),
        (1.5, 1_500_000_000),
        (1_717_243_200_001, 1_717_243_200_001_000_000),
        ("1970-01-01T00:00:02Z", 2_000_000_000),
        ("19700101000003", 3_000_000_000),
        ("last Tuesday", 0),
        (None, 0),
    ],
)
def test_times_of_all_stores_become_nanoseconds(moment, nanos):
    assert nanoseconds(moment) == nanos


GOOGLE = {
    "name": "b/a.csv",
    "size": 3,
    "etag": "CKih16GjycICEAE=",
    "generation": "1717243200123456",
    "timeCreated": "2024-06-01T12:00:00.123Z",
    "updated": "2024-06-01T12:00:00.123Z",
    "mtime": dt.datetime(2024, 6, 1, 12, 0, 0, 123_000, tzinfo=dt.UTC),
}


def test_a_change_of_storage_class_makes_no_new_version_of_an_object():
    then = status("gs://b/a.csv", GOOGLE)
    moved = GOOGLE | {"etag": "CKih16GjycICEAI=", "updated": "2024-07-01T00:00:00Z", "mtime": dt.datetime(2024, 7, 1)}
    assert status("gs://b/a.csv", moved) == then
    assert then.modified_at == 1_717_243_200_123_000_000
    assert not then.same_file(status("gs://b/a.csv", moved | {"generation": "1719792000000000"}))


def test_an_object_that_was_read_by_its_etag_is_compared_by_time():
    """As in offsets of versions that did not read the generation."""
    now = status("gs://b/a.csv", GOOGLE)
    then = FileStatus("gs://b/a.csv", 3, now.modified_at, GOOGLE["etag"])
    assert then.same_file(now)
    assert now.same_file(then)
    assert not then.same_file(status("gs://b/a.csv", GOOGLE | {"timeCreated": "2024-07-01T00:00:00Z"}))


@pytest.mark.parametrize("facts", [{"timeCreated": None, "ctime": dt.datetime(2024, 6, 1)}, {"timeCreated": None}])
def test_an_object_without_a_time_of_its_own_has_the_next_best(facts):
    assert status("gs://b/a.csv", GOOGLE | facts).modified_ms // 86_400_000 == 19_875


def test_a_file_of_webhdfs_has_its_time_of_change():
    info = {"name": "/d/a", "size": 3, "modificationTime": 1_717_243_200_001, "accessTime": 1_800_000_000_000}
    assert status("webhdfs://h/d/a", info) == FileStatus("webhdfs://h/d/a", 3, 1_717_243_200_001_000_000)
    early = status("webhdfs://h/d/a", info | {"modificationTime": 1_001})
    assert early.modified_at == 1_001_000_000


@pytest.mark.parametrize(
    ("options", "name"), [("modified_after", "modifiedAfter"), ("modified_before", "modifiedBefore")]
)
def test_a_store_without_times_cannot_be_filtered_by_them(faulty, options, name):
    with pytest.raises(ConfigurationError, match=r"does not report when '.*/a\.csv' was changed") as caught:
        list_files([faulty], ListOptions(**{options: "2024-06-01T12:00:00"}))
    assert caught.value.option == name
    assert paths(faulty, path_glob_filter="b*", **{options: "2024-06-01T12:00:00"}) == []


def test_a_store_that_does_not_know_the_size_is_refused():
    with pytest.raises(ConfigurationError, match="does not report the size"):
        status("https://x/y", {"name": "y", "size": None})


class Flat(Faulty):
    """A store that lists a tree at once, as object stores do."""

    protocol = "flat"
    async_impl = True
    found: int = 0

    async def _find(self, *_args: Any, **_options: Any) -> None:
        raise AssertionError("its presence marks the store")

    def find(self, path: str, maxdepth: int | None = None, withdirs: bool = False, **_options: Any) -> dict[str, Any]:
        Flat.found += 1
        names = ["x.csv", "a=1/y.csv", "a=2/b/z.csv", "_tmp/q.csv", "marker/"]
        return {f"{path}/{name}": {"name": f"{path}/{name}", "size": 1, "type": "file"} for name in names}

    def ls(self, path: str, detail: bool = True, **_options: Any) -> list[Any]:
        raise AssertionError("one listing is enough")


def test_an_object_store_is_listed_in_one_go():
    fsspec.register_implementation("flat", Flat, clobber=True)
    Flat.found = 0
    root = "flat://b/t"
    assert paths(root, recursive_file_lookup=True) == ["/a=1/y.csv", "/a=2/b/z.csv", "/x.csv"]
    assert Flat.found == 1
