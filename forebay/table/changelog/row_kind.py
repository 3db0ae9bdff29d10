# SPDX-License-Identifier: Apache-2.0
"""The kind of a change: Flink's `RowKind`, and the words of Spark 4.2's `_change_type`."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Self

from forebay.errors import DataError


class RowKind(IntEnum):
    """The kind of a change in a changelog. The values are those of Flink's `RowKind` (C2)."""

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3

    @property
    def short(self) -> str:
        """Flink's short form: `+I`, `-U`, `+U` or `-D`."""
        return _SHORT[self]

    @property
    def change_type(self) -> str:
        """The value of Spark's column `_change_type`: `insert`, `update_preimage`, `update_postimage`, `delete`."""
        return CHANGE_TYPES[self]

    @property
    def adds(self) -> bool:
        """Whether this change adds its row (INSERT, UPDATE_AFTER); the other kinds retract it."""
        return self in (RowKind.INSERT, RowKind.UPDATE_AFTER)

    @classmethod
    def parse(cls, text: str, *, position: object = None) -> Self:
        """Return the kind of a `_change_type` or of a short form.

        Args:
            text: For example `insert` or `+I`.
            position: The position of the change in its source, for the error.

        Raises:
            DataError: The text names no kind.
        """
        for names in (CHANGE_TYPES, _SHORT):
            if text in names:
                return cls(names.index(text))
        raise DataError(
            f"unknown change kind {text!r}",
            position=position,
            advice=f"a kind is one of {', '.join(CHANGE_TYPES)}; convert other words first",
        )


CHANGE_TYPES: Final = ("insert", "update_preimage", "update_postimage", "delete")
"""The words of `_change_type`, in the order of `RowKind`."""

_SHORT: Final = ("+I", "-U", "+U", "-D")
