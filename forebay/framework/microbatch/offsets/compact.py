# SPDX-License-Identifier: Apache-2.0
"""Long lists inside an offset, written small: Spark writes every offset to a log and into each progress report."""

from __future__ import annotations

import base64
import json
import zlib

from forebay.framework.split import Json

_LONG = 4096
"""Characters up to which a list stays readable."""


def compact(value: Json) -> Json:
    """Return a short JSON value as it is, a long one compressed, as text. Any thread."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    if len(text) <= _LONG:
        return value
    return {"z": base64.b85encode(zlib.compress(text.encode(), 6)).decode("ascii")}


def expand(value: Json) -> Json:
    """Return what `compact` was given.

    Raises:
        ValueError: The text is damaged.
    """
    if not (isinstance(value, dict) and value.keys() == {"z"}):
        return value
    try:
        found: Json = json.loads(zlib.decompress(base64.b85decode(value["z"])))
    except (zlib.error, TypeError) as error:
        raise ValueError(f"a compressed list cannot be read: {error}") from error
    return found


def length(value: Json) -> int:
    """Return the characters a value takes in an offset."""
    return len(json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False))
