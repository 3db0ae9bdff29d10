# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay.errors import ConfigurationError, ContractError, DataLossError, FatalError, RetriableError
from forebay.framework.coordination.discovering import SplitState
from forebay.framework.discovery import Discovered
from forebay.framework.split import Split
from forebay.options import Duration

# ---- bounded: pulled


def test_a_request_is_answered_by_one_split(discovering):
    """ENU-2: testSplitRequestForRegisteredReader."""
    stage = discovering(["a", "b", "c"])
    stage.register()
    assert stage.reader.messages == []
    stage.request()
    assert stage.reader.messages == ["a"]
    stage.request()
    assert stage.reader.messages == ["a", "b"]


def test_a_request_before_discovery_waits_for_it(discovering):
    """ENU-2, ENU-10: testDiscoverWhenReaderRegistered; requests are remembered, and there is no no-more-splits yet."""
    stage = discovering(["a", "b", "c"], run=False)
    stage.register()
    stage.request(2)
    assert stage.reader.messages == []
    stage.run_until_idle()
    assert stage.reader.messages == ["a", "b"]


def test_requests_of_a_failed_reader_are_not_answered_to_its_replacement(discovering):
    """ENU-2: testRequestingReaderUnavailableWhenSplitDiscovered; a replacement that did not ask gets nothing."""
    stage = discovering(["a"], run=False)
    stage.register()
    stage.request(2)
    stage.coordinator.reader_failed([])
    stage.run_until_idle()
    stage.register()
    assert stage.reader.messages == []
    stage.request()
    assert stage.reader.messages == ["a", "no more"]


@pytest.mark.parametrize("found", [[], ["a"]])
def test_the_reader_gets_no_more_splits_once_everything_is_assigned(discovering, found):
    """ENU-10, CTX-3: once, also if it never got a split; and its replacement gets it again."""
    stage = discovering(found)
    stage.register()
    stage.request(2)
    assert stage.reader.messages == [*found, "no more"]
    stage.finish(*found)
    stage.request()
    assert stage.reader.messages == [*found, "no more"]
    stage.replace()
    assert stage.reader.messages == ["no more"]


def test_a_bounded_source_is_discovered_once(discovering, author):
    stage = discovering(["a"], ["b"])
    assert stage.wait() is None
    stage.advance(1000)
    assert len(author.discoveries) == 1


def test_returned_splits_reach_the_replacement_with_their_progress(discovering):
    """ENU-3: when it asks; before splits never read."""
    stage = discovering(["a", "b", "c"])
    stage.register()
    stage.request(2)
    stage.replace(Split("a", 5), Split("b"))
    assert stage.reader.messages == []
    stage.request(3)
    assert stage.reader.splits == [Split("a", 5), Split("b"), Split("c")]
    assert stage.reader.messages[3:] == ["no more"]


# ---- unbounded: pushed


def test_splits_are_pushed_to_the_reader(discovering):
    """ENU-4: once it is registered (testDiscoverSplitWhenNoReaderRegistered), and as they are found; never an end."""
    stage = discovering(["a", "b"], ["a", "b", "c"], bounded=False)
    stage.register()
    assert stage.reader.messages == ["a", "b"]
    stage.request()
    stage.advance(10)
    assert stage.reader.messages == ["a", "b", "c"]


def test_returned_splits_are_pushed_to_the_replacement(discovering):
    """ENU-3: with their progress."""
    stage = discovering(["a", "b", "c"], bounded=False)
    stage.register()
    stage.finish("b")
    stage.replace(Split("a", 5), Split("c"))
    assert stage.reader.splits == [Split("a", 5), Split("c")]


def test_a_late_end_of_a_split_that_came_back_is_ignored(discovering):
    stage = discovering(["a"], bounded=False)
    stage.register()
    stage.coordinator.reader_failed([Split("a", 3)])
    stage.finish(Split("a", 9))
    stage.register()
    assert stage.reader.splits == [Split("a", 3)]


def test_an_unbounded_source_never_says_that_no_splits_follow(discovering):
    """ENU-10: unbounded: never."""
    stage = discovering([], [], bounded=False)
    stage.register()
    stage.request()
    stage.advance(10)
    assert stage.reader.messages == []


# ---- discovery


def test_discovery_is_single_flight_and_throttled(discovering, author):
    """CTX-7, ENU-6: the next one is planned when the result of the last is in, a discovery interval later."""
    stage = discovering(["a"], ["a"], bounded=False, run=False)
    stage.run()
    stage.runtime.clock.advance(100)
    stage.run()
    assert len(stage.runtime.submitted) == 1
    stage.run_until_idle()
    assert len(author.discoveries) == 1 and stage.wait() == 10
    stage.advance(9.9)
    assert len(author.discoveries) == 1
    stage.advance(0.1)
    assert len(author.discoveries) == 2


def test_an_interval_of_nothing_means_once(discovering, author):
    stage = discovering(["a"], ["b"], bounded=False, discovery_interval=Duration(0))
    stage.advance(1000)
    assert len(author.discoveries) == 1 and stage.wait() is None


def test_discovery_is_compared_with_every_id_not_forgotten(discovering, author):
    """ENU-6: new, assigned and finished splits are known; forgotten ones cannot come again, by the author's horizon."""
    stage = discovering(["a", "b"], ["a", "b", "c"], bounded=False)
    stage.register()
    stage.finish("a")
    stage.advance(10)
    assert stage.reader.ids == ["a", "b", "c"]
    assert [sorted(known) for known, _first in author.discoveries] == [[], ["a", "b"]]


def test_only_finished_splits_below_the_horizon_are_forgotten(discovering, author):
    """ENU-6: the set of known ids stays small where the author gives a horizon."""
    author.horizon = lambda split: split.id < "b"
    stage = discovering(["a", "b", "c"], bounded=False)
    stage.register()
    stage.finish("a", "c")
    stage.checkpoint(1)
    states = {split_id: state for split_id, (_, state) in stage.discovering.splits().items()}
    assert states == {"b": SplitState.ASSIGNED, "c": SplitState.FINISHED}
    stage.advance(10)
    assert sorted(author.discoveries[1][0]) == ["b", "c"]


def test_a_horizon_that_moves_on_forgets_what_finished_before(discovering, author):
    """ENU-6: each discovery returns the horizon again."""
    stage = discovering(["a", "b"], bounded=False)
    stage.register()
    stage.finish("a", "b")
    assert sorted(stage.discovering.splits()) == ["a", "b"]
    stage.checkpoint(1)
    author.horizon = lambda split: split.id < "b"
    stage.advance(10)
    assert sorted(stage.discovering.splits()) == ["b"]


def test_what_the_author_has_not_heard_of_is_not_forgotten(discovering, author, author_class):
    """ENU-6, ENU-7: a crash after the checkpoint must not lose the report of finished splits."""
    author.horizon = lambda split: True
    stage = discovering(["a", "b"], bounded=False)
    stage.register()
    stage.finish("a")
    state = json.loads(json.dumps(stage.coordinator.snapshot(1)))
    again = author_class()
    discovering(state=state, restored=[Split("b")], bounded=False, the_author=again)
    assert ("finished", ["a"]) in again.journal


def test_two_splits_of_one_id_in_a_discovery_are_refused(discovering):
    """SPL-1: two splits with one id are ambiguous."""
    with pytest.raises(ContractError) as caught:
        discovering(["a", "a"])
    assert caught.value.rule == "SPL-1" and caught.value.split == "a" and caught.value.source == "scripted"


@pytest.mark.parametrize("found", [Discovered(["a"]), Discovered([None])])
def test_what_is_no_split_is_refused(discovering, found):
    with pytest.raises(ContractError, match="not a Split"):
        discovering(found)


def test_a_discovery_that_gives_something_else_is_refused(discovering, author, monkeypatch):
    monkeypatch.setattr(author, "discover", lambda known, first: ["a"])
    with pytest.raises(ContractError, match="discover"):
        discovering()


def test_only_the_first_discovery_is_reported_as_first(discovering, author):
    """ENU-6: also if the first tries failed."""
    stage = discovering(RetriableError("down"), ["a"], ["a"], bounded=False)
    stage.advance(10)
    stage.advance(10)
    assert [first for _known, first in author.discoveries] == [True, True, False]


def test_the_first_discovery_is_retried_with_back_off_then_fails_the_run(discovering, author):
    """CTX-6: retries and advice; the error is the author's own object."""
    errors = [RetriableError(f"down {n}") for n in range(3)]
    stage = discovering(*errors)
    waits = [stage.wait()]
    stage.advance(waits[0])
    waits.append(stage.wait())
    assert 0.25 <= waits[0] <= 0.5 < waits[1] <= 1.5
    with pytest.raises(RetriableError) as caught:
        stage.advance(waits[1])
    assert caught.value is errors[2]
    assert (
        caught.value.source == "scripted"
        and "3 tries" in caught.value.message
        and "retryTimeout" in caught.value.advice
    )
    assert len(author.discoveries) == 3


def test_a_later_discovery_never_fails_the_run_and_warns(discovering, author, caplog):
    """CTX-7: one failure does not stop later runs."""
    stage = discovering(["a"], *[RetriableError("down")] * 9, ["a", "b"], bounded=False)
    stage.register()
    for _ in range(12):
        stage.advance(30)
    assert stage.reader.ids == ["a", "b"]
    warnings = [record for record in caplog.records if "down" in record.getMessage()]
    assert len(warnings) == 9 and all(record.levelname == "WARNING" for record in warnings)


def test_any_other_error_of_a_discovery_fails_the_run(discovering):
    error = ConfigurationError("no such topic")
    stage = discovering(["a"], error, bounded=False)
    with pytest.raises(ConfigurationError) as caught:
        stage.advance(10)
    assert caught.value is error


def test_splits_that_vanished_are_dropped_if_the_author_says_so(discovering, author):
    """FLIP-537: not assigned again; a split that is being read stays with its reader."""
    author.drop = True
    stage = discovering(["a", "b"], ["c"], ["c"], bounded=False)
    stage.register()
    stage.advance(10)
    assert author.journal == [("vanished", ["a", "b"])]
    stage.replace(Split("a", 4), Split("b", 1), Split("c"))
    assert stage.reader.ids == ["c"]
    stage.advance(10)
    assert author.journal == [("vanished", ["a", "b"])]
    assert sorted(stage.discovering.splits()) == ["c"]


def test_a_split_that_comes_back_in_time_was_never_gone(discovering, author):
    author.drop = True
    stage = discovering(["a", "b"], ["a"], ["a", "b"], bounded=False)
    stage.register()
    stage.advance(10)
    stage.advance(10)
    stage.replace(Split("a"), Split("b", 6))
    assert stage.reader.splits == [Split("a"), Split("b", 6)]


def test_a_dropped_split_that_waits_for_a_reader_is_forgotten(discovering, author):
    author.drop = True
    stage = discovering(["a", "b"], ["b"], bounded=False)
    stage.advance(10)
    stage.register()
    assert stage.reader.ids == ["b"]


def test_vanished_splits_are_kept_by_default_and_finished_ones_do_not_count(discovering, author):
    stage = discovering(["a", "b"], [], [], bounded=False)
    stage.register()
    stage.finish("b")
    stage.advance(10)
    assert author.journal == [("vanished", ["a"])]
    assert stage.discovering.splits()["a"][1] is SplitState.ASSIGNED


def test_losing_splits_can_be_an_error(discovering, author, monkeypatch):
    def vanished(_splits):
        raise DataLossError("topic deleted")

    monkeypatch.setattr(author, "vanished", vanished)
    stage = discovering(["a"], [], bounded=False)
    with pytest.raises(DataLossError):
        stage.advance(10)


# ---- state


def test_unassigned_and_known_splits_are_in_the_snapshot(discovering, author, author_class):
    """ENU-5: testCheckpointCoordinatorAndRestore; 6 splits, 2 assigned: 4 are unassigned after restore, no readers."""
    stage = discovering(list("abcdef"))
    stage.register()
    stage.request(2)
    state = json.loads(json.dumps(stage.coordinator.snapshot(1)))
    restored = discovering(state=state, the_author=author_class())
    assert dict(restored.coordinator.registered_readers()) == {}
    restored.register()
    restored.request(6)
    assert restored.reader.messages == [*"cdef", "no more"]


def test_restoring_does_not_discover_a_bounded_source_again(discovering, author_class):
    """ENU-6: a restored enumerator knows its splits."""
    state = discovering(["a"]).coordinator.snapshot(1)
    again = author_class()
    discovering(state=state, the_author=again)
    assert again.discoveries == [] and again.journal == [("restore_state", None)]


def test_restoring_before_the_first_discovery_starts_over(discovering, author_class):
    state = discovering(["a"], run=False).coordinator.snapshot(1)
    again = author_class()
    stage = discovering(["a"], state=state, the_author=again)
    stage.register()
    stage.request()
    assert again.discoveries == [({}, True)] and again.journal == []
    assert stage.reader.ids == ["a"]


def test_restoring_keeps_what_discovery_must_not_bring_again(discovering, author_class):
    """ENU-6: known, finished and assigned ids, the `first` flag and the author's own state come along."""
    first = author_class()
    first.state = {"token": 7}
    stage = discovering(list("abc"), bounded=False, the_author=first)
    stage.register()
    stage.finish(Split("a", 9))
    state = json.loads(json.dumps(stage.coordinator.snapshot(1)))
    again = author_class()
    restored = discovering(
        list("abcd"), state=state, restored=[Split("b", 4), Split("c")], bounded=False, the_author=again
    )
    restored.register()
    assert again.journal == [("restore_state", {"token": 7}), ("finished", ["a"])]
    assert [(sorted(known), first) for known, first in again.discoveries] == [(["a", "b", "c"], False)]
    assert restored.reader.splits == [Split("b", 4), Split("c"), Split("d")]


def test_a_snapshot_is_canonical_and_survives_its_way_back(discovering, author_class):
    """SER-2: the same state gives the same bytes, also through JSON and a restore."""
    one = author_class()
    one.state = [1, {"b": None}]
    stage = discovering([Split("b", (1, "x")), Split("a"), Split("c", 3, 9)], the_author=one)
    stage.register()
    stage.request()
    state = stage.coordinator.snapshot(1)
    assert json.dumps(stage.coordinator.snapshot(2)) == json.dumps(state)
    back = discovering(state=json.loads(json.dumps(state)), the_author=author_class())
    assert json.dumps(back.coordinator.snapshot(3)) == json.dumps(state)


@pytest.mark.parametrize("state", [{"v": 2}, {"v": "1"}, {"v": 1}, {"v": 1, "first": True, "new": 4}, [], "x"])
def test_a_state_that_cannot_be_read_is_refused(discovering, state):
    """SER-1: unknown newer version is an error, not garbage."""
    with pytest.raises(ContractError) as caught:
        discovering(state=state)
    assert caught.value.rule == "SER-1"


# ---- reports to the author


def test_the_author_hears_of_finished_splits_when_a_checkpoint_holds_them(discovering, author):
    """ENU-7: and only of those that were finished at its cut; once."""
    stage = discovering(["a", "b"])
    stage.register()
    stage.request(2)
    stage.finish("a")
    stage.coordinator.snapshot(1)
    stage.finish("b")
    assert author.journal == []
    stage.complete(1, {"a": 3})
    assert author.journal == [("finished", ["a"]), ("committed", {"a": 3})]
    stage.checkpoint(2)
    stage.checkpoint(3)
    assert [entry for entry in author.journal if entry[0] == "finished"] == [("finished", ["a"]), ("finished", ["b"])]


def test_a_skipped_notification_is_made_up_for_by_the_next(discovering, author):
    """ENU-7: best effort; may be skipped."""
    stage = discovering(["a", "b"])
    stage.register()
    stage.request(2)
    stage.finish("a")
    stage.coordinator.snapshot(1)
    stage.finish("b")
    stage.checkpoint(2)
    assert author.journal[0] == ("finished", ["a", "b"])


def test_finished_splits_are_reported_again_after_a_retriable_error(discovering, author, caplog):
    def down():
        raise RetriableError("down")

    author.on_finished = down
    stage = discovering(["a"])
    stage.register()
    stage.request()
    stage.finish("a")
    stage.checkpoint(1)
    author.on_finished = lambda: None
    stage.checkpoint(2)
    stage.checkpoint(3)
    assert [entry for entry in author.journal if entry[0] == "finished"] == [("finished", ["a"])] * 2
    assert "down" in caplog.text


def test_a_retriable_error_of_committed_does_not_fail_the_run(discovering, author, monkeypatch, caplog):
    def down(_positions):
        raise RetriableError("broker away")

    monkeypatch.setattr(author, "committed", down)
    discovering(["a"]).checkpoint(1)
    assert "broker away" in caplog.text


@pytest.mark.parametrize("method", ["vanished", "finished", "committed"])
def test_any_other_error_of_a_report_fails_the_run_and_names_the_method(discovering, author, monkeypatch, method):
    def fail(_report):
        raise OSError("no")

    monkeypatch.setattr(author, method, fail)
    stage = discovering(["a"], [], bounded=False)
    stage.register()
    with pytest.raises(FatalError, match=rf"{method}\(\) failed with OSError: no"):
        stage.advance(10)
        stage.finish("a")
        stage.checkpoint(1)


def test_closing_closes_the_author(discovering, author):
    """ENU-9."""
    discovering(["a"]).coordinator.close(1)
    assert author.journal == [("close",)]


# ---- everything at once


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_split_is_lost_or_held_twice_whatever_fails(discovering, author_class, data):
    """ENU-3, ENU-5, SPL-1: under failures, restarts, discoveries and ends in any order, every split ends once."""
    bounded = data.draw(st.booleans())
    names = [f"s{n}" for n in range(data.draw(st.integers(0, 6)))]
    found = [names] if bounded else [names[: data.draw(st.integers(0, len(names)))], names, names]
    stage = discovering(*found, bounded=bounded, the_author=author_class(), run=False)
    held, done = {}, []

    def collect():
        ids = stage.reader.ids
        assert len(ids) == len(set(ids)) and not set(ids) & (held.keys() | set(done))
        held.update((split.id, split) for split in stage.reader.splits)
        stage.reader.splits.clear()

    def end(split_id):
        done.append(split_id)
        stage.finish(held.pop(split_id))

    def take_back():
        mine = [split.at((split.position or 0) + 1) for split in held.values()]
        held.clear()
        return mine

    stage.register()
    for action in data.draw(st.lists(st.sampled_from(["request", "advance", "fail", "end", "restart"]), max_size=12)):
        match action:
            case "request":
                stage.request()
            case "advance":
                stage.advance(10)
            case "fail":
                stage.replace(*take_back())
            case "end" if held:
                end(min(held))
            case "restart":
                state = json.loads(json.dumps(stage.coordinator.snapshot(1)))
                again = author_class()
                stage = discovering(
                    names, bounded=bounded, state=state, restored=take_back(), the_author=again, run=False
                )
                stage.register()
        collect()
    for _ in range(len(names) + 3):
        stage.advance(10)
        stage.request()
        collect()
        for split_id in sorted(held):
            end(split_id)
    assert sorted(done) == names


# ---- stages


def test_stages_in_order_are_refused(discovering, author):
    """DIS-7: the next stage begins after all splits, and not after one."""
    author.in_stages = author.in_order = True
    with pytest.raises(ContractError, match="both in_stages and in_order") as caught:
        discovering(["a"])
    assert caught.value.rule == "DIS-7"


def test_a_finished_stage_is_discovered_from_at_once(discovering, author):
    """DIS-7: also if the interval says to discover once; and nothing is asked while a split is unfinished."""
    author.in_stages = True
    stage = discovering(["a", "b"], ["c"], bounded=False, discovery_interval=Duration(0))
    stage.register()
    stage.finish("a")
    assert len(author.discoveries) == 1
    stage.finish("b")
    stage.run_until_idle()
    assert [sorted(known) for known, _ in author.discoveries] == [[], ["a", "b"]]
    assert stage.reader.ids == ["a", "b", "c"]


def test_a_stage_discovery_that_fails_is_retried(discovering, author):
    author.in_stages = True
    found = [["a"], RetriableError("away"), ["b"]]
    stage = discovering(*found, bounded=False, discovery_interval=Duration(0))
    stage.register()
    stage.finish("a")
    stage.run_until_idle()
    assert stage.reader.ids == ["a"]
    stage.advance(60)
    assert stage.reader.ids == ["a", "b"]


def test_a_run_of_stages_has_caught_up_as_soon_as_its_splits_have(driven, author):
    """DIS-7: not only after the discovery of an interval later, which may find more for ever."""
    author.in_stages = True
    author.found = [[Split("a", 0)]]
    run = driven(lambda _context: author, bounded=False)
    assert not run.engine.caught_up()
    run.reader_does(lambda _reader, output: output.split_caught_up("a"))
    assert run.engine.caught_up()
