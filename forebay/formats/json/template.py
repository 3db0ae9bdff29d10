# SPDX-License-Identifier: Apache-2.0
"""The form of a line of JSON, which other lines may share: the same names in the same order."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from forebay.formats.json.scan import MAX_NAME_BYTES

_MAX_PIECES = 2000  # fewer than the deepest object that Jackson takes has
_PRIMITIVE = re.compile(rb"true|false|null|-?[0-9][0-9.eE+-]*")
_SYMBOL = re.compile(rb"[ \t]*(?:([{}:,])|" + _PRIMITIVE.pattern + rb")[ \t]*")

Tree: TypeAlias = dict[str, Any]
"""Name → a value's piece, or the tree of an object."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Where a value is: which piece of a line, and for a value that is no string what stands before and after it."""

    index: int
    quoted: bool
    before: str = ""
    after: str = ""


@dataclass(slots=True)
class Template:
    """The form of a line."""

    size: int
    constants: dict[int, str] = field(default_factory=dict)
    values: list[Piece] = field(default_factory=list)
    tree: Tree = field(default_factory=dict)

    def gaps(self) -> list[str]:
        """What stands before the first value of a line, between one and the next, and behind the last."""
        values = {piece.index: piece for piece in self.values}
        gaps = [""]
        for index in range(self.size):
            gaps[-1] += '"' if index else ""
            piece = values.get(index)
            if piece is None:
                gaps[-1] += self.constants[index]
            else:
                gaps[-1] += piece.before
                gaps.append(piece.after)
        return gaps


class _NoTemplate(Exception):
    """A line has no form that others could share: arrays, escapes, a name twice."""


def template_of(line: bytes) -> Template | None:
    """The form of a line, if it is an object of strings, numbers and such objects."""
    if b"\\" in line or b"[" in line:
        return None
    pieces = line.split(b'"')
    if not 3 <= len(pieces) <= _MAX_PIECES or max(map(len, pieces)) > MAX_NAME_BYTES:
        return None
    try:
        json.loads(line, parse_constant=_refuse, object_pairs_hook=_unique)
        return _Parser(pieces).template()
    except (_NoTemplate, ValueError, StopIteration, RecursionError):
        return None


def _refuse(text: str) -> None:
    raise ValueError(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _NoTemplate
    return found


class _Parser:
    """Walks over the pieces of a well-formed line."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces
        self._template = Template(len(pieces))
        self._symbols = self._scan()

    def template(self) -> Template:
        symbol, _ = next(self._symbols)
        if symbol != "{":
            raise _NoTemplate
        self._template.tree = self._object()
        return self._template

    def _scan(self) -> Iterator[tuple[str, Piece | None]]:
        """Symbols, strings (as `"`) and other values (as `0`), the last two with their pieces."""
        for index, piece in enumerate(self._pieces):
            if index % 2:
                yield '"', Piece(index, quoted=True)
                continue
            found = _PRIMITIVE.search(piece)
            value = None
            if found is not None:
                value = Piece(index, False, piece[: found.start()].decode(), piece[found.end() :].decode())
            else:
                self._template.constants[index] = piece.decode()
            at = 0
            while at < len(piece):
                symbol = _SYMBOL.match(piece, at)
                if symbol is None:
                    raise _NoTemplate
                at = symbol.end()
                if symbol[1] is not None:
                    yield symbol[1].decode(), None
                else:
                    yield "0", value

    def _object(self) -> Tree:
        tree: Tree = {}
        while True:
            symbol, piece = next(self._symbols)
            if symbol == "}":
                return tree
            if symbol == ",":
                continue
            if symbol != '"' or piece is None:
                raise _NoTemplate
            name = self._pieces[piece.index].decode()
            self._template.constants[piece.index] = name
            if next(self._symbols)[0] != ":":
                raise _NoTemplate
            tree[name] = self._value()

    def _value(self) -> Piece | Tree:
        symbol, piece = next(self._symbols)
        if symbol == "{":
            return self._object()
        if piece is None:
            raise _NoTemplate
        self._template.values.append(piece)
        return piece
