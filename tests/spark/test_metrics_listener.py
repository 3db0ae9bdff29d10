# SPDX-License-Identifier: Apache-2.0
"""The metrics of a real query, by `forebay.record_progress(spark, metrics=True)`."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from opentelemetry import metrics as api
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import forebay


@pytest.fixture
def recorded(spark, monkeypatch):
    """The sums of counters and the last values of gauges so far, by name, of the queries of one name."""
    reader = InMemoryMetricReader()
    monkeypatch.setattr(api, "get_meter", MeterProvider(metric_readers=[reader]).get_meter)
    listener = forebay.record_progress(spark, metrics=True)

    def values(query):
        found = Counter()
        for resource in data.resource_metrics if (data := reader.get_metrics_data()) else ():
            for metric in (one for scope in resource.scope_metrics for one in scope.metrics):
                for point in metric.data.data_points:
                    if (point.attributes or {}).get("forebay.query") == query:
                        found[metric.name] += getattr(point, "value", getattr(point, "count", 0))
        return found

    yield values
    spark.streams.removeListener(listener)


@pytest.mark.soak
def test_a_query_is_recorded(spark, recorded, tmp_path):
    source = forebay.RateSource(rows=50, num_splits=2)
    writer = forebay.read_stream(spark, source, max_rows_per_trigger=40).writeStream.format("noop").queryName("orders")
    writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()
    deadline = time.monotonic() + 30
    while recorded("orders")["forebay.rows"] < 100 and time.monotonic() < deadline:
        time.sleep(0.1)  # Spark tells listeners on a thread of its own
    found = recorded("orders")
    assert (found["forebay.rows"], found["forebay.batches"]) == (100, 3)
    assert found["forebay.bytes"] > 0
    assert found["forebay.lag.rows"] == 0
    assert found["forebay.splits"] == 2  # open ones
    assert found["forebay.stage.duration"] >= 3


def test_the_error_that_ends_a_query_is_counted(spark, recorded, tmp_path):
    def fail(frame, number):
        raise ValueError("the sink")

    frame = forebay.read_stream(spark, forebay.RateSource(rows=5)).writeStream.foreachBatch(fail).queryName("failing")
    query = frame.option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(Exception, match="the sink"):
        query.awaitTermination()
    deadline = time.monotonic() + 30
    while not recorded("failing") and time.monotonic() < deadline:
        time.sleep(0.1)
    assert recorded("failing") == {"forebay.errors": 1}
