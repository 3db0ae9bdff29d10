# SPDX-License-Identifier: Apache-2.0
"""Describes the order, the unique keys and the changes of a DataFrame's rows by the names of its columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from pyspark.sql import DataFrame

from forebay.spark.keys.found_keys import find_key, marked_keys
from forebay.spark.keys.lineage import Lanes, Lineage, RowChanges
from forebay.spark.keys.operators import lineage_of
from forebay.spark.keys.plan import PlanNode, analysed_plan
from forebay.table.changelog.shape import POSITION, SEQUENCE, SPLIT
from forebay.table.keys import Guarantee, OrderScope

Columns: TypeAlias = tuple[frozenset[str], ...]

_POSITIONS: Final = (SPLIT, POSITION)


@dataclass(frozen=True)
class RowOrder:
    """What is known of the order, the unique keys and the changes of rows.

    Several columns may have equal values, so each column of a key is given as the set of all its names.

    Args:
        guarantee: The promise about order.
        lanes: The columns of the promise; None if one of them is gone, or if the promise is not by key.
        upsert_keys: The upsert keys.
        arriving: Columns within which rows arrive in order, so that a target need not sort them.
        once: Columns of which a value changes at most once in a micro-batch.
        transactional: Whether the source never spreads a transaction over several micro-batches.
        changes: What is known of the changes; None without a plan.
        identity: The columns that identify a row of the changelog; None if they are not known, or one of them is gone.
        own: The names of the changelog's own columns that still have its values, such as `_pos`.
        by_sequence: Whether the promise holds only if rows are sorted by `_sequence`.
    """

    guarantee: Guarantee
    lanes: Columns | None
    upsert_keys: tuple[Columns, ...]
    arriving: tuple[Columns, ...]
    once: tuple[Columns, ...]
    transactional: bool
    changes: RowChanges | None
    identity: Columns | None = None
    own: frozenset[str] = frozenset()
    by_sequence: bool = False


def within(columns: Sequence[frozenset[str]], names: Iterable[str]) -> bool:
    """Return whether `names` has at least one name of each column."""
    among = set(names)
    return all(column & among for column in columns)


def guarantee(df: DataFrame) -> Guarantee:
    """Return the promise about the order of rows: the weakest one of all steps from the source on (K15, K27).

    Rows with equal key columns at the source stay in order, also after these columns are dropped or overwritten, until
    the next `key_by` or shuffle. The columns `_split` and `_pos` restore the order after a shuffle, `_sequence`
    also after a `key_by` by other columns.
    """
    return row_order(df, analysed_plan(df)).guarantee


def upsert_keys(df: DataFrame) -> list[tuple[str, ...]]:
    """Return the upsert keys of a DataFrame: columns that identify a row, and within which changes come in order (C6).

    The keys are taken from the plan by Flink's rules. After a shuffle by D, a key K that does not contain D is lost in
    Flink; here, K and D together are a key. On Spark Connect, which shows no plan, only `with_upsert_key` gives keys.

    Returns:
        The keys, the shortest first. `[]` if there is none; `[()]` if there is only one row.
    """
    keys = {tuple(min(names) for names in key) for key in row_order(df, analysed_plan(df)).upsert_keys}
    places = {name: place for place, name in enumerate(df.columns)}
    ordered = (tuple(sorted(key, key=places.__getitem__)) for key in keys)
    return sorted(ordered, key=lambda key: (len(key), [places[name] for name in key]))


def row_order(df: DataFrame, plan: PlanNode | None) -> RowOrder:
    """Return what is known of the order, keys and changes of a DataFrame's rows. `plan` is its analysed plan."""
    if plan is None:
        return _without_plan(df)
    lineage = lineage_of(plan)
    changes = lineage.changes
    ids: dict[str, set[int]] = {}
    for column in plan.output:
        ids.setdefault(column.name, set()).add(column.id)
    own = frozenset(name for name, columns in changes.places.items() if name in ids and ids[name] <= columns)
    restored = SEQUENCE in own or own.issuperset(_POSITIONS)
    names = _names(plan, lineage)
    keys = _resolved((key.upsert_key(restored=restored) for key in lineage.keys), names)
    lanes = lineage.lanes
    direct = [lanes.columns] if lanes.names and lanes.shuffle is None else []
    arriving = _resolved([*direct, *(key.columns for key in lineage.keys if key.arrives_in_order)], names)
    identity = None if changes.identity is None else _resolve(changes.identity, names)
    if direct or (lanes.names and restored):
        promise = Guarantee(OrderScope.PER_KEY, lanes.names, lanes.shuffle)
        lane_columns = _resolve(lanes.columns, names)
    else:
        promise, lane_columns = _promise_by_columns(df, plan, lanes, own), None
    by_sequence = not (direct or (lanes.names and restored)) and promise.scope is OrderScope.PER_KEY
    return RowOrder(
        promise,
        lane_columns,
        keys,
        arriving,
        _resolved((key.columns for key in lineage.keys if key.once), names),
        lanes.transactional,
        changes,
        identity,
        own,
        by_sequence=by_sequence,
    )


def _promise_by_columns(df: DataFrame, plan: PlanNode, lanes: Lanes, own: frozenset[str]) -> Guarantee:
    """Return the promise that `_sequence`, or `_split` and `_pos`, give to rows that do not arrive in order."""
    weakest = lanes.shuffle if lanes.names else lanes.weakest
    key = find_key(df, plan).key
    if SEQUENCE in own and key.partition:
        return Guarantee(OrderScope.PER_KEY, key.partition, weakest)
    if {*df.columns}.issuperset(_POSITIONS):
        return Guarantee(OrderScope.PER_SPLIT, (), weakest)
    return Guarantee(OrderScope.NONE, (), weakest)


def _names(plan: PlanNode, lineage: Lineage) -> dict[int, frozenset[str]]:
    """Return the names of the columns that hold the values of each origin."""
    by_origin: dict[int, set[str]] = {}
    for column in plan.output:
        by_origin.setdefault(lineage.origins.get(column.id, column.id), set()).add(column.name)
    return {origin: frozenset(names) for origin, names in by_origin.items()}


def _resolved(keys: Iterable[frozenset[int] | None], names: Mapping[int, frozenset[str]]) -> tuple[Columns, ...]:
    """Return the keys whose columns all exist, shortest first. A key that contains another key is left out."""
    resolved = {key for columns in keys if columns is not None and (key := _resolve(columns, names)) is not None}
    least = [key for key in resolved if not any(set(other) < set(key) for other in resolved)]
    return tuple(sorted(least, key=lambda key: (len(key), [*map(sorted, key)])))


def _resolve(columns: frozenset[int], names: Mapping[int, frozenset[str]]) -> Columns | None:
    if not columns <= names.keys():
        return None
    return tuple(sorted((names[number] for number in columns), key=sorted))


def _without_plan(df: DataFrame) -> RowOrder:
    """Return what is known on Spark Connect: the plan is hidden, and with it shuffles, filters and unions."""
    weakest = "Spark Connect shows no plan"
    fields = [(field.name, field.metadata) for field in df.schema]
    keys = tuple(tuple(frozenset({name}) for name in key) for key in marked_keys(fields).values())
    scope = OrderScope.PER_SPLIT if {*df.columns}.issuperset(_POSITIONS) else OrderScope.NONE
    return RowOrder(Guarantee(scope, (), weakest), None, keys, (), (), transactional=False, changes=None)
