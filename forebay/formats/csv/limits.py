# SPDX-License-Identifier: Apache-2.0
"""Tells what stops Spark's CSV reader in every mode: limits of characters and columns, and `RAISE_ERROR`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from forebay.errors import DataError
from forebay.formats.csv.rules import TooManyChars, TooManyColumns, UnescapedQuote

_LIMITS: dict[type[Exception], tuple[str, str]] = {
    TooManyChars: ("maxCharsPerColumn", "a value with more characters than maxCharsPerColumn"),
    TooManyColumns: ("maxColumns", "a record with more columns than maxColumns"),
    UnescapedQuote: ("unescapedQuoteHandling", "an unescaped quote"),
}


@contextmanager
def within_limits(path: str) -> Iterator[None]:
    """Name the file and the option if a record of a file goes beyond a limit.

    Raises:
        DataError: It does.
    """
    try:
        yield
    except tuple(_LIMITS) as error:
        option, what = _LIMITS[type(error)]
        advice = f"correct the file, or change {option}"
        raise DataError(f"{path} has {what}", source=path, option=option, advice=advice) from None
