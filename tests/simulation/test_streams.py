# SPDX-License-Identifier: Apache-2.0
"""The planner of streams, killed and restarted: thousands of seeds are clean, and planted bugs are found."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import subprocess
import sys

import pytest
from forebay_simulator import simulate_stream
from forebay_simulator.__main__ import main
from forebay_simulator.outside import OutsideEnumerator

from forebay.framework.digests import Digest, SplitDigests
from forebay.framework.microbatch import admission
from forebay.framework.microbatch import offset_codec as codec
from forebay.framework.microbatch.admission import Admission, AvailableNow, AvailableRange
from forebay.framework.microbatch.committed_state import CommittedState
from forebay.framework.microbatch.offset import BEFORE_FIRST, Planned
from forebay.framework.microbatch.offset_codec import FinishedSplits, InlineOffsetCodec
from forebay.framework.microbatch.split_provider import DiscoverySplitProvider
from forebay.framework.microbatch.stream_planner import StreamPlanner

PLANTED = {}


def planted(within):
    """Register a bug, with the number of seeds that must suffice: several times what they needed when written."""

    def keep(plant):
        PLANTED[plant.__name__] = (plant, within)
        return plant

    return keep


@planted(200)
def a_micro_batch_is_planned_from_its_start(patch):
    """S2: a replay of batch 0, or of a skipped one, does not get it."""

    def tasks(self, start, end):
        began = {planned.split.id: planned.to for planned in self._codec.read(start).splits}
        offset = self._codec.read(end)
        moved = [Planned(one.split.at(began.get(one.split.id, one.split.position)), one.to) for one in offset.splits]
        shifted = dataclasses.replace(offset, splits=moved)
        read, self._codec.read = self._codec.read, lambda data: shifted
        try:
            return TASKS(self, start, end)
        finally:
            self._codec.read = read

    TASKS = StreamPlanner.tasks  # noqa: N806 - the one that is replaced
    patch.setattr(StreamPlanner, "tasks", tasks)


@planted(200)
def ends_are_reported_before_the_log_has_them(patch):
    """S19: the author deletes splits that Spark plans again after a crash."""
    planned = CommittedState.planned

    def early(self, offset):
        planned(self, offset)
        self._report_finished([one.split for one in offset.splits if one.ends])

    patch.setattr(CommittedState, "planned", early)


@planted(200)
def a_replay_is_taken_for_proof(patch):
    """S19: a run that began with a replay may be replayed once more."""
    go_on = CommittedState.go_on_from

    def forgetful(self, start):
        self._replayed = None
        return go_on(self, start)

    patch.setattr(CommittedState, "go_on_from", forgetful)


@planted(200)
def splits_that_ended_are_forgotten_by_a_restart(patch):
    patch.setattr(InlineOffsetCodec, "read_done", lambda self, data: FinishedSplits(self._source.split_class))


@planted(200)
def a_number_is_used_twice(patch):
    plan = StreamPlanner._plan

    def again(self, taken, trigger):
        committed = self._committed
        if committed.at.n > BEFORE_FIRST + 1:
            committed.at = dataclasses.replace(committed.at, n=committed.at.n - 1)
        return plan(self, taken, trigger)

    patch.setattr(StreamPlanner, "_plan", again)


@planted(200)
def a_lagging_end_takes_a_split_back(patch):
    patch.setattr(AvailableRange, "has_data", lambda self, planned: not planned.empty)
    patch.setattr(AvailableRange, "check_forward", lambda self, planned: None)


@planted(100)
def a_restart_is_taken_for_the_first_run(patch):
    """A former bug: an author without state got `first` again after every restart."""
    restore = DiscoverySplitProvider.restore
    patch.setattr(
        DiscoverySplitProvider, "restore", lambda self, state: None if state is None else restore(self, state)
    )


@planted(500)
def the_split_served_last_is_served_first(patch):
    admit = Admission.admit
    patch.setattr(Admission, "admit", lambda self, there: admit(self, list(reversed(there))))


@planted(500)
def the_order_of_the_queue_is_lost(patch):
    """A former bug: turns followed the number of the micro-batch instead of the longest wait."""
    go_on = CommittedState.go_on_from

    def sorted_again(self, start):
        news = go_on(self, start)
        self.open = dict(sorted(self.open.items()))
        return news

    patch.setattr(CommittedState, "go_on_from", sorted_again)


@planted(100)
def every_split_gets_at_least_one_row(patch):
    """Trap 11: as Spark's own Kafka source does."""
    plain = admission.shares
    patch.setattr(admission, "shares", lambda weights, total: [max(1, one) for one in plain(weights, total)])


@planted(200)
def a_run_that_ends_has_no_fixed_target(patch):
    """S17: it goes on while there are writes."""
    patch.setattr(AvailableNow, "begin", lambda self, available: None)


@planted(200)
def equal_numbers_are_read_again(patch):
    """Trap 1: an equivalent start is not a new end."""
    tasks = StreamPlanner.tasks
    patch.setattr(StreamPlanner, "tasks", lambda self, start, end: tasks(self, {**start, "n": None}, end))


@planted(200)
def a_split_is_lost_when_it_gets_nothing(patch):
    """S1: a split that is not read in a micro-batch is in its offset all the same."""
    write = InlineOffsetCodec.write

    def losing(self, offset, done):
        splits = [planned for planned in offset.splits if not planned.empty or planned.split.position is None]
        return write(self, dataclasses.replace(offset, splits=splits), done)

    patch.setattr(InlineOffsetCodec, "write", losing)


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.soak(but=["splits_that_ended_are_forgotten_by_a_restart", "a_split_is_lost_when_it_gets_nothing"])
def test_a_planted_bug_is_found(monkeypatch, capsys, name):
    plant, within = PLANTED[name]
    with monkeypatch.context() as patch:
        plant(patch)
        found = (main(["--streams", "--first", str(first), "--seeds", "20"]) for first in range(0, within, 20))
        assert 1 in found
        output = capsys.readouterr().out
        # The printed command shows the same problem again.
        command = shlex.split(re.findall(r"replay: (.*)", output)[0])
        assert command[:3] == ["python", "-m", "forebay_simulator"]
        assert main(command[3:]) == 1
        assert "broken: " in capsys.readouterr().out
        seed = int(command[command.index("--seed") + 1])
    assert simulate_stream(seed).problem is None, "without the bug that seed is clean"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", [15, pytest.param(1000, marks=pytest.mark.soak)])
def test_seeds_of_streams_are_clean(record_property, capsys, seeds):
    status = main(["--streams", "--seeds", str(seeds)])
    output = capsys.readouterr().out
    assert status == 0, output
    counts = {
        name: int(count.replace(",", "")) for name, count in re.findall(r"^([a-z-]+) +([\d,]+)$", output, re.MULTILINE)
    }
    # Many events happened: otherwise clean seeds would prove little.
    assert counts["killed"] > seeds
    assert counts["replayed"] > 0.3 * seeds
    assert counts["micro-batches"] > 3 * seeds
    record_property("report", "streams: " + ", ".join(f"{count:,} {name}" for name, count in counts.items()))


@pytest.fixture
def digested(monkeypatch):
    """Sources recognise what they have read by digests alone, as files do where there are very many."""
    discover = OutsideEnumerator.discover

    def opened(self, outside):
        create(self, outside)
        self.digests = SplitDigests(lambda split: [Digest(split.id, 1, 0)])

    def new(self, known, first):
        found = discover(self, known, first)
        return dataclasses.replace(found, splits=[one for one in found.splits if self.digests.mark(one.id) is None])

    create = OutsideEnumerator.__init__
    monkeypatch.setattr(OutsideEnumerator, "__init__", opened)
    monkeypatch.setattr(OutsideEnumerator, "discover", new)
    monkeypatch.setattr(codec, "_MOST_WHOLE", -1)


@pytest.mark.soak
@pytest.mark.parametrize("seeds", [15, 1000])
def test_seeds_of_streams_are_clean_with_digests_in_place_of_splits(digested, monkeypatch, capsys, seeds):
    """S15: through kills and replays; and where digests are not written, that is found."""
    assert main(["--streams", "--seeds", str(seeds)]) == 0, capsys.readouterr().out
    monkeypatch.setattr(InlineOffsetCodec, "_condensed", lambda self, done: {})
    assert main(["--streams", "--seeds", "60"]) == 1


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_100000_other_seeds_of_streams_are_clean(capsys):
    assert main(["--streams", "--first", "1000000", "--seeds", "100000"]) == 0, capsys.readouterr().out


@pytest.mark.soak
def test_the_same_seed_of_a_stream_does_the_same_in_every_process():
    """But for the ids, which are random on purpose."""
    program = (
        "import re\nfrom forebay_simulator import simulate_stream\nfor seed in range(30):\n"
        "    print(simulate_stream(seed, lambda line: print(re.sub('\"id\": \"[0-9a-f]+\"', '', line))))"
    )
    output = [
        subprocess.run(
            [sys.executable, "-P", "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert output[0].count("\n") > 250
    assert output[0] == output[1]
