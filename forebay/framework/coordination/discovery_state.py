# SPDX-License-Identifier: Apache-2.0
"""The snapshot of a `DiscoveringEnumerator`: JSON-ready, with a version, in canonical order (SER-1, SER-2)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from forebay.errors import ContractError
from forebay.framework.coordination.life_cycle import LifeCycle
from forebay.framework.source import Source
from forebay.framework.split import Json

_VERSION = 1


def dump_state(first: bool, author: Json, life: LifeCycle, dropped: Collection[str]) -> Json:
    """Return the snapshot of a `DiscoveringEnumerator`; equal states give equal snapshots.

    New splits keep their order; all others are sorted by id. The horizon is not stored: the next discovery returns it.

    Args:
        first: Whether no discovery has succeeded yet.
        author: The state of the author's enumerator, from `Discovered.state`.
        life: The splits with their states.
        dropped: Ids of splits that no longer exist, but that readers still read.
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


def load_state(state: Json, source: Source, life: LifeCycle) -> tuple[bool, Json, set[str]]:
    """Add the splits of a snapshot to `life`; return the other arguments of `dump_state`: first, author, dropped.

    Raises:
        ContractError: `state` is a snapshot of a newer version, or not a snapshot.
    """
    stored: Mapping[str, Any] = state if isinstance(state, Mapping) else {}
    version = stored.get("v")
    if not isinstance(version, int) or version > _VERSION:
        raise _unreadable(source, f"its version is {version!r}, but this release reads only version {_VERSION}")
    try:
        for name in ("new", "assigned", "finished"):
            for split in map(source.split_class.from_json, stored[name]):
                life.add(split)
                if name != "new":
                    life.assign(split.id, None)
                if name == "finished":
                    life.finish(split)
        return bool(stored["first"]), stored["author"], {str(each) for each in stored["dropped"]}
    except (KeyError, TypeError, AttributeError) as error:
        raise _unreadable(source, f"{type(error).__name__}: {error}") from error


def _unreadable(source: Source, reason: str) -> ContractError:
    return ContractError(
        f"the state of the enumerator in the checkpoint cannot be read: {reason}",
        source=source.name,
        rule="SER-1",
        advice="run the release of forebay that wrote the checkpoint, or start with a new checkpoint",
    )
