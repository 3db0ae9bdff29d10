# SPDX-License-Identifier: Apache-2.0
"""Decides how the changes of a key are put in order, or refuses if nothing proves it (C7, C9, C14, C16).

Three things are asked of a changelog: which rows its changes hold (images), whether each comes exactly once (history),
and what orders them. `forebay.spark.keys` follows them through the plan. What is not proven is not assumed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NoReturn, get_args

from pyspark.sql import DataFrame

from forebay.errors import ConfigurationError
from forebay.spark.changelog.columns import ORDERED_WITHIN
from forebay.spark.keys.found_keys import find_key
from forebay.spark.keys.lineage import RowChanges
from forebay.spark.keys.operators import NORMALIZE
from forebay.spark.keys.plan import PlanNode, analysed_plan, unrepeatable
from forebay.spark.keys.row_order import Columns, RowOrder, row_order, within
from forebay.table.changelog.shape import (
    ALL,
    APPEND,
    CHANGE_TYPE,
    COLUMNS,
    COMMIT_VERSION,
    LOG,
    POSITION,
    SEQUENCE,
    SPLIT,
    UPDATES,
    UPSERT,
    ChangelogMode,
    Images,
)
from forebay.table.keys import OrderScope

_log = logging.getLogger(__name__)

Strategy = Literal["none", "position", "sequence", "barrier", "retract"]
Mode = Literal["auto", "none", "force"]

STRATEGIES: Final = get_args(Strategy)
MODES: Final = get_args(Mode)


@dataclass(frozen=True)
class ChangeOrder:
    """The columns that order the changes of a key.

    Args:
        columns: The columns; the first one decides first.
        lane: The column of which all changes of a key must have one value, because `columns` have no order over
            several: `_split` for `_pos`, `_log` for `_sequence`. None: there is none.
        by_version: Whether the micro-batch decides first, and changes of one micro-batch must differ in `columns`.
    """

    columns: tuple[str, ...] = ()
    lane: str | None = None
    by_version: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """All columns, the lane first."""
        return (*(() if self.lane is None else (self.lane,)), *self.columns)


BY_POSITION: Final = ChangeOrder((POSITION,), SPLIT)


@dataclass(frozen=True)
class Verdict:
    """How a changelog is materialized, and why."""

    strategy: Strategy
    reason: str
    """One sentence for the log."""
    order: ChangeOrder = field(default_factory=ChangeOrder)


def changelog_mode(df: DataFrame) -> ChangelogMode:
    """Return which kinds of changes a DataFrame may hold (C1).

    | the DataFrame | mode |
    |---|---|
    | has `_change_type`, and its changes have whole old rows, or nothing is declared of them | all kinds |
    | has `_change_type`, and its changes have no old rows | inserts, updates without the old row, deletes |
    | has a primary key with a deletion flag | the same |
    | has a primary key, or is a streaming aggregate | inserts, updates without the old row |
    | anything else | inserts |

    A streaming aggregate counts as written in the output mode `update`.

    Raises:
        ConfigurationError: An operator of the plan makes a wrong table of the changes (C14).
    """
    proof = _Proof.of(df, ())
    images = None if proof.changes is None else proof.changes.images
    if CHANGE_TYPE in df.columns:
        return UPSERT if images is Images.UPSERT else APPEND if images is Images.APPEND else ALL
    key = find_key(df, proof.plan).key
    if key.primary is not None:
        return UPDATES if key.deleted is None else UPSERT
    return UPDATES if images is Images.UPSERT else APPEND


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
        strategy: The strategy if the changelog is materialized; None: this function chooses what is proven.
        sequence_by: Columns that order all changes of a key, over all splits and logs.

    Raises:
        ConfigurationError: A column does not exist, the arguments contradict one another, an operator of the plan
            cannot take changes (C14), whole rows must be compared but their values are not repeatable (C12), or no
            strategy is proven to be right.
    """
    _check(df, key, mode, strategy)
    if mode == "none" or strategy == "none":
        verdict = Verdict("none", "the caller chose it: changes are passed on as they come")
    else:
        proof = _Proof.of(df, key)
        proof.refuse_lost_kind()
        verdict = _chosen(proof, mode, strategy, tuple(sequence_by))
    _log.info("materialize by (%s): %s, because %s", ", ".join(key), verdict.strategy, verdict.reason)
    return verdict


def change_order(
    df: DataFrame,
    key: Sequence[str],
    sequence_by: Sequence[str] = (),
    *,
    unordered: bool = False,
    flagged: bool = False,
) -> ChangeOrder:
    """Return what orders the changes of a key whose newest row is wanted; `key` identifies a row.

    Called on the driver by functions that keep the newest row of each key.

    Args:
        df: The changelog, or plain rows.
        key: The key.
        sequence_by: Columns that order all changes of a key.
        unordered: Whether plain rows of a batch need no order, because the caller refuses a key with several.
        flagged: Whether the caller reads from another column than `_change_type` which rows are deleted.

    Raises:
        ConfigurationError: The plan makes a wrong table of the changes, `key` is not their key, or nothing orders them.
    """
    proof = _Proof.of(df, key)
    if not flagged:
        proof.refuse_lost_kind()
    proof.refuse_other_key("key")
    proof.refuse_unrepeatable_key()
    proof.refuse_doubt()
    if sequence_by:
        return ChangeOrder(tuple(sequence_by))
    if proof.known_order is None and unordered and proof.plain and not df.isStreaming:
        return ChangeOrder()
    return proof.known_order or proof.refuse_unordered()


def require_order(df: DataFrame, key: Sequence[str], function: str, *, ordered: bool) -> None:
    """Check that the changes of each value of `key` arrive in order, for a function that passes them on.

    Args:
        df: The changelog.
        key: The key of those who apply the changes.
        function: The name of the function, for errors.
        ordered: Whether the user vouches for the order. The rest is checked all the same.

    Raises:
        ConfigurationError: That is not proven; several rows may share a value of `key`; or a step before may have left
            out changes of which nothing is declared.
    """
    proof = _Proof.of(df, key)
    if ordered:
        proof.refuse_other_key("key")
        proof.refuse_doubt_of_undeclared()
    elif proof.in_order is None or proof.problem:
        raise ConfigurationError(
            f"{function} passes changes on as they come, and nothing proves that those of ({proof.shown}) are in "
            f"order: {proof.problem or proof.disorder}",
            option="ordered",
            advice="call materialize(changes, key) before it; if you know that they are in order, give ordered=True",
        )


def require_whole(df: DataFrame, option: str) -> bool:
    """Return whether each row of an input comes exactly once; called for a function that counts rows.

    Rows that are only added may come again. Of changes, each row must be retracted by an equal one, exactly once.

    Args:
        df: The changelog, or rows that are only added.
        option: The argument of the function, for errors.

    Raises:
        ConfigurationError: That is not proven.
    """
    proof = _Proof.of(df, ())
    changes = proof.changes
    if changes is None:
        raise ConfigurationError(
            "Spark Connect shows no plan, so nothing proves that each change comes once, with whole old rows",
            option=option,
            advice="run the query in a classic session",
        )
    if changes.updates:
        if changes.images is None:
            _refuse_undeclared(changes, option)
        proof.refuse_unrepeatable()
        if not (changes.complete and changes.counted):
            raise ConfigurationError(
                f"the rows of the changelog cannot be counted, because {_not_whole(changes)}{_lost(changes)}",
                option=option,
                advice=proof.by_its_key,
            )
    return changes.complete


def fold_order(df: DataFrame, key: Sequence[str], *, sequenced: bool, flagged: bool = False) -> ChangeOrder | None:
    """Return what orders the changes of a key within a micro-batch, if that of micro-batches orders the rest.

    Called by `apply_changes`. None for plain rows, or with `sequence_by`.

    Args:
        df: The changelog, or plain rows.
        key: The key of the target.
        sequenced: Whether the target stores the order (`sequence_by`).
        flagged: Whether the caller says which rows are deletes (`apply_as_deletes`).

    Raises:
        ConfigurationError: The plan makes a wrong table of the changes, or does not prove that they come in order.
    """
    proof = _Proof.of(df, key)
    changes = proof.changes
    if changes is None or not changes.updates:
        return None
    proof.refuse_unrepeatable_key("keys")
    if not flagged:
        proof.refuse_lost_kind("; or leave out update_preimage, and give apply_as_deletes, the condition of a delete")
    if changes.kinds:
        proof.refuse_doubt_of_undeclared()
    if sequenced or proof.plain:
        proof.refuse_other_key("keys")
        return None
    ordered = proof.problem is None and (proof.in_order is not None or proof.in_one_lane)
    known = proof.known_order if ordered else None
    if known is not None and (known.columns or proof.once):
        return known
    text = f"nothing proves which change of ({proof.shown}) is the newest one"
    if ordered:
        raise ConfigurationError(
            f"{text}: the columns that order them within a micro-batch are gone: _split and _pos, or _commit_version",
            option="keys",
            advice="keep these columns up to the target, which need not store them; or give sequence_by",
        )
    first = "apply materialize(changes, keys) first"
    if proof.problem is not None:
        counts = changes.counted and changes.complete
        advice = first if counts else f"{proof.by_its_key}; then {first}"
        if changes.identity is None:
            advice += "; or give sequence_by columns that order all changes of a key"
        raise ConfigurationError(f"{text}: {proof.problem}", option="keys", advice=advice)
    orders = proof.known_order is not None or (changes.counted and changes.complete)
    advice = f"{first}; or give sequence_by" if orders else proof.to_order
    raise ConfigurationError(f"{text}: {proof.disorder}", option="keys", advice=advice)


def refuse_lost_kind(df: DataFrame) -> None:
    """Check that the rows are no changes without a kind. Called for a function that takes rows as added.

    Raises:
        ConfigurationError: They are, or an operator of the plan makes a wrong table of the changes.
    """
    _Proof.of(df, ()).refuse_lost_kind()


def refuse_broken(df: DataFrame) -> None:
    """Check that no operator of the plan makes a wrong table of the changes, or may make one of undeclared changes.

    Raises:
        ConfigurationError: One does, or may.
    """
    _Proof.of(df, ()).refuse_doubt_of_undeclared()


@dataclass(frozen=True)
class _Proof:
    """What the plan of a DataFrame proves of the changes of a key."""

    df: DataFrame
    plan: PlanNode | None
    order: RowOrder
    key: tuple[str, ...]

    @classmethod
    def of(cls, df: DataFrame, key: Sequence[str]) -> _Proof:
        """Read the plan.

        Raises:
            ConfigurationError: An operator of it makes a wrong table of the changes.
        """
        plan = analysed_plan(df)
        proof = cls(df, plan, row_order(df, plan), tuple(key))
        changes = proof.changes
        if plan is None or changes is None:
            return proof
        if changes.broken:
            why, advice = changes.broken
            raise ConfigurationError(why, option="df", advice=advice)
        conditions = unrepeatable(plan)[1] if changes.updates else []
        if conditions:
            raise ConfigurationError(
                f"{conditions[0]!r} has another value at each evaluation, so it may leave out the old row of a change "
                "and not the new one",
                option="df",
                advice="apply it to the rows of the target",
            )
        return proof

    @property
    def changes(self) -> RowChanges | None:
        """What is known of the changes; None without a plan."""
        return self.order.changes

    @property
    def shown(self) -> str:
        """The key as text."""
        return ", ".join(self.key)

    @property
    def in_order(self) -> Columns | None:
        """Columns of the key within which rows arrive in order; None if there are none."""
        return next((columns for columns in self.order.arriving if within(columns, self.key)), None)

    @property
    def in_one_lane(self) -> bool:
        """Whether the key contains the columns whose changes are in one split."""
        lanes = self.order.lanes
        return lanes is not None and not self.order.by_sequence and within(lanes, self.key)

    @property
    def once(self) -> bool:
        """Whether a value of the key changes at most once in a micro-batch."""
        return any(within(columns, self.key) for columns in self.order.once)

    @property
    def plain(self) -> bool:
        """Whether rows have no kind: a row replaces the row of its key that came before."""
        return self.changes is not None and not self.changes.kinds and CHANGE_TYPE not in self.df.columns

    @property
    def known_order(self) -> ChangeOrder | None:
        """What orders the changes of a key, the surest first; None if nothing is known to."""
        changes = self.changes
        if changes is None:
            return None
        positions = changes.comparable and self.order.own.issuperset(BY_POSITION.names)
        if positions and self.in_one_lane:
            return BY_POSITION
        sequence = self.sequence if changes.comparable else None
        if sequence is not None:
            return sequence
        if positions:
            return BY_POSITION
        if self.in_one_lane or self.in_order is not None:
            return ChangeOrder(by_version=True) if self.df.isStreaming or self.once else None
        return ChangeOrder(by_version=True) if self.plain and self.df.isStreaming else None

    @property
    def sequence(self) -> ChangeOrder | None:
        """`_sequence` or `_commit_version`, if it still is that of the source and orders all changes of the key."""
        changes, own = self.changes, self.order.own if self.changes is not None else frozenset(self.df.columns)
        if SEQUENCE in own and LOG not in own and changes is not None and LOG in changes.places:
            return None  # dropped: values of two logs could not be told apart
        if SEQUENCE in own:
            return ChangeOrder((SEQUENCE,), LOG if LOG in own else None)
        if COMMIT_VERSION in own:
            ordered = self.df.schema[COMMIT_VERSION].metadata.get(ORDERED_WITHIN)
            if ordered is None or (ordered and {*ordered} <= {*self.key}):
                return ChangeOrder((COMMIT_VERSION,))
        return None

    @property
    def problem(self) -> str | None:
        """Why the newest change of a value of the key may not be that of its row; None if it is."""
        changes, identity = self.changes, self.order.identity
        if changes is None:
            return "Spark Connect shows no plan"
        if not changes.updates:
            return None
        if changes.assumed is None:
            return f"nothing is declared of the changes{_lost(changes)}"
        if identity is None:
            gone = "the changes have no key" if changes.identity is None else "a column of their key is gone"
            return f"{gone}{_lost(changes)}"
        own = ", ".join(_named(identity))
        if not within(identity, self.key):
            return f"several rows of the changelog, whose key is ({own}), may have the same value of ({self.shown})"
        upsert = changes.assumed is Images.UPSERT
        if upsert and not all(any(name in columns for columns in identity) for name in self.key):
            return (
                f"the target's key ({self.shown}) has more columns than the key of the changelog ({own}), whose "
                "changes have no old rows: rows with earlier values would stay"
            )
        if upsert and changes.several:
            return "a change may give several rows, and the changes have no old rows: earlier ones would stay"
        return None

    @property
    def disorder(self) -> str:
        """Why the changes of a value of the key may arrive out of order (C7)."""
        promise, lanes = self.order.guarantee, self.order.lanes
        if promise.scope is not OrderScope.PER_KEY or self.order.by_sequence:
            return f"no order is promised within ({self.shown}): {promise.weakest or 'the rows have no key'}"
        columns = ", ".join(promise.columns)
        if lanes is None:
            return f"rows are in order within ({columns}), but do not have these columns any more"
        if not within(lanes, self.key):
            return f"rows are in order within ({columns}), which the target's key ({self.shown}) does not contain"
        if promise.weakest is None:
            return f"rows arrive in order within ({columns}), but several of a key may come in one micro-batch"
        return f"rows within ({columns}) have to be sorted again after {promise.weakest}"

    @property
    def by_its_key(self) -> str:
        """The next step for a target with another key than its changelog."""
        identity = self.order.identity
        named = "key" if identity is None else f"[{', '.join(repr(name) for name in _named(identity))}]"
        of = " with the key of the changelog" if identity is None else ""
        return (
            f"call normalize(changes, {named}){of} right after the source: it gives whole old rows, each exactly once"
        )

    @property
    def to_order(self) -> str:
        """The next step for changes that nothing orders."""
        places, comparable = ({}, False) if self.changes is None else (self.changes.places, self.changes.comparable)
        ways = [
            f"keep {' and '.join(has)} of the changelog up to here"
            for columns in ((SPLIT, POSITION), (SEQUENCE, LOG), (COMMIT_VERSION,))
            if (has := [name for name in columns if name in places]) and not self.order.own.issuperset(has)
        ]
        if SEQUENCE in self.order.own:
            ways.append(f"give sequence_by={SEQUENCE!r}, if all changes are of one log")
        elif comparable and not ways:
            ways.append("read the changelog with a sequence (changelogSequence, sequence=…)")
        return "; or ".join([*ways, "give sequence_by columns that order all changes of a key"])

    def refuse_doubt(self) -> None:
        """Check that no step may have left out the newest row of a key, of changes of which nothing is declared.

        Raises:
            ConfigurationError: One may have.
        """
        changes = self.changes
        if changes is not None and changes.doubt:
            raise ConfigurationError(
                f"the newest row of a key may have been left out by {changes.doubt}",
                option="df",
                advice="call this function before that step; if these are changes, declare them right after the "
                "source: from_changes(df, key=…, images=…, history=…)",
            )

    def refuse_doubt_of_undeclared(self) -> None:
        """As `refuse_doubt`, for changes of which nothing is declared."""
        if self.changes is not None and self.changes.images is None:
            self.refuse_doubt()

    def refuse_lost_kind(self, another_way: str = "") -> None:
        """Check that changes still have `_change_type`. `another_way` ends the advice.

        Raises:
            ConfigurationError: Another column depends on it, but it is gone.
        """
        changes = self.changes
        if changes is not None and changes.updates and changes.kinds and CHANGE_TYPE not in self.df.columns:
            raise ConfigurationError(
                f"the rows are changes, and have no column {CHANGE_TYPE}",
                option="df",
                advice=f"keep {CHANGE_TYPE} under its name; or pass the rows with a flag to from_is_deleted"
                f"{another_way}",
            )

    def refuse_other_key(self, option: str) -> None:
        """Check that the key is that of the changelog, if that is known.

        Raises:
            ConfigurationError: It is not.
        """
        changes = self.changes
        if changes is None or not changes.updates or changes.identity is None or self.problem is None:
            return
        raise ConfigurationError(self.problem, option=option, advice=self.by_its_key)

    def refuse_unrepeatable(self) -> None:
        """Check that a retraction can find its row by comparing whole rows (C12).

        Raises:
            ConfigurationError: A column has another value at each evaluation.
        """
        changes = self.changes
        if self.plan is None or (changes is not None and not changes.updates):
            return
        columns = unrepeatable(self.plan)[0]
        if changes is not None:
            own = changes.kinds | changes.placed
            columns += [column.name for column in self.plan.output if column.id in own and column.name not in COLUMNS]
        if columns:
            raise ConfigurationError(
                f"{columns[0]!r} has another value for the old row of a change, so a retraction never matches its row",
                option="df",
                advice="drop it, or compute it after this function; materialize compares no rows with sequence_by",
            )

    def refuse_unrepeatable_key(self, option: str = "key") -> None:
        """Check that the key of the target has the same value for the old and the new row of a change.

        Raises:
            ConfigurationError: A column of it has another value at each evaluation.
        """
        changes = self.changes
        if self.plan is None or changes is None or not changes.updates:
            return
        others = changes.kinds | changes.placed | changes.looked_up
        columns = {column.name for column in self.plan.output if column.id in others} | {*unrepeatable(self.plan)[0]}
        of_key = [name for name in self.key if name in columns]
        if of_key:
            raise ConfigurationError(
                f"{of_key[0]!r} may have another value for the old row of a change than it had for the row, so the "
                "change does not find its row",
                option=option,
                advice="take columns of the changelog's rows as the key",
            )

    def refuse_unordered(self) -> NoReturn:
        """Raise the error for changes that nothing is proven to bring into order."""
        changes = self.changes
        text = f"nothing proves which change of ({self.shown}) is the newest one"
        if changes is None:
            raise ConfigurationError(
                f"{text}: Spark Connect shows no plan",
                option="strategy",
                advice="give sequence_by; or, to materialize, strategy='position' if all changes of a key are in one "
                "_split, or strategy='retract' if each change comes exactly once, with whole old rows",
            )
        if changes.updates and changes.assumed is None:
            _refuse_undeclared(changes, "strategy")
        if self.problem is not None:
            raise ConfigurationError(f"{text}: {self.problem}", option="strategy", advice=self.by_its_key)
        counted = f"; and to count them is not possible, because {_not_whole(changes)}" if changes.updates else ""
        raise ConfigurationError(
            f"{text}: {self.disorder}{counted}{_lost(changes)}",
            option="strategy",
            advice=self.to_order,
        )


def _chosen(proof: _Proof, mode: Mode, strategy: str | None, sequence_by: tuple[str, ...]) -> Verdict:
    """Return the first strategy that is proven to be right."""
    in_order, changes = proof.in_order, proof.changes
    proof.refuse_unrepeatable_key()
    if mode == "auto" and in_order is not None and proof.problem is None:
        reason = f"rows arrive in order within ({', '.join(_named(in_order))}), which is part of the target's key"
        return Verdict("none", reason)
    why = "mode is force" if in_order is not None and proof.problem is None else proof.problem or proof.disorder
    if strategy is not None:
        return _given(proof, strategy, sequence_by, f"{why}; the strategy was given")
    proof.refuse_doubt_of_undeclared()
    if sequence_by and (proof.problem is None or changes is None or changes.identity is None):
        return Verdict("sequence", f"{why}; {', '.join(sequence_by)} orders all changes", ChangeOrder(sequence_by))
    if changes is None:
        proof.refuse_unordered()
    known = proof.known_order if proof.problem is None and proof.key else None
    if known is not None and known.columns and (known.lane != SPLIT or proof.in_one_lane):
        by: Strategy = "position" if known.lane == SPLIT else "sequence"
        return Verdict(by, f"{why}; {known.columns[0]} orders the changes of a key", known)
    if changes.counted and (proof.order.transactional or changes.complete or not changes.updates):
        proof.refuse_unrepeatable()
        if proof.order.transactional:
            return Verdict("barrier", f"{why}; the source never spreads a transaction over micro-batches")
        return Verdict("retract", f"{why}; nothing orders the changes")
    if known is not None and known.columns:
        return Verdict("position", f"{why}; _pos orders the changes of a key that are in one split", known)
    return proof.refuse_unordered()


def _given(proof: _Proof, strategy: str, sequence_by: tuple[str, ...], reason: str) -> Verdict:
    """Return the verdict for a strategy that the caller chose, unless it is known to be wrong."""
    if strategy in ("barrier", "retract"):
        if proof.changes is not None and proof.changes.images is Images.UPSERT:
            raise ConfigurationError(
                f"the strategy {strategy} needs whole old rows, and the changes have none",
                option="strategy",
                advice=f"{NORMALIZE}; or leave strategy out",
            )
        proof.refuse_unrepeatable()
        return Verdict("barrier" if strategy == "barrier" else "retract", reason)
    proof.refuse_other_key("strategy")
    if strategy == "position":
        own = proof.df.columns if proof.changes is None else proof.order.own
        missing = [name for name in BY_POSITION.names if name not in own]
        if missing:
            raise ConfigurationError(
                f"the strategy position needs the column {missing[0]} of the source",
                option="strategy",
                advice="keep _split and _pos of the source (Kafka: rowPositions=true), or give sequence_by",
            )
        return Verdict("position", reason, BY_POSITION)
    order = ChangeOrder(sequence_by) if sequence_by else proof.sequence
    if order is None or not (sequence_by or proof.changes is None or proof.changes.comparable):
        raise ConfigurationError(
            "the strategy sequence needs columns that order all changes of a key",
            option="sequence_by",
            advice="name them in sequence_by, or read the changelog with a source that gives _sequence",
        )
    return Verdict("sequence", reason, order)


def _not_whole(changes: RowChanges) -> str:
    """Return why the rows of changes cannot be counted."""
    if changes.images is not Images.FULL:
        return "the changes have no old rows"
    if not changes.repeatable:
        return "a row may have other values when it is retracted"
    return "changes may come again, or begin late (history is unknown)"


def _lost(changes: RowChanges) -> str:
    return f" ({'; '.join(changes.lost)})" if changes.lost else ""


def _named(columns: Sequence[frozenset[str]]) -> tuple[str, ...]:
    return tuple(min(names) for names in columns)


def _refuse_undeclared(changes: RowChanges, option: str) -> NoReturn:
    raise ConfigurationError(
        f"nothing is declared of the changes{_lost(changes)}",
        option=option,
        advice="declare them right after the source, before any filter or function: "
        "from_changes(df, key=…, images=…, history=…)",
    )


def _check(df: DataFrame, key: Sequence[str], mode: str, strategy: str | None) -> None:
    if mode not in MODES:
        raise ConfigurationError(f"unknown mode {mode!r}", option="mode", advice=f"use one of {', '.join(MODES)}")
    if strategy is not None and strategy not in STRATEGIES:
        advice = f"use one of {', '.join(STRATEGIES)}, or None to let forebay choose"
        raise ConfigurationError(f"unknown strategy {strategy!r}", option="strategy", advice=advice)
    unknown = [name for name in key if name not in df.columns]
    if unknown:
        advice = f"the columns are: {', '.join(df.columns)}"
        raise ConfigurationError(f"there is no column {unknown[0]!r}", option="key", advice=advice)
    if not key and mode == "auto":
        raise ConfigurationError(
            "materialize has no key", option="key", advice="name the target's key; mode='force' takes the whole row"
        )
    if (mode == "none" and strategy not in (None, "none")) or (mode == "force" and strategy == "none"):
        raise ConfigurationError(
            f"mode {mode} and strategy {strategy} contradict one another", option="strategy", advice="leave one out"
        )
