# SPDX-License-Identifier: Apache-2.0
"""Metrics of runs, and of Spark's reports, as an exporter of Prometheus gives them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from opentelemetry import metrics as api
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import REGISTRY, generate_latest

import forebay
from forebay import HostOptions, RetriableError, SimpleSource
from forebay.index import Alert, alert_metrics
from forebay.inspection.metrics import METRICS, QueryMetrics

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "examples" / "dashboards" / "forebay.json"


@pytest.fixture(scope="module", autouse=True)
def _provider():
    """A provider for this module alone: that of a process can be set only once."""
    provider = MeterProvider(metric_readers=[PrometheusMetricReader()])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(api, "get_meter", provider.get_meter)
        yield
    provider.shutdown()


def exported(source: str) -> dict[str, float]:
    """The samples of a source or a query, by name and the attributes that differ."""
    found = {}
    for line in generate_latest(REGISTRY).decode().splitlines():
        match = re.fullmatch(r"(forebay_\w+)\{(.*)\} (\S+)", line)
        if match and f'"{source}"' in match[2]:
            rest = re.findall(r'(?:error_type|forebay_(?:state|stage))="(\w+)"', match[2])
            found[" ".join([match[1], *rest])] = float(match[3])
    return found


class Numbers(SimpleSource):
    """Fails once in each split before its fifth row."""

    name = "numbers"
    event_time = "at"
    failed: ClassVar[set[str]] = set()

    def schema(self):
        return pa.schema({"n": pa.int64(), "at": pa.timestamp("us", "UTC")})

    def splits(self):
        return ["a", "b"]

    def read(self, split):
        for n in range(split.position or 0, 10):
            if n == 5 and split.id not in self.failed:
                self.failed.add(split.id)
                raise RetriableError("not now")
            yield {"n": n, "at": n}


def test_a_run_is_recorded():
    options = HostOptions(retry_first_pause="1ms")
    with forebay.record_metrics(forebay.run(Numbers(), options=options), every=0) as batches:
        table = pa.Table.from_batches(list(batches))
    found = exported("numbers")
    assert found["forebay_rows_total"] == table.num_rows == 20
    assert found["forebay_bytes_total"] >= 20 * 16
    assert found["forebay_retries_total"] == 2
    assert found["forebay_splits done"] == 2 and found["forebay_splits open"] == 0
    assert found["forebay_stage_duration_seconds_count read"] == found["forebay_batches_total"]
    assert found["forebay_stage_duration_seconds_count process"] == found["forebay_batches_total"]


class Broken(Numbers):
    name = "broken"

    def read(self, split):
        if split.id:
            raise forebay.DataError("no row")
        yield {}


def test_the_error_that_ends_a_run_is_counted():
    with pytest.raises(forebay.DataError), forebay.record_metrics(forebay.run(Broken())) as batches:
        list(batches)
    assert exported("broken")["forebay_errors_total DataError"] == 1


class Recorded(list):
    def record(self, name, value, attributes):
        self.append((name, value, tuple(attributes.values())))


REPORT: dict[str, Any] = {
    "id": "an id",
    "runId": "a run",
    "name": "orders",
    "timestamp": "2025-01-01T00:01:00.000Z",
    "durationMs": {"addBatch": 250},
    "eventTime": {"watermark": "2025-01-01T00:00:00.000Z"},
    "stateOperators": [{"numRowsDroppedByWatermark": 3}],
    "sources": [
        {"description": "another", "latestOffset": None, "numInputRows": 5},
        {
            "description": "python",
            "numInputRows": 200,
            "latestOffset": {
                "source": "forebay_rate",
                "n": 6,
                "idle": False,
                "splits": {"open": 2, "done": 1, "behind": 1},
                "behind": {"rows": 7},
                "discovery": {"seconds": 0.003, "retried": 4},
                "worst": [],
                "last": {"n": 6, "splits": 2, "rows": 200, "bytes": 4000},
            },
        },
    ],
}


def test_a_report_of_spark_is_recorded():
    recorded = Recorded()
    query = QueryMetrics(recorded)
    query.started("a run", "an id", "orders")
    query.progressed(REPORT)
    assert set(recorded) == {
        ("forebay.rows", 200, ("orders", "forebay_rate")),
        ("forebay.bytes", 4000, ("orders", "forebay_rate")),
        ("forebay.batches", 1, ("orders", "forebay_rate")),
        ("forebay.lag.rows", 7, ("orders", "forebay_rate")),
        ("forebay.splits", 2, ("orders", "forebay_rate", "open")),
        ("forebay.splits", 1, ("orders", "forebay_rate", "done")),
        ("forebay.splits", 1, ("orders", "forebay_rate", "behind")),
        ("forebay.retries", 4, ("orders", "forebay_rate")),
        ("forebay.stage.duration", 0.25, ("orders", "addBatch")),
        ("forebay.dropped", 3, ("orders",)),
        ("forebay.watermark.lag", 60.0, ("orders",)),
    }
    recorded.clear()
    query.progressed(REPORT)
    assert not [name for name, _, _ in recorded if name == "forebay.retries"]  # the sum did not grow
    recorded.clear()
    query.terminated("a run", "an error", "PYTHON_DATA_SOURCE_ERROR")
    query.terminated("another run", None, None)
    assert recorded == [("forebay.errors", 1, ("orders", "PYTHON_DATA_SOURCE_ERROR"))]


def test_a_query_without_our_sources_is_left_out():
    recorded = Recorded()
    QueryMetrics(recorded).progressed({**REPORT, "sources": REPORT["sources"][:1]})
    assert recorded == []


def test_the_dashboard_names_only_metrics_that_exist():
    """As Prometheus names them: the exporter adds units and `_total`."""
    meter = api.get_meter("names")
    for name, metric in METRICS.items():
        instrument = getattr(meter, f"create_{metric.kind}")(f"all.{name}", unit=metric.unit)
        getattr(instrument, {"counter": "add", "gauge": "set", "histogram": "record"}[metric.kind])(1)
    there = set(re.findall(r"^all_(forebay_\w+)\{", generate_latest(REGISTRY).decode(), re.MULTILINE))
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    used = set(re.findall(r"\bforebay_\w+", " ".join(re.sub(r"\{[^}]*\}|by \([^)]*\)", "", one) for one in queries)))
    assert used - there == set()
    assert {"forebay_rows_total", "forebay_lag_rows", "forebay_retries_total", "forebay_errors_total"} <= used


def test_alerts_of_an_index_are_a_gauge():
    alert, line = Alert("Order", "delay", "index 000001", breach=True, text="fact 7 waits"), ""
    for record in (alert_metrics(), alert_metrics()):  # a new process sets it too, although it sends no alert again
        for broken in ([alert], [], [alert]):
            record("Order", broken)
            record("Other", [])
            (line,) = re.findall(r"^forebay_index_alert.*$", generate_latest(REGISTRY).decode(), re.MULTILINE)
            assert line.endswith(f" {float(len(broken))}")
    attributes = {'forebay_object_type="Order"', 'forebay_rule="delay"', 'forebay_subject="index 000001"'}
    assert attributes <= set(re.findall(r'\w+="[^"]*"', line))


def test_the_page_has_each_metric():
    page = (ROOT / "docs" / "operations.md").read_text()
    for name, metric in METRICS.items():
        assert f"| `{name}` | {metric.kind} | {metric.unit} |" in page


def test_without_opentelemetry_the_error_says_what_to_install():
    program = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "import forebay\n"
        "try: forebay.record_metrics(forebay.run(forebay.RateSource(rows=1)))\n"
        "except forebay.ConfigurationError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert "pip install 'forebay[metrics]'" in done.stdout
