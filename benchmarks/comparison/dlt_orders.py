# SPDX-License-Identifier: Apache-2.0
"""Orders of a REST service by dlt."""

import sys

import dlt
from dlt.sources.helpers import requests


# begin
@dlt.source
def orders(url, page_rows=50):
    def get(path, **query):
        response = requests.get(f"{url}/{path}", params=query, timeout=10)
        response.raise_for_status()
        return response.json()

    def region(name):
        @dlt.resource(name=name, table_name="orders", write_disposition="append", parallelized=True)
        def rows():
            state = dlt.current.resource_state()
            at, end = state.get("at", 0), get("newest", region=name) + 1
            while page := get("orders", region=name, ge=at, lt=end, limit=page_rows):
                at = state["at"] = page[-1]["id"] + 1
                yield page

        return rows

    return [region(name) for name in get("regions")]


# end


if __name__ == "__main__":
    url, state, out = sys.argv[1:]
    place = dlt.destinations.filesystem(bucket_url=f"file://{out}")
    pipeline = dlt.pipeline("orders", destination=place, dataset_name="shop", pipelines_dir=state)
    pipeline.run(orders(url), loader_file_format="jsonl")
