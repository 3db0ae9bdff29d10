# SPDX-License-Identifier: Apache-2.0
"""Forked processes that kill or stop themselves at a write, half-way through whatever they do."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

from forebay.state.local_state_store import LocalStateStore

WRITES = ((LocalStateStore, "put_if_absent"), (LocalStateStore, "delete"))
"""The methods by which an index writes into a directory."""


class Child:
    """A forked process that sends itself a signal at a write: before or after it.

    Args:
        work: What it does; it ends with the number that this returns, or with 1 after an error.
        at: The number of the write; 0: none.
        when: `before` or `after` the write.
        number: The signal.
        methods: What counts as a write.
    """

    def __init__(
        self,
        work: Callable[[], Any],
        at: int = 0,
        when: str = "before",
        number: int = signal.SIGKILL,
        methods: tuple[tuple[type, str], ...] = WRITES,
    ) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                self._arm(at, when, number, methods)
                code = work() or 0
            except BaseException:  # noqa: BLE001 - the child must not go on with the test
                traceback.print_exc(file=sys.stderr)
            finally:
                os._exit(code)

    @staticmethod
    def _arm(at: int, when: str, number: int, methods: tuple[tuple[type, str], ...]) -> None:
        seen = [0]

        def met(write: Callable[..., Any], *given: Any, **options: Any) -> Any:
            seen[0] += 1
            mine = seen[0] == at
            if mine and when == "before":
                os.kill(os.getpid(), number)
            try:
                return write(*given, **options)
            finally:
                if mine and when == "after":
                    os.kill(os.getpid(), number)

        for owner, name in methods:
            write = getattr(owner, name)
            # A function, not a `partial`: it becomes a method.
            setattr(owner, name, lambda *given, write=write, **options: met(write, *given, **options))

    def wait(self) -> int:
        """Return what ended the process: its number, or the signal, negative; or the signal that stopped it."""
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            return os.WSTOPSIG(status)
        return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
