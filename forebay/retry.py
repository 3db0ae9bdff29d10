# SPDX-License-Identifier: Apache-2.0
"""The retry policy: how often, after which pauses and for how long a `RetriableError` is retried."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from random import Random
from typing import ClassVar, Final, Protocol

from forebay.clock import Clock, SystemClock
from forebay.errors import RetriableError
from forebay.options import Duration

_RESET_AFTER: Final = 600.0
"""Seconds without a failure that reset the count: a quiet split may have had nothing to read."""


class RetryOptions(Protocol):
    """The options of a host that set its retry policy."""

    @property
    def retries(self) -> int | None:
        """See `RetryPolicy`."""

    @property
    def retry_first_pause(self) -> Duration:
        """See `RetryPolicy`."""

    @property
    def retry_factor(self) -> float:
        """See `RetryPolicy`."""

    @property
    def retry_max_pause(self) -> Duration:
        """See `RetryPolicy`."""

    @property
    def retry_timeout(self) -> Duration:
        """See `RetryPolicy`."""


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """Exponential back-off with jitter, and limits on the duration and, if wanted, the number of retries.

    Args:
        retries: Maximum retries after the first try; None = as many as `timeout` allows.
        first_pause: Seconds before the first retry.
        factor: Growth of the pause from one retry to the next.
        max_pause: Maximum pause in seconds, unless the service asks for more.
        timeout: Seconds after the first failure; no retry begins later.
    """

    retries: int | None = None
    first_pause: float = 0.5
    factor: float = 3.0
    max_pause: float = 30.0
    timeout: float = 120.0

    @classmethod
    def of(cls, options: RetryOptions) -> RetryPolicy:
        """Return the retry policy that the host's options set."""
        return cls(
            retries=options.retries,
            first_pause=options.retry_first_pause.total_seconds(),
            factor=options.retry_factor,
            max_pause=options.retry_max_pause.total_seconds(),
            timeout=options.retry_timeout.total_seconds(),
        )

    def pause(self, failures: int, random: Random, error: BaseException | None = None) -> float:
        """Return the seconds to wait after `failures` consecutive failures; at least the error's `retry_after`.

        Half of the pause is jitter, so that readers that failed together do not retry together.
        """
        # The bound on the exponent avoids a float overflow for a source that never answers.
        bound = min(self.max_pause, self.first_pause * self.factor ** min(failures - 1, 64))
        asked = error.retry_after if isinstance(error, RetriableError) else None
        return max(bound / 2 + random.random() * bound / 2, asked or 0.0)


_all_failures: Final = itertools.count(1)  # `next` of it is atomic


class RetryCount:
    """Counts the consecutive failures of one operation, and decides whether and when to retry it."""

    failures_in_process: ClassVar[int] = 0
    """The number of failures of all operations of this process, for metrics."""

    def __init__(self, policy: RetryPolicy, clock: Clock, random: Random) -> None:
        self._policy = policy
        self._clock = clock
        self._random = random
        self._first_at = self._last_at = float("-inf")
        self.failures = 0
        """Failures since the last success."""
        self.exhausted = False
        """Whether the policy allows no further retry."""

    def succeed(self) -> None:
        """Reset the count after a success."""
        self.failures, self.exhausted = 0, False

    def fail(self, error: RetriableError) -> float:
        """Count a failure, return the seconds until the next try, and update `exhausted`."""
        now = self._clock.monotonic()
        if not self.failures or now - self._last_at > _RESET_AFTER + self._policy.max_pause:
            self.failures, self._first_at = 0, now
        self.failures += 1
        RetryCount.failures_in_process = next(_all_failures)
        pause = self._policy.pause(self.failures, self._random, error)
        left = self._first_at + self._policy.timeout - now
        if (error.retry_after or 0) <= left < pause and left > 0:
            pause = left  # one more try when the time ends: what passes within it must not end the work
        self._last_at = now + pause
        most = self._policy.retries
        self.exhausted = pause > left or (most is not None and self.failures > most)
        return pause

    def last_error(self, error: RetriableError) -> RetriableError:
        """Add the number and duration of the tries, and the next step, to the error that ends them; return it."""
        seconds = self._clock.monotonic() - self._first_at
        error.message += f" ({self.failures} {'tries' if self.failures > 1 else 'try'} in {seconds:.1f} s)"
        limits = "retryTimeout" if self._policy.retries is None else "retries and retryTimeout"
        advice = f"check that the service answers, and start again; to wait longer, raise {limits}"
        if error.retry_after:
            asked = f"the service asks to wait {error.retry_after:g} s: "
            advice = f"{asked}read with fewer tasks (numPartitions), or raise {limits}"
        return error.with_context(advice=advice)


class ServicePauses:
    """Pauses that external services requested, by source. Readers that share the object observe them. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}

    def note(self, source: str, error: RetriableError, *, most: float) -> None:
        """Pause all readers of a source for the error's `retry_after`, if it has one of at most `most` seconds.

        A longer one than `RetryPolicy.timeout` ends the read that got it, and must not hold up those that come later.
        """
        if error.retry_after and error.retry_after <= most:
            until = self._clock.monotonic() + error.retry_after
            self._until[source] = max(until, self._until.get(source, until))

    def remaining(self, source: str) -> float:
        """Return the seconds until a source's pause ends; 0 or less = no pause."""
        return self._until[source] - self._clock.monotonic() if source in self._until else 0.0


PROCESS_PAUSES: Final = ServicePauses(SystemClock())
"""The pauses that all readers of this process observe."""
