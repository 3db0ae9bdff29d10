# SPDX-License-Identifier: Apache-2.0
"""From one offset to the next: the plan of a micro-batch, and that an offset is self-contained."""

from __future__ import annotations

import json

import pytest

from forebay.errors import ConfigurationError, ContractError, DataLossError, RetriableError
from forebay.framework.microbatch.offset import BEFORE_FIRST
from forebay.framework.split import Split


def open_splits(*names, position=0):
    return [Split(name, position) for name in names]


@pytest.fixture
def two(outside):
    return outside(open_splits("a", "b"), {"a": 10, "b": 4})


# ---- S1, S2: everything is in the offset


def test_s1_a_cold_planner_goes_on_from_any_offset_as_the_first_one_did(query, outside):
    """S1: from every offset of a run, the rest of the run is the same."""
    there = outside([*open_splits("a", "b", "c"), Split("d", 0, 7)], {"a": 10, "b": 4, "c": 25, "d": 9})
    first = query(there, max_rows_per_trigger=6)
    turns = first.turns()
    assert sum(len(turn) for turn in turns) > 8
    for done in range(len(turns)):
        again = query(there, max_rows_per_trigger=6)
        again.log = first.log[: done + 1]
        again.restart()
        assert again.turns() == turns[done + 1 :]
        # Nobody can tell who planned it.
        assert again.log == first.log


def test_s1_the_id_is_random_minted_once_and_kept(query, two):
    """S1: two queries of one source are not confused; a restart keeps the id."""
    one, other = query(two, max_rows_per_trigger=5), query(two)
    one.turn()
    other.turn()
    one.restart()
    one.turn()
    assert len({offset["id"] for offset in one.log}) == 1
    assert len(one.log) == 2
    assert one.log[0]["id"] != other.log[0]["id"]


def test_s2_the_start_of_a_micro_batch_is_in_its_own_offset(query, two):
    """S2: batch 0 whose start Spark did not log, and one whose start was skipped (trap 2), read the same."""
    run = query(two, max_rows_per_trigger=1)
    turns = run.turns(13)
    assert len(turns) == 13
    slices = [(split_id, *slice_) for turn in turns for split_id, slice_ in turn.items()]
    assert sorted(slices) == [("a", n, n + 1) for n in range(9)] + [("b", n, n + 1) for n in range(4)]
    cold = query(two, max_rows_per_trigger=1)
    assert cold.read(cold.start, run.log[0]) == turns[0]
    assert cold.read(run.log[2], run.log[12]) == turns[12]


def test_s2_after_a_skipped_offset_the_plan_goes_on_from_the_end(query, two):
    """S2: asynchronous progress tracking replays from n=2 to n=12, and asks from 12 on."""
    run = query(two, max_rows_per_trigger=1)
    turns = run.turns()
    cold = query(two, max_rows_per_trigger=1)
    cold.log = run.log[:13]
    cold.restart()
    cold.read(run.log[2], run.log[12])
    assert cold.turns() == turns[13:]


def test_s2_a_planner_goes_on_from_an_offset_that_it_has_not_planned(query, two):
    """S2: a plan in memory of another micro-batch is not used."""
    run = query(two, max_rows_per_trigger=1)
    turns = run.turns()
    warm = query(two, max_rows_per_trigger=1)
    warm.log = run.log[:3]
    warm.restart()
    assert warm.turn() == turns[3]
    warm.log, warm.start = run.log[:9], run.log[8]
    assert warm.turns() == turns[9:]
    assert warm.log == run.log


def test_trap_1_equal_offsets_in_other_words_are_no_micro_batch(query, two):
    """Trap 1: Spark compares texts, so start and end may have the same n."""
    run = query(two)
    run.turn()
    cold = query(two)
    stripped = json.loads(json.dumps(run.log[0], separators=(",", ":"), sort_keys=True))
    assert cold.read(stripped, run.log[0]) == {}
    cold.start = stripped
    assert cold.latest() is not None
    assert cold.turn() is None


def test_s5_tasks_are_the_same_for_every_scan_and_have_no_side_effects(query, two):
    """S5: a self-union asks twice; a cold planner is asked first."""
    run = query(two)
    run.turn()
    cold = query(two)
    asked = len(two.calls)
    assert cold.read(cold.start, run.log[0]) == cold.read(cold.start, run.log[0]) == {"a": (0, 10), "b": (0, 4)}
    assert two.calls[asked:] == []


def test_s5_asking_for_tasks_again_changes_neither_them_nor_what_follows(query, outside):
    """S5: also after the next micro-batch."""
    names = [f"s{number}" for number in range(20)]
    there = outside(open_splits(*names), dict.fromkeys(names, 5))
    run = query(there)
    start, _ = run.start, run.turn()
    assert run.turn() is None
    scans = [run.planner.tasks(start, run.log[0]) for _ in range(3)]
    assert [len(task.slices) for task in scans[0]] == [10, 10]
    assert scans[1:] == scans[:1] * 2
    there.ends["s7"] = 9
    run.wait()
    assert run.turn() == {"s7": (5, 9)}


def test_s6_a_micro_batch_keeps_its_ends_whatever_comes_later(query, two):
    """S6: a retry, another action and a replay read no row that was added meanwhile."""
    run = query(two)
    start = run.start
    assert run.turn() == {"a": (0, 10), "b": (0, 4)}
    two.ends.update(a=99, b=7)
    for again in (run, query(two)):
        assert again.read(start, run.log[0]) == {"a": (0, 10), "b": (0, 4)}
    run.wait()
    assert run.turn() == {"a": (10, 99), "b": (4, 7)}


def test_s8_many_splits_make_few_tasks(query, outside):
    """S8: a task of Python costs 30 ms, however little it reads."""
    names = [f"s{number}" for number in range(100)]
    run = query(outside(open_splits(*names), dict.fromkeys(names, 5)))
    start, _ = run.start, run.turn()
    tasks = run.planner.tasks(start, run.start)
    assert [len(task.slices) for task in tasks] == [50, 50]


def test_trap_6_an_available_now_run_that_begins_with_a_replay(query, two):
    """Trap 6: prepare, then a replay, then the first poll, on a cold planner."""
    run = query(two, max_rows_per_trigger=10)
    run.turn()
    two.ends.update(a=20)
    cold = query(two, max_rows_per_trigger=10)
    cold.planner.prepare_available_now()
    assert cold.read(cold.start, run.log[0]) == {"a": (0, 8), "b": (0, 2)}
    cold.start = run.log[0]
    assert sum(end - start for turn in cold.turns() for start, end in turn.values()) == 14


@pytest.mark.parametrize(("first", "then"), [("9", "10"), (100, 50)])
def test_an_end_before_the_position_reads_nothing_and_is_logged_once(query, outside, caplog, first, then):
    """Numbers in text, and a split that was replaced: only the warning shows that it is not read."""
    there = outside([Split("a", None), Split("b", None)], {"a": first, "b": first})
    run = query(there)
    run.turn()
    there.ends = {"a": then, "b": then}
    for _ in range(3):
        run.wait()
        assert run.turn() is None
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert f"returned {then!r} for the split 'a', before its position {first!r}" in told[0]


# ---- S4: only what is new makes a new number


def test_s4_nothing_new_returns_the_start_itself(query, two):
    """S4: the same object, so that its text does not change."""
    run = query(two)
    run.turn()
    for seconds in (0.0, 0.0, 60.0, 0.01):  # polled, or from memory
        run.wait(seconds)
        assert run.planner.latest(run.start) is run.start


def test_s4_options_version_and_state_alone_make_no_new_number(query, two):
    """S4: they are written with the next micro-batch."""
    run = query(two)
    run.turn()
    two.state = {"marker": 1}
    run.wait()
    assert run.turn() is None
    two.ends["a"] = 11
    run.wait()
    assert run.turn() == {"a": (10, 11)}
    assert run.start["enum"] == {"state": {"marker": 1}}


def test_s4_an_end_that_lags_never_takes_a_split_back(query, two):
    """S4: a replica that lags returns an end before the position."""
    run = query(two)
    run.turn()
    two.ends.update(a=3, b=5)
    run.wait()
    assert run.turn() == {"b": (4, 5)}
    two.ends.update(a=12)
    run.wait()
    assert run.turn() == {"a": (10, 12)}


def test_s4_an_advance_that_goes_back_or_too_far_is_refused(query, two):
    """S4: a plan stays between the position and the end."""
    for wrong, rule in ((-3, "S4"), (99, "DIS-3")):
        run = query(two, max_rows_per_trigger=5)
        run.planner._split_provider.enumerator.advance = lambda split, rows=None, byte_budget=None, to=wrong: to
        with pytest.raises(ContractError, match=r"advance\(\) returned") as caught:
            run.turn()
        assert (caught.value.rule, caught.value.split) == (rule, "a")


def test_the_first_offset_is_planned_even_of_nothing(query, outside):
    """Spark always runs batch 0; and the meaning of "latest" at the first discovery is kept."""
    run = query(outside([Split("a", 7)], {"a": 7}))
    assert run.turn() == {}
    assert run.start["splits"] == [["a", 7]]
    assert run.turn() is None


# ---- where the author's state, and the first discovery, are remembered


def test_a_discovery_after_a_restart_is_not_the_first(query, two):
    """As a first discovery it would begin new Kafka partitions at their latest offset, and lose records before it."""
    run = query(two)
    run.turn()
    run.restart()
    run.turn()
    assert [call[2] for call in two.calls if call[0] == "discover"] == [True, False]


def test_the_authors_state_comes_back_before_any_other_call(query, two):
    two.state = {"marker": [1]}
    run = query(two)
    run.turn()
    two.calls.clear()
    run.restart()
    run.turn()
    assert two.calls[0] == ("restore_state", {"marker": [1]})


def test_known_splits_are_those_open_and_those_done(query, outside):
    there = outside([Split("a", 0, 5), Split("b", 0)], {"a": 5, "b": 2})
    run = query(there)
    run.turn()
    there.ends["b"] = 3
    run.wait()
    assert run.turn() == {"b": (2, 3)}
    run.restart()
    run.wait()
    assert run.turn() is None
    assert there.reported("discover") == [[], ["a", "b"], ["a", "b"]]


def test_splits_below_the_horizon_are_forgotten_after_their_end_is_reported(query, outside):
    there = outside([Split("1", 0, 5)], {})
    there.horizon = lambda split: int(split.id) < 3
    run = query(there)
    run.turn()
    there.splits = [Split("2", 0, 5)]
    run.wait()
    run.turn()
    assert [entry[0] for entry in run.start["done"]] == ["1"], "its end was not told yet"
    run.restart()  # before commit
    there.splits = [Split("3", 0, 5)]
    run.turn()
    assert [entry[0] for entry in run.start["done"]] == ["2"]
    assert there.reported("finished") == [["1", "2"]]


# ---- vanished splits


def test_vanished_splits_are_kept_unless_the_author_drops_them(query, two):
    run = query(two)
    run.turn()
    two.splits = open_splits("b")
    two.ends.update(a=12, b=5)
    run.wait()
    assert run.turn() == {"a": (10, 12), "b": (4, 5)}
    two.drop = True
    two.ends.update(a=14, b=6)
    run.wait()
    assert run.turn() == {"b": (5, 6)}
    assert run.start["splits"] == [["b", 6, 5]]
    assert two.reported("vanished") == [["a"], ["a"]]


def test_a_loss_that_the_author_holds_for_an_error_ends_the_query(query, two):
    def lost(splits):
        raise DataLossError("deleted", split=splits[0].id)

    run = query(two)
    run.turn()
    two.splits = open_splits("b")
    run.wait()
    run.planner._split_provider.enumerator.vanished = lost
    with pytest.raises(DataLossError, match="deleted") as caught:
        run.turn()
    assert (caught.value.source, caught.value.split) == ("given", "a")


# ---- bounded sources


def test_a_bounded_source_is_read_once_and_never_polled_again(query, outside):
    there = outside([Split("a"), Split("b", 0, 5), Split("c", 0)], {"c": 3})
    run = query(there, query.bounded)
    assert run.turns() == [{"a": (None, None), "b": (0, 5), "c": (0, 3)}]
    there.splits.append(Split("late"))
    there.ends["c"] = 9
    for _ in range(3):
        run.wait()
        assert run.turn() is None
        run.restart()
    assert there.count("discover") == 1


def test_a_bounded_split_keeps_the_end_it_was_planned_with(query, outside):
    there = outside([Split("a", 0), Split("b", 0)], {"a": 9, "b": 1})
    run = query(there, query.bounded, max_rows_per_trigger=4)
    run.turn()
    there.ends["a"] = 100
    run.wait()
    run.restart()
    run.turns()
    assert max(end for offset in run.log for _, end, *_ in offset["splits"]) == 9


def test_an_open_split_without_a_known_end_is_refused_by_name(query, outside):
    with pytest.raises(ConfigurationError, match="the current end of this split is unknown") as caught:
        query(outside(open_splits("a"))).turn()
    assert (caught.value.option, caught.value.split) == ("stateLocation", "a")


# ---- failures


def test_the_first_discovery_is_retried_and_then_an_error(query, two):
    two.fail["discover"] = 2
    assert query(two, retries=2).turn() == {"a": (0, 10), "b": (0, 4)}
    two.fail["discover"] = 3
    with pytest.raises(RetriableError, match="discover is not there") as caught:
        query(two, retries=2).turn()
    assert caught.value.source == "given"


@pytest.mark.parametrize("call", ["discover", "latest"])
def test_a_call_without_whose_answer_planning_goes_on_has_few_retries(query, two, call):
    """What is known is read on: an outage shows in the progress within seconds, not after `retryTimeout`."""
    run = query(two, retries=None, retry_first_pause="0s")
    run.turn()
    two.fail[call] = 1000
    run.wait()
    before = two.fail[call]
    run.turn()
    assert before - two.fail[call] == 4


def test_a_later_discovery_that_fails_is_a_warning_and_what_is_known_is_read_on(query, two, caplog):
    run = query(two, retries=0)
    run.turn()
    two.fail["discover"] = 1
    two.ends["a"] = 11
    two.splits.append(Split("c", 0))
    two.ends["c"] = 1
    run.wait()
    assert run.turn() == {"a": (10, 11)}
    assert "discovery failed" in caplog.text
    run.wait()
    assert run.turn() == {"c": (0, 1)}


# ---- what may not change


def test_changed_options_are_refused_by_name_before_anything_is_read(query, two):
    first = query(two)
    first.turn()
    changed = query(two, source={"topic": "u"})
    with pytest.raises(ConfigurationError, match=r"topic \(was t, is now u\)") as caught:
        changed.planner.latest(first.start)
    assert caught.value.option == "topic"
    with pytest.raises(ConfigurationError, match="topic"):  # a replay comes before anything else
        changed.read(changed.start, first.start)
    allowed = query(two, source={"pause": 2})
    assert allowed.planner.latest(first.start) == first.start


def test_s19_no_secret_is_among_the_options_of_an_offset(query, two):
    """S19: not even a secret that may not change."""
    run = query(two, source={"token": "hush-hush"})
    run.turn()
    assert "hush-hush" not in json.dumps(run.log)
    assert query(two, source={"token": "another"}).planner.latest(run.start) == run.start


def test_a_changed_inferred_schema_is_refused_by_name(query, two):
    import pyarrow as pa

    first = query(two, inferred=pa.schema({"n": pa.int64()}))
    first.turn()
    second = query(two, inferred=pa.schema({"n": pa.string()}))
    for action in (lambda: second.planner.latest(first.start), lambda: second.read(second.start, first.start)):
        with pytest.raises(ConfigurationError, match="was n: int64, and is now n: string") as caught:
            action()
        assert caught.value.option == "schema"
    assert query(two).planner.latest(first.start) == first.start, "the user gives the schema now"


@pytest.mark.parametrize("start", [None, 5, [], {"topic": {"0": 12}}, {"v": 99, "source": "given"}])
def test_whatever_else_is_in_the_checkpoint_is_refused_by_name(query, two, start):
    for action in (lambda run: run.planner.latest(start), lambda run: run.planner.tasks(run.start, start)):
        with pytest.raises(ConfigurationError) as caught:
            action(query(two))
        assert caught.value.option == "checkpointLocation"


def test_the_start_is_always_the_same(query, two):
    run = query(two)
    assert run.start == query(two).start == {"v": 1, "source": "given", "n": BEFORE_FIRST}
    assert run.read(run.start, run.start) == {}


# ---- stages


def test_dis7_a_finished_stage_is_discovered_from_at_once(query, outside):
    """DIS-7: in the poll after the micro-batch that read the last splits of a stage, however fresh the answer is."""
    there = outside([Split("a", 0, 5)], {})
    run = query(there, discovery_interval="1 h")
    run.planner._split_provider._in_stages = True
    assert run.turn() == {"a": (0, 5)}
    there.splits = [Split("b", 0, 7)]
    assert run.turn() == {"b": (0, 7)}
    assert there.reported("discover") == [[], ["a"]]
    for _ in range(3):
        assert run.turn() is None
    assert there.reported("discover") == [[], ["a"], ["a", "b"]], "without new splits, the interval holds"


class Whole(Split):
    """A split that ends itself."""

    @property
    def ends_itself(self):
        return True


def test_splits_that_end_themselves_are_read_whole_and_limits_of_rows_do_not_cut_them(query, outside):
    there = outside([Whole(id=one) for one in "abc"], {})
    run = query(there, max_rows_per_trigger=1, max_files_per_trigger=2)
    run.source = type(run.source)()
    type(run.source).split_class = Whole
    run.restart()
    assert run.turns() == [{"a": (None, None), "b": (None, None)}, {"c": (None, None)}]
