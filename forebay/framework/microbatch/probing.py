# SPDX-License-Identifier: Apache-2.0
"""A look at whether there is anything new in splits that cannot say it: read until the first record, and leave it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from forebay.framework.host_options import HostOptions
from forebay.framework.microbatch.open_read import Bell, OpenRead
from forebay.framework.runtime import Runtime
from forebay.framework.source import Source
from forebay.framework.split import Split

_GRACE: Final = 0.5
"""Seconds that the others are given once one split has something: its rows must not wait for a slow one."""


@dataclass(slots=True)
class Probed:
    """What a look found, by split id; a split that gave no answer in time is in neither."""

    something: set[str] = field(default_factory=set)
    nothing: set[str] = field(default_factory=set)


def probe(
    source: Source, splits: Sequence[Split], options: HostOptions, runtime: Runtime, *, patience: float, hurry: bool
) -> Probed:
    """Read each split up to its first record, or until it is caught up. Called by planners; blocks.

    Args:
        source: What is read.
        splits: From where.
        options: Bounds and time-outs.
        runtime: Threads and time.
        patience: Seconds to wait for an answer, at most.
        hurry: Do not wait for all answers once there is something.

    Raises:
        ForebayError: The source failed or broke a rule.
    """
    result = Probed()
    clock = runtime.clock
    until = clock.monotonic() + patience
    bounds = dataclasses.replace(options, max_rows_per_batch=1)
    read = OpenRead(source, splits, bounds, runtime)
    bell = Bell(runtime)
    try:
        while True:
            delivered = read.poll()
            if delivered is not None and delivered.split_id not in result.something:
                if hurry and not result.something:
                    until = min(until, clock.monotonic() + _GRACE)
                result.something.add(delivered.split_id)
                read.pause(delivered.split_id)  # its turn goes to another one
            result.nothing |= (read.caught_up | read.finished) - result.something
            left = until - clock.monotonic()
            if left <= 0 or len(result.something) + len(result.nothing) == len(splits):
                break
            bell.wait([read.available()], left)
    except BaseException as error:
        read.close(error)
        raise
    read.close()
    return result
