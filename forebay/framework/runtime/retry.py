# SPDX-License-Identifier: Apache-2.0
"""The one retry policy: how often, after which pauses and for how long a `RetriableError` is tried again."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

from forebay.clock import Clock, SystemClock
from forebay.errors import RetriableError
from forebay.framework.host_options import HostOptions

_FORGIVEN: Final = 600.0
"""Seconds without a failure after which failures are counted from one again: a quiet split may have nothing to read."""


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """Bounds of retries: exponential pauses with jitter, as the host's options say.

    Args:
        retries: Retries after the first try.
        first_pause: Seconds before the first retry.
        factor: Growth of the pause from one retry to the next.
        max_pause: Longest pause in seconds, unless the service asks for a longer one.
        timeout: Seconds from the first failure after which no retry begins.
    """

    retries: int = 3
    first_pause: float = 0.5
    factor: float = 3.0
    max_pause: float = 30.0
    timeout: float = 600.0

    @classmethod
    def of(cls, options: HostOptions) -> RetryPolicy:
        """Return the policy of a host's options."""
        return cls(
            retries=options.retries,
            first_pause=options.retry_first_pause.total_seconds(),
            factor=options.retry_factor,
            max_pause=options.retry_max_pause.total_seconds(),
            timeout=options.retry_timeout.total_seconds(),
        )

    def pause(self, failures: int, random: Random, error: BaseException | None = None) -> float:
        """Return the seconds to wait after so many failures in a row; at least the error's `retry_after`.

        Half of the pause is jitter, so that readers that failed together do not return together.
        """
        # The exponent is bounded: a source that never answers would overflow a float.
        bound = min(self.max_pause, self.first_pause * self.factor ** min(failures - 1, 64))
        asked = error.retry_after if isinstance(error, RetriableError) else None
        return max(bound / 2 + random.random() * bound / 2, asked or 0.0)


class RetryCount:
    """Failures in a row of one operation, under a policy.

    Args:
        policy: The bounds.
        clock: Time of the failures.
        random: Jitter of the pauses.
    """

    def __init__(self, policy: RetryPolicy, clock: Clock, random: Random) -> None:
        self._policy = policy
        self._clock = clock
        self._random = random
        self._first_at = self._last_at = float("-inf")
        self.failures = 0
        """Failures since the last success."""
        self.exhausted = False
        """Whether the policy ends the retries."""

    def succeed(self) -> None:
        """Begin to count anew."""
        self.failures, self.exhausted = 0, False

    def fail(self, error: RetriableError) -> float:
        """Count a failure, and return the seconds until the next try; `exhausted` says whether there is one."""
        now = self._clock.monotonic()
        if not self.failures or now - self._last_at > _FORGIVEN + self._policy.max_pause:
            self.failures, self._first_at = 0, now
        self.failures += 1
        pause = self._policy.pause(self.failures, self._random, error)
        self._last_at = now + pause
        self.exhausted = self.failures > self._policy.retries or self._last_at - self._first_at > self._policy.timeout
        return pause

    def last_error(self, error: RetriableError) -> RetriableError:
        """Return the error that ends the retries: it says how long was tried, and what to do next."""
        seconds = self._clock.monotonic() - self._first_at
        error.message = (
            f"{error.message} ({self.failures} {'tries' if self.failures > 1 else 'try'} in {seconds:.1f} s)"
        )
        if error.retry_after:
            asked = f"the service asks to wait {error.retry_after:g} s: "
            advice = f"{asked}read with fewer tasks (numPartitions), or raise the options retries and retryTimeout"
        else:
            advice = "check that the service answers, or raise the options retries, retryFirstPause and retryMaxPause"
        return error.located(advice=advice)


class ServicePauses:
    """Until when the readers of a process leave a service alone that asked for a pause. Called from any thread.

    Args:
        clock: Monotonic time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}

    def note(self, source: str, error: RetriableError) -> None:
        """Make all readers of a source in this process wait as long as an error's `retry_after` asks for."""
        if error.retry_after:
            until = self._clock.monotonic() + error.retry_after
            self._until[source] = max(until, self._until.get(source, until))

    def remaining(self, source: str) -> float:
        """Return the seconds that a source is still to be left alone; 0 or less: none."""
        return self._until[source] - self._clock.monotonic() if source in self._until else 0.0


of_process = ServicePauses(SystemClock())
"""The pauses of this process."""
