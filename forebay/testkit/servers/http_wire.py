# SPDX-License-Identifier: Apache-2.0
"""Reads HTTP/1.1 messages from a socket, and keeps their bytes unchanged."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace

_RECEIVE = 256 * 1024
_MOST_HEAD = 1024 * 1024


@dataclass(frozen=True)
class Head:
    """The first line and the headers of a message.

    Args:
        raw: The bytes of the head, with the empty line at the end.
    """

    raw: bytes

    @property
    def words(self) -> list[str]:
        """The three parts of the first line: method, target and version; or version, status and reason."""
        line = self.raw.split(b"\r\n", 1)[0].decode("latin-1")
        return [*line.split(" ", 2), "", ""][:3]

    @property
    def status(self) -> int:
        """The status of a response."""
        return int(self.words[1])

    def get(self, name: str) -> str | None:
        """Return the value of a header; None if there is none."""
        for line in self.raw.split(b"\r\n")[1:]:
            key, _, value = line.partition(b":")
            if key.decode("latin-1").lower() == name.lower():
                return value.decode("latin-1").strip()
        return None

    def with_header(self, name: str, value: str) -> Head:
        """Return a copy with a new value of the header `name`, or this head if it does not have that header."""
        lines = self.raw.split(b"\r\n")
        for number, line in enumerate(lines[1:], 1):
            if line.partition(b":")[0].decode("latin-1").lower() == name.lower():
                lines[number] = f"{name}: {value}".encode("latin-1")
        return replace(self, raw=b"\r\n".join(lines))


class Wire:
    """One end of an HTTP connection, for one thread.

    Args:
        connection: The connected socket; closing it is the owner's task.
    """

    def __init__(self, connection: socket.socket) -> None:
        # Head and body are written one after the other: with Nagle's algorithm the body would wait for an
        # acknowledgement.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connection
        self.buffered = b""

    def send(self, data: bytes) -> None:
        """Write all of `data`. Raises OSError when the connection is broken."""
        self.socket.sendall(data)

    def head(self) -> Head | None:
        """Return the head of the next message; None at the end of the connection.

        Raises:
            ConnectionError: The connection ended inside the head, or the head is longer than 1 MB.
        """
        while (end := self.buffered.find(b"\r\n\r\n")) < 0:
            if not self._more():
                if self.buffered:
                    raise ConnectionError("the connection ended inside the head of an HTTP message")
                return None
            if len(self.buffered) > _MOST_HEAD:
                raise ConnectionError("the head of an HTTP message is too long")
        return Head(self._take(end + 4))

    def body(self, head: Head, *, to_end: bool = False) -> Iterator[bytes]:
        """Yield the bytes of the body that follows a head, as they are on the wire: also the sizes of chunks.

        Args:
            head: The head of the same message.
            to_end: Whether a message without Content-Length and chunks has a body, which ends with the connection.

        Raises:
            ConnectionError: The connection ended inside the body.
        """
        if (head.get("Transfer-Encoding") or "").lower().endswith("chunked"):
            yield from self._chunks()
        elif (length := head.get("Content-Length")) is not None:
            yield from self._exactly(int(length))
        elif to_end:
            while self.buffered or self._more():
                yield self._take(len(self.buffered))

    def _chunks(self) -> Iterator[bytes]:
        while True:
            line = self._line()
            yield line
            size = int(line.split(b";")[0], 16)
            if not size:
                break
            yield from self._exactly(size + 2)
        while (line := self._line()) != b"\r\n":  # trailers
            yield line
        yield line

    def _exactly(self, count: int) -> Iterator[bytes]:
        while count:
            if not self.buffered:
                self._must_have_more()
            piece = self._take(min(count, len(self.buffered)))
            count -= len(piece)
            yield piece

    def _line(self) -> bytes:
        while (end := self.buffered.find(b"\r\n")) < 0:
            self._must_have_more()
        return self._take(end + 2)

    def _must_have_more(self) -> None:
        if not self._more():
            raise ConnectionError("the connection ended inside the body of an HTTP message")

    def _more(self) -> bool:
        data = self.socket.recv(_RECEIVE)
        self.buffered += data
        return bool(data)

    def _take(self, count: int) -> bytes:
        taken, self.buffered = self.buffered[:count], self.buffered[count:]
        return taken
