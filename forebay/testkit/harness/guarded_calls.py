# SPDX-License-Identifier: Apache-2.0
"""Runs a check on its own thread, so that a hanging connector cannot stop the other checks."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from forebay.testkit.outcomes import Broken, OutOfTime

_POLL = 0.05
_FOREBAY = str(Path(__file__).parents[2])


@dataclass(slots=True)
class _CheckThread:
    """The thread of a check. `call` is its current call into the connector: rule, name, monotonic start time."""

    call: tuple[str, str, float] | None = None
    abandoned: bool = False
    unwinding: bool = False
    """Whether the thread has raised `OutOfTime`. Its further calls only clean up."""


class _Current(threading.local):
    check: _CheckThread | None = None


_current = _Current()


@contextmanager
def calling(rule: str, name: str) -> Iterator[None]:
    """Mark a call into the connector. If it does not return, `run_guarded` raises an error with `rule` and `name`."""
    check = _current.check
    if check is None:
        yield
        return
    if check.abandoned and not check.unwinding:
        check.unwinding = True
        raise OutOfTime
    outer, check.call = check.call, (rule, name, time.monotonic())
    try:
        yield
    finally:
        check.call = outer


def run_guarded(work: Callable[[], None], patience: float, deadline: float) -> None:
    """Run `work` on a daemon thread. Abandon the thread if a marked call takes too long, or at the deadline.

    An abandoned thread ends at its next call into the connector. Exceptions of `work` are raised here.

    Args:
        work: The function to run.
        patience: Maximum seconds for one call that `calling` marks.
        deadline: Maximum time for `work`, of the monotonic clock.

    Raises:
        Broken: A marked call took longer than `patience`.
        OutOfTime: The deadline has passed.
    """
    check = _CheckThread()
    raised: list[BaseException] = []

    def run() -> None:
        _current.check = check
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised where the check was asked for
            raised.append(error)

    thread = threading.Thread(target=run, name="forebay-testkit-check", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_POLL)
        call = check.call
        if call is not None and thread.is_alive() and time.monotonic() - call[2] > patience:
            check.abandoned = True
            raise _stuck(call, thread)
        if time.monotonic() > deadline and thread.is_alive():
            check.abandoned = True
            raise OutOfTime
    if raised:
        raise raised[0]


def _stuck(call: tuple[str, str, float], thread: threading.Thread) -> Broken:
    rule, name, since = call
    frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001 - the only way to find where it hangs
    # The connector's own frame, not those of `threading` or of the kit.
    frames = (
        [entry for entry in traceback.extract_stack(frame) if entry.filename != threading.__file__] if frame else []
    )
    frames = [entry for entry in frames if not entry.filename.startswith(_FOREBAY)] or frames
    where = "".join(traceback.format_list(frames[-1:])).rstrip()
    return Broken(
        f"{name} has not returned for {time.monotonic() - since:.1f} s\n{where}",
        "set a timeout for external calls, and end every wait when wake_up() or close() is called",
        rule=rule,
        hangs=True,
    )
