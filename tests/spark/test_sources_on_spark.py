# SPDX-License-Identifier: Apache-2.0
"""The sources of forebay pass the kit's part on Spark."""

from __future__ import annotations

import pytest

from forebay import FileSource, RateSource
from forebay.testkit import check_on_spark

ALL_RULES = {"SPK-1", "SPK-2", "SPK-3"}


@pytest.mark.soak
@pytest.mark.parametrize(
    ("file_format", "suffix", "text"),
    [("json", "json", '{{"n": {n}}}\n'), ("csv", "csv", "{n}\n"), ("text", "txt", "line {n}\n")],
)
def test_files(spark, tree, file_format, suffix, text):
    files = {f"{name}.{suffix}": "".join(text.format(n=n) for n in range(5)) for name in "abc"}
    source = FileSource(path=tree(files), file_format=file_format)
    assert check_on_spark(spark, source).rules("passed") == ALL_RULES


@pytest.mark.soak
def test_parquet(spark, tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    pa = pytest.importorskip("pyarrow")
    for name in "ab":
        pq.write_table(pa.table({"n": range(7), "t": [str(n) for n in range(7)]}), tmp_path / f"{name}.parquet")
    source = FileSource(path=str(tmp_path), file_format="parquet")
    assert check_on_spark(spark, source).rules("passed") == ALL_RULES


@pytest.mark.soak
def test_rate(spark):
    source = RateSource(rows=11, num_splits=3)
    assert check_on_spark(spark, source, max_rows_per_trigger=6).rules("passed") == ALL_RULES
