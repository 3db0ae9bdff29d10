# SPDX-License-Identifier: Apache-2.0
"""What an enumerator of FLIP-27's own kind gives to a reader that only asks."""

from __future__ import annotations

import time

from forebay.framework.coordination.coordinator import Coordinator
from forebay.framework.coordination.messages import AddSplits, NoMoreSplits, ToReader
from forebay.framework.host_options import HostOptions
from forebay.framework.runtime.runtime import Next, ThreadRuntime
from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay.testkit.outcomes import Broken
from forebay.testkit.watch import calling

_QUIET = 0.3


def assigned_splits(source: Source, options: HostOptions, patience: float) -> list[Split]:
    """Return every split that the source's enumerator assigns to one reader that asks again and again, in order.

    Ends when the enumerator says that no more follow; for an unbounded source, when it has been quiet for a while.
    Readers do not ask so often: ENU-11 compares with what they are given.

    Raises:
        Broken: The enumerator of a bounded source neither assigns nor ends.
    """
    received: list[ToReader] = []
    coordinator = Coordinator(source, ThreadRuntime(), parallelism=1, options=options)
    coordinator.start()
    coordinator.register_reader(0, None, received.append)
    coordinator.handle_split_request(0, None)
    seen, since = 0, time.monotonic()
    try:
        while not any(isinstance(message, NoMoreSplits) for message in received):
            with calling("ENU-2", "the enumerator"):
                more = coordinator.step() is Next.AGAIN
            if coordinator.error is not None:
                raise coordinator.error
            if len(received) > seen:
                seen, since = len(received), time.monotonic()
                coordinator.handle_split_request(0, None)
            quiet = time.monotonic() - since
            if not source.bounded and seen and quiet > _QUIET:
                break
            if quiet > patience:
                raise Broken(
                    f"a reader asked for a split, and for {quiet:.1f} s got neither one nor the word that none follows",
                    "assign a split, signal_no_more_splits, or remember who asks",
                    rule="ENU-2",
                )
            if not more:
                coordinator.signal.wait(0.01)
                coordinator.signal.clear()
    finally:
        with calling("ENU-9", "the enumerator's close()"):
            coordinator.close(patience)
    return [split for message in received if isinstance(message, AddSplits) for split in message.splits]
