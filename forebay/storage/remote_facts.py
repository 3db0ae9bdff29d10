# SPDX-License-Identifier: Apache-2.0
"""Size, time and mark of a file out of what an fsspec store says of it: every store has its own words for them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from forebay.errors import ConfigurationError
from forebay.storage.file_status import FileStatus

_TIME_KEYS = (
    "LastModified", "last_modified", "Last-Modified", "mtime", "modified", "updated", "timeModified", "modify",
    "created",
)  # fmt: skip
_ETAG_KEYS = ("ETag", "etag", "generation", "VersionId", "version_id", "md5Hash")
_LARGEST_SECONDS = 100_000_000_000  # a larger number is milliseconds


def status(path: str, info: Mapping[str, Any]) -> FileStatus:
    """The status of a file from a store's `info` or `ls` entry.

    Raises:
        ConfigurationError: The store does not say how large the file is.
    """
    size = info.get("size")
    if size is None:
        raise ConfigurationError(
            f"the store does not say how large {path!r} is",
            option="path",
            advice="copy the file to a store that does, or to a local directory",
        )
    mark = next((str(info[key]).strip('"') for key in _ETAG_KEYS if info.get(key)), None)
    moment = next((info[key] for key in _TIME_KEYS if info.get(key) is not None), None)
    return FileStatus(path, int(size), nanoseconds(moment), mark)


def nanoseconds(moment: object) -> int:
    """Nanoseconds since 1970 of a time in any of the forms stores use; 0 where there is none to make out."""
    if isinstance(moment, dt.datetime):
        aware = moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
        return (aware - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1) * 1000
    if isinstance(moment, int | float):
        seconds = moment / 1000 if moment > _LARGEST_SECONDS else moment
        return round(seconds * 1_000_000) * 1000
    if isinstance(moment, str):
        for read in (dt.datetime.fromisoformat, _compact):
            try:
                return nanoseconds(read(moment))
            except ValueError:
                continue
    return 0


def _compact(text: str) -> dt.datetime:
    return dt.datetime.strptime(text[:14] + "+0000", "%Y%m%d%H%M%S%z")
