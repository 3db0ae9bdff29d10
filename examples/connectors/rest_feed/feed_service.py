# SPDX-License-Identifier: Apache-2.0
"""The small service that `rest_feed.py` reads: events by cursors, on this machine only."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit


class FeedService:
    """Serves events; usable as a context manager.

    Args:
        refuse_each: Every n-th request gets status 429 with `Retry-After`; 0 for none.
        fail_each: Every n-th request gets status 500; 0 for none.
        pause: What `Retry-After` says, in seconds.
        token: The bearer token that requests need; "" for none.
    """

    def __init__(self, refuse_each: int = 0, fail_each: int = 0, pause: str = "1", token: str = "") -> None:
        self.answers: Counter[int] = Counter()
        self._events: dict[str, list[dict[str, Any]]] = {}
        self._numbers: dict[str, int] = {"": 0}
        self._refuse_each, self._fail_each, self._pause = refuse_each, fail_each, pause
        self._token = token
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def add_events(self, region: str, count: int) -> list[dict[str, Any]]:
        """Let more events arrive in a region, which may be new; return them."""
        with self._lock:
            events = self._events.setdefault(region, [])
            new: list[dict[str, Any]] = []
            for n in range(len(events), len(events) + count):
                new.append({"region": region, "n": n, "text": f"event {n}"})
                cursor = hashlib.sha256(f"{region} {n}".encode()).hexdigest()[:12]
                self._numbers[cursor] = n + 1
                events.append(new[-1] | {"cursor": cursor})
        return new

    def answer(self, path: str, query: dict[str, str]) -> tuple[int, object]:
        """Return the status and the answer to one request."""
        with self._lock:
            number = self.answers.total() + 1
            for each, status in ((self._refuse_each, 429), (self._fail_each, 500)):
                if each and number % each == 0:
                    self.answers[status] += 1
                    return status, None
            self.answers[200] += 1
            if path == "/regions":
                return 200, list(self._events)
            start = self._numbers[query.get("after", "")]
            return 200, self._events[query["region"]][start : start + int(query["limit"])]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                status, answer = service.answer(parts.path, query)
                if service._token and self.headers["Authorization"] != f"Bearer {service._token}":
                    status, answer = 401, None
                self.send_response(status)
                if status == 429:
                    self.send_header("Retry-After", service._pause)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            def log_message(self, *_: object) -> None:
                """Keep quiet."""

        return Handler
