# SPDX-License-Identifier: Apache-2.0
"""Finds the reason why a JSON text is malformed or does not fit its schema, for error messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from forebay.formats.json.jackson.record_parser import JacksonParser
from forebay.formats.json.jackson.text import Malformed, as_utf8
from forebay.formats.json.jackson.tokens import START_OBJECT, Tokens
from forebay.formats.json.options import JsonOptions
from forebay.formats.records.encodings import utf8_problem, valid_utf8
from forebay.formats.values.ddl import type_text

_MALFORMED = "malformed JSON"
_NO_OBJECT = "it is not a JSON object"
_MAX_NAMED = 3


class Reasons:
    """Finds the reasons why JSON texts do not fit a schema. Caches the parsers that it creates. Not thread-safe."""

    def __init__(self, fields: Sequence[pa.Field], options: JsonOptions) -> None:
        self._fields = fields
        self._options = options
        self._parsers: dict[tuple[tuple[str, ...], str, str], JacksonParser] = {}

    def of_record(self, record: bytes) -> str:
        """Return why a record of a file is malformed. Its encoding is detected as by Jackson."""
        if self._options.encoding is not None and (problem := utf8_problem(record)):
            return problem
        given = as_utf8(record, self._options.encoding)
        text = bytes(valid_utf8(given))  # invalid bytes after the record are not the reason
        reason = self.of(text)
        if reason == _MALFORMED and (problem := utf8_problem(given)):
            return problem
        if reason == _NO_OBJECT and text.lstrip().startswith(b"["):  # Spark reads an array as several records
            return "an element of this array is not an object, or does not fit the schema"
        return reason

    def of(self, text: bytes) -> str:
        """Return why a JSON text is malformed or does not fit the schema. The reason does not quote the text."""
        problem = utf8_problem(text)
        if problem is not None:
            return problem
        tokens = Tokens(text, self._options)
        try:
            kind = tokens.next()
            tokens.skip_children()
        except Malformed as error:
            # The text is UTF-8: the tokenizer reports characters beyond ASCII between values in this way.
            what = str(error).replace("this is not UTF-8", "a character that JSON does not allow there")
            return f"malformed JSON near byte {tokens.start}: {what}"
        if kind != START_OBJECT:
            return _NO_OBJECT
        mismatches = [mismatch for field in self._fields for mismatch in self._mismatches((), field, text)]
        if not mismatches:
            return _MALFORMED
        more = f", and {len(mismatches) - _MAX_NAMED} more" if len(mismatches) > _MAX_NAMED else ""
        return "; ".join(mismatches[:_MAX_NAMED]) + more

    def _mismatches(self, path: tuple[str, ...], field: pa.Field, text: bytes) -> Iterator[str]:
        """Yield a reason for each nested field that does not fit its type.

        Args:
            path: The names of the structs around the field.
            field: The field.
            text: The whole JSON text.
        """
        here = (*path, field.name)
        if not self._is_bad(path, field, text):
            return
        inner: list[str] = []
        # A struct without fields fits every object.
        if isinstance(field.type, pa.StructType) and not self._is_bad(path, field.with_type(pa.struct([])), text):
            inner = [mismatch for each in field.type for mismatch in self._mismatches(here, each, text)]
        yield from inner or [f"the field {'.'.join(here)} does not fit {type_text(field.type)}"]

    def _is_bad(self, parents: tuple[str, ...], field: pa.Field, text: bytes) -> bool:
        key = (parents, field.name, str(field.type))
        parser = self._parsers.get(key)
        if parser is None:
            root = field
            for name in reversed(parents):
                root = pa.field(name, pa.struct([root]))
            parser = self._parsers[key] = JacksonParser([root], self._options, embedded=True)
        return parser.read(text).bad
