# SPDX-License-Identifier: Apache-2.0
"""Parses numbers and booleans from strings as Java and Spark do, one value at a time."""

from __future__ import annotations

import decimal
import math
import re
import struct
import unicodedata
from decimal import Decimal
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

# -- Checks that decimals fit into their type. Arrow's file readers do not check this for damaged files.


def exceeds_precision(array: pa.Array) -> bool:
    """Return whether any decimal of an array has more digits than its type allows."""
    kind = cast("pa.Decimal128Type", array.type)
    ends = pc.min_max(array).as_py()
    least, most = ends["min"], ends["max"]
    return least is not None and max(-least, most) >= Decimal(10) ** (kind.precision - kind.scale)


_SPACES = "".join(map(chr, range(33)))
_DECIMAL_FLOAT = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_HEX_FLOAT = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+(?:\.[0-9a-fA-F]*)?|\.[0-9a-fA-F]+)[pP][+-]?\d+", re.ASCII)
_DECIMAL = re.compile(r"([+-]?)(\d+)?(?:(\.)(\d*))?(?:[eE]([+-]?\d+))?")
_EXPONENT_DIGITS = 10
"""Maximum digits of the exponent that Java's BigDecimal accepts."""


def parse_int(text: str, bits: int) -> int | None:
    """Parse an integer as Java's `Integer.parseInt` does; None if the text is no integer, or exceeds `bits` bits.

    A valid text is an optional sign and digits of any script.
    """
    sign = -1 if text.startswith("-") else 1
    digits = text[1:] if text.startswith(("-", "+")) else text
    value = 0
    if not digits:
        return None
    for char in digits:
        digit = _digit(char)
        # A number that is already too large stays too large with more digits.
        if digit is None or value >= 2**bits:
            return None
        value = value * 10 + digit
    value *= sign
    return value if -(2 ** (bits - 1)) <= value < 2 ** (bits - 1) else None


def _digit(char: str) -> int | None:
    # Java checks UTF-16 units, so it knows no digits beyond the basic plane.
    return unicodedata.decimal(char, None) if char <= "\uffff" else None


def parse_double(text: str) -> float | None:
    """Parse a double as Java's `Double.parseDouble` does; None if the text is not a number.

    Surrounding blanks, `NaN`, hexadecimal numbers and a suffix f or d are accepted.
    """
    text = text.strip(_SPACES)
    bare = text[1:] if text.startswith(("+", "-")) else text
    if bare in ("NaN", "Infinity"):
        size = float("nan") if bare == "NaN" else float("inf")
        return -size if text.startswith("-") else size
    if text[-1:] in ("f", "F", "d", "D"):
        text = text[:-1]
    if _DECIMAL_FLOAT.fullmatch(text):
        return float(text)
    if _HEX_FLOAT.fullmatch(text):
        try:
            return float.fromhex(text)
        except OverflowError:
            return float("-inf" if text.startswith("-") else "inf")
    return None


def parse_float(text: str) -> float | None:
    """Parse a float as Java's `Float.parseFloat` does; None if the text is not a number.

    The same texts as for `parse_double` are accepted. The value is rounded once, to 32 bits.
    """
    value = parse_double(text)
    if value is None or not math.isfinite(value):
        return value
    digits = text.strip(_SPACES).rstrip("fFdD")
    if _DECIMAL_FLOAT.fullmatch(digits):
        rounded: float = pa.scalar(digits).cast(pa.float32()).as_py()
        return rounded
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def parse_decimal(text: str, precision: int, scale: int) -> decimal.Decimal | None:
    """Parse a decimal as Spark's DECIMAL(precision, scale), rounded half up; None if it is no number or too large.

    Commas in the text are ignored.
    """
    match = _DECIMAL.fullmatch(text.replace(",", ""))
    if match is None or not (match[2] or match[4]):
        return None
    digits = _ascii_digits((match[2] or "") + (match[4] or ""))
    exponent = _ascii_digits(match[5].lstrip("+-")) if match[5] else "0"
    if digits is None or exponent is None:
        return None
    exponent = exponent.lstrip("0") or "0"
    if len(exponent) > _EXPONENT_DIGITS or int(exponent) >= 2**31:
        return None
    power = (-int(exponent) if (match[5] or "").startswith("-") else int(exponent)) - len(match[4] or "")
    digits = digits.lstrip("0")
    if not digits or len(digits) + power < -scale:
        return decimal.Decimal(0).scaleb(-scale)
    if len(digits) + power > precision - scale:
        return None
    number = decimal.Decimal(f"{match[1]}{digits}E{power}")
    context = decimal.Context(prec=max(200, len(digits) + 1), rounding=decimal.ROUND_HALF_UP)
    value = number.quantize(decimal.Decimal(1).scaleb(-scale), context=context)
    return value if len(value.as_tuple().digits) <= precision or value == 0 else None


def _ascii_digits(text: str) -> str | None:
    digits = [_digit(char) for char in text]
    return None if None in digits else "".join(map(str, digits))


def parse_bool(text: str) -> bool | None:
    """Parse `true` or `false`, ignoring case; None for other texts.

    As in Java, the texts are compared in upper case, so U+017F (a long s) counts as s.
    """
    return {"TRUE": True, "FALSE": False}.get(text.upper()) if len(text) in (4, 5) else None
