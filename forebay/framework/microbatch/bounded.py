# SPDX-License-Identifier: Apache-2.0
"""Plan a bounded read: run the enumerator to exhaustion, fix the ends, cut and pack."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from forebay.errors import ContractError
from forebay.framework.discovery import DiscoveryEnumerator
from forebay.framework.enumerator import SplitEnumerator
from forebay.framework.host_options import HostOptions
from forebay.framework.microbatch.admission.assign_tasks import spread
from forebay.framework.microbatch.split_providers.planning_context import PlanningContext
from forebay.framework.microbatch.split_providers.validation import before, checked_discovery
from forebay.framework.runtime.connector_calls import ConnectorCalls
from forebay.framework.runtime.connector_errors import closing
from forebay.framework.runtime.retry import RetryPolicy
from forebay.framework.runtime.runtime import Runtime, ThreadRuntime
from forebay.framework.source import Source
from forebay.framework.split import Position, Split, normalise


def plan_bounded(
    source: Source,
    options: HostOptions,
    *,
    parallelism: int | None = None,
    runtime: Runtime | None = None,
) -> list[tuple[Split, ...]]:
    """Return what to read, once, as one tuple of slices per task; empty when there is nothing.

    Called by a host that reads a source once, in the process that plans. An unbounded source is read up to its
    latest positions; a split whose latest position is not known keeps no end, and is read until it is caught up.

    Args:
        source: What to read.
        options: `num_partitions`, `retries` and `planning_timeout`.
        parallelism: Cores to spread over when `num_partitions` is not set; by default those of this machine.
        runtime: Threads and time.

    Raises:
        ForebayError: What the source raised, with the place filled in; a `FatalError` for foreign errors and for a
            source that never answers.
        ContractError: The source broke a rule: split ids repeat, positions of an unknown kind, wrong types.
    """
    runtime = runtime or ThreadRuntime()
    timeout = options.planning_timeout.total_seconds()
    calls = ConnectorCalls(source.name, runtime, retry=RetryPolicy.of(options), timeout=timeout)
    context = PlanningContext(source.name, runtime, timeout=timeout)
    enumerator = calls.call("create_enumerator()", lambda: source.create_enumerator(context))
    cores = parallelism or os.cpu_count() or 1
    if isinstance(enumerator, DiscoveryEnumerator):
        return _plan_discovery(source, enumerator, options, cores, calls)
    if isinstance(enumerator, SplitEnumerator):
        splits = _unread(source, context.plan(enumerator, bounded=source.bounded))
        return spread(None, splits, options, cores)
    raise ContractError(
        f"create_enumerator() gave {type(enumerator).__name__}",
        source=source.name,
        rule="SRC-2",
        advice="return a DiscoveryEnumerator or a SplitEnumerator",
    )


def _plan_discovery(
    source: Source, enumerator: DiscoveryEnumerator, options: HostOptions, cores: int, calls: ConnectorCalls
) -> list[tuple[Split, ...]]:
    with closing(source.name, lambda: calls.call("close()", enumerator.close)):
        _, found = checked_discovery(source, calls.call("discover()", lambda: enumerator.discover({}, first=True)))
        splits = list(found.values())
        ends = calls.call("latest()", lambda: enumerator.latest(splits)) if splits else {}
        splits = _unread(source, _ended(source, splits, ends))
        return calls.call("tasks(), size() or slices()", lambda: spread(enumerator, splits, options, cores))


def _ended(source: Source, splits: Sequence[Split], ends: Mapping[str, Position]) -> list[Split]:
    """Return the splits with their ends fixed: their own, or the present end of an unbounded source."""
    result = []
    for split in splits:
        if (found := ends.get(split.id)) is None:
            result.append(split)
            continue
        latest = normalise(found, split.id)
        own = split.end
        reachable = own if own is not None and (source.bounded or before(source, own, latest, split.id)) else latest
        result.append(split.slice(split.position, reachable))
    return result


def _unread(source: Source, splits: Sequence[Split]) -> list[Split]:
    """Return the splits with something left to read."""
    return [split for split in splits if split.end is None or split.position is None or not _done(source, split)]


def _done(source: Source, split: Split) -> bool:
    position, end = split.position, split.end
    if position is None or end is None:
        return False
    return position == end or (not source.bounded and before(source, end, position, split.id))
