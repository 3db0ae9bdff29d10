# SPDX-License-Identifier: Apache-2.0
"""Redis streams as a source: a split for each stream whose key matches a pattern; a position is an entry id."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, TypeVar

import pyarrow as pa
import redis

import forebay
from forebay import Batch, ConfigurationError, RetriableError, Secret, SimpleSource, Split, option

T = TypeVar("T")
LARGEST = 2**64 - 1  # the largest number of an entry within a millisecond
SCHEMA = pa.schema(
    {
        "stream": pa.string(),
        "id": pa.string(),
        "time": pa.timestamp("ms", "UTC"),
        "fields": pa.map_(pa.string(), pa.string()),
    }
)


class RedisStreams(SimpleSource):
    """Entries of streams, in the order of their ids. Streams that are created later are found while the query runs."""

    bounded = False
    event_time = "time"
    url: Secret = option(doc="redis://host:port/db, with a password if needed; also env:NAME or file:/path")
    streams: str = option(default="*", doc="pattern of the keys, such as orders:*")
    page_rows: int = option(default=1_000, doc="entries asked for in one XRANGE")

    def schema(self) -> pa.Schema:
        return SCHEMA

    def splits(self) -> Iterable[str]:
        return self.call(lambda client: list(client.scan_iter(match=self.streams, _type="stream", count=1_000)))

    def latest(self, split: Split) -> tuple[int, int]:
        info = self.call(lambda client: client.xinfo_stream(split.id), split)
        return after(info["last-generated-id"])

    def advance(self, split: Split, rows: int) -> tuple[int, int]:
        page = self.page(split, rows)
        return after(page[-1][0]) if len(page) == rows else split.end

    def position_at(self, split: Split, event_time: int) -> tuple[int, int]:
        begin, end = split.position or (0, 0), split.end
        return min(max((-(-event_time // 1000), 0), tuple(begin)), tuple(end))

    def read(self, split: Split) -> Iterator[Batch]:
        while page := self.page(split, self.page_rows):
            split = split.at(after(page[-1][0]))
            yield Batch(
                [(split.id, entry, time_of(entry), list(fields.items())) for entry, fields in page], split.position
            )

    def page(self, split: Split, rows: int) -> list[Any]:
        start, (milliseconds, number) = split.position or (0, 0), split.end
        if tuple(start) >= (milliseconds, number):
            return []
        last = f"{milliseconds}-{number - 1}" if number else str(milliseconds - 1)  # the end is exclusive
        return self.call(lambda client: client.xrange(split.id, "-".join(map(str, start)), last, count=rows), split)

    @forebay.cached
    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url.reveal(), decode_responses=True, socket_timeout=10)

    def call(self, command: Callable[[Any], T], split: Split | None = None) -> T:
        """Run a command; sort its errors into those that pass and those that stay."""
        name = split.id if split else None
        try:
            return command(self.client)
        except redis.AuthenticationError as error:
            raise ConfigurationError(f"Redis refused the password: {error}", option="url") from error
        except (redis.ConnectionError, redis.TimeoutError) as error:
            raise RetriableError(f"Redis: {error}", split=name) from error
        except redis.ResponseError as error:
            advice = "take streams only, and give streams of deleted keys a pattern of their own"
            raise ConfigurationError(f"Redis: {error}", split=name, option="streams", advice=advice) from error


def after(entry: str) -> tuple[int, int]:
    """Return the position after an entry."""
    milliseconds, number = map(int, entry.split("-"))
    return (milliseconds, number + 1) if number < LARGEST else (milliseconds + 1, 0)


def time_of(entry: str) -> datetime:
    return datetime.fromtimestamp(int(entry.partition("-")[0]) / 1000, UTC)
