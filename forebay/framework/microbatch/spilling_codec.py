# SPDX-License-Identifier: Apache-2.0
"""Writes and reads offsets whose long parts are stored in segments, which are files below `stateLocation` (S1, S15)."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from forebay.errors import ConfigurationError
from forebay.framework.digests import SplitDigests
from forebay.framework.microbatch.offset import (
    DIGESTS,
    Offset,
    UnknownEnd,
    compact,
    damaged,
    dump_offset,
    length,
    load_offset,
)
from forebay.framework.microbatch.offset_codec import FinishedSplits, OffsetCodec, checked_done, expanded, loaded_done
from forebay.framework.runtime.clients import ConnectorCalls
from forebay.framework.runtime.connector_errors import without_secrets
from forebay.framework.source import Source
from forebay.framework.split import Json
from forebay.state.state_store import OPTION, StateStore
from forebay.version import __version__

T = TypeVar("T")

_log = logging.getLogger(__name__)

KEPT: Final = 200
"""Number of latest micro-batches whose segments are kept; Spark keeps 100 offsets."""

_MOST_PART: Final = 16 << 10
"""Maximum characters of a field that stays in the offset; a longer one goes into a segment."""

_MANY: Final = 4000
"""A list of more splits than this always exceeds `_MOST_PART`, so it is not measured."""

_MOST_DONE: Final = 4 << 10
"""Maximum characters of the finished splits in an offset. A longer list is stored as a chain of segments."""

_CLEAN_EVERY: Final = 50
"""Micro-batches between two deletions of old segments."""

_CHUNK: Final = 500
"""Number of entries in one line of a segment."""

_CACHED: Final = 2
"""Maximum segments in memory: an offset is read again for its tasks, and when its micro-batch is committed."""


@dataclass(frozen=True, slots=True)
class _Level:
    """One segment of the chain that stores the finished splits.

    Args:
        link: Refers to the segment.
        changed: The ids of the splits that the segment drops or adds; empty for a base.
        weight: The number of entries in the segment, at least 1.
    """

    link: Link
    changed: frozenset[str]
    weight: int


class SpillingOffsetCodec(OffsetCodec):
    """Stores long lists of planned splits, and changes to a long list of finished splits, in segments.

    Short lists stay in the offset; if all are short, the store is not used. In the chain of finished splits, each
    segment is at least twice as large as the next one: a new segment merges the segments before it that are too small.
    So the chain has few segments, and each entry is written few times. A segment whose offset Spark never logged is
    never read, and is deleted when it is old.

    Args:
        source: The source.
        store: The store at `stateLocation`.
        calls: Runs the calls to the store.
        digests: The enumerator's digests, which recognise splits that finished before `stateLocation` was set; no
            splits are added to them.
    """

    def __init__(
        self, source: Source, store: StateStore, calls: ConnectorCalls, digests: SplitDigests | None = None
    ) -> None:
        self._source = source
        self._digests = digests
        self._store = store
        self._calls = calls
        self._levels: dict[int, tuple[_Level, ...]] = {}  # by micro-batch, of the last two
        self._cache: dict[str, bytes] = {}
        self._used = False
        self._cleaned: int | None = None

    def write(self, offset: Offset, done: FinishedSplits) -> dict[str, Json]:
        """Return the offset as JSON. If a list in it is long, first write a segment with that list."""
        data = dump_offset(offset)
        if any(planned.to is UnknownEnd.NEGOTIATED for planned in offset.splits):
            data["claims"] = self._store.location  # for people: the negotiated ends are there
        parts = _long_parts(data)
        before = self._levels.get(offset.n - 1, ())
        levels: tuple[_Level, ...] = ()
        inline = _short(done)
        link: Link | None = None
        if inline is not None:
            data |= {"done": inline} if inline else {}
            if parts:
                link = self._put(offset, *encode(offset.n, None, parts, (), ()))
        else:
            levels = self._grow(offset, before, done, parts)
            link = levels[-1].link
        if link is not None:
            state: dict[str, Json] = {"at": self._store.location, "segment": link.name, "digest": link.digest}
            data["state"] = {**state, "parts": sorted(parts)} if parts else state
        if done.digests:
            data["v"] = DIGESTS
        self._levels = {offset.n - 1: before, offset.n: levels}
        if self._cleaned is None and self._used:
            self._clean(offset.query, offset.n - 1)  # a run of one micro-batch commits none
        return dict(sorted(data.items()))

    def read(self, data: Any) -> Offset:  # noqa: ANN401 - as in the base class
        """Return the offset from the JSON that `write` returned, or that `InlineOffsetCodec.write` returned."""
        head = expanded(data, self._source.name)
        if "state" in head:
            link, has_parts = self._link(head["state"])
            if has_parts:
                head |= self._segment(head, link).parts
        return load_offset(head, self._source.name, self._source.split_class)

    def read_done(self, data: Any) -> FinishedSplits:  # noqa: ANN401 - as in the base class
        """Return the finished splits of an offset; the next `write` continues their chain of segments."""
        head = expanded(data, self._source.name)
        done = loaded_done(head, self._source, self._digests)
        levels: list[_Level] = []
        if "state" in head:
            self._used = True
            if "done" not in head and "digests" not in head:
                for link, segment in reversed(self._chain(head)):
                    levels.append(self._load(done, link, segment, base=not levels))
                try:
                    done.load_digests()
                except ValueError as error:
                    raise damaged(self._source.name, str(error)) from error
        self._levels = {head.get("n", -1): tuple(levels) if done.ids() else ()}
        self._cleaned = None
        return done

    def batch_committed(self, offset: Offset) -> None:
        """Delete old segments, once in `_CLEAN_EVERY` micro-batches. Never raises."""
        if self._used and (self._cleaned is None or offset.n >= self._cleaned + _CLEAN_EVERY):
            self._clean(offset.query, offset.n)

    # ---- segments

    def _grow(
        self, offset: Offset, before: tuple[_Level, ...], done: FinishedSplits, parts: dict[str, Json]
    ) -> tuple[_Level, ...]:
        """Write a segment with the changes to `done` since the last micro-batch; return the chain that ends with it.

        `before` is the chain of the last micro-batch; `parts` are long fields of the offset, stored in the segment too.
        """
        levels = list(before)
        changed = {*done.added, *done.forgotten}
        while levels and levels[-1].weight < 2 * max(1, len(changed)):
            changed |= levels.pop().changed
        if not levels:
            link, data = encode(offset.n, None, parts, (), _entries(done, sorted(done.ids())))
            return (_Level(self._put(offset, link, data), frozenset(), max(1, done.count)),)
        added = sorted(filter(done.holds, changed))
        drop = sorted(changed.difference(added))
        link, data = encode(offset.n, levels[-1].link, parts, drop, _entries(done, added))
        return (*levels, _Level(self._put(offset, link, data), frozenset(changed), max(1, len(changed))))

    def _load(self, done: FinishedSplits, link: Link, segment: DigestSegment, *, base: bool) -> _Level:
        changed = set(segment.drop)
        done.drop(segment.drop)
        for entries in segment.added():
            done.load(checked_done(entries, self._source.name))
            if not base:
                changed.update(entry[0] for entry in entries)
        return _Level(link, frozenset(changed), max(1, len(done) if base else len(changed)))

    def _chain(self, head: dict[str, Any]) -> list[tuple[Link, DigestSegment]]:
        """Return the chain of segments with the finished splits of an offset, newest first."""
        chain: list[tuple[Link, DigestSegment]] = []
        link: Link | None = self._link(head["state"])[0]
        while link is not None:
            segment = self._segment(head, link)
            chain.append((link, segment))
            link = segment.after
        return chain

    def _put(self, offset: Offset, link: Link, data: bytes) -> Link:
        name = _path(offset.query, link.name)
        self._used = True
        if not self._call("writing", lambda: self._store.put_if_absent(name, data)):
            stored = self._call("reading", lambda: self._store.get(name))  # from an earlier try, or a damaged file
            if stored != data:
                raise self._broken(name, "does not match its name")
        self._remember(link.name, data)
        return link

    def _segment(self, head: dict[str, Any], link: Link) -> DigestSegment:
        name = _path(str(head.get("id", "")), link.name)
        data = self._cache.get(link.name)
        if data is None:
            data = self._call("reading", lambda: self._store.get(name))
        if data is None:
            raise self._missing(name, head)
        if digest_of(data) != link.digest:
            raise self._broken(name, "does not match its digest in the offset")
        self._remember(link.name, data)
        try:
            return decode(data)
        except ValueError as error:
            raise self._broken(name, f"cannot be read: {error}") from error

    def _remember(self, name: str, data: bytes) -> None:
        self._cache.pop(name, None)
        self._cache[name] = data
        while len(self._cache) > _CACHED:
            del self._cache[next(iter(self._cache))]

    def _link(self, state: Any) -> tuple[Link, bool]:  # noqa: ANN401 - any JSON value
        """Return the link in the field `state` of an offset, and whether the segment holds fields of the offset."""
        fields = state if isinstance(state, dict) else {}
        name, digest = fields.get("segment"), fields.get("digest")
        if not is_link(name, digest):
            raise damaged(self._source.name, "its field 'state' does not name a segment")
        return Link(str(name), str(digest)), bool(fields.get("parts"))

    def _clean(self, query: str, n: int) -> None:
        """Delete the segments that none of the last `KEPT` micro-batches needs; `n` is the newest one."""
        try:
            directory = _path(query, "")
            names = self._call("listing", lambda: self._store.names(directory))
            old = outdated((name.removeprefix(directory) for name in names), n - KEPT + 1)
            if old:
                self._call("deleting", lambda: self._store.delete([directory + name for name in old]))
        except Exception as error:  # noqa: BLE001 - best effort: the query goes on, and the next call tries again
            _log.warning(
                "%s: old state below stateLocation could not be deleted; the query goes on, and tries again later",
                self._source.name,
                exc_info=without_secrets(error),
            )
        self._cleaned = n

    def _call(self, doing: str, work: Callable[[], T]) -> T:
        return self._calls.call(f"{doing} the state of the stream (stateLocation)", work)

    # ---- errors

    def _missing(self, name: str, head: dict[str, Any]) -> ConfigurationError:
        state = head["state"]
        at = state.get("at") if isinstance(state, dict) else None
        here, query = self._store.location, head.get("id")
        if at == here:
            text = f"the segment {name!r} that the query needs is missing from {here!r}"
            advice = (
                "restore the file from a backup or an older version in the bucket, or start with a new checkpoint "
                "location"
            )
        else:
            text = f"the query kept its state in {at!r}, and the file {name!r} is missing from {here!r}"
            advice = f"set stateLocation to {at} as before, or copy its directory {query!r} to the new location first"
        return ConfigurationError(text, source=self._source.name, option=OPTION, advice=advice)

    def _broken(self, name: str, what: str) -> ConfigurationError:
        return ConfigurationError(
            f"the segment {name!r} below {self._store.location!r} {what}",
            source=self._source.name,
            option=OPTION,
            advice="restore the file from a backup or an older version in the bucket, or run the release of forebay "
            "that wrote it, or start with a new checkpoint location",
        )


def _long_parts(data: dict[str, Json]) -> dict[str, Json]:
    """Remove from the JSON of an offset the fields that are too long for it, and return them; compact the others."""
    parts: dict[str, Json] = {}
    for name in ("splits", "enum"):
        if name not in data:
            continue
        value = data[name]
        many = isinstance(value, list) and len(value) > _MANY  # too long without measuring it
        short = value if many or name == "enum" else compact(value)
        if many or length(short) > _MOST_PART:
            parts[name] = data.pop(name)
        else:
            data[name] = short
    return parts


def _short(done: FinishedSplits) -> Json:
    """Return the finished splits as JSON for an offset; None if there are too many for it."""
    if done.digests or len(done) > _MOST_DONE // 8:  # an entry has at least 8 characters
        return None
    entries = compact(done.entries())
    return entries if length(entries) <= _MOST_DONE else None


def _entries(done: FinishedSplits, ids: list[str]) -> Iterator[Json]:
    """Yield the entries with these ids in lists of `_CHUNK`, so that few entries are in memory twice."""
    for start in range(0, len(ids), _CHUNK):
        yield done.entries(ids[start : start + _CHUNK])


def _path(query: str, name: str) -> str:
    return f"{query}/segments/{name}"


# -- Segments: immutable files below `stateLocation` that hold the parts of an offset that are too long for it.
#
# ```
# <query id>/segments/<n>-<n of the previous segment, or "base">-<start of the digest of the content>
#
# line 1   {"v": 1, "n": …, "after": [name, digest] | null, "parts": {"splits": …}, "drop": [id, …]}
# others   [[id, fields?], …]        finished splits, some hundreds in a line
# ```
# `n` is the number of the micro-batch. Files are compressed by zlib. The finished splits are stored in a chain of
# segments: each one drops entries that the segments before it (`after`) added, and adds new ones. A base begins a
# chain.


VERSION: Final = 1
"""Version of segments; an older release refuses a newer version."""

_NAME = re.compile(r"([0-9]{12,19})-([0-9]{12,19}|base)-[0-9a-f]{16}")
_LEVEL: Final = 1
"""Level of zlib: a base is written while a micro-batch waits, and level 6 takes 3× as long for 20 % less."""

_STEP: Final = 1 << 20
"""Number of compressed bytes that are decompressed at a time."""


@dataclass(frozen=True, slots=True)
class Link:
    """Refers to a segment: its file name without the directory, and the SHA-256 of its bytes in hexadecimal."""

    name: str
    digest: str

    @property
    def n(self) -> int:
        """The number of the micro-batch that the segment was written for."""
        return int(self.name.split("-", 1)[0])


@dataclass(frozen=True, slots=True)
class DigestSegment:
    """A decoded segment. For any thread.

    Args:
        after: The previous segment of the chain; None for a base.
        parts: Fields that are too long for the offset, by their names in it.
        drop: Ids of finished splits that this segment removes from the chain.
        data: The bytes of the file.
    """

    after: Link | None
    parts: Mapping[str, Json]
    drop: Sequence[str]
    data: bytes

    def added(self) -> Iterator[list[Any]]:
        """Yield the entries of finished splits that this segment adds to the chain, some hundreds at a time."""
        lines = _lines(self.data)
        next(lines)
        for line in lines:
            yield json.loads(line)


def encode(
    n: int, after: Link | None, parts: Mapping[str, Json], drop: Sequence[str], added: Iterable[Json]
) -> tuple[Link, bytes]:
    """Return the link to a new segment for micro-batch `n`, and the bytes of its file. For any thread.

    Equal arguments give equal bytes. `added` has a list of entries for each line; see `DigestSegment` for the others.
    """
    head: dict[str, Json] = {"v": VERSION, "forebay": __version__, "n": n, "parts": parts, "drop": list(drop)}
    head["after"] = None if after is None else [after.name, after.digest]
    packer = zlib.compressobj(_LEVEL)
    chunks = [packer.compress(_line(head))]
    chunks.extend(packer.compress(_line(entries)) for entries in added)
    data = b"".join([*chunks, packer.flush()])
    digest = digest_of(data)
    below = "base" if after is None else f"{after.n:012d}"
    return Link(f"{n:012d}-{below}-{digest[:16]}", digest), data


def decode(data: bytes) -> DigestSegment:
    """Return the segment from the bytes of its file. Only line 1 is decoded; `DigestSegment.added` decodes the others.

    For any thread.

    Raises:
        ValueError: The bytes are a segment of a newer release, or not a segment.
    """
    try:
        head = json.loads(next(_lines(data)))
        if head["v"] > VERSION:
            raise ValueError(f"the file was written by a newer forebay, {head.get('forebay', 'unknown')}")
        after = None if head["after"] is None else Link(*head["after"])
        if after is not None and not is_link(after.name, after.digest):
            raise ValueError(f"it continues {after!r:.300}, which is not a segment")
        return DigestSegment(after, head["parts"], head["drop"], data)
    except (zlib.error, StopIteration, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"the file is not a segment ({type(error).__name__}: {error})") from error


def is_link(name: object, digest: object) -> bool:
    """Return whether these values, from an offset or a segment, can be the fields of a `Link`. For any thread."""
    return isinstance(name, str) and isinstance(digest, str) and _NAME.fullmatch(name) is not None


def digest_of(data: bytes) -> str:
    """Return the SHA-256 of a segment's bytes in hexadecimal, for a `Link`."""
    return hashlib.sha256(data).hexdigest()


def outdated(names: Iterable[str], first: int) -> list[str]:
    """Return the names of the segments that no micro-batch from number `first` on needs. For any thread.

    `names` are file names. A name says on which segment its segment builds, so segments of a killed process are found
    too. Names of other files are ignored.
    """
    segments: dict[int, list[tuple[str, int | None]]] = {}
    for name in names:
        match = _NAME.fullmatch(name)
        if match is not None:
            below = None if match[2] == "base" else int(match[2])
            segments.setdefault(int(match[1]), []).append((name, below))
    unvisited = [n for n in segments if n >= first]
    needed = set(unvisited)
    while unvisited:
        for _, below in segments.get(unvisited.pop(), ()):
            if below is not None and below not in needed:
                needed.add(below)
                unvisited.append(below)
    return sorted(name for n, named in segments.items() if n not in needed for name, _ in named)


def _line(value: Json) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def _lines(data: bytes) -> Iterator[bytes]:
    """Yield the lines of a segment's file, decompressed on demand."""
    unpacker, partial = zlib.decompressobj(), b""
    for start in range(0, len(data), _STEP):
        *lines, partial = (partial + unpacker.decompress(data[start : start + _STEP])).split(b"\n")
        yield from lines
