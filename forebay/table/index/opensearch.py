# SPDX-License-Identifier: Apache-2.0
"""A follower of the log that keeps the objects of a type in OpenSearch, beside the index of a pipeline.

Documents have the number of the fact of the log as their version, so a late writer never replaces a newer one. An index
is built whole under a name of its own, and then becomes the one that the alias names. After that each step writes the
keys that changed, refreshes, and only then writes the document `progress`.
"""

from __future__ import annotations

import json
import logging
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any, Final

from forebay.errors import ConfigurationError, DataError, RetriableError
from forebay.retry import RetryPolicy
from forebay.table.index.definition import ObjectType
from forebay.table.index.log import Entry
from forebay.table.index.merge import Merge, RowEncoder
from forebay.table.index.object_set import Version
from forebay.table.index.opensearch_cluster import Cluster, Indexed, MissingError, checked_name
from forebay.table.index.opensearch_documents import (
    ALIVE,
    FORMAT,
    PROGRESS,
    UNREADABLE,
    Documents,
    bulk_lines,
    gone_document,
    id_of,
)
from forebay.table.index.pipelines import IndexStore
from forebay.table.index.runs import recorded
from forebay.table.index.segments import Row
from forebay.table.index.states import StateReader
from forebay.table.index.text import UNICODE
from forebay.table.index.verify import NAMED, Columns, Verification, compared, damaged_states, merged_rows

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

_log = logging.getLogger(__name__)

_BATCH: Final = 1_000
"""Documents of a request."""

_BYTES: Final = 8 << 20
"""Bytes of a request, about. OpenSearch takes 100 MiB."""

_TRIES: Final = 5
"""How often indexes are listed again that were removed meanwhile."""

Progress = Callable[[int, int], None]
"""Gets the documents that were written, and how many there are about."""


class OpenSearchIndex:
    """Keeps the objects of a type in OpenSearch. Call `catch_up` as often as answers should be fresh.

    It follows the log by itself: if OpenSearch is down, commits and search nodes go on, and the next call takes all
    that it has missed. Several processes may call it; one is enough. Ask with `OpenSearchObjects`.

    Args:
        location: The location of the funnel: a directory, or `s3://bucket/prefix`.
        object_type: The name of the object type.
        hosts: The URL of OpenSearch, or several; or a client of opensearch-py, with what it needs of TLS and passwords.
        name: The alias under which the objects are found; None: the name of the object type in lower case. Names of
            indexes begin with it.
        settings: Settings of new indexes, such as `{"number_of_shards": 3, "number_of_replicas": 1}`.
        storage: Settings of S3, as `stateStorage.*` of a stream.
        progress: Gets the progress; None: a line on standard error, if that is a terminal.
        retry: How long requests are repeated while OpenSearch is busy or does not answer.

    Raises:
        ConfigurationError: `hosts`, `name` or `settings` cannot be used, or opensearch-py is not installed.
    """

    def __init__(
        self,
        location: str | PathLike[str],
        object_type: str,
        hosts: str | Sequence[str] | OpenSearch,
        *,
        name: str | None = None,
        settings: Mapping[str, object] | None = None,
        storage: Mapping[str, object] | None = None,
        progress: Progress | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        self._index = IndexStore(location, object_type, storage)
        self._cluster = Cluster(hosts, retry)
        self._alias = checked_name(object_type.lower() if name is None else name)
        self._settings = _checked_settings(settings or {})
        self._owner = {"v": FORMAT, "object_type": object_type, "location": self._index.place, "name": self._alias}
        self._progress = progress or _terminal(object_type)

    @property
    def name(self) -> str:
        """The alias under which the objects are found."""
        return self._alias

    def catch_up(self, *, full: bool = False) -> Version:
        """Write what has changed since the last call, and let it be found; return the version.

        The whole index is built if there is none, if its last fact of the log was collected or is of another log, or if
        another pipeline serves. Queries go on meanwhile. If it fails or is killed, the next call does it again.

        Args:
            full: Build the whole index in any case.

        Raises:
            ConfigurationError: Nothing was committed yet, or an index that the alias names was made by someone else.
            DataError: OpenSearch refuses an object, or a value does not fit its property.
            RetriableError: OpenSearch does not answer, or is busy.
        """
        head = self._index.head()
        with recorded(self._index, "opensearch", self._alias) as run:
            current = self._indexed()
            entries = None if full or current is None else self._since(current, head)
            run.did(since=-1 if current is None else current.data)
            if current is None or entries is None:
                with self._index.log.reading(head):
                    self._build(head, current)
                run.did(to=head.number, decision="FULL")
            elif entries:
                changed = [entry for entry in entries if entry.changed]
                with self._index.log.reading(head):
                    self._update(current, head, changed)
                run.did(
                    to=head.number, decision="INCREMENTAL", counts={"changed": sum(each.changed for each in changed)}
                )
        return Version(head.serving, head.number, head.number, head.edits.offset)

    def verify(self) -> Verification:
        """Compare all documents with the states of the datasources, and name keys that differ.

        Raises:
            ConfigurationError: There is no index yet, or the states of its last fact of the log were collected.
            RetriableError: The index went on meanwhile.
        """
        name = self._index.object_type
        current = self._cluster.indexed(self._alias, self._owner)
        entry = None if current is None else self._index.log.get(current.data)
        if current is None or entry is None or entry.attempt != current.attempt:
            raise ConfigurationError(
                f"OpenSearch has no index {self._alias!r} of {name!r} yet, or the log has its last fact no more",
                option="name",
                advice="call catch_up, or run `forebay index opensearch`, and verify again",
            )
        log = self._index.head().number
        if problems := tuple(damaged_states(self._index, entry)):
            return Verification(entry.number, entry.number, problems=problems, log=log)
        definition = current.definition
        width = len(definition.columns)  # after them come times of rows, which documents do not have
        point, unreadable = self._cluster.open_point(current.name), set[str]()
        try:
            verification = compared(
                entry,
                definition,
                lambda: (columns[:width] for _, columns, _ in merged_rows(self._index, entry, definition)),
                lambda: self._columns(current, definition, point, unreadable),
            )
        except MissingError as error:
            raise RetriableError(
                f"the point in time of OpenSearch has ended: {error.message}", advice=_VERIFY_AGAIN
            ) from error
        finally:
            self._cluster.close_point(point)
        if self._cluster.indexed(self._alias, self._owner) != current:
            raise RetriableError(f"{self._alias!r} of OpenSearch went on while it was compared", advice=_VERIFY_AGAIN)
        problems = tuple(f"someone else has written the document {each!r:.200}" for each in sorted(unreadable)[:NAMED])
        return replace(verification, problems=problems, log=log)

    def _indexed(self) -> Indexed | None:
        """Return the index that the alias names; None if there is none that can be brought up to date."""
        try:
            return self._cluster.indexed(self._alias, self._owner)
        except DataError:  # it is built again
            return None

    def _since(self, current: Indexed, head: Entry) -> list[Entry] | None:
        """Return the facts of the log that an index has not seen; None if the index has to be built again."""
        same = current.pipeline == head.serving and self._is_of_log(current)
        if not same or not self._cluster.has_alias(_writer(current.name)):
            return None
        entries = [self._index.log.get(number) for number in range(current.data + 1, head.number)]
        known = [entry for entry in entries if entry is not None]
        return [*known, head][: head.number - current.data] if len(known) == len(entries) else None

    def _is_of_log(self, indexed: Indexed) -> bool:
        """Return whether the log has the last fact that an index contains."""
        last = self._index.log.get(indexed.data)
        return last is not None and last.attempt == indexed.attempt

    def _build(self, head: Entry, current: Indexed | None) -> None:
        """Build a whole index, and let the alias name it alone."""
        definition = self._index.definition(head.serving)
        documents = Documents(definition)
        name = f"{self._alias}-{head.serving}-{uuid.uuid4().hex[:12]}"
        body = {
            "settings": {**self._settings, **documents.settings()},
            "mappings": documents.mapping({**self._owner, "pipeline": head.serving}),
            "aliases": {_writer(name): {"is_hidden": True}},
        }
        if current is not None:
            self._check_replaceable(current)
        self._cluster.create(name, body)
        rows = merged_rows(self._index, head, definition)
        try:
            self._write(name, definition, head, rows, max((state.live for state in head.states.values()), default=0))
        except BaseException:  # also Ctrl-C: else it stays until the next build
            self._cluster.remove(name)
            raise
        self._serve(name, head)

    def _check_replaceable(self, current: Indexed) -> None:
        """Check that aliases can be changed, by setting one that is: builds that cannot serve fill a full disk."""
        same = {"add": {"index": current.name, "alias": _writer(current.name), "is_hidden": True}}
        with suppress(MissingError):  # removed meanwhile
            self._cluster.call(lambda client: client.indices.update_aliases(body={"actions": [same]}), dict)

    def _serve(self, name: str, head: Entry) -> None:
        """Let the alias name an index, and remove the indexes before it, also those of builds that were killed."""
        for _ in range(_TRIES):
            indexes = self._cluster.own_indexes(f"{self._alias}-*", self._owner)
            newest = self._indexed()
            old = [each for each, meta in indexes.items() if meta is not None and each != name]
            actions: list[dict[str, Any]] = [{"add": {"index": name, "alias": self._alias, "filter": ALIVE}}]
            if newest is not None and newest.data > head.number and self._is_of_log(newest):
                old, actions = [name], []  # another follower is further: queries must not go back
            actions += [{"remove_index": {"index": each}} for each in old]
            with suppress(MissingError):  # one was removed meanwhile, perhaps by a request whose answer was lost
                change = {"actions": actions}
                self._cluster.call(lambda client, body=change: client.indices.update_aliases(body=body), dict)  # type: ignore[misc] # of the loop
                return
        raise RetriableError(f"the index {name!r} was removed while it was built", advice="catch up again")

    def _update(self, current: Indexed, head: Entry, changed: Sequence[Entry]) -> None:
        """Write the keys that changed."""
        definition = self._index.definition(head.serving)
        merge, encoder = Merge(definition, head, StateReader(self._index.store)), RowEncoder(definition, head.shards)

        def rows() -> Iterator[Row]:
            for shard in range(head.shards) if changed else ():
                merged = merge.of_changes(shard, merge.changed_keys(changed, shard))
                for some, _ in encoder.objects(merged, shard):
                    yield from some

        self._write(current.name, definition, head, rows(), sum(entry.changed for entry in changed))

    def _write(self, name: str, definition: ObjectType, head: Entry, rows: Iterator[Row], about: int) -> None:
        """Write rows, let them be found, and then note the progress."""
        documents, codec = Documents(definition), definition.codec
        width, count = len(definition.keys), len(definition.columns)
        waiting: list[bytes] = []
        keys: list[tuple[Any, ...]] = []
        size = written = 0

        def send() -> None:
            self._cluster.bulk(_writer(name), waiting, lambda place: f"{definition.name} ({codec.shown(keys[place])})")
            self._progress(written, max(about, written))

        for key, columns, exists in rows:
            document = documents.alive(key, columns[:count]) if exists else gone_document(key)
            waiting.append(bulk_lines(id_of(key), head.number, document))
            keys.append(columns[:width])
            size += len(waiting[-1])
            written += 1
            if len(waiting) >= _BATCH or size >= _BYTES:
                send()
                waiting, keys, size = [], [], 0
        if waiting:
            send()
        self._refresh(name)
        progress = {PROGRESS: {"data": head.number, "attempt": head.attempt, "edits": head.edits.offset}}
        self._cluster.bulk(_writer(name), [bulk_lines(PROGRESS, head.number, progress)], lambda _: "its progress")
        _log.info("%s: %s of OpenSearch follows fact %d of the log", definition.name, name, head.number)

    def _refresh(self, name: str) -> None:
        try:
            failed, answer = self._cluster.call(
                lambda client: client.indices.refresh(index=name),
                lambda answer: (answer["_shards"]["failed"], answer),
            )
        except MissingError as error:
            raise RetriableError(f"the index {name!r} is gone: {error}", advice="catch up again") from error
        if failed:
            raise RetriableError(f"{name!r} of OpenSearch was not refreshed: {answer}", advice="catch up again")

    def _columns(self, current: Indexed, definition: ObjectType, point: str, unreadable: set[str]) -> Iterator[Columns]:
        """Yield keys and properties of all documents; with one more value if version or other fields do not fit them.

        Documents that hold no object are added to `unreadable`.
        """
        documents, codec, width = Documents(definition), definition.codec, len(definition.keys)
        same_words = current.meta.get("unicode") == UNICODE
        body = {"query": ALIVE, "sort": [{"key": "asc"}], "version": True}
        newest = self._index.head().number  # after the point in time was opened: its documents are not newer
        for hit in self._cluster.hits(point, body, sys.maxsize):
            try:
                columns, document = documents.columns(hit["_source"]), dict(hit["_source"])
                key = codec.encode(columns[:width])
                expected = documents.alive(key, columns)
            except UNREADABLE:
                unreadable.add(hit["_id"])
                continue
            if not same_words:  # another Python folded them
                document["words"] = expected["words"] = ()
            # A version that no fact of the log has would keep out the changes of later facts.
            fits = hit["_version"] <= newest and (hit["_id"], document) == (id_of(key), expected)
            yield columns if fits else (*columns, "other fields")


def _checked_settings(settings: Mapping[str, object]) -> dict[str, object]:
    try:
        json.dumps(dict(settings))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"the settings of indexes are no JSON: {error}",
            option="settings",
            advice="give a mapping of names to texts and numbers, such as {'number_of_shards': 3}",
        ) from error
    return dict(settings)


def _writer(name: str) -> str:
    """Return the alias of an index for its writers: a request to it makes no index if the index is gone."""
    return f"{name}-writer"


def _terminal(object_type: str) -> Progress:
    if not sys.stderr.isatty():
        return lambda _written, _about: None

    def show(written: int, about: int) -> None:
        end = "\n" if written == about else ""
        sys.stderr.write(f"\r{object_type}: {written:,} of about {about:,} documents{end}")
        sys.stderr.flush()

    return show


_VERIFY_AGAIN: Final = "verify again, while no other process catches up"
