# SPDX-License-Identifier: Apache-2.0
"""One task of a planned read: a `SourceReader` reads slices of splits to their ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from forebay.errors import ConfigurationError, ContractError
from forebay.framework.reader import InputStatus, SourceReader
from forebay.framework.reading.reader_context import Delivered, Output, ReaderContext, close_reader
from forebay.framework.runtime.connector_errors import wrap_errors
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import Runtime, ThreadRuntime
from forebay.framework.source import Source
from forebay.framework.split import Position, Split
from forebay.framework.split_reader import check_may_catch_up
from forebay.version import __version__

__all__ = ["Delivered", "ReadTask", "run_task"]


class UnplannedEnds(Protocol):
    """Reads the slices of a task whose ends are decided while they are read. Picklable."""

    def __contains__(self, split_id: str) -> bool:
        """Whether the end of this split's slice is not planned."""

    def read(self, task: ReadTask, slices: Sequence[Split], runtime: Runtime) -> Iterator[Delivered]:
        """Yield the record batches of these slices of the task, to ends that are the same in each attempt."""


@dataclass(frozen=True)
class ReadTask:
    """Everything that one task needs to read its slices; it is pickled and sent to another process (S3).

    Args:
        source: The source, with its resolved schema.
        slices: The slices of splits to read, in order; slices of one split are read one after the other.
        options: The host's options.
        index: The number of the task, from 0.
        count: The number of tasks of the read.
        version: The version of forebay that planned the task.
        unplanned: Reads the slices whose ends are not planned; None = all ends are planned.
        own_ends: The ends of the splits of an unbounded source that end in this read, by split id. Nothing is read of
            them later, so a reader must reach these ends.
    """

    source: Source
    slices: tuple[Split, ...]
    options: HostOptions
    index: int = 0
    count: int = 1
    version: str = __version__
    unplanned: UnplannedEnds | None = None
    own_ends: Mapping[str, Position] = field(default_factory=dict)


def run_task(task: ReadTask, *, runtime: Runtime | None = None) -> Generator[Delivered, None, None]:
    """Yield the record batches of one task: the same rows in each attempt of the task (S6).

    Called on the thread of the task. Closing the generator early frees threads and clients, within `closeTimeout`.

    Raises:
        ConfigurationError: The planner ran another version of forebay.
        ForebayError: The source failed; the error names source and split. Exceptions of other classes are wrapped.
    """
    _check_version(task)
    runtime = runtime or ThreadRuntime()
    if task.unplanned is None:
        yield from _read_planned(task, task.slices, runtime)
        return
    unplanned = [part for part in task.slices if part.id in task.unplanned]
    planned = [part for part in task.slices if part.id not in task.unplanned]
    if planned or not unplanned:
        yield from _read_planned(task, planned, runtime)
    if unplanned:
        yield from task.unplanned.read(task, unplanned, runtime)


def _read_planned(task: ReadTask, slices: Sequence[Split], runtime: Runtime) -> Iterator[Delivered]:
    name = task.source.name
    context = ReaderContext(task.source, task.options, runtime, index=task.index, count=task.count, planned=True)
    # A task of one split can name it if the source does not say which split failed.
    split = slices[0].id if len({part.id for part in slices}) == 1 else None
    reader = context.new_reader(split, until_caught_up=not task.source.bounded)
    try:
        with wrap_errors(name, "reading", split):
            yield from _deliver(reader, name, slices, task.own_ends)
    except BaseException as error:
        close_reader(reader, context, name, error)
        raise
    close_reader(reader, context, name, None)


def _deliver(
    reader: SourceReader, source: str, slices: Sequence[Split], own_ends: Mapping[str, Position]
) -> Iterator[Delivered]:
    """Yield the record batches of these slices. The reader gets the next slice of a split after the one before."""
    output = Output(source)
    waiting: dict[str, deque[Split]] = {}
    reading: dict[str, Split] = {}
    for part in slices:
        waiting.setdefault(part.id, deque()).append(part)

    def add_next(split_ids: Sequence[str]) -> None:
        following = _next_slices(waiting, split_ids)
        reading.update((following_part.id, following_part) for following_part in following)
        reader.add_splits(following)
        if not waiting:
            reader.notify_no_more_splits()

    add_next(list(waiting))
    reader.start()
    while True:
        status = reader.poll_next(output)
        if output.delivered is not None:
            delivered, output.delivered = output.delivered, None
            yield delivered
        for split_id in output.caught_up:
            _check_caught_up(reading[split_id], own_ends.get(split_id), source)
        output.caught_up.clear()
        if output.released and waiting:
            add_next(output.released)
        output.released.clear()
        if status is InputStatus.END_OF_INPUT:
            return
        if status is InputStatus.NOTHING_AVAILABLE:
            reader.is_available().result()


def _check_caught_up(slice_read: Split, own_end: Position | None, source: str) -> None:
    """Check that a slice whose reader reports `caught_up` is not the last that is ever read of its split (SR-4)."""
    check_may_catch_up(slice_read, source)
    if own_end is not None and slice_read.end == own_end:
        raise ContractError(
            f"the reader caught up before the end {own_end!r} of the split's own: nothing is read of the split after "
            "this read, so the records that are written later would be lost",
            source=source,
            split=slice_read.id,
            rule="SR-4",
            advice="in the connector, return the present end from latest(), so that the split stays open; or, if no "
            "record follows, move the position to the end: yield Batch([], split.end)",
        )


def _next_slices(waiting: dict[str, deque[Split]], split_ids: Sequence[str]) -> list[Split]:
    """Remove and return the next waiting slice of each of these splits; a split without more slices is removed."""
    taken = []
    for split_id in split_ids:
        if slices := waiting.get(split_id):
            taken.append(slices.popleft())
            if not slices:
                del waiting[split_id]
    return taken


def _check_version(task: ReadTask) -> None:
    if task.version != __version__:
        raise ConfigurationError(
            f"this read was planned by forebay {task.version}, and this worker runs forebay {__version__}",
            source=task.source.name,
            advice="install the same version of forebay on the driver and on every worker",
        )
