# SPDX-License-Identifier: Apache-2.0
"""Creates a `FileStatus` from the `info` dictionary of fsspec, whose keys differ from store to store."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from forebay.errors import ConfigurationError
from forebay.stores.file_status import GENERATION, FileStatus

_TIME_KEYS = (
    "LastModified", "last_modified", "Last-Modified", "mtime", "modified", "updated", "timeModified", "modify",
    "created",
)  # fmt: skip
_ETAG_KEYS = ("ETag", "etag", "VersionId", "version_id", "md5Hash")
_CREATED_KEYS = ("timeCreated", "ctime")  # the content of an object with a generation never changes
_MILLISECONDS = "modificationTime"  # webhdfs
_MAX_SECONDS = 100_000_000_000  # a larger number is milliseconds


def status(path: str, info: Mapping[str, Any]) -> FileStatus:
    """Return the status of a file from its `info` or `ls` entry.

    Raises:
        ConfigurationError: The store does not report the size of the file.
    """
    size = info.get("size")
    if size is None:
        raise ConfigurationError(
            f"the store does not report the size of {path!r}",
            option="path",
            advice="copy the file to a store that reports sizes, or to a local directory",
        )
    if generation := info.get("generation"):
        # On Google Cloud Storage a new storage class changes the ETag and the time of change.
        return FileStatus(path, int(size), _time(info, _CREATED_KEYS + _TIME_KEYS), f"{GENERATION}{generation}")
    etag = next((str(info[key]).strip('"') for key in _ETAG_KEYS if info.get(key)), None)
    return FileStatus(path, int(size), _time(info, _TIME_KEYS), etag)


def _time(info: Mapping[str, Any], keys: Sequence[str]) -> int:
    moment = next((info[key] for key in keys if info.get(key) is not None), None)
    if moment is None and isinstance(milliseconds := info.get(_MILLISECONDS), int):
        return milliseconds * 1_000_000
    return nanoseconds(moment)


def nanoseconds(moment: object) -> int:
    """Return a time as nanoseconds since 1970 UTC, from any form that stores use; 0 if the form is unknown."""
    if isinstance(moment, dt.datetime):
        aware = moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
        return (aware - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1) * 1000
    if isinstance(moment, int | float):
        seconds = moment / 1000 if moment > _MAX_SECONDS else moment
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
