# SPDX-License-Identifier: Apache-2.0
"""The credentials and settings of a store, which are sent to readers and never shown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Self

from forebay.options.secret import Secret, is_sensitive

_MIN_SECRET_LENGTH = 4
# Addresses are not secret, and an error of a connection needs them.
_ADDRESSES = frozenset({"endpoint", "endpoint_url", "region", "region_name", "host", "port", "project", "account_name"})

# Words in the names of numeric arguments. Digits elsewhere are a name or a credential.
_NUMBERS = re.compile(
    r"(?:^|_)(?:blocksize|concurrency|connections|count|expiry|level|limit|max|paths|port|retries|retry|seconds|size|"
    r"time|timeout|tries|ttl|workers)(?:_|$)",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?", re.ASCII)
_WORDS = {"true": True, "false": False}


class StorageOptions(Mapping[str, object]):
    """Keyword arguments for a store (`key`, `secret`, `endpoint_url` …), read-only and picklable.

    Any value, also in a nested mapping, may be a secret. So `repr` shows only the names.
    """

    def __init__(self, values: Mapping[str, object] | None = None) -> None:
        self._values: dict[str, object] = dict(values or {})

    @classmethod
    def of_secrets(cls, values: Mapping[str, Secret]) -> Self:
        """Return the storage options of a source. References to secrets are sent unresolved, and resolved on access."""
        return cls(values)

    def __getitem__(self, name: str) -> object:
        value = self._values[name]
        return typed_argument(name, value.reveal()) if isinstance(value, Secret) else value

    def unresolved(self, name: str) -> object:
        """Return the value of an option as the user gave it: a `Secret`, or a typed value."""
        return self._values[name]

    def without(self, prefix: str) -> StorageOptions:
        """Return the options whose names do not begin with a prefix."""
        return StorageOptions({name: value for name, value in self._values.items() if not name.startswith(prefix)})

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"StorageOptions({', '.join(f'{name}=…' for name in sorted(self._values))})"

    def __hash__(self) -> int:
        return hash(tuple(sorted(self._values)))

    def redact(self, text: str) -> str:
        """Return the error text of another library, with the values of these options replaced, except addresses."""
        for secret in sorted(_secrets(dict(self)), key=len, reverse=True):
            text = text.replace(secret, "…")
        return text


def typed_argument(name: str, text: str) -> object:
    """Return the typed value of a store's argument: parsed JSON or, for names that are not secret, a bool or a number.

    Digits become a number only for names of numeric options. Any other value stays text, also with leading zeros.
    """
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


NO_OPTIONS = StorageOptions()


def _secrets(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            if name not in _ADDRESSES:
                yield from _secrets(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _secrets(item)
    elif isinstance(value, str | int | float) and len(str(value)) >= _MIN_SECRET_LENGTH:
        yield str(value)
