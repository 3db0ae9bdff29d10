# SPDX-License-Identifier: Apache-2.0
"""The status of a listed file, and the forms of its path in Spark's `_metadata` column."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from forebay.stores.paths import is_url, last_name

GENERATION = "generation="
"""Prefix that marks an `etag` as an object's generation number on Google Cloud Storage."""

_NANOS_PER_MILLI = 1_000_000
_UNITS = (1_000_000_000, _NANOS_PER_MILLI, 1000, 1)
# The ASCII characters that java.net.URI does not escape in a path.
_URI_SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.!~*'():@&=+$,;/")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://([^/]*)(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FileStatus:
    """The status of a file when it was listed. Readers compare the file with it. Splits hold it; it has no secrets.

    Attributes:
        path: The full URL, or the plain absolute path of a local file.
        size: Bytes of the stored file, which may be compressed.
        modified_at: The time of the last change, in nanoseconds since 1970 UTC; 0 if the store does not report it.
        etag: The store's own version of the content (ETag, generation, version), or None. `etag` takes precedence over
            `modified_at`, because a store may report times in different precisions.
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
        """The time of the last change, in milliseconds since 1970 UTC, rounded down as in Spark."""
        return self.modified_at // _NANOS_PER_MILLI

    @property
    def has_time(self) -> bool:
        """Whether the time of the last change is known. ZIP archives and Databricks' store report none."""
        return self.modified_at != 0 or not is_url(self.path)

    @property
    def has_version(self) -> bool:
        """Whether the time or the etag can distinguish this file from another version with the same path and size."""
        return self.has_time or self.etag is not None

    def same_file(self, now: FileStatus) -> bool:
        """Return whether `now` is the same version: equal size, and equal etag or, without two etags, equal time.

        Times are compared in the precision that both have: a listing of S3 may have milliseconds where the answer to
        HEAD has seconds. A generation number and an ETag are never compared with each other.
        """
        if self.size != now.size:
            return False
        if self.etag and now.etag and self.etag.startswith(GENERATION) == now.etag.startswith(GENERATION):
            return self.etag == now.etag
        if self.modified_at == now.modified_at:
            return True
        return is_url(self.path) and _same_moment(self.modified_at, now.modified_at)


def _same_moment(one: int, other: int) -> bool:
    """Return whether two different times, in nanoseconds, are equal in the precision of the less precise one."""
    if not one or not other:  # unknown
        return False
    unit = max(next(unit for unit in _UNITS if not moment % unit) for moment in (one, other))
    return one // unit == other // unit


def spark_file_path(path: str) -> str:
    """Return the value of Spark's `_metadata.file_path`: `file:/d/a%20b.csv`, `s3://b/x%23y`.

    Spark 4.2 writes `file:/` with one slash. Characters are escaped as by `java.net.URI`, which keeps letters of any
    script and emoji.
    """
    match = _URL.fullmatch(path)
    if match is None:
        return "file:" + _quote(path)
    scheme, authority, rest = match.groups()
    return f"{scheme}://{authority}{_quote(rest)}"


def spark_file_name(path: str) -> str:
    """Return the value of Spark's `_metadata.file_name`: the last part of `spark_file_path`."""
    return _quote(last_name(path))


def _quote(text: str) -> str:
    if text.isascii() and _URI_SAFE.issuperset(text):
        return text
    return "".join(char if _plain(char) else "".join(f"%{byte:02X}" for byte in char.encode()) for char in text)


def _plain(char: str) -> bool:
    if char < "\x80":
        return char in _URI_SAFE
    return unicodedata.category(char) not in ("Zs", "Zl", "Zp", "Cc")
