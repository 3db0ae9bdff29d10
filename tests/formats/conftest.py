# SPDX-License-Identifier: Apache-2.0
"""Files that live in memory, and a Spark session to compare with."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class MemoryFile:
    """An input file made of bytes."""

    data: bytes
    path: str = "/data/part-1.csv"

    @property
    def size(self) -> int:
        return len(self.data)

    def open(self) -> BinaryIO:
        return io.BytesIO(self.data)


@pytest.fixture(scope="session")
def memory_file() -> Callable[..., MemoryFile]:
    return MemoryFile


@contextmanager
def session_in(zone: str) -> Iterator[SparkSession]:
    """A session in a time zone, which is set back afterwards."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2,2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    before = session.conf.get("spark.sql.session.timeZone")
    session.conf.set("spark.sql.session.timeZone", zone)
    yield session
    session.conf.set("spark.sql.session.timeZone", before)


@pytest.fixture(scope="module")
def spark_utc() -> Iterator[SparkSession]:
    """A session whose time zone is UTC while the module runs."""
    with session_in("UTC") as session:
        yield session


@pytest.fixture(scope="module")
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """A session in the time zone `ZONE` of the module."""
    with session_in(request.module.ZONE) as session:
        yield session
