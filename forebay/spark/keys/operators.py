# SPDX-License-Identifier: Apache-2.0
"""The rule of each plan node for order, identity and changes (C1, C6, C14).

Order and identity follow Flink's rules for upsert keys and Spark's shuffles. A node that has no rule keeps nothing:
what is not proven is not assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from forebay.spark.keys.found_keys import (
    FUNCTIONS,
    declared,
    join_type,
    key_declared_by,
    marked_keys,
    marks_made_by,
    traits_declared_by,
    traits_of,
)
from forebay.spark.keys.lineage import GONE, Lanes, Lineage, RowChanges, UniqueKey
from forebay.spark.keys.plan import (
    Expression,
    Origins,
    PlanNode,
    adds_by_sign,
    conjuncts,
    equal_columns,
    join_hints,
    ordered_as,
    origin_of,
    origins_after,
    origins_of,
    reads_unrepeatable,
)
from forebay.table.changelog.shape import CHANGE_TYPE, COLUMNS, POSITION, SPLIT, ChangeTraits, Images, RowKind
from forebay.table.keys import Declaration

_NARROW: Final = frozenset(
    {"Project", "SubqueryAlias", "View", "EventTimeWatermark", "CTERelationDef", "CollectMetrics"}
)
"""Operators that handle each row on its own, without a shuffle, and put out one row for it."""

_SAMPLES: Final = frozenset({"LocalLimit", "GlobalLimit", "Offset", "Tail", "Sample"})
"""Operators that leave out rows whatever these hold."""

_SOURCES: Final = frozenset({"StreamingRelationV2", "DataSourceV2Relation"})
"""Leaves that may be sources of forebay: no shuffle and no filter is hidden behind these."""

NORMALIZE: Final = "call normalize(changes, key) before this step: it adds the old rows"
_MATERIALIZE: Final = "apply this step to the rows of the target"


def lineage_of(plan: PlanNode) -> Lineage:
    """Return the lineage of the rows of a plan."""
    return _lineage(plan, {})


def _lineage(node: PlanNode, named: dict[int, tuple[PlanNode, Lineage]]) -> Lineage:
    """Return the lineage of a node. `named` has the common table expressions and their lineages, by their ids."""
    if node.kind == "WithCTE":
        for definition in node.children[:-1]:
            named[definition.fields["id"]] = definition, _lineage(definition, named)
        return _lineage(node.children[-1], named)
    if node.kind == "CTERelationRef" and node.fields["cteId"] in named:
        definition, lineage = named[node.fields["cteId"]]
        return lineage.moved(definition.output, node.output)
    inputs = [_lineage(child, named) for child in node.children]
    if not inputs:
        return _asserted(node, _leaf(node), known=set())
    if node.kind == "Join":
        after = _join(node, inputs[0], inputs[1])
    elif len(inputs) > 1:
        after = _set_operator(node, inputs)
    else:
        after = _RULES.get(node.kind, _unknown)(node, inputs[0])
        after = replace(after, origins=origins_after(node, after.origins))
    subqueries = [_lineage(subquery, named).changes for subquery in node.subqueries()]
    after = _with_broken(after, [*(side.changes for side in inputs), *subqueries])
    if subqueries:
        after = _with_subquery(node, after, subqueries)
    after = replace(after, changes=_followed(node, after.changes))
    if node.kind == "Project":
        after = _declared_again(node, _keyed_again(node, after))
    known = {mark for child in node.children for mark in _marks(child)}
    return _asserted(node, after, known=known)


def _leaf(node: PlanNode) -> Lineage:
    origins = {column.id: column.id for column in node.output}
    key = next(iter(declared(node)), None)
    names = [column.name for column in node.output]
    hidden = None if _is_source(node) else f"the plan behind {node.kind} is not known"
    if key is None or not key.ordered:
        split = SPLIT in names and POSITION in names
        lanes = Lanes(weakest=None if split else f"{node.kind} promises no order")
        lineage = Lineage(origins, lanes, () if key is None else _primary(key, node, ordered=False))
    else:
        columns = frozenset(_numbers(key, key.key.partition, node))
        lanes = Lanes(key.key.partition, columns, transactional=key.transactional)
        ordered = set(key.key.partition) <= set(key.key.primary or ())
        lineage = Lineage(origins, lanes, _primary(key, node, ordered=ordered))
    if hidden is not None:
        lineage = lineage.shuffled(None, hidden)
    return replace(lineage, changes=_leaf_changes(node, key, hidden))


def _is_source(node: PlanNode) -> bool:
    """Return whether a leaf is a Python data source. Other tables keep the metadata of columns that were written."""
    return node.kind in _SOURCES and ".python." in str(node.jvm.table().getClass().getName())


def _leaf_changes(node: PlanNode, key: Declaration | None, hidden: str | None) -> RowChanges:
    """Return the changes of a leaf.

    Without `_change_type`, rows are appended; those of a stream with a primary key replace the row of their key.
    """
    identity = None if key is None or key.present().primary is None else key.key.primary
    columns = None if key is None or identity is None else frozenset(_numbers(key, identity, node))
    traits = traits_of(node)
    changes = _changes(node, ChangeTraits() if traits is None else traits[1], columns)
    if not changes.kind:
        replaces = columns is not None and node.streaming
        return replace(changes, images=Images.UPSERT if replaces else Images.APPEND, complete=True)
    if hidden is not None:  # a filter may be hidden too, behind what was declared before it
        doubt = None if traits is None and columns is None else hidden
        reasons = (f"images and history: {hidden}",)
        return replace(changes, images=None, identity=None, complete=False, doubt=doubt, lost=reasons)
    return replace(changes, images=None) if traits is None else changes


def _changes(node: PlanNode, traits: ChangeTraits, identity: frozenset[int] | None) -> RowChanges:
    """Return the changes that a node declares."""
    places: dict[str, frozenset[int]] = {}
    for column in node.output:
        if column.name in COLUMNS and column.name != CHANGE_TYPE:
            places[column.name] = places.get(column.name, frozenset()) | {column.id}
    kind = frozenset(column.id for column in node.output if column.name == CHANGE_TYPE)
    corrupt = frozenset(column.id for column in node.output if column.name == traits.corrupt)
    return RowChanges(
        traits.images,
        identity,
        traits.complete,
        comparable=traits.comparable,
        log=traits.log,
        kind=kind,
        kinds=kind,
        places=places,
        placed=frozenset(column.id for column in node.output if column.name in traits.kept).union(*places.values()),
        corrupt=corrupt,
    )


def _followed(node: PlanNode, changes: RowChanges) -> RowChanges:
    """Return the changes with the columns of the node's output: which ones are, or depend on, those of a changelog."""
    made = {alias.id: alias for alias in node.made() if alias.kind == "Alias" and alias.id is not None}
    generated: set[int] = set()
    if node.kind == "Generate":
        generated = {column.id for column in node.output} - {column.id for column in node.children[0].output}

    def exact(columns: frozenset[int]) -> frozenset[int]:
        renamed = {number for number, alias in made.items() if ordered_as(alias.children[0]) in columns}
        return frozenset(column.id for column in node.output if column.id in columns or column.id in renamed)

    def depend(columns: frozenset[int]) -> frozenset[int]:
        computed = {number for number, alias in made.items() if alias.references & columns}
        if any(expression.references & columns for expression in node.all_expressions()):
            computed |= generated
        return frozenset(column.id for column in node.output if column.id in columns or column.id in computed)

    after = changes.followed(exact, depend)
    if changes.updates and changes.kinds and not after.kinds:
        return after.broke(
            f"{node.text} drops {CHANGE_TYPE}, so that changes count as rows", "keep the column, or materialize before"
        )
    if changes.kind and not after.kind and after.images is Images.FULL:
        note = f"images: {node.text} drops {CHANGE_TYPE}"
        return replace(after, images=Images.UPSERT, complete=False, lost=(*after.lost, note))
    return after


def _primary(key: Declaration, node: PlanNode, *, ordered: bool) -> tuple[UniqueKey, ...]:
    """Return the declared primary key as a unique key; () if one of its columns is lost."""
    if key.present().primary is None:
        return ()
    return (UniqueKey(frozenset(_numbers(key, key.key.primary or (), node)), ordered=ordered),)


def _numbers(key: Declaration, names: tuple[str, ...], node: PlanNode) -> list[int]:
    numbers = {column.name: column.id for column in node.output}
    return [numbers[key.columns[name][0]] if name in key.columns else GONE for name in names]


def _marks(node: PlanNode) -> dict[str, frozenset[int]]:
    return marked_keys((column.id, column.metadata) for column in node.output)


def _asserted(node: PlanNode, lineage: Lineage, *, known: set[str]) -> Lineage:
    """Add the upsert keys that `with_upsert_key` asserts at this node: they identify a row, in order."""
    new = marks_made_by(node, known)
    if not new:
        return lineage
    keys = tuple(UniqueKey(frozenset(lineage.origins[column] for column in columns)) for columns in new.values())
    changes = lineage.changes
    if changes.identity is None or changes.images is Images.APPEND:
        changes = _identified(node, changes, keys[0].columns)
    return replace(lineage, keys=(*lineage.keys, *keys), changes=changes)


def _keyed_again(node: PlanNode, lineage: Lineage) -> Lineage:
    """Return the lineage after a projection that may be a `key_by`.

    The order is kept only if the new key contains the lanes (K28), or if a converter declares the key as ordered: it
    may know more than the plan, such as that message keys are the key columns.
    """
    key = key_declared_by(node)
    if key is None:
        return lineage
    columns = frozenset(lineage.origins.get(number, GONE) for number in _numbers(key, key.key.partition, node))
    lanes = lineage.lanes
    in_order = key.ordered or (bool(lanes.names) and lanes.columns <= columns)
    transactional = lanes.transactional or key.transactional
    if in_order and not lanes.names:  # a function of forebay knows its rows: it put them in order
        lanes = Lanes(key.key.partition, columns, transactional=transactional)
    elif in_order:
        lanes = replace(lanes, names=key.key.partition, columns=columns, transactional=transactional)
    else:
        text = f"key_by({', '.join(key.key.partition)}) cannot restore an order that was not kept before"
        lanes = replace(lanes.lost(text), shuffle=lanes.shuffle)
    if key.key.primary is None:
        return replace(lineage, lanes=lanes)
    spread: frozenset[int] | None = frozenset() if lanes.shuffle is None else None
    primary = frozenset(lineage.origins.get(number, GONE) for number in _numbers(key, key.key.primary, node))
    unique = UniqueKey(primary, spread, ordered=in_order and columns <= primary)
    known_already = any(known.columns == primary for known in lineage.keys)
    keys = lineage.keys if known_already else (*lineage.keys, unique)
    return replace(lineage, lanes=lanes, keys=keys, changes=_identified(node, lineage.changes, primary))


def _identified(node: PlanNode, changes: RowChanges, primary: frozenset[int]) -> RowChanges:
    """Return the changes after `key_by` says which columns identify a row.

    Changes keep a key that is proven: several rows may have the same value of another one.
    """
    if changes.images is Images.APPEND and node.streaming:
        return replace(changes, images=Images.UPSERT, identity=primary)
    if changes.images in (Images.UPSERT, Images.FULL) and changes.identity is not None:
        return changes
    return replace(changes, identity=primary)


def _declared_again(node: PlanNode, lineage: Lineage) -> Lineage:
    """Return the lineage after a projection that may declare the traits of changes, or make `_change_type` itself."""
    traits = traits_declared_by(node)
    if traits is not None:
        key = next(iter(declared(node)), None)
        primary = () if key is None or key.present().primary is None else key.key.primary or ()
        identity = None
        if key is not None and primary:
            identity = frozenset(lineage.origins.get(number, GONE) for number in _numbers(key, primary, node))
        was = lineage.changes
        after = replace(_changes(node, traits, identity), broken=was.broken)
        if not traits.asserted:  # a converter knows the kinds, not what the plan did to keys and places
            after = replace(
                after,
                identity=identity if was.images is None or was.identity is None else was.identity,
                comparable=after.comparable and was.comparable,
                repeatable=was.repeatable,
                several=was.several,
                places={name: columns & was.places.get(name, columns) for name, columns in after.places.items()},
                placed=after.placed | was.placed,
                looked_up=was.looked_up,
                paired=was.paired,
                doubt=was.doubt if was.images is not None else None,
                lost=() if was.images is None else was.lost,
            )
        return replace(lineage, changes=after)
    kind = {column.id for column in node.output if column.name == CHANGE_TYPE}
    if kind <= lineage.changes.kind:
        return lineage
    return replace(lineage, changes=lineage.changes.undeclared(f"{CHANGE_TYPE} is computed by {node.text}"))


def _filter(node: PlanNode, before: Lineage) -> Lineage:
    return replace(before, changes=_left_out(before, node.expressions("condition"), node.text))


def _left_out(before: Lineage, condition: Iterable[Expression], text: str, *, of: Origins | None = None) -> RowChanges:
    """Return the changes of those rows that meet a condition. `of` has the columns that count; None: all.

    With whole old rows, a row that ceases to meet it is retracted. Without them, its old row would stay, unless the
    condition is one of the key alone. `_change_type` and the place of a change must not decide.
    """
    changes = before.changes
    if changes.images is Images.APPEND:
        condition = tuple(condition)
        origins = {before.origins.get(number, number) for term in condition for number in term.references}
        versions = changes.identity is not None and not changes.kinds and not origins <= changes.identity
        return replace(changes, doubt=changes.doubt or text) if versions and of is None else changes
    own = changes.kinds | changes.placed
    for one in conjuncts(condition):
        used = one.references if of is None else one.references & of.keys()
        tested = one.children[0].id if one.children and one.children[0].kind == "AttributeReference" else None
        if (one.kind == "IsNull" and tested in changes.corrupt) or (one.kind == "IsNotNull" and tested in changes.kind):
            continue
        if _drops_old_rows(one, changes):
            if not changes.paired:
                why = f"{text} drops the old rows of updates, also those whose new row was left out before"
                return changes.broke(why, "apply it before other filters and joins")
            note = f"images: {text} drops the old rows of updates"
            images = None if changes.images is None else Images.UPSERT
            changes = replace(changes, images=images, complete=False, lost=(*changes.lost, note))
            continue
        keyed = {before.origins.get(number, number) for number in used} <= (changes.identity or frozenset())
        if changes.images is None:
            changes = changes if keyed else changes.unsure(text)
            continue
        if used & own:
            why = f"{text} leaves out changes by their kind or place, so that others have no old or new row"
            return changes.broke(why, f"apply it before the changelog is made, or {_MATERIALIZE}")
        if changes.images is Images.UPSERT and not keyed:
            return changes.broke(
                f"a row that ceases to meet the condition stays in the table, because the changes have no old rows: "
                f"{text}",
                NORMALIZE,
            )
        changes = changes if keyed else replace(changes, paired=False)
    return changes


def _drops_old_rows(condition: Expression, changes: RowChanges) -> bool:
    """Return whether a condition is `_change_type <> 'update_preimage'`."""
    if condition.kind != "Not" or condition.children[0].kind != "EqualTo":
        return False
    sides = condition.children[0].children
    words = [side.fields.get("value") for side in sides if side.kind == "Literal"]
    return words == [RowKind.UPDATE_BEFORE.change_type] and any(side.id in changes.kind for side in sides)


def _sample(node: PlanNode, before: Lineage) -> Lineage:
    after = before.shuffled(None, node.text) if node.kind == "GlobalLimit" else before
    return replace(after, changes=_without_some(after.changes, node.text))


def _without_some(changes: RowChanges, text: str) -> RowChanges:
    """Return the changes after an operator that takes each change for a row, and leaves some out."""
    if not changes.updates:
        return changes
    return changes.broke(f"{text} takes changes for rows, and leaves some out", _MATERIALIZE)


def _sort(node: PlanNode, before: Lineage) -> Lineage:
    return before.shuffled(None, node.text)  # within a partition, too, the rows of a key change places


def _repartition(node: PlanNode, before: Lineage) -> Lineage:
    return before.shuffled(None, node.text) if node.fields.get("shuffle") else before


def _shuffle(node: PlanNode, before: Lineage) -> Lineage:
    expressions = node.expressions("partitionExpressions")
    by = origins_of(expressions, before.origins) if expressions else None
    return before.shuffled(by, node.text)


def _generate(node: PlanNode, before: Lineage) -> Lineage:
    changes = replace(before.changes, several=True, paired=False)
    if changes.images is Images.UPSERT:
        why = f"rows that are not made any more stay in the table, because the changes have no old rows: {node.text}"
        changes = changes.broke(why, NORMALIZE)
    if changes.images is None:
        changes = changes.unsure(node.text)
    return replace(before, keys=(), changes=changes)


def _aggregate(node: PlanNode, before: Lineage) -> Lineage:
    """Return the lineage after an aggregate. A group changes once in a micro-batch, so no shuffle disorders its key."""
    groups = node.expressions("groupingExpressions")
    origins = dict(before.origins)
    columns, names = set(), []
    for group in groups:
        origin = origin_of(group, before.origins)
        columns.add(_made_as(node, group) if origin is None else origin)
        names.append(str(group.fields.get("name", "expression")))
    by = origins_of(groups, before.origins)
    lanes = before.lanes
    if lanes.names and by is not None and lanes.columns <= by:
        lanes = replace(lanes, names=tuple(names), columns=by, once=True)
    else:
        lanes = lanes.lost(f"{node.text} puts rows of several keys together")
    keys = () if GONE in columns else (UniqueKey(frozenset(columns), once=True),)
    images = Images.UPSERT if node.streaming else Images.APPEND
    broken = _aggregated(node, before.changes).broken
    changes = RowChanges(images, frozenset(columns), complete=not node.streaming, broken=broken)
    return Lineage(origins, lanes, keys, changes)


def _aggregated(node: PlanNode, changes: RowChanges) -> RowChanges:
    """Return the changes after an aggregate, which needs each of them once, and their signs."""
    if not changes.updates and changes.complete:
        return changes
    if not changes.updates:
        why = f"{node.text} needs each row exactly once, and rows may come again (history is unknown)"
        return changes.broke(
            why, "declare history='complete' if they do not; or materialize by a key of the rows first"
        )
    if any(below.kind == "EventTimeWatermark" for below in node.walk()):
        return changes.broke(f"{node.text} drops late changes, because there is a watermark", "leave out withWatermark")
    if reads_unrepeatable(node):
        why = f"{node.text} has other values each time it is computed"
        return changes.broke(why, "group and add up columns of the source")
    of_change = changes.kinds | changes.placed
    if not adds_by_sign(node, changes.kind, of_change):
        return changes.broke(
            f"{node.text} takes changes for rows",
            "call normalize(changes, key) before it, and let each aggregate be a sum with a sign: "
            "SUM(CASE WHEN _change_type IN ('insert', 'update_postimage') THEN 1 ELSE -1 END)",
        )
    groups: frozenset[int] = frozenset().union(*(group.references for group in node.expressions("groupingExpressions")))
    if groups & of_change:
        return changes.broke(f"{node.text} groups by columns that belong to a change", "group by columns of the row")
    if changes.counted and changes.complete:
        return changes
    why = f"{node.text} needs each change exactly once, and whole old rows, which the changes do not promise"
    return changes.broke(why, NORMALIZE)


def _made_as(node: PlanNode, group: Expression) -> int:
    """Return the id of the output column that has the value of a grouping expression; GONE if there is none."""
    made = (alias.id for alias in node.made() if alias.kind == "Alias" and alias.children[0] == group)
    return next((number for number in made if number is not None), GONE)


def _deduplicate(node: PlanNode, before: Lineage) -> Lineage:
    """Return the lineage after a deduplication. Its columns are a unique key, unless a watermark limits its memory."""
    by = origins_of(node.expressions("keys"), before.origins)
    after = before.shuffled(by, node.text)
    after = replace(after, changes=_without_some(after.changes, node.text))
    if by is None or node.kind == "DeduplicateWithinWatermark":
        return after
    return replace(after, keys=(*after.keys, UniqueKey(by, once=True)))


def _distinct(node: PlanNode, before: Lineage) -> Lineage:
    after = before.shuffled(None, node.text)
    return replace(after, changes=_without_some(after.changes, node.text))


def _window(node: PlanNode, before: Lineage) -> Lineage:
    """Return the lineage after a window. The partition columns and a `row_number()` together are a unique key."""
    by = origins_of(node.expressions("partitionSpec"), before.origins)
    after = before.shuffled(by, node.text)
    if after.changes.updates:
        why = f"a window function needs append-only rows, but gets changes: {node.text}"
        advice = "materialize the changes, and apply the window function to the rows of the target"
        after = replace(after, changes=after.changes.broke(why, advice))
    numbered = [alias for alias in node.made() if any(part.kind == "RowNumber" for part in alias.walk())]
    if by is None or not numbered or numbered[0].id is None:
        return after
    return replace(after, keys=(*after.keys, UniqueKey(by | {numbered[0].id}, once=True)))


def _unknown(node: PlanNode, before: Lineage) -> Lineage:
    """Return the lineage after a user-defined function or an operator without a rule: no order and no keys are left."""
    why = "a user-defined function gets whole rows" if node.kind in FUNCTIONS else "no rule for this operator"
    text = f"{why}: {node.text}"
    lanes = replace(before.lanes.lost(text), transactional=False)
    changes = before.changes.undeclared(text)
    if any(column.name == CHANGE_TYPE for column in node.output):
        own = replace(_changes(node, ChangeTraits(), None), images=None, lost=changes.lost, broken=changes.broken)
        doubt = before.changes.doubt or (node.text if before.changes.updates else None)
        return Lineage({}, lanes, changes=replace(own, doubt=doubt))
    if before.changes.images is Images.APPEND:  # the function may repeat rows; with state, it may replace them
        images = Images.UPSERT if "State" in node.kind else Images.APPEND
        changes = replace(before.changes, images=images, identity=None, complete=False)
    return Lineage({}, lanes, changes=changes)


def _with_broken(after: Lineage, inputs: Iterable[RowChanges]) -> Lineage:
    """Return the lineage of a node; what one of its inputs has broken stays broken."""
    broken = next((lineage.broken for lineage in inputs if lineage.broken), None)
    return replace(after, changes=after.changes.broke(*broken)) if broken else after


def _with_subquery(node: PlanNode, after: Lineage, subqueries: Iterable[RowChanges]) -> Lineage:
    """Return the lineage of a node with subqueries, which Spark may turn into joins: they may shuffle, and filter."""
    after = after.shuffled(None, node.text)
    changes = replace(after.changes, repeatable=False)
    if any(subquery.updates and subquery.kinds for subquery in subqueries):
        why = f"a subquery of {node.text} takes changes for rows"
        changes = changes.broke(why, "materialize them to a table and query its rows")
    if changes.updates and node.kind != "Project":
        changes = changes.broke(
            f"a subquery decides which changes are left out: {node.text}",
            "write it as a join with the table, or apply it to the rows of the target",
        )
    return replace(after, changes=changes)


def _set_operator(node: PlanNode, inputs: list[Lineage]) -> Lineage:
    """Return the lineage after a union, which mixes all inputs, or a set operation that keeps rows of the left one."""
    if node.kind != "Union":
        after = (
            inputs[0].shuffled(None, node.text) if node.kind in ("Intersect", "Except") else _unknown(node, inputs[0])
        )
        updating = next((lineage.changes for lineage in inputs if lineage.changes.updates), after.changes)
        return replace(after, changes=_without_some(updating, node.text))
    why = f"{node.kind} puts the rows of several inputs together"
    sides = [lineage.moved(child.output, node.output) for lineage, child in zip(inputs, node.children, strict=True)]
    first, *others = sides
    changes = [side.changes for side in sides]
    log = first.changes.log
    one_log = log is not None and all(change.comparable and change.log == log for change in changes)
    transactional = all(side.lanes.transactional for side in sides)
    lanes = replace(first.lanes.lost(why), transactional=transactional)
    if one_log and first.lanes.names and all(other.lanes.columns == first.lanes.columns for other in others):
        lanes = replace(first.lanes, shuffle=first.lanes.shuffle or why, transactional=transactional)
    origins = {column.id: column.id for column in node.output}
    return Lineage(origins, lanes, changes=_united(node, changes, why, one_log=one_log))


def _united(node: PlanNode, sides: list[RowChanges], why: str, *, one_log: bool) -> RowChanges:
    """Return the changes of a union. `one_log` says whether all inputs are of the same log."""
    first = sides[0]
    broken = next((side.broken for side in sides if side.broken), None)
    lost = tuple(dict.fromkeys(text for side in sides for text in side.lost))
    images = [side.images for side in sides if side.images is not None]
    kinds = first.kinds.union(*(side.kinds for side in sides))
    placed = first.placed.union(*(side.placed for side in sides))
    kind = first.kind.intersection(*(side.kind for side in sides))
    named = {column.id for column in node.output if column.name == CHANGE_TYPE}
    if len(images) < len(sides) or named != kind:
        reasons = (*lost, f"images and history: {why}")
        return RowChanges(comparable=one_log, kinds=kinds, placed=placed, broken=broken, doubt=why, lost=reasons)
    same = one_log and all(side.identity == first.identity for side in sides)
    places = {
        name: columns.intersection(*(side.places.get(name, frozenset()) for side in sides))
        for name, columns in first.places.items()
        if one_log
    }
    if not one_log and first.updates:
        lost = (*lost, f"order: {why}, whose changes are of different logs")
    return RowChanges(
        min(images),
        first.identity if same else None,
        all(side.complete for side in sides),
        all(side.repeatable for side in sides),
        any(side.several for side in sides),
        all(side.comparable for side in sides) and one_log,
        first.log if one_log else None,
        kind,
        kinds,
        places,
        placed,
        first.looked_up.union(*(side.looked_up for side in sides)),
        all(side.paired for side in sides),
        first.corrupt.intersection(*(side.corrupt for side in sides)),
        broken,
        next((side.doubt for side in sides if side.doubt), None),
        lost,
    )


def _join(node: PlanNode, left: Lineage, right: Lineage) -> Lineage:
    """Return the lineage of the rows that a join puts out.

    A join shuffles each side by the columns that its condition equates, unless the other side is broadcast. A semi
    or anti join keeps the keys of the left side. Another join keeps the keys of a side if each row of this side finds
    at most one row of the other side, and the join adds no rows without this side. If no key is kept, each key of the
    left side and each key of the right side are a key together.
    """
    how = join_type(node)
    pairs = equal_columns(node.expressions("condition"), left.origins, right.origins)
    on_left = None if pairs is None else frozenset(mine for mine, _ in pairs)
    on_right = None if pairs is None else frozenset(theirs for _, theirs in pairs)
    left_moves, right_moves = (_moves(child) for child in node.children)
    broadcast = _broadcast_side(node, how)
    left_rows = left if broadcast == "right" else left.shuffled(on_left, node.text)
    right_rows = right if broadcast == "left" else right.shuffled(on_right, node.text)
    finds_one = _finds_one(left, on_left), _finds_one(right, on_right)
    keys = _join_keys(how, *finds_one, left_rows, right_rows)
    from_right = right_moves and not left_moves
    moving, table = (right_rows, left_rows) if from_right else (left_rows, right_rows)
    lanes = moving.lanes
    if left_moves and right_moves:  # a row waits in state for its match
        lanes = replace(lanes.lost(f"rows of two streams meet in {node.text}"), transactional=False)
        changes = _both_change(node, moving.changes, table.changes)
    else:
        adds = how in ("full", "left" if from_right else "right")
        if adds:
            lanes = lanes.lost(f"{node.text} puts out rows without the key")
        single = finds_one[0 if from_right else 1] or how in ("semi", "anti")
        if table.changes.updates and table.changes.kinds:
            why = f"{node.text} looks up changes as if they were rows"
            broken = why, "materialize them to a table and look up its rows, or use changelog_join"
            moving = replace(moving, changes=moving.changes.broke(*broken))
        if table.changes.broken:
            moving = replace(moving, changes=moving.changes.broke(*table.changes.broken))
        keeps_all = how == ("right" if from_right else "left")
        changes = _looked_up(node, moving, single=single, keeps_all=keeps_all, adds=adds)
    origins = dict(left.origins) if how in ("semi", "anti") else {**left.origins, **right.origins}
    after = Lineage(origins, lanes, keys, changes)
    if how == "inner" and pairs:
        after = after.renumbered({theirs: mine for mine, theirs in pairs})
    return replace(after, origins=origins_after(node, after.origins))


def _both_change(node: PlanNode, left: RowChanges, right: RowChanges) -> RowChanges:
    """Return the changes of a join whose sides both change."""
    if left.updates or right.updates:
        why = f"a join of two streams needs append-only rows, but gets changes: {node.text}"
        return left.broke(why, "use changelog_join, which takes changes on both sides")
    return replace(left, complete=left.complete and right.complete)


def _looked_up(node: PlanNode, moving: Lineage, *, single: bool, keeps_all: bool, adds: bool) -> RowChanges:
    """Return the changes after a join with a table.

    Args:
        node: The join.
        moving: The side with the changes.
        single: Whether a row finds at most one row of the table.
        keeps_all: Whether a row without a match is put out.
        adds: Whether rows of the table without a match are put out.
    """
    changes = moving.changes
    changes = replace(changes, several=changes.several or not single, paired=changes.paired and single)
    if node.streaming and changes.updates:
        note = f"values: {node.text} reads a table that may have changed when a row is retracted"
        columns = frozenset(column.id for column in node.output) - moving.origins.keys()
        changes = replace(changes, repeatable=False, looked_up=changes.looked_up | columns, lost=(*changes.lost, note))
    if not changes.updates:
        return changes
    condition = tuple(node.expressions("condition"))
    if changes.images is not None and any(one.references & (changes.kinds | changes.placed) for one in condition):
        why = f"the kind or the place of a change decides what it is joined with: {node.text}"
        return changes.broke(why, "join by columns of the row")
    if adds:
        return changes.broke(f"{node.text} puts out rows that are no changes", "use a left, inner, semi or anti join")
    if not keeps_all:
        changes = _left_out(replace(moving, changes=changes), condition, node.text, of=moving.origins)
    if not single and changes.images is Images.UPSERT:
        why = f"old rows of {node.text} stay, because a row may find several, and the changes have no old rows"
        changes = changes.broke(why, f"{NORMALIZE}; or declare the key of the table by key_by(table, …, cdc=True)")
    if not single and changes.images is None:
        changes = changes.unsure(node.text)
    return changes


def _join_keys(how: str, left_one: bool, right_one: bool, left: Lineage, right: Lineage) -> tuple[UniqueKey, ...]:
    if how in ("semi", "anti"):
        return left.keys
    keys: list[UniqueKey] = []
    if right_one and how in ("inner", "left", "cross"):
        keys += left.keys
    if left_one and how in ("inner", "right", "cross"):
        keys += right.keys
    return tuple(keys) or tuple(mine.joined(theirs) for mine in left.keys for theirs in right.keys)


def _finds_one(side: Lineage, on: frozenset[int] | None) -> bool:
    """Return whether a row of the other side finds at most one row of this side; `on` are the equated columns."""
    return on is not None and any(key.columns <= on for key in side.keys)


def _moves(side: PlanNode) -> bool:
    """Return whether a side is a stream or a changelog, and not a table that is only looked up."""
    return side.streaming or any(column.name == CHANGE_TYPE for column in side.output)


def _broadcast_side(node: PlanNode, how: str) -> str | None:
    """Return the side that Spark sends whole to each task, so that the other side is not shuffled; None if unsure.

    Spark follows a hint for the side that the type of the join lets it build. With hints on both sides, sizes decide.
    """
    hints = join_hints(node)
    if hints[1] == "broadcast" != hints[0] and how in ("inner", "cross", "left", "semi", "anti"):
        return "right"
    if hints[0] == "broadcast" != hints[1] and how in ("inner", "cross", "right"):
        return "left"
    return None


_RULES: Final[dict[str, Callable[[PlanNode, Lineage], Lineage]]] = {
    **dict.fromkeys(_NARROW, lambda _, before: before),
    **dict.fromkeys(_SAMPLES, _sample),
    "Filter": _filter,
    "Generate": _generate,
    "Sort": _sort,
    "Repartition": _repartition,
    **dict.fromkeys(("RepartitionByExpression", "RebalancePartitions"), _shuffle),
    "Aggregate": _aggregate,
    **dict.fromkeys(("Deduplicate", "DeduplicateWithinWatermark"), _deduplicate),
    "Distinct": _distinct,
    "Window": _window,
}
