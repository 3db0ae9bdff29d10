# SPDX-License-Identifier: Apache-2.0
"""Proxies on loopback between a client and a server of a test.

`FaultProxy`, in front of an HTTP or S3 server, makes requests fail by rule and counts them. `TcpProxy` delays bytes,
stops forwarding, and ends connections.
"""

from __future__ import annotations

import asyncio
import random
import selectors
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from socketserver import BaseRequestHandler, ThreadingTCPServer
from types import TracebackType
from typing import Final, Literal, NamedTuple, Self, get_args
from urllib.parse import unquote, urlsplit

from forebay.errors import ConfigurationError

# -- The rules of the fault proxy: which requests fail, and how.


FaultKind = Literal[
    "delay",
    "internal_error",
    "slow_down",
    "changed",
    "reset",
    "cut_before_head",
    "cut_after_head",
    "truncate",
    "reset_in_body",
    "silence",
]


@dataclass(frozen=True)
class Fault:
    """A rule: which requests fail, and how.

    Args:
        kind: What happens to the request. docs/writing-a-source.md explains the kinds.
        method: The HTTP method of the requests that match; None for every method.
        path: Only requests whose path with query, decoded, matches this pattern (`*`, `?`, `[…]`).
        nth: The numbers of the matching requests to fail, counted from 1; empty for all.
        probability: The probability of the fault for a matching request.
        seconds: How long `delay` waits.

    Raises:
        ConfigurationError: The kind is unknown, or the probability is not between 0 and 1.
    """

    kind: FaultKind
    method: str | None = None
    path: str = "*"
    nth: Collection[int] = ()
    probability: float = 1.0
    seconds: float = 0.1

    def __post_init__(self) -> None:
        if self.kind not in get_args(FaultKind):
            raise ConfigurationError(
                f"{self.kind!r} is not a kind of fault", advice=f"use one of: {', '.join(get_args(FaultKind))}"
            )
        if not 0 <= self.probability <= 1:
            raise ConfigurationError(
                f"a probability of {self.probability} is not between 0 and 1",
                advice="use 1 for every request, or 0.5 for every second one on average",
            )


class Request(NamedTuple):
    """A request that the proxy received.

    Args:
        method: The HTTP method.
        target: The path and query, as sent.
        range: The header `Range`; None if the request has none.
        fault: The kind of fault that the proxy injected; None if the proxy injected none.
    """

    method: str
    target: str
    range: str | None
    fault: FaultKind | None

    @property
    def operation(self) -> str:
        """The method; S3's listings and ranged reads have their own names: `GET list`, `GET range`, `GET`, `PUT`."""
        if "list-type=" in urlsplit(self.target).query:
            return f"{self.method} list"
        return self.method if self.range is None else f"{self.method} range"


class Rule:
    """A fault, and the number of requests that have matched it. Guarded by the proxy's lock."""

    def __init__(self, fault: Fault, seed: str) -> None:
        self.fault = fault
        self._matched = 0
        self._random = random.Random(seed)

    def selects(self, method: str, target: str) -> bool:
        """Count a request if it matches this rule; return whether the rule injects its fault into the request."""
        if self.fault.method not in (None, method) or not fnmatchcase(target, self.fault.path):
            return False
        self._matched += 1
        chosen = self._random.random() < self.fault.probability
        return chosen and (not self.fault.nth or self._matched in self.fault.nth)


HOST = "127.0.0.1"
# The status, code and message of the proxy's own answers.
_REFUSED: dict[str | None, tuple[str, str, str]] = {
    "internal_error": ("500 Internal Server Error", "InternalError", "We encountered an internal error."),
    "slow_down": ("503 Slow Down", "SlowDown", "Please reduce your request rate."),
    "changed": ("412 Precondition Failed", "PreconditionFailed", "A precondition did not hold."),
}
_RST = struct.pack("ii", 1, 0)  # SO_LINGER of zero seconds: closing sends RST instead of FIN
_SMALL = 4 << 10
"""The requested bytes of a send buffer, which the kernel raises to its minimum."""
_STOP_POLL = 0.02


class FaultProxy:
    """Forwards HTTP/1.1 to a server, in a `with` block, and injects faults. Any thread may call its methods.

    Requests and answers pass byte for byte, `Host` included, so that signed requests stay valid. Each connection of a
    client has its own connection to the server. No TLS.

    Args:
        server: The server's URL, such as `http://127.0.0.1:9000`.
        faults: The first rules; see `inject`.
        seed: Seeds the random choice of a rule with a `probability`. The same order of requests gives the same choice.
    """

    def __init__(self, server: str, *faults: Fault, seed: int = 0) -> None:
        parts = urlsplit(server)
        if parts.scheme != "http" or not parts.hostname:
            advice = "give the address of a server without TLS, such as http://127.0.0.1:9000"
            raise ConfigurationError(f"the proxy needs an http:// URL, not {server!r}", advice=advice)
        self._address = (parts.hostname, parts.port or 80)
        self._seed = seed
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._closing = threading.Event()
        self._requests: list[Request] = []
        self.inject(*faults)
        self._listener = _Listener(self)
        self._thread = threading.Thread(target=self._listener.serve_forever, args=(_STOP_POLL,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._listener.shutdown()
        self._closing.set()
        with self._lock:
            for each in self._sockets:
                with suppress(OSError):  # the other end was faster
                    each.shutdown(socket.SHUT_RDWR)
        self._listener.server_close()  # waits for the threads of all connections
        self._thread.join()

    @property
    def url(self) -> str:
        """The URL that clients connect to: `http://127.0.0.1:port`."""
        return f"http://{HOST}:{self._listener.server_address[1]}"

    @property
    def requests(self) -> list[Request]:
        """All requests since the start, or since `forget`."""
        with self._lock:
            return list(self._requests)

    def operations(self) -> Counter[str]:
        """Return how many requests of each operation came; see `Request.operation`."""
        return Counter(request.operation for request in self.requests)

    def forget(self) -> None:
        """Forget the requests so far."""
        with self._lock:
            self._requests.clear()

    def inject(self, *faults: Fault) -> None:
        """Replace all rules by `faults`, and restart the counts for `nth`. Without arguments, no request fails.

        If several rules select a request, the first one applies.
        """
        with self._lock:
            self._rules = [Rule(fault, f"{self._seed}/{number}") for number, fault in enumerate(faults)]

    def note(self, head: Head) -> Fault | None:
        """Record a request; return its fault, or None if no rule selects it. Called by each connection's thread."""
        method, target, _ = head.words
        with self._lock:
            selected = [rule.fault for rule in self._rules if rule.selects(method, unquote(target))]
            fault = selected[0] if selected else None
            self._requests.append(Request(method, target, head.get("Range"), None if fault is None else fault.kind))
        return fault

    def connect(self) -> socket.socket:
        """Return a new connection to the server. Called by each connection's thread."""
        return self.track(socket.create_connection(self._address))

    def track(self, connection: socket.socket) -> socket.socket:
        """Register a connection, which the proxy ends when it closes. Raise ConnectionError if the proxy is closed."""
        with self._lock:
            if self._closing.is_set():
                connection.close()
                raise ConnectionError("the proxy is closed")
            self._sockets.add(connection)
        return connection

    def release(self, connection: socket.socket) -> None:
        """Close a connection that was registered with `track`."""
        with self._lock:
            self._sockets.discard(connection)
        connection.close()

    def pause(self, seconds: float) -> None:
        """Wait for `seconds`, or until the proxy closes."""
        self._closing.wait(seconds)


class _Listener(ThreadingTCPServer):
    daemon_threads = False  # or closing would not wait for them
    request_queue_size = 128

    def __init__(self, proxy: FaultProxy) -> None:
        self.proxy = proxy
        super().__init__((HOST, 0), _Connection)


class _Connection(BaseRequestHandler):
    """Handles one connection of a client, and its connection to the server, on a thread of its own."""

    server: _Listener

    def setup(self) -> None:
        """Prepare the connection. Called by the listener, before `handle`."""
        self._proxy = self.server.proxy
        self._upstream: Wire | None = None

    def handle(self) -> None:
        """Forward requests until the client or the server closes its connection. Called by the listener."""
        # A broken connection is no error of a proxy: closing tells it to the other end.
        with suppress(OSError):
            self._client = Wire(self._proxy.track(self.request))
            while (head := self._client.head()) is not None and self._exchange(head, self._proxy.note(head)):
                pass
        if self._upstream is not None:
            self._proxy.release(self._upstream.socket)
        self._proxy.release(self.request)

    def _exchange(self, request: Head, fault: Fault | None) -> bool:
        """Answer one request; return whether the connection stays open."""
        kind = None if fault is None else fault.kind
        if fault is not None and kind == "delay":
            self._proxy.pause(fault.seconds)
        if kind == "reset":
            return self._reset()
        if kind == "silence":
            while self.request.recv(65536):  # until the client gives up, or the proxy closes
                pass
            return False
        if kind in _REFUSED and (kind != "changed" or request.get("If-Match")):
            return self._refuse(request, *_REFUSED[kind])
        return self._relay(request, kind)

    def _relay(self, request: Head, kind: FaultKind | None) -> bool:
        """Forward a request and its answer, up to the point where the fault ends the transfer."""
        server = self._server()
        answer = self._forward(request, server)
        if kind == "cut_before_head":
            return False
        if kind == "changed":
            answer = answer.with_header("ETag", '"00000000000000000000000000000000"')
        self._client.send(answer.raw)
        if kind == "cut_after_head":
            return False
        # HEAD and these statuses have no body, whatever Content-Length says.
        has_body = request.words[0] != "HEAD" and answer.status not in (204, 304)
        pieces = server.body(answer, to_end=True) if has_body else iter(())
        if kind == "reset_in_body":
            # RST discards what is in the send buffer; the reader of a busy machine would otherwise get almost nothing.
            self._client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SMALL)
        if kind in ("truncate", "reset_in_body"):
            self._send_half(pieces, int(answer.get("Content-Length") or 0))
            return kind == "reset_in_body" and self._reset()
        for piece in pieces:
            self._client.send(piece)
        return not has_body or any(answer.get(name) for name in ("Content-Length", "Transfer-Encoding"))

    def _server(self) -> Wire:
        """Return the open connection to the server. If none is open, or the server has closed it, open a new one."""
        if self._upstream is not None and _readable(self._upstream.socket, timeout=0):
            self._proxy.release(self._upstream.socket)
            self._upstream = None
        if self._upstream is None:
            self._upstream = Wire(self._proxy.connect())
        return self._upstream

    def _forward(self, request: Head, server: Wire) -> Head:
        """Send a request to the server; return the head of its final answer."""
        server.send(request.raw)
        # The client waits for the server's 100 Continue, but may send the body earlier.
        waits = _expects(request) and not self._client.buffered
        if waits and server.socket in _readable(self._client.socket, server.socket):
            answer = self._answer(server)
            if answer.status != 100:
                return answer  # the client sends no body now
            self._client.send(answer.raw)
        for piece in self._client.body(request):
            server.send(piece)
        while (answer := self._answer(server)).status < 200:
            self._client.send(answer.raw)
        return answer

    def _answer(self, server: Wire) -> Head:
        head = server.head()
        if head is None:
            raise ConnectionError("the server closed the connection without an answer")
        return head

    def _refuse(self, request: Head, status: str, code: str, message: str) -> bool:
        """Refuse a request as S3 does, after reading the body of the request."""
        if _expects(request):
            self._client.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        for _ in self._client.body(request):
            pass
        body = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{message}</Message></Error>'
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n"
        self._client.send((head if request.words[0] == "HEAD" else head + body).encode())
        return True

    def _send_half(self, pieces: Iterator[bytes], length: int) -> None:
        """Send the first half of a body to the client. If `length` is 0 (unknown), send half of the first piece."""
        left = length // 2
        for piece in pieces:
            part = piece[: left if length else len(piece) // 2]
            self._client.send(part)
            left -= len(part)
            if left <= 0:
                return

    def _reset(self) -> bool:
        self._client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST)
        return False


def _readable(*sockets: socket.socket, timeout: float | None = None) -> list[object]:
    """Wait until a socket has data or its peer has closed it; return all such sockets.

    Args:
        sockets: The sockets.
        timeout: Maximum seconds to wait; None for no limit.
    """
    with selectors.PollSelector() as selector:  # `select` knows only the first 1,024 files of a process
        for each in sockets:
            selector.register(each, selectors.EVENT_READ)
        return [key.fileobj for key, _ in selector.select(timeout)]


def _expects(request: Head) -> bool:
    return (request.get("Expect") or "").lower() == "100-continue"


# -- Reads HTTP/1.1 messages from a socket, and keeps their bytes unchanged.


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


# -- The proxy of any protocol over TCP.


_PIECE: Final = 64 << 10
"""Maximum bytes that are forwarded at once."""


class TcpProxy:
    """Forwards TCP connections to a server, from a thread of its own, in a `with` block.

    Attributes may be set and methods called at any time, from any thread.

    Args:
        target: `host:port` of the server. May be set later; until then, connections end at once.

    Attributes:
        to_server: Seconds for which each piece of up to 64 KiB to the server is held back.
        to_client: The same for each piece to the client.
    """

    def __init__(self, target: str = "") -> None:
        self.target = target
        self.to_server = 0.0
        self.to_client = 0.0
        self._cut = False
        self._port = 0
        self._connections: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="tcp-proxy", daemon=True)
        self._started = threading.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    @property
    def address(self) -> str:
        """`host:port` of the proxy."""
        return f"{HOST}:{self._port}"

    def stall(self) -> None:
        """Forward nothing more. Connections stay open, and bytes wait."""
        self._call(self._flowing.clear)

    def cut(self) -> None:
        """End all connections, and end each new connection at once."""
        self._cut = True
        self._call(lambda: [connection.cancel() for connection in self._connections])

    def resume(self) -> None:
        """Forward again, after `stall` or `cut`."""
        self._cut = False
        self._call(self._flowing.set)

    def _call(self, work: Callable[[], object]) -> None:
        """Run `work` on the proxy's thread, and wait until it is done."""

        async def call() -> None:
            work()

        asyncio.run_coroutine_threadsafe(call(), self._loop).result()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._flowing, self._closing = asyncio.Event(), asyncio.Event()
        self._flowing.set()
        server = await asyncio.start_server(self._connected, HOST, 0)
        self._port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._closing.wait()
        server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - the server runs this in a task
        self._connections.add(task)
        try:
            with suppress(OSError, asyncio.CancelledError):
                if not self._cut and self.target:
                    await self._forward(reader, writer)
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward both directions until one side ends the connection."""
        host, _, port = self.target.rpartition(":")
        from_server, to_server = await asyncio.open_connection(host, int(port))
        pipes = [
            asyncio.create_task(self._pipe(reader, to_server, lambda: self.to_server)),
            asyncio.create_task(self._pipe(from_server, writer, lambda: self.to_client)),
        ]
        try:
            await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
            for end in (to_server, writer):  # after the bytes that were read before the end
                end.close()
                await end.wait_closed()
        finally:
            for pipe in pipes:
                pipe.cancel()
            await asyncio.gather(*pipes, return_exceptions=True)
            to_server.transport.abort()

    async def _pipe(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: Callable[[], float]
    ) -> None:
        while data := await reader.read(_PIECE):
            await asyncio.sleep(delay())
            await self._flowing.wait()
            writer.write(data)
            await writer.drain()
