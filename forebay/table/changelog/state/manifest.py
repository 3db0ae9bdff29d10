# SPDX-License-Identifier: Apache-2.0
"""The metadata files of a state, as JSON: the manifest of each version of a shard, and the `OperatorInfo`."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self

import pyarrow as pa

from forebay.errors import FatalError
from forebay.state.state_store import is_safe_name

FORMAT: Final = 1
"""The format version of the state's files. A state with another format version is refused."""


@dataclass(frozen=True)
class SegmentInfo:
    """The description of a segment: a file of entries, sorted by key hash.

    Args:
        name: The name of the file in the state store.
        rows: The number of entries.
        size: The number of bytes.
        digest: The SHA-256 of these bytes.
        first: The least key hash.
        last: The greatest key hash.
        oldest: The least time of an entry in microseconds; None without a time to live.
        tombstones: The number of entries with count 0; None if they were not counted.
    """

    name: str
    rows: int
    size: int
    digest: str
    first: int
    last: int
    oldest: int | None = None
    tombstones: int | None = None

    @property
    def is_valid(self) -> bool:
        """Whether the values, which come from a file, have the right types, and the name stays below the state."""
        numbers = (self.rows, self.size, self.first, self.last)
        return (
            is_safe_name(self.name) and isinstance(self.digest, str) and all(isinstance(each, int) for each in numbers)
        )


@dataclass(frozen=True)
class Manifest:
    """The manifest of one version of a shard: the segments that make up its state after one micro-batch.

    Args:
        version: The id of the micro-batch.
        runs: Oldest first. The segments of a run follow one another by key hash; an entry of a newer run replaces the
            same entry of an older one.
        schema: The columns of the entries.
        retired: Segments that only older versions need: the version that dropped each, and its name.
        digest: A checksum of all events of the micro-batch, by which a replay with other events is noticed.
        clock: The greatest time seen in microseconds; None without a time to live.
        counts: The counters of the operator in this micro-batch, by name, such as unmatched retractions.
    """

    version: int
    runs: tuple[tuple[SegmentInfo, ...], ...]
    schema: pa.Schema
    retired: tuple[tuple[int, str], ...] = ()
    digest: int = 0
    clock: int | None = None
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def entries(self) -> int:
        """The entries of all runs, including tombstones and replaced ones."""
        return sum(segment.rows for run in self.runs for segment in run)

    @property
    def size(self) -> int:
        """The bytes of all runs."""
        return sum(segment.size for run in self.runs for segment in run)

    def to_bytes(self) -> bytes:
        """Return the manifest as canonical JSON."""
        facts = {
            "v": FORMAT,
            "version": self.version,
            "runs": [[asdict(segment) for segment in run] for run in self.runs],
            "schema": base64.b64encode(self.schema.serialize().to_pybytes()).decode(),
            "retired": self.retired,
            "digest": self.digest,
            "clock": self.clock,
            "counts": self.counts,
        }
        return fact_bytes(facts)

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> Self:
        """Parse a manifest.

        Raises:
            FatalError: The manifest is damaged, or another version of forebay wrote it.
        """
        facts = parse_fact(data, name)
        try:
            manifest = cls(
                version=facts["version"],
                runs=tuple(tuple(SegmentInfo(**segment) for segment in run) for run in facts["runs"]),
                schema=pa.ipc.read_schema(pa.py_buffer(base64.b64decode(facts["schema"]))),
                retired=tuple((version, segment) for version, segment in facts["retired"]),
                digest=facts["digest"],
                clock=facts["clock"],
                counts=facts["counts"],
            )
        except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
            raise damaged(name, str(error)) from error
        for segment in (each for run in manifest.runs for each in run):
            if not segment.is_valid:
                raise damaged(name, f"it describes the segment {segment!r:.300}")
        for _, dropped in manifest.retired:
            if not is_safe_name(dropped):
                raise damaged(name, f"it names the segment {dropped!r:.300}")
        return manifest


@dataclass(frozen=True)
class OperatorInfo:
    """The query and the operator that a state belongs to. Written once, and compared in each micro-batch.

    Args:
        query: The id of the streaming query.
        operator: The function that made the state, such as `materialize retract`.
        shards: The number of shards.
        keys: Names and types of the key columns.
        first: The micro-batch that began the state.
        generation: How often the state was given another number of shards.
        directory: Where the shards of this generation are, below the operator's directory: empty or ending in a slash.
    """

    query: str
    operator: str
    shards: int
    keys: tuple[tuple[str, str], ...]
    first: int
    generation: int = 0
    directory: str = ""

    def to_bytes(self) -> bytes:
        """Return the info as canonical JSON."""
        return fact_bytes({"v": FORMAT, **asdict(self)})

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> Self:
        """Parse an `OperatorInfo`; see `Manifest.from_bytes`."""
        facts = parse_fact(data, name)
        try:
            info = cls(
                query=facts["query"],
                operator=facts["operator"],
                shards=facts["shards"],
                keys=tuple((key, kind) for key, kind in facts["keys"]),
                first=facts["first"],
                generation=facts.get("generation", 0),
                directory=facts.get("directory", ""),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(name, str(error)) from error
        if info.directory and not is_safe_name(info.directory.removesuffix("/")):
            raise damaged(name, f"it names the directory {info.directory!r:.300}")
        return info


def fact_bytes(facts: Mapping[str, object]) -> bytes:
    """Return the content of a metadata file as canonical JSON, with a digest."""
    return _canonical({**facts, "sum": _digest(facts)})


def _canonical(facts: Mapping[str, object]) -> bytes:
    return json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()


def _digest(facts: Mapping[str, object]) -> str:
    return hashlib.sha256(_canonical(facts)).hexdigest()[:16]


def parse_fact(data: bytes, name: str) -> dict[str, Any]:
    """Parse the JSON of a metadata file, and check its format version and digest.

    Raises:
        FatalError: The file is damaged, or another version of forebay wrote it.
    """
    try:
        facts: dict[str, Any] = json.loads(data)
        version = facts["v"]
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(name, str(error)) from error
    if version != FORMAT:
        later = ", or a later one" if isinstance(version, int) and version > FORMAT else ""
        raise FatalError(
            f"the state {name} has format {version}; this version of forebay reads format {FORMAT}",
            option="state_location",
            advice=f"install the version of forebay that wrote the state{later}",
        )
    digest = facts.pop("sum", None)
    if digest is not None and digest != _digest(facts):
        raise damaged(name, "its digest differs")
    return facts


def damaged(name: str, reason: str) -> FatalError:
    """Return the error for a file of the state that cannot be read."""
    return FatalError(
        f"the file {name} of the state is damaged: {reason}",
        option="state_location",
        advice="restore the state location and the checkpoint from one backup, or start the query with a "
        "new checkpoint and a new state location",
    )
