# SPDX-License-Identifier: Apache-2.0
"""The connectors of the examples pass by `check` alone, with pages larger than their input and smaller ones."""

from __future__ import annotations

import json
from urllib.parse import urlencode
from urllib.request import urlopen

import psycopg
import pyarrow as pa
import pytest
from feed_service import FeedService  # type: ignore[import-not-found]  # see conftest.py
from order_service import OrderService
from partitioned_log import PartitionedLog
from postgres_table import PostgresChanges, PostgresTable  # type: ignore[import-not-found]
from rest_feed import RestFeed  # type: ignore[import-not-found]
from rest_orders import Orders
from segment_log import SegmentLog, SegmentWriter

import forebay
from forebay import Batch, Secret, SimpleSource, option
from forebay.testkit import check


class Paged(SimpleSource):
    """A paged service in thirty lines, as an author writes it first."""

    bounded = False
    url: str = option(doc="base address")
    page_rows: int = option(default=500, doc="rows of a page")

    def schema(self):
        return pa.schema({"id": pa.int64(), "region": pa.string(), "total": pa.float64()})

    def splits(self):
        return self.get("regions")

    def latest(self, split):
        return self.get("newest", region=split.id) + 1

    def read(self, split):
        at = split.position or 0
        while page := self.get("orders", region=split.id, ge=at, lt=split.end, limit=self.page_rows):
            at = page[-1]["id"] + 1
            yield Batch([{name: row[name] for name in ("id", "region", "total")} for row in page], at)

    def get(self, path, **query):
        with forebay.http_errors(path), urlopen(f"{self.url}/{path}?{urlencode(query)}", timeout=10) as response:
            return json.load(response)


def passes(source):
    report = check(source, seconds=90)
    assert report.verdict == "passed", report


@pytest.mark.soak
@pytest.mark.parametrize("page_rows", [7, 500])
def test_a_paged_source_of_thirty_lines_passes(page_rows):
    with OrderService(orders=90) as service:
        passes(Paged(url=service.url, page_rows=page_rows))


@pytest.mark.soak
@pytest.mark.parametrize("page_rows", [7, pytest.param(100, marks=pytest.mark.soak)])
def test_a_feed_without_an_end_passes(page_rows):
    with FeedService() as feed:
        for region in ("north", "south"):
            feed.add_events(region, 40)
        passes(RestFeed(url=feed.url, page_rows=page_rows))


@pytest.mark.soak
@pytest.mark.parametrize("source", [PostgresTable, PostgresChanges])
def test_a_table_passes(postgres, source):
    with psycopg.connect(postgres, autocommit=True) as database:
        database.execute("DROP TABLE IF EXISTS checked")
        database.execute(
            "CREATE TABLE checked AS SELECT n::bigint AS id, n::float8 AS total, "
            "timestamptz '2025-01-01' + n / 7 * interval '1 hour' AS updated_at FROM generate_series(1, 300) n"
        )
    passes(source(dsn=Secret(postgres), table="checked", page_rows=37))


@pytest.mark.soak
def test_the_others_pass(tmp_path):
    SegmentWriter(tmp_path, "a", records=7).append(*(f"event {n}" for n in range(40)))
    passes(SegmentLog(directory=str(tmp_path)))
    (tmp_path / "1.log").write_text("".join(f"event {n}\n" for n in range(30)))
    passes(PartitionedLog(directory=str(tmp_path)))
    with OrderService(orders=300) as service:
        passes(Orders(url=service.url))
