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

from forebay.testkit.outcomes import Broken, Skip

_LOOK = 0.05


@dataclass(slots=True)
class _Watch:
    """What one checking thread has just called in the connector: rule, name, since when."""

    call: tuple[str, str, float] | None = None
    abandoned: bool = False


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
    if watch.abandoned:
        raise Skip("given up before")
    outer, watch.call = watch.call, (rule, what, time.monotonic())
    try:
        yield
    finally:
        watch.call = outer


def guarded(work: Callable[[], None], patience: float) -> None:
    """Run `work` on a daemon thread of its own and wait for it, as long as every marked call comes back.

    Args:
        work: What to run; its exception is raised here.
        patience: Seconds that one call into the connector may take.

    Raises:
        Broken: A call did not come back; its thread is left behind.
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
    if raised:
        raise raised[0]


def _stuck(call: tuple[str, str, float], thread: threading.Thread) -> Broken:
    rule, what, since = call
    frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001 - the only way to say where it hangs
    # Where the connector waits, not how Python does.
    frames = [one for one in traceback.extract_stack(frame) if one.filename != threading.__file__] if frame else []
    where = "".join(traceback.format_list(frames[-2:])).rstrip()
    return Broken(
        f"{what} has not come back for {time.monotonic() - since:.1f} s\n{where}",
        "give outside calls a time-out, and end every wait when wake_up() or close() comes",
        rule=rule,
        hangs=True,
    )
