# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.framework.coordination.context import AssignmentTracker
from forebay.framework.split import Split


def ids(splits):
    return [split.id for split in splits]


@pytest.mark.parametrize(("reset_to", "taken"), [(99, ["0", "3"]), (100, ["3"]), (101, [])])
def test_the_worked_example(reset_to, taken):
    """TRK-2: assign {0}, checkpoint 100, assign {3}, checkpoint 101; a reset takes what is newer."""
    tracker = AssignmentTracker()
    tracker.record(1, [Split("0")])
    tracker.cut(100)
    tracker.record(1, [Split("3")])
    tracker.cut(101)
    assert ids(tracker.take(1, reset_to)) == taken


def test_a_checkpoint_moves_the_open_set_under_its_key_and_completion_forgets_up_to_it():
    """TRK-1: completion of c forgets keys ≤ c, and only these."""
    tracker = AssignmentTracker()
    for checkpoint in (1, 2, 3):
        tracker.record(0, [Split(str(checkpoint))])
        tracker.cut(checkpoint)
    tracker.complete(2)
    assert ids(tracker.take(0, 0)) == ["3"]


def test_what_is_taken_is_taken_once():
    """TRK-2: take removes."""
    tracker = AssignmentTracker()
    tracker.record(0, [Split("a")])
    assert ids(tracker.take(0, 0)) == ["a"]
    assert tracker.take(0, 0) == []


def test_readers_do_not_take_from_each_other():
    """TRK-2: the open set is kept per subtask."""
    tracker = AssignmentTracker()
    tracker.record(0, [Split("a")])
    tracker.record(1, [Split("b")])
    tracker.cut(1)
    assert ids(tracker.take(1, 0)) == ["b"]
    assert ids(tracker.take(0, 0)) == ["a"]


def test_an_aborted_checkpoint_loses_no_entry():
    """TRK-3: entries of a checkpoint that never completes stay until a later one does."""
    tracker = AssignmentTracker()
    tracker.record(0, [Split("a")])
    tracker.cut(1)
    tracker.record(0, [Split("b")])
    tracker.cut(2)
    assert ids(tracker.take(0, 0)) == ["a", "b"]
    tracker.record(0, [Split("c")])
    tracker.cut(3)
    tracker.complete(3)
    assert tracker.take(0, 0) == []


@given(st.lists(st.one_of(st.integers(0, 2), st.sampled_from(["cut", "complete"])), max_size=30), st.integers(0, 30))
def test_take_returns_exactly_what_the_model_says(script, reset_to):
    """TRK-1, TRK-2: against a list of (subtask, split, checkpoint that holds it)."""
    tracker, model, checkpoint, completed = AssignmentTracker(), [], 0, 0
    for number, action in enumerate(script):
        if action == "cut":
            checkpoint += 1
            tracker.cut(checkpoint)
            model = [(subtask, name, held or checkpoint) for subtask, name, held in model]
        elif action == "complete":
            completed = checkpoint
            tracker.complete(completed)
        else:
            tracker.record(action, [Split(f"s{number}")])
            model.append((action, f"s{number}", None))
    for subtask in range(3):
        expected = [
            name
            for owner, name, held in model
            if owner == subtask and (held is None or held > max(reset_to, completed))
        ]
        assert ids(tracker.take(subtask, reset_to)) == expected
