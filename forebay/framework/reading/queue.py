# SPDX-License-Identifier: Apache-2.0
"""The hand-over queue between fetcher threads and the reader: bounded in hand-overs and in bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from forebay.framework.runtime.runtime import Runtime, Signal
from forebay.framework.split_reader import Fetched


@dataclass(slots=True)
class HandOver:
    """What one fetch brought, on its way to the reader.

    Args:
        fetched: In order; may be empty (a marker).
        recycle: Called exactly once, on the task thread, when every part has been used (RB-4).
    """

    fetched: Sequence[Fetched]
    recycle: Callable[[], None] | None = None
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.nbytes = sum(part.batch.nbytes for part in self.fetched if part.batch is not None)


class HandOverQueue:
    """First in, first out; many fetchers offer, one reader polls; nobody ever waits inside (Q-1 … Q-4).

    Where Flink's queue blocks a putter, `offer` returns False and the hand-over stays with the caller, whose signal
    is set once there is room: so a wake-up of a putter is nothing but its signal, and is remembered until spent.

    Args:
        runtime: For the lock.
        capacity: Most hand-overs waiting, at least 1.
        max_bytes: Most bytes waiting, at least 1; a single larger hand-over passes when nothing else waits.

    Raises:
        ValueError: A bound is not positive.
    """

    def __init__(self, runtime: Runtime, capacity: int, max_bytes: int) -> None:
        if capacity < 1 or max_bytes < 1:
            raise ValueError(f"a queue needs room: capacity {capacity}, max_bytes {max_bytes}")
        self._lock = runtime.lock()
        self._capacity = capacity
        self._max_bytes = max_bytes
        self._bytes = 0
        self._waiting: deque[HandOver] = deque()
        self._refused: list[Signal] = []
        self._available: Future[None] = Future()
        self._is_available = False
        self._notice: Future[None] = Future()

    def offer(self, hand_over: HandOver, signal: Signal) -> bool:
        """Put a hand-over if there is room. Called by fetcher threads.

        Args:
            hand_over: What to put.
            signal: Set once there is room again, if there is none now.

        Returns:
            True if it is in the queue; False if it stays with the caller.
        """
        with self._lock:
            full = len(self._waiting) >= self._capacity or self._bytes + hand_over.nbytes > self._max_bytes
            if full and self._waiting:
                if signal not in self._refused:
                    self._refused.append(signal)
                return False
            self._waiting.append(hand_over)
            self._bytes += hand_over.nbytes
            completed = self._mark_available()
        if completed is not None:
            completed.set_result(None)
        return True

    def poll(self) -> HandOver | None:
        """Take the oldest hand-over, or None. Called by the task thread; never blocks (Q-3)."""
        with self._lock:
            hand_over = self._waiting.popleft() if self._waiting else None
            if hand_over is not None:
                self._bytes -= hand_over.nbytes
            if not self._waiting and self._is_available:
                self._available = Future()
                self._is_available = False
            refused, self._refused = self._refused, []
        for signal in refused:
            signal.set()
        return hand_over

    def is_empty(self) -> bool:
        """Whether nothing waits."""
        with self._lock:
            return not self._waiting

    def availability(self) -> Future[None]:
        """Return a future that is done while something waits; a fresh one follows each emptying (Q-4)."""
        with self._lock:
            return self._available

    def notice(self) -> Future[None]:
        """Return a future that the next `notify_available` completes, and no hand-over: for who cannot take one now."""
        with self._lock:
            if self._notice.done():
                self._notice = Future()
            return self._notice

    def notify_available(self) -> None:
        """Complete the future without putting anything, until the next empty poll (Q-4); and the `notice`."""
        with self._lock:
            available = self._mark_available()
            # A future of its own for each: two callers at once must not complete the same one.
            notice, self._notice = self._notice, _done()
        if available is not None:
            available.set_result(None)
        if not notice.done():
            notice.set_result(None)

    def _mark_available(self) -> Future[None] | None:
        """Say that the future is due, under the lock; the caller completes it outside, for callbacks run in there."""
        if self._is_available:
            return None
        self._is_available = True
        return self._available


def _done() -> Future[None]:
    future: Future[None] = Future()
    future.set_result(None)
    return future
