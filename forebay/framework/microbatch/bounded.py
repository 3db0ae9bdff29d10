# SPDX-License-Identifier: Apache-2.0
"""Plans a bounded read: discovers all splits, fixes their ends, and assigns slices of them to tasks."""

from __future__ import annotations

import os
from collections.abc import Sequence

from forebay.framework.coordination.fixed_ends import fixed_ends, unread
from forebay.framework.coordination.validation import checked_splits
from forebay.framework.discovery import DiscoveryEnumerator
from forebay.framework.microbatch.admission.assign_tasks import spread
from forebay.framework.microbatch.split_providers.planning_context import PlanningContext
from forebay.framework.microbatch.split_providers.validation import create_enumerator
from forebay.framework.runtime.connector_calls import ConnectorCalls
from forebay.framework.runtime.connector_errors import closing
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import Runtime, ThreadRuntime
from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay.retry import RetryPolicy


def plan_bounded(
    source: Source,
    options: HostOptions,
    *,
    parallelism: int | None = None,
    runtime: Runtime | None = None,
) -> Sequence[tuple[Split, ...]]:
    """Return the slices of splits that each task reads, one tuple per task; no task if there is nothing to read.

    Each access makes a new tuple, so that millions of splits of a lazy discovery are never in memory at once.

    An unbounded source is read up to its latest positions. A split whose latest position is unknown has no end, and is
    read until it is caught up.

    Args:
        source: The source.
        options: The host's options; `num_partitions`, `retries` and `planning_timeout` are used.
        parallelism: The number of tasks if `num_partitions` is not set, usually the cores of the cluster; by default
            the cores of this machine. Very large inputs get a multiple of it.
        runtime: Threads and time.

    Raises:
        ForebayError: The source raised it; the names of source and split are added.
        FatalError: The source raised an exception of another class, or did not answer within `planning_timeout`.
        ContractError: The source broke a rule: repeated split ids, positions of an unknown kind, wrong types.
    """
    runtime = runtime or ThreadRuntime()
    timeout = options.planning_timeout.total_seconds()
    calls = ConnectorCalls(source.name, runtime, retry=RetryPolicy.of(options), timeout=timeout)
    context = PlanningContext(source.name, runtime, timeout=timeout)
    enumerator = create_enumerator(source, context, calls)
    cores = parallelism or os.cpu_count() or 1
    if isinstance(enumerator, DiscoveryEnumerator):
        return _plan_discovery(source, enumerator, options, cores, calls)
    splits = unread(source, context.plan(enumerator, bounded=source.bounded))
    return spread(None, splits, options, cores)


def _plan_discovery(
    source: Source, enumerator: DiscoveryEnumerator, options: HostOptions, cores: int, calls: ConnectorCalls
) -> Sequence[tuple[Split, ...]]:
    with closing(source.name, lambda: calls.call("close()", enumerator.close)):
        splits = checked_splits(source, calls.call("discover()", lambda: enumerator.discover({}, first=True)))
        ends = calls.call("latest()", lambda: enumerator.latest(splits)) if splits else {}
        splits = unread(source, fixed_ends(source, splits, ends))
        return calls.call("tasks(), size() or slices()", lambda: spread(enumerator, splits, options, cores))
