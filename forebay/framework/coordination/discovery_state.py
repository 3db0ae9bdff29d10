# SPDX-License-Identifier: Apache-2.0
"""The checkpointed form of a `DiscoveringEnumerator`: JSON-ready, versioned, canonical (SER-1, SER-2)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from forebay.errors import ContractError
from forebay.framework.coordination.life_cycle import LifeCycle
from forebay.framework.source import Source
from forebay.framework.split import Json, Split

_VERSION = 1


@dataclass(frozen=True, slots=True)
class StoredState:
    """What a snapshot holds: the splits by state, and the author's own."""

    first: bool
    author: Json
    new: list[Split]
    assigned: list[Split]
    finished: list[Split]
    dropped: list[str]


def dump_state(first: bool, author: Json, life: LifeCycle, dropped: Collection[str]) -> Json:
    """Write a snapshot; the same state always gives the same.

    New splits keep the order in which they will be assigned, all others are sorted by id. The horizon is not in it:
    it is code, and the next discovery brings it again.
    """
    return {
        "v": _VERSION,
        "first": first,
        "author": author,
        "new": [split.to_json() for split in life.waiting()],
        "assigned": [split.to_json() for split in life.assigned()],
        "finished": [split.to_json() for split in life.finished()],
        "dropped": sorted(dropped),
    }


def load_state(state: Json, source: Source) -> StoredState:
    """Read a snapshot.

    Raises:
        ContractError: It is of a newer version, or no such snapshot.
    """
    stored: Mapping[str, Any] = state if isinstance(state, Mapping) else {}
    version = stored.get("v")
    if not isinstance(version, int) or version > _VERSION:
        raise _unreadable(source, f"its version is {version!r}, and {_VERSION} is known")
    try:
        return StoredState(
            first=bool(stored["first"]),
            author=stored["author"],
            new=[source.split_class.from_json(each) for each in stored["new"]],
            assigned=[source.split_class.from_json(each) for each in stored["assigned"]],
            finished=[source.split_class.from_json(each) for each in stored["finished"]],
            dropped=[str(each) for each in stored["dropped"]],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise _unreadable(source, f"{type(error).__name__}: {error}") from error


def _unreadable(source: Source, why: str) -> ContractError:
    return ContractError(
        f"the enumerator's checkpointed state cannot be read: {why}",
        source=source.name,
        rule="SER-1",
        advice="run the release that wrote the checkpoint, or start from a new one",
    )
