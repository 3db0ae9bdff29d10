# SPDX-License-Identifier: Apache-2.0
"""What a listing knows of a file, and the same file's name as Spark's `_metadata` column spells it."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

GENERATION = "generation="
"""What a mark begins with that is the generation of an object on Google Cloud Storage."""

_NANOS_PER_MILLI = 1_000_000
# Characters that java.net.URI leaves alone in a path; all other ASCII is escaped, and so is `%` itself.
_URI_SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.!~*'():@&=+$,;/")
_QUERY = re.compile(r"[?#]")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://([^/]*)(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FileStatus:
    """One file as it was when it was listed: the identity a later reader checks the file against.

    Made by listings; kept in splits. Holds no credentials: those travel in `StorageOptions`.

    Attributes:
        path: The full URL, or for a local file the plain absolute path, whichever way the user wrote it.
        size: Bytes, as stored (compressed size for a compressed file).
        modified_at: Nanoseconds since 1970 UTC of the last change; 0 where the store does not say.
        etag: The store's own mark of the content (ETag, generation, version), or None. Where both sides have one, it
            decides and `modified_at` does not: a store may list and show times in different precision.
    """

    path: str
    size: int
    modified_at: int
    etag: str | None = None

    @property
    def name(self) -> str:
        """The last part of the path."""
        return last_name(self.path)

    @property
    def modified_ms(self) -> int:
        """Milliseconds since 1970 UTC of the last change, rounded down: what Spark compares and shows."""
        return self.modified_at // _NANOS_PER_MILLI

    def same_file(self, now: FileStatus) -> bool:
        """Whether `now` is still the content that was listed: size, and the etag or else the time of change.

        A generation and an ETag say nothing of each other.
        """
        if self.size != now.size:
            return False
        if self.etag is not None and now.etag is not None and _generation(self.etag) == _generation(now.etag):
            return self.etag == now.etag
        return self.modified_at == now.modified_at


def spark_file_path(path: str) -> str:
    """The value of Spark's `_metadata.file_path` for a path of ours: `file:/d/a%20b.csv`, `s3://b/x%23y`.

    Called where metadata columns are filled in. Spark 4.2 writes `file:/…` with one slash, and escapes as
    `java.net.URI` does: what is not allowed in a URI is escaped, letters of any script and emoji are not.
    """
    match = _URL.fullmatch(path)
    if match is None:
        return "file:" + _quote(path)
    scheme, authority, rest = match.groups()
    return f"{scheme}://{authority}{_quote(rest)}"


def spark_file_name(path: str) -> str:
    """The value of Spark's `_metadata.file_name`: the last part of `spark_file_path`, escaped like it."""
    return _quote(last_name(path))


def last_name(path: str) -> str:
    """The last part of a path or URL: of a chained URL that of the link with the path, of HTTP without the query."""
    if "://" not in path:
        return path.rsplit("/", 1)[-1]
    head = unchained(path)[0]
    if head.lower().startswith(("http://", "https://")):
        head = _QUERY.split(head, maxsplit=1)[0]
    return head.rsplit("/", 1)[-1]


def unchained(path: str) -> tuple[str, str]:
    """The part of a chained URL that holds the path, and the links that follow it."""
    if path.startswith("/") or "::" not in path:
        return path, ""
    first, *rest = path.split("::")
    if "://" not in first and rest:  # a caching layer: the path is in the next link
        first, rest = f"{first}::{rest[0]}", rest[1:]
    return first, "".join("::" + link for link in rest)


def _generation(etag: str) -> bool:
    return etag.startswith(GENERATION)


def _quote(text: str) -> str:
    if text.isascii() and _URI_SAFE.issuperset(text):
        return text
    return "".join(char if _plain(char) else "".join(f"%{byte:02X}" for byte in char.encode()) for char in text)


def _plain(char: str) -> bool:
    if char < "\x80":
        return char in _URI_SAFE
    return unicodedata.category(char) not in ("Zs", "Zl", "Zp", "Cc")
