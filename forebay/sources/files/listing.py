# SPDX-License-Identifier: Apache-2.0
"""Lists the files below the user's paths as Spark does: globs, hidden names, sink logs, partition values."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from urllib.parse import unquote

import pyarrow as pa

from forebay.errors import ConfigurationError, DataError, DataLossError, RetriableError
from forebay.sources.files.partitions import PartitionPruning
from forebay.stores.file_status import FileStatus, FileTable
from forebay.stores.paths import PathParts, is_s3, is_url, join, last_name, split_path, without_dots
from forebay.stores.store import NO_OPTIONS, Directory, StorageOptions, Store
from forebay.stores.stored_file import store_for

# -- Matches globs of Hadoop: `*`, `?`, `[abc]`, `[^a-c]`, `{a,b}`, escape `\`. Wildcards also match a leading dot.


_SPECIAL = frozenset("*?[]{}\\")
_ANYWHERE = {"*": ".*", "?": ".", "{": "(?:"}
_IN_GROUP = {**_ANYWHERE, ",": "|", "}": ")"}
_NO_ESCAPED = "nothing follows the last backslash"
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def is_glob(path: str) -> bool:
    """Return whether a path has any special character of globs, including a backslash."""
    return not _SPECIAL.isdisjoint(path)


def escape(path: str) -> str:
    """Return the glob that matches only this path, with special characters escaped."""
    return "".join("\\" + char if char in _SPECIAL else char for char in path)


def expand(pattern: str) -> list[str]:
    """Expand braces that contain a slash: `p{a/b,c/d}s` gives `pa/bs` and `pc/ds`. Other braces stay."""
    group = _group_with_slash(pattern)
    if group is None:
        return [pattern]
    before, items, after = group
    return [path for item in items for path in expand(before + item + after)]


def literal_name(pattern: str) -> str | None:
    """Return the one name that a pattern without wildcards matches; None if the pattern has wildcards."""
    wildcards = _SPECIAL.intersection(char for _, char in _unescaped(pattern)) - set("]}")
    return None if wildcards else _ESCAPED.sub(r"\1", pattern)


def name_matcher(pattern: str) -> Callable[[str], bool]:
    """Return a function that tells whether a name (one part of a path) matches a pattern without slashes.

    Raises:
        ConfigurationError: A bracket or brace is not closed, or nothing follows a backslash.
    """
    regex: list[str] = []
    depth = 0
    position = 0
    while position < len(pattern):
        char = pattern[position]
        if char == "[":
            position, members = _character_class(pattern, position)
            regex.append(members)
        elif char == "\\":
            position += 1
            if position == len(pattern):
                raise _bad(pattern, _NO_ESCAPED)
            regex.append(re.escape(pattern[position]))
        else:
            regex.append((_IN_GROUP if depth else _ANYWHERE).get(char) or re.escape(char))
            depth += (char == "{") - (char == "}" and depth > 0)
        position += 1
    if depth:
        raise _bad(pattern, "a brace is not closed")
    try:
        compiled = re.compile("".join(regex), re.DOTALL)
    except re.error as error:
        raise _bad(pattern, str(error)) from error
    return lambda name: compiled.fullmatch(name) is not None


def _character_class(pattern: str, start: int) -> tuple[int, str]:
    """Convert the character class `[…]` at `start`; return the index after it and its regular expression.

    A `]` directly after the bracket belongs to the class.
    """
    negated = pattern.startswith(("^", "!"), start + 1)
    position = start + 1 + negated
    members: list[str] = []
    while position < len(pattern):
        if pattern[position] == "]" and members:
            return position, f"[{'^' if negated else ''}{''.join(members)}]"
        position, member = _class_member(pattern, position)
        if pattern.startswith("-", position) and pattern[position + 1 : position + 2] not in ("", "]"):
            position, last = _class_member(pattern, position + 1)
            member += "-" + last
        members.append(member)
    raise _bad(pattern, "a bracket is not closed")


def _class_member(pattern: str, position: int) -> tuple[int, str]:
    """Return the index after one character of a class, and its regular expression.

    Escape `-` too, because `re` warns of two hyphens in a row.
    """
    position += pattern[position] == "\\"
    char = pattern[position : position + 1]
    return position + 1, char if char.isalnum() else "\\" + char


def _group_with_slash(pattern: str) -> tuple[str, list[str], str] | None:
    """Split a pattern at its first braces that contain a slash: text before, alternatives, text after; None if none."""
    depth, slash = 0, False
    cuts: list[int] = []
    for position, char in _unescaped(pattern):
        if char == "{":
            if depth == 0:
                slash, cuts = False, [position]
            depth += 1
        elif char == "}" and depth:
            depth -= 1
            if depth == 0 and slash:
                items = [pattern[left + 1 : right] for left, right in pairwise([*cuts, position])]
                return pattern[: cuts[0]], items, pattern[position + 1 :]
        elif char == "," and depth == 1:
            cuts.append(position)
        elif char == "/" and depth:
            slash = True
    return None


def _unescaped(pattern: str) -> Iterator[tuple[int, str]]:
    position = 0
    while position < len(pattern):
        if pattern[position] == "\\":
            if position + 1 == len(pattern):
                raise _bad(pattern, _NO_ESCAPED)
            position += 2
            continue
        yield position, pattern[position]
        position += 1


def _bad(pattern: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"the glob {pattern!r} is invalid: {why}",
        option="path",
        advice="correct the glob; write a backslash before a special character that is part of the name",
    )


# -- Reads the log of Spark's streaming file sink (`_spark_metadata`), which names the committed files.


DIRECTORY = "_spark_metadata"
_BATCH = re.compile(r"(\d+)(\.compact)?", re.ASCII)
_ATTEMPTS = 5


def committed_paths(store: Store, log: str) -> list[str]:
    """Return the paths or URLs of the files that a sink has committed, in the order of its log.

    If Spark compacts the log and deletes log files during the call, the log is listed and read again.

    Args:
        store: The store of the log.
        log: The `_spark_metadata` directory.

    Raises:
        ConfigurationError: The version of the log is not `v1`.
        DataError: A log file is missing or damaged.
        RetriableError: The log kept changing while it was read.
    """
    for _ in range(_ATTEMPTS):
        names = _needed(store, log)
        entries: list[tuple[str, str]] = []
        try:
            for name in names:
                entries += _entries(store, join(log, name))
        except FileNotFoundError:
            continue
        for path, _ in entries:
            if _scheme(path) != _scheme(log):
                raise DataError(
                    f"the sink log {log!r} names {path!r:.300}, which is in another store",
                    advice="read the directory by the scheme by which the sink wrote it, or read the data files with a "
                    "glob such as path/*, which ignores the log",
                )
        deleted = {path for path, action in entries if action == "delete"}
        return list(dict.fromkeys(_plain(path) for path, action in entries if path not in deleted))
    raise RetriableError(f"the sink log {log} kept changing while it was read", advice="start the read again")


def _needed(store: Store, log: str) -> list[str]:
    """Return the names of the log files to read: the newest compacted file and all later files."""
    listed = store.children(log, lambda name: _BATCH.fullmatch(name) is not None)
    if listed is None:
        return []
    batches: dict[int, str] = {}
    compact = -1
    for file in listed.files:
        match = _BATCH.fullmatch(file.name)
        if match is None:
            continue
        number = int(match[1])
        if match[2]:
            compact = max(compact, number)
        if match[2] or number not in batches:
            batches[number] = file.name
    if not batches:
        return []
    numbers = range(max(compact, 0), max(batches) + 1)
    missing = [number for number in numbers if number not in batches]
    if missing:
        raise DataError(
            f"the sink log {log!r} has a file for micro-batch {max(batches)}, but none for {missing[0]}",
            advice="restore the log file, or read the data files with a glob such as path/*, which ignores the log",
        )
    return [batches[number] for number in numbers]


def _entries(store: Store, path: str) -> list[tuple[str, str]]:
    with store.open(path) as stream:
        version, *lines = stream.read().decode("utf-8", "replace").split("\n")
    if version.strip() != "v1":
        if re.fullmatch(r"v\d+", version.strip()):
            raise ConfigurationError(
                f"the sink log {path!r} has version {version.strip()}, but forebay can read only v1",
                advice="update forebay, or read the data files with a glob such as path/*, which ignores the log",
            )
        raise _damaged(path, 1)
    entries: list[tuple[str, str]] = []
    for number, line in enumerate(lines, start=2):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            if not entry.get("isDir", False):
                str(entry["path"]).encode()  # half a surrogate pair is a ValueError, and no path
                entries.append((str(entry["path"]), str(entry.get("action", "add"))))
        except (ValueError, KeyError, AttributeError, TypeError):
            raise _damaged(path, number) from None
    return entries


def _scheme(path: str) -> str:
    """Return the scheme of a path or URL in lower case: `file` for a local one, `s3` for all of S3's."""
    return "file" if not is_url(path) else "s3" if is_s3(path) else path.partition("://")[0].lower()


def _damaged(path: str, line: int) -> DataError:
    return DataError(
        f"the sink log {path!r} is damaged",
        position=f"line {line}",
        advice="restore the log file, or read the data files with a glob such as path/*, which ignores the log",
    )


def _plain(url: str) -> str:
    """Convert a URI from the log of Spark's sink to a plain path or URL."""
    place = split_path(unquote(url))
    return reduce(join, place.parts, place.root)


# -- Finds the files below paths: expands globs, skips hidden names, follows sink logs, descends into directories.


# Schemes that name one store: Spark's sink logs write s3a:// for what users read as s3://.
_SAME_STORE = re.compile(r"(?:s3[an]?|gcs|gs|abfss?|wasbs?|az)://", re.IGNORECASE)
_STORE_OF = {"s": "s3://", "g": "gs://", "a": "abfs://", "w": "abfs://"}


@dataclass(frozen=True)
class ListOptions:
    """The options of a listing. Most fields are Spark's options of the same names.

    Attributes:
        timezone: The time zone of `modifiedBefore`, of `modifiedAfter` and of timestamps in directory names.
        partition_types: Types by column name, from the user's schema. Columns that are not partition columns are
            ignored.
        repeated: Whether the caller lists again later. If so, an unmatched glob or a directory that disappears is no
            error.
        begun: Whether an earlier listing found the paths. If so, a missing path raises `RetriableError`; in an object
            store it counts as empty.
        list_after: On S3, list only the keys that sort after this one.
        storage: Credentials and settings for the stores of URLs.
        partition_filter: The option `partitionFilter`.
    """

    recursive_file_lookup: bool = False
    path_glob_filter: str | None = None
    modified_before: str | None = None
    modified_after: str | None = None
    timezone: str = "UTC"
    base_path: str | None = None
    type_inference: bool = True
    partition_types: Mapping[str, pa.DataType] | None = None
    ignore_missing_files: bool = False
    repeated: bool = False
    begun: bool = False
    list_after: str = ""
    storage: StorageOptions = NO_OPTIONS
    partition_filter: str | None = None


@dataclass(frozen=True, slots=True)
class Leaves:
    """All files below some paths, before filters and partition discovery.

    Attributes:
        directories: Directories that the paths or their globs name.
        root_files: Files that the paths or their globs name.
        files: All files that are not hidden, sorted by path, without duplicates.
        sinks: Directories with the log of a Spark sink.
        emptied: Paths without wildcards that an earlier listing found and that no longer exist; only in stores without
            empty directories, such as S3.
    """

    directories: tuple[str, ...]
    root_files: tuple[str, ...]
    files: Sequence[FileStatus]
    sinks: tuple[str, ...]
    emptied: tuple[str, ...]


def is_hidden(name: str) -> bool:
    """Return whether Spark's listing skips a name: `.…`, `_…` without `=`, and `…._COPYING_`.

    Parquet's summary files (`_metadata`, `_common_metadata`) are not skipped.
    """
    excluded = not is_data_name(name) or name.endswith("._COPYING_")
    return excluded and not name.startswith(("_metadata", "_common_metadata"))


def is_data_name(name: str) -> bool:
    """Return whether a file of this name holds rows. Parquet's summary files (`_metadata`) are listed but hold none."""
    return not (name.startswith(".") or (name.startswith("_") and "=" not in name))


def find_leaves(paths: Sequence[str], options: ListOptions, pruning: PartitionPruning | None = None) -> Leaves:
    """Find every file below the paths, in all nested directories. Accesses the stores on every call.

    Args:
        paths: Paths, globs or URLs.
        options: The options of the listing.
        pruning: The partition filter: directories without matching rows are not listed; None = list all.

    Raises:
        ConfigurationError: A path matches nothing, may not be read, or its store is unknown.
        DataLossError: A file that a sink committed no longer exists.
        RetriableError: A store did not answer, or a file or directory disappeared during the listing.
    """
    if not paths:
        raise ConfigurationError(
            "the option path is not set", option="path", advice="set path to a path, or paths to a list of paths"
        )
    directories: dict[str, None] = {}
    root_files: dict[str, None] = {}
    parts: list[Sequence[FileStatus]] = []
    sinks: dict[str, None] = {}
    emptied: list[str] = []
    for path in paths:
        if options.list_after and not is_s3(path):
            raise _not_listed_after(path)
        store = store_for(
            path, options.storage, ignore_missing=options.ignore_missing_files, ignore_vanished=options.repeated
        )
        roots = _roots(store, path, options)
        if roots is None:
            emptied.append(path)
        for root in roots or ():
            if DIRECTORY in root.path.split("/"):
                continue
            if isinstance(root, FileStatus):
                root_files[root.path] = None
                parts.append((root,) if _is_after(root.path, options) and not is_hidden(root.name) else ())
            else:
                directories[root.path] = None
                parts.append(_below(store, root.path, sinks, options, pruning))
    return Leaves(tuple(directories), tuple(root_files), _in_order(parts), tuple(sinks), tuple(emptied))


def _in_order(parts: Sequence[Sequence[FileStatus]]) -> Sequence[FileStatus]:
    """Return the files of all parts, sorted by path, without duplicates. A sorted `FileTable` is not copied."""
    if any(isinstance(part, FileTable) for part in parts):
        table = FileTable()
        for part in parts:
            table.extend(part if isinstance(part, FileTable) else FileTable.of(part))
        if table.is_ascending():
            return table
    files: dict[str, FileStatus] = {}
    for part in parts:
        for file in part:
            files.setdefault(file.path, file)
    return tuple(files[path] for path in sorted(files))


def _roots(store: Store, path: str, options: ListOptions) -> list[FileStatus | Directory] | None:
    """Return the files and directories that a path or glob names.

    None if an earlier listing found the path, and its object store now has no object below it.
    """
    place = split_path(path)
    if not is_glob("/".join(place.parts)):
        exact = _stat_plain(store, path, place)
        if exact is not None:
            return [_without_dots(exact)]
        if options.begun and not store.keeps_empty_directories:
            return None
        raise _not_found(path, place, kind=RetriableError if options.begun else ConfigurationError)
    roots: dict[str, FileStatus | Directory] = {}
    for pattern in expand("/".join(place.parts)):
        for match in _matches(store, place, [part for part in pattern.split("/") if part]):
            plain = _without_dots(match)
            roots.setdefault(plain.path, plain)
    if not roots:
        literal = store.stat(_path(place, place.parts))
        if options.repeated and literal is None:
            return []
        raise _not_found(path, place, escaped="" if literal is None else escape(path))
    return [roots[name] for name in sorted(roots)]


def _stat_plain(store: Store, path: str, place: PathParts) -> FileStatus | Directory | None:
    """Look up a path without wildcards; return None if nothing is there.

    In an object store, first try the key as written, then without empty names (`a//b` as `a/b`).
    """
    exact = split_path(path, keep_empty=True) if store.paths_are_keys else place
    status = store.stat(_path(exact, exact.parts))
    return store.stat(_path(place, place.parts)) if status is None and exact != place else status


def _without_dots(status: FileStatus | Directory) -> FileStatus | Directory:
    path = without_dots(status.path)
    return Directory(path) if isinstance(status, Directory) else replace(status, path=path)


def _matches(store: Store, place: PathParts, parts: Sequence[str]) -> list[FileStatus | Directory]:
    """Return the files and directories that match a pattern. Only levels with wildcards are listed.

    Args:
        store: The store.
        place: The root of the pattern.
        parts: The pattern's part for each level. No part has a slash, not even in braces.
    """
    above: list[str] = [_path(place, ())]
    result: list[FileStatus | Directory] | None = None
    for number, part in enumerate(parts, start=1):
        literal = literal_name(part)
        if literal is not None:
            above = [join(directory, literal) for directory in above]
            result = None
            continue
        matches = name_matcher(part)
        result = []
        for directory in above:
            listed = store.children(directory, matches)
            if listed is not None:
                result += [Directory(path) for path in listed.directories]
                result += listed.files if number == len(parts) else []
        above = [status.path for status in result]
    if result is None:  # the last part has no wildcard, or there is no part
        return [status for path in above if (status := store.stat(path)) is not None]
    return result


def _below(
    store: Store, root: str, all_sinks: dict[str, None], options: ListOptions, pruning: PartitionPruning | None
) -> Sequence[FileStatus]:
    # A recursive listing would include the directories that the partition filter excludes.
    walked = store.walk(root, _is_listed, options.list_after) if pruning is None else None
    if walked is not None:
        files, sinks = _walked(walked, root)
    else:
        all_files, sinks = _descended(store, root, options, pruning)
        files = [file for file in all_files if _is_after(file.path, options)] if options.list_after else all_files
    all_sinks.update(dict.fromkeys(sinks))
    return _only_committed(store, files, sinks, options) if sinks else files


def _is_after(path: str, options: ListOptions) -> bool:
    """Return whether the key of an S3 URL sorts after the option `listAfter`; True if this option is not set."""
    return not options.list_after or path.split("/", 3)[-1] > options.list_after


def _is_listed(name: str) -> bool:
    return name == DIRECTORY or not is_hidden(name)


def _walked(listed: Sequence[FileStatus], root: str) -> tuple[Sequence[FileStatus], list[str]]:
    """Return from a store's recursive listing the data files, and the directories with the log of a Spark sink."""
    if isinstance(listed, FileTable) and not listed.mentions(f"/{DIRECTORY}/"):
        return listed, []
    files: list[FileStatus] = []
    sinks: dict[str, None] = {}
    for file in listed:
        above, inside, _ = file.path[len(root) :].partition(f"/{DIRECTORY}/")
        if inside:
            sinks[root + above] = None
        else:
            files.append(file)
    return files, list(sinks)


def _descended(
    store: Store, root: str, options: ListOptions, pruning: PartitionPruning | None
) -> tuple[list[FileStatus], list[str]]:
    """List a tree one directory at a time; return data files, and the directories with the log of a Spark sink."""
    files: list[FileStatus] = []
    sinks: list[str] = []
    waiting = [root]
    while waiting:
        directory = waiting.pop()
        listed = store.children(directory, _is_listed)
        if listed is None:
            # Spark, too, treats a root that has just disappeared as empty.
            if options.ignore_missing_files or options.repeated or directory == root:
                continue
            raise RetriableError(
                f"the directory {directory!r} disappeared while it was being listed",
                advice="set ignoreMissingFiles=true to skip files and directories that disappear",
            )
        files += listed.files
        for child in listed.directories:
            if last_name(child) == DIRECTORY:
                sinks.append(directory)
            elif pruning is None or pruning.keeps(root, child):
                waiting.append(child)
    return files, sinks


def _only_committed(
    store: Store, files: Sequence[FileStatus], sinks: list[str], options: ListOptions
) -> list[FileStatus]:
    """Return the files below `sinks` that the sink logs name, and all files elsewhere.

    A file that a log names at a path outside its sink (a link) is added.
    """
    result: list[FileStatus] = []
    remaining = list(files)
    for sink in sorted(sinks, key=len, reverse=True):  # the innermost sink decides
        head = _store_key(join(sink, ""))
        here = {_store_key(file.path): file for file in remaining if _store_key(file.path).startswith(head)}
        remaining = [file for file in remaining if _store_key(file.path) not in here]
        for path in committed_paths(store, join(sink, DIRECTORY)):
            file = here.get(_store_key(path)) or _elsewhere(store, sink, path)
            if file is not None:
                result.append(file)
            elif not options.ignore_missing_files:
                raise DataLossError(
                    f"{path!r} was committed by the sink that wrote {sink!r}, but does not exist",
                    advice="restore the file (after a move, the log still names the old directory), or set "
                    "ignoreMissingFiles=true to skip the file",
                )
    return result + remaining


def _elsewhere(store: Store, sink: str, path: str) -> FileStatus | None:
    sink_store, path_store = (_store_key(each).split(":")[0] if is_url(each) else "" for each in (sink, path))
    status = store.stat(path) if sink_store == path_store else None
    return status if isinstance(status, FileStatus) else None


def _store_key(path: str) -> str:
    match = _SAME_STORE.match(path)
    return path if match is None else _STORE_OF[path[0].lower()] + path[match.end() :]


def _path(place: PathParts, parts: Iterable[str]) -> str:
    return reduce(join, parts, place.root + place.chain)


def _not_listed_after(path: str) -> ConfigurationError:
    return ConfigurationError(
        f"listAfter works only on S3, and {path!r} is not on S3",
        option="listAfter",
        advice="remove listAfter, and use modifiedAfter, or name the newer directories in path",
    )


def _not_found(
    path: str,
    place: PathParts,
    *,
    escaped: str = "",
    kind: type[ConfigurationError | RetriableError] = ConfigurationError,
) -> ConfigurationError | RetriableError:
    if escaped:
        advice = f"the path is read as a glob: to read the file of exactly this name, write {escaped}"
    elif is_glob("/".join(place.parts)):
        advice = "no file or directory matches this glob: check each of its parts"
    else:
        advice = "check the spelling, and that this machine and the workers see the same file system"
    # A relative path depends on the working directory, which differs in workers and planners.
    looked = "" if path.startswith("/") or is_url(path) else f", looked for as {_path(place, place.parts)!r}"
    return kind(f"path does not exist: {path!r}{looked}", option="path", advice=advice)
