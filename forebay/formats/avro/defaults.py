# SPDX-License-Identifier: Apache-2.0
"""Converts default values in the reader's schema from JSON to values as `Decoder` stores them in Arrow."""

from __future__ import annotations

from forebay.errors import ConfigurationError
from forebay.formats.avro.schema import Node

_LIMITS = {"int": 1 << 31, "long": 1 << 63}


def stored_default(node: Node, value: object, column: str) -> object:
    """Return the default of a field as `Decoder` stores values of the field's type in Arrow.

    Args:
        node: The type of the field.
        value: The default as parsed JSON.
        column: The path of the field, for errors.

    Raises:
        ConfigurationError: The default does not have the type of the field.
    """
    match node.kind:
        case "array" if isinstance(value, list):
            return [stored_default(node.children[0], one, f"{column}.element") for one in value]
        case "map" if isinstance(value, dict):
            item = node.children[0]
            return [{"key": key, "value": stored_default(item, one, f"{column}.value")} for key, one in value.items()]
        case "record" if isinstance(value, dict):
            return _record(node, value, column)
        case "union":
            return _union(node, value, column)
        case "enum" if value in node.symbols:
            return node.symbols.index(str(value))
    if not _is_primitive(node, value):
        raise _mismatch(node, value, column)
    if isinstance(value, bool):
        return -int(value)  # the decoder stores true as -1
    if isinstance(value, str) and node.kind != "string":
        return value.encode("latin-1")
    return value


def _is_primitive(node: Node, value: object) -> bool:
    """Return whether a JSON value is a valid default of `node`, if that is a primitive type or a fixed."""
    match value:
        case None:
            return node.kind == "null"
        case bool():
            return node.kind == "boolean"
        case int() if node.kind in _LIMITS:
            return -_LIMITS[node.kind] <= value < _LIMITS[node.kind]
        case int() | float():
            return node.kind in ("float", "double")
        case str() if node.kind in ("bytes", "fixed"):  # a character is a byte
            return all(ord(one) < 256 for one in value) and (node.kind == "bytes" or len(value) == node.size)
    return isinstance(value, str) and node.kind == "string"


def _mismatch(node: Node, value: object, column: str) -> ConfigurationError:
    return ConfigurationError(
        f"in avroSchema, the default {value!r} of the field {column!r} is not a value of the type {node}",
        option="avroSchema",
        advice=f"in avroSchema, give the field a default of the type {node}",
    )


def _record(node: Node, value: dict[str, object], column: str) -> object:
    given = {**node.defaults, **value}
    missing = [name for name in node.names if name not in given]
    if missing:
        raise ConfigurationError(
            f"in avroSchema, the default of the field {column!r} lacks the inner field {missing[0]!r}, "
            "which has no default of its own",
            option="avroSchema",
            advice=f"in avroSchema, add {missing[0]!r} to the default of {column!r}",
        )
    pairs = zip(node.names, node.children, strict=True)
    return {f"f{at}": stored_default(child, given[name], f"{column}.{name}") for at, (name, child) in enumerate(pairs)}


def _union(node: Node, value: object, column: str) -> object:
    """Return the default as a value of the first branch of the union for which it is valid."""
    if value is None and any(child.kind == "null" for child in node.children):
        return None
    branches = node.branches
    for at, branch in enumerate(branches):
        try:
            found = stored_default(branch, value, column)
        except ConfigurationError:
            if at + 1 == len(branches):
                raise
            continue
        return found if len(branches) == 1 else {f"m{at}": found}
    raise _mismatch(node, value, column)
