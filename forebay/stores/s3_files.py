# SPDX-License-Identifier: Apache-2.0
"""Deleting and moving objects of S3 only while they are what was read: the store compares ETags, in the same step.

Through s3fs, whose `call_s3` passes a call of S3 on. A store like S3 that does not know these conditions overlooks
them, or says so; then an object is deleted whatever it is by then.
"""

from __future__ import annotations

from typing import Any

_CHANGED = frozenset({"PreconditionFailed", "412"})
_UNKNOWN = frozenset({"NotImplemented", "501"})


def delete(fs: Any, path: str, etag: str | None) -> bool | None:  # noqa: ANN401 - fsspec has no types
    """Delete an object if it still has this ETag. Called by `RemoteStore`.

    Args:
        fs: The file system of fsspec.
        path: The object, as `fs` spells it.
        etag: What it had when it was read, without quotes.

    Returns:
        Whether it was deleted; False: it is gone or another one. None: this store cannot do that; nothing was done.

    Raises:
        OSError: What the store answered.
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
    """Copy an object if it still has this ETag, and delete it if it has it even then. As `delete` otherwise."""
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
    """Return the code that S3 answered with, which s3fs keeps in the cause."""
    answer = getattr(error.__cause__, "response", None)
    return str(answer.get("Error", {}).get("Code", "")) if isinstance(answer, dict) else ""
