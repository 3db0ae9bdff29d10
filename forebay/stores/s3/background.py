# SPDX-License-Identifier: Apache-2.0
"""Runs requests to S3 on other threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Background(Generic[T]):
    """Runs a function at once on a new thread. A thread costs 0.1 ms, a request at least ten times as much.

    The thread is a daemon: a store that never answers does not keep the process alive.
    """

    def __init__(self, run: Callable[[], T], name: str) -> None:
        self._run = run
        self._result: T | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._call, name=name, daemon=True)
        self._thread.start()

    def result(self) -> T:
        """Wait for the function, and return its result or raise its error."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # set, unless there is an error

    def _call(self) -> None:
        try:
            self._result = self._run()
        except BaseException as error:  # noqa: BLE001 - raised by `result`
            self._error = error
