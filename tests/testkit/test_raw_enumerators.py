# SPDX-License-Identifier: Apache-2.0
"""A correct connector with a raw enumerator, which finds splits later, by asynchronous calls; each of them ends."""

from __future__ import annotations

import threading

from forebay.framework.enumerator import SplitEnumerator
from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay.framework.split_reader import Fetched, SplitReader
from forebay.testkit import check
from forebay.testkit.scripted import COUNTING_SCHEMA, counting_batch

ROWS = 3
JOBS = 4


class JobReader(SplitReader):
    """Reads splits that end: it compares with the end, and fails without one."""

    def __init__(self):
        self.splits = []
        self.woken = threading.Event()

    def add_splits(self, splits):
        self.splits.extend(splits)

    def fetch(self):
        if not self.splits:
            self.woken.wait(0.2)
            self.woken.clear()
            return []
        split = self.splits.pop(0)
        if split.position >= split.end:
            return [Fetched(split.id, finished=True)]
        self.splits.insert(0, split.at(split.position + 1))
        return [Fetched(split.id, counting_batch(split.id, split.position, split.position + 1), split.position + 1)]

    def wake_up(self):
        self.woken.set()


class JobEnumerator(SplitEnumerator):
    """Finds jobs by an asynchronous call, and gives each one to the reader that has asked for the longest time."""

    def __init__(self, context):
        self.context = context
        self.known = 0
        self.waiting = []
        self.asking = []

    def start(self):
        self.context.call_async(lambda: JOBS, self.found, period=30.0)

    def found(self, jobs, error):
        self.waiting += [Split(f"job-{number}", 0, ROWS) for number in range(self.known, jobs)]
        self.known = max(self.known, jobs)
        self.assign()

    def handle_split_request(self, subtask, host):
        self.asking.append(subtask)
        self.assign()

    def assign(self):
        self.asking = [subtask for subtask in self.asking if subtask in self.context.registered_readers()]
        while self.waiting and self.asking:
            self.context.assign_splits({self.asking.pop(0): [self.waiting.pop(0)]})

    def add_splits_back(self, splits, subtask):
        self.waiting[:0] = splits
        self.assign()

    def snapshot_state(self, checkpoint_id):
        # Assigned after the snapshot, so no part of the checkpoint.
        self.context.run_in_coordinator_thread(self.assign_one_more)
        return {"known": self.known, "waiting": [split.to_json() for split in self.waiting]}

    def assign_one_more(self):
        readers = list(self.context.registered_readers())
        if self.waiting and readers:
            self.context.assign_splits({readers[0]: [self.waiting.pop(0)]})

    def restore_state(self, state):
        self.known = state["known"]
        self.waiting = [Split.from_json(stored) for stored in state["waiting"]]


class Jobs(Source):
    """Unbounded, and each split of it ends."""

    bounded = False

    def schema(self):
        return COUNTING_SCHEMA

    def create_enumerator(self, context):
        return JobEnumerator(context)

    def create_split_reader(self, context):
        return JobReader()


def test_an_assignment_right_behind_a_snapshot_is_no_part_of_the_checkpoint():
    """ENU-5: else a correct enumerator would seem to assign a split twice."""
    assert not check(Jobs(), rules=["ENU-5"]).rules("failed")


def test_splits_with_ends_of_their_own_are_never_read_without_an_end():
    """The kit does not wait behind the ends of such splits for more records."""
    report = check(Jobs(), rules=["RDR-3", "RDR-9", "SR-1"])
    assert not report.rules("failed")
