# SPDX-License-Identifier: Apache-2.0
"""Takes answers of OpenSearch apart, and reads them until a deadline: what answers may be anything.

Functions that take an answer apart raise one of `UNREADABLE` for one that OpenSearch does not give.
"""

from __future__ import annotations

import io
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPResponse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket

    from opensearchpy import OpenSearch

Hit = Mapping[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What became of a document that was written.

    Args:
        status: The code of HTTP.
        kind: The type of the error; an empty text: there is none.
        reason: The error.
    """

    status: int
    kind: str
    reason: str


def outcomes_of(answer: Mapping[str, Any], size: int) -> list[Outcome]:
    """Return what became of the documents of a bulk request, which are so many."""
    outcomes = [_outcome(item) for item in answer["items"]]
    if len(outcomes) != size:
        raise TypeError("another number of items")
    return outcomes


def _outcome(item: object) -> Outcome:
    match item:
        case {"index": {"status": int(status), "error": {"type": str(kind), **rest}}}:
            return Outcome(status, kind, str(rest.get("reason", "")))
        case {"index": {"status": int(status)}}:
            return Outcome(status, "", "")
    raise TypeError("no item of a bulk request")


def hits_of(answer: Mapping[str, Any], body: Mapping[str, Any]) -> Sequence[Hit]:
    """Return the hits of a search, which have an id, and what was asked of them: a version, values that sort them."""
    hits = answer["hits"]["hits"]
    kinds: dict[str, type] = {"_id": str}
    if "version" in body:
        kinds["_version"] = int
    if "sort" in body:
        kinds["sort"] = list
    if not isinstance(hits, list) or not all(
        isinstance(hit[name], kind) for hit in hits for name, kind in kinds.items()
    ):
        raise TypeError("no hits")
    return hits


def text_of(value: object) -> str:
    """Return a text of an answer."""
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def give_up_after(client: OpenSearch, seconds: float) -> None:
    """Let a client wait so long for an answer as a whole; a limit of the client is one for each part of it."""

    class Answer(HTTPResponse):
        """An answer with a deadline."""

        def __init__(self, sock: socket.socket, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - of http.client
            super().__init__(sock, *arguments, **options)
            self.fp = io.BufferedReader(_Until(self.fp, sock, seconds))

    for connection in client.transport.connection_pool.connections:
        pool = connection.pool
        pool.ConnectionCls = type("Connection", (pool.ConnectionCls,), {"response_class": Answer})


class _Until(io.RawIOBase):
    """What comes from a socket until a deadline.

    Args:
        received: The file of the socket.
        sock: The socket.
        seconds: The time from now on.
    """

    def __init__(self, received: io.BufferedReader, sock: socket.socket, seconds: float) -> None:
        super().__init__()
        self._received = received
        self._sock = sock
        self._seconds = seconds
        self._end = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - of io
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"the answer is not whole after {self._seconds:g} s")
        self._sock.settimeout(left)
        return self._received.readinto1(buffer)

    def close(self) -> None:
        if not self.closed:
            self._received.close()
        super().close()
