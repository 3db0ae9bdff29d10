# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import forebay
from forebay.errors import ConfigurationError, ContractError, DataError, ForebayError, RetriableError
from forebay.framework.inprocess import run
from forebay.framework.inprocess.checkpoints import Checkpoint, CheckpointStore
from forebay.framework.reading.source_reader import SourceReaderBase
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.split import Split


def abandon(reading):
    """End a run as a crash would: without a last checkpoint."""
    reading._engine.close(orderly=False)
    reading._open = False


def positions_in(path):
    """The position of each split in a checkpoint, in a reader or in the enumerator."""
    data = json.loads(path.read_text())
    held = {split["id"]: split.get("position") for split in data["splits"]}
    enumerator = data["enumerator"]
    return held | {split["id"]: split.get("position") for split in enumerator["new"] + enumerator["finished"]}


def files(directory):
    return sorted(path.name for path in directory.iterdir() if path.name != ".lock")


def test_a_checkpoint_covers_only_batches_whose_successor_was_asked_for(source, one_thread, tmp_path):
    """RDR-4: the current batch is not covered."""
    with run(source, checkpoint=tmp_path, runtime=one_thread) as reading:
        next(reading)
        assert positions_in(reading.checkpoint()) == {"a": 0, "b": 0, "c": 0}
        next(reading)
        assert reading.positions()["a"] == 6
        assert positions_in(reading.checkpoint()) == {"a": 3, "b": 0, "c": 0}


@pytest.mark.parametrize("taken", range(6))
@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_what_comes_after_a_restart_is_what_was_not_covered(world, kit, tmp_path, taken, parallelism):
    """RDR-5, ENU-5, ENU-6: prefix up to the checkpoint + the rest = everything, also with another parallelism."""
    reading = run(kit.source_over(world), parallelism=parallelism, checkpoint=tmp_path, runtime=kit.OneThread())
    batches = [next(reading) for _ in range(taken) if taken <= 5]
    if taken:
        reading.checkpoint()
    abandon(reading)
    again = run(kit.source_over(world), parallelism=4 - parallelism, checkpoint=tmp_path, runtime=kit.OneThread())
    rest = kit.rows_of(again)
    covered = kit.rows_of(batches[:-1])
    assert sorted(covered + rest) == world.everything()


def test_restored_splits_go_through_the_enumerator(world, kit, tmp_path):
    """COO-5, FLIP-537: the reader of the new run gets them from it, with their progress."""
    world.bounded = False
    with run(kit.source_over(world), checkpoint=tmp_path, runtime=kit.OneThread()) as reading:
        for _ in range(3):
            next(reading)
    again = run(kit.source_over(world), parallelism=3, checkpoint=tmp_path, runtime=kit.OneThread())
    next(again)
    deliveries: Any = again._engine.deliveries
    assert deliveries.held() == ["a", "b", "c"]
    assert sum(deliveries.position(split_id) for split_id in "abc") == 6 + 3
    abandon(again)


def test_a_finished_run_has_nothing_more_after_a_restart(world, kit, tmp_path):
    """ENU-6: a bounded source is not discovered again."""
    for expected in (5, 0):
        with run(kit.source_over(world), checkpoint=tmp_path, runtime=kit.OneThread()) as reading:
            assert len(list(reading)) == expected
    world.sizes["new"] = 4
    assert list(run(kit.source_over(world), checkpoint=tmp_path, runtime=kit.OneThread())) == []


def test_checkpoints_are_periodic_and_the_last_few_are_kept(world, source, one_thread, tmp_path):
    world.sizes = {"a": 60}
    with run(source, checkpoint=tmp_path, checkpoint_interval=5, runtime=one_thread) as reading:
        for number, _batch in enumerate(reading):
            if number % 2:
                one_thread.clock.advance(5)
    assert files(tmp_path) == [f"checkpoint-{number:010d}.json" for number in (9, 10, 11)]


def test_leaving_takes_a_last_checkpoint(source, one_thread, tmp_path):
    with run(source, checkpoint=tmp_path, runtime=one_thread) as reading:
        next(reading)
        next(reading)
    assert positions_in(tmp_path / files(tmp_path)[-1]) == {"a": 3, "b": 0, "c": 0}


def test_a_run_that_failed_takes_none(world, source, one_thread, tmp_path):
    def before_fetch(_split_id, position):
        if position > 3:
            raise DataError("damaged")

    world.before_fetch = before_fetch
    with pytest.raises(DataError), run(source, checkpoint=tmp_path, runtime=one_thread) as reading:
        list(reading)
    assert files(tmp_path) == []


def test_a_checkpoint_without_a_directory_is_refused(source, one_thread):
    with run(source, runtime=one_thread) as reading, pytest.raises(ConfigurationError) as caught:
        reading.checkpoint()
    assert caught.value.option == "checkpoint"


def test_progress_without_rows_is_in_a_checkpoint(kit, engine_of, one_thread, tmp_path, monkeypatch):
    """RDR-4: positions may pass records that are not rows; the snapshot counts once its rows are covered."""
    world = kit.World(a=6)
    world.bounded = False
    plain = kit.SplitReader._next

    def skipping(self, split):
        fetched = plain(self, split)
        return type(fetched)("a", None, 6, caught_up=True) if fetched and fetched.position == 6 else fetched

    monkeypatch.setattr(kit.SplitReader, "_next", skipping)
    engine = engine_of(world, one_thread, store=CheckpointStore(tmp_path, kit.source_over(world)))
    engine.ask()
    while engine.take() is None:
        engine.step()
        one_thread.turn()
    assert positions_in(engine.checkpoint()) == {"a": 0}
    engine.ask()
    while not engine.caught_up():
        engine.step()
        one_thread.turn()
    assert engine.deliveries.position("a") == 3
    assert positions_in(engine.checkpoint()) == {"a": 6}


def test_the_source_hears_of_what_is_durable(world, source, one_thread, tmp_path):
    """ENU-7, RDR-10: finished splits and positions, after the checkpoint that holds them."""
    with run(source, checkpoint=tmp_path, runtime=one_thread) as reading:
        for _ in range(4):
            next(reading)
        world.journal.clear()
        reading.checkpoint()
        assert world.journal == [("finished", ["a", "b"]), ("committed", {"a": 8, "b": 0, "c": 0})]
        list(reading)
    reported = [entry for entry in world.journal if entry[0] == "finished"]
    assert reported == [("finished", ["a", "b"]), ("finished", ["c"])]


def test_without_a_directory_the_source_hears_of_what_was_taken(world, source, one_thread):
    list(run(source, runtime=one_thread))
    assert ("finished", ["a", "b", "c"]) in world.journal
    assert ("committed", {"a": 8, "b": 0, "c": 5}) in world.journal


# ---- failing checkpoints


class Fragile(forebay.SplitEnumerator):
    """Gives all splits to reader 0; its snapshot fails a given number of times."""

    def __init__(self, context, failures):
        self.context = context
        self.failures = failures
        self.back = []

    def handle_split_request(self, subtask, host):
        pass

    def add_reader(self, subtask):
        self.context.assign_splits({subtask: [Split("a", 0)] if not self.back else self.back})
        self.context.signal_no_more_splits(subtask)

    def add_splits_back(self, splits, subtask):
        self.back = list(splits)

    def snapshot_state(self, checkpoint_id):
        if self.failures:
            raise self.failures.pop()
        return {"n": checkpoint_id}

    def restore_state(self, state):
        pass


def test_a_failing_snapshot_fails_only_that_checkpoint(world, source, one_thread, kit, tmp_path, caplog):
    """COO-3: a warning, and the next one tries again."""
    failures = [ValueError("not now")] * 2
    world.make_enumerator = lambda context: Fragile(context, failures)
    world.sizes = {"a": 30}
    with run(source, checkpoint=tmp_path, checkpoint_interval=5, runtime=one_thread) as reading:
        rows = []
        for batch in reading:
            rows += kit.rows_of([batch])
            one_thread.clock.advance(2)
    assert sorted(rows) == world.everything()
    assert caplog.text.count("not now") == 2
    assert files(tmp_path)


def test_a_failing_snapshot_on_demand_raises(world, source, one_thread, tmp_path):
    world.make_enumerator = lambda context: Fragile(context, [ValueError("not now")])
    with run(source, checkpoint=tmp_path, runtime=one_thread) as reading:
        next(reading)
        with pytest.raises(forebay.FatalError, match="not now") as caught:
            reading.checkpoint()
        assert caught.value.rule == "COO-3"
        assert reading.checkpoint().exists()


def test_a_failed_checkpoint_loses_no_assignment(world, engine_of, one_thread):
    """TRK-3: all that was assigned comes back, whichever checkpoint failed after it was."""
    returned = []

    class Patient(Fragile):
        def add_reader(self, subtask):
            self.context.assign_splits({subtask: [Split("a", 0)]})

        def add_splits_back(self, splits, subtask):
            returned.extend(split.id for split in splits)

    def before_fetch(split_id, position):
        raise OSError("gone")

    failures = [ValueError("not now")] * 2
    world.make_enumerator = lambda context: Patient(context, failures)
    engine = engine_of(world, one_thread)
    engine.ask()
    while not engine.deliveries.holds("a"):
        engine.step()
    with pytest.raises(forebay.FatalError):
        engine.checkpoint()
    engine._coordinator.assign_splits({0: [Split("c", 0)]})
    with pytest.raises(forebay.FatalError):
        engine.checkpoint()
    world.before_fetch = before_fetch
    while not returned:
        engine.step()
        one_thread.turn()
    assert returned == ["a", "c"]


def test_a_state_that_is_no_json_is_refused(world, source, one_thread, tmp_path):
    """ENU-5: JSON-ready; not at the restart, when it is too late."""
    world.state = {"when": object()}
    reading = run(source, checkpoint=tmp_path, runtime=one_thread)
    next(reading)
    with pytest.raises(ContractError) as caught:
        reading.checkpoint()
    assert caught.value.rule == "ENU-5"
    abandon(reading)


def test_a_failed_write_is_retried(source, one_thread, kit, world, tmp_path, monkeypatch, caplog):
    real, failures = CheckpointStore.write, [RetriableError("disk full")]

    def write(self, checkpoint):
        if failures:
            raise failures.pop()
        return real(self, checkpoint)

    monkeypatch.setattr(CheckpointStore, "write", write)
    with run(source, checkpoint=tmp_path, checkpoint_interval=1, runtime=one_thread) as reading:
        rows = []
        for batch in reading:
            rows += kit.rows_of([batch])
            one_thread.clock.advance(1)
    assert sorted(rows) == world.everything() and "disk full" in caplog.text and files(tmp_path)


# ---- the store


class Orders(forebay.SimpleSource):
    url: str = forebay.option(default="x", may_change=False, doc="where")
    limit: int = forebay.option(default=3, doc="how many")

    def schema(self):
        return pa.schema({"n": pa.int64()})

    def read(self, split):
        yield from ()


CHECKPOINT = Checkpoint(7, {"v": 1}, [Split("a", (1, "x")), Split("b", 2, 9)])


def test_a_checkpoint_comes_back_as_it_was(tmp_path):
    """SER-2: written and read back."""
    store = CheckpointStore(tmp_path / "new" / "directory", Orders())
    assert store.latest() is None
    path = store.write(CHECKPOINT)
    assert path.name == "checkpoint-0000000007.json"
    assert CheckpointStore(tmp_path / "new" / "directory", Orders(limit=5)).latest() == CHECKPOINT


def test_the_newest_is_taken_by_number(tmp_path):
    store = CheckpointStore(tmp_path, Orders())
    for number in (9, 10, 2):
        store.write(Checkpoint(number, None, []))
    latest = store.latest()
    assert latest is not None and latest.number == 10


def edited(tmp_path, **changes):
    path = CheckpointStore(tmp_path, Orders()).write(CHECKPOINT)
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return CheckpointStore(tmp_path, Orders())


def test_a_checkpoint_of_another_source_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="payments") as caught:
        edited(tmp_path, source="payments").latest()
    assert caught.value.source == "orders"


def test_a_checkpoint_of_a_newer_version_is_refused(tmp_path):
    """SER-4: an error, not garbage."""
    with pytest.raises(ConfigurationError, match="newer") as caught:
        edited(tmp_path, v=2, forebay="9.0").latest()
    assert caught.value.rule == "SER-4" and "9.0" in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"v": None},
        {"number": 8},
        {"extra": 1},
        {"splits": [4]},
        {"splits": None},
        {"options": []},
        {"changeable": 3},
        {"enumerator": ...},
    ],
)
def test_a_checkpoint_changed_by_hand_is_refused(tmp_path, changes):
    """SER-4: unknown fields are refused too."""
    if ... in changes.values():
        path = CheckpointStore(tmp_path, Orders()).write(CHECKPOINT)
        data = json.loads(path.read_text())
        del data["enumerator"]
        path.write_text(json.dumps(data))
        store = CheckpointStore(tmp_path, Orders())
    else:
        store = edited(tmp_path, **changes)
    with pytest.raises(DataError, match="damaged") as caught:
        store.latest()
    assert "checkpoint-0000000007" in str(caught.value)


@pytest.mark.parametrize("data", [b"", b'{"v": 1', b"\xff\xfe", b"[]", b'{"v": 1} x'])
def test_a_damaged_file_is_refused_never_skipped(tmp_path, data):
    """An older checkpoint would silently repeat rows."""
    store = CheckpointStore(tmp_path, Orders())
    store.write(Checkpoint(6, None, []))
    store.write(CHECKPOINT).write_bytes(data)
    with pytest.raises(DataError) as caught:
        store.latest()
    assert "delete it" in caught.value.advice


def test_an_option_that_may_not_change_is_refused_by_name(tmp_path):
    CheckpointStore(tmp_path, Orders(url="y")).write(CHECKPOINT)
    with pytest.raises(ConfigurationError) as caught:
        CheckpointStore(tmp_path, Orders(url="z")).latest()
    assert caught.value.option == "url"


class Letters(forebay.SimpleSource):
    start: int = 5
    url: str = "http://host"
    token: forebay.Secret = forebay.Secret("hunter2")
    headers: dict[str, str] = forebay.option(default_factory=dict, doc="sent along")
    cut: str | None = None

    def schema(self):
        return pa.schema({"n": pa.int64()})

    def read(self, split):
        for n in range(split.position or 0, self.start):
            yield {"n": n}


def warnings_in(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_a_changed_option_is_logged_with_both_values(tmp_path, caplog):
    assert forebay.run(Letters(start=5), checkpoint=tmp_path).to_table().num_rows == 5
    assert forebay.run(Letters(start=5), checkpoint=tmp_path).to_table().num_rows == 0
    assert warnings_in(caplog) == []
    assert forebay.run(Letters(start=20), checkpoint=tmp_path).to_table().num_rows == 0
    (reported,) = warnings_in(caplog)
    assert "start (was 5, is now 20)" in reported and "keep their progress" in reported and "url" not in reported
    caplog.clear()
    forebay.run(Letters(start=20), checkpoint=tmp_path).to_table()
    assert warnings_in(caplog) == []


def test_an_option_set_or_taken_away_is_a_change(tmp_path, caplog):
    CheckpointStore(tmp_path, Letters()).write(CHECKPOINT)
    CheckpointStore(tmp_path, Letters(cut="x", headers={"a": "b"})).latest()
    (reported,) = warnings_in(caplog)
    assert "cut (was not set, is now x)" in reported and "headers" in reported


def test_an_option_that_a_release_has_removed_is_a_change(tmp_path, caplog):
    class Older(Letters):
        name = Letters.name
        gone: int = 3

    CheckpointStore(tmp_path, Older()).write(CHECKPOINT)
    assert CheckpointStore(tmp_path, Letters()).latest() == CHECKPOINT
    (reported,) = warnings_in(caplog)
    assert "gone (was 3, is not an option now)" in reported and "start" not in reported


def test_secrets_are_neither_stored_nor_logged(tmp_path, caplog):
    source = Letters(url="ftp://me:hunter2@host/?api_key=hunter2&a=1", headers={"auth.token": "hunter2"})
    path = CheckpointStore(tmp_path, source).write(CHECKPOINT)
    CheckpointStore(tmp_path, Letters(token=forebay.Secret("other"))).latest()
    (reported,) = warnings_in(caplog)
    assert "url (was ftp://me:***@host/?api_key=***&a=1, is now http://host)" in reported
    assert "hunter2" not in path.read_text() and "hunter2" not in reported and "token" not in reported


def test_a_checkpoint_from_before_options_were_kept_is_accepted(tmp_path, caplog):
    path = CheckpointStore(tmp_path, Letters()).write(CHECKPOINT)
    data = json.loads(path.read_text())
    del data["changeable"]
    path.write_text(json.dumps(data))
    assert CheckpointStore(tmp_path, Letters(start=6)).latest() == CHECKPOINT
    assert warnings_in(caplog) == []


@pytest.mark.parametrize("may_change", [True, False])
def test_an_option_that_no_text_means_is_left_out(tmp_path, may_change):
    class Empty(Letters):
        odd: dict[str, str] = forebay.option(prefix="odd.", may_change=may_change, doc="odd")

    source = Empty(odd={"": "x"})
    CheckpointStore(tmp_path, source).write(CHECKPOINT)
    assert CheckpointStore(tmp_path, source).latest() == CHECKPOINT


@pytest.mark.parametrize("may_change", [True, False])
def test_none_in_place_of_another_default_is_kept(tmp_path, caplog, may_change):
    class Zoned(Letters):
        zone: str | None = forebay.option(default="UTC", may_change=may_change, doc="zone")

    CheckpointStore(tmp_path, Zoned(zone=None)).write(CHECKPOINT)
    assert CheckpointStore(tmp_path, Zoned(zone=None)).latest() == CHECKPOINT and warnings_in(caplog) == []
    if may_change:
        CheckpointStore(tmp_path, Zoned()).latest()
        assert "zone (was none, is now UTC)" in warnings_in(caplog)[0]
    else:
        with pytest.raises(ConfigurationError, match=r"zone \(was none, is now UTC\)"):
            CheckpointStore(tmp_path, Zoned()).latest()


def test_two_runs_in_one_directory_are_noticed(tmp_path):
    CheckpointStore(tmp_path, Orders()).write(CHECKPOINT)
    with pytest.raises(ConfigurationError, match="another run"):
        CheckpointStore(tmp_path, Orders()).write(CHECKPOINT)


def test_other_files_do_not_matter(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / ".checkpoint-0000000009.json.x.tmp").write_text("{")
    store = CheckpointStore(tmp_path, Orders())
    assert store.latest() is None
    for number in range(1, 6):
        store.write(Checkpoint(number, None, []))
    assert "notes.txt" in files(tmp_path)


def test_a_directory_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigurationError) as caught:
        CheckpointStore(tmp_path / "file", Orders()).latest()
    assert caught.value.option == "checkpoint"


# ---- everything at once


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_crashes_at_any_moment_repeat_only_what_was_not_covered(kit, tmp_path_factory, data):
    """RDR-5, ENU-5: with the positions of `delivered` the consumer has every row exactly once."""
    world = kit.World(**{f"s{n}": data.draw(st.integers(0, 9)) for n in range(data.draw(st.integers(1, 4)))})
    directory = tmp_path_factory.mktemp("run")
    kept: dict[str, Any] = {}
    rows = []
    for _ in range(data.draw(st.integers(0, 4)) + 1):
        runtime = kit.OneThread(data.draw(st.integers(0, 99)))
        reading = run(
            kit.source_over(world),
            parallelism=data.draw(st.integers(1, 3)),
            checkpoint=directory,
            checkpoint_interval=data.draw(st.sampled_from([0.5, 3.0, 100.0])),
            runtime=runtime,
        )
        crash = data.draw(st.one_of(st.none(), st.integers(0, 6)))
        done = 0
        while crash is None or done < crash:
            batch = next(reading, None)
            if batch is None:
                break
            done += 1
            split_id, position = reading.delivered
            start = batch.column("n")[0].as_py()
            assert start <= kept.get(split_id, 0), "rows were skipped"
            rows += [row for row in kit.rows_of([batch]) if row[1] >= kept.get(split_id, 0)]
            kept[split_id] = max(position, kept.get(split_id, 0))
            runtime.clock.advance(1)
            if data.draw(st.booleans()):
                reading.checkpoint()
        abandon(reading)
    final = run(kit.source_over(world), checkpoint=directory, runtime=kit.OneThread())
    for batch in final:
        split_id, position = final.delivered
        rows += [row for row in kit.rows_of([batch]) if row[1] >= kept.get(split_id, 0)]
        kept[split_id] = max(position, kept.get(split_id, 0))
    assert sorted(rows) == world.everything()


@pytest.mark.parametrize("error", [RetriableError("broker busy"), ValueError("no such group")])
def test_a_reader_that_fails_when_a_checkpoint_is_complete_does_not_end_the_run(
    kit, world, one_thread, tmp_path, error
):
    source, notices = kit.source_over(world), []

    class Reader(SourceReaderBase):
        def notify_checkpoint_complete(self, checkpoint_id):
            notices.append(checkpoint_id)
            if len(notices) == 1:
                raise error

    world.make_reader = lambda context: Reader(source, context, HostOptions())
    with run(source, checkpoint=tmp_path, runtime=one_thread) as reading:
        rows = kit.rows_of([next(reading)])
        with pytest.raises(type(error)):
            reading.checkpoint()
        rows += kit.rows_of(reading)
    assert sorted(rows) == world.everything() and len(notices) > 1


def test_a_run_that_fails_at_a_checkpoint_is_closed_by_the_next_read(kit, world, one_thread, tmp_path):
    contexts = []
    world.bounded = False
    world.make_enumerator = lambda context: contexts.append(context) or kit.Enumerator(world)
    with run(kit.source_over(world), checkpoint=tmp_path, runtime=one_thread) as reading:
        next(reading)

        def fail():
            raise ValueError("no such thing")

        contexts[0].run_in_coordinator_thread(fail)
        for read in (reading.checkpoint, lambda: next(reading)):
            with pytest.raises(ForebayError, match="no such thing"):
                read()
        assert {"reader closed", "enumerator closed"} <= set(world.journal)
