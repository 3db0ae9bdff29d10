# SPDX-License-Identifier: Apache-2.0
"""A paginated REST service: partitioned by region, resumable at any page, with event times.

Run it: ``python examples/rest_orders.py`` (it starts a small service of its own).
"""

import json
from collections.abc import Iterable, Iterator
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pyarrow as pa

import forebay
from forebay import Batch, Secret, SimpleSource, Split, option


class Orders(SimpleSource):
    bounded = False
    event_time = "updated_at"
    url: str = option(doc="base address of the service")
    token: Secret = option(default=Secret(""), doc="access token; also env:NAME or file:/path")
    page_rows: int = option(default=500, doc="orders asked for in one request")

    def schema(self) -> pa.Schema:
        return pa.schema(
            {"id": pa.int64(), "region": pa.string(), "total": pa.float64(), "updated_at": pa.timestamp("us", "UTC")}
        )

    def splits(self) -> Iterable[str]:
        return self.get("regions")

    def latest(self, split: Split) -> int:
        return self.get("newest", region=split.id) + 1

    def read(self, split: Split) -> Iterator[Batch]:
        at = split.position or 0
        while page := self.get("orders", region=split.id, ge=at, lt=split.end, limit=self.page_rows):
            at = page[-1]["id"] + 1
            yield Batch(page, at)

    def get(self, path: str, **query: object):
        request = Request(f"{self.url}/{path}?{urlencode(query)}", headers={"Authorization": self.token.reveal()})
        with forebay.http_errors(path, option="token"), urlopen(request, timeout=10) as response:
            return json.load(response)


if __name__ == "__main__":
    from order_service import OrderService

    with OrderService(orders=2_000) as service:
        orders = Orders(url=service.url)
        print(forebay.describe(orders))
        print(forebay.peek(orders, 5))
