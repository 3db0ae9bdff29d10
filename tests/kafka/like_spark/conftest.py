# SPDX-License-Identifier: Apache-2.0
"""Spark's own Kafka source beside forebay_kafka in one session, and a comparison of their rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

_COLUMNS = ["hex(key)", "hex(value)", "topic", "partition", "offset", "unix_micros(timestamp)", "timestampType"]

Row = tuple[Any, ...]


def _rows(frame: Any) -> list[Row]:
    """All of a frame, in an order of its own: binary as hexadecimal digits, times in microseconds."""
    more = ["to_json(headers)"] if "headers" in frame.columns else []
    return sorted((tuple(row) for row in frame.selectExpr(*_COLUMNS, *more).collect()), key=lambda row: row[2:5])


class Both:
    """Reads the same with Spark's own source and with ours.

    Args:
        spark: The session.
        address: The broker.
        home: Where checkpoints go.
    """

    def __init__(self, spark: Any, address: str, home: Path) -> None:
        self._spark, self._address, self._home = spark, address, home
        self.types: list[Any] = []

    def batch(self, options: Mapping[str, str]) -> tuple[list[Row], list[Row]]:
        """Return the rows of both, Spark's first."""
        frames = [self._options(self._spark.read.format(name), options).load() for name in ("kafka", "forebay_kafka")]
        self.types = [frame.dtypes for frame in frames]
        one, other = (_rows(frame) for frame in frames)
        return one, other

    def stream(self, options: Mapping[str, str]) -> tuple[list[Row], list[Row]]:
        """Return what both bring with AvailableNow, in however many micro-batches; both run at once."""
        queries = []
        for name in ("kafka", "forebay_kafka"):
            frame = self._options(self._spark.readStream.format(name), options).load()
            writer = frame.writeStream.format("memory").queryName(f"rows_of_{name}")
            queries.append(
                writer.option("checkpointLocation", str(self._home / name)).trigger(availableNow=True).start()
            )
        for query in queries:
            assert query.awaitTermination(500)
            if query.exception() is not None:
                raise query.exception()
        one, other = (_rows(self._spark.table(f"rows_of_{name}")) for name in ("kafka", "forebay_kafka"))
        return one, other

    def _options(self, reader: Any, options: Mapping[str, str]) -> Any:
        return reader.option("kafka.bootstrap.servers", self._address).options(**options)


@pytest.fixture(scope="session")
def need_spark_s_own(spark) -> None:
    if not spark.version.startswith("4.2."):
        pytest.skip("Spark's own source is to be had for Spark 4.2")


@pytest.fixture
def both(spark, kafka, tmp_path, need_spark_s_own) -> Both:
    return Both(spark, kafka.address, tmp_path)


Check = Callable[[Mapping[str, str], str], list[Row]]


@pytest.fixture
def check(both) -> Check:
    """Reads with the options as a batch or as a stream, and compares; returns the rows."""

    def check(options: Mapping[str, str], how: str) -> list[Row]:
        if how == "stream":
            theirs, ours = both.stream({"startingOffsets": "earliest", **options})
        else:
            theirs, ours = both.batch(options)
            assert both.types[0] == both.types[1]
        assert ours == theirs
        return ours

    return check
