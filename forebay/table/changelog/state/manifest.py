# SPDX-License-Identifier: Apache-2.0
"""The metadata files of a state, as JSON: the manifest of each version of a shard, and the `OperatorInfo`."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Final, Self

import pyarrow as pa

from forebay.state.state_store import is_safe_name
from forebay.table.changelog.state.facts import FORMAT, SegmentInfo, damaged, fact_bytes, parse_fact
from forebay.table.changelog.state.typed_values import Whole, Within, typed_value

_Digest = Annotated[int, Within(0, (1 << 64) - 1)]


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
                version=typed_value(Whole, facts["version"]),
                runs=typed_value(tuple[tuple[SegmentInfo, ...], ...], facts["runs"]),
                schema=pa.ipc.read_schema(pa.py_buffer(base64.b64decode(facts["schema"]))),
                retired=typed_value(tuple[tuple[int, str], ...], facts["retired"]),
                digest=typed_value(_Digest, facts["digest"]),
                clock=typed_value(int | None, facts["clock"]),
                counts=typed_value(Mapping[str, int], facts["counts"]),
            )
        except (KeyError, TypeError, ValueError, OSError, pa.ArrowException) as error:
            raise damaged(name, str(error)) from error
        for _, dropped in manifest.retired:
            if not is_safe_name(dropped):
                raise damaged(name, f"it names the segment {dropped!r:.300}")
        return manifest


MOST_SHARDS: Final = 100_000
"""The maximum number of shards of a state. Each is a task of a micro-batch, and a listing of `forebay state show`."""


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
    shards: Annotated[int, Within(1, MOST_SHARDS)]
    keys: tuple[tuple[str, str], ...]
    first: Whole
    generation: Whole = 0
    directory: str = ""

    def to_bytes(self) -> bytes:
        """Return the info as canonical JSON."""
        return fact_bytes({"v": FORMAT, **asdict(self)})

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> Self:
        """Parse an `OperatorInfo`; see `Manifest.from_bytes`."""
        facts = parse_fact(data, name)
        known = {each.name for each in fields(cls)}
        try:
            info: Self = typed_value(cls, {key: value for key, value in facts.items() if key in known})
        except ValueError as error:
            raise damaged(name, str(error)) from error
        if info.directory and not is_safe_name(info.directory.removesuffix("/")):
            raise damaged(name, f"it names the directory {info.directory!r:.300}")
        return info
