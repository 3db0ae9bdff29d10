# SPDX-License-Identifier: Apache-2.0
"""Opens the state store of a location, which the scheme of the location determines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from forebay.errors import ConfigurationError
from forebay.state.local_state_store import LocalStateStore
from forebay.state.state_store import STREAM, Purpose, StateStore
from forebay.stores.paths import S3_SCHEMES
from forebay.stores.store import NO_OPTIONS, StorageOptions

_LOCAL: Final = ("file", "local")
# Neither one letter nor text with a slash before the colon is a scheme.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+):")


def scheme_of(location: str) -> str:
    """Return the scheme of a location in lower case; `file` for a plain path. For any thread."""
    match = _SCHEME.match(location)
    return match[1].lower() if match else "file"


def can_keep_state(location: str) -> bool:
    """Return whether the store of a location has an atomic put-if-absent, which state needs (S13). For any thread."""
    return scheme_of(location) in (*_LOCAL, *S3_SCHEMES)


def open_state_store(
    location: str, options: Mapping[str, object] = NO_OPTIONS, purpose: Purpose = STREAM
) -> StateStore:
    """Return the state store of a location, without accessing it. Called by hosts and tasks, on any thread.

    Args:
        location: A directory, as a path or a `file:` URL, or `s3://bucket/prefix`.
        options: For S3, the options `stateStorage.*`, named as in `S3Settings`; values may be a `Secret`. A directory
            takes none.
        purpose: What the store is for; errors name it.

    Raises:
        ConfigurationError: The store cannot keep state, boto3 is not installed, or an option is unknown.
    """
    scheme = scheme_of(location)
    if not location.strip() or "\x00" in location:
        raise ConfigurationError(
            f"{purpose.option} is {location!r}, which is no directory",
            option=purpose.option,
            advice="give a path or an s3:// URL",
        )
    if scheme in S3_SCHEMES:
        from forebay.state.s3_state_store import S3StateStore

        return S3StateStore(location, StorageOptions(options), purpose)
    if scheme not in _LOCAL:
        raise ConfigurationError(
            f"{purpose.option} cannot be a URL with the scheme {scheme!r}: only local directories and S3 create files "
            "atomically",
            option=purpose.option,
            advice="give a directory (on a cluster, in a file system that all machines mount), or s3://bucket/prefix",
        )
    if any(not name.startswith("fs.s3a.") for name in options):
        raise ConfigurationError(
            f"the directory {location!r} takes no {purpose.storage[:-1]} options",
            option=f"{purpose.storage}{min(options)}",
            advice=f"remove {purpose.storage}*, or give an s3:// URL as {purpose.option}",
        )
    return LocalStateStore(location, purpose)
