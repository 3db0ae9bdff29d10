# SPDX-License-Identifier: Apache-2.0
"""Flushes pending edits of users: folds them into one more keyed state, by a fact of the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from forebay.table.changelog.state.segments import KEY_HASH
from forebay.table.index.changelog import DELETED, DIGESTS, ShardTask, run_shard
from forebay.table.index.columns import arrow_type
from forebay.table.index.definition import ObjectType
from forebay.table.index.edits import EDITS, Edit, EditRules, KeyEdits, key_of
from forebay.table.index.log import Entry, Folded, MovedError
from forebay.table.index.merge import EDITS_COLUMN
from forebay.table.index.pipelines import IndexStore
from forebay.table.index.runs import recorded
from forebay.table.index.states import KEY, StateReader, entry_fields
from forebay.table.index.transactions import Committed, Incoming, Transaction, commit, shard_tasks
from forebay.table.index.types import parse_type

SHOWN: Final = 100
"""Values that did not fit, of which the log keeps the text."""

KeyHashes = Callable[[ObjectType, Sequence[tuple[Any, ...]]], Sequence[int]]
"""Returns the hashes by which states find keys, which Spark computes."""


def flush(index: IndexStore, key_hashes: KeyHashes) -> Committed:
    """Fold all pending edits, in the order of their offsets.

    A value that does not fit the definition that serves is a dead letter: the log counts it, and nothing waits for it.

    Args:
        index: The store.
        key_hashes: Computes the hashes of keys.

    Returns:
        What became of it; nothing was applied if no edit was pending.

    Raises:
        ConfigurationError: Nothing was committed to a datasource yet.
        RetriableError: The store does not answer.
    """
    index.head()  # an error if nothing was committed: then nothing is written
    with recorded(index, "flush", "edits") as run:
        while True:
            head = index.head()
            edits = index.edits.after(head.edits.offset)
            if not edits:
                return Committed("", applied=False, number=head.number)
            run.did(since=head.number)
            try:
                with index.log.reading(head):
                    done = _flushed(index, head, edits, key_hashes)
            except MovedError:  # another process flushes too, or another definition serves
                continue
            run.did(
                since=done.number - 1,
                to=done.number,
                counts={"edits": len(edits), "changes": sum(len(edit.changes) for edit in edits)},
            )
            return done


def _flushed(index: IndexStore, head: Entry, edits: Sequence[Edit], key_hashes: KeyHashes) -> Committed:
    definition = index.definition(head.serving)
    kinds = {name: parse_type(kind) for name, kind in definition.keys.items()}
    payload = pa.schema(
        [*(pa.field(f"{KEY}{name}", arrow_type(kind)) for name, kind in kinds.items()), (EDITS_COLUMN, pa.string())]
    )
    transaction = Transaction(EDITS, f"{edits[0].offset}-{edits[-1].offset}", "update")
    tasks = shard_tasks(index, head, transaction, Incoming(payload, tuple(payload.names[:-1])))
    keys = list({key_of(change, edit, definition): None for edit in edits for change in edit.changes})
    decoded = [tuple(kind.decode(each) for kind, each in zip(kinds.values(), key, strict=True)) for key in keys]
    hashes = key_hashes(definition, decoded)
    places: list[list[int]] = [[] for _ in tasks]
    for place, key in enumerate(keys):
        places[definition.codec.hash(key) % head.shards].append(place)
    folded = dict.fromkeys(keys, KeyEdits())
    for task, task_places in zip(tasks, places, strict=True):
        folded |= _folded_before(index, task, definition, [hashes[place] for place in task_places])
    problems = _fold(folded, definition, edits)
    results = []
    for task, task_places in zip(tasks, places, strict=True):
        columns: dict[str, Sequence[Any]] = {
            KEY_HASH: [hashes[place] for place in task_places],
            DELETED: [False] * len(task_places),
            **dict.fromkeys(DIGESTS, [0] * len(task_places)),
            **{f"{KEY}{name}": [decoded[place][at] for place in task_places] for at, name in enumerate(kinds)},
            EDITS_COLUMN: [folded[keys[place]].to_text() for place in task_places],
        }
        rows = [pa.array(columns[each.name], each.type) for each in task.incoming]
        results.append(run_shard(task, [pa.RecordBatch.from_arrays(rows, schema=task.incoming)]))
    after = Folded(
        edits[-1].offset,
        edits[-1].time,
        tuple(edit.id for edit in edits),
        head.edits.dead_letters + len(problems),
        (*head.edits.last_dead, *problems)[-SHOWN:],
    )
    return commit(index, head, transaction, tasks, results, after)


def _folded_before(
    index: IndexStore, task: ShardTask, definition: ObjectType, hashes: Sequence[int]
) -> dict[tuple[Any, ...], KeyEdits]:
    """Return the folded edits of keys with these hashes."""
    unique = np.unique(np.array(hashes, np.int64))
    rows = StateReader(index.store).live(task.runs, unique, entry_fields(task.payload, None)).to_pylist()
    return {
        definition.codec.values({name: row[f"{KEY}{name}"] for name in definition.keys}): KeyEdits.of_text(
            row[EDITS_COLUMN]
        )
        for row in rows
    }


def _fold(folded: dict[tuple[Any, ...], KeyEdits], definition: ObjectType, edits: Sequence[Edit]) -> list[str]:
    """Add edits to those of their keys; return the values that do not fit the definition, as text."""
    rules = EditRules(definition)
    misfits = []
    for edit in edits:
        for change in edit.changes:
            key = key_of(change, edit, definition)
            folded[key], problems = rules.then(folded[key], change, edit.time)
            misfits += [f"edit {edit.offset}, ({definition.codec.shown(key)}): {problem}" for problem in problems]
    return misfits
