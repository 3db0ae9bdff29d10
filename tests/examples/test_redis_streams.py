# SPDX-License-Identifier: Apache-2.0
"""The source of Redis streams on a real server."""

from __future__ import annotations

import itertools

import pytest
import redis as client_library
from redis_streams import RedisStreams, after, time_of  # type: ignore[import-not-found]  # see conftest.py

import forebay
from forebay import ConfigurationError, RetriableError, Secret
from forebay.testkit import SourceContract, TcpProxy


@pytest.fixture
def server(redis):
    """A client of an empty server."""
    with client_library.Redis.from_url(redis, decode_responses=True) as client:
        client.flushall()
        yield client


class TestRedisStreams(SourceContract):
    @pytest.fixture(autouse=True)
    def streams(self, redis, server):
        self.url, self.server, self.keys, self.ids = redis, server, itertools.count(), itertools.count(1)

    def source(self):
        return RedisStreams(url=Secret(self.url), streams="orders:*", page_rows=2)

    def add_split(self):
        key = f"orders:{next(self.keys)}"
        self.server.xgroup_create(key, "none", mkstream=True)  # an empty stream
        return key

    def write(self, split_id, n):
        # Three entries a millisecond, so that numbers of one millisecond matter.
        ids = [f"{1_700_000_000_000 + number // 3}-{number % 3}" for number in itertools.islice(self.ids, n)]
        for entry in ids:
            self.server.xadd(split_id, {"id": entry}, id=entry)
        return [{"stream": split_id, "id": each, "time": time_of(each), "fields": [("id", each)]} for each in ids]


def test_streams_that_come_later_and_bounded_reads(redis, server):
    server.xadd("a", {"n": "1"})
    server.set("no stream", "text")
    source = RedisStreams(url=Secret(redis))
    with forebay.run(source, options=forebay.HostOptions(discovery_interval="10ms")) as batches:
        rows = next(iter(batches)).to_pylist()
        server.xadd("b", {"n": "2"})
        rows += next(iter(batches)).to_pylist()
    assert [(row["stream"], dict(row["fields"])) for row in rows] == [("a", {"n": "1"}), ("b", {"n": "2"})]
    assert forebay.run(source, until_caught_up=True).to_table().num_rows == 2


def test_the_largest_number_of_a_millisecond_ends_a_read(redis, server):
    server.xadd("a", {"n": "1"}, id="5-18446744073709551615")
    server.xadd("a", {"n": "2"}, id="6-0")
    assert after("5-18446744073709551615") == (6, 0)
    assert forebay.run(RedisStreams(url=Secret(redis), page_rows=1), until_caught_up=True).to_table().num_rows == 2


def test_cut_connections_are_tried_again(redis, server):
    for number in range(30):
        server.xadd("a", {"n": str(number)})
    host, port = redis.removeprefix("redis://").split(":")
    with TcpProxy(f"{host}:{port}") as proxy:
        source = RedisStreams(url=Secret(f"redis://{proxy.address}"), page_rows=3)
        with forebay.run(source, until_caught_up=True, options=forebay.HostOptions(retry_first_pause="1ms")) as batches:
            rows = next(iter(batches)).num_rows
            proxy.cut()
            proxy.resume()
            rows += batches.to_table().num_rows
    assert rows == 30


def test_a_server_that_is_away_and_a_wrong_password_are_told_apart(redis, server):
    with pytest.raises(RetriableError, match="Redis: "):
        list(RedisStreams(url=Secret("redis://127.0.0.1:1")).splits())
    server.config_set("requirepass", "right")
    host = redis.removeprefix("redis://")
    with pytest.raises(ConfigurationError, match="refused the password"):
        list(RedisStreams(url=Secret(f"redis://:wrong@{host}")).splits())
    server.config_set("requirepass", "")
