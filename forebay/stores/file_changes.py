# SPDX-License-Identifier: Apache-2.0
"""The errors for a file that no longer exists, or that has changed since it was listed."""

from __future__ import annotations

import datetime as dt

from forebay.errors import DataError
from forebay.stores.file_status import FileStatus


def changed(then: FileStatus | None, now: FileStatus, doing: str) -> str:
    """Return an error text: a file has changed since it was `doing`, which is "listed" or "read".

    `then` is its status at that time, or None if that is unknown.
    """
    if then is None:
        return f"the file {now.path!r} has changed since it was {doing} (now {_shown(now)})"
    return f"the file {then.path!r} has changed since it was {doing} (then {_shown(then)}; now {_shown(now)})"


def changed_error(then: FileStatus, now: FileStatus) -> DataError:
    """Return the error for a file that has changed since it was listed."""
    return DataError(
        changed(then, now, "listed"),
        advice="start the read again, and write new files instead of changing old ones; for a stream, which repeats a "
        "planned micro-batch, restore the old file, or have the micro-batch planned again (docs/operations.md)",
    )


def gone_error(path: str) -> DataError:
    """Return the error for a file that no longer exists, although it was listed."""
    return DataError(
        f"the file {path!r} was listed but no longer exists",
        advice="start the read again, or set ignoreMissingFiles=true to skip missing files; for a stream, which "
        "repeats a planned micro-batch, restore the file or set that option",
    )


def _shown(status: FileStatus) -> str:
    moment = dt.datetime.fromtimestamp(status.modified_at / 1e9, dt.UTC).isoformat() if status.modified_at else "?"
    etag = "" if status.etag is None else f", etag {status.etag}"
    return f"{status.size} bytes, modified {moment}{etag}"
