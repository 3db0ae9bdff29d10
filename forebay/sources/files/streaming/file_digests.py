# SPDX-License-Identifier: Apache-2.0
"""Digests (short hashes) of files that a stream has read, because offsets have no room for all splits.

The key of a digest is the file's path. The mark of a digest identifies the version of the file: two bits for the kind
of version, one for `cleanSource`, and a hash of 29 bits.
"""

from __future__ import annotations

from forebay.framework.digests import Digest, hash_of
from forebay.sources.files.split import FileSplit
from forebay.stores.file_status import GENERATION, FileStatus
from forebay.stores.paths import last_name

_TIME, _ETAG, _GENERATION = 0, 1, 2
_KIND = 3
_CLEAN = 4
_SHIFT = 3
_HASH = (1 << 29) - 1
"""Keeps 29 bits: a rewritten file has the same hash as the old one with a probability of 2 in 10^9."""


def digests_of(split: FileSplit, *, named: bool) -> list[Digest]:
    """Return the digests of a file.

    With `named`, a second digest recognises files of the same name in any directory.
    """
    mark = _mark(split.status) | (_CLEAN if split.clean else 0)
    digests = [Digest(split.id, mark, split.modified_at)]
    return [*digests, Digest(name_key(last_name(split.path)), 0, split.modified_at)] if named else digests


def name_key(name: str) -> str:
    """Return the digest key for the name of a file. The key differs from every path."""
    return f"\0name:{name}"


def is_version(mark: int, file: FileStatus) -> bool:
    """Return whether a file is still the version for which the digest with this mark was made."""
    now, kind = _mark(file), mark & _KIND
    if kind != now & _KIND:
        if kind != _TIME:
            return True  # the store no longer reports this kind of version
        now = _mark(file, by_time=True)
    return mark & ~_CLEAN == now


def may_be_cleaned(mark: int) -> bool:
    """Return whether `cleanSource` was on when the stream began to read the file with this mark."""
    return bool(mark & _CLEAN)


def _mark(file: FileStatus, *, by_time: bool = False) -> int:
    if file.etag is None or by_time:
        kind, text = _TIME, f"{file.size} {file.modified_at}"
    else:
        kind, text = _GENERATION if file.etag.startswith(GENERATION) else _ETAG, f"{file.size} {file.etag}"
    return (hash_of(text) & _HASH) << _SHIFT | kind
