# SPDX-License-Identifier: Apache-2.0
"""Credentials and settings of a store, which travel to readers but are never shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_SHORTEST_SECRET = 4
# Values that say where, not who: an error about a connection is of no use without them.
_PLACES = frozenset({"endpoint", "endpoint_url", "region", "region_name", "host", "port", "project", "account_name"})


class StorageOptions(Mapping[str, object]):
    """Keyword arguments for a store (`key`, `secret`, `endpoint_url` …), read-only and picklable.

    Made from the source's options; handed to listings and kept by `StoredFile`. Its text shows names only: any of the
    values may be a secret.

    Args:
        values: The arguments as fsspec's class for the URL's scheme takes them. Values may be nested mappings.
    """

    __slots__ = ("_values",)

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

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StorageOptions) and self._values == other._values

    def __hash__(self) -> int:
        return hash(tuple(sorted(self._values)))

    def __reduce__(self) -> tuple[type[StorageOptions], tuple[dict[str, Any]]]:
        return (StorageOptions, (self._values,))

    def redact(self, text: str) -> str:
        """The text with every value of these options replaced, but for addresses: for messages of foreign libraries."""
        for secret in sorted(_texts(self._values), key=len, reverse=True):
            text = text.replace(secret, "…")
        return text


NO_OPTIONS = StorageOptions()


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            if name not in _PLACES:
                yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, str | int | float) and len(str(value)) >= _SHORTEST_SECRET:
        yield str(value)
