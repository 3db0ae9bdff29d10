# SPDX-License-Identifier: Apache-2.0
"""Transactions on a datasource: what may be committed, in which shards, and the fact of the log that commits it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, Literal, get_args

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.formats.values.ddl import type_text
from forebay.table.index.changelog import ShardResult, ShardTask, combined, refuse_duplicates
from forebay.table.index.definition import ObjectType
from forebay.table.index.edits import EDITS
from forebay.table.index.log import KNOWN, DatasourceState, Entry, Folded, MovedError, id_digest
from forebay.table.index.pipelines import IndexStore
from forebay.table.index.states import KEY, SEQUENCE, VALUE, order_fields, payload_of, schema_of, schema_text
from forebay.table.index.types import SparkType

Kind = Literal["snapshot", "append", "update", "delete"]

KINDS: Final = get_args(Kind)

_OF_COLUMNS: Final = "@"
"""Separates the digest of rows from that of their columns."""


@dataclass(frozen=True)
class Transaction:
    """A transaction on a datasource.

    Args:
        datasource: The datasource.
        id: The id. A known id is not applied again.
        kind: `snapshot` has all rows; `append` and `update` have rows that replace those of their keys; `delete` has
            keys to delete.
        owner: The streaming query that it is of; None: `Funnel.commit`.
        batch: The id of the micro-batch of the query.
        adopt: Whether to take over a datasource that another owner feeds.
        allow_empty: Whether a snapshot without rows may delete all rows.
    """

    datasource: str
    id: str
    kind: Kind
    owner: str | None = None
    batch: int = -1
    adopt: bool = False
    allow_empty: bool = False


@dataclass(frozen=True)
class Incoming:
    """The columns of the rows of a transaction.

    Args:
        payload: Keys, then values.
        keys: The names of the key columns.
        sequence: The type of the sequence; None: there is none.
        fits: Columns, and types of properties that have all their values, or nothing is committed.
    """

    payload: pa.Schema
    keys: tuple[str, ...]
    sequence: pa.DataType | None = None
    fits: tuple[tuple[str, SparkType], ...] = ()

    @property
    def columns_digest(self) -> str:
        """A digest of the names of the columns. Rows of other columns have other hashes."""
        return id_digest("\0".join(self.payload.names))


@dataclass(frozen=True)
class Committed:
    """What became of a transaction.

    Args:
        transaction: Its id.
        applied: Whether it was committed now; False: it was before.
        number: The number of the fact of the log.
        counts: Rows that were inserted, updated, deleted, or changed nothing, by name.
    """

    transaction: str
    applied: bool
    number: int
    counts: Mapping[str, int] = field(default_factory=dict)


def check_owner(states: Mapping[str, DatasourceState], transaction: Transaction) -> None:
    """Check that nobody else feeds the datasource, and that a query begins with its first micro-batch; or it adopts.

    Args:
        states: The states of a fact of the log; none before the log has begun.
        transaction: The transaction.

    Raises:
        ConfigurationError: A streaming query, or another one, does; or what a query brought before is not there.
    """
    state = states.get(transaction.datasource)
    if state is None and transaction.batch > 0 and not transaction.adopt:
        raise ConfigurationError(
            f"the query {transaction.owner} is at micro-batch {transaction.batch}, and the datasource "
            f"{transaction.datasource!r} has no row of the ones before",
            option="checkpoint_location",
            advice="check the location, and whether it is mounted; if it is a new one, start the query with a new "
            "checkpoint, so that it brings all rows; or, if they are not needed, pass adopt=True to apply_changes",
        )
    if state is None or transaction.adopt or state.owner in (None, transaction.owner):
        return
    this = f"the query {transaction.owner}" if transaction.owner else "Funnel.commit"
    raise ConfigurationError(
        f"the datasource {transaction.datasource!r} is fed by the streaming query {state.owner}, not by {this}",
        option="adopt",
        advice="continue with the checkpoint of that query; to take over, stop it and pass adopt=True to Funnel.commit "
        "or apply_changes, or --adopt to `forebay index commit`",
    )


def known_digest(head: Entry, transaction: Transaction) -> str | None:
    """Return the digest of the rows of the transaction if its id is known, else None.

    Raises:
        ConfigurationError: It is an old micro-batch of which nothing is known any more.
    """
    state = head.states.get(transaction.datasource)
    if state is None:
        return None
    digest = state.digest_of(transaction.id)
    if digest is None and transaction.owner is not None and state.owner == transaction.owner:
        if transaction.batch > state.batch:
            return None
        raise ConfigurationError(
            f"the micro-batch {transaction.batch} of the query {transaction.owner} is older than the last one of the "
            f"datasource {transaction.datasource!r}, {state.batch}, and its rows are not known any more",
            option="query_id",
            advice="after a deleted checkpoint, give a new query id, and pass adopt=True",
        )
    return digest


def refuse_other_rows(transaction: Transaction, committed_digest: str, digest: str, columns_digest: str) -> None:
    """Check that a transaction with a known id has the rows that were committed with this id.

    If they had other columns, as by another definition, only their number and the kind can be compared.

    Args:
        transaction: The transaction.
        committed_digest: The digest that the log has.
        digest: The digest of the rows, of `rows_digest`.
        columns_digest: See `Incoming.columns_digest`.

    Raises:
        ConfigurationError: It has others.
    """
    digest = _digest(transaction, digest, columns_digest)
    same = committed_digest == digest
    if committed_digest.partition(_OF_COLUMNS)[2] != columns_digest:
        same = _counted(committed_digest) == _counted(digest)
    if not same:
        raise ConfigurationError(
            f"the transaction {transaction.id!r} of the datasource {transaction.datasource!r} was committed with other "
            f"rows, or as another kind: their digest was {committed_digest}, and is {digest}",
            option="transaction",
            advice="give other rows another id; each id stands for the rows of one transaction",
        )


def _counted(digest: str) -> tuple[str, ...]:
    """Return the number of rows and the kind of a digest, without the part that depends on the columns."""
    rows, _, *kind = digest.partition(_OF_COLUMNS)[0].split("-")
    return rows, *kind


def _digest(transaction: Transaction, digest: str, columns_digest: str) -> str:
    """Return what the log keeps of the rows of a transaction, and of what it does with them."""
    kind = f"-{transaction.kind}" if transaction.kind in ("snapshot", "delete") else ""
    return f"{digest}{kind}{_OF_COLUMNS}{columns_digest}"


def shard_tasks(index: IndexStore, base: Entry, transaction: Transaction, incoming: Incoming) -> list[ShardTask]:
    """Return the task of each shard for a transaction.

    Raises:
        ConfigurationError: A column has another type than before, and the transaction is no snapshot.
    """
    state = base.states.get(transaction.datasource)
    stored = None if state is None else schema_of(state.schema)
    has_rows = state is not None and state.live > 0
    payload, fresh = _evolved(stored, incoming.payload, transaction, has_rows=has_rows)
    known = None
    if stored is not None and SEQUENCE in stored.names:
        known = stored.field(SEQUENCE).type
        if incoming.sequence is not None and incoming.sequence != known:
            raise ConfigurationError(
                f"the sequence of the datasource {transaction.datasource!r} was {known}, and is {incoming.sequence}",
                option="sequence_by",
                advice="cast it to the type it had; sequences of two types have no order",
            )
    return [
        ShardTask(
            index,
            transaction.datasource,
            shard,
            base.number,
            state.shards[shard] if state is not None else (),
            payload,
            incoming.keys,
            snapshot=transaction.kind == "snapshot",
            fresh=fresh,
            sequence=incoming.sequence,
            kept_sequence=known,
            fits=tuple((column, kind) for column, kind in incoming.fits if column in payload.names),
            columns_digest=incoming.columns_digest,
        )
        for shard in range(base.shards)
    ]


def commit(
    index: IndexStore,
    base: Entry,
    transaction: Transaction,
    tasks: Sequence[ShardTask],
    results: Iterable[ShardResult],
    folded: Folded | None = None,
) -> Committed:
    """Commit what the tasks of a transaction wrote.

    Args:
        index: The store.
        base: The fact of the log on which the tasks are based.
        transaction: The transaction.
        tasks: The task of each shard.
        results: Their results, in any order.
        folded: The edits that the state of edits then has, if the transaction flushes edits.

    Raises:
        DataError: A key came twice.
        ConfigurationError: A snapshot would delete all rows.
        MovedError: Another writer changed the datasource meanwhile, or another definition serves.
        RetriableError: The transaction took so long that its files may be collected, or they are not there. Or the
            location went away while the fact was put, so that it may be committed.
    """
    ordered = sorted(results, key=lambda result: result.shard)
    refuse_duplicates(ordered, index.object_type, transaction.datasource, transaction.id)
    counts, digest, rows = combined(ordered)
    before = base.states.get(transaction.datasource)
    live = before.live if before else 0
    after = live + counts["inserted"] - counts["deleted"]
    if transaction.kind == "snapshot" and live and not after and not transaction.allow_empty:
        raise ConfigurationError(
            f"the snapshot {transaction.id!r} has no row, and the datasource {transaction.datasource!r} has {live:,}: "
            "it would delete all",
            option="allow_empty",
            advice="check that the DataFrame reads what it should; to delete all rows, pass allow_empty=True",
        )
    if transaction.owner is not None and not rows and before is not None and before.owner == transaction.owner:
        return Committed(transaction.id, applied=True, number=base.number, counts=counts)
    task, name = tasks[0], transaction.datasource
    sequence = task.sequence if task.sequence is not None else task.kept_sequence
    known = (id_digest(transaction.id), _digest(transaction, digest, task.columns_digest))

    shards = before.shards if before else ()
    written = {file.name for result in ordered for run in (*result.runs, result.changes) for file in run}
    written -= {file.name for runs in shards for run in runs for file in run}

    def entry_after(head: Entry) -> Entry:
        _refuse_replaced(index, base, head, name, task.payload)
        index.refuse_missing(f"{index.directory}states/{name}/", written)
        written.clear()  # once: later the age of the attempt says whether they may be collected
        state = DatasourceState(
            schema=schema_text(pa.schema([*order_fields(sequence), *task.payload])),
            shards=tuple(result.runs for result in ordered),
            live=after,
            moved=head.number + 1,
            owner=transaction.owner,
            batch=transaction.batch,
            applied=(*(before.applied if before else ()), known)[-KNOWN:],
        )
        return replace(
            head,
            kind="transaction" if folded is None else "flush",
            states={**head.states, name: state},
            datasource=name,
            transaction=transaction.id,
            micro_batch=transaction.owner is not None,
            changes=tuple(result.changes for result in ordered),
            before=live,
            counts=counts,
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            edits=folded or replace(head.edits, ids=()),
        )

    entry = index.log.append(base, entry_after, name)
    return Committed(transaction.id, applied=True, number=entry.number, counts=counts)


def _refuse_replaced(index: IndexStore, base: Entry, head: Entry, name: str, payload: pa.Schema) -> None:
    """Check that rows that were prepared for the definitions at `base` have what the definitions at `head` need.

    Raises:
        MovedError: They need others, or none; or edits have to be folded by another definition.
    """
    if (head.serving, head.building) == (base.serving, base.building):
        return
    if name == EDITS:
        if head.serving == base.serving:
            return
        raise MovedError("another definition serves since the flush began", advice="flush again")
    if head.serving == base.serving:
        if index.definition(head.serving).feeds(name):
            return
    elif base.building is not None and base.building.pipeline == head.serving:
        columns = ObjectType.from_facts(base.building.definition).datasource(name).columns
        if {f"{VALUE}{each}" for each in columns} <= set(payload.names):
            return
    raise MovedError(
        f"the definition of {index.object_type!r} was replaced since the transaction of the datasource {name!r} began",
        advice="commit it again: nothing was committed",
    )


def _evolved(
    stored: pa.Schema | None, incoming: pa.Schema, transaction: Transaction, *, has_rows: bool
) -> tuple[pa.Schema, bool]:
    """Return the columns to keep, and whether they replace those of the state, which may have rows or only deletes."""
    if stored is None:
        return incoming, False
    known = payload_of(stored)
    if known.equals(incoming) or transaction.kind == "delete":
        return known, False
    types = {each.name: each.type for each in known}
    has_columns = len(known) > sum(name.startswith(KEY) for name in known.names)
    if (has_rows or has_columns) and any(name not in types for name in incoming.names):
        if transaction.kind == "snapshot":
            return incoming, True
        # Rows without the column would have NULL, so only a snapshot brings a new one.
        incoming = pa.schema([each for each in incoming if each.name in types])
    for each in incoming:
        if each.name in types and each.type != types[each.name] and not _widens(each.type, types[each.name]):
            if transaction.kind == "snapshot":
                return incoming, True
            raise ConfigurationError(
                f"the column {each.name[2:]!r} of the datasource {transaction.datasource!r} is {type_text(each.type)}, "
                f"and was {type_text(types[each.name])} in the rows before",
                option="df",
                advice="cast the column to the type it had; or commit a snapshot, which may bring another type",
            )
    return pa.schema([pa.field(each.name, types.get(each.name, each.type)) for each in incoming]), False


def _widens(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Return whether a type has all values of another one."""
    if pa.types.is_integer(narrow) and pa.types.is_integer(wide):
        return bool(narrow.bit_width <= wide.bit_width)
    if pa.types.is_decimal(narrow) and pa.types.is_decimal(wide):
        return bool(narrow.scale <= wide.scale and narrow.precision - narrow.scale <= wide.precision - wide.scale)
    return bool(pa.types.is_float32(narrow) and pa.types.is_float64(wide))
