# SPDX-License-Identifier: Apache-2.0
"""Put a stream's planner together from a source and its options."""

from __future__ import annotations

import os

import pyarrow as pa

from forebay.errors import ContractError
from forebay.framework.discovery import DiscoveryEnumerator
from forebay.framework.enumerator import SplitEnumerator
from forebay.framework.host_options import HostOptions
from forebay.framework.microbatch.offset_migration import MigratingOffsetCodec
from forebay.framework.microbatch.offsets.codec import InlineOffsetCodec, OffsetCodec
from forebay.framework.microbatch.offsets.spilling_codec import SpillingOffsetCodec
from forebay.framework.microbatch.offsets.state_location import state_store
from forebay.framework.microbatch.restart_guard import RestartGuard
from forebay.framework.microbatch.split_providers.assigned_splits import AssignedContext, AssignedSplitProvider
from forebay.framework.microbatch.split_providers.split_provider import DiscoverySplitProvider, SplitProvider
from forebay.framework.microbatch.stream_planner import StreamPlanner
from forebay.framework.runtime.connector_calls import ConnectorCalls
from forebay.framework.runtime.retry import RetryPolicy
from forebay.framework.runtime.runtime import Runtime, ThreadRuntime
from forebay.framework.source import Source


def open_stream(
    source: Source,
    options: HostOptions,
    *,
    parallelism: int | None = None,
    inferred: pa.Schema | None = None,
    runtime: Runtime | None = None,
) -> StreamPlanner:
    """Return the planner of a new or a restarted query. Called by a host, in the process that plans.

    Looks at nothing outside yet: the first look is taken by `StreamPlanner.latest`.

    Args:
        source: What is read, its schema settled.
        options: Limits, intervals, time-outs.
        parallelism: Cores to spread over; by default those of this machine.
        inferred: The schema, if it was inferred from what there is, and so may be another one at the next start.
        runtime: Threads and time.

    Raises:
        ForebayError: The source cannot make its enumerator, or `stateLocation` can keep no state.
    """
    runtime = runtime or ThreadRuntime()
    calls = ConnectorCalls(
        source.name, runtime, retry=RetryPolicy.of(options), timeout=options.planning_timeout.total_seconds()
    )
    supply = _supply(source, options, calls, runtime)
    return StreamPlanner(
        source,
        options,
        supply=supply,
        book=MigratingOffsetCodec(_book(source, options, calls, supply), source, supply, calls),
        calls=calls,
        runtime=runtime,
        pinned=RestartGuard.of(source, options, inferred),
        parallelism=parallelism or os.cpu_count() or 1,
    )


def _book(source: Source, options: HostOptions, calls: ConnectorCalls, supply: SplitProvider) -> OffsetCodec:
    store = state_store(options)
    digests = None if supply.enumerator is None else supply.enumerator.digests
    return InlineOffsetCodec(source, digests) if store is None else SpillingOffsetCodec(source, store, calls, digests)


def _supply(source: Source, options: HostOptions, calls: ConnectorCalls, runtime: Runtime) -> SplitProvider:
    timeout = options.planning_timeout.total_seconds()

    def renew() -> AssignedContext:
        return AssignedContext(source.name, runtime, timeout=timeout)

    context = renew()
    enumerator = calls.call("create_enumerator()", lambda: source.create_enumerator(context))
    if isinstance(enumerator, DiscoveryEnumerator):
        return DiscoverySplitProvider(source, enumerator, options, calls, runtime)
    if isinstance(enumerator, SplitEnumerator):
        return AssignedSplitProvider(source, context, enumerator, calls, renew)
    raise ContractError(
        f"create_enumerator() gave {type(enumerator).__name__}",
        source=source.name,
        rule="SRC-2",
        advice="return a DiscoveryEnumerator or a SplitEnumerator",
    )
