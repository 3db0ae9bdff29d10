# SPDX-License-Identifier: Apache-2.0
"""The form of a JSON line: the names and their order, which other lines may share."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, TypeAlias

from forebay.formats.json.jackson_tokens import MAX_NAME_BYTES
from forebay.formats.json.stdlib_reader import refuse_constant, unique_names

_MAX_PIECES = 2000  # an object with the nesting depth that Jackson refuses has more
_PRIMITIVE = re.compile(r"(true|false|null|-?[0-9][0-9.eE+-]*)")

Tree: TypeAlias = dict[str, Any]
"""Maps each name of an object to the piece of its value, or to the tree of an inner object."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The text between two quotes of a line, if it is or contains a value.

    For a value other than a string, `before` and `after` are the constant texts around it.
    """

    index: int
    quoted: bool
    before: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class Template:
    """The form of a line: which of the texts between its quotes are values, and which are constant."""

    tree: Tree
    values: list[Piece]
    constants: dict[int, str]
    """Maps the index of each piece without a value to its text."""

    @property
    def size(self) -> int:
        """The number of texts between the quotes of a line."""
        return len(self.values) + len(self.constants)

    def gaps(self) -> list[str]:
        """Return the constant texts before the first value, between consecutive values, and after the last value."""
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


def template_of(line: bytes) -> Template | None:
    """Return the form of a line in UTF-8; None unless the line is an object of primitive values and such objects."""
    if b"\\" in line or b"[" in line:
        return None
    pieces = line.split(b'"')
    if not 3 <= len(pieces) <= _MAX_PIECES or max(map(len, pieces)) > MAX_NAME_BYTES:
        return None
    try:
        root = json.loads(line.decode(), parse_constant=refuse_constant, object_pairs_hook=unique_names)
        return _described(root, [piece.decode() for piece in pieces]) if isinstance(root, dict) else None
    except (ValueError, RecursionError):
        return None


def _described(root: dict[str, Any], pieces: list[str]) -> Template:
    """Return the form of a parsed line.

    `pieces` are the texts between its quotes; names and strings have odd indexes.
    """
    constants = dict(enumerate(pieces))
    values: list[Piece] = []
    strings = iter(range(1, len(pieces), 2))

    def tree_of(fields: dict[str, Any]) -> Tree:
        tree: Tree = {}
        for name, value in fields.items():
            index = next(strings)
            if isinstance(value, dict):
                tree[name] = tree_of(value)
                continue
            if isinstance(value, str):
                piece = Piece(next(strings), quoted=True)
            else:
                before, _, after = _PRIMITIVE.split(pieces[index + 1], maxsplit=1)
                piece = Piece(index + 1, False, before, after)
            del constants[piece.index]
            values.append(piece)
            tree[name] = piece
        return tree

    return Template(tree_of(root), values, constants)
