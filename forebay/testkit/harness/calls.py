# SPDX-License-Identifier: Apache-2.0
"""How the kit calls a connector: on a thread that can be abandoned, with a reader's context, and for how long."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from forebay.framework.runtime.host_options import HostOptions
from forebay.testkit.outcomes import Broken, OutOfTime
from forebay.testkit.scripted import RecordingContext

# -- Runs a check on its own thread.


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


# -- The common parts of sessions and the host: the reader's context, closing, and the time without a result.


C = TypeVar("C")

_SPIN_COUNT = 400
_SPIN_SECONDS = 0.4
"""`_SPIN_COUNT` calls without a record within `_SPIN_SECONDS` are a busy loop (RDR-3)."""


class KitContext(RecordingContext):
    """A reader context that lends clients from the kit's own pool. With `promised`, ends are promises, as on Spark."""

    def __init__(self, options: HostOptions, pool: dict[Hashable, list[Any]], *, promised: bool = False) -> None:
        super().__init__(options=options)
        self._promised = promised
        self._pool = pool
        self._borrowed: list[tuple[Hashable, Any]] = []

    @property
    def ends_are_promises(self) -> bool:
        """Whether the next read starts at the ends of the splits, wherever this one stops."""
        return self._promised

    def lease(self, key: Hashable, factory: Callable[[], C]) -> C:
        """Return a free client of this key, or a new one."""
        free = self._pool.setdefault(key, [])
        client: C = free.pop() if free else factory()
        self._borrowed.append((key, client))
        return client

    def hand_back(self) -> None:
        """Return the reader's clients to the pool, after it has closed."""
        borrowed, self._borrowed = self._borrowed, []
        for key, client in borrowed:
            self._pool[key].append(client)


class Closing(ABC):
    """Base class: closes itself at the end of a `with` block. After an error, errors of closing are ignored."""

    @abstractmethod
    def close(self) -> None:
        """Close the opened resources."""

    def abandon(self) -> None:
        """Close the session after an error, and ignore errors of closing."""
        with suppress(Exception):
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self.abandon()


class Silence:
    """Measures the time since the last result. More than `patience` seconds are too long."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self.reset()

    def reset(self) -> None:
        """Begin again, because a result came."""
        self._calls = 0
        self._since = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the last result."""
        return time.monotonic() - self._since

    @property
    def left(self) -> float:
        """Seconds until the silence is too long."""
        return self._patience - self.seconds

    def count_call(self, saw: Callable[[int, float], str], advice: str) -> None:
        """Count a call without a result. Raise `Broken` for a busy loop: too many calls in too short a time."""
        self._calls += 1
        if self._calls >= _SPIN_COUNT and self.seconds < _SPIN_SECONDS * self._calls / _SPIN_COUNT:
            raise Broken(saw(self._calls, self.seconds), advice, rule="RDR-3")
