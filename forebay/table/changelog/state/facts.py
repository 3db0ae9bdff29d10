# SPDX-License-Identifier: Apache-2.0
"""Facts as canonical JSON with a digest, and the description of a segment. Without pyarrow, for query nodes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from forebay.errors import FatalError
from forebay.state.state_store import is_safe_name
from forebay.table.changelog.state.typed_values import Whole

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
    rows: Whole
    size: Whole
    digest: str
    first: int
    last: int
    oldest: int | None = None
    tombstones: Whole | None = None

    @property
    def is_valid(self) -> bool:
        """Whether the name, which comes from a file, stays below the state."""
        return is_safe_name(self.name)


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
        actual = _digest({field: value for field, value in facts.items() if field != "sum"})
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise damaged(name, str(error)) from error
    if version != FORMAT:
        later = ", or a later one" if isinstance(version, int) and version > FORMAT else ""
        raise FatalError(
            f"the state {name} has format {version}; this version of forebay reads format {FORMAT}",
            option="state_location",
            advice=f"install the version of forebay that wrote the state{later}",
        )
    digest = facts.pop("sum", None)
    if digest is not None and digest != actual:
        raise damaged(name, "its digest differs")
    return facts


def damaged(name: str, reason: str) -> FatalError:
    """Return the error for a file of the state that cannot be read."""
    return FatalError(
        f"the file {name} of the state is damaged: {reason}",
        option="state_location",
        advice="restore the state location and the checkpoints of its queries from one backup, or start with a new "
        "state location and new checkpoints",
    )
