# SPDX-License-Identifier: Apache-2.0
"""Correct connectors, at least one for each layer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ClassVar

from forebay.framework.arrow.row_packer import Batch
from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.enumerator import SplitEnumerator
from forebay.framework.reader import InputStatus, SourceReader
from forebay.framework.simple import SimpleSource
from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay.framework.split_reader import Fetched, SplitReader
from forebay.testkit.scripted import COUNTING_SCHEMA, counting_batch


class Numbers(SimpleSource):
    """Plain rows: positions are counted."""

    count: int = 9

    def schema(self):
        return COUNTING_SCHEMA

    def splits(self):
        return ["a", "b"]

    def read(self, split):
        for n in range(split.position or 0, self.count):
            yield {"split": split.id, "n": n}


class Pages(Numbers):
    """Unbounded, with positions of its own and a known end."""

    bounded = False

    def latest(self, split):
        return self.count

    def read(self, split):
        at = split.position or 0
        while at < split.end:
            stop = min(at + 2, split.end)
            yield Batch([(split.id, n) for n in range(at, stop)], stop)
            at = stop


class Reader(SplitReader):
    """One record a fetch, splits in turns; waits, wakeable, at the end of an unbounded source."""

    def __init__(self, source):
        self.source = source
        self.splits: dict[str, Split] = {}
        self.paused: set[str] = set()
        self.woken = threading.Event()

    def add_splits(self, splits):
        self.splits |= {split.id: split for split in splits}

    def fetch(self):
        running = [split_id for split_id in self.splits if split_id not in self.paused]
        for split_id in running:
            split = self.splits.pop(split_id)
            at = split.position or 0
            if split.end is not None and at >= split.end:
                return [Fetched(split_id, position=at, finished=True)]
            if at >= self.source.count:
                self.splits[split_id] = split
                continue
            self.splits[split_id] = split.at(at + 1)
            return [Fetched(split_id, counting_batch(split_id, at, at + 1), at + 1)]
        if self.woken.wait(0.2):
            self.woken.clear()
        return [Fetched(split_id, caught_up=True) for split_id in running]

    def wake_up(self):
        self.woken.set()

    def pause_or_resume_splits(self, pause, resume):
        self.paused = (self.paused - set(resume)) | set(pause)
        return True


class Finder(DiscoveryEnumerator):
    def __init__(self, source):
        self.source = source

    def discover(self, known, first):
        end = self.source.count if self.source.bounded else None
        return Discovered([Split(split_id, 0, end) for split_id in ("a", "b")])


class Full(Source):
    """The full layer, bounded or not."""

    count: int = 7
    endless: bool = False
    reader: ClassVar[Callable[..., Any]] = Reader
    finder: ClassVar[Callable[..., Any]] = Finder

    @property
    def bounded(self):
        return not self.endless

    def schema(self):
        return COUNTING_SCHEMA

    def create_enumerator(self, context):
        return type(self).finder(self)

    def create_split_reader(self, context):
        return type(self).reader(self)


class Dealer(SplitEnumerator):
    """A raw enumerator: gives a split to each reader that asks."""

    def __init__(self, source, context):
        self.context = context
        self.waiting = [Split(split_id, 0, source.count) for split_id in ("a", "b", "c")]

    def restore_state(self, state):
        self.waiting = [Split.from_json(stored) for stored in state]

    def handle_split_request(self, subtask, host):
        if subtask not in self.context.registered_readers():
            return
        if self.waiting:
            self.context.assign_splits({subtask: [self.waiting.pop(0)]})
        else:
            self.context.signal_no_more_splits(subtask)

    def add_splits_back(self, splits, subtask):
        self.waiting[:0] = splits

    def snapshot_state(self, checkpoint_id):
        return [split.to_json() for split in self.waiting]


class Dealt(Full):
    dealer: ClassVar[Callable[..., Any]] = Dealer

    def create_enumerator(self, context):
        return type(self).dealer(self, context)


class Own(SourceReader):
    """A reader without threads: one record a poll."""

    def __init__(self, source, context):
        self.source = source
        self.context = context
        self.splits: dict[str, Split] = {}
        self.paused: set[str] = set()
        self.no_more = False
        self.new: list[Split] = []
        self.future: Future[None] = Future()

    def start(self):
        if not self.splits:
            self.context.send_split_request()

    def readable(self):
        running = [split for split in self.splits.values() if split.id not in self.paused]
        return [split for split in running if split.end is not None or split.position < self.source.count]

    def poll_next(self, output):
        while self.new:
            output.split_added(self.new.pop())
        for split in self.readable():
            if split.end is not None and split.position >= split.end:
                del self.splits[split.id]
                output.split_released(split.id)
                self.context.send_split_request()
                return InputStatus.MORE_AVAILABLE
            self.splits[split.id] = split.at(split.position + 1)
            self.emit(output, split)
            return InputStatus.MORE_AVAILABLE
        if self.no_more and not self.splits:
            return InputStatus.END_OF_INPUT
        if self.future.done():
            self.future = Future()
        for split in self.splits.values():
            if split.end is None and split.position >= self.source.count:
                output.split_caught_up(split.id)
        return InputStatus.NOTHING_AVAILABLE

    def emit(self, output, split):
        output.collect(split.id, counting_batch(split.id, split.position, split.position + 1), split.position + 1)

    def changed(self):
        if not self.future.done():
            self.future.set_result(None)

    def is_available(self):
        return self.future

    def snapshot_state(self, checkpoint_id):
        return list(self.splits.values())

    def add_splits(self, splits):
        self.splits |= {split.id: split for split in splits}
        self.new += splits
        self.changed()

    def notify_no_more_splits(self):
        self.no_more = True
        self.changed()

    def pause_or_resume_splits(self, pause, resume):
        self.paused = (self.paused - set(resume)) | (set(pause) & self.splits.keys())
        self.changed()

    def close(self):
        self.splits.clear()


class OwnReader(Full):
    own: ClassVar[Callable[..., Any]] = Own

    def create_reader(self, context):
        return type(self).own(self, context)
