# SPDX-License-Identifier: Apache-2.0
"""Credentials and settings of a store, which travel to readers and are never shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

_MIN_SECRET_LENGTH = 4
# Addresses are not secret, and an error of a connection needs them.
_ADDRESSES = frozenset({"endpoint", "endpoint_url", "region", "region_name", "host", "port", "project", "account_name"})


class StorageOptions(Mapping[str, object]):
    """Keyword arguments for a store (`key`, `secret`, `endpoint_url` …), read-only and picklable.

    Values, also those of nested mappings, may be secret, so `repr` shows only the names.
    """

    def __init__(self, values: Mapping[str, object] | None = None) -> None:
        self._values: dict[str, object] = dict(values or {})

    def __getitem__(self, name: str) -> object:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"StorageOptions({', '.join(f'{name}=…' for name in sorted(self._values))})"

    def __hash__(self) -> int:
        return hash(tuple(sorted(self._values)))

    def redact(self, text: str) -> str:
        """Return the error text of another library without these values, except addresses."""
        for secret in sorted(_secrets(self._values), key=len, reverse=True):
            text = text.replace(secret, "…")
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
