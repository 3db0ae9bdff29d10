# SPDX-License-Identifier: Apache-2.0
"""Parses schemas from text: Spark's SQL (`id BIGINT, tags ARRAY<STRING>`), or the JSON of `StructType.json()`."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from forebay.errors import ConfigurationError, DataError
from forebay.formats.values.columns import folded

_TIMESTAMP = pa.timestamp("us", "UTC")
TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    **dict.fromkeys(("byte", "tinyint"), pa.int8()),
    **dict.fromkeys(("short", "smallint"), pa.int16()),
    **dict.fromkeys(("integer", "int"), pa.int32()),
    **dict.fromkeys(("long", "bigint"), pa.int64()),
    **dict.fromkeys(("real", "float"), pa.float32()),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    **dict.fromkeys(("timestamp_ltz", "timestamp"), _TIMESTAMP),
    "timestamp_ntz": pa.timestamp("us"),
}
"""The types by their names in Spark's SQL and JSON. If a type has several names, the usual name comes last."""

_DECIMALS = ("decimal", "dec", "numeric")
_NAMES = {kind: name.upper() for name, kind in TYPES.items()}
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<quoted>`(?:[^`]|``)+`) | (?P<word>[A-Za-z0-9_]+) | (?P<mark>[<>(),:])
        | (?P<text>'(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*")
    )""",
    re.VERBOSE,
)
_DECIMAL_TEXT = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")
_MAX_PRECISION = 38
_DEEPEST = 100


class SchemaError(ValueError):
    """Raised for a text that is not a schema; the message says why."""


def parse_schema(text: str, option: str) -> pa.Schema:
    """Parse the text of a schema. All fields are nullable, as in Spark's `from_json`.

    Args:
        text: Columns with types in Spark's SQL, also inside `STRUCT<…>`, or a `StructType` as JSON.
        option: The name of the option, for errors.

    Raises:
        ConfigurationError: The text is not a schema, or has an unknown type.
    """
    try:
        parsed = type_of_json(json.loads(text), _known) if text.lstrip().startswith("{") else _Parser(text).schema()
        return pa.schema(list(_struct(parsed)))
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"the option {option} does not contain a valid schema: {error}",
            option=option,
            advice="write the schema as for Spark's from_json, such as 'id BIGINT, tags ARRAY<STRING>', "
            "or give a StructType by its .json()",
        ) from None


def type_text(data_type: pa.DataType) -> str:
    """Return the name of a type in Spark's SQL, or Arrow's name if Spark has no such type."""
    if isinstance(data_type, pa.StructType):
        return f"STRUCT<{', '.join(f'{_name_text(field.name)}: {type_text(field.type)}' for field in data_type)}>"
    if isinstance(data_type, pa.MapType):
        return f"MAP<{type_text(data_type.key_type)}, {type_text(data_type.item_type)}>"
    if isinstance(data_type, pa.ListType):
        return f"ARRAY<{type_text(data_type.value_type)}>"
    if isinstance(data_type, pa.Decimal128Type):
        return f"DECIMAL({data_type.precision},{data_type.scale})"
    return _NAMES.get(data_type, str(data_type))


class _Parser:
    """Parses the columns of a table in Spark's SQL."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        self._at = 0
        self._depth = 0
        at = 0
        end = len(text.rstrip())
        while at < end:
            match = _TOKEN.match(text, at)
            if match is None:
                raise SchemaError(f"{text[at:].strip()[:20]!r} is not valid; put special names in `backquotes`")
            self._tokens.append((match.lastgroup or "", match[match.lastgroup or 0]))
            at = match.end()

    def schema(self) -> pa.DataType:
        whole = [token[1].lower() for token in self._tokens[:2]] == ["struct", "<"]
        data_type = self._type() if whole else pa.struct(self._fields(""))
        if self._at < len(self._tokens):
            raise self._unexpected()
        return data_type

    def _fields(self, closing: str) -> list[pa.Field]:
        fields: list[pa.Field] = []
        if closing and self._take(closing):
            return fields
        while True:
            name = self._name()
            self._take(":")
            fields.append(pa.field(name, self._type()))
            if self._take("not"):
                self._demand("null")
            if self._take("comment"):
                self._text()
            if not self._take(","):
                break
        if closing:
            self._demand(closing)
        return _checked(fields)

    def _type(self) -> pa.DataType:
        name = self._next("word")[1].lower()
        self._depth += 1
        if self._depth > _DEEPEST:
            raise SchemaError(f"the types are nested to more than {_DEEPEST} levels")
        data_type = self._nested(name) if name in ("array", "map", "struct") else self._simple(name)
        self._depth -= 1
        return data_type

    def _nested(self, name: str) -> pa.DataType:
        self._demand("<")
        if name == "struct":
            return pa.struct(self._fields(">"))
        first = self._type()
        if name == "array":
            self._demand(">")
            return _list(first)
        self._demand(",")
        second = self._type()
        self._demand(">")
        return pa.map_(first, second)

    def _simple(self, name: str) -> pa.DataType:
        if name not in _DECIMALS:
            return _known(name)
        numbers = ["10", "0"]
        if self._take("("):
            numbers = [self._next()[1], "0"]
            if self._take(","):
                numbers[1] = self._next()[1]
            self._demand(")")
        if not all(number.isdecimal() for number in numbers):
            raise SchemaError(f"{name}({', '.join(numbers)}) is not a valid type: precision and scale must be numbers")
        return _decimal(int(numbers[0]), int(numbers[1]))

    def _name(self) -> str:
        kind, word = self._next("quoted", "word")
        return word[1:-1].replace("``", "`") if kind == "quoted" else word

    def _text(self) -> None:
        self._next("text")
        while self._at < len(self._tokens) and self._tokens[self._at][0] == "text":
            self._at += 1  # adjacent texts count as one text

    def _next(self, *kinds: str) -> tuple[str, str]:
        """Return the next token. `kinds` are the accepted kinds of tokens.

        Raises:
            SchemaError: The next token is of another kind.
        """
        if self._at >= len(self._tokens) or (kinds and self._tokens[self._at][0] not in kinds):
            raise self._unexpected()
        self._at += 1
        return self._tokens[self._at - 1]

    def _take(self, word: str) -> bool:
        """Skip a word or mark if it comes next; return whether it did."""
        there = self._at < len(self._tokens) and self._tokens[self._at][0] in ("word", "mark")
        if there and self._tokens[self._at][1].lower() == word:
            self._at += 1
            return True
        return False

    def _demand(self, word: str) -> None:
        if not self._take(word):
            raise self._unexpected(f", where {word.upper()!r} is required")

    def _unexpected(self, hint: str = "") -> SchemaError:
        if self._at >= len(self._tokens):
            return SchemaError(f"the schema ends before it is complete{hint}")
        return SchemaError(f"the schema has an unexpected {self._tokens[self._at][1]!r}{hint}")


def type_of_json(json_type: Any, named: Callable[[str], pa.DataType]) -> pa.DataType:  # noqa: ANN401 - a part of a JSON text
    """Return the Arrow type for a type in Spark's JSON; all its fields are nullable.

    Args:
        json_type: The type, as parsed JSON.
        named: A function that returns the type with a given name.

    Raises:
        SchemaError: `json_type` is not a type.
    """
    if isinstance(json_type, str):
        match = _DECIMAL_TEXT.fullmatch(json_type)
        return _decimal(int(match[1]), int(match[2])) if match else named(json_type)
    kind = json_type.get("type") if isinstance(json_type, dict) else None
    try:
        match kind:
            case "struct":
                fields = [
                    pa.field(str(field["name"]), type_of_json(field["type"], named)) for field in json_type["fields"]
                ]
                return pa.struct(_checked(fields))
            case "array":
                return _list(type_of_json(json_type["elementType"], named))
            case "map":
                return pa.map_(type_of_json(json_type["keyType"], named), type_of_json(json_type["valueType"], named))
    except KeyError as error:
        raise SchemaError(f"the key {error} is missing in its JSON") from None
    except TypeError:
        raise SchemaError(
            f'its JSON contains {json.dumps(json_type)[:40]}, where "fields" must be a list of objects'
        ) from None
    raise SchemaError(f"its JSON contains {json.dumps(json_type)[:40]} where a type is required")


def _known(name: str) -> pa.DataType:
    if name not in TYPES:
        raise SchemaError(f"the type {name!r} is not known; known types are {', '.join(sorted({*TYPES, 'decimal'}))}")
    return TYPES[name]


def _decimal(precision: int, scale: int) -> pa.DataType:
    if not 1 <= precision <= _MAX_PRECISION or not 0 <= scale <= precision:
        raise SchemaError(
            f"DECIMAL({precision},{scale}) is not valid: the precision must be from 1 to {_MAX_PRECISION}, "
            "and the scale from 0 to the precision"
        )
    return pa.decimal128(precision, scale)


def _struct(data_type: pa.DataType) -> pa.StructType:
    if not isinstance(data_type, pa.StructType) or not data_type.num_fields:
        raise SchemaError(f"{type_text(data_type)} is a type, not a list of columns")
    return data_type


def _list(element: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", element))


def _checked(fields: list[pa.Field]) -> list[pa.Field]:
    twice = [name for name, count in Counter(field.name for field in fields).items() if count > 1]
    if twice:
        raise SchemaError(f"the schema has the field {twice[0]!r} twice")
    return fields


def _name_text(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_]+", name, re.ASCII) else f"`{name.replace('`', '``')}`"


# -- Finds Spark's types by the names that Spark writes into files, and merges the schemas of files.


_DAY_TIME = re.compile(r"interval (day|hour|minute|second)( to (hour|minute|second))?")


class NoArrowForm(Exception):
    """Raised if Arrow lacks a type of Spark. The text of the exception is Spark's name of the type."""


def named_type(name: str) -> pa.DataType:
    """Return the type of a name that Spark wrote into a file; raise NoArrowForm if Arrow has no such type."""
    if name in TYPES:
        return TYPES[name]
    if name == "void":
        return pa.null()
    if name.startswith(("string collate", "char(", "varchar(")):
        return pa.string()
    if _DAY_TIME.fullmatch(name):
        return pa.duration("us")
    raise NoArrowForm(name)


def merged(left: pa.Schema, right: pa.Schema, path: str, case_sensitive: bool) -> pa.Schema:
    """Merge the fields of two schemas by name, as Spark does with `mergeSchema`.

    Raises:
        DataError: A field has different types, other than decimals of the same scale.
    """
    return pa.schema(_merged_fields(list(left), list(right), path, case_sensitive))


def _merged_fields(left: list[pa.Field], right: list[pa.Field], path: str, case_sensitive: bool) -> list[pa.Field]:
    by_name = {folded(field.name, case_sensitive): field for field in right}
    fields = []
    for field in left:
        other = by_name.pop(folded(field.name, case_sensitive), None)
        if other is None:
            fields.append(field)
        else:
            fields.append(field.with_type(_merged_type(field.type, other.type, path, field.name, case_sensitive)))
    return fields + list(by_name.values())


def _merged_type(left: pa.DataType, right: pa.DataType, path: str, name: str, case_sensitive: bool) -> pa.DataType:
    if isinstance(left, pa.StructType) and isinstance(right, pa.StructType):
        return pa.struct(_merged_fields(list(left), list(right), path, case_sensitive))
    if isinstance(left, pa.ListType) and isinstance(right, pa.ListType):
        inside = _merged_type(left.value_type, right.value_type, path, name, case_sensitive)
        return pa.list_(pa.field("element", inside))
    if isinstance(left, pa.MapType) and isinstance(right, pa.MapType):
        key = _merged_type(left.key_type, right.key_type, path, name, case_sensitive)
        return pa.map_(key, _merged_type(left.item_type, right.item_type, path, name, case_sensitive))
    if isinstance(left, pa.Decimal128Type) and isinstance(right, pa.Decimal128Type) and left.scale == right.scale:
        return left if left.precision >= right.precision else right
    if left == right:
        return left
    raise DataError(
        f"column {name!r} is {right} in {path} but {left} in files before it: these types cannot be merged",
        advice="give a schema, or exclude one kind of files with pathGlobFilter",
    )
