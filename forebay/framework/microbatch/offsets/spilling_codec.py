# SPDX-License-Identifier: Apache-2.0
"""Offsets whose long parts lie below `stateLocation`, in segments that the offset pins by a digest (S1, S15)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from forebay.errors import ConfigurationError
from forebay.framework.digests import SplitDigests
from forebay.framework.microbatch.offsets.codec import OffsetCodec, checked_done, expanded, loaded_done
from forebay.framework.microbatch.offsets.compact import compact, length
from forebay.framework.microbatch.offsets.finished_splits import DoneSplits
from forebay.framework.microbatch.offsets.offset import DIGESTS, Agreed, Offset, damaged, dump_offset, load_offset
from forebay.framework.microbatch.offsets.segments import Link, Segment, decode, digest_of, encode, outdated
from forebay.framework.runtime.connector_calls import ConnectorCalls
from forebay.framework.runtime.connector_errors import without_secrets
from forebay.framework.source import Source
from forebay.framework.split import Json
from forebay.state.state_store import OPTION, StateStore

T = TypeVar("T")

_log = logging.getLogger(__name__)

KEPT: Final = 200
"""Micro-batches that can be gone back to; Spark keeps the offsets of 100."""

_MOST_PART: Final = 16 << 10
"""Characters of one part of an offset that stay in it."""

_MANY: Final = 4000
"""Splits that hardly fit into that, however short their entries are."""

_MOST_DONE: Final = 4 << 10
"""The same for what is remembered: it is there in every micro-batch, and in a segment only what changed."""

_CLEAN_EVERY: Final = 50
_CHUNK: Final = 500
_CACHED: Final = 2


@dataclass(frozen=True, slots=True)
class _Level:
    """One segment of the chain that a memory is.

    Args:
        link: Which.
        changed: The ids that it drops or adds; empty for the base.
        weight: How many these are.
    """

    link: Link
    changed: frozenset[str]
    weight: int


class SpillingOffsetCodec(OffsetCodec):
    """Keeps what is long in segments: a micro-batch's plan, and what changed in the memory of splits that ended.

    A segment builds on older ones, each at least twice as heavy as the next, and takes in those that are not: so a
    memory of any size is a chain of few segments, and each of its entries is written only so many times. What is
    short stays in the offset, and then nothing is written: the store is not even looked at.

    A segment that was written, but whose offset was not, is never read; it is deleted with those that are too old.

    Args:
        source: What is read.
        store: Where segments are.
        calls: Bounds and retries the calls of the store.
        digests: Recognises splits that ended while there was no `stateLocation`; no more are added.
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

    def write(self, offset: Offset, done: DoneSplits) -> dict[str, Json]:
        """Return the offset, after its segment is safely written, if it needs one."""
        data = dump_offset(offset)
        if any(planned.to is Agreed.AGREED for planned in offset.splits):
            data["claims"] = self._store.location  # for people: how far was read is there
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
            self._clean(offset.query, offset.n - 1)  # in a run of one micro-batch nobody calls `proven`
        return dict(sorted(data.items()))

    def read(self, data: Any) -> Offset:  # noqa: ANN401 - as in the base class
        """Return the offset, also one that was written without `stateLocation`."""
        found = expanded(data, self._source.name)
        if "state" in found:
            link, wanted = self._link(found["state"])
            if wanted:
                found |= self._segment(found, link).parts
        return load_offset(found, self._source.name, self._source.split_class)

    def read_done(self, data: Any) -> DoneSplits:  # noqa: ANN401 - as in the base class
        """Return what is remembered, and go on from there with the next `write`."""
        found = expanded(data, self._source.name)
        done = loaded_done(found, self._source, self._digests)
        levels: list[_Level] = []
        if "state" in found:
            self._used = True
            if "done" not in found and "digests" not in found:
                for link, segment in reversed(self._chain(found)):
                    levels.append(self._load(done, link, segment, base=not levels))
                try:
                    done.load_digests()
                except ValueError as error:
                    raise damaged(self._source.name, str(error)) from error
        self._levels = {found.get("n", -1): tuple(levels) if done.ids() else ()}
        self._cleaned = None
        return done

    def proven(self, offset: Offset) -> None:
        """Delete segments that are needed no more, now and then. Never raises."""
        if self._used and (self._cleaned is None or offset.n >= self._cleaned + _CLEAN_EVERY):
            self._clean(offset.query, offset.n)

    # ---- segments

    def _grow(
        self, offset: Offset, before: tuple[_Level, ...], done: DoneSplits, parts: dict[str, Json]
    ) -> tuple[_Level, ...]:
        """Write what changed since the micro-batch before; return the chain with it."""
        kept = list(before)
        changed = {*done.added, *done.forgotten}
        while kept and kept[-1].weight < 2 * max(1, len(changed)):
            changed |= kept.pop().changed
        if not kept:
            link, data = encode(offset.n, None, parts, (), _entries(done, sorted(done.ids())))
            return (_Level(self._put(offset, link, data), frozenset(), max(1, done.count)),)
        there = sorted(filter(done.holds, changed))
        drop = sorted(changed.difference(there))
        link, data = encode(offset.n, kept[-1].link, parts, drop, _entries(done, there))
        return (*kept, _Level(self._put(offset, link, data), frozenset(changed), max(1, len(changed))))

    def _load(self, done: DoneSplits, link: Link, segment: Segment, *, base: bool) -> _Level:
        changed = set(segment.drop)
        done.drop(segment.drop)
        for entries in segment.added():
            done.load(checked_done(entries, self._source.name))
            if not base:
                changed.update(entry[0] for entry in entries)
        return _Level(link, frozenset(changed), max(1, len(done) if base else len(changed)))

    def _chain(self, found: dict[str, Any]) -> list[tuple[Link, Segment]]:
        """Return the segments a memory is made of, the last one first."""
        chain: list[tuple[Link, Segment]] = []
        link: Link | None = self._link(found["state"])[0]
        while link is not None:
            segment = self._segment(found, link)
            chain.append((link, segment))
            link = segment.after
        return chain

    def _put(self, offset: Offset, link: Link, data: bytes) -> Link:
        name = _path(offset.query, link.name)
        self._used = True
        if not self._call("writing", lambda: self._store.put_if_absent(name, data)):
            there = self._call("reading", lambda: self._store.get(name))  # a try before this one, or a damaged file
            if there != data:
                raise self._broken(name, "is not what its name says")
        self._remember(link.name, data)
        return link

    def _segment(self, found: dict[str, Any], link: Link) -> Segment:
        name = _path(str(found.get("id", "")), link.name)
        data = self._cache.get(link.name)
        if data is None:
            data = self._call("reading", lambda: self._store.get(name))
        if data is None:
            raise self._missing(name, found)
        if digest_of(data) != link.digest:
            raise self._broken(name, "is not what was written")
        self._remember(link.name, data)
        try:
            return decode(data)
        except ValueError as error:
            raise self._broken(name, f"cannot be read: {error}") from error

    def _remember(self, name: str, data: bytes) -> None:
        """Keep the last segments at hand: a micro-batch's plan is read again for its tasks, and when it is done."""
        self._cache.pop(name, None)
        self._cache[name] = data
        while len(self._cache) > _CACHED:
            del self._cache[next(iter(self._cache))]

    def _link(self, state: Any) -> tuple[Link, bool]:  # noqa: ANN401 - any JSON value
        """Return the segment an offset names, and whether parts of the offset are in it."""
        found = state if isinstance(state, dict) else {}
        name, digest = found.get("segment"), found.get("digest")
        if not isinstance(name, str) or not isinstance(digest, str) or "/" in name:
            raise damaged(self._source.name, "it does not say which segment it needs")
        return Link(name, digest), bool(found.get("parts"))

    def _clean(self, query: str, n: int) -> None:
        """Delete what only micro-batches before the last `KEPT` need."""
        try:
            directory = _path(query, "")
            names = self._call("listing", lambda: self._store.names(directory))
            old = outdated((name.removeprefix(directory) for name in names), n - KEPT + 1)
            if old:
                self._call("deleting", lambda: self._store.delete([directory + name for name in old]))
        except Exception as error:  # noqa: BLE001 - best effort: the query must not die of it, and it is tried again
            _log.warning("%s: old segments could not be deleted", self._source.name, exc_info=without_secrets(error))
        self._cleaned = n

    def _call(self, doing: str, work: Callable[[], T]) -> T:
        return self._calls.call(f"{doing} what the stream remembers (stateLocation)", work)

    # ---- errors

    def _missing(self, name: str, found: dict[str, Any]) -> ConfigurationError:
        state = found["state"]
        at = state.get("at") if isinstance(state, dict) else None
        here, query = self._store.location, found.get("id")
        if at == here:
            said = f"the segment {name!r} that the query needs is gone from {here!r}"
            advice = (
                "put the file back, from a backup or a version of the bucket, or start with a new checkpoint location"
            )
        else:
            said = f"the query kept what it remembers in {at!r}, and it is not in {here!r}: there is no {name!r}"
            advice = f"give stateLocation={at} as before, or copy its directory {query!r} to the new place first"
        return ConfigurationError(said, source=self._source.name, option=OPTION, advice=advice)

    def _broken(self, name: str, what: str) -> ConfigurationError:
        return ConfigurationError(
            f"the segment {name!r} below {self._store.location!r} {what}",
            source=self._source.name,
            option=OPTION,
            advice="put the file back as it was, from a backup or a version of the bucket, or run the forebay that "
            "wrote it, or start with a new checkpoint location",
        )


def _long_parts(data: dict[str, Json]) -> dict[str, Json]:
    """Take the parts that are too long out of an offset, and return them; write the others small."""
    parts: dict[str, Json] = {}
    for name in ("splits", "enum"):
        if name not in data:
            continue
        value = data[name]
        # What is far too long need not be written twice to see that it is.
        many = isinstance(value, list) and len(value) > _MANY
        short = value if many or name == "enum" else compact(value)
        if many or length(short) > _MOST_PART:
            parts[name] = data.pop(name)
        else:
            data[name] = short
    return parts


def _short(done: DoneSplits) -> Json:
    """Return the memory as it goes into an offset, None if it is too long for that."""
    if done.digests or len(done) > _MOST_DONE // 8:  # no entry is written in fewer characters
        return None
    entries = compact(done.entries())
    return entries if length(entries) <= _MOST_DONE else None


def _entries(done: DoneSplits, ids: list[str]) -> Iterator[Json]:
    """Yield the entries of these ids, some hundreds at a time, so that few are in memory twice."""
    for start in range(0, len(ids), _CHUNK):
        yield done.entries(ids[start : start + _CHUNK])


def _path(query: str, name: str) -> str:
    return f"{query}/segments/{name}"
