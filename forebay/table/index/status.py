# SPDX-License-Identifier: Apache-2.0
"""What there is of an object type: datasources, the log, and the index of each pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.table.index.edits import due, shown_time
from forebay.table.index.log import Entry
from forebay.table.index.pipelines import IndexStore, IndexVersion


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
    """The index of a pipeline: its newest version, and how many facts of the log it has not seen."""

    version: IndexVersion
    behind: int
    serving: bool
    size: int


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


def status(index: IndexStore) -> Status:
    """Return what there is of an object type.

    Raises:
        ConfigurationError: Nothing was committed yet.
    """
    head = index.head()
    sources = []
    for source in index.definition(head.serving).datasources:
        state = head.states.get(source.name)
        if state is None:
            sources.append(DatasourceStatus(source.name, 0, None, None, 0, 0))
            continue
        size = sum(segment.size for shard in state.shards for run in shard for segment in run)
        runs = max(len(shard) for shard in state.shards)
        sources.append(DatasourceStatus(source.name, state.live, state.owner, state.moved, runs, size))
    pipelines = []
    for newest in index.newest_versions():
        size = sum(segment.size for segment in newest.segments)
        serving = newest.pipeline == head.serving
        pipelines.append(PipelineStatus(newest, head.number - newest.data, serving, size))
    return Status(index.object_type, head, tuple(sources), tuple(pipelines), _edit_status(index, head))


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
