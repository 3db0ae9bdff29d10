# SPDX-License-Identifier: Apache-2.0
"""Finds the key of a DataFrame: the metadata of its columns, corrected by its plan."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from pyspark.sql import DataFrame

from forebay.errors import ConfigurationError
from forebay.spark.keys.plan import PlanNode, analysed_plan
from forebay.table.changelog.shape import CHANGE_TYPE, ChangeTraits, declared_traits
from forebay.table.keys import (
    FIELD_KEY,
    Declaration,
    JoinType,
    KeySpec,
    Metadata,
    after_join,
    after_stateful,
    after_union,
    declaration_id,
    declarations,
)

# -- Finds in a plan where keys are lost, which the metadata of columns alone does not show (K12–K17).


STATEFUL: Final = frozenset({"Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Distinct"})
"""Operators that keep the partition key and lose the primary key (K17)."""

FUNCTIONS: Final = frozenset(
    {
        "MapInPandas",
        "MapInArrow",
        "PythonMapInArrow",
        "FlatMapGroupsInPandas",
        "FlatMapGroupsInArrow",
        "FlatMapCoGroupsInPandas",
        "FlatMapCoGroupsInArrow",
        "FlatMapGroupsInPandasWithState",
        "TransformWithStateInPandas",
        "TransformWithStateInPySpark",
        "MapPartitions",
        "MapElements",
        "ScriptTransformation",
    }
)
"""Operators that pass whole rows to a user-defined function, and so lose the key (K16)."""

SET_OPERATORS: Final = frozenset({"Union", "Intersect", "Except"})
"""Operators whose sides must have the same key."""

_JOIN_TYPES: Final[dict[str, JoinType]] = {
    "Inner": "inner",
    "Cross": "cross",
    "LeftOuter": "left",
    "RightOuter": "right",
    "FullOuter": "full",
    "LeftSemi": "semi",
    "LeftAnti": "anti",
}


@dataclass
class KeyLosses:
    """What a plan loses of declared keys. Each field is a dict by the id of the key's declaration."""

    stateful: dict[str, str] = field(default_factory=dict)
    """The stateful operator that loses the primary key."""
    whole: dict[str, str] = field(default_factory=dict)
    """Why the whole key is lost."""
    columns: dict[str, dict[str, str]] = field(default_factory=dict)
    """Where each lost column was lost, by its declared name."""


def key_losses(plan: PlanNode) -> KeyLosses:
    """Return what the operators of a plan lose of the keys that its sources and `key_by` declare."""
    losses = KeyLosses()
    for node in plan.walk():
        present = set(carriers(node))
        if node.kind in STATEFUL:
            losses.stateful |= dict.fromkeys(present, node.text)
        elif node.kind in FUNCTIONS:
            below = {mark for child in node.children for mark in carriers(child)}
            losses.whole |= dict.fromkeys(present | below, f"a user-defined function gets whole rows: {node.text}")
        elif node.kind in SET_OPERATORS and _differ(node):
            losses.whole |= dict.fromkeys(present, f"the sides of {node.kind} have different keys")
        elif node.kind == "Join":
            losses.whole |= dict(_lost_by_join(node))
        for child in node.children:
            _note_lost_columns(node, child, losses)
    return losses


def carriers(node: PlanNode) -> dict[str, dict[str, set[int]]]:
    """Return the ids of the columns of a node that carry a key: declaration id → declared name → column ids."""
    carrying: dict[str, dict[str, set[int]]] = {}
    for column in node.output:
        entry = column.metadata.get(FIELD_KEY)
        if entry is not None:
            carrying.setdefault(entry["set"], {}).setdefault(entry["name"], set()).add(column.id)
    return carrying


def declared(node: PlanNode) -> list[Declaration]:
    """Return the declarations that the columns of a node carry."""
    return declarations((column.name, column.metadata) for column in node.output)


def join_type(node: PlanNode) -> JoinType:
    """Return the type of a join. An unknown type counts as full outer, which keeps no key."""
    value = node.fields.get("joinType")
    name = value.get("object", value.get("product-class", "")) if isinstance(value, dict) else str(value)
    return _JOIN_TYPES.get(str(name).rpartition(".")[2].rstrip("$"), "full")


def _differ(node: PlanNode) -> bool:
    first, *others = (_key_by_place(child) for child in node.children)
    return any(after_union(first, other) != first for other in others)


def _key_by_place(node: PlanNode) -> KeySpec:
    """Return the key with column indexes as names, because the sides of a union may name columns differently."""
    by_place = declarations((str(place), column.metadata) for place, column in enumerate(node.output))
    try:
        return by_place[0].present() if by_place else KeySpec()
    except ConfigurationError:
        return KeySpec()  # ambiguous; `keys_of` reports it for the columns of the result


def _lost_by_join(node: PlanNode) -> Iterator[tuple[str, str]]:
    """Yield (declaration id, reason) for the keys of the sides whose key does not hold after a join."""
    left, right = (set(carriers(child)) for child in node.children)
    joined = after_join(KeySpec(("left",)), KeySpec(("right",)), join_type(node))
    held = left if joined.partition == ("left",) else right if joined.partition == ("right",) else set()
    yield from dict.fromkeys((left | right) - held, f"a join of type {join_type(node)} does not keep it").items()


def _note_lost_columns(node: PlanNode, child: PlanNode, losses: KeyLosses) -> None:
    after = carriers(node)
    passed = {column.id for column in node.output}
    for expression in node.made():
        if expression.kind == "Alias" and expression.children[0].kind == "AttributeReference":
            passed.add(expression.children[0].id or 0)  # renamed, or given other metadata by `key_by`
    for declaration, columns in carriers(child).items():
        for name, numbers in columns.items():
            if name in after.get(declaration, {}) or numbers & passed:
                continue
            shown = {column.name for column in child.output if column.id in numbers}
            losses.columns.setdefault(declaration, {})[name] = _how(node, shown)


def _how(node: PlanNode, names: set[str]) -> str:
    """Return how a node loses the columns `names`, as text: it overwrites or drops them."""
    if node.kind == "Project":
        for place, expression in enumerate(node.expressions("projectList")):
            if expression.kind == "Alias" and expression.fields["name"] in names:
                text = node.jvm.projectList().apply(place).child().sql()
                return f"overwritten by {text}"
        return "dropped"
    return f"dropped by {node.kind}"


# -- Stores the upsert key that `with_upsert_key` asserts in the metadata of its columns.


FIELD_UPSERT_KEY: Final = "forebay.upsert_key"


def upsert_marks(columns: Sequence[str], mark: str) -> dict[str, dict[str, Any]]:
    """Return the metadata entries of an asserted upsert key, by column name. `mark` is the id of the assertion."""
    entry = {"v": 1, "set": mark, "columns": list(columns)}
    return {name: {FIELD_UPSERT_KEY: {**entry, "name": name}} for name in columns}


def marked_keys(fields: Iterable[tuple[Any, Metadata]]) -> dict[str, frozenset[Any]]:
    """Return the asserted upsert keys whose columns all exist, by mark. `fields` are pairs of column and metadata."""
    return {mark: frozenset(columns.values()) for mark, columns in asserted_keys(fields).items()}


def asserted_keys(fields: Iterable[tuple[Any, Metadata]]) -> dict[str, dict[str, Any]]:
    """Return the columns of asserted upsert keys by their names in the assertion; see `marked_keys`."""
    asserted: dict[str, dict[str, Any]] = {}
    whole: dict[str, Mapping[str, Any]] = {}
    for column, metadata in fields:
        entry = metadata.get(FIELD_UPSERT_KEY)
        if entry is not None:
            whole[entry["set"]] = entry
            asserted.setdefault(entry["set"], {}).setdefault(entry["name"], column)
    return {
        mark: {name: columns[name] for name in whole[mark]["columns"]}
        for mark, columns in asserted.items()
        if columns.keys() == set(whole[mark]["columns"])
    }


# -- Tells what a projection declares of its rows from metadata that were copied from another DataFrame.
#
# Spark copies metadata of columns with a schema: `df.to(other.schema)` gives the rows of `df` what was declared of
# those
# of `other`. So the id of a declaration depends on the plan that it was made for.


def key_declared_by(node: PlanNode) -> Declaration | None:
    """Return the key that a projection declares; None if it carries that of its input, or of other rows."""
    known = {declaration.id for declaration in declared(node.children[0])}
    new = [declaration for declaration in declared(node) if declaration.id not in known]
    made_for = node.children[0].semantic_hash if new else 0
    return next(
        (declaration for declaration in new if declaration.id == declaration_id(made_for, declaration.key)), None
    )


def traits_of(node: PlanNode) -> tuple[str, ChangeTraits] | None:
    """Return the declaration in the metadata of `_change_type`, if a node has it."""
    candidates = (declared_traits(column.metadata) for column in node.output if column.name == CHANGE_TYPE)
    return next((candidate for candidate in candidates if candidate is not None), None)


def traits_declared_by(node: PlanNode) -> ChangeTraits | None:
    """Return what a projection declares of its changes; None if it carries that of its input, or of other rows."""
    own, before = traits_of(node), traits_of(node.children[0])
    if own is None or (before is not None and own[0] == before[0]):
        return None
    child = node.children[0]
    columns = tuple(column.name for column in child.output)
    keys = [(), *(declaration.key.partition for declaration in declared(node))]
    ids = (own[1].declaration(child.semantic_hash, columns, key) for key in keys)
    return own[1] if own[0] in ids else None


def marks_made_by(node: PlanNode, known: Collection[str]) -> dict[str, frozenset[int]]:
    """Return the upsert keys that `with_upsert_key` asserts of the rows of a node, by mark.

    A leaf may have stored them with its columns.
    """
    new = asserted_keys((column.id, column.metadata) for column in node.output)
    return {
        mark: frozenset(columns.values())
        for mark, columns in new.items()
        if mark not in known
        and (not node.children or mark == declaration_id(node.children[0].semantic_hash, tuple(columns)))
    }


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
    found_key = find_key(df, analysed_plan(df), lenient=lenient)
    for text in found_key.warnings:
        warn_once(text)
    return found_key.key


def find_key(df: DataFrame, plan: PlanNode | None, *, lenient: bool = False) -> FoundKey:
    """Return the key of a DataFrame, and warnings for the parts that the query lost. `plan` is its analysed plan.

    Raises:
        ConfigurationError: Several columns are copies of one key column, and none has its name.
    """
    declared_keys = declarations((field.name, field.metadata) for field in df.schema)
    if plan is None:
        warn_once("Spark Connect shows no plan: keys are taken from the schema, even if an operator has lost them")
    losses = KeyLosses() if plan is None else key_losses(plan)
    chosen = next((declaration for declaration in declared_keys if declaration.id not in losses.whole), None)
    before = declared_keys if chosen is None else declared_keys[: declared_keys.index(chosen)]
    warnings = [f"the key {_shown(declaration)} is lost: {losses.whole[declaration.id]}" for declaration in before]
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


def _shown(declaration: Declaration) -> str:
    return f"({', '.join(declaration.key.partition or declaration.key.primary or ())})"


def _column_warnings(declaration: Declaration, losses: KeyLosses) -> list[str]:
    where = losses.columns.get(declaration.id, {})
    return [f"the column {name!r} left the key: {where.get(name, 'dropped')}" for name in declaration.lost]


def _key_gone(losses: KeyLosses) -> list[str]:
    """Return warnings for a DataFrame that lost all keys: why a key was lost, else where its columns were lost."""
    if losses.whole:
        return [f"the key is lost: {how}" for how in dict.fromkeys(losses.whole.values())]
    where = [(name, how) for lost in losses.columns.values() for name, how in lost.items()]
    return [f"the column {name!r} left the key, and the key is gone: {how}" for name, how in where]
