# SPDX-License-Identifier: Apache-2.0
"""Paths and URLs: splitting, joining, parents."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.errors import ConfigurationError
from forebay.sources.files.file_index import list_files
from forebay.stores.paths import PathParts, is_url, join, normalized_path, parent, split_path, without_dots
from forebay.stores.stored_file import store_for


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/a//b/./c/", ("/", ("a", "b", "c"), "")),
        ("file:/a/b", ("/", ("a", "b"), "")),
        ("file:///a%20b/c", ("/", ("a%20b", "c"), "")),
        ("FILE://localhost/a", ("/", ("a",), "")),
        ("/a::b/c:d", ("/", ("a::b", "c:d"), "")),
        ("s3://bucket/k/*", ("s3://", ("bucket", "k", "*"), "")),
        ("hdfs:///k", ("hdfs:///", ("k",), "")),
        ("zip://*.csv::s3://b/a.zip", ("zip://", ("*.csv",), "::s3://b/a.zip")),
        ("simplecache::s3://b/*", ("simplecache::s3://", ("b", "*"), "")),
        ("https://host/a?b=c*", ("https://host/a?b=c*", (), "")),
    ],
)
def test_a_path_is_split(path, place):
    assert split_path(path) == place


@pytest.mark.parametrize("name", ["profile:1.txt", "local:x", "file:"])
def test_a_name_that_contains_a_scheme_stays_as_it_is(name):
    assert split_path(f"/d/{name}") == PathParts("/", ("d", name), "")
    assert normalized_path(f"file:///d/{name}") == f"/d/{name}"


def test_a_relative_path_starts_at_the_working_directory():
    assert split_path("a/*") == (str(Path.cwd()), ("a", "*"), "")


@pytest.mark.parametrize(
    ("path", "above"),
    [
        ("/a/b", "/a"),
        ("/a", "/"),
        ("/", "/"),
        ("s3://b/k", "s3://b"),
        ("s3://b", "s3://"),
        ("s3://", "s3://"),
        ("hdfs:///k", "hdfs:///"),
        ("zip://d/x::s3://b/a.zip", "zip://d::s3://b/a.zip"),
        ("simplecache::s3://b/k", "simplecache::s3://b"),
        ("/dir://x/y", "/dir://x"),
        ("s3://b//k", "s3://b/"),
        ("s3://b/", "s3://b"),
        ("s3://b///k", "s3://b//"),
        ("s3://b/../k", "s3://b/.."),
    ],
)
def test_parent_is_the_other_half_of_join(path, above):
    assert parent(path) == above
    if path != above:
        name = path.split("::s3")[0].rsplit("/", 1)[1] if path.startswith("zip") else path.rsplit("/", 1)[1]
        assert join(above, name) == path


def test_which_paths_are_urls():
    assert is_url("s3://b") and is_url("zip://x::file:///a") and is_url("simplecache::s3://b/x")
    assert not is_url("file:///a") and not is_url("/a::b") and not is_url("a::b.csv") and not is_url("c:d")


@pytest.mark.parametrize(
    "url",
    [
        "sftp://me:hunter22@host/x",
        "ftp://me:hunter22@127.0.0.1:1/x",
        "ftp://:hunter22@127.0.0.1:1/x",
        "ftp://me:at@hunter22@127.0.0.1:1/x",
        "zip://a.csv::ftp://me:hunter22@127.0.0.1:1/a.zip",
        "simplecache::ftp://me:hunter22@127.0.0.1:1/x.csv",
        "s3://AKIA:12/hunter22+7/x=@b/x",
        "zip://a.csv::https://me:hunter22+7/x:@y@127.0.0.1:1/x.zip",
    ],
)
@pytest.mark.parametrize("use", [split_path, store_for, lambda url: list_files([url])])
def test_a_password_in_a_url_is_refused_without_showing_it(url, use):
    with pytest.raises(ConfigurationError, match="contains a password") as caught:
        use(url)
    assert "hunter22" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "https://h:80/a@b",
        "abfss://c@account.dfs.core.windows.net/x:y@z",
        "ftp://me@h/x",
        "s3://b/a:b/c@d",
        "zip://12:a/x@y::s3://b/z",
    ],
)
def test_a_user_and_a_port_are_no_password(url):
    assert split_path(url)


@pytest.mark.parametrize("path", ["", "a\x00b"])
def test_an_invalid_path_is_refused(path):
    with pytest.raises(ConfigurationError, match="is not the path of"):
        split_path(path)


def test_two_dots_lead_where_the_system_says(tmp_path):
    (tmp_path / "e" / "f").mkdir(parents=True)
    (tmp_path / "other" / "deep").mkdir(parents=True)
    (tmp_path / "e" / "link").symlink_to("../other/deep")
    (tmp_path / "shown").symlink_to("e")
    for path, plain in {
        "e/f/../../e": "e",
        "e/link/..": "other",
        "e/link/../../e/f": "e/f",
        "shown/f/../a.csv": "shown/a.csv",
        "e/..f/x..": "e/..f/x..",
        "nowhere/../e": "e",
    }.items():
        assert without_dots(f"{tmp_path}/{path}") == f"{tmp_path}/{plain}"
        assert normalized_path(f"file:{tmp_path}//{path}") == f"{tmp_path}/{plain}"
    assert without_dots("/../a/..") == "/"
    for url in ("s3://b/a/../x", "zip://a/../x::file:///b/../c.zip"):
        assert without_dots(url) == url
        assert normalized_path(url) == url
