# SPDX-License-Identifier: Apache-2.0
"""What becomes of files that a stream has read to their end: nothing, or they are deleted, or moved away."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterator, Sequence
from functools import partial
from hashlib import sha256
from typing import BinaryIO

from forebay.errors import ConfigurationError, ForebayError
from forebay.sources.files.listing import globs
from forebay.sources.files.listing.file_index import FileIndex
from forebay.sources.files.scan import FileScan
from forebay.sources.files.split import FileSplit
from forebay.stores import safe_delete
from forebay.stores.file_status import FileStatus
from forebay.stores.local import translated
from forebay.stores.open_store import store_for
from forebay.stores.paths import Place, is_url, join, parent, place_of, plain_path, without_dots
from forebay.stores.remote_facts import tells_versions
from forebay.stores.store import Store

_log = logging.getLogger(__name__)

_MANY = 1000
"""From so many files on it is cheaper to list what is there than to look for each: nearly all were cleaned before."""
_BLOCK = 1 << 20
"""Bytes of a file that are compared at a time."""


class Cleaner:
    """Deletes or archives files, when it is told that they are done; may be told again. Called on the planning thread.

    Best effort: what cannot be cleaned is a warning, for its rows have been delivered. A file that has changed since it
    was read is left alone.

    Args:
        source: Says what to do, and where.
    """

    def __init__(self, source: FileScan) -> None:
        self._source = source
        self._looked_into: set[str] = set()

    def check(self, index: FileIndex) -> None:
        """Refuse to clean what a Spark stream has written, whose log would name what is gone; or what may be new.

        Raises:
            ConfigurationError: There is such a log, or a store that tells neither times nor marks.
        """
        if self._source.clean_source == "off":
            return
        if index.sinks:
            raise ConfigurationError(
                f"{index.sinks[0]!r} is the output of a Spark stream, whose log (_spark_metadata) names its files: "
                "they cannot be deleted or moved",
                source=self._source.name,
                option="cleanSource",
                advice="leave cleanSource out",
            )
        # A file without a byte is not read, and so not cleaned.
        untold = next((file for file in index.files if file.size and not tells_versions(file)), None)
        if untold is not None:
            raise ConfigurationError(
                _untold(untold),
                source=self._source.name,
                option="cleanSource",
                advice="leave cleanSource out, and clean this store by other means",
            )

    def clean(self, splits: Sequence[FileSplit]) -> None:
        """Clean the files of these splits. Never raises what a store does."""
        if self._source.clean_source == "off" or not splits:
            return
        self._give_back(splits)
        try:
            wanted = self._present(splits) if len(splits) > _MANY else splits
        except ForebayError as error:
            _log.warning("%s: files that were read are not cleaned yet: %s", self._source.name, error)
            return
        failures: list[str] = []
        for split in wanted:
            try:
                self._clean(split.status)
            except ForebayError as error:
                failures.append(f"{split.path}: {error.message}")
        if failures:
            _log.warning(
                "%s: cleanSource=%s failed for %d files, which stay where they are, such as %s",
                self._source.name,
                self._source.clean_source,
                len(failures),
                failures[0],
            )

    def _give_back(self, splits: Sequence[FileSplit]) -> None:
        """Give files their names back that an earlier process took out of sight, before it looked, and was killed."""
        read: dict[str, list[FileSplit]] = {}
        for split in splits:
            if not is_url(split.path) and (directory := parent(split.path)) not in self._looked_into:
                read.setdefault(directory, []).append(split)
        for directory, there in read.items():
            try:
                safe_delete.give_back(directory, partial(_is_among, there))
            except OSError as error:
                _log.warning("%s: could not look for half-cleaned files: %s", self._source.name, error)
            else:
                self._looked_into.add(directory)

    def _present(self, splits: Sequence[FileSplit]) -> list[FileSplit]:
        for split in splits:
            self._drop_link(split.path)  # first of all: no listing gets past a broken link
        there = {file.path for file in self._source.list(repeated=True, begun=True).files}
        return [split for split in splits if split.path in there]

    def _clean(self, status: FileStatus) -> None:
        source = self._source
        if not tells_versions(status):
            raise ConfigurationError(_untold(status), source=source.name, option="cleanSource")
        now = source.stored(status).now()
        if now is None:
            self._drop_link(status.path)
        if now is None or not status.same_file(now):
            return
        store = store_for(status.path, source.storage_options())
        if source.clean_source == "delete":
            store.delete(status)
            return
        target = archived_path(source.source_archive_dir or "", status.path)
        for name in _names(target, status):
            found = store.stat(name)
            if found is None:
                store.move(status, name)
                return
            if isinstance(found, FileStatus) and _is_copy(store, status, found):
                store.delete(status)
                return

    def _drop_link(self, path: str) -> None:
        """Remove the link that a file was read through, and that leads nowhere now: the file was cleaned itself."""
        if is_url(path):
            return
        try:
            safe_delete.remove_broken_link(path)
        except OSError as error:
            raise translated(error, path, "delete") from error


def _untold(file: FileStatus) -> str:
    return (
        f"the store tells neither when {file.path!r} was changed nor a mark of it (ETag): nobody could tell a newer "
        "file of this name from the one that was read"
    )


def _is_among(splits: Sequence[FileSplit], file: FileStatus) -> bool:
    return any(split.path == file.path and split.status.same_file(file) for split in splits)


def archived_path(archive: str, path: str) -> str:
    """Return where a file goes: its whole path, below the archive."""
    target = plain_path(archive)
    for part in place_of(path, keep_empty=True).parts:
        target = join(target, part)
    return target


def _names(target: str, status: FileStatus) -> Iterator[str]:
    """The names a file may have in the archive: its own, and if earlier ones have that, with its time and a number."""
    yield target
    yield f"{target}.{status.modified_at}"
    for number in itertools.count(1):
        yield f"{target}.{status.modified_at}.{number}"


def _is_copy(store: Store, status: FileStatus, found: FileStatus) -> bool:
    """Whether what is in the archive is this very file: it was copied, and then not deleted, by a kill or an error."""
    if is_url(status.path):
        likely = found.size == status.size and found.modified_at >= status.modified_at  # a copy is made later
    else:
        likely = status.same_file(found)  # a copy has the time of what was copied
    if not likely:
        return False
    try:
        if not is_url(status.path) and os.path.samefile(status.path, found.path):
            return False  # no copy: the archive is mounted a second time where the files are
        with store.open(status.path) as one, store.open(found.path) as other:
            return _digest(one) == _digest(other)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise translated(error, status.path) from error


def _digest(stream: BinaryIO) -> bytes:
    digest = sha256()
    while block := stream.read(_BLOCK):
        digest.update(block)
    return digest.digest()


def check_cleaning(source: FileScan) -> None:
    """Refuse an archive that is not there, is in another store, or would be read by the stream itself.

    Raises:
        ConfigurationError: Naming the option.
    """
    archive = source.source_archive_dir
    if source.clean_source != "archive":
        return
    if not archive:
        raise ConfigurationError(
            "files are to be archived, and it is not said where",
            source=source.name,
            option="sourceArchiveDir",
            advice="give a directory in the same store, outside what the stream reads",
        )
    for path in source.all_paths():
        place = place_of(path)
        if is_url(path) != is_url(archive) or (is_url(path) and _scheme(path) != _scheme(archive)):
            raise ConfigurationError(
                f"{path!r} and the archive {archive!r} are in different stores",
                source=source.name,
                option="sourceArchiveDir",
                advice="name a directory in the store of the files: they are moved, not copied",
            )
        if _overlaps(place, archive):
            raise ConfigurationError(
                f"the archive {archive!r} lies where {path!r} reads, or may: archived files would be read again",
                source=source.name,
                option="sourceArchiveDir",
                advice="name a directory whose path differs from what the stream reads at a part without wildcards",
            )


def _overlaps(place: Place, archive: str) -> bool:
    """Whether a pattern matches the archive, or one of the directories it lies in, or may match what is in it."""
    if is_url(archive):
        return any(_meets(_split(written), place_of(archive).parts) for written in globs.expand("/".join(place.parts)))
    plain = plain_path(archive)
    for written in globs.expand("/".join([globs.escape(place.root), *place.parts])):
        pattern = _without_dots(_split(written))
        # As it is written, for a walk goes into links; and as it is, for links may lead from the one to the other.
        if _meets(pattern, _split(plain)) or _meets(_real(pattern), _split(os.path.realpath(plain))):
            return True
    return False


def _meets(pattern: Sequence[str], archive: Sequence[str]) -> bool:
    return all(_fits(part, name) for part, name in zip(pattern, archive, strict=False))


def _without_dots(pattern: Sequence[str]) -> list[str]:
    """Take each `..` out of a local pattern; behind a wildcard as if no match of it were a link."""
    done: list[str] = []
    for part in pattern:
        names = _literal(done)
        if part != "..":
            done.append(part)
        elif len(names) < len(done):
            done.pop()
        else:
            done = [globs.escape(name) for name in _split(without_dots("/" + "/".join([*names, ".."])))]
    return done


def _real(pattern: Sequence[str]) -> list[str]:
    names = _literal(pattern)
    return [globs.escape(name) for name in _split(os.path.realpath("/" + "/".join(names)))] + [*pattern[len(names) :]]


def _literal(pattern: Sequence[str]) -> list[str]:
    """The names that a pattern begins with, before its first wildcard."""
    names: list[str] = []
    for part in pattern:
        name = globs.compile_name(part)
        if not isinstance(name, str):
            break
        names.append(name)
    return names


def _split(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _fits(pattern: str, name: str) -> bool:
    compiled = globs.compile_name(pattern)
    return compiled == name if isinstance(compiled, str) else compiled.fullmatch(name) is not None


def _scheme(url: str) -> str:
    return url.split("://", 1)[0].lower()
