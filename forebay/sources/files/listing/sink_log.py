# SPDX-License-Identifier: Apache-2.0
"""Reads the log of Spark's streaming file sink (`_spark_metadata`), which names the committed files."""

from __future__ import annotations

import json
import re
from functools import reduce
from urllib.parse import unquote

from forebay.errors import ConfigurationError, DataError, RetriableError
from forebay.stores.paths import is_s3, is_url, join, split_path
from forebay.stores.store import Store

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
    wanted = range(max(compact, 0), max(batches) + 1)
    missing = [number for number in wanted if number not in batches]
    if missing:
        raise DataError(
            f"the sink log {log!r} has a file for micro-batch {max(batches)}, but none for {missing[0]}",
            advice="restore the log file, or read the data files with a glob such as path/*, which ignores the log",
        )
    return [batches[number] for number in wanted]


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
