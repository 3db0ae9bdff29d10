# SPDX-License-Identifier: Apache-2.0
"""What the option `columns` means: the same on every host."""

from __future__ import annotations

from collections.abc import Sequence

from forebay.errors import ConfigurationError


def select(names: Sequence[str], columns: Sequence[str], source: str) -> list[str]:
    """Return the names that the option `columns` means, in its order: exact, or else without regard to case.

    Called by every host once per read, with the schema settled.

    Args:
        names: The columns of the source.
        columns: What the user wrote.
        source: The format name, for errors.

    Raises:
        ConfigurationError: A column does not exist, or comes twice, or none is left.
    """
    chosen = []
    for column in columns:
        alike = [name for name in names if name == column] or [
            name for name in names if name.casefold() == column.casefold()
        ]
        if len(alike) != 1:
            raise ConfigurationError(
                f"there is no column {column!r}" if not alike else f"the column {column!r} could be any of {alike}",
                source=source,
                option="columns",
                advice=f"the columns are: {', '.join(names)}",
            )
        chosen.append(alike[0])
    if len(set(chosen)) != len(chosen) or not chosen:
        raise ConfigurationError(
            "columns names no column" if not chosen else "columns names a column twice",
            source=source,
            option="columns",
            advice=f"the columns are: {', '.join(names)}",
        )
    return chosen
