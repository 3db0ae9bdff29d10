# SPDX-License-Identifier: Apache-2.0
"""Runs that begin at positions which the consumer stored, and what it acknowledges."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import forebay
from forebay.errors import ConfigurationError
from forebay.framework.inprocess import run
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.split import Split


class Numbers(forebay.SimpleSource):
    """Plain rows and tuple positions side by side."""

    tuples: bool = False
    bounded = True

    def schema(self):
        return pa.schema({"split": pa.string(), "n": pa.int64()})

    def splits(self):
        return ["x", "y"]

    def read(self, split):
        at = split.position or (0, "0")
        for n in range(at[0] if isinstance(at, tuple) else at, 20):
            row = {"split": split.id, "n": n}
            yield forebay.Batch([row], (n + 1, str(n + 1))) if self.tuples else row


def stored(positions):
    """As read back from a database."""
    return json.loads(json.dumps(positions))


@pytest.mark.parametrize("tuples", [False, True])
@pytest.mark.parametrize("taken", range(7))
def test_a_run_begins_at_the_positions_of_an_earlier_one(kit, tuples, taken):
    """RDR-4: no row is lost or repeated, although the batch boundaries of both runs differ."""
    source, positions, batches = Numbers(tuples=tuples), {}, []
    reading = run(source, options=HostOptions(max_rows_per_batch=3), runtime=kit.OneThread())
    for _ in range(taken):
        batches.append(next(reading))
        split_id, position = reading.delivered
        positions[split_id] = position
        assert positions.items() <= reading.positions().items()
    reading._engine.close(orderly=False)
    options = HostOptions(max_rows_per_batch=7)
    batches += list(run(source, positions=stored(positions), options=options, runtime=kit.OneThread()))
    assert sorted(kit.rows_of(batches)) == [(split_id, n) for split_id in "xy" for n in range(20)]


def test_splits_of_a_full_layer_source_begin_there_and_say_so_before_they_are_read(world, source, one_thread, kit):
    reading = run(source, positions={"a": 6, "c": 5}, runtime=one_thread)
    batches = [next(reading)]
    assert reading.positions() == {"a": 8, "b": 0, "c": 5}
    assert kit.rows_of(batches + list(reading)) == [("a", 6), ("a", 7)]
    assert ("finished", ["a", "b", "c"]) in world.journal


@pytest.mark.parametrize(
    ("bounded", "positions", "expected"),
    [
        (True, {"a": 3}, [(True, {})]),
        (False, {}, [(True, {})]),
        (False, {"a": 3}, [(False, {}), (False, {"a": 3})]),
        (False, {"a": 3, "b": 0, "c": 2}, [(False, {})]),
        (False, {"nix": 3}, [(False, {})]),
    ],
)
def test_a_setting_for_the_first_splits_of_a_query_acts_once(
    world, source, one_thread, kit, monkeypatch, bounded, positions, expected
):
    """The first run applied "start at the latest": splits without a position were discovered later."""
    world.bounded, asked = bounded, []

    plain = kit.Enumerator.discover

    def discover(self, known, first):
        asked.append((first, {split.id: split.position for split in known.values()}))
        return plain(self, known, first)

    monkeypatch.setattr(kit.Enumerator, "discover", discover)
    with run(source, positions=positions, runtime=one_thread) as reading:
        next(reading)
    assert asked == expected


def test_a_split_that_a_later_discovery_finds_begins_at_its_position(world, source, one_thread, kit, caplog):
    world.bounded = False
    with run(source, positions={"late": 2, "gone": 9}, until_caught_up=True, runtime=one_thread) as reading:
        next(reading)
        world.sizes["late"] = 4
        one_thread.clock.advance(10)
        for _ in range(100):
            reading._engine.step()
            one_thread.turn()
        rest = kit.rows_of(reading)
    assert [row for row in rest if row[0] == "late"] == [("late", 2), ("late", 3)]
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "2 of the given start positions" in warning and "'late'" in warning


class Raw(forebay.SplitEnumerator):
    """Gives each split out on request, and again when it comes back."""

    def __init__(self, context, splits):
        self.context = context
        self.left = [Split(split_id, 0) for split_id in splits]

    def handle_split_request(self, subtask, host):
        if self.left:
            self.context.assign_splits({subtask: [self.left.pop(0)]})
        else:
            self.context.signal_no_more_splits(subtask)

    def add_splits_back(self, splits, subtask):
        self.left = [*splits, *self.left]

    def snapshot_state(self, checkpoint_id):
        return None


def test_splits_of_a_raw_enumerator_begin_there_once(world, source, one_thread, kit, caplog):
    """Also after a failure: then the split continues from its own progress."""
    failures = [OSError("gone")]

    def before_fetch(split_id, position):
        if (split_id, position) == ("a", 6) and failures:
            raise failures.pop()

    world.before_fetch = before_fetch
    world.make_enumerator = lambda context: Raw(context, world.sizes)
    rows = kit.rows_of(run(source, positions={"a": 3, "c": 5, "nix": 1}, runtime=one_thread))
    assert rows == [("a", n) for n in range(3, 8)] and not failures
    assert "1 of the given start positions" in caplog.text and "'nix'" in caplog.text


@pytest.mark.parametrize("positions", [[("a", 1)], {1: 1}, {"a": 1.5}, {"a": None}, {"a": {"b": 1}}])
def test_what_are_no_positions_is_refused(source, positions):
    with pytest.raises(ConfigurationError) as caught:
        run(source, positions=positions)
    assert caught.value.option == "positions" and "Run.positions()" in caught.value.advice


def test_positions_and_a_checkpoint_exclude_each_other(source, tmp_path):
    with pytest.raises(ConfigurationError) as caught:
        run(source, positions={}, checkpoint=tmp_path)
    assert caught.value.option == "positions" and list(tmp_path.iterdir()) == []


def test_an_acknowledged_batch_does_not_come_again_after_a_break(world, kit, tmp_path):
    """Without `ack` the current batch is repeated, because it may be unprocessed."""
    rows = []
    for acknowledges in (True, False, True):
        with run(kit.source_over(world), checkpoint=tmp_path, runtime=kit.OneThread()) as reading:
            for batch in reading:
                rows.append(kit.rows_of([batch]))
                if acknowledges:
                    reading.ack()
                break
    first, second, third = rows
    assert first == [("a", 0), ("a", 1), ("a", 2)] and second == third == [("a", 3), ("a", 4), ("a", 5)]
    with run(kit.source_over(world), checkpoint=tmp_path, runtime=kit.OneThread()) as reading:
        assert sorted(first + second + kit.rows_of(reading)) == world.everything()


PROGRAM = Path(__file__).with_name("exactly_once_program.py")


@pytest.mark.parametrize("attempts", [8, pytest.param(25, marks=pytest.mark.soak)])
def test_the_recipe_for_exactly_once_is_right_under_kills(tmp_path, attempts):
    """RDR-4: each attempt is a process that dies by SIGKILL at some moment, in or between its transactions."""
    command = [sys.executable, "-P", str(PROGRAM), str(tmp_path / "sink.db"), str(attempts)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    reported = json.loads(done.stdout)
    # On a busy machine some attempts end before they are killed.
    assert reported["kills"] >= attempts * 2 // 5 and reported["kills with progress"] >= attempts // 5
    assert reported["rows"] == reported["distinct"] == reported["expected"]


class Renumbered(forebay.Split):
    """Positions were texts, and `upgrade` leaves them so."""

    version = 2

    @classmethod
    def upgrade(cls, version, fields):
        return fields


class Growing(forebay.SimpleSource):
    bounded = False
    split_class = Renumbered

    def schema(self):
        return pa.schema({"n": pa.int64()})

    def splits(self):
        return [Renumbered("x")]

    def latest(self, split):
        return (0, 9)

    def read(self, split):
        yield forebay.Batch([{"n": 1}], (0, 9))


def test_a_position_of_an_older_version_that_does_not_compare_is_named_with_the_end():
    """SPL-2: nothing else says that `upgrade` forgot it."""
    split = Renumbered.from_json({"v": 1, "id": "x", "position": "00001"})
    with pytest.raises(forebay.ContractError, match=r"\(0, 9\) and '00001' cannot be compared") as caught:
        run(Growing(), positions={"x": split.position}, until_caught_up=True).to_table()
    assert "Split.upgrade()" in caught.value.advice
