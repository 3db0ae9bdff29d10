# SPDX-License-Identifier: Apache-2.0
"""Calls into a connector from a planner: bounded in time, retried where that helps, with errors that say where."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from forebay.errors import FatalError, RetriableError
from forebay.framework.runtime.clients import drop_clients
from forebay.framework.runtime.connector_errors import explained
from forebay.framework.runtime.retry import RetryCount, RetryPolicy
from forebay.framework.runtime.runtime import Runtime

T = TypeVar("T")


class ConnectorCalls:
    """Runs a connector's blocking calls one at a time, each on a thread of its own.

    Args:
        source: The format name, for errors.
        runtime: Threads, clock and chance.
        retry: How a `RetriableError` is tried again.
        timeout: Seconds one call may take, tries included; the thread of a longer one is abandoned.
    """

    def __init__(self, source: str, runtime: Runtime, *, retry: RetryPolicy, timeout: float) -> None:
        self._source = source
        self._runtime = runtime
        self._retry = retry
        self._timeout = timeout

    def call(self, doing: str, work: Callable[[], T], *, within: tuple[str, float] | None = None) -> T:
        """Return what `work` returns. Called on the planning thread.

        Args:
            doing: The call, as the author of the connector knows it.
            work: Runs on a thread of its own.
            within: Another time-out than that of planning: the name of its option, and seconds.

        Raises:
            ForebayError: What the connector raised, or a `FatalError` that wraps it.
            FatalError: There was no answer in time.
        """
        option, timeout = within or ("planningTimeout", self._timeout)
        deadline = self._runtime.clock.monotonic() + timeout
        count = RetryCount(self._retry, self._runtime.clock, self._runtime.random)
        while True:
            self._wait(self._runtime.service_pauses.remaining(self._source), deadline)
            try:
                with explained(self._source, doing):
                    return self._once(doing, work, deadline, late=(option, timeout))
            except RetriableError as error:
                drop_clients(self._source, error)
                self._runtime.service_pauses.note(self._source, error)
                pause = count.fail(error)
                if count.exhausted or self._runtime.clock.monotonic() + pause >= deadline:
                    raise count.last_error(error)  # noqa: B904 - it is the same error
                self._wait(pause, deadline)

    def _wait(self, seconds: float, deadline: float) -> None:
        rest = min(seconds, deadline - self._runtime.clock.monotonic())
        if rest > 0:
            self._runtime.signal().wait(rest)

    def _once(self, doing: str, work: Callable[[], T], deadline: float, *, late: tuple[str, float]) -> T:
        answered = self._runtime.signal()
        answers: list[tuple[T | None, BaseException | None]] = []

        def done(result: T | None, error: BaseException | None) -> None:
            answers.append((result, error))
            answered.set()

        self._runtime.submit(f"forebay-{self._source}-planning", work, done)
        if not answered.wait(max(0.0, deadline - self._runtime.clock.monotonic())):
            raise FatalError(
                f"{doing} gave no answer within {late[1]:g} s",
                source=self._source,
                advice=f"give the connector's network calls a time-out, or raise the option {late[0]}",
            )
        result, error = answers[0]
        if error is not None:
            raise error
        return result  # type: ignore[return-value]  # without an error it is what `work` returned
