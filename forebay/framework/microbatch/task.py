# SPDX-License-Identifier: Apache-2.0
"""One task of a read that a planner cut: its slices, read to their ends by a `SourceReader`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from forebay.errors import ConfigurationError, ContractError
from forebay.framework.cached import Loans
from forebay.framework.connector_errors import explained
from forebay.framework.events import SourceEvent
from forebay.framework.host_options import HostOptions
from forebay.framework.microbatch.planning import event_refused
from forebay.framework.reader import InputStatus, SourceReader, SourceReaderContext
from forebay.framework.reading.source_reader import create_reader
from forebay.framework.runtime import Runtime, ThreadRuntime
from forebay.framework.source import Source
from forebay.framework.split import Position, Split
from forebay.version import __version__

C = TypeVar("C")


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
    """

    source: Source
    slices: tuple[Split, ...]
    options: HostOptions
    index: int = 0
    count: int = 1
    version: str = __version__


@dataclass(frozen=True, slots=True)
class Delivered:
    """One record batch of a task, and where it came from."""

    split_id: str
    batch: pa.RecordBatch
    position: Position | None


def run_task(task: ReadTask, *, runtime: Runtime | None = None) -> Generator[Delivered, None, None]:
    """Yield the record batches of one task. Called in the process of the task, on its thread.

    A pure function of the task where its slices have ends: reading again gives the same rows. Closing the generator
    early frees the threads and clients, within the option `closeTimeout`.

    Raises:
        ConfigurationError: The planner ran another version of forebay.
        ForebayError: What the source raised, with the place filled in.
    """
    _check_version(task)
    context = _TaskContext(task, runtime or ThreadRuntime())
    unbounded = not task.source.bounded
    # A task of one split can name it also where the source does not say which split failed.
    split = task.slices[0].id if len({one.id for one in task.slices}) == 1 else None
    try:
        with explained(task.source.name, "create_reader()", split):
            reader = create_reader(task.source, context, task.options, until_caught_up=unbounded)
    except BaseException:
        context.release(failed=True)
        raise
    try:
        with explained(task.source.name, "reading", split):
            yield from _deliver(reader, task)
    except BaseException as error:
        _close(reader, context, task, error)
        raise
    _close(reader, context, task, None)


def _deliver(reader: SourceReader, task: ReadTask) -> Iterator[Delivered]:
    output = _Output(task.source.name)
    rounds = _Rounds(task.slices)
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


class _Output:
    """Where the reader puts its record batches: at most one per poll."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.delivered: Delivered | None = None
        self.released: list[str] = []

    def collect(self, split_id: str, batch: object, position: Position | None) -> None:
        if isinstance(batch, pa.RecordBatch) and self.delivered is None:
            self.delivered = Delivered(split_id, batch, position)
            return
        what = "two record batches" if isinstance(batch, pa.RecordBatch) else f"{type(batch).__name__}, no RecordBatch,"
        raise ContractError(
            f"a reader emitted {what} in one poll_next()",
            source=self._source,
            split=split_id,
            position=position,
            rule="RDR-2",
            advice="emit one pyarrow.RecordBatch, then return MORE_AVAILABLE",
        )

    def split_added(self, split: Split) -> None:
        """Nothing to open: a read without event time has one output."""

    def split_caught_up(self, split_id: str) -> None:
        """Nothing to note: the reader itself ends a split that is caught up."""

    def split_released(self, split_id: str) -> None:
        self.released.append(split_id)


class _TaskContext(SourceReaderContext):
    """A reader's view of a host that planned everything: no requests, no events, clients on loan."""

    def __init__(self, task: ReadTask, runtime: Runtime) -> None:
        self._task = task
        self._runtime = runtime
        self._loans = Loans(task.source, runtime)

    @property
    def runtime(self) -> Runtime:
        return self._runtime

    @property
    def subtask(self) -> int:
        return self._task.index

    @property
    def options(self) -> HostOptions:
        return self._task.options

    def current_parallelism(self) -> int:
        return self._task.count

    def send_split_request(self) -> None:
        """Ignored: every split of this task was planned."""

    def send_source_event(self, event: SourceEvent) -> None:
        raise event_refused(self._task.source.name, event)

    def lease(self, key: Hashable, factory: Callable[[], C]) -> C:
        return self._loans.borrow(key, factory)

    def release(self, *, failed: bool) -> list[Exception]:
        """Hand clients back, or close them after a failure; return what their `close` raised."""
        return self._loans.settle(failed=failed)


def _close(reader: SourceReader, context: _TaskContext, task: ReadTask, error: BaseException | None) -> None:
    """Close the reader and return what it borrowed; an error of closing never hides the first one."""
    left_early = isinstance(error, GeneratorExit)
    try:
        with explained(task.source.name, "close()"):
            reader.close()
    except Exception as second:
        context.release(failed=True)
        if error is None or left_early:
            raise
        error.add_note(f"and then closing failed with {type(second).__name__}: {second}")
    else:
        for late in context.release(failed=error is not None and not left_early):
            if error is not None:
                error.add_note(f"and then closing a client failed with {type(late).__name__}: {late}")


def _check_version(task: ReadTask) -> None:
    if task.version != __version__:
        raise ConfigurationError(
            f"this read was planned by forebay {task.version}, and this worker runs forebay {__version__}",
            source=task.source.name,
            advice="install the same version of forebay on the driver and on every worker",
        )
