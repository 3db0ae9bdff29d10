# SPDX-License-Identifier: Apache-2.0
"""Says why a JSON text could not be read as its schema wants: for people, and for the few texts that are bad."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from forebay.formats.ddl import type_text
from forebay.formats.encodings import utf8_problem
from forebay.formats.json.exact import ExactReader
from forebay.formats.json.options import JsonOptions
from forebay.formats.json.text import Malformed
from forebay.formats.json.tokens import START_OBJECT, Tokens

MALFORMED = "malformed JSON"
"""There is nothing more to tell."""
NO_OBJECT = "it is no JSON object"
_MOST_NAMED = 3


class Reasons:
    """Explains bad texts of one schema; keeps the readers it needs for it. For one thread.

    Args:
        fields: The fields that were read.
        options: How they were read.
    """

    def __init__(self, fields: Sequence[pa.Field], options: JsonOptions) -> None:
        self._fields = fields
        self._options = options
        self._readers: dict[tuple[tuple[str, ...], str, str], ExactReader] = {}

    def of(self, text: bytes) -> str:
        """Return the reason, without the text itself."""
        problem = utf8_problem(text)
        if problem is not None:
            return problem
        tokens = Tokens(text, self._options)
        try:
            kind = tokens.next()
            tokens.skip_children()
        except Malformed as error:
            # The tokenizer tells bytes beyond ASCII between values in the same way as those that are no UTF-8 at all.
            what = str(error).replace("this is not UTF-8", "a character that JSON does not have there")
            return f"malformed JSON near byte {tokens.start}: {what}"
        if kind != START_OBJECT:
            return NO_OBJECT
        misfits = [misfit for field in self._fields for misfit in self._misfits((), field, text)]
        if not misfits:
            return MALFORMED
        more = f", and {len(misfits) - _MOST_NAMED} more" if len(misfits) > _MOST_NAMED else ""
        return "; ".join(misfits[:_MOST_NAMED]) + more

    def _misfits(self, path: tuple[str, ...], field: pa.Field, text: bytes) -> Iterator[str]:
        """Yield the fields that do not fit: read alone, each of them makes the text a bad one."""
        here = (*path, field.name)
        if not self._bad(path, field, text):
            return
        found: list[str] = []
        # A struct without fields fits every object: if it does not fit, neither does what is inside.
        if isinstance(field.type, pa.StructType) and not self._bad(path, field.with_type(pa.struct([])), text):
            for inner in field.type:
                found += self._misfits(here, inner, text)
        yield from found or [f"the field {'.'.join(here)} does not fit {type_text(field.type)}"]

    def _bad(self, parents: tuple[str, ...], field: pa.Field, text: bytes) -> bool:
        key = (parents, field.name, str(field.type))
        reader = self._readers.get(key)
        if reader is None:
            alone = field
            for name in reversed(parents):
                alone = pa.field(name, pa.struct([alone]))
            reader = self._readers[key] = ExactReader([alone], self._options, embedded=True)
        return reader.read(text).bad
