# SPDX-License-Identifier: Apache-2.0
"""The files a read consists of, with their partition values: Spark's file options, from paths to a list."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from forebay.errors import ConfigurationError, RetriableError
from forebay.sources.files.listing import globs
from forebay.sources.files.listing.listing import Leaves, find_leaves, is_data_name
from forebay.sources.files.listing.partitions import Partitioning, partitions
from forebay.stores.file_status import FileStatus
from forebay.stores.open_store import store_for
from forebay.stores.paths import parent, plain_path
from forebay.stores.remote_facts import tells_time
from forebay.stores.storage_options import NO_OPTIONS, StorageOptions
from forebay.stores.store import Directory
from forebay.values.datetimes import parse_timestamp
from forebay.values.zones import session_zone

_MICROS_PER_MILLI = 1000


@dataclass(frozen=True)
class ListOptions:
    """How files are chosen below the paths; each field is Spark's option of the same name.

    Attributes:
        recursive_file_lookup: Take the files of all nested directories, and look for no partition columns.
        path_glob_filter: Take only files whose name matches this glob. Partition columns are found before it applies.
        modified_before: Take only files changed before this time: `yyyy-MM-ddTHH:mm:ss`, optionally with a zone.
        modified_after: Take only files changed after this time.
        timezone: The session time zone: for the two times above and for timestamps in directory names.
        base_path: The directory at which partition discovery stops, instead of at the paths themselves.
        type_inference: Infer the types of partition columns; otherwise they are strings.
        partition_types: Types the user's schema wants, by column name. Names of other columns do no harm.
        case_sensitive: Whether partition columns that differ only in case are different.
        ignore_missing_files: Leave out what goes away while it is listed, instead of failing.
        repeated: The listing is made again and again: a glob that matches nothing is no error, nor is what goes away
            meanwhile.
        begun: An earlier listing found the paths: see `find_leaves`.
        storage: Arguments for the stores of URLs.
    """

    recursive_file_lookup: bool = False
    path_glob_filter: str | None = None
    modified_before: str | None = None
    modified_after: str | None = None
    timezone: str = "UTC"
    base_path: str | None = None
    type_inference: bool = True
    partition_types: Mapping[str, pa.DataType] | None = None
    case_sensitive: bool = False
    ignore_missing_files: bool = False
    repeated: bool = False
    begun: bool = False
    storage: StorageOptions = NO_OPTIONS


@dataclass(frozen=True)
class FileIndex:
    """The outcome of a listing.

    Attributes:
        files: The files to read, each once, by path. Empty files are among them: they hold no rows.
        partition_schema: The partition columns, outermost first; empty if there are none.
        partition_texts: For each file, the raw directory texts of its partition columns; fit for JSON, and
            `partition_value` makes the values of them.
        partition_values: For each file, the values as Arrow scalars; files of one directory share them.
        left_out: Data files below the paths that are not read, because Spark would not: without partition columns
            files in nested directories, with them files outside the partition directories. For a warning.
        sinks: The directories below the paths that a Spark stream writes to.
        emptied: The paths that are not there now and were: see `Leaves`.
    """

    files: tuple[FileStatus, ...]
    partition_schema: pa.Schema
    partition_texts: tuple[tuple[str, ...], ...]
    partition_values: tuple[tuple[pa.Scalar, ...], ...]
    left_out: tuple[str, ...]
    sinks: tuple[str, ...] = ()
    emptied: tuple[str, ...] = ()


def list_files(paths: Sequence[str], options: ListOptions = ListOptions()) -> FileIndex:
    """List the files to read below some paths, as Spark's file sources do.

    Called by file sources at discovery, on the planning thread; every call looks at the stores anew.

    Args:
        paths: Files, directories or globs; local paths or URLs.
        options: Filters and partition discovery.

    Raises:
        ConfigurationError: A path matches nothing, an option is wrong, the directories contradict each other, or files
            are chosen by their times, which the store does not tell.
        DataLossError: A file that a Spark sink committed is gone.
        RetriableError: A store did not answer, something went away while it was listed, or a path is away.
    """
    accepts = _filter(options)
    taken: list[tuple[FileStatus, str]]
    left_out: list[str]
    leaves = find_leaves(
        paths,
        options=options.storage,
        ignore_missing=options.ignore_missing_files,
        repeated=options.repeated,
        begun=options.begun,
    )
    data = [file for file in leaves.files if is_data_name(file.name)]
    folders = [parent(file.path) for file in data]
    if options.recursive_file_lookup:
        found = Partitioning(pa.schema([]), {}, {})
        taken, left_out = list(zip(data, folders, strict=True)), []
    else:
        found = partitions(
            dict.fromkeys(folders),
            _base_paths(leaves, options),
            type_inference=options.type_inference,
            timezone=options.timezone,
            types=options.partition_types or {},
            case_sensitive=options.case_sensitive,
        )
        inside = _inside(leaves, found)
        taken, left_out = [], []
        for file, folder in zip(data, folders, strict=True):
            if inside(file.path, folder):
                taken.append((file, folder))
            else:
                left_out.append(file.path)
    if accepts is not None:
        taken = [(file, folder) for file, folder in taken if accepts(file)]
    return FileIndex(
        tuple(file for file, _ in taken),
        found.schema,
        tuple(found.texts.get(folder, ()) for _, folder in taken),
        tuple(found.values.get(folder, ()) for _, folder in taken),
        tuple(left_out),
        leaves.sinks,
        leaves.emptied,
    )


def _inside(leaves: Leaves, found: Partitioning) -> Callable[[str, str], bool]:
    """Which data files are read: those of partition directories, or those the paths hold directly."""
    if found.texts:
        return lambda _path, folder: folder in found.texts
    directories = frozenset(leaves.directories)
    root_files = frozenset(leaves.root_files)
    return lambda path, folder: folder in directories or path in root_files


def _filter(options: ListOptions) -> Callable[[FileStatus], bool] | None:
    """Return what the options let through; None if that is everything: there may be very many files."""
    pattern = None if options.path_glob_filter is None else globs.compile_name(options.path_glob_filter)
    before = _threshold("modifiedBefore", options.modified_before, options.timezone)
    after = _threshold("modifiedAfter", options.modified_after, options.timezone)
    if pattern is None and before is None and after is None:
        return None

    def named(name: str) -> bool:
        if pattern is None:
            return True
        return name == pattern if isinstance(pattern, str) else pattern.fullmatch(name) is not None

    def accepts(file: FileStatus) -> bool:
        if not named(file.name):
            return False
        if before is None and after is None:
            return True
        if not tells_time(file):
            raise _untimed(file, "modifiedBefore" if after is None else "modifiedAfter")
        modified = file.modified_ms * _MICROS_PER_MILLI
        return (before is None or modified < before) and (after is None or modified > after)

    return accepts


def _untimed(file: FileStatus, option: str) -> ConfigurationError:
    return ConfigurationError(
        f"the store does not say when {file.path!r} was changed",
        option=option,
        advice=f"leave {option} out, and choose files by their names (path, pathGlobFilter)",
    )


def _threshold(option: str, text: str | None, timezone: str) -> int | None:
    if text is None:
        return None
    micros = parse_timestamp(text, session_zone(timezone), time_alone=False)
    if micros is None:
        raise ConfigurationError(
            f"{text!r} is not a time", option=option, advice="write yyyy-MM-ddTHH:mm:ss, such as 2024-06-01T12:00:00"
        )
    return micros


def _base_paths(leaves: Leaves, options: ListOptions) -> list[str]:
    if options.base_path is None:
        return [*leaves.directories, *(parent(path) for path in leaves.root_files)]
    base = plain_path(options.base_path)
    store = store_for(base, options.storage)
    found = store.stat(base)
    if found is None and options.begun and not store.keeps_empty_directories:
        return [base]
    if not isinstance(found, Directory):
        what = "does not exist" if found is None else "is not a directory"
        kind = RetriableError if found is None and options.begun else ConfigurationError
        raise kind(f"{base!r} {what}", option="basePath", advice="name the root directory of the table")
    for path in (*leaves.directories, *leaves.root_files):
        if path != base and not path.startswith(base if base.endswith("/") else base + "/"):
            raise ConfigurationError(
                f"{path!r} is not below {base!r}",
                option="basePath",
                advice="name a directory that all paths lie in, written as the paths are",
            )
    return [base]
