# SPDX-License-Identifier: Apache-2.0
"""Chooses the strategy of `materialize`: pass changes on, or order them by one of three kinds of state (C7, C9)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from pyspark.sql import DataFrame

from forebay.errors import ConfigurationError
from forebay.spark.changelog.changelog_modes import mode_of
from forebay.spark.changelog.columns import sequence_names
from forebay.spark.keys.plan.determinism import unrepeatable
from forebay.spark.keys.plan.plan_node import PlanNode, analysed_plan
from forebay.spark.keys.row_order import RowOrder, row_order, within
from forebay.table.keys.order_guarantee import OrderScope

_log = logging.getLogger(__name__)

Strategy = Literal["none", "sequence", "barrier", "retract"]
Mode = Literal["auto", "none", "force"]

STRATEGIES: Final = get_args(Strategy)
MODES: Final = get_args(Mode)


@dataclass(frozen=True)
class Verdict:
    """How a changelog is materialized, and why."""

    strategy: Strategy
    reason: str
    """One sentence for the log."""


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
        key: The key of the target. With `force` it may be empty: the whole row is the key.
        mode: `auto` materializes where disorder is possible, `none` never, `force` always.
        strategy: The strategy if the changelog is materialized; None: this function chooses.
        sequence_by: Columns that order all changes of a key, over all splits; by default `_sequence`, else
            `_commit_version` unless it comes from a join or from a changelog by another key.

    Raises:
        ConfigurationError: A column does not exist, the arguments contradict one another, an operator of the plan
            cannot take changes (C14), or whole rows must be compared but their values are not repeatable (C12).
    """
    _check(df, key, mode, strategy, sequence_by)
    if mode == "none" or strategy == "none":
        verdict = Verdict("none", "the caller chose it: changes are passed on as they come")
    else:
        plan = analysed_plan(df)
        changes = mode_of(df, plan)
        verdict = _chosen(row_order(df, plan), key, mode, strategy, _sequence(df, key, sequence_by))
        if verdict.strategy in ("barrier", "retract") and changes.retracts and plan is not None:
            _refuse_unrepeatable(plan)
    _log.info("materialize by (%s): %s, because %s", ", ".join(key), verdict.strategy, verdict.reason)
    return verdict


def _chosen(
    order: RowOrder, key: Sequence[str], mode: Mode, strategy: str | None, sequence: tuple[str, ...]
) -> Verdict:
    in_order = next((one for one in order.arriving if within(one, key)), None)
    if mode == "auto" and in_order is not None:
        reason = f"rows arrive in order within ({', '.join(_named(in_order))}), which is part of the target's key"
        return Verdict("none", reason)
    why = "mode is force" if in_order is not None else _disorder(order, key)
    if strategy is not None:
        found: Strategy = "sequence" if strategy == "sequence" else "barrier" if strategy == "barrier" else "retract"
        return Verdict(found, f"{why}; the strategy was given")
    if sequence:
        return Verdict("sequence", f"{why}; {', '.join(sequence)} orders all changes")
    if order.transactional:
        return Verdict("barrier", f"{why}; the source never spreads a transaction over micro-batches")
    return Verdict("retract", f"{why}; nothing orders the changes")


def _disorder(order: RowOrder, key: Sequence[str]) -> str:
    """Return why the changes of a key of the target may arrive out of order (C7)."""
    promise, shown = order.guarantee, ", ".join(key)
    if promise.scope is not OrderScope.PER_KEY or order.by_sequence:
        return f"no order is promised within ({shown}): {promise.weakest or 'the rows have no key'}"
    columns = ", ".join(promise.columns)
    if order.lanes is None:
        return f"rows are in order within ({columns}), but do not have these columns any more"
    if not within(order.lanes, key):
        return f"rows are in order within ({columns}), which the target's key ({shown}) does not contain"
    return f"rows within ({columns}) have to be sorted again after {promise.weakest}"


def _named(columns: Sequence[frozenset[str]]) -> tuple[str, ...]:
    return tuple(min(names) for names in columns)


def _refuse_unrepeatable(plan: PlanNode) -> None:
    """Check that a retraction can find its row by comparing whole rows (C12).

    Raises:
        ConfigurationError: A column or a condition has another value at each evaluation.
    """
    found = unrepeatable(plan)
    if found:
        raise ConfigurationError(
            f"{found[0]!r} has another value at each evaluation, so a retraction never matches its row",
            advice="compute it after materialize, or give sequence_by, so that rows are not compared",
        )


def _sequence(df: DataFrame, key: Sequence[str], sequence_by: Sequence[str]) -> tuple[str, ...]:
    if sequence_by:
        return tuple(sequence_by)
    return sequence_names(df, key)


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
            "materialize has no key", option="key", advice="name the target's key; mode='force' takes the whole row"
        )
    if strategy == "sequence" and not _sequence(df, key, sequence_by):
        raise ConfigurationError(
            "the strategy sequence needs columns that order all changes",
            option="sequence_by",
            advice="name them in sequence_by, or read the changelog with a source that gives `_sequence`",
        )
    if (mode == "none" and strategy not in (None, "none")) or (mode == "force" and strategy == "none"):
        raise ConfigurationError(
            f"mode {mode} and strategy {strategy} contradict one another", option="strategy", advice="leave one out"
        )
