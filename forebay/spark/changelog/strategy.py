# SPDX-License-Identifier: Apache-2.0
"""The choice of the strategy of `materialize` (C7, C9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from pyspark.sql import DataFrame

Strategy = Literal["none", "sequence", "barrier", "retract"]


class Verdict(NamedTuple):
    """A strategy, why it was chosen, and the upsert key that was found."""

    strategy: Strategy
    reason: str
    upsert_key: tuple[str, ...] | None


def choose_strategy(
    df: DataFrame,
    key: Sequence[str],
    *,
    mode: Literal["auto", "none", "force"],
    strategy: Strategy | None,
    sequence_by: Sequence[str],
) -> Verdict:
    """Choose a strategy."""
    if mode == "none":
        return Verdict("none", "mode is none", None)
    if strategy:
        return Verdict(strategy, "it was given", None)
    return Verdict("sequence" if sequence_by else "retract", "", None)
