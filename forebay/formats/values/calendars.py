# SPDX-License-Identifier: Apache-2.0
"""Converts dates of the hybrid calendar (Julian before 1582-10-15) to dates of the proleptic Gregorian calendar.

The table of differences is RebaseDateTime.julianGregDiffs of Spark 4.2.0.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

# The days, since 1970-01-01 in the hybrid calendar, on which the difference to the Gregorian calendar changes.
_SWITCHES = (
    *(-682945, -646420, -609895, -536845, -500320, -463795, -390745),
    *(-354220, -317695, -244645, -208120, -171595, -141427),
)
# The change of the difference (2, 1, 0, -1 … -10, 0) at each of these days.
_STEPS = (2, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 10)
FIRST_DAY = -719164
"""The first day of the year 1 in the hybrid calendar, in days since 1970."""
FIRST_COMMON_DAY = -141427
"""The first day that has the same number in both calendars."""


def day_shift(days: pa.Array) -> pa.Array:
    """Return what to add to days of the hybrid calendar (`FIRST_DAY` or later) to get the same Gregorian dates."""
    shift = pc.multiply(days, 0)
    for switch, step in zip((FIRST_DAY, *_SWITCHES), _STEPS, strict=True):
        shift = pc.add(shift, pc.multiply(pc.greater_equal(days, switch).cast(pa.int32()), step))
    return shift.cast(pa.int32())
