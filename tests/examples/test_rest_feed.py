# SPDX-License-Identifier: Apache-2.0
"""The feed with cursors is read whole, although its service refuses and fails, and regions are added later."""

from __future__ import annotations

import pytest
from feed_service import FeedService  # type: ignore[import-not-found]
from rest_feed import RestFeed  # type: ignore[import-not-found]  # see conftest.py

import forebay
from forebay import ConfigurationError, Secret
from forebay.testkit import SourceContract

# The service refuses every 5th and fails every 7th request, whichever split asks: one split may meet many in a row.
OPTIONS = forebay.HostOptions(retries=20, retry_first_pause="0s", discovery_interval="10ms")


def by_number(rows):
    return sorted(rows, key=lambda row: (row["region"], row["n"]))


def test_refusals_failures_and_late_regions_lose_and_double_nothing():
    with FeedService(refuse_each=5, fail_each=7, pause="0") as feed:
        wanted = [row for region in ("north", "south") for row in feed.add_events(region, 100)]
        rows = []
        with forebay.run(RestFeed(url=feed.url, page_rows=10), options=OPTIONS) as batches:
            for batch in batches:
                if not rows:
                    wanted += feed.add_events("west", 30)
                rows += batch.to_pylist()
                if len(rows) >= len(wanted):
                    break
        assert by_number(rows) == wanted
        assert feed.answers[500] > 0
        assert feed.answers[429] > 0


@pytest.mark.soak
class TestFeed(SourceContract):
    def setup_method(self):
        self.feed = self.enter_context(FeedService(refuse_each=90, fail_each=70, pause="0"))
        self.regions = 0

    def source(self):
        return RestFeed(url=self.feed.url, page_rows=3)

    def add_split(self):
        self.regions += 1
        self.feed.add_events(f"region {self.regions}", 0)
        return f"region {self.regions}"

    def write(self, split_id, n):
        return self.feed.add_events(split_id, n)


def test_a_wrong_token_is_named_and_never_shown():
    with FeedService(token="right") as feed:
        feed.add_events("north", 3)
        assert forebay.run(RestFeed(url=feed.url, token=Secret("right")), until_caught_up=True).to_table().num_rows == 3
        with pytest.raises(ConfigurationError, match="401") as caught:
            forebay.run(RestFeed(url=feed.url, token=Secret("wrong")), until_caught_up=True).to_table()
    assert caught.value.option == "token"
    assert "wrong" not in str(caught.value)
