# SPDX-License-Identifier: Apache-2.0
"""The part of a task that reads splits whose ends are agreed on: several side by side (S14)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from forebay.errors import ConfigurationError
from forebay.framework.host_options import HostOptions
from forebay.framework.microbatch.end_negotiation.chunk_reader import ChunkReader
from forebay.framework.microbatch.end_negotiation.claim import Chain, Claiming, begun_of
from forebay.framework.microbatch.offsets.state_location import state_store
from forebay.framework.microbatch.tasks.open_read import Bell, OpenRead
from forebay.framework.microbatch.tasks.task_context import Delivered
from forebay.framework.runtime.connector_calls import ConnectorCalls
from forebay.framework.runtime.retry import RetryPolicy
from forebay.framework.runtime.runtime import Runtime
from forebay.framework.source import Source
from forebay.framework.split import Split

_SIDE_BY_SIDE: Final = 8
"""Splits that a task reads at a time: each has a reader of its own, so that one can be read again alone."""


def read_agreed(
    source: Source,
    splits: Sequence[Split],
    claiming: Claiming,
    options: HostOptions,
    runtime: Runtime,
    *,
    index: int = 0,
    count: int = 1,
) -> Iterator[Delivered]:
    """Yield the record batches of splits, as far as the attempts of the task agree. Called by `run_task`.

    Args:
        source: What is read.
        splits: At the positions where the micro-batch begins.
        claiming: Of which micro-batch, and the limits.
        options: `state_location`, `max_batch_duration`, bounds and time-outs.
        runtime: Threads and time.
        index: The number of the task.
        count: How many tasks there are.

    Raises:
        ConfigurationError: The planner keeps claims elsewhere: what is claimed here it would never see.
        ForebayError: The source or the store failed, or the source broke a rule.
    """
    store = state_store(options)
    if store is None:
        raise ConfigurationError(
            "a task has to agree on an end, and has no place for it",
            source=source.name,
            option="stateLocation",
            advice="give stateLocation",
        )
    calls = ConnectorCalls(
        source.name, runtime, retry=RetryPolicy.of(options), timeout=options.planning_timeout.total_seconds()
    )
    if calls.call("reading", lambda: store.get(begun_of(claiming.query, claiming.n))) is None:
        raise _elsewhere(source, store.location)

    def agreed(split: Split) -> ChunkReader:
        return ChunkReader(
            source,
            split,
            chain=Chain(store, calls, claiming.query, claiming.n, split),
            share=claiming.shares[split.id],
            options=options,
            open_read=lambda part, bounds: OpenRead(source, [part], bounds, runtime, index=index, count=count),
            clock=runtime.clock,
        )

    rounds = -(-len(splits) // _SIDE_BY_SIDE)
    yield from _side_by_side(
        [agreed(split) for split in splits], options.max_batch_duration.total_seconds() / rounds, Bell(runtime)
    )


def _side_by_side(reads: Sequence[ChunkReader], seconds: float, bell: Bell) -> Iterator[Delivered]:
    waiting = deque(reads)
    active: list[ChunkReader] = []
    try:
        while waiting or active:
            while waiting and len(active) < _SIDE_BY_SIDE:
                active.append(waiting.popleft())
                active[-1].start(seconds)
            for one in list(active):
                yield from one.step()
                if one.done:
                    active.remove(one)
            if len(active) == _SIDE_BY_SIDE or (active and not waiting):
                bell.wait([one.available() for one in active], min(one.due_in() for one in active))
    except BaseException as error:
        _close_all(active, error)
        raise


def _close_all(reads: Sequence[ChunkReader], error: BaseException) -> None:
    """Close every one, also where closing another failed; what fails becomes a note, if there was an error before."""
    late: list[Exception] = []
    for one in reads:
        try:
            one.close(error)
        except Exception as second:  # noqa: BLE001 - raised below, when all are closed
            late.append(second)
    if late:
        raise late[0]


def _elsewhere(source: Source, location: str) -> ConfigurationError:
    return ConfigurationError(
        f"what the planner has written below {location!r} cannot be seen by this task: they look at different places, "
        "and all rows would come again and again",
        source=source.name,
        option="stateLocation",
        advice="give the full path of a directory that is mounted on the machines of the driver and of all executors, "
        "or s3://bucket/prefix",
    )
