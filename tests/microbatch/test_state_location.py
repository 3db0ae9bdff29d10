# SPDX-License-Identifier: Apache-2.0
"""A planner with more finished splits than fit into offsets: with stateLocation, and without it at first (S15)."""

from __future__ import annotations

import json

import pytest

from forebay.errors import ConfigurationError, RetriableError
from forebay.framework.microbatch import spilling_codec
from forebay.framework.microbatch.offset import canonical
from forebay.framework.runtime.host_options import default_location, state_store
from forebay.framework.split import Split
from forebay.state.local_state_store import LocalStateStore


def files(count):
    return [
        Split(f"/lake/in/part-{n:05}-{n * 2654435761 % 2**32:08x}{n * 7919 % 65536:04x}.csv", 0, 100)
        for n in range(count)
    ]


@pytest.fixture
def listed(outside, query):
    """Return a query of files, which every poll lists again."""

    def make(count, **options):
        kind = type("Listed", (query.bounded,), {"in_order": True, "bounded": False})
        return query(outside(files(count)), kind=kind, **options)

    return make


def ids(turns):
    return sorted(split_id for turn in turns for split_id in turn)


def longest(run):
    return max(len(canonical(offset)) for offset in run.log)


def test_any_number_of_files_comes_once_in_one_micro_batch(listed, tmp_path):
    run = listed(12_000, state_location=str(tmp_path))
    turns = run.turns()
    assert len(turns) == 1 and len(turns[0]) == 12_000
    run.outside.splits = files(12_100)
    run.restart()
    run.wait()
    assert ids(run.turns()) == [split.id for split in files(12_100)[12_000:]]
    assert longest(run) < 4096


def test_s1_from_every_offset_the_rest_is_the_same_also_with_segments(listed, tmp_path):
    """S1: a cold planner continues from any offset exactly as the first one did, byte by byte."""
    run = listed(1400, state_location=str(tmp_path), max_files_per_trigger=200)
    turns = run.turns()
    assert len(turns) == 7 and "state" in run.log[-1]
    for done in range(len(turns)):
        again = listed(1400, state_location=str(tmp_path), max_files_per_trigger=200)
        again.log = run.log[: done + 1]
        again.restart()
        assert again.turns() == turns[done + 1 :]
        assert again.log == run.log
        assert again.read(again.planner.initial(), run.log[done]) == turns[done]


def test_s15_without_the_location_the_stream_stops_before_a_file_is_missed_and_goes_on_with_it(listed, tmp_path):
    """S15: an implicit limit, then a refusal; with `stateLocation` nothing is lost or duplicated."""
    run = listed(6000)
    turns = []
    with pytest.raises(ConfigurationError, match="does not fit into an offset") as caught:
        turns.extend(run.turn() for _ in range(1000))
    turns += [run.read(run.planner.initial(), offset) for offset in run.log[len(turns) :]]
    assert caught.value.option == "stateLocation"
    assert len(run.log) > 2 and longest(run) < 100 << 10
    for _ in range(2):  # it stays refused, and stays where it is
        run.restart()
        with pytest.raises(ConfigurationError, match="does not fit into an offset"):
            run.turn()
    run.restart(state_location=str(tmp_path))
    turns += run.turns()
    assert ids(turns) == [split.id for split in files(6000)]
    assert longest(run) < 100 << 10


def test_a_query_with_state_is_refused_without_its_location_and_at_another(listed, tmp_path):
    run = listed(3000, state_location=str(tmp_path / "a"), max_files_per_trigger=1000)
    run.turns()
    before = list(run.log)
    run.outside.splits = files(3100)
    run.restart(max_files_per_trigger=1000)
    with pytest.raises(ConfigurationError, match="but the option is not set") as caught:
        run.turn()
    assert str(tmp_path / "a") in caught.value.advice
    run.restart(state_location=str(tmp_path / "b"))
    with pytest.raises(ConfigurationError, match="kept its state in"):
        run.turn()
    run.restart(state_location=f"file:{tmp_path}/a")
    run.wait()
    assert ids(run.turns()) == [split.id for split in files(3100)[3000:]]
    assert run.log[: len(before)] == before


@pytest.mark.parametrize("behind", [False, True])
def test_two_queries_on_copies_of_one_checkpoint_share_a_location(listed, tmp_path, monkeypatch, behind):
    """Segments are named by their content; a query that is too far behind misses those that the other one deleted."""
    monkeypatch.setattr(spilling_codec, "KEPT", 5)
    monkeypatch.setattr(spilling_codec, "_CLEAN_EVERY", 1)
    options = {"state_location": str(tmp_path), "max_files_per_trigger": 200}
    first, second = listed(3000, **options), listed(3000, **options)
    begun = [first.turn() for _ in range(5)]
    second.log = list(first.log)
    second.restart()
    if behind:
        rest = first.turns()
        assert ids([*begun, *rest]) == [split.id for split in files(3000)]
        first.planner.commit(first.log[-1])
        with pytest.raises(ConfigurationError, match="that the query needs is missing") as caught:
            second.turn()
        assert caught.value.option == "stateLocation"
        return
    found = ([], [])
    while True:
        turns = [one.turn() for one in (first, second)]
        if turns == [None, None]:
            break
        for one, turn, kept in zip((first, second), turns, found, strict=True):
            kept.append(turn or {})
            one.planner.commit(one.log[-1])
    for kept in found:
        assert ids([*begun, *kept]) == [split.id for split in files(3000)]
    for one in (first, second):
        one.restart(**options)
        assert one.turns() == []


@pytest.mark.soak
def test_two_thousand_open_splits_that_all_have_news(outside, query, tmp_path):
    names = [f"orders-{n}" for n in range(2000)]
    for options in ({}, {"state_location": str(tmp_path)}):
        there = outside(
            [Split(name, 0) for name in names], {name: 10_000_019 * n % 1_000_003 + 1 for n, name in enumerate(names)}
        )
        run = query(there, max_rows_per_trigger=5_000_000, **options)
        turns = run.turns(8)
        assert len({split_id for turn in turns for split_id in turn}) == 2000
        assert longest(run) < 100 << 10
        run.restart()
        assert run.turn() is not None


def test_a_location_that_is_full_is_an_error_and_the_stream_goes_on_once_there_is_room(listed, tmp_path, monkeypatch):
    run = listed(3000, state_location=str(tmp_path), retries=0)

    def full(_self, _name, _data):
        raise RetriableError("there is no room left", option="stateLocation")

    with monkeypatch.context() as patch:
        patch.setattr(LocalStateStore, "put_if_absent", full)
        with pytest.raises(RetriableError, match="no room left"):
            run.turn()
    assert run.log == []
    assert len(ids(run.turns())) == 3000


def test_secrets_of_the_location_are_in_no_offset(listed):
    run = listed(3, state_location="s3://bucket/x", state_storage={"key": "who-i-am", "secret": "not-to-be-seen"})
    run.turns()
    shown = json.dumps(run.log) + repr(run.options)
    assert "not-to-be-seen" not in shown and "who-i-am" not in shown


def test_the_default_lies_beside_the_checkpoints_where_state_can_be_kept(query, monkeypatch):
    assert default_location("/chk/") == "/chk/_forebay"
    assert default_location("file:/chk") == "file:/chk/_forebay"
    assert default_location("s3a://b/chk") == "s3a://b/chk/_forebay"
    assert [default_location(place) for place in ("hdfs://n/chk", "dbfs:/chk", "", None)] == [None] * 4
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert default_location("s3a://b/chk") is None


def test_an_unknown_option_of_the_location_is_refused(listed):
    with pytest.raises(ConfigurationError, match="did you mean 'region'"):
        listed(1, state_location="s3://bucket/x", state_storage={"regoin": "here"})


def test_without_a_location_there_is_no_store(listed):
    assert state_store(listed(1).options) is None
