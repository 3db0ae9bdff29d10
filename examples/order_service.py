# SPDX-License-Identifier: Apache-2.0
"""The small REST service that `rest_orders.py` reads: orders of three regions, in pages, on this machine only."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

REGIONS = ("north", "south", "west")
START = 1_750_000_000_000_000  # the first order's time, in µs since 1970; order n comes n seconds later


class OrderService:
    """Serves deterministic orders; usable as a context manager.

    Args:
        orders: How many there are in all at first, dealt to the regions in turn.
        regions: The regions at first.
    """

    def __init__(self, orders: int = 0, regions: Sequence[str] = REGIONS) -> None:
        self._orders: dict[str, list[dict[str, Any]]] = {region: [] for region in regions}
        self._ids = itertools.count()
        for _, region in zip(range(orders), itertools.cycle(regions), strict=False):
            self.add_orders(region, 1)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.requests = 0

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def add_region(self) -> str:
        """Open a region without orders; return its name."""
        name = f"region {len(self._orders)}"
        self._orders[name] = []
        return name

    def add_orders(self, region: str, count: int) -> list[dict[str, Any]]:
        """Let more orders arrive in a region; return them."""
        ids = [next(self._ids) for _ in range(count)]
        new = [{"id": one, "region": region, "total": one * 0.25, "updated_at": START + one * 1_000_000} for one in ids]
        self._orders[region] += new
        return new

    def answer(self, path: str, query: dict[str, str]) -> object:
        """Return the answer to one request."""
        if path == "/regions":
            return list(self._orders)
        orders = self._orders[query["region"]]
        if path == "/newest":
            return orders[-1]["id"] if orders else -1
        start, stop, limit = int(query["ge"]), int(query["lt"]), int(query["limit"])
        return [order for order in orders if start <= order["id"] < stop][:limit]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                service.requests += 1
                url = urlsplit(self.path)
                body = json.dumps(service.answer(url.path, {k: v[0] for k, v in parse_qs(url.query).items()})).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Stay quiet."""

        return Handler
