# SPDX-License-Identifier: Apache-2.0
"""Refuses columns that are nested too deeply, before a library fails at them."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from forebay.errors import ConfigurationError


def refuse_deep(fields: Iterable[pa.Field], most: int, reason: str, source: str) -> None:
    """Raise an error that names the first column with more than `most` levels of types.

    Args:
        fields: The columns.
        most: The most levels. A column of numbers has one, a list of them two; a map counts as a list of structs.
        reason: Why there cannot be more levels; the error says it.
        source: The source, for the error.

    Raises:
        ConfigurationError: A column has more levels.
    """
    for field in fields:
        found = _levels(field.type)
        if found > most:
            raise ConfigurationError(
                f"the column {field.name!r} is nested {found} levels deep, and {reason} at most {most}",
                source=source,
                option="schema",
                advice=f"leave the column out of the schema or, for JSON files, declare {field.name!r} as string: its "
                "values are then the JSON text",
            )


def _levels(data_type: pa.DataType) -> int:
    """Return the number of levels of a type. Does not recurse, because a type may have thousands."""
    most, waiting = 0, [(data_type, 1)]
    while waiting:
        found, level = waiting.pop()
        most = max(most, level)
        if isinstance(found, pa.MapType):
            waiting += [(found.key_type, level + 2), (found.item_type, level + 2)]
        else:
            waiting += [(found.field(index).type, level + 1) for index in range(found.num_fields)]
    return most
