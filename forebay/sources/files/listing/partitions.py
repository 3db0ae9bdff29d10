# SPDX-License-Identifier: Apache-2.0
"""Hive-style partition directories (`year=2024/month=1`): columns and values, found as Spark 4.2 finds them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.sources.files.listing.partition_values import NULL_NAME, common_type, infer_type, partition_value, unescape
from forebay.stores.file_status import last_name
from forebay.stores.paths import parent
from forebay.values.zones import Zone, session_zone

_NO_TYPES: Mapping[str, pa.DataType] = {}


@dataclass(frozen=True)
class Partitioning:
    """What partition discovery found out about a set of directories.

    Attributes:
        schema: The partition columns, outermost first, all nullable; empty if the directories are not partitioned.
        texts: For each partitioned directory the raw values, in the order of the columns.
        values: The same, as Arrow scalars of the columns' types.
    """

    schema: pa.Schema
    texts: Mapping[str, tuple[str, ...]]
    values: Mapping[str, tuple[pa.Scalar, ...]]


def partitions(
    directories: Iterable[str],
    base_paths: Iterable[str],
    *,
    type_inference: bool = True,
    timezone: str = "UTC",
    types: Mapping[str, pa.DataType] = _NO_TYPES,
    case_sensitive: bool = False,
) -> Partitioning:
    """Find the partition columns of the directories that hold data files.

    Called by `list_files`; a pure function.

    Args:
        directories: Every directory that directly holds a data file, as plain paths or URLs.
        base_paths: Where looking for `name=value` upwards stops: the paths the user named, or `basePath`.
        type_inference: Infer types; otherwise all columns are strings.
        timezone: The session time zone, for timestamps.
        types: Types the user's schema wants for columns, by name; these are not inferred.
        case_sensitive: Whether names that differ only in case are different columns.

    Raises:
        ConfigurationError: The directories contradict each other, or a value does not fit the user's type.
    """
    bases = frozenset(base_paths)
    found: dict[str, list[tuple[str, str]]] = {}
    tops: dict[str, None] = {}
    for directory in sorted(set(directories)):
        pairs, top = _pairs_of(directory, bases)
        if top is not None:
            tops[top.lower()] = None
        if pairs:
            found[directory] = pairs
    if not found:
        return Partitioning(pa.schema([]), {}, {})
    if len(tops) > 1:
        raise _conflicting_tops(tops)
    names = _names(found, case_sensitive)
    wanted = {name if case_sensitive else name.lower(): pa.field(name, type_) for name, type_ in types.items()}
    texts = {directory: tuple(raw for _, raw in pairs) for directory, pairs in found.items()}
    zone = session_zone(timezone)
    fields = [
        wanted.get(name if case_sensitive else name.lower())
        or _inferred(name, {raws[number] for raws in texts.values()}, zone if type_inference else None)
        for number, name in enumerate(names)
    ]
    return Partitioning(pa.schema(fields), texts, _values(texts, fields, zone))


def _values(
    texts: Mapping[str, tuple[str, ...]], fields: Sequence[pa.Field], zone: Zone
) -> dict[str, tuple[pa.Scalar, ...]]:
    """The scalars of all directories; each distinct text is read once."""
    known: list[dict[str, pa.Scalar]] = [
        {raw: partition_value(raw, field.type, zone, field.name) for raw in {raws[number] for raws in texts.values()}}
        for number, field in enumerate(fields)
    ]
    return {
        directory: tuple(known[number][raw] for number, raw in enumerate(raws)) for directory, raws in texts.items()
    }


def merge_schema(data: pa.Schema, partition: pa.Schema, *, case_sensitive: bool = False) -> pa.Schema:
    """The schema of a table: data columns, then partition columns; a column in both is the partition's, in its place.

    Called by file sources when they say their schema. Where a column is in both, the values are those of the
    directories, never those in the files: Spark's rule.
    """
    key = str if case_sensitive else str.lower
    own = {key(field.name): field for field in partition}
    merged = [own.pop(key(field.name), field) for field in data]
    return pa.schema([*merged, *own.values()], metadata=data.metadata)


def _pairs_of(directory: str, bases: frozenset[str]) -> tuple[list[tuple[str, str]], str | None]:
    """The (name, raw value) pairs of a directory, outermost first, and where looking upwards came to an end."""
    pairs: list[tuple[str, str]] = []
    current = directory
    while True:
        name = last_name(current)
        if name.lower() == "_temporary":
            return [], None
        if current in bases:
            break
        pair = _pair(name)
        if pair is not None:
            pairs.append(pair)
        above = parent(current)
        if (pair is None and pairs) or above == current:
            break
        current = above
    return (pairs[::-1], current) if pairs else ([], directory)


def _pair(name: str) -> tuple[str, str] | None:
    column, equals, raw = name.partition("=")
    if not equals:
        return None
    for part, what in ((column, "column name before"), (raw, "value after")):
        if not part:
            raise ConfigurationError(
                f"found an empty partition {what} '=' in the directory name {name!r}",
                option="path",
                advice=f"rename the directory (a missing value is written {NULL_NAME}), or set "
                "recursiveFileLookup=true to read without partition columns",
            )
    return unescape(column), raw


def _names(found: Mapping[str, Sequence[tuple[str, str]]], case_sensitive: bool) -> list[str]:
    """The one list of column names all directories must have."""
    lists: dict[tuple[str, ...], tuple[list[str], list[str]]] = {}
    for directory, pairs in found.items():
        names = [name for name, _ in pairs]
        key = tuple(names if case_sensitive else [name.lower() for name in names])
        lists.setdefault(key, (names, []))[1].append(directory)
    if len(lists) > 1:
        raise _conflicting_names(list(lists.values()))
    (key, (names, directories)), *_ = lists.items()
    for number, name in enumerate(key):
        if name in key[:number]:
            raise ConfigurationError(
                f"the partition column {name!r} appears twice in {directories[0]!r}",
                option="path",
                advice="rename one of the directories, or set recursiveFileLookup=true to read without partition "
                "columns",
            )
    return names


def _inferred(name: str, raws: Iterable[str], zone: Zone | None) -> pa.Field:
    if zone is None:
        return pa.field(name, common_type(pa.null() if raw == NULL_NAME else pa.string() for raw in raws))
    return pa.field(name, common_type(infer_type(raw, zone) for raw in sorted(raws)))


def _conflicting_tops(tops: Iterable[str]) -> ConfigurationError:
    listed = "".join(f"\n\t{_line(top)}" for top in sorted(tops))
    return ConfigurationError(
        f"Conflicting directory structures detected. Suspicious paths:{listed}",
        option="path",
        advice="if the paths are partition directories, set basePath to the root directory of the table; if there "
        "are several tables, read them one by one and union them; recursiveFileLookup=true reads all files without "
        "partition columns",
    )


def _conflicting_names(lists: Sequence[tuple[list[str], list[str]]]) -> ConfigurationError:
    columns = "".join(
        f"\n\tPartition column name list #{at}: {', '.join(names)}" for at, (names, _) in enumerate(lists)
    )
    shortest_first = sorted(lists, key=lambda item: len(item[0]))
    suspects = "".join(f"\n\t{_line(directory)}" for _, directories in shortest_first for directory in directories)
    return ConfigurationError(
        f"Conflicting partition column names detected:{columns}\n"
        f"Please check these directories for unexpected files or inconsistent partition column names:{suspects}",
        option="path",
        advice="keep data files in leaf directories only, with the same column name on the same level; "
        "recursiveFileLookup=true reads all files without partition columns",
    )


def _line(text: str) -> str:
    """A name on one line: an error's text is read back line by line."""
    return text.replace("\r", "\\r").replace("\n", "\\n")
