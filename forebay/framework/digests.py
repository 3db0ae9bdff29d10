# SPDX-License-Identifier: Apache-2.0
"""Stores finished splits as hashes, if whole splits would be too long for a checkpoint.

A split takes about 13 characters: its key, a hash of 64 bits, and a mark of 32 bits. The sorted keys are stored as
differences, whose bytes are compressed column by column: with 200,000 keys, to 49 bits each.
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
"""Bytes of a key. The probability that a new split collides with one of 400,000 is 2 in 10^14."""

_GROWTH: Final = 2
"""A new segment is merged with each older one that has fewer than `_GROWTH` times its number of splits."""

_LEVEL: Final = 1
"""Compression level: only the upper columns of keys are compressible, at any level."""


class Digest(NamedTuple):
    """An entry that represents a finished split; a split may have several.

    Args:
        key: Text that identifies the split; only its hash is stored.
        mark: 32 bits that the enumerator chooses; `SplitDigests.mark` returns them.
        moment: An int, such as nanoseconds since 1970: `SplitDigests.expire` forgets entries before a moment.
    """

    key: str
    mark: int
    moment: int


@dataclass(frozen=True, slots=True)
class _Segment:
    """Entries that are stored and forgotten together. Immutable; equal contents have equal names."""

    until: int  # the highest moment of its entries
    splits: int  # the number of splits
    text: str  # the packed entries
    name: str


class SplitDigests:
    """The hashes of finished splits that a checkpoint stores instead of whole splits.

    An enumerator owns it and looks up splits in it; the framework fills, stores and restores it. Used on the planning
    thread. A discovery may look up splits on another thread while nothing changes it.

    Args:
        digest: Returns the entries of a finished split; none if the whole split must be stored.
        span: Segments are merged only if their moments are in the same interval of this length. None = one interval,
            for entries that never expire.
    """

    def __init__(self, digest: Callable[[Split], Sequence[Digest]] | None = None, span: int | None = None) -> None:
        self.digest = digest
        """Returns the entries of a finished split; None = no split is stored as hashes."""
        self._span = span
        self._segments: list[_Segment] = []
        self._marks: dict[int, int] = {}
        self.dropped: list[str] = []
        """Names of the segments that were removed since the framework last stored the segments."""
        self.generation = 0
        """A counter that increases when entries expire or are loaded."""

    def __len__(self) -> int:
        """Return the number of stored splits."""
        return sum(segment.splits for segment in self._segments)

    @property
    def characters(self) -> int:
        """The length of the stored entries, in characters."""
        return sum(len(segment.text) for segment in self._segments)

    def mark(self, key: str) -> int | None:
        """Return the mark of the entry with this key; None if there is no such entry."""
        return self._marks.get(hash_of(key))

    def expire(self, moment: int) -> None:
        """Forget the segments whose entries are all before `moment`. Called by the enumerator."""
        gone = [segment for segment in self._segments if segment.until < moment]
        if gone:
            self.dropped += [segment.name for segment in gone]
            self._keep([segment for segment in self._segments if segment.until >= moment])

    # ---- for the framework

    def add(self, splits: Iterable[Split]) -> list[str]:
        """Add finished splits as entries; return the ids of the added ones. A split without entries is not added."""
        ids: list[str] = []
        groups: dict[int, tuple[list[Digest], list[str]]] = {}
        for split in splits:
            entries = () if self.digest is None else self.digest(split)
            if entries:
                ids.append(split.id)
                group = groups.setdefault(self._group(max(entry.moment for entry in entries)), ([], []))
                group[0].extend(entries)
                group[1].append(split.id)
        for key, (entries, of) in groups.items():
            marks = {hash_of(entry.key): entry.mark for entry in entries}
            self._insert(key, marks, max(entry.moment for entry in entries), len(of))
        return ids

    def dump(self) -> list[list[int | str]]:
        """Return the stored form, JSON-ready. The same additions in the same order give the same form."""
        return [[segment.until, segment.splits, segment.text] for segment in self._segments]

    def load(self, data: Any) -> None:  # noqa: ANN401 - any JSON value
        """Replace all entries by those of `data`, a result of `dump`.

        Raises:
            ValueError: `data` is not a result of `dump`.
        """
        self.dropped = []
        self._keep([_checked(entry) for entry in data])

    def holds(self, name: str) -> bool:
        """Whether a segment with this name exists."""
        return any(segment.name == name for segment in self._segments)

    def entries(self) -> dict[str, Mapping[str, Json]]:
        """Return the segments by name, for a host that writes each segment once."""
        return {
            segment.name: {"until": segment.until, "splits": segment.splits, "text": segment.text}
            for segment in self._segments
        }

    def _group(self, moment: int) -> int:
        return 0 if self._span is None else moment // self._span

    def _insert(self, group: int, entries: dict[int, int], until: int, splits: int) -> None:
        """Add a segment; merge it with segments of its group that are not much larger."""
        self._marks |= entries
        segments = []
        for segment in reversed(self._segments):
            if self._group(segment.until) == group and segment.splits < _GROWTH * splits:
                entries = _unpacked(segment.text) | entries
                until, splits = max(until, segment.until), splits + segment.splits
                self.dropped.append(segment.name)
            else:
                segments.append(segment)
        self._segments = [*reversed(segments), _segment(until, splits, _packed(entries))]

    def _keep(self, segments: list[_Segment]) -> None:
        self._segments = segments
        self._marks = {key: mark for segment in segments for key, mark in _unpacked(segment.text).items()}
        self.generation += 1


def hash_of(text: str) -> int:
    """Return the 64-bit hash of a text, the same in every process and release. Any thread."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_KEY).digest())


def _segment(until: int, splits: int, text: str) -> _Segment:
    digest = hashlib.blake2b(f"{until} {splits} {text}".encode(), digest_size=_KEY)
    return _Segment(until, splits, text, digest.hexdigest())


def _packed(entries: Mapping[int, int]) -> str:
    """Return entries as text: the differences of the sorted keys, compressed by byte columns, then the marks."""
    keys = sorted(entries)
    differences = [high - low for low, high in itertools.pairwise([0, *keys])]
    rows = struct.pack(f">{len(keys)}Q", *differences)
    columns = zlib.compress(b"".join(rows[column::_KEY] for column in range(_KEY)), _LEVEL)
    return base64.b85encode(columns + struct.pack(f">{len(keys)}I", *map(entries.__getitem__, keys))).decode("ascii")


def _unpacked(text: str) -> dict[int, int]:
    """Return the entries in a result of `_packed`; raise ValueError if the text is damaged."""
    try:
        unpacker = zlib.decompressobj()
        columns = unpacker.decompress(base64.b85decode(text))
        if not unpacker.eof:
            raise ValueError("the text of a segment is incomplete")  # noqa: TRY301 - wrapped below as any other damage
        count = len(columns) // _KEY
        rows = bytearray(len(columns))
        for column in range(_KEY):
            rows[column::_KEY] = columns[column * count : (column + 1) * count]
        keys = itertools.accumulate(struct.unpack(f">{count}Q", rows))
        return dict(zip(keys, struct.unpack(f">{count}I", unpacker.unused_data), strict=True))
    except (zlib.error, binascii.Error, struct.error, ValueError) as error:
        raise ValueError(f"the hashes of finished splits (digests) cannot be read: {error}") from error


def _checked(entry: Any) -> _Segment:  # noqa: ANN401 - any JSON value
    until, splits, text = entry if isinstance(entry, list) and len(entry) == 3 else (None, None, None)
    if not (isinstance(until, int) and isinstance(splits, int) and isinstance(text, str)):
        raise ValueError(  # noqa: TRY004 - a damaged text
            "the hashes of finished splits (digests) contain an entry that is not a segment: "
            "[moment, number of splits, text]"
        )
    return _segment(until, splits, text)
