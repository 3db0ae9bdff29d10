# SPDX-License-Identifier: Apache-2.0
"""Leaves columns out of a Parquet footer, because Arrow reads no column of a file if it cannot express one of them.

A footer is a structure of Thrift's compact protocol. The lists that have an entry for each column are written again
with fewer entries, and all other bytes are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final

from forebay.formats.compression.byte_streams import encoded_varint

_MAGIC: Final = b"PAR1"
_MOST_LEVELS: Final = 64

# Types of Thrift's compact protocol.
_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 0, 1, 2, 3, 7, 8, 9, 10, 11, 12
_VARINTS: Final = (4, 5, 6)

# Fields of FileMetaData, KeyValue, RowGroup and SchemaElement in parquet.thrift.
_SCHEMA, _ROW_GROUPS, _KEY_VALUES, _COLUMN_ORDERS = 2, 4, 5, 7
_KEY = _COLUMN_CHUNKS = 1
_NAME, _NUM_CHILDREN = 4, 5

_ARROW_SCHEMA: Final = b"ARROW:schema"
"""The key of the writer's Arrow schema. Arrow matches its fields with columns by index, so it is left out too."""


@dataclass(frozen=True, slots=True)
class _Entries:
    """A list of structures: the bytes from `start` are its header, and each entry ends at one of `ends`."""

    start: int
    first: int
    ends: list[int]

    def only(self, data: bytes, kept: Collection[int]) -> bytes:
        """Return the list with the entries at the indexes `kept` alone."""
        starts = [self.first, *self.ends]
        entries = [data[starts[index] : starts[index + 1]] for index in range(len(self.ends)) if index in kept]
        return _list_header(len(entries)) + b"".join(entries)


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of the top level: its name, and the ranges of its entries in the schema and among the leaves."""

    name: str
    elements: range
    leaves: range


class Footer:
    """The footer of a Parquet file, without its length and magic number.

    Raises:
        ValueError: The bytes are no footer.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._per_leaf: list[_Entries] = []
        self._elements = _Entries(0, 0, [])
        self._key_values = _Entries(0, 0, [])
        self._keys: list[bytes] = []
        names: list[str] = []
        children: list[int] = []
        try:
            walk = _Walk(data)
            for field, kind in walk.fields():
                if field == _SCHEMA and kind == _LIST:
                    self._elements = walk.entries(lambda: self._element(walk, names, children))
                elif field == _ROW_GROUPS and kind == _LIST:
                    walk.entries(lambda: self._row_group(walk))
                elif field == _KEY_VALUES and kind == _LIST:
                    self._key_values = walk.entries(lambda: self._keys.append(_key(walk)))
                elif field == _COLUMN_ORDERS and kind == _LIST:
                    self._per_leaf.append(walk.entries(lambda: walk.skip(_STRUCT)))
                else:
                    walk.skip(kind)
        except IndexError:
            raise ValueError("the footer ends inside a structure") from None
        if not names or len(self._keys) != len(self._key_values.ends) or len(names) != len(self._elements.ends):
            raise ValueError("the footer has no schema, or a list twice")
        self.signed = walk.at < len(data)
        """Whether a signature follows, which only files with encrypted columns have."""
        self.columns = list(_columns(names, children))
        """The columns of the top level, in the order of the file."""

    def file_with(self, kept: Collection[int]) -> bytes:
        """Return a Parquet file without data, whose footer has the columns at the indexes `kept` alone."""
        columns = [column for index, column in enumerate(self.columns) if index in kept]
        leaves = {leaf for column in columns for leaf in column.leaves}
        elements = {0, *(element for column in columns for element in column.elements)}
        lists = [(entries, entries.only(self._data, leaves)) for entries in self._per_leaf]
        schema = self._elements.only(self._data, elements)
        lists.append((self._elements, self._with_children(schema, len(elements), len(columns))))
        if _ARROW_SCHEMA in self._keys:
            others = [index for index, key in enumerate(self._keys) if key != _ARROW_SCHEMA]
            lists.append((self._key_values, self._key_values.only(self._data, others)))
        parts, at = [], 0
        for entries, written in sorted(lists, key=lambda item: item[0].start):
            parts += [self._data[at : entries.start], written]
            at = entries.ends[-1] if entries.ends else entries.first
        footer = b"".join([*parts, self._data[at:]])
        return _MAGIC + footer + len(footer).to_bytes(4, "little") + _MAGIC

    def _with_children(self, schema: bytes, elements: int, columns: int) -> bytes:
        """Return the list of the schema with the number of columns in its first entry, the root."""
        walk = _Walk(schema, len(_list_header(elements)))
        for field, kind in walk.fields():
            start = walk.at
            walk.skip(kind)
            if field == _NUM_CHILDREN:
                return schema[:start] + encoded_varint(columns << 1) + schema[walk.at :]
        raise ValueError("the root of the schema has no columns")

    @staticmethod
    def _element(walk: _Walk, names: list[str], children: list[int]) -> None:
        name, count = "", 0
        for field, kind in walk.fields():
            if field == _NAME and kind == _BINARY:
                name = walk.binary().decode("utf-8", "replace")
            elif field == _NUM_CHILDREN and kind in _VARINTS:
                count = walk.varint() >> 1
            else:
                walk.skip(kind)
        names.append(name)
        children.append(count)

    def _row_group(self, walk: _Walk) -> None:
        for field, kind in walk.fields():
            if field == _COLUMN_CHUNKS and kind == _LIST:
                self._per_leaf.append(walk.entries(lambda: walk.skip(_STRUCT)))
            else:
                walk.skip(kind)


def _key(walk: _Walk) -> bytes:
    """Walk over an entry of the metadata; return its key."""
    found = b""
    for field, kind in walk.fields():
        if field == _KEY and kind == _BINARY:
            found = walk.binary()
        else:
            walk.skip(kind)
    return found


def _columns(names: list[str], children: list[int]) -> Iterator[_Column]:
    """Yield the columns of a schema whose elements are in the order of depth first, the root first."""
    element, leaf = 1, 0
    while element < len(names):
        first, first_leaf, missing = element, leaf, 1
        while missing:
            if element == len(names):
                raise ValueError("the schema ends inside a column")
            missing += children[element] - 1
            leaf += not children[element]
            element += 1
        yield _Column(names[first], range(first, element), range(first_leaf, leaf))


def _list_header(size: int) -> bytes:
    return bytes([size << 4 | _STRUCT]) if size < 15 else bytes([0xF0 | _STRUCT]) + encoded_varint(size)


class _Walk:
    """Walks over Thrift's compact protocol. Methods raise IndexError at the end of the data."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = data
        self.at = at

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def binary(self) -> bytes:
        size = self.varint()
        self._skip_bytes(size)
        return self._data[self.at - size : self.at]

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yield number and type of each field of a structure. The caller moves behind the value before the next."""
        number = 0
        while True:
            head = self._data[self.at]
            self.at += 1
            if head == _STOP:
                return
            number = number + (head >> 4) if head >> 4 else self.varint() >> 1
            yield number, head & 15

    def entries(self, skip_entry: Callable[[], None]) -> _Entries:
        """Walk over a list of structures; `skip_entry` moves behind one."""
        start = self.at
        kind, size = self._list_head()
        if kind != _STRUCT:
            raise ValueError("a list has entries of another type")
        first, ends = self.at, []
        for _ in range(size):
            skip_entry()
            ends.append(self.at)
        return _Entries(start, first, ends)

    def skip(self, kind: int, levels: int = 0) -> None:
        """Move behind a value of a type."""
        if levels > _MOST_LEVELS:
            raise ValueError("structures are nested too deeply")
        if kind in _VARINTS:
            self.varint()
        elif kind == _BINARY:
            self.binary()
        elif kind in (_BYTE, _DOUBLE):
            self._skip_bytes(1 if kind == _BYTE else 8)
        elif kind == _STRUCT:
            for _, inside in self.fields():
                self.skip(inside, levels + 1)
        elif kind in (_LIST, _SET, _MAP):
            self._skip_entries(kind, levels)
        elif kind not in (_TRUE, _FALSE):
            raise ValueError(f"there is no type {kind}")

    def _skip_entries(self, kind: int, levels: int) -> None:
        """Move behind a list, set or map. In these a boolean is a byte."""
        if kind == _MAP:
            size = self.varint()
            kinds = self._data[self.at] if size else 0
            self.at += bool(size)
            inside = [kinds >> 4, kinds & 15]
        else:
            entry, size = self._list_head()
            inside = [entry]
        for _ in range(size):
            for entry in inside:
                self.skip(_BYTE if entry in (_TRUE, _FALSE) else entry, levels + 1)

    def _list_head(self) -> tuple[int, int]:
        head = self._data[self.at]
        self.at += 1
        return head & 15, self.varint() if head >> 4 == 15 else head >> 4

    def _skip_bytes(self, count: int) -> None:
        self.at += count
        if self.at > len(self._data):
            raise IndexError
