# SPDX-License-Identifier: Apache-2.0
"""Creates the planner of a stream from a source and its options."""

from __future__ import annotations

import os

import pyarrow as pa

from forebay.framework.discovery import DiscoveryEnumerator
from forebay.framework.microbatch.offsets.codec import InlineOffsetCodec
from forebay.framework.microbatch.offsets.spilling_codec import SpillingOffsetCodec
from forebay.framework.microbatch.offsets.state_location import state_store
from forebay.framework.microbatch.restart.restart_guard import RestartGuard
from forebay.framework.microbatch.split_providers.assigned_splits import AssignedContext, AssignedSplitProvider
from forebay.framework.microbatch.split_providers.split_provider import DiscoverySplitProvider, SplitProvider
from forebay.framework.microbatch.split_providers.validation import create_enumerator
from forebay.framework.microbatch.stream_planner import StreamPlanner
from forebay.framework.runtime.connector_calls import ConnectorCalls
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import Runtime, ThreadRuntime
from forebay.framework.source import Source
from forebay.retry import RetryPolicy


def open_stream(
    source: Source,
    options: HostOptions,
    *,
    parallelism: int | None = None,
    inferred: pa.Schema | None = None,
    runtime: Runtime | None = None,
) -> StreamPlanner:
    """Return the planner of a new or a restarted query; the first `StreamPlanner.latest` asks the source for splits.

    Args:
        source: The source, with its resolved schema.
        options: The host's options.
        parallelism: The number of cores that run tasks; by default that of this machine.
        inferred: The schema, if it was inferred from the input and may differ at the next start; else None.
        runtime: Threads and time.

    Raises:
        ForebayError: The source cannot create its enumerator, or `stateLocation` cannot keep state.
    """
    runtime = runtime or ThreadRuntime()
    timeout = options.planning_timeout.total_seconds()
    calls = ConnectorCalls(source.name, runtime, retry=RetryPolicy.of(options), timeout=timeout)

    def new_context() -> AssignedContext:
        return AssignedContext(source.name, runtime, timeout=timeout)

    context = new_context()
    enumerator = create_enumerator(source, context, calls)
    split_provider: SplitProvider
    if isinstance(enumerator, DiscoveryEnumerator):
        split_provider = DiscoverySplitProvider(source, enumerator, options, calls, runtime)
        digests = enumerator.digests
    else:
        split_provider, digests = AssignedSplitProvider(source, enumerator, context, calls, new_context), None
    store = state_store(options)
    spilling = None if store is None else SpillingOffsetCodec(source, store, calls, digests)
    return StreamPlanner(
        source,
        options,
        split_provider=split_provider,
        offset_codec=spilling or InlineOffsetCodec(source, digests),
        calls=calls,
        runtime=runtime,
        restart_guard=RestartGuard.of(source, options, inferred),
        parallelism=parallelism or os.cpu_count() or 1,
    )
