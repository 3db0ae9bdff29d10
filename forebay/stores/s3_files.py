# SPDX-License-Identifier: Apache-2.0
"""Deletes and moves S3 objects only if their ETag is unchanged, which the store checks atomically.

The calls go through `call_s3` of s3fs. A compatible store may ignore or refuse the conditions; then a newer object is
deleted too.
"""

from __future__ import annotations

from typing import Any

_CHANGED = frozenset({"PreconditionFailed", "412"})
_UNKNOWN = frozenset({"NotImplemented", "501"})


def delete(fs: Any, path: str, etag: str | None) -> bool | None:  # noqa: ANN401 - fsspec has no types
    """Delete an object if it still has this ETag.

    Return True if it was deleted; False if it does not exist or has changed; None if the store does not support
    conditions and nothing was done.
    """
    if etag is None or not hasattr(fs, "call_s3"):
        return None
    bucket, key = fs.split_path(path)[:2]
    try:
        fs.call_s3("delete_object", Bucket=bucket, Key=key, IfMatch=f'"{etag}"')
    except FileNotFoundError:
        return False
    except OSError as error:
        if (code := _code(error)) in _UNKNOWN:
            return None
        if code not in _CHANGED:
            raise
        return False
    finally:
        fs.invalidate_cache(path)
    return True


def move(fs: Any, path: str, target: str, etag: str | None) -> bool | None:  # noqa: ANN401 - as above
    """Copy an object if it still has this ETag, then `delete` it."""
    if etag is None or not hasattr(fs, "call_s3"):
        return None
    try:
        fs.cp_file(path, target, CopySourceIfMatch=f'"{etag}"')
    except FileNotFoundError:
        return False
    except OSError as error:
        if _code(error) not in _CHANGED:
            raise
        return False
    deleted = delete(fs, path, etag)
    if deleted is None:
        fs.rm_file(path)
    return deleted is not False


def _code(error: OSError) -> str:
    """Return S3's error code, which s3fs keeps in the cause."""
    answer = getattr(error.__cause__, "response", None)
    return str(answer.get("Error", {}).get("Code", "")) if isinstance(answer, dict) else ""
