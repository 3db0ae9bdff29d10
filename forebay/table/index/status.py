# SPDX-License-Identifier: Apache-2.0
"""What there is of an object type: datasources, the log, and the index of each pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from forebay.table.index.definition import ObjectType
from forebay.table.index.edits import due, shown_time
from forebay.table.index.log import Entry
from forebay.table.index.pipelines import IndexStore, IndexVersion
from forebay.table.index.plan import waits_for
from forebay.text_tables import text_table

_DEAD: Final = 10
"""Dead letters that the text names."""


@dataclass(frozen=True)
class DatasourceStatus:
    """A datasource: its rows, who feeds it, and the fact of the log that changed it last; None: nothing has."""

    name: str
    rows: int
    owner: str | None
    moved: int | None
    runs: int
    size: int


@dataclass(frozen=True)
class PipelineStatus:
    """The index of a pipeline.

    Args:
        version: Its newest version; 0 if it has none yet.
        behind: How many facts of the log with changes it does not have yet; 0 if it was dropped, and follows no more.
        role: Whether it serves, is built behind the one that does, or was replaced or dropped.
        size: The bytes of its segments.
        waits: What is to be committed before it can serve.
    """

    version: IndexVersion
    behind: int
    role: Literal["serves", "is being built", "was replaced or dropped"]
    size: int
    waits: tuple[str, ...] = ()

    @property
    def serving(self) -> bool:
        """Whether it serves."""
        return self.role == "serves"


@dataclass(frozen=True)
class EditStatus:
    """Edits of users.

    Args:
        folded: The offset of the last edit that was folded into the state of edits.
        pending: How many edits were not.
        changes: How many changes they have.
        oldest: When the oldest pending edit was made.
        due: Why they should be flushed now; None if they need not be.
        dead_letters: How many values did not fit the definition when they were folded, and were left out.
        last_dead: The last ones of them.
    """

    folded: int
    pending: int
    changes: int
    oldest: str | None
    due: str | None
    dead_letters: int
    last_dead: tuple[str, ...]


@dataclass(frozen=True)
class Status:
    """The state of an object type: the newest fact of the log, the datasources, the pipelines and the edits."""

    object_type: str
    head: Entry
    datasources: tuple[DatasourceStatus, ...]
    pipelines: tuple[PipelineStatus, ...]
    edits: EditStatus

    def __str__(self) -> str:
        sources, pipelines = [], []
        for source in self.datasources:
            fed_by = source.owner or ("" if source.moved is None else "Funnel.commit")
            sources.append(_cells(source.name, source.rows, source.moved, fed_by, source.runs, source.size))
        for each in self.pipelines:
            version = each.version
            step = f"{version.decision}: {version.reason}" if version.number else "no version yet"
            counts = (version.number, version.count, each.behind, len(version.runs), each.size)
            pipelines.append(_cells(f"{version.pipeline} ({each.role})", *counts, step))
        head = self.head
        last = f", {head.transaction} on {head.datasource} at {head.time}" if head.datasource else ""
        edits = [f"edits: {self.edits.folded:,} are in the index, {self.edits.pending:,} are pending"]
        if self.edits.oldest is not None:
            edits[0] += f" since {self.edits.oldest}, with {self.edits.changes:,} changes"
            edits[0] += f": {self.edits.due}" if self.edits.due else ""
        if self.edits.dead_letters:
            dead = [f"  {text}" for text in self.edits.last_dead[-_DEAD:]]
            text = f"dead letters: {self.edits.dead_letters:,} values did not fit the definition of their time"
            edits += [f"{text}, last:" if dead else text, *dead]
        header = ("pipeline", "version", "objects", "behind", "segment runs", "bytes", "last step")
        waits = [f"before {each.version.pipeline} can serve: {text}" for each in self.pipelines for text in each.waits]
        return "\n".join(
            [
                f"{self.object_type}: fact {head.number:,} of the log{last}; {head.shards} shards",
                text_table(
                    ("datasource", "rows", "last fact", "fed by", "segment runs", "bytes"), sources, right={1, 2, 4, 5}
                ),
                text_table(header, pipelines, right=range(1, 6)),
                *waits,
                *(edits if self.edits.folded or self.edits.pending else []),
            ]
        )


def _cells(*values: str | int | None) -> list[str]:
    """Return values as cells of a table."""
    return [f"{value:,}" if isinstance(value, int) else value or "" for value in values]


def status(index: IndexStore) -> Status:
    """Return what there is of an object type.

    Raises:
        ConfigurationError: Nothing was committed yet.
    """
    head = index.head()
    sources = []
    stored = index.definition(head.serving)
    new = None if head.building is None else ObjectType.from_facts(head.building.definition)
    more = () if new is None else (each for each in new.datasources if not stored.feeds(each.name))
    for source in (*stored.datasources, *more):
        state = head.states.get(source.name)
        if state is None:
            sources.append(DatasourceStatus(source.name, 0, None, None, 0, 0))
            continue
        size = sum(segment.size for shard in state.shards for run in shard for segment in run)
        runs = max(len(shard) for shard in state.shards)
        sources.append(DatasourceStatus(source.name, state.live, state.owner, state.moved, runs, size))
    pipelines = []
    followed = list(index.followed(head))
    others = (index.newest_version(name) for name in index.pipelines() if name not in head.pipelines)
    for newest in (*followed, *(each for each in others if each is not None)):
        size = sum(segment.size for segment in newest.segments)
        role: Literal["serves", "is being built", "was replaced or dropped"] = "was replaced or dropped"
        waits: tuple[str, ...] = ()
        if newest.pipeline == head.serving:
            role = "serves"
        elif newest in followed and new is not None:
            role, waits = "is being built", tuple(waits_for(head, stored, new))
        behind = 0 if role == "was replaced or dropped" else _behind(index, head, newest)
        pipelines.append(PipelineStatus(newest, behind, role, size, waits))
    return Status(index.object_type, head, tuple(sources), tuple(pipelines), _edit_status(index, head))


def _behind(index: IndexStore, head: Entry, newest: IndexVersion) -> int:
    """Return the number of facts that an index is still to take. A fact that was collected counts."""
    facts = (
        head if number == head.number else index.log.get(number)
        for number in range(max(newest.data, 0) + 1, head.number + 1)
    )
    return sum(fact is None or fact.changes_objects for fact in facts)


def _edit_status(index: IndexStore, head: Entry) -> EditStatus:
    pending, folded = index.edits.after(head.edits.offset), head.edits
    return EditStatus(
        folded.offset,
        len(pending),
        sum(len(edit.changes) for edit in pending),
        shown_time(pending[0].time) if pending else None,
        due(pending),
        folded.dead_letters,
        folded.last_dead,
    )
