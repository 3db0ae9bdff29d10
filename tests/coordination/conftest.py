# SPDX-License-Identifier: Apache-2.0
"""A runtime with one thread and a manual clock, an enumerator that records its calls, a reader that obeys."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pyarrow as pa
import pytest
from manual_clock import ManualClock

from forebay.framework.coordination.coordinator import Coordinator
from forebay.framework.coordination.discovering import begin_enumerator
from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.enumerator import SplitEnumerator
from forebay.framework.inprocess.engine import CheckpointPlan, Engine
from forebay.framework.reader import InputStatus, SourceReader
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import Runtime, run_job
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


SCHEMA = pa.schema({"n": pa.int64()})


def scripted(make, *, bounded=True, make_reader=lambda _context: None):
    """Return a source with a test's enumerator, and its reader if it has one."""

    class Scripted(Source):
        def schema(self):
            return SCHEMA

        def create_enumerator(self, context):
            return make(context)

        def create_split_reader(self, context):
            raise NotImplementedError

        def create_reader(self, context):
            return make_reader(context)

    Scripted.bounded = bounded
    return Scripted()


class Reader:
    """What the coordinator assigns splits to."""

    def __init__(self):
        self.splits: list[Split] = []
        self.messages: list[Any] = []
        """Ids of splits, events, and "no more", in order."""

    def add_splits(self, splits):
        self.splits += splits
        self.messages += [split.id for split in splits]

    def notify_no_more_splits(self):
        self.messages.append("no more")

    def handle_source_event(self, event):
        self.messages.append(event)

    @property
    def ids(self):
        return [split.id for split in self.splits]


class Stage:
    """A coordinator with its runtime, and its reader once it is registered."""

    def __init__(self, make, *, bounded=True, runtime=None, **options):
        self.runtime = runtime or ManualRuntime()
        self.options = HostOptions(**{"discovery_interval": Duration(10), "retries": 2, **options})
        self.source = scripted(make, bounded=bounded)
        self.coordinator = Coordinator(self.source.name, self.runtime)
        self.discovering: Any = None
        self.reader = Reader()

    def begin(self, state=None, restored=()):
        """Make and start the enumerator."""
        self.discovering = begin_enumerator(
            self.source, self.coordinator, self.options, self.runtime.random, state=state, splits=restored
        )

    def run(self):
        """Run all queued actions."""
        while self.coordinator.run_next():
            pass

    def run_until_idle(self):
        """Run actions and submitted work until nothing is left at this time."""
        self.run()
        while self.runtime.run_submitted():
            self.run()

    def advance(self, seconds):
        self.runtime.manual_clock.advance(seconds)
        self.run_until_idle()

    def wait(self):
        """The seconds to the next asynchronous call."""
        self.run()
        return self.coordinator.due_in()

    def register(self, host=None):
        """Register a new reader."""
        self.reader = Reader()
        self.coordinator.register(self.reader, host)

    def request(self, times=1):
        for _ in range(times):
            self.coordinator.request()

    def replace(self, *held):
        """The reader fails with these splits, and its replacement registers."""
        self.coordinator.reader_failed(held)
        self.register()

    def finish(self, *splits):
        self.coordinator.splits_finished([s if isinstance(s, Split) else Split(s) for s in splits])
        self.run()

    def complete(self, number, positions=None):
        self.coordinator.checkpoint_complete(number)
        if self.discovering is not None:
            self.discovering.committed(positions or {})

    def checkpoint(self, number):
        """Make a checkpoint and complete it."""
        state = self.coordinator.snapshot(number)
        self.complete(number)
        return state


class Obedient(SourceReader):
    """Does at each poll what a test told it, and keeps no splits of its own."""

    def __init__(self, context, commands):
        self.context = context
        self._commands = commands
        self._available: Future[None] = Future()
        self._available.set_result(None)

    def poll_next(self, output):
        if self._commands:
            self._commands.popleft()(self, output)
        return InputStatus.NOTHING_AVAILABLE

    def is_available(self):
        return self._available

    def snapshot_state(self, checkpoint_id):
        return []

    def add_splits(self, splits):
        pass

    def notify_no_more_splits(self):
        raise NotImplementedError

    def pause_or_resume_splits(self, pause, resume):
        raise NotImplementedError

    def close(self):
        self._commands.clear()


class Store:
    """Keeps checkpoints in memory."""

    def __init__(self):
        self.written: list[Any] = []
        self.error: Exception | None = None

    def open(self):
        return None

    def write(self, checkpoint):
        if self.error is not None:
            raise self.error
        self.written.append(checkpoint)

    def close(self):
        pass


class Driven:
    """An engine whose reader does what a test says."""

    def __init__(self, make, *, bounded=True):
        self.runtime = ManualRuntime()
        self.store = Store()
        self.commands: deque[Callable[..., None]] = deque()
        self.engine = Engine(
            scripted(make, bounded=bounded, make_reader=lambda context: Obedient(context, self.commands)),
            SCHEMA,
            self.runtime,
            HostOptions(discovery_interval=Duration(10)),
            parallelism=1,
            checkpoints=CheckpointPlan(self.store, interval=1e9),  # type: ignore[arg-type]
        )
        self.run()

    def run(self):
        """Do more steps than anything takes that happens at this time."""
        for _ in range(10):
            self.engine.ask()
            self.engine.step()
            self.engine.take()
            self.runtime.run_submitted()

    def reader_does(self, command):
        self.commands.append(command)
        self.run()

    def deliver(self, split_id, position):
        batch = pa.record_batch({"n": [position]}, schema=SCHEMA)
        self.reader_does(lambda _reader, output: output.collect(split_id, batch, position))

    def finish(self, split_id):
        self.reader_does(lambda _reader, output: output.split_released(split_id))

    def replace_reader(self):
        """Let the reader fail, and its replacement start."""

        def fail(_reader, _output):
            raise OSError("gone")

        self.reader_does(fail)
        self.runtime.manual_clock.advance(60)
        self.run()


@pytest.fixture
def recorded(stage_of_recorder):
    """A started stage whose enumerator is a `Recorder`."""
    stage = stage_of_recorder()
    stage.begin()
    return stage


@pytest.fixture
def stage_of():
    """Makes a stage around any enumerator."""
    return Stage


@pytest.fixture
def stage_of_recorder():
    """Makes a stage that is not begun; `on` are the callbacks of its recorder."""

    def make(runtime=None, **on):
        journal: list[Any] = []

        def make_enumerator(context):
            recorder = Recorder(context, journal)
            recorder.on.update(on)
            return recorder

        stage: Any = Stage(make_enumerator, runtime=runtime)
        stage.journal = journal
        return stage

    return make


@pytest.fixture
def author():
    return Author()


@pytest.fixture
def discovering(author):
    """Makes and starts a stage around the author, with the splits of its first discovery."""

    def make(*found, bounded=True, state=None, restored=(), run=True, the_author=None, **options):
        one = the_author or author
        one.found.extend(found)
        stage = Stage(lambda _context: one, bounded=bounded, **options)
        stage.begin(state, restored)
        if run:
            stage.run_until_idle()
        return stage

    return make


@pytest.fixture
def driven():
    """Makes an engine whose reader does what a test says, around any enumerator."""
    return Driven


@pytest.fixture
def recorder_class():
    return Recorder


@pytest.fixture
def author_class():
    return Author
