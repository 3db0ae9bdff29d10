# SPDX-License-Identifier: Apache-2.0
"""Deletes or archives files that a stream has read to their end (`cleanSource`)."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterator, Sequence
from functools import partial, reduce
from hashlib import file_digest
from typing import BinaryIO

from forebay.errors import ConfigurationError, ForebayError
from forebay.sources.files import listing
from forebay.sources.files.file_index import FileIndex
from forebay.sources.files.scan import FileScan
from forebay.sources.files.split import FileSplit
from forebay.stores import local
from forebay.stores.file_status import FileStatus
from forebay.stores.local import store_error
from forebay.stores.paths import PathParts, is_s3, is_url, join, normalized_path, parent, split_path, without_dots
from forebay.stores.store import Store
from forebay.stores.stored_file import store_for

_log = logging.getLogger(__name__)

_MANY = 1000
"""Above this number of files, one listing replaces one lookup per file: most are already cleaned after a restart."""


class Cleaner:
    """Deletes or archives files, as `cleanSource` says. Called by one thread at a time.

    A repeated call has no effect. A failure is only logged as a warning, because all rows have been delivered. Files
    that have changed since they were read are kept, and files outside the paths of the stream: a linked directory may
    lead out of them, and a checkpoint may name any file.
    """

    def __init__(self, source: FileScan) -> None:
        self._source = source
        self._restored: set[str] = set()
        self._roots = [root for path in source.all_paths() for root in _roots(path)]

    def check(self, index: FileIndex) -> None:
        """Refuse to clean the output of a Spark stream, or files whose versions the store cannot distinguish.

        Raises:
            ConfigurationError: A path contains the log of a Spark sink, or a store reports neither times nor ETags.
        """
        if self._source.clean_source == "off":
            return
        if index.sinks:
            raise ConfigurationError(
                f"{index.sinks[0]!r} is the output of a Spark stream, so its files cannot be deleted or moved: the "
                "log _spark_metadata names them",
                source=self._source.name,
                option="cleanSource",
                advice="remove the option cleanSource",
            )
        # Empty files are neither read nor cleaned.
        file = next((file for file in index.files if file.size and not file.has_version), None)
        if file is not None:
            raise _no_version(self._source, file)

    def clean(self, splits: Sequence[FileSplit]) -> None:
        """Delete or archive the files of these splits. Errors of stores are logged, not raised."""
        inside: list[FileSplit] = []
        failures: list[str] = []
        for split in splits:
            if self._is_inside(split.path):
                inside.append(split)
            else:
                failures.append(f"{split.path!r}: {_OUTSIDE}")
        self._restore_names(inside)
        try:
            present = self._present(inside) if len(inside) > _MANY else inside
        except ForebayError as error:
            _log.warning("%s: a listing failed, so read files are not cleaned yet: %s", self._source.name, error)
            return
        for split in present:
            try:
                self._clean(split.status)
            except ForebayError as error:
                failures.append(f"{split.path!r}: {error.message}")
        if failures:
            _log.warning(
                "%s: cleanSource=%s failed for %d files, which stay where they are; the first one: %s",
                self._source.name,
                self._source.clean_source,
                len(failures),
                failures[0],
            )

    def _is_inside(self, path: str) -> bool:
        """Return whether a file is below one of the stream's paths, as written and with linked directories resolved."""
        place = split_path(path, keep_empty=True)
        if ".." in place.parts and not is_s3(path):  # on S3 it is an ordinary name
            return False
        if is_url(path):
            return any(place[::2] == root[::2] and _starts(place.parts, root.parts) for root in self._roots)
        real = _split(os.path.realpath(parent(path)))
        # A path without wildcards may be the file itself, which may be a link.
        return any(
            names == place.parts
            or (_starts(place.parts, names) and _starts(real, _split(os.path.realpath("/" + "/".join(names)))))
            for root, names, _ in self._roots
            if root == "/"
        )

    def _restore_names(self, splits: Sequence[FileSplit]) -> None:
        """Restore the names of files that a killed process had renamed to hidden names for cleaning."""
        read: dict[str, list[FileSplit]] = {}
        for split in splits:
            if not is_url(split.path) and (directory := parent(split.path)) not in self._restored:
                read.setdefault(directory, []).append(split)
        for directory, there in read.items():
            try:
                local.restore_hidden(directory, partial(_is_among, there))
            except OSError as error:
                _log.warning("%s: could not restore files renamed by a killed process: %s", self._source.name, error)
            else:
                self._restored.add(directory)

    def _present(self, splits: Sequence[FileSplit]) -> list[FileSplit]:
        for split in splits:
            self._drop_link(split.path)  # first, because a broken link makes a listing fail
        there = {file.path for file in self._source.list(repeated=True, begun=True).files}
        return [split for split in splits if split.path in there]

    def _clean(self, status: FileStatus) -> None:
        source = self._source
        if not status.has_version:
            raise _no_version(source, status)
        now = source.stored(status).now()
        if now is None:
            self._drop_link(status.path)
        if now is None or not status.same_file(now):
            return
        store = store_for(status.path, source.storage_options())
        if source.clean_source == "delete":
            store.delete(status)
            return
        archive = source.source_archive_dir or ""
        target = archived_path(archive, status.path)
        if not is_url(target) and not _starts(*(_split(os.path.realpath(path)) for path in (parent(target), archive))):
            raise ConfigurationError(
                f"a linked directory leads out of the archive {archive!r}",
                source=source.name,
                option="sourceArchiveDir",
                advice="replace the link by a directory, or give the directory that it leads to",
            )
        for name in _names(target, status):
            target_status = store.stat(name)
            if target_status is None:
                store.move(status, name)
                return
            if isinstance(target_status, FileStatus) and _is_copy(store, status, target_status):
                store.delete(status)
                return

    def _drop_link(self, path: str) -> None:
        """Remove a symbolic link at `path` that is broken, because its target was cleaned."""
        if is_url(path):
            return
        try:
            local.remove_broken_link(path)
        except OSError as error:
            raise store_error(error, path, "delete") from error


_OUTSIDE = "it is outside the paths of the stream, or a linked directory leads out of them"


def _roots(path: str) -> Iterator[PathParts]:
    """Yield the part before the first wildcard of each pattern in a path of the stream."""
    place = split_path(path, keep_empty=True)
    if is_url(path):
        for written in listing.expand("/".join(place.parts)):
            yield PathParts(place.root, tuple(_literal(written.split("/") if written else ())), place.chain)
        return
    for written in listing.expand("/".join([listing.escape(place.root), *place.parts])):
        yield PathParts("/", tuple(_literal(_without_dots(_split(written)))), "")


def _starts(names: Sequence[str], first: Sequence[str]) -> bool:
    return list(names[: len(first)]) == list(first)


def _no_version(source: FileScan, file: FileStatus) -> ConfigurationError:
    return ConfigurationError(
        f"the store reports neither when {file.path!r} was changed nor an ETag: a newer file of this name could not be "
        "distinguished from the one that was read",
        source=source.name,
        option="cleanSource",
        advice="remove cleanSource, and clean this store by other means",
    )


def _is_among(splits: Sequence[FileSplit], file: FileStatus) -> bool:
    return any(split.path == file.path and split.status.same_file(file) for split in splits)


def archived_path(archive: str, path: str) -> str:
    """Return the path of a file in the archive: the directory `archive`, followed by the whole path."""
    return reduce(join, split_path(path, keep_empty=True).parts, normalized_path(archive))


def _names(target: str, status: FileStatus) -> Iterator[str]:
    """Yield the paths to try in the archive: `target`, then with the file's time, then with the time and a number."""
    yield target
    yield f"{target}.{status.modified_at}"
    for number in itertools.count(1):
        yield f"{target}.{status.modified_at}.{number}"


def _is_copy(store: Store, status: FileStatus, copied: FileStatus) -> bool:
    """Return whether the archived file `copied` is a copy of `status`, which a move could not delete."""
    if is_url(status.path):
        likely = copied.size == status.size and copied.modified_at >= status.modified_at  # a copy is younger
    else:
        likely = status.same_file(copied)  # a copy keeps the time
    if not likely:
        return False
    try:
        if not is_url(status.path) and os.path.samefile(status.path, copied.path):
            return False  # the same file: the directory of the files is also mounted as the archive
        with store.open(status.path) as original, store.open(copied.path) as archived:
            return _digest(original) == _digest(archived)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise store_error(error, status.path) from error


def _digest(stream: BinaryIO) -> bytes:
    return file_digest(stream, "sha256").digest()  # type: ignore[arg-type]  # typeshed's BinaryIO lacks readinto


def check_cleaning(source: FileScan) -> None:
    """Refuse an archive that is not set, is in another store, or may be read by the stream itself.

    Raises:
        ConfigurationError: An option is refused. The error names it.
    """
    archive = source.source_archive_dir
    if source.clean_source != "archive":
        return
    if not archive:
        raise ConfigurationError(
            "the option sourceArchiveDir is not set, but cleanSource=archive needs it",
            source=source.name,
            option="sourceArchiveDir",
            advice="set sourceArchiveDir to a directory in the same store that the stream does not read",
        )
    for path in source.all_paths():
        place = split_path(path)
        if is_url(path) != is_url(archive) or (is_url(path) and _scheme(path) != _scheme(archive)):
            raise ConfigurationError(
                f"{path!r} and the archive {archive!r} are in different stores",
                source=source.name,
                option="sourceArchiveDir",
                advice="set sourceArchiveDir to a directory in the store of the files, because files are moved, not "
                "copied",
            )
        if _overlaps(place, archive):
            raise ConfigurationError(
                f"the stream reads {path!r}, which may contain the archive {archive!r}: archived files would be read "
                "again",
                source=source.name,
                option="sourceArchiveDir",
                advice="set sourceArchiveDir to a directory outside the paths of the stream: a part of the path "
                "without wildcards must differ",
            )


def _overlaps(place: PathParts, archive: str) -> bool:
    """Return whether a pattern may match the archive, one of its parents, or a file in it."""
    if is_url(archive):
        return any(
            _meets(_split(written), split_path(archive).parts) for written in listing.expand("/".join(place.parts))
        )
    plain = normalized_path(archive)
    for written in listing.expand("/".join([listing.escape(place.root), *place.parts])):
        pattern = _without_dots(_split(written))
        # Compare the paths as written, because listings follow links, and resolved, because links may connect them.
        if _meets(pattern, _split(plain)) or _meets(_real(pattern), _split(os.path.realpath(plain))):
            return True
    return False


def _meets(pattern: Sequence[str], archive: Sequence[str]) -> bool:
    return all(listing.name_matcher(part)(name) for part, name in zip(pattern, archive, strict=False))


def _without_dots(pattern: Sequence[str]) -> list[str]:
    """Remove each `..` of a local pattern together with the name before it. Assumes that wildcards match no links."""
    done: list[str] = []
    for part in pattern:
        names = _literal(done)
        if part != "..":
            done.append(part)
        elif len(names) < len(done):
            done.pop()
        else:
            done = [listing.escape(name) for name in _split(without_dots("/" + "/".join([*names, ".."])))]
    return done


def _real(pattern: Sequence[str]) -> list[str]:
    names = _literal(pattern)
    return [listing.escape(name) for name in _split(os.path.realpath("/" + "/".join(names)))] + [*pattern[len(names) :]]


def _literal(pattern: Sequence[str]) -> list[str]:
    """Return the names before the first wildcard of a pattern."""
    names: list[str] = []
    for part in pattern:
        if (name := listing.literal_name(part)) is None:
            break
        names.append(name)
    return names


def _split(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _scheme(url: str) -> str:
    return url.split("://", 1)[0].lower()
