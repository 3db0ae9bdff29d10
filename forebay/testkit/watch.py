# SPDX-License-Identifier: Apache-2.0
"""Runs a check where a connector that never comes back cannot stop the others."""

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

_LOOK = 0.05
_FOREBAY = str(Path(__file__).parent.parent)


@dataclass(slots=True)
class _Watch:
    """What one checking thread has just called in the connector: rule, name, since when."""

    call: tuple[str, str, float] | None = None
    abandoned: bool = False
    unwinding: bool = False
    """It was told that it is abandoned; what it calls from then on only cleans up."""


class _Current(threading.local):
    watch: _Watch | None = None


_current = _Current()


@contextmanager
def calling(rule: str, what: str) -> Iterator[None]:
    """Mark a call into the connector: if it does not come back, `guarded` blames `rule` and names `what`."""
    watch = _current.watch
    if watch is None:
        yield
        return
    if watch.abandoned and not watch.unwinding:
        watch.unwinding = True
        raise OutOfTime
    outer, watch.call = watch.call, (rule, what, time.monotonic())
    try:
        yield
    finally:
        watch.call = outer


def guarded(work: Callable[[], None], patience: float, deadline: float) -> None:
    """Run `work` on a daemon thread of its own and wait for it, as long as every marked call comes back.

    Work that goes on beyond the deadline is left behind too: its next call into the connector ends it.

    Args:
        work: What to run; its exception is raised here.
        patience: Seconds that one call into the connector may take.
        deadline: When all of it must have ended, on the monotonic clock.

    Raises:
        Broken: A call did not come back; its thread is left behind.
        OutOfTime: The deadline has passed.
    """
    watch = _Watch()
    raised: list[BaseException] = []

    def run() -> None:
        _current.watch = watch
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised where the check was asked for
            raised.append(error)

    thread = threading.Thread(target=run, name="forebay-testkit-check", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_LOOK)
        call = watch.call
        if call is not None and thread.is_alive() and time.monotonic() - call[2] > patience:
            watch.abandoned = True
            raise _stuck(call, thread)
        if time.monotonic() > deadline and thread.is_alive():
            watch.abandoned = True
            raise OutOfTime
    if raised:
        raise raised[0]


def _stuck(call: tuple[str, str, float], thread: threading.Thread) -> Broken:
    rule, what, since = call
    frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001 - the only way to say where it hangs
    # Where the connector waits, neither how Python does nor how the kit called it.
    frames = [one for one in traceback.extract_stack(frame) if one.filename != threading.__file__] if frame else []
    frames = [one for one in frames if not one.filename.startswith(_FOREBAY)] or frames
    where = "".join(traceback.format_list(frames[-1:])).rstrip()
    return Broken(
        f"{what} has not come back for {time.monotonic() - since:.1f} s\n{where}",
        "give outside calls a time-out, and end every wait when wake_up() or close() comes",
        rule=rule,
        hangs=True,
    )
