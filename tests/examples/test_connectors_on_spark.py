# SPDX-License-Identifier: Apache-2.0
"""The packages of connectors pass the kit's part on Spark."""

from __future__ import annotations

import psycopg
import pytest
import redis as redis_client
from feed_service import FeedService  # type: ignore[import-not-found]  # see conftest.py
from postgres_table import PostgresChanges, PostgresTable  # type: ignore[import-not-found]
from redis_streams import RedisStreams  # type: ignore[import-not-found]
from rest_feed import RestFeed  # type: ignore[import-not-found]

from forebay import Secret
from forebay.testkit import check_on_spark
from forebay.testkit.pytest_plugin import spark as spark  # noqa: PLC0414 - a fixture

pytestmark = pytest.mark.soak


@pytest.mark.parametrize("source", [PostgresTable, PostgresChanges])
def test_postgres(spark, postgres, source):
    with psycopg.connect(postgres, autocommit=True) as database:
        database.execute("DROP TABLE IF EXISTS clicks")
        database.execute(
            "CREATE TABLE clicks AS SELECT n AS id, 'a click' AS name, now() - interval '1 hour' AS updated_at "
            "FROM generate_series(1, 20) n"
        )
    options = {"max_rows_per_trigger": 6} if source is PostgresChanges else {}
    assert check_on_spark(spark, source(dsn=Secret(postgres), table="clicks"), **options).verdict == "passed"


def test_redis_streams(spark, redis):
    with redis_client.Redis.from_url(redis) as server:
        server.flushall()
        for number in range(12):
            server.xadd(f"orders:{number % 2}", {"n": str(number)})
    assert check_on_spark(spark, RedisStreams(url=Secret(redis)), max_rows_per_trigger=4).verdict == "passed"


def test_rest_feed(spark, tmp_path):
    with FeedService(refuse_each=9, pause="0", token="a-token") as feed:
        for region in ("north", "south"):
            feed.add_events(region, 8)
        source = RestFeed(url=feed.url, token=Secret("a-token"), page_rows=3)
        report = check_on_spark(spark, source, max_rows_per_trigger=6, state_location=str(tmp_path))
    assert report.verdict == "passed"
