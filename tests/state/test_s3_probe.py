# SPDX-License-Identifier: Apache-2.0
"""The probe of `If-None-Match`: servers that check and then write, that overwrite, and that lose answers."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import pytest

from forebay.errors import ConfigurationError, RetriableError
from forebay.state import s3_state_store
from forebay.state.s3_state_store import S3StateStore
from forebay.stores.store import StorageOptions


class Double:
    """A server of S3 for PUT and DELETE.

    Args:
        kind: `atomic` compares and writes in one step. `checks at the head` looks for the object before it reads the
            body, `checks at the end` after that, and both write a moment later. `overwrites` ignores the condition.
        lost: Number of first answers to successful writes that are lost: the connection ends without them.
    """

    def __init__(self, kind: str, *, lost: int = 0) -> None:
        self.objects: dict[str, bytes] = {}
        self.lost = lost
        self.puts = 0
        lock = threading.Lock()
        double = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def _body(self) -> bytes:
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))

            def _answer(self, status: int, body: bytes = b"") -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_PUT(self) -> None:
                assert self.headers["If-None-Match"] == "*"
                double.puts += 1
                exists = self.path in double.objects
                body = self._body()
                if kind != "checks at the head":
                    exists = self.path in double.objects
                if kind.startswith("checks"):
                    time.sleep(0.02)
                with lock:
                    exists = self.path in double.objects if kind == "atomic" else exists and kind != "overwrites"
                    if not exists:
                        double.objects[self.path] = body
                    lose = not exists and double.lost > 0
                    double.lost -= lose
                if lose:
                    self.close_connection = True
                elif exists:
                    self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
                else:
                    self._answer(200)

            def do_POST(self) -> None:
                body = self._body().decode()
                bucket = self.path.partition("?")[0]
                for part in body.split("<Key>")[1:]:
                    double.objects.pop(f"{bucket}/{part.partition('</Key>')[0]}", None)
                self._answer(200, b"<DeleteResult/>")

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def store(self) -> S3StateStore:
        options = {"key": "the-key-id", "secret": "the-secret-text", "endpoint_url": self.url}
        return S3StateStore("s3://state/chk", StorageOptions(options))


@pytest.fixture(autouse=True)
def no_probed_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_state_store, "_probed", set())


@pytest.mark.parametrize("kind", ["checks at the head", "checks at the end", "overwrites"])
def test_a_store_that_lets_two_writers_win_is_refused_before_the_first_write(kind: str) -> None:
    with Double(kind) as double:
        store = double.store()
        with pytest.raises(ConfigurationError, match="simultaneous writers create one object"):
            store.put_if_absent("a", b"mine")
        with pytest.raises(ConfigurationError, match="simultaneous writers create one object") as caught:
            store.put_if_absent("a", b"mine")  # it is not taken for probed
        assert double.objects == {}
    assert double.url.removeprefix("http://") in str(caught.value)
    assert caught.value.option == "stateLocation" and "If-None-Match: *" in str(caught.value.advice)
    assert "the-secret-text" not in str(caught.value) and "the-key-id" not in str(caught.value)


def test_a_store_that_compares_and_writes_in_one_step_is_probed_once() -> None:
    with Double("atomic") as double:
        store = double.store()
        assert store.put_if_absent("a", b"mine") is True
        probes = double.puts - 1
        assert double.objects == {"/state/chk/a": b"mine"}
        assert double.store().put_if_absent("a", b"yours") is False
        assert double.puts == probes + 2
    assert 2 <= probes <= 50


def test_a_lost_answer_is_not_taken_for_a_second_winner() -> None:
    with Double("atomic", lost=2) as double:
        assert double.store().put_if_absent("a", b"mine") is True
        assert double.objects == {"/state/chk/a": b"mine"}


def test_a_store_that_loses_all_answers_is_retriable() -> None:
    with Double("atomic", lost=1_000_000) as double:
        store = double.store()
        with pytest.raises(RetriableError, match="could not be probed") as raised:
            store.put_if_absent("a", b"mine")
        assert raised.value.option == "stateLocation" and raised.value.advice
        assert double.objects == {}
        double.lost = 0
        assert store.put_if_absent("a", b"mine") is True
