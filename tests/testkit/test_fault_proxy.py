# SPDX-License-Identifier: Apache-2.0
"""The fault proxy in front of `http.server`: what passes unchanged, what each fault does, and what is counted."""

from __future__ import annotations

import http.client
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from forebay.errors import ConfigurationError
from forebay.testkit import Fault, FaultProxy

DATA = bytes(range(256)) * 4000
ETAG = '"00112233"'


class Handler(BaseHTTPRequestHandler):
    """Serves DATA, whole, in ranges or in chunks; keeps what is put; shows the headers that came."""

    protocol_version = "HTTP/1.1"
    server: Server

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.seen.append(dict(self.headers))
        if self.headers.get("If-Match", ETAG) != ETAG:
            self.send_error(412)
            return
        if self.path == "/chunked":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for start in range(0, len(DATA), 100_000):
                part = DATA[start : start + 100_000]
                self.wfile.write(f"{len(part):x};note=1\r\n".encode() + part + b"\r\n")
            self.wfile.write(b"0\r\nX-Trailer: 1\r\n\r\n")
            return
        if self.path == "/endless":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(DATA)
            self.close_connection = True
            return
        wanted = DATA
        if text := self.headers.get("Range"):
            first, last = text.removeprefix("bytes=").split("-")
            wanted = DATA[int(first) : int(last) + 1]
        self.send_response(206 if text else 200)
        self.send_header("Content-Length", str(len(wanted)))
        self.send_header("ETag", ETAG)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(wanted)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        self.server.kept[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def handle_expect_100(self) -> bool:
        if self.path == "/refused":
            self.send_error(403)
            return False
        return super().handle_expect_100()

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[dict[str, str]] = []
        self.kept: dict[str, bytes] = {}
        self.connections = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(server: Server) -> Iterator[FaultProxy]:
    with FaultProxy(server.url, seed=7) as proxy:
        yield proxy


def connect(proxy: FaultProxy, timeout: float = 20.0) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(proxy.url.removeprefix("http://"), timeout=timeout)


def get(proxy: FaultProxy, path: str = "/data", **headers: str) -> tuple[int, bytes, str | None]:
    connection = connect(proxy)
    try:
        connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.getheader("ETag")
    finally:
        connection.close()


@pytest.mark.parametrize("path", ["/data", "/chunked", "/endless"])
def test_bodies_pass_whatever_ends_them(proxy: FaultProxy, path: str) -> None:
    assert get(proxy, path)[:2] == (200, DATA)


def test_one_connection_serves_many_requests(server: Server, proxy: FaultProxy) -> None:
    connection = connect(proxy)
    for method, path, expected in [("GET", "/data", DATA), ("HEAD", "/data", b""), ("GET", "/chunked", DATA)]:
        connection.request(method, path)
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, expected)
    connection.request("GET", "/data", headers={"Range": "bytes=10-19"})
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (206, DATA[10:20])
    connection.close()
    assert server.connections == 1
    assert proxy.operations() == {"GET": 2, "HEAD": 1, "GET range": 1}
    assert proxy.requests[-1] == ("GET", "/data", "bytes=10-19", None)


def test_the_server_sees_the_headers_of_the_client(server: Server, proxy: FaultProxy) -> None:
    """A signature covers Host, which names the proxy."""
    assert get(proxy, If_Match='"other"')[0] == 412
    assert server.seen == [
        {"Host": proxy.url.removeprefix("http://"), "Accept-Encoding": "identity", "If-Match": '"other"'}
    ]


def test_a_body_waits_for_the_servers_word(server: Server, proxy: FaultProxy) -> None:
    with socket.create_connection((proxy.url.split("/")[2].split(":")[0], int(proxy.url.rsplit(":", 1)[1]))) as client:
        client.settimeout(20)
        client.sendall(b"PUT /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
        assert client.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"hello")
        assert client.recv(1000).startswith(b"HTTP/1.1 200 OK\r\n")
        client.sendall(b"PUT /refused HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 403 ")
    assert server.kept == {"/a": b"hello"}


def test_a_process_may_have_more_files_than_select_knows(proxy: FaultProxy) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    with ExitStack() as stack:
        for _ in range(1050):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        connection = connect(proxy)
        for method in ("GET", "PUT", "GET"):
            connection.request(method, "/a", body=b"hello", headers={"Expect": "100-continue"})
            assert connection.getresponse().read() == (DATA if method == "GET" else b"")
        connection.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_body_may_come_before_the_servers_word(server: Server, proxy: FaultProxy) -> None:
    connection = connect(proxy)
    connection.request("PUT", "/a", body=DATA, headers={"Expect": "100-continue"})
    assert connection.getresponse().read() == b""
    connection.close()
    assert server.kept == {"/a": DATA}


@pytest.mark.parametrize(
    ("kind", "status", "code"), [("internal_error", 500, "InternalError"), ("slow_down", 503, "SlowDown")]
)
def test_refusals_are_those_of_s3_and_keep_the_connection(
    server: Server, proxy: FaultProxy, kind: str, status: int, code: str
) -> None:
    proxy.inject(Fault(kind, nth=(1, 2)))
    connection = connect(proxy)
    connection.request("PUT", "/a", body=b"hello", headers={"Expect": "100-continue"})
    answer = connection.getresponse()
    assert (answer.status, f"<Code>{code}</Code>" in answer.read().decode()) == (status, True)
    connection.request("HEAD", "/data")
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (status, b"")
    connection.request("GET", "/data")
    assert connection.getresponse().read() == DATA
    connection.close()
    assert server.kept == {}
    assert server.connections == 1


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("cut_before_head", http.client.RemoteDisconnected),
        ("cut_after_head", http.client.IncompleteRead),
        ("truncate", http.client.IncompleteRead),
        ("reset", ConnectionResetError),
        ("reset_in_body", ConnectionResetError),
    ],
)
def test_a_broken_connection_is_seen_by_the_client(proxy: FaultProxy, kind: str, error: type[Exception]) -> None:
    proxy.inject(Fault(kind, nth=(1,)))
    with pytest.raises(error) as caught:
        get(proxy)
    if kind == "truncate":
        assert isinstance(caught.value, http.client.IncompleteRead)
        assert len(caught.value.partial) == len(DATA) // 2
    assert get(proxy)[:2] == (200, DATA)
    assert [request.fault for request in proxy.requests] == [kind, None]


def test_a_client_that_reads_slowly_gets_half_of_the_body_before_the_reset(proxy: FaultProxy) -> None:
    """RST discards what the proxy's kernel has not sent, which is much if the client's receive buffer is full."""
    proxy.inject(Fault("reset_in_body"))
    received = 0
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 10)
        client.connect(("127.0.0.1", urlsplit(proxy.url).port or 0))
        client.sendall(b"GET /data HTTP/1.1\r\nHost: x\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            while piece := client.recv(8 << 10):
                received += len(piece)
                threading.Event().wait(0.002)
    assert received > len(DATA) // 2 - (128 << 10)


@pytest.mark.parametrize(("kind", "kept"), [("cut_before_head", {"/a": b"hello"}), ("reset", {})])
def test_a_lost_answer_leaves_the_work_done_and_a_lost_request_does_not(
    server: Server, proxy: FaultProxy, kind: str, kept: dict[str, bytes]
) -> None:
    proxy.inject(Fault(kind, method="PUT"))
    connection = connect(proxy)
    with pytest.raises(ConnectionError):
        connection.request("PUT", "/a", body=b"hello")
        connection.getresponse()
    connection.close()
    assert server.kept == kept


def test_a_chunked_body_is_cut_inside_a_chunk(proxy: FaultProxy) -> None:
    proxy.inject(Fault("truncate"))
    with pytest.raises(http.client.IncompleteRead):
        get(proxy, "/chunked")


def test_a_changed_object_has_another_etag_and_does_not_match(server: Server, proxy: FaultProxy) -> None:
    proxy.inject(Fault("changed"))
    status, body, etag = get(proxy)
    assert (status, body, etag not in (None, ETAG)) == (200, DATA, True)
    assert get(proxy, If_Match=ETAG)[0] == 412


def test_a_delay_is_as_long_as_the_rule_says(proxy: FaultProxy) -> None:
    proxy.inject(Fault("delay", seconds=0.3))
    began = time.monotonic()
    assert get(proxy)[0] == 200
    assert time.monotonic() - began >= 0.3


def test_silence_lasts_until_the_client_gives_up(proxy: FaultProxy) -> None:
    proxy.inject(Fault("silence"))
    connection = connect(proxy, timeout=0.2)
    connection.request("GET", "/data")
    with pytest.raises(TimeoutError):
        connection.getresponse()
    connection.close()


@pytest.mark.parametrize("kind", ["silence", "delay"])
def test_closing_ends_what_waits(server: Server, kind: str) -> None:
    before = set(threading.enumerate())
    with FaultProxy(server.url, Fault(kind, seconds=600)) as proxy:
        connection = connect(proxy)
        connection.request("GET", "/data")
        while not proxy.requests:
            time.sleep(0.01)
    with pytest.raises(ConnectionError):
        connection.getresponse()
    connection.close()
    left = [thread for thread in threading.enumerate() if thread not in before and not thread.daemon]
    assert left == [], "the server's own threads are daemons"


def test_rules_select_by_method_path_and_number(proxy: FaultProxy) -> None:
    proxy.inject(Fault("slow_down", method="GET", path="*a b*", nth=(2,)), Fault("internal_error", path="/list?*"))
    statuses = [
        get(proxy, path)[0] for path in ("/a%20b", "/data", "/a%20b?versionId=1", "/a%20b", "/list?list-type=2")
    ]
    assert statuses == [200, 200, 503, 200, 500]
    assert proxy.operations() == {"GET": 4, "GET list": 1}
    proxy.inject()
    proxy.forget()
    assert get(proxy)[0] == 200
    assert proxy.operations() == {"GET": 1}


def test_the_seed_decides_whatever_the_order_of_threads(server: Server) -> None:
    def refused(seed: int) -> int:
        with FaultProxy(server.url, Fault("slow_down", probability=0.3), seed=seed) as proxy:
            with ThreadPoolExecutor(4) as pool:
                statuses = list(pool.map(lambda _: get(proxy, Range="bytes=0-1")[0], range(60)))
            assert statuses.count(503) == sum(request.fault == "slow_down" for request in proxy.requests)
            return statuses.count(503)

    counts = [refused(seed) for seed in (1, 1, 2, 2)]
    assert counts[0] == counts[1] and counts[2] == counts[3]
    assert 5 < min(counts) <= max(counts) < 31


def test_mistakes_are_named(server: Server) -> None:
    with pytest.raises(ConfigurationError, match="'slow' is not a kind of fault"):
        Fault("slow")
    with pytest.raises(ConfigurationError, match=r"1\.5 is not between 0 and 1"):
        Fault("delay", probability=1.5)
    with pytest.raises(ConfigurationError, match="needs an http:// URL"):
        FaultProxy("https://127.0.0.1:1")
