# SPDX-License-Identifier: Apache-2.0
"""Reads, in a task, the splits whose ends are negotiated, several concurrently (S14)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Final

from forebay.errors import ConfigurationError
from forebay.framework.microbatch.end_negotiation.chunk_reader import ChunkReader
from forebay.framework.microbatch.end_negotiation.claim import ClaimChain, Negotiation, begun_of
from forebay.framework.microbatch.offsets.state_location import state_store
from forebay.framework.microbatch.tasks.open_read import FutureWaiter, OpenRead
from forebay.framework.microbatch.tasks.task_context import Delivered
from forebay.framework.runtime.connector_calls import ConnectorCalls
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import Runtime
from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay.retry import RetryPolicy

_CONCURRENT: Final = 8
"""Maximum splits that a task reads at a time, each with its own reader, which can be reopened alone."""


def read_negotiated(
    source: Source,
    splits: Sequence[Split],
    negotiation: Negotiation,
    options: HostOptions,
    runtime: Runtime,
    *,
    index: int = 0,
    count: int = 1,
) -> Iterator[Delivered]:
    """Yield the record batches of splits, from where the micro-batch begins to their negotiated ends.

    `index` is the number of the task, `count` the number of tasks of the micro-batch.

    Raises:
        ConfigurationError: `stateLocation` is not set, or is another directory than that of the planner.
        ForebayError: The source or the store at `stateLocation` failed, or the source broke a rule.
    """
    store = state_store(options)
    if store is None:
        raise ConfigurationError(
            "this micro-batch has splits without a planned end, and its tasks need stateLocation to negotiate the ends",
            source=source.name,
            option="stateLocation",
            advice="set stateLocation to a directory or s3:// URL that the driver and all executors reach",
        )
    calls = ConnectorCalls(
        source.name, runtime, retry=RetryPolicy.of(options), timeout=options.planning_timeout.total_seconds()
    )
    if calls.call("reading stateLocation", lambda: store.get(begun_of(negotiation.query, negotiation.n))) is None:
        raise _elsewhere(source, store.location)

    def reader_of(split: Split) -> ChunkReader:
        return ChunkReader(
            source,
            split,
            chain=ClaimChain(store, calls, negotiation.query, negotiation.n, split),
            limits=negotiation.limits[split.id],
            options=options,
            open_read=lambda part, bounds: OpenRead(source, [part], bounds, runtime, index=index, count=count),
            clock=runtime.clock,
        )

    rounds = -(-len(splits) // _CONCURRENT)
    yield from _read_concurrently(
        [reader_of(split) for split in splits],
        options.max_batch_duration.total_seconds() / rounds,
        FutureWaiter(runtime),
    )


def _read_concurrently(reads: Sequence[ChunkReader], seconds: float, waiter: FutureWaiter) -> Iterator[Delivered]:
    waiting = deque(reads)
    active: list[ChunkReader] = []
    try:
        while waiting or active:
            while waiting and len(active) < _CONCURRENT:
                active.append(waiting.popleft())
                active[-1].start(seconds)
            for one in list(active):
                yield from one.step()
                if one.done:
                    active.remove(one)
            if len(active) == _CONCURRENT or (active and not waiting):
                waiter.wait([one.available() for one in active], min(one.due_in() for one in active))
    except BaseException as error:
        with ExitStack() as stack:
            for one in active:
                stack.callback(one.close, error)
        raise


def _elsewhere(source: Source, location: str) -> ConfigurationError:
    return ConfigurationError(
        f"this task does not find the planner's files below stateLocation {location!r}: on the task's machine, this is "
        "another directory",
        source=source.name,
        option="stateLocation",
        advice="give the full path of a directory that is mounted on the machines of the driver and of all executors, "
        "or s3://bucket/prefix",
    )
