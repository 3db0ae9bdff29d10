# SPDX-License-Identifier: Apache-2.0
"""Versions of the index of a pipeline: facts `pipelines/<p>/<v>.json`. Version 0 is its definition."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final

from forebay.errors import ConfigurationError, ForebayError, RetriableError
from forebay.state.open_state_store import open_state_store
from forebay.state.state_store import Purpose, RetryingStateStore, StateStore
from forebay.stores.store import StorageOptions
from forebay.table.changelog.state.typed_values import Whole
from forebay.table.index.definition import Datasource, ObjectType, check_name, is_name, refused
from forebay.table.index.edits import EditLog
from forebay.table.index.facts import Fact, damaged_fact, newest, numbers_of, stored_bytes
from forebay.table.index.log import Building, Entry, Log
from forebay.table.index.segments import IndexSegment

_NAMED: Final = 10
"""Object types that an error names."""

IndexRun = tuple[IndexSegment, ...]
"""Segments that were written together. The keys of different segments of a run are different."""


@dataclass(frozen=True)
class IndexVersion(Fact):
    """A version of the index of a pipeline.

    Args:
        pipeline: The name of the pipeline.
        number: The number of the version.
        data: The number of the fact of the log that the version follows.
        runs: The runs, oldest first. A newer run overrules the older ones.
        count: The number of objects.
        decision: Whether the version was made of the changed keys, or of all.
        reason: Why.
        shares: For each transaction since the version before: changed rows, and rows of the datasource before.
        edits: The offset of the last edit of a user that the version contains.
        fact: The attempt that put the fact which the version follows.
        attempt: A random id of the step that made it: two followers may make the same. Of version 0, none.
    """

    pipeline: str
    number: Whole
    data: int
    runs: tuple[IndexRun, ...] = ()
    count: Whole = 0
    decision: str = ""
    reason: str = ""
    shares: tuple[tuple[Whole, Whole], ...] = ()
    edits: Whole = 0
    fact: str = ""
    attempt: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The definition, only in version 0."""

    @property
    def segments(self) -> tuple[IndexSegment, ...]:
        """All segments, oldest first."""
        return tuple(segment for run in self.runs for segment in run)

    @property
    def definition(self) -> ObjectType:
        """The definition of version 0."""
        return ObjectType.from_facts(self.facts)

    @property
    def is_valid(self) -> bool:
        """Whether the definition, which comes from a file, is one; an error says why not."""
        return self.number > 0 or self.definition.name != ""


def store_of(location: str, storage: Mapping[str, object]) -> StateStore:
    """Return the store of a location of indexes; its errors name the arguments `location` and `storage`."""
    purpose = Purpose("the index", "location", "storage.", "try again: nothing is lost", "the whole location")
    return RetryingStateStore(open_state_store(location, StorageOptions(storage), purpose))


def object_types(store: StateStore) -> list[str]:
    """Return the names of the object types below a location."""
    return [name for each in store.directories("") if is_name(name := each.removesuffix("/"))]


def location_text(location: object) -> str:
    """Return a location as text.

    Raises:
        ConfigurationError: It is neither text nor a path.
    """
    text = fspath(location) if isinstance(location, str | PathLike) else None
    if not isinstance(text, str):
        raise refused("location", location, "give a directory or s3://bucket/prefix", what="the location")
    return text


def checked_storage(storage: object) -> dict[str, object]:
    """Return the settings of S3 that a user gives, or gives not.

    Raises:
        ConfigurationError: They are no mapping, or a name is no text.
    """
    if not isinstance(storage, Mapping | None):
        raise ConfigurationError(
            f"storage is of the type {type(storage).__name__}", option="storage", advice="give a mapping, or None"
        )
    for name in storage or ():
        if not isinstance(name, str):
            raise refused("storage", name, "give names of settings as texts", what="a name in storage")
    return dict(storage or {})


def absolute_location(location: str) -> str:
    """Return a location as it is from every working directory."""
    return location if "://" in location else str(Path(location).absolute())


class NoLogError(ConfigurationError):
    """There is no log of the object type below the location."""


class IndexStore:
    """The facts of an object type below a location. For any thread; no request is made before a method is called.

    Args:
        location: A directory, or `s3://bucket/prefix`.
        object_type: The name of the object type.
        storage: Settings of S3.
    """

    def __init__(
        self, location: str | PathLike[str], object_type: str, storage: Mapping[str, object] | None = None
    ) -> None:
        check_name(object_type, "object type")
        self.location = location_text(location)
        self.storage = checked_storage(storage)
        self.object_type = object_type
        self.directory = f"{object_type}/"
        self.place = absolute_location(self.location)
        """The location, the same from every working directory: Spark's workers have another one."""
        self.store = store_of(self.location, self.storage)
        self.log = Log(self.store, self.directory)
        self.edits = EditLog(self.store, self.directory)

    def __reduce__(self) -> tuple[Any, ...]:
        return IndexStore, (self.place, self.object_type, self.storage)

    def head(self) -> Entry:
        """Return the newest fact of the log.

        Raises:
            ConfigurationError: Nothing was committed yet.
        """
        head = self.log.head()
        if head is None:
            others: list[str] = []
            with suppress(ForebayError):  # who may read the object type may have no right to list the others
                others = [name for name in object_types(self.store) if name != self.object_type]
            there = f"; there is {', '.join(others[:_NAMED])}" if others else ""
            raise NoLogError(
                f"nothing of {self.object_type!r} is below {self.location!r} yet{there}",
                option="location",
                advice="commit a datasource first, or check the location and the name of the object type",
            )
        return head

    def begin(
        self, definition: ObjectType, shards: int, key_types: Callable[[], Mapping[str, str]]
    ) -> tuple[Entry, ObjectType]:
        """Return the newest fact of the log, and the definition that serves; write both if there are none.

        Args:
            definition: The definition, which may lack types of keys.
            shards: The number of shards of a new log.
            key_types: Returns the types of the keys of a new log.

        Raises:
            ConfigurationError: The definition that serves is another one, and so are the one of a replacement that is
                built, and the last ones that served before.
        """
        head = self.log.head()
        if head is None:
            serving = self._new_pipeline(definition.with_key_types(key_types()))
            head = self.log.begin(Entry(0, "begin", uuid.uuid4().hex, shards, serving, log=uuid.uuid4().hex))
        stored = self.definition(head.serving)
        fingerprint = definition.with_key_types(stored.keys).fingerprint()
        known = [stored, *([] if head.building is None else [ObjectType.from_facts(head.building.definition)])]
        if fingerprint not in head.replaced and all(each.fingerprint() != fingerprint for each in known):
            raise ConfigurationError(
                f"the definition of {definition.name!r} differs from the one that serves below {self.location!r}",
                option="object_type",
                advice="Funnel.plan says what the new one needs, and Funnel.replace lets it serve",
            )
        return head, stored

    def serving(self, head: Entry, known: IndexVersion | None = None) -> IndexVersion:
        """Return the newest version of the pipeline that serves.

        Args:
            head: The newest fact of the log that the caller knows.
            known: See `newest_version`.

        Raises:
            ConfigurationError: There is none yet.
            RetriableError: Another pipeline serves since, and this one was collected.
        """
        try:
            return self.built(head.serving, known)
        except ConfigurationError:
            self._refuse_collected(head.serving)
            raise

    def built(self, pipeline: str, known: IndexVersion | None = None) -> IndexVersion:
        """Return the newest version of a pipeline that answers can come from.

        Args:
            pipeline: The pipeline.
            known: See `newest_version`.

        Raises:
            ConfigurationError: There is none yet.
        """
        version = self.newest_version(pipeline, known)
        if version is None or version.number == 0:
            raise ConfigurationError(
                f"there is no index of {self.object_type!r} below {self.location!r} yet: {pipeline} has no version",
                option="location",
                advice="commit a datasource with Funnel.commit, or call Funnel.follow after an error",
            )
        return version

    def followed(self, head: Entry) -> Iterator[IndexVersion]:
        """Yield the newest version of each pipeline that follows the log: the one that serves first."""
        for pipeline in head.pipelines:
            newest = self.newest_version(pipeline)
            if newest is not None:
                yield newest
            elif head.building is not None and pipeline == head.building.pipeline:
                yield first_version(head.building)

    def pipelines(self) -> list[str]:
        """Return the names of all pipelines of which there are files, sorted."""
        prefix = f"{self.directory}pipelines/"
        return sorted(name.removeprefix(prefix).removesuffix("/") for name in self.store.directories(prefix))

    def pipeline_prefix(self, pipeline: str) -> str:
        """Return the directory of a pipeline, ending in a slash."""
        return f"{self.directory}pipelines/{pipeline}/"

    def version_name(self, pipeline: str, number: int) -> str:
        """Return the name of the fact of a version."""
        return f"{self.pipeline_prefix(pipeline)}{number:012d}.json"

    def versions(self, pipeline: str) -> list[int]:
        """Return the numbers of the versions of a pipeline, sorted."""
        prefix = self.pipeline_prefix(pipeline)
        return numbers_of(self.store.names(prefix), prefix)

    def version(self, pipeline: str, number: int) -> IndexVersion | None:
        """Return a version of a pipeline; None if there is none with this number."""
        name = self.version_name(pipeline, number)
        data = self.store.get(name)
        return None if data is None else IndexVersion.from_bytes(data, name)

    def newest_version(self, pipeline: str, known: IndexVersion | None = None) -> IndexVersion | None:
        """Return the newest version of a pipeline; None if there is none.

        Args:
            pipeline: The pipeline.
            known: A version that the caller knows: if it is the newest one, two requests find that out.
        """
        if (
            known is not None
            and known.pipeline == pipeline
            and known.number > 0  # version 0 stays, but the one after it may be collected
            and self.version(pipeline, known.number + 1) is None
            and self.version(pipeline, known.number) == known  # a follower that paused may have put its number again
        ):
            return known
        prefix = self.pipeline_prefix(pipeline)
        return newest(partial(self.versions, pipeline), partial(self.version, pipeline), prefix)

    def refuse_missing(self, directory: str, written: set[str]) -> None:
        """Check that files that were just written are there: a fact that named others could never be read.

        Args:
            directory: The directory of the files, ending in a slash.
            written: Their names.

        Raises:
            RetriableError: One is not, as if a mount was away when it was written, or a machine does not have it.
        """
        listed = self.store.names(directory) if written else ()
        # A listing may be an old one.
        missing = sorted(name for name in written.difference(listed) if self.store.get(name) is None)
        if missing:
            raise RetriableError(
                f"{len(missing):,} of the files that were written are not below {self.location!r}, as {missing[0]}; no "
                "fact names them",
                option="location",
                advice="look whether all machines share the location, and have it mounted; then do it again",
            )

    def put_version(self, version: IndexVersion) -> bool:
        """Put a version, unless another one has its number; return whether this call put it."""
        name = self.version_name(version.pipeline, version.number)
        return self.store.put_if_absent(name, stored_bytes(version, name))

    def _new_pipeline(self, definition: ObjectType) -> str:
        """Return the name of a pipeline with the definition, which is written unless it exists."""
        for number in count(1):
            name = f"{number:06d}"
            if self.put_version(IndexVersion(name, 0, -1, facts=definition.to_facts())):
                return name
            # Another process begins too, or one was killed before the log began.
            if self.definition(name).fingerprint() == definition.fingerprint():
                return name
        raise AssertionError  # `count` has no end

    def definition(self, pipeline: str) -> ObjectType:
        """Return the definition of a pipeline.

        Raises:
            RetriableError: Another one was begun, and this one was collected.
            FatalError: It is gone.
        """
        first = self.version(pipeline, 0)
        if first is None:
            self._refuse_collected(pipeline)
            first = self.version(pipeline, 0)  # the location may have been away for a moment
        if first is None:
            raise damaged_fact(self.version_name(pipeline, 0), "it does not exist")
        return first.definition

    def _refuse_collected(self, pipeline: str) -> None:
        head = self.head()  # an error if the location is away
        if pipeline not in head.pipelines:
            raise RetriableError(
                f"the pipeline {pipeline} of {self.object_type!r} was replaced or dropped, and collected; "
                f"{head.serving} serves",
                option="location",
                advice="do it again: it begins with the one that serves",
            )


def first_version(building: Building) -> IndexVersion:
    """Return version 0 of a replacement: its definition, and the fact from which on the log is kept for it."""
    return IndexVersion(building.pipeline, 0, building.since, facts=building.definition)


def fed_datasource(
    head: Entry, serving: ObjectType, definition: ObjectType, name: str, columns: Collection[str]
) -> Datasource:
    """Return the datasource of a transaction, with all columns that its rows are to have.

    While a replacement is built, one transaction feeds both pipelines. Who commits with the definition that serves need
    not have the columns of the new one; who commits with the new one needs those of both.

    Args:
        head: The newest fact of the log.
        serving: The definition that serves.
        definition: The definition of the one who commits.
        name: The name of the datasource.
        columns: The columns that the rows of the transaction have.

    Raises:
        ConfigurationError: There is no such datasource.
    """
    if head.building is None:
        return serving.datasource(name)
    new, lowered = ObjectType.from_facts(head.building.definition), {each.lower() for each in columns}
    if definition.with_key_types(serving.keys).fingerprint() != new.fingerprint():
        source = serving.datasource(name)
        more = [each for each in new.datasource(name).columns if each.lower() in lowered] if new.feeds(name) else []
    else:
        source = new.datasource(name)
        more = list(serving.datasource(name).columns) if serving.feeds(name) else []
    return replace(source, keep=tuple({*source.keep, *more}))
