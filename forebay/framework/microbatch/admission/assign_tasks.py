# SPDX-License-Identifier: Apache-2.0
"""Assigns slices of splits to tasks: by the source's own `tasks()`, or by size, cutting large splits, packing small."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Sequence

from forebay.errors import ContractError
from forebay.framework.discovery import OPEN_COST, DiscoveryEnumerator
from forebay.framework.microbatch.admission.packing import PartlyCut, Sizes, pack
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.split import Split


def spread(
    enumerator: DiscoveryEnumerator | None,
    splits: Sequence[Split],
    options: HostOptions,
    cores: int,
    *,
    uncut: Collection[str] = (),
) -> Sequence[tuple[Split, ...]]:
    """Return the slices of splits that each task reads, one tuple per task. May block: call it with `ConnectorCalls`.

    Args:
        enumerator: Provides `tasks`, `size` and `slices`; None = a raw `SplitEnumerator`, which has none of them.
        splits: The splits to read, maybe a lazy sequence: they are accessed one at a time, and not kept in a list.
        options: The host's options; only `num_partitions` is used.
        cores: The number of tasks that can run at once.
        uncut: Ids of splits that must not be cut into slices.

    Raises:
        ContractError: The enumerator's own tasks do not read every split, or a slice has another id than its split.
    """
    if enumerator is None:
        return pack(splits, Sizes.of([None] * len(splits)), options.num_partitions or cores)
    if (own := chosen(enumerator.tasks(splits), splits)) is not None:
        return own
    size = enumerator.size
    sizes = Sizes.of(map(size, splits))
    partitions = options.num_partitions or count_partitions(sizes, cores)
    parts = cut(
        splits,
        sizes,
        lambda split, count: [split] if split.id in uncut else enumerator.slices(split, count),
        partitions,
        least=1 if options.num_partitions else OPEN_COST,
    )
    return pack(parts, sizes if parts is splits else Sizes.of(map(size, parts)), partitions)


MOST_BYTES = 1 << 30
"""Maximum bytes of one task, to bound the cost of a retry; `numPartitions` overrides it."""


MOST_SPLITS = 32_768
"""Maximum splits of one task, to bound its memory: about 40 MB; `numPartitions` overrides it."""


def count_partitions(sizes: Sizes, parallelism: int) -> int:
    """Return the number of tasks for splits of these sizes: `parallelism`, or a multiple of it for large inputs."""
    total = sum(sizes.bytes) if sizes.known else 0
    least = max(-(-total // MOST_BYTES), -(-len(sizes.bytes) // MOST_SPLITS))
    return parallelism * max(1, -(-least // parallelism))


def cut(
    splits: Sequence[Split],
    sizes: Sizes,
    slices: Callable[[Split, int], Sequence[Split]],
    partitions: int,
    *,
    least: int = OPEN_COST,
) -> Sequence[Split]:
    """Cut the splits that are larger than one of `partitions` equal shares.

    Args:
        splits: The splits to read.
        sizes: The sizes of the splits.
        slices: Cuts a split into about the given number of slices.
        partitions: The number of tasks.
        least: Minimum bytes of one share, if sizes are known.

    Returns:
        All slices in order; `splits` itself if none is cut.

    Raises:
        ContractError: A slice has another id than its split, or `slices` returned no slice.
    """
    share = max(1, least if sizes.known else 1, sum(sizes.bytes) // max(1, partitions))
    places, parts = array("q"), list[Split]()
    for place, size in enumerate(sizes.bytes):
        if size <= share:
            places.append(place)
            continue
        for part in _checked(splits[place], slices(splits[place], -(-size // share))):
            parts.append(part)
            places.append(-len(parts))
    return PartlyCut(splits, places, parts) if parts else splits


def chosen(tasks: Sequence[Sequence[Split]] | None, slices: Sequence[Split]) -> list[tuple[Split, ...]] | None:
    """Check and return `tasks`, the result of the enumerator's `tasks(slices)`; None if it is None.

    Raises:
        ContractError: `tasks` contains a split that is not in `slices`, or leaves out one that is not empty.
    """
    if tasks is None:
        return None
    wanted, given = {one.id for one in slices}, {one.id for task in tasks for one in task}
    # `tasks()` may leave out empty slices.
    missing = {one.id for one in slices if one.end is None or one.end != one.position} - given
    wrong = next(iter(sorted(given - wanted) or sorted(missing)), None)
    if wrong is not None:
        raise ContractError(
            f"tasks() {'left out' if wrong in wanted else 'added'} the split {wrong!r}",
            split=wrong,
            rule="DIS-2",
            advice="in the connector, let tasks() return each slice that it is given, whole or cut with "
            "split.slice(position, end)",
        )
    return [tuple(task) for task in tasks if task]


def _checked(split: Split, slices: Sequence[Split]) -> Sequence[Split]:
    wrong = next((one for one in slices if one.id != split.id), None)
    if wrong is not None or not slices:
        raise ContractError(
            f"slices() returned a slice with the id {wrong.id!r}"
            if wrong is not None
            else "slices() returned no slice",
            split=split.id,
            rule="SPL-1",
            advice="in the connector, let slices() cut with split.slice(position, end): each slice keeps the split's "
            "id, and together they cover the split",
        )
    return slices
