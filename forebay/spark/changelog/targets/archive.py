# SPDX-License-Identifier: Apache-2.0
"""Archives: the changes of all micro-batches as Parquet files, read as a changelog or as current rows (K10)."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as every user of PySpark writes it
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import ArrayType, DataType, LongType, MapType, StructField, StructType, UserDefinedType

from forebay.errors import ConfigurationError, FatalError
from forebay.spark.changelog.columns import quoted
from forebay.spark.changelog.converting import declare
from forebay.spark.changelog.newest import newest
from forebay.spark.changelog.targets import changes as folded
from forebay.spark.changelog.targets.changes import DELETED, Changes
from forebay.spark.changelog.targets.target import Target, apply_changes, check_owner
from forebay.table.changelog.shape import CHANGE_TYPE, COMMIT_VERSION, SEQUENCE, ChangeTraits, RowKind

_SIDECAR: Final = "_schema.json"
_APPLIED: Final = "_applied.json"
_STAGING: Final = "_staging"
_FORMAT: Final = 1
_FILE = re.compile(r"file:(?://(?:localhost)?(?=/))?", re.IGNORECASE)
_GLOB = re.compile(r"[\[\]{}*?,\\]")
_VERSION = re.compile(rf"{COMMIT_VERSION}=(\d+)")


class ArchiveTarget(Target):
    """A directory of Parquet files that keeps all changes.

    Each micro-batch is a directory `_commit_version=N`, which gets this name when it is complete. It also holds a file
    with the query and the micro-batch id. `_schema.json` has the keys and the schema of the archive. With
    `stored_as_scd_type=1` a micro-batch holds the last change of each key, with 2 that of each key and sequence.

    Args:
        path: A directory that all machines share; created by the first micro-batch.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._root = _directory(path)

    def __repr__(self) -> str:
        return f"ArchiveTarget({str(self._root)!r})"

    def _apply(self, changes: Changes, batch_id: int, query_id: str, *, adopt: bool) -> bool:
        applied = [_applied(self._root, version) for version in reversed(_versions(self._root))]
        owner = applied[0]["query"] if applied else None
        check_owner(f"the archive {self._root}", owner, query_id, adopt=adopt)
        if any(entry["query"] == query_id and entry["batch"] >= batch_id for entry in applied):
            return False
        stored = _stored(changes)
        self._check_sidecar(_nullable(stored.schema), changes)
        begin = hashlib.blake2s(query_id.encode(), digest_size=8).hexdigest()
        directory = _unlinked(self._root / _STAGING)
        for left in directory.glob(f"{begin}.*"):
            shutil.rmtree(left)
        staging = directory / f"{begin}.{uuid.uuid4().hex}"
        stored.write.parquet(_url(staging))
        (staging / _APPLIED).write_text(json.dumps({"query": query_id, "batch": batch_id}))
        version = max(_versions(self._root), default=-1) + 1
        try:
            staging.rename(self._root / f"{COMMIT_VERSION}={version:010d}")
        except OSError as error:
            shutil.rmtree(staging, ignore_errors=True)
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise ConfigurationError(
                    f"version {version} of the archive {self._root} could not be put in its place: {error.strerror}",
                    advice="give the driver's user the right to rename directories there, and check the disk",
                ) from error
            raise ConfigurationError(
                f"another query wrote version {version} of the archive {self._root} meanwhile",
                advice="let only one query write to the archive, and start this query again",
            ) from error
        return True

    def _check_sidecar(self, schema: StructType, changes: Changes) -> None:
        """Check keys and schema against `_schema.json`, which is written first for a new archive."""
        sidecar = {"format": _FORMAT, "keys": list(changes.keys), "schema": schema.jsonValue()}
        self._root.mkdir(parents=True, exist_ok=True)
        temporary = self._root / f".{_SIDECAR}.{uuid.uuid4().hex}"
        temporary.write_text(json.dumps(sidecar, indent=1))
        with suppress(FileExistsError):
            os.link(temporary, self._root / _SIDECAR)  # the linked file is complete at once
        temporary.unlink()
        keys, stored = _sidecar(self._root)
        if keys != list(changes.keys):
            raise ConfigurationError(
                f"the archive {self._root} has the keys {', '.join(keys)}, not {', '.join(changes.keys)}",
                option="keys",
                advice="give the keys of the archive, or begin a new archive",
            )
        old, new = ({field.name: field.dataType for field in fields} for fields in (stored, schema))
        for name in [*old, *new]:
            if old.get(name) != new.get(name):
                shown = [kind.simpleString() if (kind := kinds.get(name)) else "missing" for kinds in (old, new)]
                raise ConfigurationError(
                    f"the column {name!r} is {shown[0]} in the archive {self._root}, and {shown[1]} in the changes",
                    advice="cast, add or leave out the column (except_column_list), or begin a new archive",
                )


def write_archive(
    df: DataFrame,
    path: str | os.PathLike[str],
    *,
    keys: str | Sequence[str],
    checkpoint_location: str,
    **options: Any,  # noqa: ANN401 - see apply_changes
) -> StreamingQuery:
    """Start a query that writes a stream of changes into an archive: `apply_changes` with an `ArchiveTarget`.

    Args:
        df: See `apply_changes`.
        path: See `ArchiveTarget`.
        keys: See `apply_changes`.
        checkpoint_location: See `apply_changes`.
        options: Other arguments of `apply_changes`.
    """
    return apply_changes(df, ArchiveTarget(path), keys=keys, checkpoint_location=checkpoint_location, **options)


def read_archive(
    spark: SparkSession, path: str | os.PathLike[str], *, view: Literal["current", "changelog"] = "current"
) -> DataFrame:
    """Read an archive as a batch DataFrame (K10).

    Args:
        spark: The session.
        path: The archive.
        view: `current` for the current rows, `changelog` for all changes that the archive keeps, with `_change_type`
            and `_commit_version`. An added row has the kind `update_postimage`, because an archive does not know
            whether its key was new; apply `normalize` to find out.

    Raises:
        ConfigurationError: There is no archive, or `view` is unknown.
        FatalError: A file of the archive is damaged.
    """
    if view not in {"current", "changelog"}:
        raise ConfigurationError(f"unknown view {view!r}", option="view", advice="give 'current' or 'changelog'")
    root = _directory(path)
    keys, schema = _sidecar(root)
    whole = StructType([*schema.fields]).add(COMMIT_VERSION, LongType())
    versions = _versions(root)
    if not versions:
        return spark.createDataFrame([], schema if view == "current" else whole).drop(
            *((CHANGE_TYPE, SEQUENCE) if view == "current" else ())
        )
    # Spark reads paths as patterns.
    base = _GLOB.sub(r"\\\g<0>", _url(root))
    places = [f"{base}/{COMMIT_VERSION}={version:010d}" for version in versions]
    df = spark.read.schema(whole).option("basePath", _url(root)).parquet(*places)
    if view == "changelog":  # the last change of each key in each micro-batch
        return declare(df, ChangeTraits(), keys)
    there = quoted(CHANGE_TYPE) != F.lit(RowKind.DELETE.change_type)
    # If an upsert and a delete of a key have the same sequence, the upsert wins, whatever their micro-batches.
    order = [quoted(SEQUENCE), there] if SEQUENCE in df.columns else []
    rows = newest(df, keys, [*order, quoted(COMMIT_VERSION)], null_keys="error").where(there)
    return rows.select(*(quoted(name) for name in schema.names if name not in {CHANGE_TYPE, SEQUENCE}))


def _stored(changes: Changes) -> DataFrame:
    kind = F.when(quoted(DELETED), F.lit(RowKind.DELETE.change_type))
    columns = [quoted(name) for name in changes.names]
    columns.append(kind.otherwise(F.lit(RowKind.UPDATE_AFTER.change_type)).alias(CHANGE_TYPE))
    for name in changes.names:
        if name.lower() in (CHANGE_TYPE, SEQUENCE, COMMIT_VERSION):
            raise ConfigurationError(
                f"the column {name!r} has a name that archives reserve",
                advice="rename the column first, or name it in except_column_list",
            )
    if changes.sequence is not None:
        columns.append(quoted(folded.SEQUENCE).alias(SEQUENCE))
    return changes.df.select(*columns)


def _nullable(schema: StructType) -> StructType:
    """Return the schema with all fields, elements and map values nullable, to compare types without nullability."""

    def whole(kind: DataType) -> DataType:
        if isinstance(kind, UserDefinedType):
            raise ConfigurationError(
                f"a column is of the user-defined type {kind.typeName()}, which archives do not keep",
                advice="convert it first, such as vectors by vector_to_array, or name it in except_column_list",
            )
        if isinstance(kind, ArrayType):
            return ArrayType(whole(kind.elementType))
        if isinstance(kind, MapType):
            return MapType(whole(kind.keyType), whole(kind.valueType))
        return _nullable(kind) if isinstance(kind, StructType) else kind

    return StructType([StructField(field.name, whole(field.dataType), True, field.metadata) for field in schema])


def _sidecar(root: Path) -> tuple[list[str], StructType]:
    if not (root / _SIDECAR).exists():
        raise ConfigurationError(
            f"{str(root)!r} is not an archive: it has no {_SIDECAR}",
            option="path",
            advice="give a path to which an ArchiveTarget has written",
        )
    with _reading(root, _SIDECAR) as sidecar:
        if sidecar["format"] != _FORMAT:
            raise ConfigurationError(
                f"the archive {root} has format {sidecar['format']}; this version of forebay reads format {_FORMAT}",
                advice="read it with the version of forebay that wrote it",
            )
        keys, types = sidecar["keys"], [sidecar["schema"]]
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            raise ValueError("its keys are no list of names")
        while types:
            part = types.pop()
            if isinstance(part, dict):
                if part.get("type") == "udt":
                    raise ValueError("it has a user-defined type, whose module would be imported")
                types += part.values()
            elif isinstance(part, list):
                types += part
        return keys, _nullable(StructType.fromJson(sidecar["schema"]))


def _versions(root: Path) -> list[int]:
    if not root.is_dir():
        return []
    versions = {int(match[1]): entry for entry in os.scandir(root) if (match := _VERSION.fullmatch(entry.name))}
    for entry in versions.values():
        _unlinked(Path(entry))
    return sorted(versions)


def _unlinked(directory: Path) -> Path:
    """Return a directory of an archive, which must not lead out of it.

    Raises:
        ConfigurationError: It is a link.
    """
    if directory.is_symlink():
        raise ConfigurationError(
            f"{str(directory)!r} of the archive is a link to {os.readlink(directory)!r}",
            option="path",
            advice="find out who else writes to the archive, and replace the link by the directory it was",
        )
    return directory


def _applied(root: Path, version: int) -> dict[str, Any]:
    with _reading(root, f"{COMMIT_VERSION}={version:010d}/{_APPLIED}") as applied:
        return {"query": str(applied["query"]), "batch": int(applied["batch"])}


@contextmanager
def _reading(root: Path, name: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON object in a file of an archive; the block checks it. Whatever is wrong with it is damage.

    Raises:
        FatalError: The file is damaged.
    """
    try:
        yield json.loads((root / name).read_text())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, PySparkException) as error:
        raise FatalError(
            f"the file {name} of the archive {root} is damaged: {type(error).__name__}: {error}",
            advice="restore this file from a backup, or begin a new archive",
        ) from error


def _url(path: Path) -> str:
    """Return a path as a URL for Hadoop, which does not decode the escapes that `Path.as_uri` would write."""
    return f"file://{path}"


def _directory(path: str | os.PathLike[str]) -> Path:
    text = os.fspath(path)
    if re.match(r"[A-Za-z][A-Za-z0-9+.\-]+:", text) and not _FILE.match(text):
        raise ConfigurationError(
            f"an archive cannot be at {text!r}: it needs a file system with an atomic rename of directories",
            option="path",
            advice="give a directory that all machines share",
        )
    return Path(_FILE.sub("", text, count=1)).absolute()
