# SPDX-License-Identifier: Apache-2.0
"""Orders of a REST service by the Meltano Singer SDK: a tap, which writes messages to standard output."""

import sys

from singer_sdk import RESTStream, Tap
from singer_sdk import typing as th
from singer_sdk.pagination import BaseAPIPaginator


# begin
class Orders(RESTStream):
    name = "orders"
    path = "/orders"
    primary_keys = ("id",)
    replication_key = "id"
    is_sorted = True
    state_partitioning_keys = ("region",)
    schema = th.PropertiesList(
        th.Property("id", th.IntegerType),
        th.Property("region", th.StringType),
        th.Property("total", th.NumberType),
        th.Property("updated_at", th.IntegerType),
    ).to_dict()

    @property
    def url_base(self):
        return self.config["url"]

    @property
    def partitions(self):
        return [{"region": region} for region in self.get("regions")]

    def get(self, path, **query):
        return self.requests_session.get(f"{self.url_base}/{path}", params=query, timeout=10).json()

    def get_url_params(self, context, next_page_token):
        start = self.get_starting_replication_key_value(context)
        at = next_page_token if next_page_token is not None else (0 if start is None else start + 1)
        return {"region": context["region"], "ge": at, "lt": 2**62, "limit": 50}

    def get_new_paginator(self):
        return Pages(None)


class Pages(BaseAPIPaginator):
    def get_next(self, response):
        page = response.json()
        return page[-1]["id"] + 1 if page else None


class TapOrders(Tap):
    name = "tap-orders"
    config_jsonschema = th.PropertiesList(th.Property("url", th.StringType, required=True)).to_dict()

    def discover_streams(self):
        return [Orders(self)]


# end


if __name__ == "__main__":
    TapOrders.cli(sys.argv[1:])
