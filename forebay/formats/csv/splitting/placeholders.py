# SPDX-License-Identifier: Apache-2.0
"""Replaces characters that are special to Arrow's CSV parser but not to Spark's, and restores them after parsing."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

# Unicode reserves these characters for use inside programs. One that occurs in the block is not used.
_CANDIDATES = [chr(code).encode() for code in range(0xFDD0, 0xFDF0)]


class NoPlaceholder(Exception):
    """Raised if a block contains all characters that could be placeholders."""


class Placeholders:
    """Replaces characters in one block by placeholders, and keeps the originals.

    Methods that replace characters raise `NoPlaceholder` if the block contains all possible placeholders.
    """

    def __init__(self) -> None:
        # placeholder → the original text in a token, the original text in a raw record
        self._originals: dict[bytes, tuple[bytes, bytes]] = {}
        self._avoided: bytes | bytearray = b""

    @property
    def used(self) -> bool:
        """Whether any character was replaced."""
        return bool(self._originals)

    @property
    def marks(self) -> Iterable[bytes]:
        """The placeholders that stand in the block, in UTF-8."""
        return self._originals

    def avoid(self, data: bytes | bytearray) -> None:
        """Exclude the characters that occur in `data` from use as placeholders.

        Call this with the whole block before the other methods if they get only parts of the block.
        """
        self._avoided = data

    def hide(self, data: bytes | bytearray, original: bytes) -> bytes | bytearray:
        """Return `data` with a placeholder instead of each `original`."""
        if original not in data:
            return data
        return data.replace(original, self._new(data, original, original))

    def hide_escapes(self, data: bytes | bytearray, escape: str, quote: str) -> bytes | bytearray:
        """Return `data` with placeholders instead of escaped escape characters and escaped quotes."""
        for escaped in (escape, quote):
            pair = (escape + escaped).encode()
            if pair in data:
                data = data.replace(pair, self._new(data, escaped.encode(), pair))
        return data

    def hide_stray_quotes(self, data: bytes | bytearray, starts: re.Pattern[bytes], sep: str, quote: str) -> bytes:
        """In each field with a stray quote, replace the opening quote and the separators before the stray quote.

        Return `data` with the placeholders. The first group of `starts` matches the text between the two quotes.
        """
        sep_byte, quote_byte = sep.encode(), quote.encode()
        opening = self._new(data, quote_byte, quote_byte)
        inner = self._new(data, sep_byte, sep_byte)
        pair = quote_byte * 2
        return starts.sub(lambda found: opening + found[1].replace(sep_byte, inner) + pair, data)

    def restored(self, tokens: pa.Array) -> pa.Array:
        """Return the tokens with the original characters instead of the placeholders.

        Escaped characters lose their escape.
        """
        for placeholder, (original, _) in self._originals.items():
            tokens = pc.replace_substring(tokens, placeholder.decode(), original.decode())
        return tokens

    def restored_text(self, text: str) -> str:
        """Return the text of a record with its original characters and escapes instead of the placeholders."""
        for placeholder, (_, original) in self._originals.items():
            text = text.replace(placeholder.decode(), original.decode())
        return text

    def _new(self, data: bytes | bytearray, original: bytes, raw: bytes) -> bytes:
        for candidate in _CANDIDATES:
            if candidate not in self._originals and candidate not in data and candidate not in self._avoided:
                self._originals[candidate] = (original, raw)
                return candidate
        raise NoPlaceholder
