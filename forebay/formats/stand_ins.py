# SPDX-License-Identifier: Apache-2.0
"""Characters that stand in for others while Arrow splits a block, because Arrow would take those for something else."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

# Unicode reserves these for use inside programs; should a file have one all the same, another one is taken.
_CANDIDATES = [chr(code).encode() for code in range(0xFDD0, 0xFDF0)]


class StandIns:
    """The stand-ins of one block."""

    def __init__(self) -> None:
        # stand-in → what a token gets back, what a raw record gets back
        self._originals: dict[bytes, tuple[bytes, bytes]] = {}
        self._avoided: bytes | bytearray = b""

    @property
    def used(self) -> bool:
        """Whether there is anything to restore."""
        return bool(self._originals)

    def avoid(self, data: bytes | bytearray) -> None:
        """Take no stand-in that is in this data: the whole block, where the methods below see only a part of it."""
        self._avoided = data

    def hide(self, data: bytes | bytearray, original: bytes) -> bytes | bytearray:
        """Put a stand-in in the place of a byte sequence."""
        if original not in data:
            return data
        return data.replace(original, self._new(data, original, original))

    def hide_escapes(self, data: bytes | bytearray, escape: str, quote: str) -> bytes | bytearray:
        """Put stand-ins in the place of an escaped escape character and of an escaped quote."""
        for escaped in (escape, quote):
            pair = (escape + escaped).encode()
            if pair in data:
                data = data.replace(pair, self._new(data, escaped.encode(), pair))
        return data

    def hide_stray_quotes(self, data: bytes | bytearray, starts: re.Pattern[bytes], sep: str, quote: str) -> bytes:
        """Put stand-ins in the place of the quote that opens a field, and of separators up to a stray quote in it.

        `starts` matches the beginning of such a field; its group 1 is what may hold separators.
        """
        sep_byte, quote_byte = sep.encode(), quote.encode()
        opening = self._new(data, quote_byte, quote_byte)
        inner = self._new(data, sep_byte, sep_byte)
        pair = quote_byte * 2
        return starts.sub(lambda found: opening + found[1].replace(sep_byte, inner) + pair, data)

    def restored(self, tokens: pa.Array) -> pa.Array:
        """Put the original characters back, escaped ones without their escape."""
        for stand_in, (original, _) in self._originals.items():
            tokens = pc.replace_substring(tokens, stand_in.decode(), original.decode())
        return tokens

    def restored_text(self, text: str) -> str:
        """Put the original text of a record back."""
        for stand_in, (_, original) in self._originals.items():
            text = text.replace(stand_in.decode(), original.decode())
        return text

    def restored_bytes(self, record: bytes | bytearray) -> bytes | bytearray:
        """Put the original bytes of a record back."""
        for stand_in, (_, original) in self._originals.items():
            record = record.replace(stand_in, original)
        return record

    def _new(self, data: bytes | bytearray, original: bytes, raw: bytes) -> bytes:
        for candidate in _CANDIDATES:
            if candidate not in self._originals and candidate not in data and candidate not in self._avoided:
                self._originals[candidate] = (original, raw)
                return candidate
        raise OverflowError("the block has every character that could stand in for another")
