# SPDX-License-Identifier: Apache-2.0
"""Takes answers of OpenSearch apart: what answers may be anything.

Functions that take an answer apart raise one of `UNREADABLE` for one that OpenSearch does not give.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Hit = Mapping[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What became of a document that was written.

    Args:
        status: The code of HTTP.
        kind: The type of the error; an empty text: there is none.
        reason: The error.
    """

    status: int
    kind: str
    reason: str


def outcomes_of(answer: Mapping[str, Any], size: int) -> list[Outcome]:
    """Return what became of the documents of a bulk request, which are so many."""
    outcomes = [_outcome(item) for item in answer["items"]]
    if len(outcomes) != size:
        raise TypeError("another number of items")
    return outcomes


def _outcome(item: object) -> Outcome:
    match item:
        case {"index": {"status": int(status), "error": {"type": str(kind), **rest}}}:
            return Outcome(status, kind, str(rest.get("reason", "")))
        case {"index": {"status": int(status)}}:
            return Outcome(status, "", "")
    raise TypeError("no item of a bulk request")


def hits_of(answer: Mapping[str, Any], body: Mapping[str, Any]) -> Sequence[Hit]:
    """Return the hits of a search, which have an id, and what was asked of them: a version, values that sort them."""
    hits = answer["hits"]["hits"]
    kinds: dict[str, type] = {"_id": str}
    if "version" in body:
        kinds["_version"] = int
    if "sort" in body:
        kinds["sort"] = list
    if not isinstance(hits, list) or not all(
        isinstance(hit[name], kind) for hit in hits for name, kind in kinds.items()
    ):
        raise TypeError("no hits")
    return hits


def text_of(value: object) -> str:
    """Return a text of an answer."""
    if not isinstance(value, str):
        raise TypeError("no text")
    return value
