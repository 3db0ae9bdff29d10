# SPDX-License-Identifier: Apache-2.0
"""A search node: copies the segments of the serving pipeline to a local directory, and answers from them.

It needs neither Spark nor Java nor pyarrow.
"""

from __future__ import annotations

import json
import operator
import sqlite3
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any, Final

from forebay.errors import ConfigurationError, FatalError, ForebayError, RetriableError
from forebay.formats.values.dates import session_zone
from forebay.state.local_state_store import DirectoryLock, lock_directory, open_regular, put_if_absent
from forebay.stores.local import wrap_errors
from forebay.table.index.definition import ObjectType, refused
from forebay.table.index.log import Entry
from forebay.table.index.object_set import ObjectSet, Queryable, Version, View
from forebay.table.index.opened_segments import OpenedSegment
from forebay.table.index.pipelines import IndexStore, IndexVersion, absolute_location
from forebay.table.index.segment_cache import MissingSegmentError, Progress, SegmentCache
from forebay.table.index.segments import IndexSegment, open_segment

OWNER: Final = "node.json"
"""The file of a cache that says whose it is."""

WAIT: Final = 5.0
"""Seconds for which `refresh` waits for an edit."""

_TRIES: Final = 5
"""How often a version is looked for again if its segments were collected meanwhile."""


class SearchNode(Queryable):
    """Answers queries about the objects of a type, each from one version of the index. For any thread.

    `refresh` takes the newest version. It is called once when the node is made; call it as often as answers should be
    fresh. Queries and pages that have begun go on with the version that they began with.

    Args:
        location: The location of the funnel: a directory, or `s3://bucket/prefix`.
        object_type: The name of the object type.
        cache: A local directory for this node alone.
        storage: Settings of S3, as `stateStorage.*` of a stream.
        time_zone: The time zone of timestamps without one in conditions of `where`.
        progress: Gets the progress of `refresh`; None: a line on standard error, if that is a terminal.
        pipeline: The pipeline of a replacement that is built, to look at it before it serves; None: the one that
            serves. Edits are refused until it serves.

    Raises:
        ConfigurationError: There is no such object type, or the cache is of another node.
        RetriableError: The store does not answer, or the disk is full.
    """

    def __init__(
        self,
        location: str | PathLike[str],
        object_type: str,
        *,
        cache: str | Path,
        storage: Mapping[str, object] | None = None,
        time_zone: str = "UTC",
        progress: Progress | None = None,
        pipeline: str | None = None,
    ) -> None:
        self._index = IndexStore(location, object_type, storage)
        if not isinstance(cache, str | PathLike) or not str(cache) or "\0" in str(cache):
            raise refused("cache", cache, "give a local directory")
        self._directory = Path(cache).absolute()  # its lock is on this directory, wherever the process goes
        self._zone = session_zone(time_zone)
        self._pipeline = pipeline
        self._progress = progress if progress is not None else self._terminal()
        self._head: Entry | None = None
        self._view: View | None = None
        self._ahead: IndexVersion | None = None
        self._newest()  # a wrong name is refused before it claims the cache
        self._lock = self._locked()
        self._cache = SegmentCache(self._index.store, self._directory)
        self._refreshing = threading.Lock()
        try:
            self._refreshed()
        except BaseException:  # also Ctrl-C: the cache must be free for the next node
            self.close()
            raise

    @property
    def version(self) -> Version:
        """The version that answers."""
        return self.view().name

    def refresh(self, *, at_least: int = 0) -> Version:
        """Take the newest version of the serving pipeline, and all edits; return the version that answers now.

        It copies the segments that are missing or that could not be read any more, checks them, and then changes the
        version at once; then it copies those of a replacement that is built. Calls from several threads wait for one
        another.

        Args:
            at_least: The offset of an edit that answers are to contain.

        Raises:
            ConfigurationError: There is no such object type, the node is closed, or `at_least` is no int.
            RetriableError: The store does not answer, the disk is full, or there is no edit with this offset after a
                few seconds; the version before goes on to answer.
            FatalError: A file is damaged, or the log is another one; the version before goes on to answer.
        """
        _check_offset(at_least)
        until = time.monotonic() + WAIT
        while True:
            with self._refreshing:
                self.view()  # the cache of a node that is closed may be another one's
                version = self._refreshed()
                if not at_least:  # else somebody waits for an edit
                    self._copy_ahead()
            if version.offset >= at_least:
                return version
            if time.monotonic() > until:
                raise RetriableError(
                    f"there is no edit {at_least} of {self._index.object_type!r} below {self._index.location!r}: the "
                    f"last one is {version.offset}",
                    option="at_least",
                    advice="pass the offset that edit returned, of this object type and location",
                )
            time.sleep(WAIT / 100)

    def _tail(self) -> bool:
        """Take the edits that follow; return whether the version is not older than what their editors saw.

        Raises:
            FatalError: The last edit before is gone, and was not folded.
        """
        view = self.view()
        known, edits = view.overlay.edits[-1:], self._index.edits
        if not all(map(edits.holds, known)):
            if self._read_head().edits.offset < view.offset and not all(map(edits.holds, known)):
                raise self._other_log(f"the edit {view.offset} of")
            return False  # it was folded and collected, or was never of the log: the newest version says
        view = view.with_edits(edits.after(view.offset))
        self._view = view
        return all(edit.data <= view.version.data for edit in view.overlay.edits)

    def _refreshed(self) -> Version:
        if self._view is None or self._view.is_damaged:
            self._take_newest()
        for _ in range(_TRIES):
            # The edits first: those that were collected before are in the newest version after.
            complete, before = self._tail(), self._view
            self._take_newest()
            if complete and self._view is before:
                break
        return self.view().name

    def _take_newest(self) -> None:
        for _ in range(_TRIES):
            try:
                newest = self._newest()
                view = self._view
                damaged = view is not None and view.is_damaged
                if damaged:
                    self._cache.check_again()
                if view is not None and not _is_newer(newest, view.version):
                    if not damaged:
                        return
                    newest = view.version
                self._cache.fetch(newest.segments, self._progress)
                self._flip(newest, damaged=damaged)
            except MissingSegmentError:  # collected meanwhile: there is a newer version
                continue
            except ForebayError:
                before = self._head
                if before is None or self._read_head().serving == before.serving:
                    raise
                continue  # the pipeline was replaced and collected meanwhile
            return
        raise RetriableError(
            f"the segments of {self._index.object_type!r} below {self._index.location!r} were collected while they "
            "were copied",
            option="location",
            advice="refresh again; run `forebay index gc` less often, or keep more versions",
        )

    def get(self, key: object, *, at_least: int = 0) -> Mapping[str, Any] | None:
        """Return the object with a key; None if there is none.

        Args:
            key: The value of the key; for several columns a tuple, or a mapping.
            at_least: The offset of an edit, perhaps of another node, that the answer is to contain.

        Raises:
            RetriableError: There is no edit with this offset yet.
        """
        _check_offset(at_least)
        if self.view().offset < at_least:
            self.refresh(at_least=at_least)
        return self.view().find(key)[1]

    def edit(self, key: object, /, **properties: object) -> int:
        """Change properties of an object, or create it; return the offset of the edit.

        The edit is durable when this returns, and the answers of this node contain it. An object that no datasource has
        exists from then on, until a user deletes it.

        Args:
            key: The value of the key; for several columns a tuple, or a mapping.
            properties: The properties to change, with Python values of their types; None is NULL.

        Raises:
            ConfigurationError: There is no such property, or a value or the key is wrong; nothing was stored.
            RetriableError: The store does not answer, and the edit may be stored; or a copy cannot be read, and it is
                not.
            FatalError: The log, or edits before, are not those that this node follows; nothing was stored.
        """
        return self.edit_many([(key, properties)])

    def delete(self, key: object, /) -> int:
        """Delete an object, whatever datasources it is of; return the offset of the edit.

        Args:
            key: The value of the key; for several columns a tuple, or a mapping.

        Raises:
            ConfigurationError: There is no such object.
            RetriableError: The store does not answer, and the edit may be stored; or a copy cannot be read, and it is
                not.
            FatalError: The log, or edits before, are not those that this node follows; nothing was stored.
        """
        return self.edit_many([(key, None)])

    def edit_many(self, edits: Iterable[tuple[object, Mapping[str, object] | None]]) -> int:
        """Change several objects at once: all of it is stored, or nothing; return the offset of the edit.

        Args:
            edits: Pairs of a key and its properties, as in `edit`; None instead of properties deletes the object.

        Raises:
            ConfigurationError: As in `edit` and `delete`, or there are more than 1,000.
            RetriableError: The store does not answer, and the edits may be stored; or a copy cannot be read, and they
                are not.
            FatalError: The log, or edits before, are not those that this node follows; nothing was stored.
        """
        pairs = _pairs(edits)
        with self._refreshing:
            self._refuse_unserved()
            up_to_date = self._tail() and self._is_newest()
            offset, stuck = -1, 0
            while True:
                for _ in range(_TRIES):
                    if up_to_date:
                        break
                    self._refreshed()
                    up_to_date = self._is_newest()
                view, head = self.view(), self._known_head()
                offset, stuck = view.offset, stuck + 1 if view.offset == offset else 0
                if stuck > _TRIES:
                    raise RetriableError(
                        f"the edit {offset + 1} of {self._index.object_type!r} was refused {stuck} times, though no "
                        "other one came before it; nothing was stored",
                        option="location",
                        advice="edit again; if that is no help, close this node and make a new one",
                    )
                edit = view.new_edit(pairs, head.edits.time)
                edited = view.with_edits([edit])
                if self._index.edits.put(edit, self._index.log, head):
                    self._view = edited
                    return edit.offset
                # Another editor was faster, or edits were folded and collected.
                before = view.offset
                up_to_date = self._tail() and self.view().offset > before and self._is_newest()

    @property
    def objects(self) -> ObjectSet:
        """All objects."""
        return ObjectSet(self.view, self._zone)

    def close(self) -> None:
        """Give the cache free for another node. Queries and pages that have begun go on; a refresh is waited for."""
        with self._refreshing:
            self._view = None
            if self._lock is not None:
                self._lock.release()

    def view(self) -> View:
        """Return the version that answers, to read its segments. Called by `verify` and `why` too."""
        view = self._view
        if view is None:
            raise ConfigurationError(f"the node of {self._index.object_type!r} is closed", advice="make a new one")
        return view

    def _known_head(self) -> Entry:
        assert self._head is not None  # noqa: S101 - of `_newest`, which `__init__` calls
        return self._head

    def _copy_ahead(self) -> None:
        """Copy the newest version of a replacement, so that its swap has little to copy."""
        building = self._known_head().building
        if building is None or self._pipeline is not None:
            self._ahead = None
            return
        with suppress(ForebayError, OSError):  # it does not serve yet; when it does, `_take_newest` raises them
            self._ahead = self._index.newest_version(building.pipeline, self._ahead)
            if self._ahead is not None:
                self._cache.fetch(self._ahead.segments)

    def _newest(self) -> IndexVersion:
        """Return the newest version of the pipeline that serves.

        Raises:
            ConfigurationError: There is none.
            FatalError: The log is another one.
        """
        self._head = self._read_head()
        known = None if self._view is None else self._view.version
        if self._pipeline is not None:
            if self._pipeline not in self._head.pipelines:
                raise ConfigurationError(
                    f"{self._index.object_type!r} has no pipeline {self._pipeline!r:.100}: it was dropped, "
                    "replaced, or never was",
                    option="pipeline",
                    advice=f"give one of {', '.join(self._head.pipelines)}; or leave it out, for the one that serves",
                )
            return self._index.built(self._pipeline, known)
        return self._index.serving(self._head, known)

    def _read_head(self) -> Entry:
        """Return the newest fact of the log.

        Raises:
            ConfigurationError: There is none.
            FatalError: It is of another log than the one that is known, or of an older copy of it.
        """
        known = self._head
        head = self._index.log.head(known) or self._index.head()
        if known is not None and (
            head.log != known.log
            or head.number < known.number
            or (head.number == known.number and head.attempt != known.attempt)
        ):
            raise self._other_log("the log of")
        return head

    def _other_log(self, what: str) -> FatalError:
        return FatalError(
            f"{what} {self._index.object_type!r} below {self._index.location!r} is not the one that this node knows: "
            "the location was removed and made anew, or restored from an older copy",
            option="location",
            advice="close this node and make a new one, whose cache may be the same; then look at the object",
        )

    def _flip(self, version: IndexVersion, *, damaged: bool) -> None:
        """Open the segments that are new, and let the version answer.

        Args:
            version: The version.
            damaged: Whether copies were checked again, since one was damaged: then all are opened again. Else a segment
                that was found to be damaged meanwhile stays open, for the next refresh.
        """
        before = self._view
        if before is not None and before.version.pipeline == version.pipeline:
            definition = before.definition
        else:
            definition = self._index.definition(version.pipeline)
        usable = () if before is None or damaged else before.parts
        known = {opened.segment: opened for opened, _ in usable}
        runs = []
        try:
            for number, run in enumerate(version.runs):
                oldest = not number
                runs.append(
                    tuple(known.get(segment) or self._opened(segment, definition, oldest=oldest) for segment in run)
                )
            pending = [] if before is None else [edit for edit in before.overlay.edits if edit.offset > version.edits]
            view = View(version, definition, tuple(runs[::-1]), self._known_head().shards).with_edits(pending)
        except ForebayError:
            self._cache.check_again()
            raise
        self._view = view
        self._cache.keep((*version.segments, *(() if self._ahead is None else self._ahead.segments)))

    def _is_newest(self) -> bool:
        """Return whether the next edit follows those of this node for sure, or edits before it may be collected.

        An editor that was paused may have put an edit in the place of a collected one, and died before it withdrew it.

        Raises:
            ConfigurationError: There is no log, as if a mount were away.
            FatalError: The log is another one.
        """
        view = self.view()
        if view.overlay.edits:
            return not _is_newer(self._newest(), view.version)
        self._head = self._read_head()
        return self._head.edits.offset <= view.offset

    def _refuse_unserved(self) -> None:
        if self._pipeline is not None and self._index.head().serving != self._pipeline:
            raise ConfigurationError(
                f"the pipeline {self._pipeline} of {self._index.object_type!r} does not serve",
                option="pipeline",
                advice="edit on a node without pipeline=; a replacement has these edits too",
            )

    def _opened(self, segment: IndexSegment, definition: ObjectType, *, oldest: bool) -> OpenedSegment:
        try:
            opened = OpenedSegment(segment, open_segment(self._cache.path(segment), segment.name, definition))
        except sqlite3.DatabaseError as error:
            raise FatalError(
                f"the segment {segment.name} cannot be opened: {error}",
                option="location",
                advice="refresh again: the segment is copied again",
            ) from error
        if not oldest:
            opened.note_keys()
        return opened

    def _locked(self) -> DirectoryLock | None:
        lock = None
        try:
            lock = lock_directory(self._directory)
            self._claim()
        except BaseException as error:
            if lock is not None:
                lock.release()
            if isinstance(error, ForebayError):
                error.option, error.advice = "cache", error.advice or "give each node a cache of its own"
            raise
        return lock

    def _claim(self) -> None:
        """Write whose the cache is, unless it says so."""
        identity = {"location": self._index.place, "object_type": self._index.object_type}
        owner = self._directory / OWNER
        known = None
        with wrap_errors(str(owner), "write"):
            with suppress(FileNotFoundError, ValueError, RecursionError), open(open_regular(owner), "rb") as file:
                known = json.load(file)
            if not isinstance(known, dict) or not all(isinstance(each, str) for each in known.values()):
                owner.unlink(missing_ok=True)  # nobody wrote it, or a part of it
                put_if_absent(str(owner), json.dumps(identity).encode(), without_links=True)
                return
        if known | {"location": absolute_location(known.get("location", ""))} != identity:
            raise ConfigurationError(
                f"the cache {str(self._directory)!r} is of a node of {known.get('object_type')!r} below "
                f"{known.get('location')!r}, and not of {self._index.object_type!r} below {identity['location']!r}",
                option="cache",
                advice="give each node a cache of its own, or remove this directory",
            )

    def _terminal(self) -> Progress | None:
        if not sys.stderr.isatty():
            return None
        name = self._index.object_type

        def show(files: int, of_files: int, size: int, of_size: int) -> None:
            end = "\n" if files == of_files else ""
            sys.stderr.write(f"\r{name}: {files} of {of_files} files, {size:,} of {of_size:,} bytes{end}")
            sys.stderr.flush()

        return show


def _check_offset(at_least: object) -> None:
    # `index` takes numpy's integers too.
    if isinstance(at_least, bool) or not hasattr(at_least, "__index__") or operator.index(at_least) < 0:
        raise ConfigurationError(
            f"at_least is {at_least!r:.200}", option="at_least", advice="pass the offset that edit returned"
        )


def _pairs(edits: object) -> list[tuple[object, Mapping[str, object] | None]]:
    pairs = []
    for each in edits if isinstance(edits, Iterable) and not isinstance(edits, Mapping) else [edits]:
        if not (isinstance(each, tuple | list) and len(each) == 2 and isinstance(each[1], Mapping | None)):
            raise ConfigurationError(
                f"{each!r:.200} is no pair of a key and its properties",
                option="edits",
                advice="give a list of pairs, as [(7, {'status': 'open'}), (8, None)]; of a dict, edits.items()",
            )
        pairs.append((each[0], each[1]))
    return pairs


def _is_newer(candidate: IndexVersion, known: IndexVersion) -> bool:
    """Return whether answers may go on from a version that was found. Those of a replacement do not go back either."""
    if candidate.pipeline != known.pipeline:
        return candidate.data >= known.data
    return (candidate.data, candidate.number) > (known.data, known.number)
