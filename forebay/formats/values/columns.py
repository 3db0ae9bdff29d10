# SPDX-License-Identifier: Apache-2.0
"""Columns: their names compared as Spark does, texts converted in bulk, structs field by field."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import ConfigurationError

# -- Compares column names as Spark does.


def folded(name: str, case_sensitive: bool) -> str:
    """Return a column name for comparison: in lower case unless `spark.sql.caseSensitive` is set."""
    return name if case_sensitive else name.lower()


def ambiguous(column: str, matches: Iterable[str], path: str) -> ConfigurationError:
    """Return the error for a column of the schema that matches several columns of a file."""
    return ConfigurationError(
        f"the column {column!r} of the schema matches several columns of {path}: " + ", ".join(map(repr, matches)),
        advice="if these differ in case only, set caseSensitive=true; otherwise remove the column from the schema",
    )


def same_names(fields: Iterable[pa.Field], case_sensitive: bool, inside: str = "") -> str | None:
    """Return a text that names the first two columns with the same name, at any depth; None if all names differ.

    `inside` is the path of the struct that contains the fields; empty for the columns of a table.
    """
    names: dict[str, str] = {}
    for field in fields:
        name = folded(field.name, case_sensitive)
        if name in names:
            where = f" in {inside!r}" if inside else ""
            return f"two columns have the same name{where}: {names[name]!r} and {field.name!r}"
        names[name] = field.name
        problem = _same_inside(field.type, case_sensitive, field.name)
        if problem is not None:
            return problem
    return None


def _same_inside(data_type: pa.DataType, case_sensitive: bool, name: str) -> str | None:
    if isinstance(data_type, pa.StructType):
        return same_names(data_type, case_sensitive, name)
    if isinstance(data_type, pa.MapType):
        key = _same_inside(data_type.key_type, case_sensitive, name)
        return key or _same_inside(data_type.item_type, case_sensitive, name)
    return _same_inside(data_type.value_type, case_sensitive, name) if isinstance(data_type, pa.ListType) else None


def check_names(fields: Iterable[pa.Field], path: str, *, case_sensitive: bool, hint: str = "") -> None:
    """Raise a ConfigurationError if two columns of a file have the same name, as Spark does.

    `hint` is added to the advice of the error.
    """
    problem = same_names(fields, case_sensitive)
    if problem is not None:
        raise ConfigurationError(f"in {path}, {problem}", advice=f"give a schema without these columns{hint}")


# -- Converts columns of files with types of their own: by name, and nested types part by part.


Convert: TypeAlias = Callable[[pa.Array], pa.Array]
"""A function that converts an array to another array of the same length. None in its place keeps the array."""


def place_of(name: str, names: Sequence[str], column: str, path: str, *, case_sensitive: bool) -> int | None:
    """Return the place of a name among those of a file; None if it is missing.

    Args:
        name: The name of a column or of a field.
        names: The names in the file, in a row or a struct.
        column: The path of the column, for errors.
        path: The path of the file, for errors.
        case_sensitive: Whether names that differ only in case are different names.

    Raises:
        ConfigurationError: Several names match.
    """
    key = folded(name, case_sensitive)
    places = [place for place, stored in enumerate(names) if folded(stored, case_sensitive) == key]
    if len(places) > 1:
        raise ambiguous(column, [names[place] for place in places], path)
    return places[0] if places else None


def mismatch(column: str, stored_type: object, target: pa.DataType, path: str) -> ConfigurationError:
    """Return the error for a column of a file that cannot be read as the type of the schema."""
    return ConfigurationError(
        f"column {column!r} is {stored_type} in {path} and cannot be read as {target}",
        advice="in the schema, give the column the type of the file and cast it in the query, or remove it",
    )


def chain(*steps: Convert | None) -> Convert | None:
    """Return the conversion that does all steps in turn; None if there are none."""
    todo = [step for step in steps if step is not None]
    if len(todo) < 2:
        return todo[0] if todo else None

    def convert(array: pa.Array) -> pa.Array:
        for step in todo:
            array = step(array)
        return array

    return convert


Place: TypeAlias = int | pa.Array | None
"""Where the values of a field are: at a place in the file, all equal to the one value of an array, or null."""


def struct_of(children: Sequence[tuple[Place, Convert | None]], target: pa.StructType) -> Convert:
    """Return the conversion of structs to the type `target`: the place of each field, and its conversion."""
    fields = list(target)

    def convert(array: pa.Array) -> pa.Array:
        if not fields:
            return pa.Array.from_buffers(target, len(array), array.buffers()[:1], offset=array.offset)
        structs = cast("pa.StructArray", array)
        # What is stored where the struct is null has no meaning.
        stored = structs.flatten() if array.null_count else None
        inside = []
        for field, (place, step) in zip(fields, children, strict=True):
            if place is None:
                inside.append(pa.nulls(len(array), field.type))
                continue
            if isinstance(place, int):
                values = structs.field(place) if stored is None else stored[place]
            else:
                values = repeated(place, len(array))
            inside.append(values if step is None else step(values))
        mask = pc.is_null(array) if array.null_count else None
        return pa.StructArray.from_arrays(inside, fields=fields, mask=mask)

    return convert


def repeated(value: pa.Array, rows: int) -> pa.Array:
    """Return the one value of an array `rows` times."""
    return value.take(pa.repeat(pa.scalar(0), rows))


def list_of(inside: Convert | None, target: pa.ListType) -> Convert:
    """Return the conversion of lists to the type `target`; `inside` converts their values."""

    def convert(array: pa.Array) -> pa.Array:
        lists = cast("pa.ListArray", array)
        values = lists.values if inside is None else inside(lists.values)
        return pa.Array.from_buffers(target, len(lists), lists.buffers()[:2], lists.null_count, lists.offset, [values])

    return convert


def map_of(key: Convert | None, item: Convert | None, target: pa.MapType) -> Convert:
    """Return the conversion of maps, or of lists of entries, to the type `target`."""
    fields = [target.key_field, target.item_field]

    def convert(array: pa.Array) -> pa.Array:
        lists = cast("pa.ListArray", array)
        stored = cast("pa.StructArray", lists.values)
        keys, items = stored.field(0), stored.field(1)
        keys, items = keys if key is None else key(keys), items if item is None else item(items)
        if keys.null_count:
            raise pa.ArrowInvalid("a key of a map is null, or does not fit")
        entries = pa.StructArray.from_arrays([keys, items], fields=fields)
        return pa.Array.from_buffers(target, len(lists), lists.buffers()[:2], lists.null_count, lists.offset, [entries])

    return convert


# -- Converts columns of texts in bulk or one by one, and checks which bytes a column contains.


Converted = tuple["pa.Array", Sequence[int]]
"""The values (null for a null or malformed token), and the rows with a malformed token, ascending."""

Converter = Callable[["pa.Array"], Converted]

Plain = tuple[str, Callable[["pa.Array"], "pa.Array"]]
"""A regular expression for tokens that Arrow reads as Spark does, and the function that converts them in bulk."""


def token_view(tokens: pa.Array) -> memoryview:
    """Return a view of the bytes of all tokens (texts of values), concatenated, without a copy."""
    _, offsets, data = tokens.buffers()
    if data is None or offsets is None or not len(tokens):
        return memoryview(b"")
    (start,) = struct.unpack_from("=i", offsets, 4 * tokens.offset)
    (end,) = struct.unpack_from("=i", offsets, 4 * (tokens.offset + len(tokens)))
    return memoryview(data)[start:end]


def token_bytes(tokens: pa.Array) -> bytes:
    """Return a copy of the bytes of all tokens, concatenated."""
    return token_view(tokens).tobytes()


def consists_of(tokens: pa.Array, allowed: bytes) -> bool:
    """Return whether the tokens contain no bytes other than `allowed`."""
    return not token_bytes(tokens).translate(None, allowed)


def cast_or_parse(
    tokens: pa.Array,
    value_type: pa.DataType,
    parse: Callable[[str], object],
    plains: Sequence[Plain] = (),
    *,
    castable: bool = True,
) -> Converted:
    """Cast a whole column if Arrow can do it as Spark does (`castable`); else, or if the cast fails, use `by_value`."""
    if castable:
        try:
            return tokens.cast(value_type), ()
        except pa.ArrowInvalid:
            pass
    return by_value(tokens, value_type, parse, plains)


def by_value(
    tokens: pa.Array, value_type: pa.DataType, parse: Callable[[str], object], plains: Sequence[Plain] = ()
) -> Converted:
    """Convert tokens that match an expression of `plains` in bulk, and the others one by one with `parse`.

    `parse` returns None for a malformed token.
    """
    unparsed = tokens.is_valid()
    values: pa.Array = pa.nulls(len(tokens), value_type)
    for expression, convert in plains:
        plain = pc.and_(unparsed, pc.fill_null(pc.match_substring_regex(tokens, expression), False))
        if plain.true_count:
            values = pc.if_else(plain, convert(pc.if_else(plain, tokens, pa.scalar(None, tokens.type))), values)
            unparsed = pc.and_(unparsed, pc.invert(plain))
    rows = pc.indices_nonzero(unparsed).to_pylist()
    if not rows:
        return values, ()
    texts = pc.filter(tokens, unparsed).to_pylist()
    known = {text: parse(text) for text in set(texts)}
    parsed = [known[text] for text in texts]
    values = pc.replace_with_mask(values, unparsed, pa.array(parsed, value_type))
    return values, [row for row, value in zip(rows, parsed, strict=True) if value is None]
