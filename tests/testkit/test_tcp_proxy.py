# SPDX-License-Identifier: Apache-2.0
"""The TCP proxy delays, stops and ends connections, and goes on afterwards."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Iterator

import pytest

from forebay.testkit import TcpProxy


class Echo(socketserver.StreamRequestHandler):
    """Returns each line; after "end" it sends a megabyte and ends the connection."""

    def handle(self) -> None:
        for line in self.rfile:
            if line == b"end\n":
                self.wfile.write(bytes(1_000_000))
                return
            self.wfile.write(line)


@pytest.fixture
def proxy() -> Iterator[TcpProxy]:
    socketserver.ThreadingTCPServer.daemon_threads = True
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with TcpProxy(f"127.0.0.1:{server.server_address[1]}") as running:
            yield running
        server.shutdown()


@pytest.fixture
def client(proxy) -> Iterator[socket.socket]:
    with connected(proxy) as opened:
        yield opened


def connected(proxy: TcpProxy) -> socket.socket:
    host, _, port = proxy.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def ask(client: socket.socket, text: bytes) -> bytes:
    client.sendall(text + b"\n")
    return client.recv(100).rstrip()


@pytest.mark.parametrize("direction", ["to_server", "to_client"])
def test_each_direction_is_delayed_by_itself(proxy, client, direction):
    setattr(proxy, direction, 0.2)
    began = time.monotonic()
    assert ask(client, b"a") == b"a"
    assert time.monotonic() - began >= 0.2


def test_what_was_sent_while_stalled_comes_later(proxy, client):
    assert ask(client, b"a") == b"a"
    proxy.stall()
    client.sendall(b"b\n")
    client.settimeout(0.1)
    with pytest.raises(TimeoutError):
        client.recv(100)
    proxy.resume()
    client.settimeout(30)
    assert client.recv(100) == b"b\n"


def test_a_cut_ends_all_connections_until_it_is_resumed(proxy, client):
    assert ask(client, b"a") == b"a"
    proxy.cut()
    assert ended(client)
    with connected(proxy) as refused:
        assert ended(refused)
    proxy.resume()
    with connected(proxy) as again:
        assert ask(again, b"c") == b"c"


def test_the_last_bytes_of_a_server_that_ends_the_connection_arrive(client):
    client.sendall(b"end\n")
    received = 0
    while part := client.recv(1 << 20):
        received += len(part)
    assert received == 1_000_000


def test_a_proxy_without_a_server_ends_connections():
    with TcpProxy() as alone, connected(alone) as client:
        assert ended(client)


def ended(client: socket.socket) -> bool:
    try:
        return client.recv(100) == b""
    except ConnectionError:
        return True
