# SPDX-License-Identifier: Apache-2.0
"""A feed of events for each region, read by cursors from a service that limits the rate and fails now and then.

The end of a feed is unknown until it is read, so a stream of it on Spark needs the option `stateLocation`.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pyarrow as pa

import forebay
from forebay import Batch, Secret, SimpleSource, Split, option


class RestFeed(SimpleSource):
    """A position is (events so far, cursor), because cursors have no order."""

    bounded = False
    url: str = option(doc="base address of the service")
    token: Secret = option(default=Secret(""), doc="bearer token; also env:NAME or file:/path")
    page_rows: int = option(default=100, doc="events asked for in one request")

    def schema(self) -> pa.Schema:
        return pa.schema({"region": pa.string(), "n": pa.int64(), "text": pa.string()})

    def splits(self) -> Iterable[str]:
        return self.get("regions")

    def read(self, split: Split) -> Iterator[Batch]:
        count, cursor = split.position or (0, "")
        while page := self.get("events", split.id, region=split.id, after=cursor, limit=self.page_rows):
            if split.end is not None:
                page = page[: split.end[0] - count]  # the page may have grown since the end was fixed
            count, cursor = count + len(page), page[-1]["cursor"]
            yield Batch([(event["region"], event["n"], event["text"]) for event in page], (count, cursor))
            if (count, cursor) == split.end:
                return

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token.reveal()}"} if self.token.reveal() else {}

    def get(self, path: str, split: str | None = None, **query: object) -> Any:
        request = Request(f"{self.url}/{path}?{urlencode(query)}", headers=self.headers)
        with forebay.http_errors(path, split=split, option="token"), urlopen(request, timeout=10) as response:
            return json.load(response)
