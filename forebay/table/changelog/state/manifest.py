# SPDX-License-Identifier: Apache-2.0
"""The metadata files of a state, as JSON: the manifest of each version of a shard, and the `OperatorInfo`."""

from __future__ import annotations

import base64
from dataclasses import asdict, dataclass, field
from typing import Self

import pyarrow as pa

from forebay.state.state_store import is_safe_name
from forebay.table.changelog.state.facts import FORMAT, SegmentInfo, damaged, fact_bytes, parse_fact


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
