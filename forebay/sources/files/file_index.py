# SPDX-License-Identifier: Apache-2.0
"""Lists the files of a read with their partition values, as Spark's file sources do."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress

import pyarrow as pa

from forebay.errors import ConfigurationError, RetriableError
from forebay.formats.values.dates import parse_timestamp, session_zone
from forebay.sources.files import listing
from forebay.sources.files.listing import Leaves, ListOptions, find_leaves, is_data_name
from forebay.sources.files.partitions import Partitioning, PartitionPruning, partitions
from forebay.stores.file_status import FileStatus, FileTable, paths_of
from forebay.stores.paths import last_name, normalized_path, parent
from forebay.stores.store import Directory
from forebay.stores.stored_file import store_for

_MICROS_PER_MILLI = 1000
_DEFAULTS = ListOptions()


@dataclass(frozen=True)
class FileIndex:
    """The result of a listing.

    Attributes:
        files: The files to read, sorted by path, without duplicates. Empty files are included.
        partition_schema: The partition columns, outermost first.
        partition_texts: The raw directory texts of the partition columns, for each file.
        left_out: Paths of data files that are not read, as in Spark: they are in nested directories without partition
            columns, or outside the partition directories.
        sinks: Directories with the log of a Spark sink.
        emptied: Paths that an earlier listing found and that no longer exist; see `Leaves`.
    """

    files: Sequence[FileStatus]
    partition_schema: pa.Schema
    partition_texts: tuple[tuple[str, ...], ...]
    left_out: tuple[str, ...]
    sinks: tuple[str, ...] = ()
    emptied: tuple[str, ...] = ()


def list_files(paths: Sequence[str], options: ListOptions = _DEFAULTS) -> FileIndex:
    """List the files to read below the paths. Accesses the stores on every call; may block.

    Raises:
        ConfigurationError: A path matches nothing, an option is invalid, the directories have different partition
            columns, or an option filters by time and a store reports no times.
        DataLossError: A file that a Spark sink committed no longer exists.
        RetriableError: A store did not answer, or a file or directory disappeared during the listing.
    """
    accepts = _filter(options)
    pruning = None if options.partition_filter is None else PartitionPruning(options.partition_filter)
    leaves = find_leaves(paths, options, pruning)
    # A large listing is a `FileTable`, which creates its `FileStatus` objects on access.
    files = _chosen(leaves.files, [is_data_name(last_name(path)) for path in paths_of(leaves.files)])
    known: dict[str, str] = {}
    folders = [known.setdefault(folder, folder) for folder in map(parent, paths_of(files))]
    partitioning = Partitioning(pa.schema([]), {}, {})
    left_out: tuple[str, ...] = ()
    if not options.recursive_file_lookup:
        partitioning = partitions(
            known,
            _base_paths(leaves, options),
            type_inference=options.type_inference,
            timezone=options.timezone,
            types=options.partition_types or {},
        )
        inside = _inside(leaves, partitioning)
        mask = [inside(path, folder) for path, folder in zip(paths_of(files), folders, strict=True)]
        if not all(mask):
            left_out = tuple(path for path, keep in zip(paths_of(files), mask, strict=True) if not keep)
            files, folders = _chosen(files, mask), list(compress(folders, mask))
    if pruning is not None:
        matching = pruning.matching(partitioning, options.timezone)
        mask = [folder in matching for folder in folders]
        pruning.report(mask.count(False))
        files, folders = _chosen(files, mask), list(compress(folders, mask))
    if accepts is not None:
        mask = list(map(accepts, files))
        files, folders = _chosen(files, mask), list(compress(folders, mask))
    return FileIndex(
        files,
        partitioning.schema,
        tuple(partitioning.texts.get(folder, ()) for folder in folders),
        left_out,
        leaves.sinks,
        leaves.emptied,
    )


def _chosen(files: Sequence[FileStatus], keep: Sequence[bool]) -> Sequence[FileStatus]:
    if all(keep):
        return files
    if isinstance(files, FileTable):
        return files.select(array("Q", compress(range(len(files)), keep)))
    return tuple(compress(files, keep))


def _inside(leaves: Leaves, partitioning: Partitioning) -> Callable[[str, str], bool]:
    """Return a function that tells whether a file is in a partition directory or directly in one of the paths."""
    if partitioning.texts:
        return lambda _path, folder: folder in partitioning.texts
    directories = frozenset(leaves.directories)
    root_files = frozenset(leaves.root_files)
    return lambda path, folder: folder in directories or path in root_files


def _name_filter(pattern: str) -> Callable[[str], bool]:
    try:
        return listing.name_matcher(pattern)
    except ConfigurationError as error:
        error.option = "pathGlobFilter"
        raise


def _filter(options: ListOptions) -> Callable[[FileStatus], bool] | None:
    """Return a function that tells whether a file passes the filters by name and time; None if no filter is set."""
    matches = None if options.path_glob_filter is None else _name_filter(options.path_glob_filter)
    before = _threshold("modifiedBefore", options.modified_before, options.timezone)
    after = _threshold("modifiedAfter", options.modified_after, options.timezone)
    if matches is None and before is None and after is None:
        return None

    def accepts(file: FileStatus) -> bool:
        if matches is not None and not matches(file.name):
            return False
        if before is None and after is None:
            return True
        if not file.has_time:
            option = "modifiedBefore" if after is None else "modifiedAfter"
            raise ConfigurationError(
                f"the store does not report when {file.path!r} was changed, which {option} needs",
                option=option,
                advice=f"remove {option}, and select files by name (path, pathGlobFilter)",
            )
        modified = file.modified_ms * _MICROS_PER_MILLI
        return (before is None or modified < before) and (after is None or modified > after)

    return accepts


def _threshold(option: str, text: str | None, timezone: str) -> int | None:
    if text is None:
        return None
    micros = parse_timestamp(text, session_zone(timezone), time_alone=False)
    if micros is None:
        raise ConfigurationError(
            f"the option {option} is {text!r}, which is not a timestamp",
            option=option,
            advice="write yyyy-MM-ddTHH:mm:ss, such as 2024-06-01T12:00:00",
        )
    return micros


def _base_paths(leaves: Leaves, options: ListOptions) -> list[str]:
    if options.base_path is None:
        return [*leaves.directories, *(parent(path) for path in leaves.root_files)]
    base = normalized_path(options.base_path)
    store = store_for(base, options.storage)
    status = store.stat(base)
    if status is None and options.begun and not store.keeps_empty_directories:
        return [base]
    if not isinstance(status, Directory):
        what = "does not exist" if status is None else "is not a directory"
        kind = RetriableError if status is None and options.begun else ConfigurationError
        raise kind(f"basePath {base!r} {what}", option="basePath", advice="set basePath to the table's root directory")
    for path in (*leaves.directories, *leaves.root_files):
        if path != base and not path.startswith(base if base.endswith("/") else base + "/"):
            raise ConfigurationError(
                f"the path {path!r} is not below basePath {base!r}",
                option="basePath",
                advice="set basePath to a directory that contains all paths, and write it in the same way as the paths",
            )
    return [base]
