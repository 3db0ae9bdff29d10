# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from forebay.errors import ContractError
from forebay.framework.coordination.discovering import LifeCycle, SplitState
from forebay.framework.split import Split


@pytest.fixture
def life():
    cycle = LifeCycle()
    for name in "abc":
        cycle.add(Split(name))
    return cycle


def ids(splits):
    return [split.id for split in splits]


def test_a_split_goes_from_new_to_forgotten(life):
    """SPL-1: NEW → ASSIGNED → FINISHED → FORGOTTEN."""
    states = [life.state("a")]
    life.assign("a")
    states.append(life.state("a"))
    life.finish(Split("a", 9))
    states.append(life.state("a"))
    assert life.known()["a"].position == 9
    assert ids(life.forget(lambda split: split.id == "a")) == ["a"]
    states.append(life.state("a"))
    assert states == [SplitState.NEW, SplitState.ASSIGNED, SplitState.FINISHED, SplitState.FORGOTTEN]
    assert "a" not in life


def test_only_finished_splits_below_the_horizon_are_forgotten(life):
    """SPL-1: an unfinished split is never forgotten, whatever the horizon says."""
    life.assign("a")
    life.assign("b")
    life.finish(Split("b"))
    assert ids(life.forget(lambda _split: True)) == ["b"]
    assert sorted(life.known()) == ["a", "c"]


@pytest.mark.parametrize("state", ["new", "assigned", "finished"])
def test_a_second_split_of_a_living_id_is_refused(life, state):
    """SPL-1: also while the first is finished and not forgotten."""
    if state != "new":
        life.assign("a")
    if state == "finished":
        life.finish(Split("a"))
    with pytest.raises(ContractError) as caught:
        life.add(Split("a"))
    assert caught.value.rule == "SPL-1" and caught.value.split == "a"


def test_an_id_can_begin_again_once_forgotten(life):
    life.assign("a")
    life.finish(Split("a"))
    life.forget(lambda _split: True)
    life.add(Split("a"))
    assert life.state("a") is SplitState.NEW


def test_returned_splits_keep_progress_and_go_before_those_that_wait(life):
    """ENU-3: progress is kept, and saved first."""
    for name in "ab":
        life.assign(name)
    life.give_back([Split("b", 5), Split("a", 3)])
    assert [(split.id, split.position) for split in life.waiting()] == [("b", 5), ("a", 3), ("c", None)]


def test_a_returned_split_lives_again_even_if_it_was_finished_or_unknown(life):
    """ENU-3: the returned split replaces the known one."""
    life.assign("a")
    life.finish(Split("a", 9))
    life.give_back([Split("a", 1), Split("z")])
    assert life.state("a") is life.state("z") is SplitState.NEW
    assert life.finished() == []


def test_a_late_finish_of_a_returned_split_is_ignored(life):
    life.assign("a")
    life.give_back([Split("a", 4)])
    assert not life.finish(Split("a", 9))
    assert life.state("a") is SplitState.NEW and life.known()["a"].position == 4


def test_what_is_known_is_a_copy_that_nobody_can_change(life):
    known = life.known()
    life.drop("a")
    assert sorted(known) == ["a", "b", "c"]
    with pytest.raises(TypeError):
        known["d"] = Split("d")
