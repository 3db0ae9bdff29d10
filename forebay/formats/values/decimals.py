# SPDX-License-Identifier: Apache-2.0
"""Checks that decimals fit into their type. Arrow's file readers do not check this for damaged files."""

from __future__ import annotations

from decimal import Decimal
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc


def exceeds_precision(array: pa.Array) -> bool:
    """Return whether any decimal of an array has more digits than its type allows."""
    kind = cast("pa.Decimal128Type", array.type)
    ends = pc.min_max(array).as_py()
    least, most = ends["min"], ends["max"]
    return least is not None and max(-least, most) >= Decimal(10) ** (kind.precision - kind.scale)
