# SPDX-License-Identifier: Apache-2.0
"""Splits and joins the paths and URLs of stores."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from forebay.errors import ConfigurationError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://")
_CHAIN = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*::.*://", re.DOTALL)
_TOP = re.compile(rf"(?:[^:]*::)?{_SCHEME.pattern}/?|/")
_QUERY = re.compile(r"[?#]")
_PASSWORD = re.compile(r"(?:^|::)([A-Za-z][A-Za-z0-9+.\-]*)://[^/]*?:[^/]+@")
_HOST = re.compile(r"(?:[^:@]*@)?(?:\[[^\]]*\]|[^:\[]*)(?::[0-9]*)?")
"""What may be before the first slash of a URL: a host, with a user, a port, both or none."""
_NAMES_WITH_COLONS = frozenset({"zip", "tar", "libarchive", "github"})
"""Schemes that a name in an archive may follow, or `organization:repository`."""

LOCAL = re.compile(r"\A(?:file|local):(?://(?:localhost)?(?=/))?", re.IGNORECASE)
"""The part of a URL of the local file system that comes before its path."""

S3_SCHEMES = ("s3", "s3a", "s3n")

KEY_NAMES = frozenset({"", ".", ".."})
"""Names in keys of object stores that are not names of directories elsewhere. They do not count as hidden names."""


class PathParts(NamedTuple):
    """The parts of a path: its root, the names below it (which may be globs), and the other links of a chained URL.

    The root is `/`, the working directory, or `scheme://…` up to the first name that may be a glob.
    """

    root: str
    parts: tuple[str, ...]
    chain: str


def is_url(path: str) -> bool:
    """Return whether a path is the URL of a store other than the local file system."""
    return bool((_SCHEME.match(path) or _CHAIN.match(path)) and not LOCAL.match(path))


def is_s3(path: str) -> bool:
    """Return whether a path is a URL of S3 that is not chained to another store."""
    return path.partition("://")[0].lower() in S3_SCHEMES and "::" not in path


def split_path(path: str, *, keep_empty: bool = False) -> PathParts:
    """Split a user's path, without access to a store. With `keep_empty`, empty names in a URL (`a//b`) are kept.

    Local paths become absolute and lose `file:` and doubled slashes. As in Spark, `%` is an ordinary character.

    Raises:
        ConfigurationError: The path is empty, has a NUL, or is a URL with a password.
    """
    if not path or "\x00" in path:
        raise ConfigurationError(
            f"the value {path!r} is not the path of a file or directory",
            option="path",
            advice="give a path that is not empty and contains no NUL character",
        )
    if not is_url(path):
        local = LOCAL.sub("", path, count=1)
        parts = tuple(part for part in local.split("/") if part not in ("", "."))
        return PathParts("/" if local.startswith("/") else str(Path.cwd()), parts, "")
    refuse_password(path)
    first, *links = path.split("::")
    chain = "".join("::" + link for link in links)
    match = _SCHEME.match(first)
    if match is None:  # the path is in the link after a cache: `simplecache::s3://b/x`
        inner = split_path(path.split("::", 1)[1], keep_empty=keep_empty)
        return PathParts(f"{first}::{inner.root}", inner.parts, inner.chain)
    head = match[0]
    body = first[len(head) :]
    if body.startswith("/"):
        head, body = head + "/", body.lstrip("/")
    if match[1].lower() in ("http", "https"):  # `?` begins the query, and few servers list
        return PathParts(first, (), chain)
    names = body.rstrip("/").split("/")
    return PathParts(head, tuple(name for name in names if name or (keep_empty and len(names) > 1)), chain)


def password_scheme(path: str) -> str | None:
    """Return the scheme of a URL with a password, which may contain slashes; None if there is no password."""
    if not is_url(path):
        return None
    if match := _PASSWORD.search(path):
        return match[1]
    schemes = (_SCHEME.match(link) for link in path.split("::"))
    return next((match[1] for match in schemes if match and _is_password(match[1].lower(), match)), None)


def _is_password(scheme: str, match: re.Match[str]) -> bool:
    """Return whether a password with a slash may follow the scheme of a URL."""
    begin, _, rest = match.string[match.end() :].partition("/")
    if "@" not in rest or scheme in _NAMES_WITH_COLONS:
        return False
    if scheme in S3_SCHEMES:  # a bucket has no colon, if it is not an ARN, and no port
        return ":" in begin and not begin.startswith("arn:")
    return not _HOST.fullmatch(begin)


def refuse_password(path: str, *, option: str = "path") -> None:
    """Raise a ConfigurationError for a URL with a password.

    Called before connecting to the store. `option` is the option that the error names.
    """
    if "@" in path and (scheme := password_scheme(path)) is not None:
        raise ConfigurationError(
            f"a URL with the scheme {scheme!r} contains a password",
            option=option,
            advice="remove the password from the URL, because plans and errors show URLs; set storage.username and "
            "storage.password, or for S3 storage.key and storage.secret",
        )


def join(directory: str, name: str) -> str:
    """Return the path of the entry `name` of a directory. It may be local, a URL or chained (`zip://d::s3://b/a.zip`).

    In an object store a name may be empty: the empty name in `s3://b/d` is the directory `s3://b/d/`, which holds
    `s3://b/d//x`.
    """
    head, chain = _unchained(directory)
    top = head.endswith("/") and _TOP.fullmatch(head)
    return f"{head}{name}{chain}" if top else f"{head}/{name}{chain}"


def normalized_path(path: str) -> str:
    """Return a path (not a glob) in the form that listings return: absolute, without `file:`, `..` and `//`."""
    split = split_path(path)
    normalized = split.root + split.chain
    for part in split.parts:
        normalized = join(normalized, part)
    return without_dots(normalized)


def without_dots(path: str) -> str:
    """Return an absolute local path with `..` resolved. After a link, `..` is the parent of the link's target.

    Links without a following `..` are not resolved. A URL is unchanged, because `..` is an ordinary name there.
    """
    if "/../" not in f"{path}/" or is_url(path):
        return path
    done = "/"
    for part in path.split("/"):
        if part == "..":
            done = os.path.dirname(os.path.realpath(done) if os.path.islink(done) else done)
        else:
            done = os.path.join(done, part)
    return done


def last_name(path: str) -> str:
    """Return the last part of a path or URL, without an HTTP query and the other links of a chained URL."""
    if "://" not in path:
        return path.rsplit("/", 1)[-1]
    head = _unchained(path)[0]
    if head.lower().startswith(("http://", "https://")):
        head = _QUERY.split(head, maxsplit=1)[0]
    return head.rsplit("/", 1)[-1]


def _unchained(path: str) -> tuple[str, str]:
    """Return the link of a chained URL that contains the path, and the links after it; any other path, and ""."""
    if path.startswith("/") or "::" not in path:
        return path, ""
    first, *links = path.split("::")
    if "://" not in first and links:  # the path is in the link after a cache
        first, links = f"{first}::{links[0]}", links[1:]
    return first, "".join("::" + link for link in links)


def parent(path: str) -> str:
    """Return the directory that contains a path. The topmost directory is its own parent."""
    if path.startswith("/"):  # a fast way for most of hundreds of thousands of paths
        return path.rpartition("/")[0] or "/"
    head, chain = _unchained(path)
    match = _SCHEME.search(head)
    start = match.end() if match else 0
    cut = head.rfind("/", start)
    return head[: cut + 1 if cut == start else max(cut, start)] + chain
