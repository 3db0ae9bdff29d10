# SPDX-License-Identifier: Apache-2.0
"""Bugs planted in the machinery are found within a bounded number of seeds, and the printed command replays them."""

from __future__ import annotations

import re
import shlex
from collections import deque

import pytest
from forebay_simulator.__main__ import main

from forebay.framework.coordination.coordinator import Coordinator, Inbox
from forebay.framework.coordination.discovering import DiscoveringEnumerator, LifeCycle
from forebay.framework.inprocess.deliveries import DeliveryLog
from forebay.framework.inprocess.reader import EventQueue
from forebay.framework.reading.fetchers import Fetcher, HandOverQueue
from forebay.framework.reading.source_reader import SourceReaderBase
from forebay.framework.runtime.runtime import Next

PLANTED = {}


def planted(within, first=0):
    """Register a bug, with the number of seeds that must suffice: several times what they needed when written.

    A rare interleaving is searched from a later seed on, not for longer.
    """

    def keep(plant):
        PLANTED[plant.__name__] = (plant, range(first, first + within))
        return plant

    return keep


# ---- the put-retry of fetchers, FET-3


@planted(100)
def a_refused_hand_over_is_dropped(patch):
    offer = Fetcher._offer

    def dropping(self, hand_over):
        outcome = offer(self, hand_over)
        if outcome is Next.WAIT:
            self._pending = None
            return Next.AGAIN
        return outcome

    patch.setattr(Fetcher, "_offer", dropping)


@planted(100)
def a_refused_hand_over_is_put_twice(patch):
    offer = Fetcher._offer

    def doubling(self, hand_over):
        outcome = offer(self, hand_over)
        if outcome is Next.WAIT:
            self._refused_once = hand_over
        elif getattr(self, "_refused_once", None) is hand_over:
            self._refused_once, self._pending = None, hand_over
        return outcome

    patch.setattr(Fetcher, "_offer", doubling)


@planted(100)
def a_new_fetch_overtakes_a_refused_hand_over(patch):
    offer = Fetcher._offer

    def overtaking(self, hand_over):
        outcome = offer(self, hand_over)
        if outcome is Next.WAIT and self._assigned and not getattr(self, "_put_aside", None):
            self._put_aside, self._pending = hand_over, None
            return Next.AGAIN
        if outcome is Next.AGAIN and self._pending is None and getattr(self, "_put_aside", None):
            self._pending, self._put_aside = self._put_aside, None
        return outcome

    patch.setattr(Fetcher, "_offer", overtaking)


@planted(200)
def nobody_tells_a_refused_fetcher_of_room(patch):
    poll = HandOverQueue.poll

    def silent(self):
        self._refused = []
        return poll(self)

    patch.setattr(HandOverQueue, "poll", silent)


# ---- add-back, ENU-3 and COO-4


@planted(300)
def a_split_is_lost_when_its_reader_fails(patch):
    take_back = DeliveryLog.take_back
    patch.setattr(DeliveryLog, "take_back", lambda self: take_back(self)[1:])


@planted(300)
def a_split_comes_back_where_it_was_assigned(patch):
    take_back = DeliveryLog.take_back

    def forgetful(self):
        starts = {split_id: entry.split for split_id, entry in self._entries.items()}
        return [starts[split.id] for split in take_back(self)]

    patch.setattr(DeliveryLog, "take_back", forgetful)


@planted(1000)
def what_a_failed_reader_left_behind_still_counts(patch):
    patch.setattr(EventQueue, "drop", lambda self: None)


@planted(500)
def a_replacement_reader_never_gets_the_end_of_splits(patch):
    patch.setattr(DiscoveringEnumerator, "add_reader", lambda self, subtask: self._assign_waiting())


@planted(500)
def restored_splits_do_not_go_through_the_enumerator(patch):
    begin = Coordinator.begin
    patch.setattr(Coordinator, "begin", lambda self, *_: begin(self))


# ---- de-duplication of discoveries


@planted(200)
def a_discovery_brings_finished_splits_again(patch):
    found = DiscoveringEnumerator._on_discovered

    def forgetting(self, result, error):
        for split in self._life.finished():
            self._life.drop(split.id)
        found(self, result, error)

    patch.setattr(DiscoveringEnumerator, "_on_discovered", forgetting)


@planted(200)
def a_discovery_brings_assigned_splits_again(patch):
    patch.setattr(LifeCycle, "__contains__", lambda self, split_id: split_id in self._new)
    add = LifeCycle.add

    def readily(self, split):
        self._assigned.pop(split.id, None)
        self._splits.pop(split.id, None)
        add(self, split)

    patch.setattr(LifeCycle, "add", readily)


# ---- others


@planted(300)
def a_checkpoint_counts_what_waits_in_the_host(patch):
    patch.setattr(EventQueue, "waiting", lambda self: ())


@planted(300)
def a_checkpoint_counts_the_batch_in_the_consumers_hands(patch):
    deliver = DeliveryLog.deliver

    def covering(self, split_id, batch, position):
        deliver(self, split_id, batch, position)
        self._uncovered = None

    patch.setattr(DeliveryLog, "deliver", covering)


@planted(100)
def a_paused_split_goes_on(patch):
    patch.setattr(SourceReaderBase, "_hold", lambda self, part: self._parts.appendleft(part) or self._paused.clear())


@planted(2000, first=2870)
def what_a_gate_held_comes_out_after_what_is_in_hand(patch):
    release = SourceReaderBase._release

    def late(self):
        in_hand, self._parts = self._parts, deque()
        release(self)
        self._parts.extendleft(reversed(in_hand))

    patch.setattr(SourceReaderBase, "_release", late)


@planted(500)
def posting_to_the_coordinator_wakes_nobody(patch):
    def post(self, action):
        self._actions.append(action)
        return self._open

    patch.setattr(Inbox, "post", post)


def first_failure(plant, seeds, capsys):
    """Return the first failing seed, and what the command prints of it."""
    for seed in seeds:
        if main(["--seed", str(seed)]):
            return seed, capsys.readouterr().out.splitlines()[-2:]
        capsys.readouterr()
    raise AssertionError(f"{plant} was not found in {len(seeds)} seeds")


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.soak(
    but=[
        "a_refused_hand_over_is_dropped",
        "a_split_is_lost_when_its_reader_fails",
        "what_a_failed_reader_left_behind_still_counts",
        "a_checkpoint_counts_what_waits_in_the_host",
        "a_paused_split_goes_on",
        "posting_to_the_coordinator_wakes_nobody",
    ]
)
def test_a_planted_bug_is_found_and_its_replay_shows_it(name, monkeypatch, capsys, record_property):
    plant, seeds = PLANTED[name]
    plant(monkeypatch)
    seed, (problem, replay) = first_failure(name, seeds, capsys)
    record_property("report", f"found at seed {seed}: {name.replace('_', ' ')}: {problem[:90]}")
    command = re.fullmatch(r"  replay: python -m forebay_simulator (.*)", replay)
    assert command is not None
    assert main(shlex.split(command.group(1))) == 1
    no_more_sent = deque(capsys.readouterr().out.splitlines(), maxlen=3)
    assert list(no_more_sent)[-2:] == [problem, replay]


def test_without_planted_bugs_the_same_seeds_are_clean():
    assert main(["--seeds", "30", "--jobs", "1"]) == 0


@pytest.mark.soak
def test_many_seeds_with_a_planted_bug_end_in_a_table_and_replay_commands(monkeypatch, capsys):
    a_refused_hand_over_is_dropped(monkeypatch)
    assert main(["--seeds", "40", "--jobs", "1"]) == 1
    out = capsys.readouterr().out
    assert re.search(r"^problems +[1-9]", out, re.MULTILINE)
    seeds = re.findall(r"^  replay: python -m forebay_simulator --seed (\d+) --trace$", out, re.MULTILINE)
    assert seeds and all(f"\nseed {seed}: " in out for seed in seeds)
