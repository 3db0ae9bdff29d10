# SPDX-License-Identifier: Apache-2.0
"""Who reads what: the slices of each task, as the source says it or as sizes do."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from forebay.framework.discovery import OPEN_COST, DiscoveryEnumerator
from forebay.framework.host_options import HostOptions
from forebay.framework.microbatch.admission.packing import chosen, count_partitions, cut, pack
from forebay.framework.split import Split


def spread(
    enumerator: DiscoveryEnumerator | None,
    splits: Sequence[Split],
    options: HostOptions,
    cores: int,
    *,
    uncut: Collection[str] = (),
) -> list[tuple[Split, ...]]:
    """Return one tuple of slices per task. May block: called through `ConnectorCalls`, for both hosts of Spark.

    Args:
        enumerator: Knows tasks, sizes and slices; None = nobody does.
        splits: What there is to read.
        options: `num_partitions`.
        cores: How many tasks run at once.
        uncut: Ids of splits that stay whole.

    Raises:
        ContractError: The source's own tasks do not read every split, or a slice has another id.
    """
    if enumerator is None:
        return pack(splits, [None] * len(splits), options.num_partitions or cores)
    if (own := chosen(enumerator.tasks(splits), splits)) is not None:
        return own
    sizes = [enumerator.size(one) for one in splits]
    partitions = options.num_partitions or count_partitions(sizes, cores)
    parts = cut(
        splits,
        enumerator.size,
        lambda split, count: [split] if split.id in uncut else enumerator.slices(split, count),
        partitions,
        least=1 if options.num_partitions else OPEN_COST,
    )
    return pack(parts, [enumerator.size(one) for one in parts], partitions)
