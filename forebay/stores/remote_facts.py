# SPDX-License-Identifier: Apache-2.0
"""Size, time and mark of a file out of what an fsspec store says of it: every store has its own words for them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from forebay.errors import ConfigurationError
from forebay.stores.file_status import GENERATION, FileStatus
from forebay.stores.paths import is_url

_TIME_KEYS = (
    "LastModified", "last_modified", "Last-Modified", "mtime", "modified", "updated", "timeModified", "modify",
    "created",
)  # fmt: skip
_ETAG_KEYS = ("ETag", "etag", "VersionId", "version_id", "md5Hash")
_CREATED_KEYS = ("timeCreated", "ctime")  # of an object that has a generation: its content is never changed later
_MILLISECONDS = "modificationTime"  # webhdfs
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
    if generation := info.get("generation"):
        # On Google Cloud Storage the ETag and the time of change change with the storage class too.
        return FileStatus(path, int(size), _time(info, _CREATED_KEYS + _TIME_KEYS), f"{GENERATION}{generation}")
    mark = next((str(info[key]).strip('"') for key in _ETAG_KEYS if info.get(key)), None)
    return FileStatus(path, int(size), _time(info, _TIME_KEYS), mark)


def tells_time(file: FileStatus) -> bool:
    """Whether it is known when a file was changed: Databricks' store, and ZIP archives, do not say it."""
    return file.modified_at != 0 or not is_url(file.path)


def tells_versions(file: FileStatus) -> bool:
    """Whether a file can be told from another one of its size under its name: by a time, or a mark of the store."""
    return tells_time(file) or file.etag is not None


def _time(info: Mapping[str, Any], keys: Sequence[str]) -> int:
    moment = next((info[key] for key in keys if info.get(key) is not None), None)
    if moment is None and isinstance(milliseconds := info.get(_MILLISECONDS), int):
        return milliseconds * 1_000_000
    return nanoseconds(moment)


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
