# SPDX-License-Identifier: Apache-2.0
"""Event time of a real query: its reports are recorded and drawn, and rows that Spark dropped are explained."""

from __future__ import annotations

import logging

import pytest
from pyspark.sql import functions as F  # noqa: N812 - Spark's own abbreviation

import forebay


@pytest.fixture
def skewed(spark, tmp_path):
    """Return a function that runs a window query over a skewed source to its end."""

    def run(name, **options):
        forebay.register(spark, forebay.RateSource)
        given = {"rows": 300, "numSplits": 2, "rowsPerSecond": 1, "skew": 60, "startTime": 1_700_000_000_000_000}
        rows = spark.readStream.format("forebay_rate").options(**{**given, "maxRowsPerTrigger": 60, **options}).load()
        counts = rows.withWatermark("timestamp", "20 seconds").groupBy(F.window("timestamp", "10 seconds")).count()
        writer = counts.writeStream.format("memory").queryName(name).outputMode("append")
        query = writer.option("checkpointLocation", str(tmp_path / name)).trigger(availableNow=True).start()
        assert query.awaitTermination(300)
        return query

    return run


def lines_of(directory):
    return sum(len(file.read_text().splitlines()) for file in directory.glob("*.jsonl"))


@pytest.mark.soak
def test_lost_rows_are_explained_once_and_the_reports_are_recorded(spark, skewed, tmp_path, caplog):
    directory = tmp_path / "reports"
    listener = forebay.record_progress(spark, str(directory))
    try:
        with caplog.at_level(logging.WARNING, "forebay"):
            query = skewed("unaligned")
            spark._jsparkSession.sparkContext().listenerBus().waitUntilEmpty(60_000)
    finally:
        spark.streams.removeListener(listener)
    (warning,) = [record.getMessage() for record in caplog.records if "dropped" in record.getMessage()]
    assert "unaligned" in warning and "alignmentMaxDrift" in warning
    assert lines_of(directory) == len(query.recentProgress)
    text = (tmp_path / "out.html").read_text() if forebay.report(str(directory), tmp_path / "out.html") else ""
    assert "<h1>unaligned</h1>" in text and "alignmentMaxDrift" in text


@pytest.mark.soak
def test_an_aligned_query_reports_its_watermarks_and_loses_no_row(spark, skewed, tmp_path):
    query = skewed("aligned", alignmentMaxDrift="20s", rows=20, skew=5, maxRowsPerTrigger=8)
    assert all(each.numRowsDroppedByWatermark == 0 for one in query.recentProgress for each in one.stateOperators)
    text = (tmp_path / "out.html").read_text() if forebay.report(query, tmp_path / "out.html") else ""
    assert "rate-0" in text and "Spark&#x27;s watermark" in text and 'class="held"' in text
    assert "forebay_rate: watermark 2023-11-14 22:14:39 UTC, drift 0 s of 20 s" in str(
        forebay.offsets(str(tmp_path / "aligned"))
    )
    forebay.report(tmp_path / "aligned", tmp_path / "checkpoint.html")
    assert "rate-0" in (tmp_path / "checkpoint.html").read_text()


def test_a_directory_that_cannot_be_written_is_refused(spark, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(forebay.ConfigurationError, match="cannot be recorded"):
        forebay.record_progress(spark, str(tmp_path / "file"))
