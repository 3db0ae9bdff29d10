# SPDX-License-Identifier: Apache-2.0
"""Checks the results of a source's `create_enumerator` and `discover`, for all hosts."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import ContractError
from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.enumerator import SplitEnumerator
from forebay.framework.source import Source
from forebay.framework.split import Position, Split, before, normalise

# -- Fixes the ends of splits for a read that ends, before any record is read.


def fixed_ends(source: Source, splits: Sequence[Split], ends: Mapping[str, Position]) -> Sequence[Split]:
    """Return each split with the end of this read: its own end, or its present end in `ends` if that comes first.

    A split with an own end keeps it if the source is bounded or `Split.ends_itself` is True. A split that is not in
    `ends` stays unchanged.
    """
    if not ends:
        return splits
    result = []
    for split in splits:
        if (end := ends.get(split.id)) is None:
            result.append(split)
            continue
        latest = normalise(end, split.id)
        own, bounded = split.end, source.bounded or split.ends_itself
        reachable = own if own is not None and (bounded or before(source, own, latest, split.id)) else latest
        result.append(split.slice(split.position, reachable))
    return result


def unread(source: Source, splits: Sequence[Split]) -> Sequence[Split]:
    """Return the splits that are not read to their end.

    In an unbounded source, a split whose position is after its end also counts as read.
    """

    def done(split: Split) -> bool:
        position, end = split.position, split.end
        if position is None or end is None:
            return False
        return position == end or (not source.bounded and before(source, end, position, split.id))

    return [split for split in splits if not done(split)] if any(map(done, splits)) else splits


# -- Checks the results of a source's `create_enumerator` and `discover`, for all hosts.


def checked_enumerator(source: Source, enumerator: object) -> SplitEnumerator | DiscoveryEnumerator:
    """Check and return `enumerator`, the result of the source's `create_enumerator()`.

    Raises:
        ContractError: `enumerator` is not an enumerator, or has both `in_stages` and `in_order`.
    """
    if isinstance(enumerator, DiscoveryEnumerator) and enumerator.in_stages and enumerator.in_order:
        raise ContractError(
            f"{type(enumerator).__name__} has both in_stages and in_order",
            source=source.name,
            rule="DIS-7",
            advice="set only one of them to True: in_stages reads the splits of a stage in no fixed order",
        )
    if isinstance(enumerator, (SplitEnumerator, DiscoveryEnumerator)):
        return enumerator
    raise ContractError(
        f"create_enumerator() returned {type(enumerator).__name__}, which is not an enumerator",
        source=source.name,
        rule="SRC-1",
        advice="return a SplitEnumerator or a DiscoveryEnumerator",
    )


def checked_discovery(source: Source, result: object) -> tuple[Discovered, dict[str, Split]]:
    """Check `result`, which the source's `discover()` returned; return it, and its splits by id, in order.

    Raises:
        ContractError: `result` is not a `Discovered`, contains an object that is not a Split, or a split id twice.
    """
    discovered = _checked_type(source, result)
    splits: dict[str, Split] = {}
    for candidate in discovered.splits:
        split = _checked_split(source, candidate)
        if split.id in splits:
            raise repeated_id(source.name, split.id)
        splits[split.id] = split
    return discovered, splits


def checked_splits(source: Source, result: object) -> Sequence[Split]:
    """Check `result` as `checked_discovery` does; return its splits.

    A lazy sequence is returned as it is: the check makes each split once, and needs about 24 bytes of memory for each.

    Raises:
        ContractError: See `checked_discovery`.
    """
    discovered = _checked_type(source, result)
    splits: object = discovered.splits
    if not isinstance(splits, Sequence):  # a generator can be iterated only once
        return list(checked_discovery(source, result)[1].values())
    values = array("q", (hash(_checked_split(source, candidate).id) for candidate in discovered.splits))
    # `pa.array` would import pandas, which takes 0.17 s.
    hashes = pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])
    ordered = hashes.take(pc.sort_indices(hashes))  # count_distinct would take 120 bytes for each
    if not pc.any(pc.equal(ordered[1:], ordered[:-1])).as_py():
        return discovered.splits
    return list(checked_discovery(source, result)[1].values())


def _checked_type(source: Source, result: object) -> Discovered:
    if isinstance(result, Discovered):
        return result
    raise ContractError(
        f"discover() returned {type(result).__name__}, which is not a Discovered",
        source=source.name,
        rule="SRC-1",
        advice="return Discovered(splits)",
    )


def _checked_split(source: Source, candidate: object) -> Split:
    if isinstance(candidate, Split):
        return candidate
    raise ContractError(
        f"discover() returned {candidate!r}, which is not a Split",
        source=source.name,
        rule="SPL-1",
        advice="return Discovered(splits) with Split objects only",
    )


def repeated_id(source: str | None, split_id: str) -> ContractError:
    """Return the error for a split id that appears twice."""
    return ContractError(
        f"two splits have the id {split_id!r}",
        source=source,
        split=split_id,
        rule="SPL-1",
        advice="in the connector, give each split an id of its own, derived from the input, and assign a split again "
        "only after add_splits_back returned it",
    )
