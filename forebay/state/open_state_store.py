# SPDX-License-Identifier: Apache-2.0
"""The choice of the state store for a location."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from forebay.errors import ConfigurationError
from forebay.state.local_state_store import LocalStateStore
from forebay.state.state_store import OPTION, StateStore
from forebay.stores.storage_options import NO_OPTIONS, StorageOptions

_S3: Final = ("s3", "s3a", "s3n")
_LOCAL: Final = ("file", "local")
# One letter is no scheme, and neither is a colon behind a slash.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+):")


def scheme_of(location: str) -> str:
    """Return the scheme of a location in small letters; `file` for a plain path. Any thread."""
    found = _SCHEME.match(location)
    return found[1].lower() if found else "file"


def can_keep_state(location: str) -> bool:
    """Whether durable state can be kept in such a place: only where put-if-absent is certain (S13). Any thread."""
    return scheme_of(location) in (*_LOCAL, *_S3)


def open_state_store(location: str, options: Mapping[str, object] = NO_OPTIONS) -> StateStore:
    """Return the store of a location; looks at nothing outside yet.

    Called by the hosts when a query starts, and by tasks, on any thread.

    Args:
        location: A directory, as a path or a `file:` URL, or `s3://bucket/prefix`.
        options: For S3, `stateStorage.*`: `endpoint_url`, `key`, `secret`, `token`, `region`, `profile`; what is not
            there comes from boto3's own chain. A directory takes none.

    Raises:
        ConfigurationError: No such store can keep state, boto3 is not installed, or an option is unknown.
    """
    scheme = scheme_of(location)
    if not location.strip() or "\x00" in location:
        raise ConfigurationError(f"not a directory: {location!r}", option=OPTION, advice="give a path or an s3:// URL")
    if scheme in _S3:
        from forebay.state.s3_state_store import S3StateStore

        return S3StateStore(location, StorageOptions(options))
    if scheme not in _LOCAL:
        raise ConfigurationError(
            f"{scheme}: is no store for what a stream remembers: it has to write a file only if there is none, "
            f"and that is certain only in local directories and on S3",
            option=OPTION,
            advice="give a directory of this machine or of a file system mounted on all of them, or s3://bucket/prefix",
        )
    if options:
        raise ConfigurationError(
            f"the directory {location!r} takes no stateStorage options",
            option=f"stateStorage.{min(options)}",
            advice="leave stateStorage.* out, or give an s3:// URL as stateLocation",
        )
    return LocalStateStore(location)
