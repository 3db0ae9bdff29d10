# SPDX-License-Identifier: Apache-2.0
"""Calls connector methods for a planner: with a time limit, retries, and errors that name the method."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

from forebay.errors import FatalError, RetriableError
from forebay.framework.runtime.clients import drop_clients
from forebay.framework.runtime.connector_errors import wrap_errors
from forebay.framework.runtime.runtime import Runtime
from forebay.options import redact
from forebay.retry import RetryCount, RetryPolicy

T = TypeVar("T")

_log = logging.getLogger(__name__)

_BRIEF: Final = 3
"""Maximum retries of a call without whose answer the caller can go on."""


class ConnectorCalls:
    """Calls a connector's blocking methods one at a time, each on a new thread.

    A call may take `timeout` seconds, including its retries. After that, its thread is abandoned.
    """

    def __init__(self, source: str, runtime: Runtime, *, retry: RetryPolicy, timeout: float) -> None:
        self._source = source
        self._runtime = runtime
        self._retry = retry
        self._brief = retry if retry.retries is not None else replace(retry, retries=_BRIEF)
        self._timeout = timeout

    def call(
        self, doing: str, work: Callable[[], T], *, within: tuple[str, float] | None = None, brief: bool = False
    ) -> T:
        """Run `work` on a new thread, and return its result. Called on the main thread of a planner.

        `doing` names the call in errors, such as `latest()`. `within` replaces the time-out `planningTimeout`: the name
        of the option to report, and seconds. With `brief`, the caller can go on without an answer and asks again later:
        there are few retries.

        Raises:
            ForebayError: The connector's error, wrapped in a `FatalError` unless it is a `ForebayError`.
            FatalError: The call did not return within the time-out.
        """
        option, timeout = within or ("planningTimeout", self._timeout)
        clock, pauses = self._runtime.clock, self._runtime.service_pauses
        deadline = clock.monotonic() + timeout
        count = RetryCount(self._brief if brief else self._retry, clock, self._runtime.random)
        while True:
            self._wait_for_service(doing, pauses.remaining(self._source), deadline, option)
            try:
                with wrap_errors(self._source, doing):
                    return self._call_once(doing, work, deadline, timeout=(option, timeout))
            except RetriableError as error:
                drop_clients(self._source, error)
                pauses.note(self._source, error, most=self._retry.timeout)
                pause = count.fail(error)
                if count.exhausted or clock.monotonic() + pause >= deadline:
                    raise count.last_error(error)  # noqa: B904 - it is the same error
                reason = redact(str(error))
                _log.warning("%s: %s failed and is retried in %.1f s: %s", self._source, doing, pause, reason)
                self._wait(pause, deadline)

    def _wait_for_service(self, doing: str, asked: float, deadline: float, option: str) -> None:
        """Wait for the pause that the service asked another reader for."""
        if asked <= 0:
            return
        if self._runtime.clock.monotonic() + asked >= deadline:
            raise RetriableError(
                f"{doing} would have to wait {asked:.1f} s, as the service asked another reader",
                source=self._source,
                retry_after=asked,
                advice=f"read with fewer tasks (numPartitions), or raise {option}",
            )
        _log.info("%s: %s waits %.1f s, as the service asked another reader", self._source, doing, asked)
        self._wait(asked, deadline)

    def _wait(self, seconds: float, deadline: float) -> None:
        pause = min(seconds, deadline - self._runtime.clock.monotonic())
        if pause > 0:
            self._runtime.signal().wait(pause)

    def _call_once(self, doing: str, work: Callable[[], T], deadline: float, *, timeout: tuple[str, float]) -> T:
        answered = self._runtime.signal()
        answers: list[tuple[T | None, BaseException | None]] = []

        def done(result: T | None, error: BaseException | None) -> None:
            answers.append((result, error))
            answered.set()

        self._runtime.submit(f"forebay-{self._source}-call", work, done)
        if not answered.wait(max(0.0, deadline - self._runtime.clock.monotonic())):
            raise FatalError(
                f"{doing} did not return within {timeout[1]:g} s",
                source=self._source,
                advice=f"give the connector's network calls a time-out, or raise the option {timeout[0]}",
            )
        result, error = answers[0]
        if error is not None:
            raise error
        return result  # type: ignore[return-value]  # without an error it is the result of `work`
