# SPDX-License-Identifier: Apache-2.0
"""Probes whether a store of S3 lets at most one of several simultaneous writers of an object succeed (S13)."""

from __future__ import annotations

import io
import threading
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, BinaryIO, Final

from forebay.errors import ConfigurationError, ForebayError, RetriableError
from forebay.state.state_store import OPTION
from forebay.stores.s3.background import Background
from forebay.stores.s3.client import S3Client

ROUNDS: Final = 6
"""Number of rounds in which exactly one writer must win. Each takes about as long as two requests."""

WRITERS: Final = 4
"""Number of simultaneous writers in a round."""

_LOST: Final = 4
"""Maximum rounds without a winner: answers were lost, and the repeated request found the object of the first one."""

_HALF: Final = 4 << 10
"""Bytes that each writer sends before it waits for the others."""

_PATIENCE: Final = 5.0
"""Maximum seconds to wait for the other writers. After them the round goes on without overlap."""

OTHER_STORE: Final = (
    "give a bucket of a store that compares and writes in one step for PUT with If-None-Match: *, or a directory"
)

_EVENT: Final = "before-send.s3.PutObject"

Put = Callable[[str, Callable[[], "bytes | BinaryIO"]], bool]


def refuse_racy_store(client: S3Client, location: str, put: Put, delete: Callable[[Iterable[str]], None]) -> None:
    """Raise an error if the store lets a second writer of the same name succeed. May block.

    A store that looks for the object and then writes it passes a probe by one PUT after the other. So several
    connections send the headers and half of the body before any of them sends the other half.

    Args:
        client: The client, whose requests to put objects are changed during the probe.
        location: The location of the state, for errors.
        put: Writes a fact unless it exists, with a body that is made for each attempt; returns whether it wrote it.
        delete: Deletes facts.

    Raises:
        ConfigurationError: Two writers of one object succeeded.
        RetriableError: No writer succeeded.
    """
    names: list[str] = []
    won = winners = 0
    client.boto.meta.events.register(_EVENT, _hold, unique_id=_EVENT)
    try:
        while won < ROUNDS and len(names) - won < _LOST:
            names.append(f".probe-{uuid.uuid4().hex}")
            winners = _winners(put, names[-1])
            if winners > 1:
                break
            won += winners
    except BaseException:  # also Ctrl-C: objects of the probe must not stay
        with suppress(ForebayError):  # the first error says what to do
            delete(names)
        raise
    delete(names)
    if winners > 1:
        raise ConfigurationError(
            f"the store at {client.server} let {winners} of {WRITERS} simultaneous writers create one object below "
            f"{location!r}: it ignores If-None-Match, or overwrites an object that exists, so two queries or two "
            "attempts of a task could both commit",
            option=OPTION,
            advice=OTHER_STORE,
        )
    if not won:
        raise RetriableError(
            f"the store at {client.server} could not be probed: it reports new objects below {location!r} as existing",
            option=OPTION,
            advice="check whether a proxy or the network loses answers of the store",
        )


def _winners(put: Put, name: str) -> int:
    """Let several writers create one object at the same time; return how many of them succeeded."""
    writers = [Background(partial(_outcome, put, name, body), "forebay-s3-probe") for body in _bodies(WRITERS)]
    outcomes = [writer.result() for writer in writers]
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return outcomes.count(True)


def _outcome(put: Put, name: str, body: Callable[[], bytes | BinaryIO]) -> bool | Exception:
    try:
        return put(name, body)
    except Exception as error:  # noqa: BLE001 - raised when all writers have ended
        return error


def _bodies(count: int) -> list[Callable[[], bytes | BinaryIO]]:
    """Return functions that make the body of a request: for a first attempt one that waits for the other writers."""
    barrier = threading.Barrier(count)

    def bodies(number: int) -> Callable[[], bytes | BinaryIO]:
        content = bytes([number]) * 2 * _HALF
        first = iter([_HeldBody(content, barrier)])
        return lambda: next(first, content)

    return [bodies(number) for number in range(count)]


class _HeldBody(io.BytesIO):
    """A body whose second half is read only when the other writers have read their first half."""

    def __init__(self, content: bytes, barrier: threading.Barrier) -> None:
        super().__init__(content)
        self._barrier: threading.Barrier | None = barrier  # None: this body has waited, and is sent again
        self.sending = False
        """Whether the request is being sent; before, botocore reads the body to sign it."""

    def read(self, size: int | None = -1) -> bytes:
        if not self.sending:
            return super().read(size)
        if self.tell() >= _HALF and self._barrier is not None:
            barrier, self._barrier = self._barrier, None
            with suppress(threading.BrokenBarrierError):
                barrier.wait(_PATIENCE)
        return super().read(_HALF)


def _hold(request: Any, **_: object) -> None:  # noqa: ANN401 - botocore has no types
    """Let the body of a request wait while it is sent, without a question to the server before it."""
    if isinstance(request.body, _HeldBody):
        request.body.sending = True
        if "Expect" in request.headers:
            del request.headers["Expect"]
