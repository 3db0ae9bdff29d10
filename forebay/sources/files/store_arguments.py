# SPDX-License-Identifier: Apache-2.0
"""The options `storage.*`: texts, and what fsspec's stores want of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from forebay.options import Secret
from forebay.options.secret import is_sensitive
from forebay.stores.storage_options import StorageOptions

# Words of the names of arguments that are numbers. All digits elsewhere are a name or a credential.
_NUMBERS = re.compile(
    r"(?:^|_)(?:blocksize|concurrency|connections|count|expiry|level|limit|max|paths|port|retries|retry|seconds|size|"
    r"time|timeout|tries|ttl|workers)(?:_|$)",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?", re.ASCII)
_WORDS = {"true": True, "false": False}


def store_arguments(storage: Mapping[str, Secret]) -> StorageOptions:
    """Return the arguments of a store, revealed and typed.

    A JSON object or array becomes one. `true` and `false` become booleans, unless the name is that of a credential.
    A number becomes one only where the name says so, as `port`, `default_block_size` and `connect_timeout` do: a key
    of digits alone stays a text, with all its zeros.
    """
    return StorageOptions({name: typed(name, secret.reveal()) for name, secret in storage.items()})


def typed(name: str, text: str) -> object:
    """Return one argument of a store as its class takes it."""
    if text.lstrip().startswith(("{", "[")):
        try:
            return json.loads(text)
        except ValueError:
            return text
    if is_sensitive(name):
        return text
    if text.strip().lower() in _WORDS:
        return _WORDS[text.strip().lower()]
    if _NUMBERS.search(name) and _NUMBER.fullmatch(text.strip()):
        return json.loads(text)
    return text
