# SPDX-License-Identifier: Apache-2.0
"""A source that knows the key of its rows, and the warnings about keys."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import forebay
from forebay.spark.keys.found_keys import warn_once
from forebay.table.changelog.shape import stamp_changes
from forebay.table.keys import KeySpec, stamp

KEY = KeySpec(("id",), ("id",), "gone")


class Students(forebay.SimpleSource):
    """Changes of students, keyed by `id`; with `positions` they have their place in the split.

    With `by_name`, the order is within another column than the primary key; `plain` rows have no kind.
    """

    name: ClassVar[str] = "students"

    positions: bool = False
    sequence: bool = False
    stamped: bool = True
    transactional: bool = False
    by_name: bool = False
    plain: bool = False
    images: str = "full"
    history: str = "complete"

    def schema(self) -> pa.Schema:
        names = {"id": pa.int64(), "level": pa.int64(), "name": pa.string(), "gone": pa.bool_()}
        names |= {} if self.plain else {"_change_type": pa.string()}
        names |= {"_split": pa.string(), "_pos": pa.int64()} if self.positions else {}
        schema = pa.schema(names | ({"_sequence": pa.int64()} if self.sequence else {}))
        key = KeySpec(("name",), ("id",), "gone") if self.by_name else KEY
        if not self.plain and self.stamped:
            schema = stamp_changes(schema, images=self.images, history=self.history)
        return stamp(schema, key, transactional=self.transactional) if self.stamped else schema

    def read(self, split: forebay.Split) -> Iterator[dict[str, Any]]:
        for n in range(split.position or 0, 6):  # type: ignore[arg-type]
            row = {"id": n % 3, "level": 10 * n, "name": "x", "gone": n == 5}
            row |= {} if self.plain else {"_change_type": "insert"}
            row |= {"_split": split.id, "_pos": n} if self.positions else {}
            yield row | ({"_sequence": n} if self.sequence else {})


@pytest.fixture(scope="session")
def session(spark: SparkSession) -> SparkSession:
    forebay.register(spark, Students)
    return spark


Read = Callable[..., DataFrame]


@pytest.fixture
def students(session: SparkSession) -> Read:
    """Read the changes of students; `stream=True` reads a stream."""

    def read(*, stream: bool = False, **options: bool | str) -> DataFrame:
        reader = (session.readStream if stream else session.read).format("students")
        return reader.options(**options).load()

    return read


@pytest.fixture
def levels(session: SparkSession) -> DataFrame:
    """A table to look up, with the primary key `number`."""
    from forebay.keys import key_by

    rows = session.range(0, 60, 10).select(F.col("id").alias("number"), F.lit("title").alias("title"))
    return key_by(rows, "number", cdc=True)


@pytest.fixture
def table(session: SparkSession) -> DataFrame:
    """A table with the key (a, b), the flag f, and another column."""
    from forebay.keys import key_by

    rows = session.createDataFrame([(1, 2, False, "x", 7)], "a long, b long, f boolean, v string, s long")
    return key_by(rows, "a", "b", cdc=True, deleted="f")


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return the warnings about keys, each as often as it would be said in a new process."""
    warn_once.cache_clear()
    caplog.set_level(logging.WARNING, "forebay.keys")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "forebay.keys"]
