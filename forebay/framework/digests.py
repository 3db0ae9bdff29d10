# SPDX-License-Identifier: Apache-2.0
"""Recognises splits that ended by hashes of them, where whole splits would be too long for a checkpoint.

A split takes about 13 characters: a key of 64 bits and a mark of 32. Keys are sorted, and their differences are packed
by columns of bytes, which leaves 49 bits of a key among 200,000.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import itertools
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from forebay.framework.split import Json, Split

_KEY: Final = 8
"""Bytes of a key. A new split has the key of one among 400,000 with a probability of 2 in 10^14."""

_GROWTH: Final = 2
"""A segment is merged with a new one unless it has this many times as many entries."""

_LEVEL: Final = 1
"""Of compression: only the upper columns of keys can be compressed, and any level does that."""


class Digest(NamedTuple):
    """One entry of a split that ended.

    Args:
        key: Text that identifies the split.
        mark: 32 bits of the author's own, given back by `SplitDigests.mark`.
        moment: Orders splits: those before a moment are forgotten together. Nanoseconds since 1970, for files.
    """

    key: str
    mark: int
    moment: int


@dataclass(frozen=True, slots=True)
class _Segment:
    """Entries that are kept and forgotten together. Never changed.

    Args:
        until: The last moment of an entry.
        splits: How many splits the entries are of.
        text: The entries, packed.
        name: The same for the same content.
    """

    until: int
    splits: int
    text: str
    name: str


class SplitDigests:
    """What is left of splits that ended, once a checkpoint has no room for the whole splits.

    An enumerator owns one and asks it what it has read; the framework fills it, writes it and restores it. Called on
    the planning thread; a discovery may ask meanwhile, and then it is not changed.

    Args:
        digest: Returns the entries of a split that ended; none if only the whole split will do.
        span: Entries of so many moments are kept together; None = all, because none is ever forgotten.
    """

    def __init__(self, digest: Callable[[Split], Sequence[Digest]] | None = None, span: int | None = None) -> None:
        self.digest = digest
        """Returns the entries of a split."""
        self._span = span
        self._segments: list[_Segment] = []
        self._marks: dict[int, int] = {}
        self.dropped: list[str] = []
        """Names of segments that went since the framework last wrote, and that it may have written before."""
        self.generation = 0
        """Changes when splits are recognised no longer."""

    def __len__(self) -> int:
        """Return how many splits are recognised."""
        return sum(segment.splits for segment in self._segments)

    @property
    def characters(self) -> int:
        """How long it is when it is written."""
        return sum(len(segment.text) for segment in self._segments)

    def mark(self, key: str) -> int | None:
        """Return the mark of the entry with this key; None if there is none."""
        return self._marks.get(_hashed(key))

    def expire(self, moment: int) -> None:
        """Forget segments whose entries are all from before a moment. Called by the enumerator."""
        gone = [segment for segment in self._segments if segment.until < moment]
        if gone:
            self.dropped += [segment.name for segment in gone]
            self._keep([segment for segment in self._segments if segment.until >= moment])

    # ---- for the framework

    def add(self, splits: Iterable[Split]) -> list[str]:
        """Add the entries of splits, and return the ids of those that have some."""
        ids: list[str] = []
        groups: dict[int, tuple[list[Digest], list[str]]] = {}
        for split in splits:
            entries = () if self.digest is None else self.digest(split)
            if entries:
                ids.append(split.id)
                found, of = groups.setdefault(self._group(max(one.moment for one in entries)), ([], []))
                found += entries
                of.append(split.id)
        for group, (found, of) in groups.items():
            self._insert(group, {_hashed(one.key): one.mark for one in found}, max(map(_moment, found)), len(of))
        return ids

    def dump(self) -> list[list[int | str]]:
        """Return all of it, JSON-ready, the same for the same history."""
        return [[one.until, one.splits, one.text] for one in self._segments]

    def load(self, data: Any) -> None:  # noqa: ANN401 - any JSON value
        """Take back what `dump` gave, in place of all there is.

        Raises:
            ValueError: It is not what `dump` gave.
        """
        self.dropped = []
        self._keep([_checked(entry) for entry in data])

    def holds(self, name: str) -> bool:
        """Whether there is a segment of this name."""
        return any(segment.name == name for segment in self._segments)

    def entries(self) -> dict[str, Mapping[str, Json]]:
        """Return the segments by their names, for a host that writes each segment once."""
        return {one.name: {"until": one.until, "splits": one.splits, "text": one.text} for one in self._segments}

    def _group(self, moment: int) -> int:
        return 0 if self._span is None else moment // self._span

    def _insert(self, group: int, entries: dict[int, int], until: int, splits: int) -> None:
        """Add a segment; merge it with those of its group that are not much larger."""
        self._marks |= entries
        kept = []
        for segment in reversed(self._segments):
            if self._group(segment.until) == group and segment.splits < _GROWTH * splits:
                entries = _unpacked(segment.text) | entries
                until, splits = max(until, segment.until), splits + segment.splits
                self.dropped.append(segment.name)
            else:
                kept.append(segment)
        self._segments = [*reversed(kept), _segment(until, splits, _packed(entries))]

    def _keep(self, segments: list[_Segment]) -> None:
        self._segments = segments
        self._marks = {key: mark for one in segments for key, mark in _unpacked(one.text).items()}
        self.generation += 1


def hash_of(text: str) -> int:
    """Return 64 bits of a text, the same ones for ever. Any thread."""
    return _hashed(text)


def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_KEY).digest())


def _moment(entry: Digest) -> int:
    return entry.moment


def _segment(until: int, splits: int, text: str) -> _Segment:
    digest = hashlib.blake2b(f"{until} {splits} {text}".encode(), digest_size=_KEY)
    return _Segment(until, splits, text, digest.hexdigest())


def _packed(entries: Mapping[int, int]) -> str:
    """Return entries as text: the columns of the differences of sorted keys, compressed, then the marks."""
    keys = sorted(entries)
    differences = [high - low for low, high in itertools.pairwise([0, *keys])]
    rows = struct.pack(f">{len(keys)}Q", *differences)
    columns = zlib.compress(b"".join(rows[column::_KEY] for column in range(_KEY)), _LEVEL)
    return base64.b85encode(columns + struct.pack(f">{len(keys)}I", *map(entries.__getitem__, keys))).decode("ascii")


def _unpacked(text: str) -> dict[int, int]:
    """Return the entries that `_packed` was given.

    Raises:
        ValueError: The text is damaged.
    """
    try:
        unpacker = zlib.decompressobj()
        columns = unpacker.decompress(base64.b85decode(text))
        if not unpacker.eof:
            raise ValueError("they end too early")  # noqa: TRY301 - all that is wrong with it is told in one way
        count = len(columns) // _KEY
        rows = bytearray(len(columns))
        for column in range(_KEY):
            rows[column::_KEY] = columns[column * count : (column + 1) * count]
        keys = itertools.accumulate(struct.unpack(f">{count}Q", rows))
        return dict(zip(keys, struct.unpack(f">{count}I", unpacker.unused_data), strict=True))
    except (zlib.error, binascii.Error, struct.error, ValueError) as error:
        raise ValueError(f"digests cannot be read: {error}") from error


def _checked(entry: Any) -> _Segment:  # noqa: ANN401 - any JSON value
    until, splits, text = entry if isinstance(entry, list) and len(entry) == 3 else (None, None, None)
    if not (isinstance(until, int) and isinstance(splits, int) and isinstance(text, str)):
        raise ValueError("digests of splits are no list of segments")  # noqa: TRY004 - a damaged text
    return _segment(until, splits, text)
