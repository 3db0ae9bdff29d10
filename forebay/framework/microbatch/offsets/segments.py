# SPDX-License-Identifier: Apache-2.0
"""Segments: immutable files below `stateLocation` that hold the parts of an offset that are too long for it.

```
<query id>/segments/<n>-<n of the previous segment, or "base">-<start of the digest of the content>

line 1   {"v": 1, "n": …, "after": [name, digest] | null, "parts": {"splits": …}, "drop": [id, …]}
others   [[id, fields?], …]        finished splits, some hundreds in a line
```
`n` is the number of the micro-batch. Files are compressed by zlib. The finished splits are stored in a chain of
segments: each one drops entries that the segments before it (`after`) added, and adds new ones. A base begins a chain.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from forebay.framework.split import Json
from forebay.version import __version__

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
class Segment:
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

    Equal arguments give equal bytes. `added` has a list of entries for each line; see `Segment` for the others.
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


def decode(data: bytes) -> Segment:
    """Return the segment from the bytes of its file. Only line 1 is decoded; `Segment.added` decodes the others.

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
        return Segment(after, head["parts"], head["drop"], data)
    except (zlib.error, StopIteration, KeyError, TypeError, AttributeError) as error:
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
    found: dict[int, list[tuple[str, int | None]]] = {}
    for name in names:
        match = _NAME.fullmatch(name)
        if match is not None:
            below = None if match[2] == "base" else int(match[2])
            found.setdefault(int(match[1]), []).append((name, below))
    wanted = [n for n in found if n >= first]
    needed = set(wanted)
    while wanted:
        for _, below in found.get(wanted.pop(), ()):
            if below is not None and below not in needed:
                needed.add(below)
                wanted.append(below)
    return sorted(name for n, named in found.items() if n not in needed for name, _ in named)


def _line(value: Json) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def _lines(data: bytes) -> Iterator[bytes]:
    """Yield the lines of a segment's file, decompressed on demand."""
    unpacker, rest = zlib.decompressobj(), b""
    for start in range(0, len(data), _STEP):
        *lines, rest = (rest + unpacker.decompress(data[start : start + _STEP])).split(b"\n")
        yield from lines
