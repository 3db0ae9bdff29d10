# SPDX-License-Identifier: Apache-2.0
"""What a connector has told a planner, checked: the splits it found, and the order of its positions."""

from __future__ import annotations

from forebay.errors import ContractError
from forebay.framework.discovery import Discovered
from forebay.framework.microbatch.split_providers.planning_context import repeated_id
from forebay.framework.source import Source
from forebay.framework.split import Position, Split


def checked_discovery(source: Source, found: object) -> tuple[Discovered, dict[str, Split]]:
    """Return what `discover()` gave, and its splits by id, in order. Called by planners.

    Raises:
        ContractError: It is no `Discovered`, or has something else than splits in it, or one twice.
    """
    if not isinstance(found, Discovered):
        raise ContractError(
            f"discover() gave {type(found).__name__}",
            source=source.name,
            rule="ENU-10",
            advice="return Discovered(splits)",
        )
    splits: dict[str, Split] = {}
    for split in found.splits:
        if not isinstance(split, Split):
            raise ContractError(
                f"discover() gave {split!r} among its splits",
                source=source.name,
                rule="SPL-1",
                advice="give Split objects",
            )
        if split.id in splits:
            raise repeated_id(source.name, split.id)
        splits[split.id] = split
    return found, splits


def before(source: Source, one: Position, other: Position, split_id: str) -> bool:
    """Whether one position of a split comes before another. Called by planners and tasks.

    Raises:
        ContractError: They cannot be compared.
    """
    try:
        return bool(source.order_key(one) < source.order_key(other))
    except TypeError as error:
        raise ContractError(
            f"the positions {one!r} and {other!r} cannot be compared",
            source=source.name,
            split=split_id,
            rule="SPL-2",
            advice="use one type for all positions of a split, or override order_key(position)",
        ) from error
