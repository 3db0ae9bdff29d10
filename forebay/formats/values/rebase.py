# SPDX-License-Identifier: Apache-2.0
"""Rebases old dates in Parquet and Avro files: Spark 2 and other writers used the Julian calendar before 1582-10-15.

The rule for files is DataSourceUtils.datetimeRebaseSpec of Spark 4.2.0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import DataError

# -- Converts dates of the hybrid calendar (Julian before 1582-10-15) to dates of the proleptic Gregorian calendar.


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


RebaseMode = Literal["CORRECTED", "LEGACY", "EXCEPTION"]
"""How to read old dates of a file that does not name its calendar: as Gregorian, as Julian, or not at all."""

_VERSION = b"org.apache.spark.version"
_LEGACY_DATES = b"org.apache.spark.legacyDateTime"
_LEGACY_INT96 = b"org.apache.spark.legacyINT96"
_ZONE = b"org.apache.spark.timeZone"
_UTC_NAMES = frozenset({"UTC", "Etc/UTC", "Z", "GMT", "UCT", "Zulu", "Universal", "Etc/GMT", "+00:00"})

_DAY_US = 86_400_000_000
# 1900-01-01. Before it, offsets of time zones changed in ways that only Java's old calendar classes reproduce.
_FIRST_COMMON_US = -2_208_988_800_000_000


@dataclass(frozen=True, slots=True)
class Rebase:
    """Returns the conversions of the dates and timestamps in one file to the Gregorian calendar."""

    dates_mode: RebaseMode
    int96_mode: RebaseMode
    zone: str | None

    def dates(self, place: str) -> Callable[[pa.Array], pa.Array] | None:
        """Return the conversion of a date column; None if none is needed. `place` names the column in errors."""
        if self.dates_mode == "CORRECTED":
            return None

        def convert(array: pa.Array) -> pa.Array:
            oldest = pc.min(array).cast(pa.int32()).as_py() if len(array) else None
            if oldest is None or oldest >= FIRST_COMMON_DAY:
                return array
            if self.dates_mode == "EXCEPTION":
                raise _ambiguous(place, "datetimeRebaseMode")
            days = array.view(pa.int32())
            return pc.add(days, _day_shift(days, place)).view(pa.date32())

        return convert

    def timestamps(self, place: str) -> Callable[[pa.Array], pa.Array] | None:
        """Return the conversion of an INT64 timestamp column (naive microseconds); None if none is needed."""
        return self._micros(self.dates_mode, place, "datetimeRebaseMode")

    def int96(self, place: str) -> Callable[[pa.Array], pa.Array] | None:
        """Return the conversion of an INT96 timestamp column (naive microseconds); None if none is needed."""
        return self._micros(self.int96_mode, place, "int96RebaseMode")

    def _micros(self, mode: RebaseMode, place: str, option: str) -> Callable[[pa.Array], pa.Array] | None:
        if mode == "CORRECTED":
            return None

        def convert(array: pa.Array) -> pa.Array:
            oldest = pc.min(array).cast(pa.int64()).as_py() if len(array) else None
            if oldest is None or oldest >= _FIRST_COMMON_US:
                return array
            if mode == "EXCEPTION":
                raise _ambiguous(place, option)
            if self.zone not in _UTC_NAMES:
                raise DataError(
                    f"{place} has timestamps before 1900 in Spark 2's calendar "
                    f"and the time zone {self.zone or '(unknown)'}; "
                    "forebay can convert them only for UTC",
                    option=option,
                    advice=f"read the file with Spark's own reader, or set {option} to CORRECTED and check the values",
                )
            micros = array.view(pa.int64())
            towards_past = pc.if_else(pc.less(micros, 0), pc.subtract(micros, _DAY_US - 1), micros)
            days = pc.divide(towards_past, _DAY_US).cast(pa.int32())
            shift = pc.multiply(_day_shift(days, place).cast(pa.int64()), _DAY_US)
            return pc.add(micros, shift).view(array.type)

        return convert


def rebase_of(metadata: Mapping[bytes, bytes], dates: RebaseMode, int96: RebaseMode) -> Rebase:
    """Return the conversions for a file, from its key-value metadata.

    Args:
        metadata: The key-value metadata of the file.
        dates: The mode for dates and timestamps if the metadata does not name a version of Spark as the writer.
        int96: The mode for INT96 timestamps in the same case.
    """
    version = metadata.get(_VERSION)
    if version is not None:
        number = tuple(int(part) for part in re.findall(rb"\d+", version)[:2])
        dates = "LEGACY" if number < (3, 0) or _LEGACY_DATES in metadata else "CORRECTED"
        int96 = "LEGACY" if number < (3, 1) or _LEGACY_INT96 in metadata else "CORRECTED"
    zone = metadata.get(_ZONE)
    return Rebase(dates, int96, None if zone is None else zone.decode("utf-8", "replace"))


def _day_shift(days: pa.Array, place: str) -> pa.Array:
    """Return the numbers to add to days; raise DataError for dates before the year 1. `place` names the column."""
    if pc.min(days).as_py() < FIRST_DAY:
        raise DataError(
            f"{place} has dates before the year 1 in Spark 2's calendar, which forebay cannot convert",
            advice="remove the column from the schema, or read the file with Spark's own reader",
        )
    return day_shift(days)


def _ambiguous(place: str, option: str) -> DataError:
    return DataError(
        f"{place} has dates before 1582-10-15 or timestamps before 1900, and the file does not name their calendar",
        option=option,
        advice=f"set {option} to LEGACY if Spark 2, Hive or Impala wrote the file; otherwise set it to CORRECTED",
    )
