# SPDX-License-Identifier: Apache-2.0
"""Paths and URLs of stores: parts, parents, and what a listing starts from."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from forebay.errors import ConfigurationError
from forebay.stores.file_status import unchained

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://")
_CHAIN = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*::.*://", re.DOTALL)
_LOCAL = re.compile(r"(?:file|local):(?://(?:localhost)?(?=/))?", re.IGNORECASE)
_TOP = re.compile(rf"(?:[^:]*::)?{_SCHEME.pattern}/?|/")
_PASSWORD = re.compile(r"(?:^|::)([A-Za-z][A-Za-z0-9+.\-]*)://[^/]*?:[^/]+@")


class Place(NamedTuple):
    """A path as a listing works with it: the root to start from, and the names below it, which may hold globs.

    Attributes:
        root: `/`, the working directory, or `scheme://…` up to the first part that may hold a glob.
        parts: The names below the root.
        chain: What follows in a chained URL (`::s3://b/a.zip`), else empty.
    """

    root: str
    parts: tuple[str, ...]
    chain: str


def is_url(path: str) -> bool:
    """Whether a path names a store other than the local file system."""
    return bool((_SCHEME.match(path) or _CHAIN.match(path)) and not _LOCAL.match(path))


def place_of(path: str, *, keep_empty: bool = False) -> Place:
    """Take a user's path apart, without looking at any store.

    Called at the start of each listing. Local paths become absolute and lose `file:` and doubled slashes; `%` is
    left as it stands, as in Spark.

    Args:
        path: As the user wrote it.
        keep_empty: Keep the empty names of a URL, except at its end.

    Raises:
        ConfigurationError: The path is empty, holds a NUL, or is a URL with a password in it.
    """
    if not path or "\x00" in path:
        raise ConfigurationError(f"not a path: {path!r}", option="path", advice="give the path of a file or directory")
    if not is_url(path):
        local = _LOCAL.sub("", path, count=1)
        parts = tuple(part for part in local.split("/") if part not in ("", "."))
        return Place("/" if local.startswith("/") else str(Path.cwd()), parts, "")
    refuse_password(path)
    first, *rest = path.split("::")
    chain = "".join("::" + link for link in rest)
    match = _SCHEME.match(first)
    if match is None:  # a caching layer: `simplecache::s3://b/x`; the next link has the path
        inner = place_of(path.split("::", 1)[1], keep_empty=keep_empty)
        return Place(f"{first}::{inner.root}", inner.parts, inner.chain)
    head = match[0]
    body = first[len(head) :]
    if body.startswith("/"):
        head, body = head + "/", body.lstrip("/")
    if match[1].lower() in ("http", "https"):  # `?` belongs to the query, and servers rarely list
        return Place(first, (), chain)
    names = body.rstrip("/").split("/")
    return Place(head, tuple(name for name in names if name or (keep_empty and len(names) > 1)), chain)


def refuse_password(path: str, *, option: str = "path") -> None:
    """Refuse a URL with a password in it. Called before anything connects to its store.

    Raises:
        ConfigurationError: Any link of the URL has a password.
    """
    if is_url(path) and (found := _PASSWORD.search(path)):
        raise ConfigurationError(
            f"the URL of scheme {found[1]!r} holds a password",
            option=option,
            advice="take it out of the URL, which is shown in plans and errors, and give it as a storage option: "
            "storage.password, with storage.username",
        )


def join(directory: str, name: str) -> str:
    """The path of a name in a directory, for local paths, URLs and chained URLs (`zip://d::s3://b/a.zip`).

    In a key of an object store a name may be empty: its directory is `s3://b/d/`, and a file in that `s3://b/d//x`.
    """
    head, chain = unchained(directory)
    top = head.endswith("/") and _TOP.fullmatch(head)
    return f"{head}{name}{chain}" if top else f"{head}/{name}{chain}"


def plain_path(path: str) -> str:
    """A user's path, without globs, as a listing spells it: absolute, without `file:`, `..` and doubled slashes."""
    place = place_of(path)
    plain = place.root + place.chain
    for part in place.parts:
        plain = join(plain, part)
    return without_dots(plain)


def without_dots(path: str) -> str:
    """A local path without `..`, which leads out of where a link leads to, as the system has it; a URL as it is.

    In a URL `..` is a name: keys of an object store may hold it. Other links stay: a file keeps the name it was given.

    Args:
        path: Absolute, without globs; need not be there.
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


def parent(path: str) -> str:
    """The directory a path lies in; the top is its own parent."""
    if path.startswith("/"):  # of hundreds of thousands, nearly all
        return path.rpartition("/")[0] or "/"
    head, chain = unchained(path)
    match = _SCHEME.search(head)
    start = match.end() if match else 0
    cut = head.rfind("/", start)
    return head[: cut + 1 if cut == start else max(cut, start)] + chain
