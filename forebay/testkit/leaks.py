# SPDX-License-Identifier: Apache-2.0
"""Counts what a connector leaves behind: threads, open files and sockets."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable

from forebay.testkit.outcomes import Broken

_RUNS = 3
_HANDLES = "/proc/self/fd"


class Leaks:
    """Does something some times over and compares before with after.

    The first time is not counted, and one thread or handle less than there were runs is no leak: clients that a
    process keeps are made once. What is on its way out is waited for.

    Args:
        patience: Seconds to wait for what is on its way out.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience

    def check(self, use: Callable[[], None], what: str, advice: str, *, rule: str | None = None) -> None:
        """Run `use`, and raise if something of each run stays.

        Raises:
            Broken: Threads or handles are left.
        """
        use()
        threads, handles = set(threading.enumerate()), _handles()
        for _ in range(_RUNS):
            use()
        deadline = time.monotonic() + self._patience
        while True:
            gc.collect()
            left = sorted(thread.name for thread in set(threading.enumerate()) - threads)
            more = _handles() - handles
            if len(left) < _RUNS and more < _RUNS:
                return
            if time.monotonic() > deadline:
                break
            time.sleep(0.02)
        seen = f"{len(left)} threads ({', '.join(left[:5])})" if len(left) >= _RUNS else f"{more} open files or sockets"
        raise Broken(f"{_RUNS} times {what} left {seen} behind", advice, rule=rule)


def _handles() -> int:
    """Return how many files and sockets this process holds; 0 where the system does not say."""
    return len(os.listdir(_HANDLES)) if os.path.isdir(_HANDLES) else 0
