# SPDX-License-Identifier: Apache-2.0
"""Chooses how `materialize` brings the changes of a frame into order (C7, C9): not at all, or by one of three ways."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pyspark.sql import DataFrame

from forebay.changelog.shape import COMMIT_VERSION, SEQUENCE
from forebay.errors import ConfigurationError

_log = logging.getLogger(__name__)

Strategy = Literal["none", "sequence", "barrier", "retract"]
Mode = Literal["auto", "none", "force"]

STRATEGIES: Final = ("none", "sequence", "barrier", "retract")
MODES: Final = ("auto", "none", "force")


@dataclass(frozen=True)
class Verdict:
    """How a changelog is materialized, and why."""

    strategy: Strategy
    reason: str
    """One sentence for the log and for `describe`."""
    upsert_key: tuple[str, ...] | None
    """Columns that find the row which a change replaces; None: whole rows are compared."""
    sequence: tuple[str, ...] = ()
    """The columns that order the changes of a key over all splits, for the strategy `sequence`."""


def choose_strategy(
    df: DataFrame,
    key: Sequence[str],
    *,
    mode: Mode = "auto",
    strategy: str | None = None,
    sequence_by: Sequence[str] = (),
) -> Verdict:
    """Choose the strategy for a changelog and the key of its target.

    Args:
        df: The changelog.
        key: The key of the target; empty if it has none, then the whole row is the key (`force` only).
        mode: `auto` materializes where disorder is possible, `none` never, `force` always.
        strategy: The strategy of a changelog that is materialized; None lets this function choose.
        sequence_by: Columns that order all changes of a key, over all splits; by default `_sequence` or
            `_commit_version`, if the frame has it.

    Raises:
        ConfigurationError: A column does not exist, or the arguments contradict one another.
    """
    _check(df, key, mode, strategy, sequence_by)
    if mode == "none":
        verdict = Verdict("none", "mode is none: changes are passed on as they come", None)
    else:
        verdict = _chosen(strategy, _sequence(df, sequence_by))
    _log.info("materialize: %s, because %s", verdict.strategy, verdict.reason)
    return verdict


def _chosen(strategy: str | None, sequence: tuple[str, ...]) -> Verdict:
    if strategy == "sequence" or (strategy is None and sequence):
        return Verdict("sequence", f"{', '.join(sequence)} orders the changes over all splits", None, sequence)
    if strategy == "barrier":
        return Verdict("barrier", "the strategy was given", None)
    return Verdict("retract", "nothing promises the order of the changes", None)


def _sequence(df: DataFrame, sequence_by: Sequence[str]) -> tuple[str, ...]:
    if sequence_by:
        return tuple(sequence_by)
    return next(((name,) for name in (SEQUENCE, COMMIT_VERSION) if name in df.columns), ())


def _check(df: DataFrame, key: Sequence[str], mode: str, strategy: str | None, sequence_by: Sequence[str]) -> None:
    if mode not in MODES:
        raise ConfigurationError(f"unknown mode {mode!r}", option="mode", advice=f"use one of {', '.join(MODES)}")
    if strategy is not None and strategy not in STRATEGIES:
        advice = f"use one of {', '.join(STRATEGIES)}, or None to let forebay choose"
        raise ConfigurationError(f"unknown strategy {strategy!r}", option="strategy", advice=advice)
    for option, names in (("key", key), ("sequence_by", sequence_by)):
        unknown = [name for name in names if name not in df.columns]
        if unknown:
            advice = f"the columns are: {', '.join(df.columns)}"
            raise ConfigurationError(f"there is no column {unknown[0]!r}", option=option, advice=advice)
    if not key and mode == "auto":
        raise ConfigurationError(
            "there is no key", option="key", advice="name the key of the target; mode='force' takes the whole row"
        )
    if strategy == "sequence" and not _sequence(df, sequence_by):
        raise ConfigurationError(
            "the strategy sequence needs columns that order all changes",
            option="sequence_by",
            advice="name them, or read the changelog with a source that gives `_sequence`",
        )
    if (mode == "none" and strategy not in (None, "none")) or (mode == "force" and strategy == "none"):
        raise ConfigurationError(
            f"mode {mode} and strategy {strategy} contradict one another", option="strategy", advice="leave one out"
        )
