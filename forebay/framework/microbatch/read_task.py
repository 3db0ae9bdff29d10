# SPDX-License-Identifier: Apache-2.0
"""One task of a read that a planner cut: its slices, read to their ends by a `SourceReader`."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

from forebay.errors import ConfigurationError
from forebay.framework.host_options import HostOptions
from forebay.framework.microbatch.end_negotiation.claim import Claiming
from forebay.framework.microbatch.end_negotiation.task_reads import read_agreed
from forebay.framework.microbatch.tasks.task_context import Delivered, Output, TaskContext, close_reader
from forebay.framework.reader import InputStatus, SourceReader
from forebay.framework.reading.source_reader import create_reader
from forebay.framework.runtime.connector_errors import explained
from forebay.framework.runtime.runtime import Runtime, ThreadRuntime
from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay.version import __version__

__all__ = ["Delivered", "ReadTask", "run_task"]


@dataclass(frozen=True)
class ReadTask:
    """Everything that one task needs: made by the planner, pickled, read in another process (S3).

    Args:
        source: What to read.
        slices: The parts to read, in order; two slices of one split are read one after the other.
        options: Bounds and time-outs.
        index: The number of this task, from 0.
        count: How many tasks there are.
        version: The version of forebay that planned it.
        claiming: How to agree on the ends of those slices that have none; None where all are planned.
    """

    source: Source
    slices: tuple[Split, ...]
    options: HostOptions
    index: int = 0
    count: int = 1
    version: str = __version__
    claiming: Claiming | None = None


def run_task(task: ReadTask, *, runtime: Runtime | None = None) -> Generator[Delivered, None, None]:
    """Yield the record batches of one task. Called in the process of the task, on its thread.

    A pure function of the task where its slices have ends, or claims (S14): reading again gives the same rows. Closing
    the generator early frees the threads and clients, within the option `closeTimeout`.

    Raises:
        ConfigurationError: The planner ran another version of forebay.
        ForebayError: What the source raised, with the place filled in.
    """
    _check_version(task)
    runtime = runtime or ThreadRuntime()
    claiming = task.claiming
    agreed = [] if claiming is None else [one for one in task.slices if one.id in claiming.shares]
    planned = [one for one in task.slices if claiming is None or one.id not in claiming.shares]
    if planned or not agreed:
        yield from _read_planned(task, planned, runtime)
    if agreed and claiming is not None:
        yield from read_agreed(task.source, agreed, claiming, task.options, runtime, index=task.index, count=task.count)


def _read_planned(task: ReadTask, slices: Sequence[Split], runtime: Runtime) -> Iterator[Delivered]:
    name = task.source.name
    context = TaskContext(task.source, task.options, runtime, index=task.index, count=task.count, planned=True)
    # A task of one split can name it also where the source does not say which split failed.
    split = slices[0].id if len({one.id for one in slices}) == 1 else None
    try:
        with explained(name, "create_reader()", split):
            reader = create_reader(task.source, context, task.options, until_caught_up=not task.source.bounded)
    except BaseException:  # cleaned up after, also when interrupted, and raised again
        context.release(failed=True)
        raise
    try:
        with explained(name, "reading", split):
            yield from _deliver(reader, name, slices)
    except BaseException as error:
        close_reader(reader, context, name, error)
        raise
    close_reader(reader, context, name, None)


def _deliver(reader: SourceReader, source: str, slices: Sequence[Split]) -> Iterator[Delivered]:
    output = Output(source)
    rounds = _Rounds(slices)
    reader.add_splits(rounds.first())
    if rounds.done():
        reader.notify_no_more_splits()
    reader.start()
    while True:
        status = reader.poll_next(output)
        if output.delivered is not None:
            delivered, output.delivered = output.delivered, None
            yield delivered
        if output.released and not rounds.done():
            reader.add_splits(rounds.after(output.released))
            if rounds.done():
                reader.notify_no_more_splits()
        output.released.clear()
        output.caught_up.clear()
        if status is InputStatus.END_OF_INPUT:
            return
        if status is InputStatus.NOTHING_AVAILABLE:
            reader.is_available().result()


class _Rounds:
    """Hands out slices so that a reader never holds two of one split."""

    def __init__(self, slices: Sequence[Split]) -> None:
        self._waiting: dict[str, deque[Split]] = {}
        for one in slices:
            self._waiting.setdefault(one.id, deque()).append(one)

    def first(self) -> list[Split]:
        return self.after(list(self._waiting))

    def after(self, released: Sequence[str]) -> list[Split]:
        given = []
        for split_id in released:
            if waiting := self._waiting.get(split_id):
                given.append(waiting.popleft())
                if not waiting:
                    del self._waiting[split_id]
        return given

    def done(self) -> bool:
        return not self._waiting


def _check_version(task: ReadTask) -> None:
    if task.version != __version__:
        raise ConfigurationError(
            f"this read was planned by forebay {task.version}, and this worker runs forebay {__version__}",
            source=task.source.name,
            advice="install the same version of forebay on the driver and on every worker",
        )
