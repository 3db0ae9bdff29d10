# SPDX-License-Identifier: Apache-2.0
"""A runtime with one thread and a manual clock, and an enumerator that records its calls."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from forebay.clock import ManualClock
from forebay.framework.coordination.coordinator import Coordinator
from forebay.framework.coordination.inbox import AddSplits, EnumeratorEvent, NoMoreSplits
from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.enumerator import SplitEnumerator
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import Next, Runtime, WaitFor, run_job
from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay.options import Duration


class ManualRuntime(Runtime):
    """Work that was submitted waits until a test runs it; time passes when a test says so."""

    def __init__(self):
        self.manual_clock = ManualClock()
        super().__init__(self.manual_clock, random.Random(7))
        self.submitted: list[Callable[[], None]] = []

    def lock(self):
        return threading.Lock()

    def signal(self):
        return threading.Event()

    def start(self, name, worker):
        raise NotImplementedError

    def submit(self, name, work, done):
        self.submitted.append(lambda: run_job(work, done))

    def run_submitted(self):
        waiting, self.submitted = self.submitted, []
        for run in waiting:
            run()
        return len(waiting)


class Recorder(SplitEnumerator):
    """Records every call; tests put callbacks into `on`."""

    def __init__(self, context, journal):
        self.context = context
        self.journal = journal
        self.on: dict[str, Callable[..., Any]] = {}

    def _record(self, name, *args):
        self.journal.append((name, *([part.id for part in arg] if isinstance(arg, list) else arg for arg in args)))
        return self.on[name](*args) if name in self.on else None

    def restore_state(self, state):
        self._record("restore_state", state)

    def start(self):
        self._record("start")

    def handle_split_request(self, subtask, host):
        self._record("handle_split_request", subtask, host)

    def add_splits_back(self, splits, subtask):
        self._record("add_splits_back", list(splits), subtask)

    def add_reader(self, subtask):
        self._record("add_reader", subtask)

    def handle_source_event(self, subtask, event):
        self._record("handle_source_event", subtask, event)

    def handle_splits_finished(self, subtask, splits):
        self._record("handle_splits_finished", subtask, list(splits))

    def snapshot_state(self, checkpoint_id):
        return self._record("snapshot_state", checkpoint_id)

    def notify_checkpoint_complete(self, checkpoint_id):
        self._record("notify_checkpoint_complete", checkpoint_id)

    def close(self):
        self._record("close")


class Author(DiscoveryEnumerator):
    """Discovers the splits that a test sets."""

    def __init__(self):
        self.found: list[Any] = []
        self.discoveries: list[tuple[dict[str, Split], bool]] = []
        self.journal: list[Any] = []
        self.drop = False
        self.horizon: Callable[[Split], bool] | None = None
        self.state: Any = None
        self.on_finished: Callable[[], None] = lambda: None

    def discover(self, known, first):
        self.discoveries.append((dict(known), first))
        answer = self.found.pop(0) if self.found else []
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(answer, Discovered):
            return answer
        return Discovered([s if isinstance(s, Split) else Split(s) for s in answer], self.horizon, self.state)

    def restore_state(self, state):
        self.journal.append(("restore_state", state))

    def vanished(self, splits):
        self.journal.append(("vanished", [split.id for split in splits]))
        return self.drop

    def finished(self, splits):
        self.journal.append(("finished", [split.id for split in splits]))
        self.on_finished()

    def committed(self, positions):
        self.journal.append(("committed", dict(positions)))

    def close(self):
        self.journal.append(("close",))


def scripted(make, *, bounded=True):
    """Return a source with a test's enumerator."""

    class Scripted(Source):
        def schema(self):
            return pa.schema({"n": pa.int64()})

        def create_enumerator(self, context):
            return make(context)

        def create_split_reader(self, context):
            raise NotImplementedError

    Scripted.bounded = bounded
    return Scripted()


@dataclass
class Reader:
    """The reader's end of a gateway."""

    messages: list[Any] = field(default_factory=list)

    def __call__(self, message):
        self.messages.append(message)

    @property
    def splits(self):
        return [split for message in self.messages if isinstance(message, AddSplits) for split in message.splits]

    @property
    def ids(self):
        return [split.id for split in self.splits]

    @property
    def no_more_signals(self):
        return sum(isinstance(message, NoMoreSplits) for message in self.messages)

    @property
    def events(self):
        return [message.event for message in self.messages if isinstance(message, EnumeratorEvent)]


class Stage:
    """A coordinator with its runtime, its enumerator and its readers."""

    def __init__(self, make, *, parallelism=2, bounded=True, options=None):
        self.runtime = ManualRuntime()
        self.journal: list[Any] = []
        self.options = options or HostOptions(discovery_interval=Duration(10), retries=2)
        self.source = scripted(make, bounded=bounded)
        self.coordinator = Coordinator(self.source, self.runtime, parallelism=parallelism, options=self.options)
        self.readers: dict[int, Reader] = {}

    @property
    def enumerator(self):
        return self.coordinator._enumerator

    @property
    def context(self):
        return self.coordinator._context

    def run(self):
        """Step until no action is left; raise the error of the run."""
        while (outcome := self.coordinator.step()) is Next.AGAIN:
            pass
        if self.coordinator.error is not None:
            raise self.coordinator.error
        return outcome

    def run_until_idle(self):
        """Step and run submitted work until nothing is left at this time."""
        self.run()
        while self.runtime.run_submitted():
            self.run()

    def advance(self, seconds):
        self.runtime.manual_clock.advance(seconds)
        self.run_until_idle()

    def wait(self):
        """The seconds that the coordinator would wait; None = until signalled."""
        outcome = self.run()
        return outcome.seconds if isinstance(outcome, WaitFor) else None

    def register(self, *subtasks):
        for subtask in subtasks:
            self.readers[subtask] = Reader()
            self.coordinator.register_reader(subtask, f"host-{subtask}", self.readers[subtask])
        self.run()

    def request(self, *subtasks):
        for subtask in subtasks:
            self.coordinator.handle_split_request(subtask, None)
        self.run()

    def reset(self, subtask, checkpoint=-1, held=()):
        self.coordinator.reader_failed(subtask)
        self.coordinator.subtask_reset(subtask, checkpoint, held)
        self.run()

    def finish(self, subtask, *splits):
        self.coordinator.handle_splits_finished(subtask, [s if isinstance(s, Split) else Split(s) for s in splits])
        self.run()

    def checkpoint(self, number, positions=None):
        """Make a checkpoint and complete it."""
        state = self.snapshot(number)
        self.coordinator.notify_checkpoint_complete(number, positions or {})
        self.run()
        return state

    def snapshot(self, number):
        box: list[Any] = []
        self.coordinator.snapshot(number, lambda state, error: box.append((state, error)))
        self.run()
        state, error = box[0]
        if error is not None:
            raise error
        return state


@pytest.fixture
def recorded():
    """A started stage whose enumerator is a `Recorder`."""
    journal: list[Any] = []
    stage = Stage(lambda context: Recorder(context, journal))
    stage.journal = journal
    stage.coordinator.start()
    stage.run()
    return stage


@pytest.fixture
def stage_of():
    """Makes a stage around any enumerator."""
    return Stage


@pytest.fixture
def author():
    return Author()


@pytest.fixture
def discovering(author):
    """Makes and starts a stage around the author, with the splits of its first discovery."""

    def make(*found, parallelism=2, bounded=True, state=None, restored=(), run=True, the_author=None, **options):
        one = the_author or author
        one.found.extend(found)
        stage = Stage(
            lambda _context: one,
            parallelism=parallelism,
            bounded=bounded,
            options=HostOptions(**{"discovery_interval": Duration(10), "retries": 2, **options}),
        )
        if state is not None:
            stage.coordinator.reset_to_checkpoint(state)
        stage.coordinator.start(restored)
        if run:
            stage.run_until_idle()
        return stage

    return make


@pytest.fixture
def reader_class():
    return Reader


@pytest.fixture
def recorder_class():
    return Recorder


@pytest.fixture
def scripted_source():
    return scripted


@pytest.fixture
def author_class():
    return Author
