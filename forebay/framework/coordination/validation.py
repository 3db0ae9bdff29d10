# SPDX-License-Identifier: Apache-2.0
"""Checks what an author's enumerator returned, for all hosts."""

from __future__ import annotations

from forebay.errors import ContractError
from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.enumerator import SplitEnumerator
from forebay.framework.source import Source
from forebay.framework.split import Split


def checked_enumerator(source: Source, made: object) -> SplitEnumerator | DiscoveryEnumerator:
    """Check and return `made`, the result of the source's `create_enumerator()`.

    Raises:
        ContractError: `made` is not an enumerator.
    """
    if isinstance(made, (SplitEnumerator, DiscoveryEnumerator)):
        return made
    raise ContractError(
        f"create_enumerator() returned {type(made).__name__}",
        source=source.name,
        rule="SRC-1",
        advice="return a SplitEnumerator or a DiscoveryEnumerator",
    )


def checked_discovery(source: Source, result: object) -> tuple[Discovered, dict[str, Split]]:
    """Check `result`, which the author's `discover()` returned; return it, and its splits by id, in order.

    Raises:
        ContractError: `result` is not a `Discovered`, contains an object that is not a Split, or a split id twice.
    """
    if not isinstance(result, Discovered):
        raise ContractError(
            f"discover() returned {type(result).__name__}",
            source=source.name,
            rule="SRC-1",
            advice="return Discovered(splits)",
        )
    splits: dict[str, Split] = {}
    for split in result.splits:
        if not isinstance(split, Split):
            raise ContractError(
                f"discover() returned {split!r}, which is not a Split",
                source=source.name,
                rule="SPL-1",
                advice="return Discovered(splits) with Split objects only",
            )
        if split.id in splits:
            raise repeated_id(source.name, split.id)
        splits[split.id] = split
    return result, splits


def repeated_id(source: str, split_id: str) -> ContractError:
    """Return the error for a split id that appears twice."""
    return ContractError(
        f"two splits have the id {split_id!r}",
        source=source,
        split=split_id,
        rule="SPL-1",
        advice="in the connector, give each split an id of its own, derived from the input",
    )
