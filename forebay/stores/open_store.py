# SPDX-License-Identifier: Apache-2.0
"""The choice of the store for a path."""

from __future__ import annotations

from forebay.stores.paths import is_url, refuse_password
from forebay.stores.storage_options import NO_OPTIONS, StorageOptions
from forebay.stores.store import Store


def store_for(
    path: str,
    options: StorageOptions = NO_OPTIONS,
    *,
    ignore_missing: bool = False,
    ignore_vanished: bool = False,
) -> Store:
    """The store a path lives in; called by listings and by `StoredFile`, on any thread.

    Args:
        path: A plain path or a URL.
        options: Arguments for the store, given to fsspec. The local file system takes none.
        ignore_missing: Leave out entries that vanish while they are listed, and broken links, instead of failing.
        ignore_vanished: Leave out entries that vanish only.

    Raises:
        ConfigurationError: No such scheme, its package is not installed, it does not take the options, or the URL
            holds a password.
    """
    if not is_url(path):
        from forebay.stores.local import LocalStore

        return LocalStore(ignore_missing=ignore_missing, ignore_vanished=ignore_vanished)
    refuse_password(path)
    from forebay.stores.remote import RemoteStore

    return RemoteStore(path, options)
