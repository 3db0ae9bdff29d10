# SPDX-License-Identifier: Apache-2.0
"""From the paths a user gave to the files below them: globs, hidden names, sink logs, nested directories."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from forebay.errors import ConfigurationError, DataLossError, RetriableError
from forebay.sources.files.listing import globs, sink_log
from forebay.stores.file_status import FileStatus, last_name
from forebay.stores.open_store import store_for
from forebay.stores.paths import Place, is_url, join, place_of, without_dots
from forebay.stores.storage_options import NO_OPTIONS, StorageOptions
from forebay.stores.store import Directory, Store

# Schemes that are one store under several names: Spark's sink logs s3a:// what users read as s3://.
_SAME_STORE = re.compile(r"(?:s3[an]?|gcs|gs|abfss?|wasbs?|az)://", re.IGNORECASE)
_STORE_OF = {"s": "s3://", "g": "gs://", "a": "abfs://", "w": "abfs://"}


@dataclass(frozen=True, slots=True)
class Leaves:
    """All files found below some paths, before any is chosen by filters or by partition discovery.

    Attributes:
        directories: The directories the paths named, globs replaced by what they matched.
        root_files: The files the paths named themselves.
        files: Every file that is not hidden, once each, by path.
        sinks: The directories that a Spark stream writes to: a log says which of their files count.
        emptied: The plain paths that are not there now and were, in stores where directories go with their last file.
    """

    directories: tuple[str, ...]
    root_files: tuple[str, ...]
    files: tuple[FileStatus, ...]
    sinks: tuple[str, ...] = ()
    emptied: tuple[str, ...] = ()


def is_hidden(name: str) -> bool:
    """Whether a listing passes over a name: Spark's rule for files and directories below a path.

    Hidden are `.…`, `_…` unless there is a `=` in it, and `…._COPYING_`; but not `_metadata…` and `_common_metadata…`.
    """
    excluded = name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")
    return excluded and not name.startswith(("_metadata", "_common_metadata"))


def is_data_name(name: str) -> bool:
    """Whether a listed file holds rows: summary files of Parquet (`_metadata`) are listed, but are not data."""
    return not (name.startswith(".") or (name.startswith("_") and "=" not in name))


def find_leaves(
    paths: Sequence[str],
    *,
    options: StorageOptions = NO_OPTIONS,
    ignore_missing: bool = False,
    repeated: bool = False,
    begun: bool = False,
) -> Leaves:
    """Find every file below the paths, through all nested directories.

    Called once for each listing, on the planning thread. Each path is looked up now; nothing is remembered.

    Args:
        paths: Files, directories or globs; local paths or URLs of any kinds mixed.
        options: Arguments for the stores of the URLs.
        ignore_missing: Leave out what goes away while it is listed, instead of failing. A path that matches nothing
            is an error all the same.
        repeated: The listing is made again and again: a glob that matches nothing is no error, nor is what goes away
            meanwhile; under another name the next listing finds it.
        begun: An earlier listing found every path: one that is not there now is away for a while, or, where directories
            go with their last file, empty.

    Raises:
        ConfigurationError: A path matches nothing, may not be read, or its store is not known.
        DataLossError: A file that a sink committed is gone.
        RetriableError: A store did not answer, something went away while it was listed, or a path is away.
    """
    if not paths:
        raise ConfigurationError("no path was given", option="path", advice="set path, or paths to a list")
    directories: dict[str, None] = {}
    root_files: dict[str, None] = {}
    files: dict[str, FileStatus] = {}
    sinks: list[str] = []
    emptied: list[str] = []
    for path in paths:
        store = store_for(path, options, ignore_missing=ignore_missing, ignore_vanished=repeated)
        roots = _roots(store, path, repeated=repeated, begun=begun)
        if roots is None:
            emptied.append(path)
        for root in roots or ():
            if sink_log.DIRECTORY in root.path.split("/"):
                continue
            if isinstance(root, FileStatus):
                root_files[root.path] = None
                found: Iterable[FileStatus] = () if is_hidden(root.name) else (root,)
            else:
                directories[root.path] = None
                found = _below(store, root.path, sinks, ignore_missing=ignore_missing, repeated=repeated)
            for file in found:
                files.setdefault(file.path, file)
    ordered = tuple(files[path] for path in sorted(files))
    return Leaves(tuple(directories), tuple(root_files), ordered, tuple(dict.fromkeys(sinks)), tuple(emptied))


def _roots(store: Store, path: str, *, repeated: bool, begun: bool) -> list[FileStatus | Directory] | None:
    """What is there under a path; None if it was there before, and such a store knows no empty directories."""
    place = place_of(path)
    if not globs.is_glob("/".join(place.parts)):
        exact = _at(store, path, place)
        if exact is None:
            if begun and not store.keeps_empty_directories:
                return None
            raise _away(path, place) if begun else _not_there(path, place, "")
        return [_plainly(exact)]
    found: dict[str, FileStatus | Directory] = {}
    for pattern in globs.expand("/".join(place.parts)):
        for match in _matches(store, place, tuple(part for part in pattern.split("/") if part)):
            plain = _plainly(match)
            found.setdefault(plain.path, plain)
    if not found:
        literal = store.stat(_path(place, place.parts))
        if repeated and literal is None:
            return []
        raise _not_there(path, place, "" if literal is None else globs.escape(path))
    return [found[name] for name in sorted(found)]


def _at(store: Store, path: str, place: Place) -> FileStatus | Directory | None:
    """What is there under a plain path; where paths are keys, under the key as it is written if there is one."""
    exact = place_of(path, keep_empty=True) if store.paths_are_keys else place
    found = store.stat(_path(exact, exact.parts))
    return store.stat(_path(place, place.parts)) if found is None and exact != place else found


def _plainly(found: FileStatus | Directory) -> FileStatus | Directory:
    """By the one path it has whatever detour was written: a file is read once."""
    path = without_dots(found.path)
    if path == found.path:
        return found
    return Directory(path) if isinstance(found, Directory) else replace(found, path=path)


def _matches(store: Store, place: Place, parts: tuple[str, ...]) -> list[FileStatus | Directory]:
    """What one pattern without slashes in braces matches, level by level; only wildcards cost a listing."""
    above: list[str] = [_path(place, ())]
    result: list[FileStatus | Directory] | None = None
    for number, part in enumerate(parts):
        name = globs.compile_name(part)
        if isinstance(name, str):
            above = [join(directory, name) for directory in above]
            result = None
            continue
        result = []
        for directory in above:
            listed = store.children(directory, partial(_fits, name))
            if listed is not None:
                result += [Directory(path) for path in listed.directories]
                result += listed.files if number == len(parts) - 1 else []
        above = [found.path for found in result]
    if result is None:  # the last part is a plain name, or there is none
        looked = [store.stat(path) for path in above]
        result = [found for found in looked if found is not None]
    return result


def _below(store: Store, root: str, all_sinks: list[str], *, ignore_missing: bool, repeated: bool) -> list[FileStatus]:
    files: list[FileStatus] = []
    sinks: list[str] = []
    store.prefetch(root)
    waiting = [root]
    while waiting:
        directory = waiting.pop()
        listed = store.children(directory, lambda name: name == sink_log.DIRECTORY or not is_hidden(name))
        if listed is None:
            if (
                ignore_missing or repeated or directory == root
            ):  # Spark, too, takes a path that has just gone for an empty one
                continue
            raise RetriableError(
                f"the directory {directory!r} went away while it was being listed",
                advice="set ignoreMissingFiles=true to leave out what goes away",
            )
        files += listed.files
        for child in listed.directories:
            if last_name(child) == sink_log.DIRECTORY:
                sinks.append(directory)
            else:
                waiting.append(child)
    all_sinks += sinks
    return _only_committed(store, files, sinks, ignore_missing) if sinks else files


def _only_committed(store: Store, files: list[FileStatus], sinks: list[str], ignore_missing: bool) -> list[FileStatus]:
    """Of the files below each sink's directory, those its log names; and what it names elsewhere (a linked path)."""
    result: list[FileStatus] = []
    rest = files
    for sink in sorted(sinks, key=len, reverse=True):  # the innermost sink decides
        head = _store_key(join(sink, ""))
        here = {_store_key(file.path): file for file in rest if _store_key(file.path).startswith(head)}
        rest = [file for file in rest if _store_key(file.path) not in here]
        for path in sink_log.committed_paths(store, join(sink, sink_log.DIRECTORY)):
            file = here.get(_store_key(path)) or _elsewhere(store, sink, path)
            if file is not None:
                result.append(file)
            elif not ignore_missing:
                raise DataLossError(
                    f"{path!r} was committed by the sink that wrote {sink!r}, but is not there",
                    advice="restore it (was the directory moved? its log names the old place), or set "
                    "ignoreMissingFiles=true to go on without it",
                )
    return result + rest


def _elsewhere(store: Store, sink: str, path: str) -> FileStatus | None:
    schemes = {_store_key(each).split(":")[0] if is_url(each) else "" for each in (sink, path)}
    if len(schemes) > 1:
        return None
    found = store.stat(path)
    return found if isinstance(found, FileStatus) else None


def _store_key(path: str) -> str:
    match = _SAME_STORE.match(path)
    return path if match is None else _STORE_OF[path[0].lower()] + path[match.end() :]


def _fits(pattern: re.Pattern[str], name: str) -> bool:
    return pattern.fullmatch(name) is not None


def _path(place: Place, parts: tuple[str, ...]) -> str:
    path = place.root + place.chain
    for part in parts:
        path = join(path, part)
    return path


def _away(path: str, place: Place) -> RetriableError:
    """What was there is not: a mount, or a directory that is being replaced. A second look would not tell better."""
    error = _not_there(path, place, "")
    return RetriableError(error.message, option=error.option, advice=error.advice)


def _not_there(path: str, place: Place, escaped: str) -> ConfigurationError:
    if escaped:
        advice = f"it is read as a glob; for the file of exactly this name write {escaped}"
    elif globs.is_glob("/".join(place.parts)):
        advice = "no file or directory matches this glob: check each of its parts"
    else:
        advice = "check the spelling, and that this machine and the workers see the same file system"
    # A worker or a planner may have another working directory than whoever wrote a relative path.
    looked = "" if path.startswith("/") or is_url(path) else f", looked for as {_path(place, place.parts)!r}"
    return ConfigurationError(f"path does not exist: {path!r}{looked}", option="path", advice=advice)
