# SPDX-License-Identifier: Apache-2.0
"""Reads one record as Spark's JacksonParser (4.2.0) does, malformed ones included: the same steps on the same tokens.

It is slow. `quick` reads well-formed records faster and leaves the others to this module.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from forebay.formats.encodings import valid_utf8
from forebay.formats.json.options import JsonOptions
from forebay.formats.json.text import BadValue, Malformed, utf8_of
from forebay.formats.json.tokens import (
    END_ARRAY,
    END_OBJECT,
    FALSE,
    FIELD_NAME,
    FLOAT,
    INT,
    NULL,
    START_ARRAY,
    START_OBJECT,
    STRING,
    TRUE,
    Tokens,
)
from forebay.formats.json.values import Scalar, scalar


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a record: its rows, and whether it is malformed. A malformed one without any is a row of nulls."""

    rows: list[list[Any]]
    bad: bool = False


class _Partial(Exception):
    """A struct, list or map of which only parts could be read."""

    def __init__(self, value: list[Any]) -> None:
        super().__init__()
        self.value = value


class ExactReader:
    """Reads records of one schema.

    Args:
        fields: The columns to read.
        options: How to read.
        embedded: Records are texts in a column, as Spark's from_json takes them: nobody guesses their encoding, and an
            array is not several records, but a malformed one.
    """

    def __init__(self, fields: list[pa.Field], options: JsonOptions, *, embedded: bool = False) -> None:
        self._options = options
        self._embedded = embedded
        self._root = _Struct(pa.struct(fields), options)

    def read(self, record: bytes) -> Outcome:
        """Read a record; its rows are lists of values as `build` takes them."""
        kind: int | None = None
        try:
            tokens = Tokens(record if self._embedded else as_utf8(record), self._options)
            kind = tokens.next()
            if kind is None:
                return Outcome([])
            if kind == START_OBJECT:
                return Outcome([self._root.object(tokens)])
            if kind == START_ARRAY and not self._embedded:
                return Outcome(_List(self._root).array(tokens, root=True))
        except _Partial as partial:
            return Outcome(partial.value if kind == START_ARRAY else [partial.value], bad=True)
        except (Malformed, BadValue):
            pass
        return Outcome([], bad=True)


def as_utf8(record: bytes) -> bytes:
    """The record as Jackson would guess its encoding: without a mark; UTF-16 if there are zeros where it has them."""
    if record.startswith(b"\xef\xbb\xbf"):
        return record[3:]
    if len(record) >= 2:
        if record.startswith((b"\xfe\xff", b"\xff\xfe")):
            return record.decode("utf-16", "replace").encode()
        if not record[0] or not record[1]:
            return record.decode("utf-16-be" if not record[0] else "utf-16-le", "replace").encode()
    return record


class _Reader(ABC):
    """Reads a value of one type at the current token."""

    def convert(self, tokens: Tokens) -> Any:  # noqa: ANN401 - a value of any type
        """Read the value; a field's name is stepped over, null is null for every type."""
        while tokens.kind == FIELD_NAME:
            tokens.next()
        if tokens.kind is None or tokens.kind == NULL:
            return None
        return self.value(tokens)

    @abstractmethod
    def value(self, tokens: Tokens) -> Any:  # noqa: ANN401 - a value of any type
        """Read a value that is not null."""


class _Scalar(_Reader):
    def __init__(self, parse: Scalar, *, base64: bool) -> None:
        self._parse = parse
        self._base64 = base64

    def value(self, tokens: Tokens) -> Any:  # noqa: ANN401 - a value of any type
        kind = tokens.kind
        if kind == STRING:
            if self._base64 and tokens.unread:
                return tokens.base64()
            return self._parse(STRING, tokens.text())
        if kind in (INT, FLOAT):
            return self._parse(kind, tokens.text())
        if kind in (TRUE, FALSE):
            return self._parse(kind, "")
        raise BadValue


class _Text(_Reader):
    def value(self, tokens: Tokens) -> bytes:
        if tokens.kind == STRING:
            return utf8_of(tokens.text())
        start = tokens.start
        tokens.skip_children()
        return bytes(valid_utf8(tokens.since(start)))  # only in strings of its own does the parser look at bytes


class _Nothing(_Reader):
    def value(self, tokens: Tokens) -> None:
        """Whatever it is, it is null."""


class _Struct(_Reader):
    def __init__(self, data_type: pa.StructType, options: JsonOptions) -> None:
        self._places = {field.name: place for place, field in enumerate(data_type)}
        self._readers = [_reader(field.type, options) for field in data_type]

    def value(self, tokens: Tokens) -> list[Any]:
        if tokens.kind != START_OBJECT:
            raise _misfit(tokens)
        return self.object(tokens)

    def object(self, tokens: Tokens) -> list[Any]:
        row: list[Any] = [None] * len(self._readers)
        bad = False
        while tokens.next() not in (None, END_OBJECT):
            place = self._places.get(tokens.current_name() or "") if tokens.current_name() is not None else None
            if place is None:
                tokens.skip_children()
                continue
            try:
                row[place] = self._readers[place].convert(tokens)
            except _Partial as partial:
                row[place], bad = partial.value, True
            except (Malformed, BadValue):
                bad = True
                tokens.skip_children()
        if bad:
            raise _Partial(row)
        return row


class _List(_Reader):
    def __init__(self, element: _Reader) -> None:
        self._element = element

    def value(self, tokens: Tokens) -> list[Any]:
        if tokens.kind != START_ARRAY:
            raise _misfit(tokens)
        return self.array(tokens)

    def array(self, tokens: Tokens, *, root: bool = False) -> list[Any]:
        values: list[Any] = []
        bad = False
        while tokens.next() not in (None, END_ARRAY):
            try:
                value = self._element.convert(tokens)
            except _Partial as partial:
                value, bad = partial.value, True
            if root and value is None:
                raise BadValue
            values.append(value)
        if bad:
            raise _Partial(values)
        return values


class _Map(_Reader):
    def __init__(self, item: _Reader) -> None:
        self._item = item

    def value(self, tokens: Tokens) -> list[tuple[bytes, Any]]:
        if tokens.kind != START_OBJECT:
            raise _misfit(tokens)
        pairs: list[tuple[bytes, Any]] = []
        bad = lost = False
        while tokens.next() not in (None, END_OBJECT):
            key = utf8_of(tokens.current_name() or "")
            try:
                pairs.append((key, self._item.convert(tokens)))
            except _Partial as partial:
                pairs.append((key, partial.value))
                bad = True
            except (Malformed, BadValue):
                lost = True
                tokens.skip_children()
        if lost:
            raise BadValue
        if bad:
            raise _Partial(pairs)
        return pairs


def _misfit(tokens: Tokens) -> BadValue:
    """The error of a token of another kind. Spark looks at the text of a string first, which may be malformed."""
    if tokens.kind == STRING:
        tokens.text()
    return BadValue()


def _reader(data_type: pa.DataType, options: JsonOptions) -> _Reader:
    if isinstance(data_type, pa.StructType):
        return _Struct(data_type, options)
    if isinstance(data_type, pa.ListType):
        return _List(_reader(data_type.value_type, options))
    if isinstance(data_type, pa.MapType):
        return _Map(_reader(data_type.item_type, options))
    if pa.types.is_string(data_type):
        return _Text()
    parse = scalar(data_type, options)
    return _Nothing() if parse is None else _Scalar(parse, base64=pa.types.is_binary(data_type))
