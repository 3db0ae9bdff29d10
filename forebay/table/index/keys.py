# SPDX-License-Identifier: Apache-2.0
"""Keys of objects as bytes that sort like the keys, and the shard of a key. Spark computes the same shard."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forebay.errors import ConfigurationError
from forebay.table.index.types import SparkType

_SIGN = 1 << 63


@dataclass(frozen=True)
class KeyCodec:
    """Encodes the keys of an object type.

    Args:
        columns: The type of each key column, in order.
    """

    columns: Mapping[str, SparkType]

    def values(self, key: object) -> tuple[Any, ...]:
        """Return the key that a user gives, as SQLite stores its columns.

        Args:
            key: The value of the key, or for several columns a tuple or a mapping of them.

        Raises:
            ConfigurationError: It is no key of the object type.
        """
        values: Sequence[object] = [key]
        if isinstance(key, Mapping):
            values = [key.get(name) for name in self.columns] if key.keys() == self.columns.keys() else []
        elif len(self.columns) > 1:
            values = list(key) if isinstance(key, tuple | list) else []
        if len(values) == len(self.columns) and not any(each is None for each in values):
            try:
                return tuple(kind.encode(each) for kind, each in zip(self.columns.values(), values, strict=True))
            except (TypeError, ValueError, ArithmeticError):
                pass
        shown = ", ".join(f"{name} {kind.text}" for name, kind in self.columns.items())
        raise ConfigurationError(
            f"{key!r:.200} is no key: the key is ({shown})",
            option="key",
            advice="give values of these types in Python, as 7 for a bigint, 'a' for a string, or a datetime with a "
            "time zone for a timestamp; for several columns a tuple of all of them",
        )

    def to_json(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Return a key, as SQLite stores it, as JSON."""
        return tuple(kind.to_json(kind.decode(each)) for kind, each in zip(self.columns.values(), values, strict=True))

    def of_json(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Return a key of JSON, as SQLite stores it; an error of Python if it is none."""
        if None in values:
            raise ValueError(f"a column of the key {values!r:.200} is NULL")
        return tuple(kind.encode(kind.of_json(each)) for kind, each in zip(self.columns.values(), values, strict=True))

    def encode(self, values: Sequence[Any]) -> bytes:
        """Return a key as bytes. Their order is that of the keys, column by column."""
        parts = [_part(kind, value) for kind, value in zip(self.columns.values(), values, strict=True)]
        return parts[0] if len(parts) == 1 else b"".join(_framed(part) for part in parts)

    def encoder(self) -> Callable[[Sequence[Any]], bytes]:
        """Return the fastest function that does what `encode` does."""
        kinds = [kind.name for kind in self.columns.values()]
        if kinds == ["bigint"]:
            return lambda values: (values[0] + _SIGN).to_bytes(8)
        if kinds == ["string"]:
            return lambda values: values[0].encode()
        return self.encode

    def hash(self, values: Sequence[Any]) -> int:
        """Return the hash of a key that decides its shard: the CRC-32 of its text."""
        kinds = self.columns.values()
        return zlib.crc32(b"\x01".join(_text(kind, value) for kind, value in zip(kinds, values, strict=True)))

    def hasher(self) -> Callable[[Sequence[Any]], int]:
        """Return the fastest function that does what `hash` does."""
        crc32 = zlib.crc32
        match [kind.name for kind in self.columns.values()]:
            case ["bigint"]:
                return lambda values: crc32(b"%d" % values[0])
            case ["string"]:
                return lambda values: crc32(values[0].encode())
        return self.hash

    def shown(self, values: Sequence[Any]) -> str:
        """Return a key as text for errors and commands."""
        pairs = zip(self.columns.items(), values, strict=True)
        return ", ".join(f"{name}={kind.decode(value)!r}" for (name, kind), value in pairs)


def _part(kind: SparkType, value: Any) -> bytes:  # noqa: ANN401 - as SQLite stores it
    if isinstance(value, int):
        return (value + _SIGN).to_bytes(8)
    return value.encode() if kind.name == "string" else bytes(value)


def _framed(part: bytes) -> bytes:
    """Return a part with an end that sorts before every continuation, so that parts can follow one another."""
    return part.replace(b"\x00", b"\x00\x01") + b"\x00\x00"


def _text(kind: SparkType, value: Any) -> bytes:  # noqa: ANN401 - as SQLite stores it
    """Return a column of a key as the text that Spark makes of it (`forebay.spark.index.rows`)."""
    if kind.name == "string":
        encoded: bytes = value.encode()
        return encoded
    if kind.name == "binary":
        return bytes(value).hex().upper().encode()
    if kind.name == "decimal":
        return format(kind.decode(value), "f").encode()
    return b"%d" % value
