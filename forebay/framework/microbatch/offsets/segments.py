# SPDX-License-Identifier: Apache-2.0
"""What a stream writes below `stateLocation`: one segment for a micro-batch, named by its content, never changed.

```
<query id>/segments/<n>-<n of the one it builds on, or "base">-<start of the digest>

line 1   {"v": 1, "n": …, "after": [name, digest] | null, "parts": {"splits": …}, "drop": [id, …]}
others   [[id, fields?], …]        splits that ended, some hundreds a line
```
Compressed by zlib. A memory of splits is its chain of segments, from the base on: each drops some ids and adds some.
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
"""The form of segments; an older release refuses a newer one."""

_NAME = re.compile(r"(\d{12,})-(\d{12,}|base)-[0-9a-f]{16}")
_LEVEL: Final = 1
"""Of compression: a base is written while a micro-batch waits, and level 6 takes three times as long for a fifth."""

_STEP: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Link:
    """Which segment, and what is in it.

    Args:
        name: Its name, without the directory.
        digest: SHA-256 of its bytes, in hexadecimal.
    """

    name: str
    digest: str

    @property
    def n(self) -> int:
        """The number of its micro-batch."""
        return int(self.name.split("-", 1)[0])


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment that was read. Immutable; for any thread.

    Args:
        after: The segment it builds on; None for a base.
        parts: Parts of the offset that were too long for it, by their names there.
        drop: Ids that are forgotten.
        data: Its bytes.
    """

    after: Link | None
    parts: Mapping[str, Json]
    drop: Sequence[str]
    data: bytes

    def added(self) -> Iterator[list[Any]]:
        """Yield the entries of splits that are remembered from here on, some hundreds at a time."""
        lines = _lines(self.data)
        next(lines)
        for line in lines:
            yield json.loads(line)


def encode(
    n: int, after: Link | None, parts: Mapping[str, Json], drop: Sequence[str], added: Iterable[Json]
) -> tuple[Link, bytes]:
    """Return a segment's bytes, the same for the same content, and the link to it. Any thread.

    Args:
        n: The number of the micro-batch.
        after: The segment it builds on; None for a base.
        parts: Parts of the offset that are too long for it.
        drop: Ids that are forgotten.
        added: Entries that are remembered, some hundreds at a time.
    """
    head: dict[str, Json] = {"v": VERSION, "forebay": __version__, "n": n, "parts": parts, "drop": list(drop)}
    head["after"] = None if after is None else [after.name, after.digest]
    packer = zlib.compressobj(_LEVEL)
    pieces = [packer.compress(_line(head))]
    pieces.extend(packer.compress(_line(entries)) for entries in added)
    data = b"".join([*pieces, packer.flush()])
    digest = hashlib.sha256(data).hexdigest()
    below = "base" if after is None else f"{after.n:012d}"
    return Link(f"{n:012d}-{below}-{digest[:16]}", digest), data


def decode(data: bytes) -> Segment:
    """Read a segment's head; its entries are read by `Segment.added`. Any thread.

    Args:
        data: Bytes whose digest was found right.

    Raises:
        ValueError: It is of a newer release, or no segment.
    """
    try:
        head = json.loads(next(_lines(data)))
        if head["v"] > VERSION:
            raise ValueError(f"it was written by a newer forebay, {head.get('forebay', 'unknown')}")
        after = None if head["after"] is None else Link(*head["after"])
        return Segment(after, head["parts"], head["drop"], data)
    except (zlib.error, StopIteration, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is no segment ({type(error).__name__}: {error})") from error


def digest_of(data: bytes) -> str:
    """Return what `Link.digest` has to be."""
    return hashlib.sha256(data).hexdigest()


def outdated(names: Iterable[str], first: int) -> list[str]:
    """Return the segments that no micro-batch from `first` on builds on. Any thread.

    Told by the names alone, so that what a killed process left behind is found too. Names that are not of segments
    are left out.

    Args:
        names: Of all segments of a query, without the directory.
        first: The number of the first micro-batch that has to be kept.
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
    """Yield the lines, unpacked as they are asked for."""
    unpacker, rest = zlib.decompressobj(), b""
    for start in range(0, len(data), _STEP):
        *lines, rest = (rest + unpacker.decompress(data[start : start + _STEP])).split(b"\n")
        yield from lines
