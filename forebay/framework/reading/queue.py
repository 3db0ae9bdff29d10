# SPDX-License-Identifier: Apache-2.0
"""The queue between fetcher threads and the reader: bounded in hand-overs and in bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from forebay.framework.runtime.runtime import Runtime, Signal
from forebay.framework.split_reader import Fetched


@dataclass(slots=True)
class HandOver:
    """The result of one fetch, on its way from a fetcher to the source reader.

    `recycle` is called once, on the task thread, after the last part of the result was used (RB-4).
    """

    fetched: Sequence[Fetched]
    recycle: Callable[[], None] | None = None
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.nbytes = sum(part.batch.nbytes for part in self.fetched if part.batch is not None)


class HandOverQueue:
    """A FIFO queue of hand-overs: many fetchers offer, one source reader polls, no call blocks (Q-1 … Q-4).

    Flink's queue blocks a fetcher while it is full. Here `offer` returns False, the fetcher keeps the hand-over, and
    its signal is set once there is room. An empty queue accepts a hand-over larger than `max_bytes`.

    Raises:
        ValueError: A bound is not positive.
    """

    def __init__(self, runtime: Runtime, capacity: int, max_bytes: int) -> None:
        if capacity < 1 or max_bytes < 1:
            raise ValueError(f"the bounds of a queue must be positive: capacity {capacity}, max_bytes {max_bytes}")
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
        """Add a hand-over and return True, or return False if the queue is full. Called by fetcher threads.

        A refused hand-over stays with the caller; `signal` is set once there is room.
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
        """Remove and return the oldest hand-over, or return None. Called by the task thread; never blocks (Q-3)."""
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
        """Whether the queue is empty."""
        with self._lock:
            return not self._waiting

    def availability(self) -> Future[None]:
        """Return a future that is done while the queue is not empty; when it gets empty, a new future begins (Q-4)."""
        with self._lock:
            return self._available

    def notice(self) -> Future[None]:
        """Return a future that only `notify_available` completes, for a reader that has no room for a hand-over."""
        with self._lock:
            if self._notice.done():
                self._notice = Future()
            return self._notice

    def notify_available(self) -> None:
        """Complete the futures of `notice` and `availability` although no hand-over was added (Q-4)."""
        with self._lock:
            available = self._mark_available()
            # Replaced, so that two callers at once do not complete the same future.
            notice, self._notice = self._notice, done_future()
        if available is not None:
            available.set_result(None)
        if not notice.done():
            notice.set_result(None)

    def _mark_available(self) -> Future[None] | None:
        """Return the future to complete; the caller completes it outside the lock, because that runs callbacks."""
        if self._is_available:
            return None
        self._is_available = True
        return self._available


def done_future() -> Future[None]:
    """Return a completed future."""
    future: Future[None] = Future()
    future.set_result(None)
    return future
