# SPDX-License-Identifier: Apache-2.0
"""The order of changes by their columns: that of Spark."""

from __future__ import annotations

import math

import pyarrow as pa

from forebay.table.changelog.operators.events import order_ranks


def test_nan_comes_last_and_null_first():
    stored, arriving = [1.0, math.nan, None], [-0.0, 0.0, math.inf, math.nan]
    ranks = order_ranks([pa.array(stored, pa.float64())], [pa.array(arriving, pa.float64())])
    one, nan, null, below_zero, zero, infinity, other_nan = ranks.tolist()
    assert null < below_zero == zero < one < infinity < nan == other_nan
