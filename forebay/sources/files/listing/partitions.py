# SPDX-License-Identifier: Apache-2.0
"""Discovers the columns of Hive-style partition directories (`year=2024/month=1`) as Spark 4.2 does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.formats.values.zones import Zone, session_zone
from forebay.sources.files.listing.partition_values import NULL_NAME, common_type, infer_type, partition_value, unescape
from forebay.stores.paths import last_name, parent

_NO_TYPES: Mapping[str, pa.DataType] = {}


@dataclass(frozen=True)
class Partitioning:
    """The partition columns of a set of directories.

    Attributes:
        schema: The columns, outermost first, all nullable.
        texts: For each partitioned directory, the raw values of its path, in the order of the columns.
        values: The same values as Arrow scalars.
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
) -> Partitioning:
    """Find the partition columns of the directories that hold data files.

    Args:
        directories: Every directory that directly holds a data file, as plain paths or URLs.
        base_paths: The user's paths, or `basePath`: the search for `name=value` goes up from each directory to these.
        type_inference: Whether to infer types. If False, all columns without a type in `types` are strings.
        timezone: The session time zone.
        types: Types by column name, from the user's schema.

    Raises:
        ConfigurationError: The directories have different partition columns, or a value does not fit the user's type.
    """
    found = _pairs_by_directory(directories, frozenset(base_paths))
    if not found:
        return Partitioning(pa.schema([]), {}, {})
    wanted = {name.lower(): pa.field(name, type_) for name, type_ in types.items()}
    texts = {directory: tuple(raw for _, raw in pairs) for directory, pairs in found.items()}
    zone = session_zone(timezone)
    fields = []
    scalars: list[dict[str, pa.Scalar]] = []
    for name, raws in zip(_names(found), map(set, zip(*texts.values(), strict=True)), strict=True):
        field = wanted.get(name.lower()) or _inferred(name, raws, zone if type_inference else None)
        fields.append(field)
        scalars.append({raw: partition_value(raw, field.type, zone, field.name) for raw in raws})
    values = {
        directory: tuple(column[raw] for column, raw in zip(scalars, raws, strict=True))
        for directory, raws in texts.items()
    }
    return Partitioning(pa.schema(fields), texts, values)


def merge_schema(data: pa.Schema, partition: pa.Schema) -> pa.Schema:
    """Return the schema of a table: data columns, then partition columns. A column in both keeps its place.

    As in Spark, a column in both has the type and the values of the partition column.
    """
    own = {field.name.lower(): field for field in partition}
    merged = [own.pop(field.name.lower(), field) for field in data]
    return pa.schema([*merged, *own.values()], metadata=data.metadata)


def _pairs_by_directory(directories: Iterable[str], bases: frozenset[str]) -> dict[str, list[tuple[str, str]]]:
    """Return the pairs of column name and raw value for each partitioned directory.

    Raises:
        ConfigurationError: The directories belong to tables with different root directories.
    """
    found: dict[str, list[tuple[str, str]]] = {}
    tops: set[str] = set()
    for directory in sorted(set(directories)):
        pairs, top = _pairs_of(directory, bases)
        if top is not None:
            tops.add(top.lower())
        if pairs:
            found[directory] = pairs
    if found and len(tops) > 1:
        raise _conflicting_tops(tops)
    return found


def _pairs_of(directory: str, bases: frozenset[str]) -> tuple[list[tuple[str, str]], str | None]:
    """Return the pairs of column name and raw value of a directory, outermost first.

    Also return the directory where the search ended.
    """
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


def _names(found: Mapping[str, Sequence[tuple[str, str]]]) -> list[str]:
    """Return the names of the partition columns.

    Raises:
        ConfigurationError: The directories have different names, or a name appears twice in a path.
    """
    lists: dict[tuple[str, ...], tuple[list[str], list[str]]] = {}
    for directory, pairs in found.items():
        names = [name for name, _ in pairs]
        key = tuple(name.lower() for name in names)
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
    """Escape line breaks in a path, because `unwrap` parses the text of an error line by line."""
    return text.replace("\r", "\\r").replace("\n", "\\n")
