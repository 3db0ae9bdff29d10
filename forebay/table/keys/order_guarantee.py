# SPDX-License-Identifier: Apache-2.0
"""Promises about the order of rows (K2, K3, K15, K27)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Self


class OrderScope(IntEnum):
    """The scope within which rows keep their order. A larger value is a stronger promise."""

    NONE = 0
    PER_SPLIT = 1
    PER_KEY = 2


@dataclass(frozen=True)
class Guarantee:
    """A promise about the order of rows.

    Args:
        scope: The scope within which rows keep their order.
        columns: For `PER_KEY`, the key columns by the names that they have at the source (K4, K15).
        weakest: The step of the query that weakens the order most, as text; None: no step does (K27). `==` ignores it.
    """

    scope: OrderScope
    columns: tuple[str, ...] = ()
    weakest: str | None = field(default=None, compare=False)

    @classmethod
    def per_key(cls, *columns: str) -> Self:
        """Return the promise that rows with equal values of these columns keep their order."""
        return cls(OrderScope.PER_KEY, columns)

    def __str__(self) -> str:
        text = self.scope.name + (f"({', '.join(self.columns)})" if self.columns else "")
        return text if self.weakest is None else f"{text}: {self.weakest}"


NONE: Final = Guarantee(OrderScope.NONE)
PER_SPLIT: Final = Guarantee(OrderScope.PER_SPLIT)
