# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy between a client and a server of a test: it delays bytes, stops forwarding, and ends connections."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

_HOST: Final = "127.0.0.1"

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
        return f"{_HOST}:{self._port}"

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
        server = await asyncio.start_server(self._connected, _HOST, 0)
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
