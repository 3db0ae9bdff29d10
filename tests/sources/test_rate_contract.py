# SPDX-License-Identifier: Apache-2.0
"""The rate source keeps the contract."""

from __future__ import annotations

import time

import pytest

from forebay.options import Duration
from forebay.sources.rate import RateSource
from forebay.testkit import SourceContract, check


class TestRate(SourceContract):
    most_splits = 1
    rows = 0

    def source(self):
        return RateSource(rows=self.rows, rows_per_second=1.0)

    def add_split(self):
        return "rate-0"

    def write(self, split_id, n):
        self.rows = n
        return [{"timestamp": i * 1_000_000, "value": i, "split": 0} for i in range(n)]


@pytest.mark.soak
def test_several_splits_with_skew_and_disorder_keep_the_contract():
    report = check(RateSource(rows=25, num_splits=3, skew=3.0, disorder=Duration(0.5)))
    assert not report.failed


@pytest.mark.soak
def test_an_endless_rate_keeps_the_contract():
    a_second_ago = int((time.time() - 1) * 1e6)
    report = check(RateSource(num_splits=2, rows_per_second=50, start_time=a_second_ago))
    assert not report.failed
