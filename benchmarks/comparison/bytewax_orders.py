# SPDX-License-Identifier: Apache-2.0
"""Orders of a REST service by Bytewax."""

import json
import sys
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import urlopen

import bytewax.operators as op
from bytewax.connectors.files import FileSink
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import run_main


# begin
def get(url, path, **query):
    with urlopen(f"{url}/{path}?{urlencode(query)}", timeout=10) as response:
        return json.load(response)


class Region(StatefulSourcePartition):
    def __init__(self, url, region, at, page_rows):
        self.url, self.region, self.at, self.page_rows = url, region, at or 0, page_rows
        self.end = get(url, "newest", region=region) + 1

    def next_batch(self):
        page = get(self.url, "orders", region=self.region, ge=self.at, lt=self.end, limit=self.page_rows)
        if not page:
            raise StopIteration
        self.at = page[-1]["id"] + 1
        return page

    def snapshot(self):
        return self.at


class Orders(FixedPartitionedSource):
    def __init__(self, url, page_rows=50):
        self.url, self.page_rows = url, page_rows

    def list_parts(self):
        return get(self.url, "regions")

    def build_part(self, step_id, for_part, resume_state):
        return Region(self.url, for_part, resume_state, self.page_rows)


# end


if __name__ == "__main__":
    url, state, out = sys.argv[1:]
    if not Path(state).exists():
        Path(state).mkdir()
        init_db_dir(state, 1)
    Path(out).mkdir(exist_ok=True)
    flow = Dataflow("orders")
    rows = op.map("text", op.input("orders", flow, Orders(url)), lambda order: ("all", json.dumps(order)))
    op.output("file", rows, FileSink(Path(out, "orders.jsonl")))
    run_main(flow, epoch_interval=timedelta(0), recovery_config=RecoveryConfig(state))
