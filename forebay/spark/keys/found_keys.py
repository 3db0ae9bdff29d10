# SPDX-License-Identifier: Apache-2.0
"""Finds the key of a DataFrame: the metadata of its columns, corrected by its plan."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import lru_cache

from pyspark.sql import DataFrame

from forebay.spark.keys.key_losses import KeyLosses, key_losses
from forebay.spark.keys.plan.plan_node import PlanNode, analysed_plan
from forebay.table.keys.field_metadata import Declaration, declarations
from forebay.table.keys.key_spec import KeySpec
from forebay.table.keys.propagation import after_stateful

_log = logging.getLogger("forebay.keys")


@dataclass(frozen=True)
class FoundKey:
    """The key of a DataFrame.

    Args:
        key: The key; without columns if there is none.
        declaration: The declaration that the key comes from.
        warnings: One sentence for each lost part of the key: which part, and where in the query.
    """

    key: KeySpec
    declaration: Declaration | None = None
    warnings: tuple[str, ...] = ()


@lru_cache(maxsize=1024)
def warn_once(text: str) -> None:
    """Log a warning, once for each text."""
    _log.warning(text)


def keys_of(df: DataFrame, *, lenient: bool = False) -> KeySpec:
    """Return the key of a DataFrame; `KeySpec()` if it has none (K3).

    If an operation of the query lost the key or a part of it, the logger `forebay.keys` warns of it once.

    Args:
        df: A batch or streaming DataFrame.
        lenient: Let a primary key shrink if a column is lost, as Foundry does, instead of losing it (K14).

    Raises:
        ConfigurationError: Several columns are copies of one key column, and none has its name.
    """
    found = find_key(df, analysed_plan(df), lenient=lenient)
    for text in found.warnings:
        warn_once(text)
    return found.key


def find_key(df: DataFrame, plan: PlanNode | None, *, lenient: bool = False) -> FoundKey:
    """Return the key of a DataFrame, and warnings for the parts that the query lost. `plan` is its analysed plan.

    Raises:
        ConfigurationError: Several columns are copies of one key column, and none has its name.
    """
    found = declarations((field.name, field.metadata) for field in df.schema)
    if plan is None:
        warn_once("Spark Connect shows no plan: keys are taken from the schema, even if an operator has lost them")
    losses = KeyLosses() if plan is None else key_losses(plan)
    chosen = next((one for one in found if one.id not in losses.whole), None)
    before = found if chosen is None else found[: found.index(chosen)]
    warnings = [f"the key {_shown(one)} is lost: {losses.whole[one.id]}" for one in before]
    if chosen is None:
        return FoundKey(KeySpec(), None, tuple(warnings or _key_gone(losses)))
    key = chosen.present(lenient=lenient)
    warnings += _column_warnings(chosen, losses)
    if chosen.key.primary and not key.primary and chosen.lost:
        warnings.append(
            f"the primary key ({', '.join(chosen.key.primary)}) is lost with the column {', '.join(chosen.lost)}"
        )
    if key.primary and chosen.id in losses.stateful:
        key = after_stateful(key)
        warnings.append(f"the primary key is lost in the stateful operator {losses.stateful[chosen.id]}")
    if not key.primary_is_partition:
        warnings.append(f"the primary key ({', '.join(key.primary or ())}) is not the partition key: order is not kept")
    return FoundKey(key, chosen, tuple(warnings))


def _shown(one: Declaration) -> str:
    return f"({', '.join(one.key.partition or one.key.primary or ())})"


def _column_warnings(one: Declaration, losses: KeyLosses) -> list[str]:
    where = losses.columns.get(one.id, {})
    return [f"the column {name!r} left the key: {where.get(name, 'dropped')}" for name in one.lost]


def _key_gone(losses: KeyLosses) -> list[str]:
    """Return warnings for a DataFrame that lost all keys: why a key was lost, else where its columns were lost."""
    if losses.whole:
        return [f"the key is lost: {how}" for how in dict.fromkeys(losses.whole.values())]
    where = [(name, how) for one in losses.columns.values() for name, how in one.items()]
    return [f"the column {name!r} left the key, and the key is gone: {how}" for name, how in where]
