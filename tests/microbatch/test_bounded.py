# SPDX-License-Identifier: Apache-2.0
"""Planning a bounded read of a source with discovery."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from forebay.errors import ContractError, DataLossError, FatalError, RetriableError
from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.simple import SimpleSource
from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay.framework.tasks.assign_tasks import plan_bounded

SCHEMA = pa.schema({"n": pa.int64()})


class Enumerator(DiscoveryEnumerator):
    """Returns what a test gives it."""

    def __init__(self, splits=(), ends=None, sizes=None):
        self.splits, self.ends, self.sizes = splits, ends or {}, sizes or {}
        self.calls = []

    def discover(self, known, first):
        self.calls.append(("discover", dict(known), first))
        return Discovered(self.splits)

    def latest(self, splits):
        self.calls.append(("latest", [split.id for split in splits]))
        return self.ends

    def size(self, split):
        return self.sizes.get(split.id)

    def slices(self, split, count):
        if split.id not in self.sizes:
            return [split]
        middle = split.end // 2
        return [split.slice(split.position, middle), split.slice(middle, split.end)]

    def close(self):
        self.calls.append(("close",))


def source_of(enumerator, bounded=True):
    class Given(Source):
        name = "given"

        def schema(self):
            return SCHEMA

        def create_enumerator(self, context):
            return enumerator

        def create_split_reader(self, context):
            raise NotImplementedError

    setattr(Given, "bounded", bounded)  # noqa: B010 - a property in the base class
    return Given()


def plan(enumerator, *, bounded=True, parallelism=4, **options):
    return list(plan_bounded(source_of(enumerator, bounded), HostOptions(**options), parallelism=parallelism))


def flat(tasks):
    return sorted((one for task in tasks for one in task), key=lambda one: one.id)


def test_the_source_is_discovered_once_as_a_first_discovery_and_closed():
    enumerator = Enumerator([Split("a"), Split("b")])
    assert flat(plan(enumerator)) == [Split("a"), Split("b")]
    assert enumerator.calls == [("discover", {}, True), ("latest", ["a", "b"]), ("close",)]


def test_an_open_split_ends_at_the_latest_position():
    tasks = plan(Enumerator([Split("a", position=3), Split("b")], {"a": 9}), bounded=False)
    assert flat(tasks) == [Split("a", position=3, end=9), Split("b")]


def test_an_end_beyond_the_latest_position_of_an_unbounded_source_is_not_waited_for():
    splits = [Split("far", position=0, end=100), Split("near", position=0, end=5)]
    tasks = plan(Enumerator(splits, {"far": 9, "near": 9}), bounded=False)
    assert flat(tasks) == [Split("far", position=0, end=9), Split("near", position=0, end=5)]


def test_a_bounded_source_keeps_its_own_ends():
    assert flat(plan(Enumerator([Split("a", position=0, end=100)], {"a": 9}))) == [Split("a", position=0, end=100)]


def test_a_split_with_nothing_left_is_not_planned():
    splits = [Split("empty", position=4), Split("beyond", position=9), Split("full", position=0)]
    tasks = plan(Enumerator(splits, {"empty": 4, "beyond": 4, "full": 4}), bounded=False)
    assert flat(tasks) == [Split("full", position=0, end=4)]


def test_positions_are_ordered_by_the_order_key_of_the_source():
    source = source_of(Enumerator([Split("a", position="9", end="100")], {"a": "20"}), bounded=False)
    object.__setattr__(source, "order_key", int)
    assert flat(plan_bounded(source, HostOptions())) == [Split("a", position="9", end="20")]


def test_lists_as_latest_positions_become_tuples():
    assert flat(plan(Enumerator([Split("a")], {"a": [1, [2, "x"]]}))) == [Split("a", end=(1, (2, "x")))]


def test_positions_of_different_types_are_refused_by_name():
    with pytest.raises(ContractError, match="cannot be compared") as caught:
        plan(Enumerator([Split("a", position=0, end=5)], {"a": "9"}), bounded=False)
    assert (caught.value.split, caught.value.rule) == ("a", "SPL-2")


def test_an_empty_source_makes_no_task_and_is_not_asked_for_ends():
    enumerator = Enumerator([])
    assert plan(enumerator) == []
    assert ("latest", []) not in enumerator.calls


def test_the_number_of_tasks_is_the_option_or_else_the_parallelism():
    splits = [Split(str(number)) for number in range(10)]
    assert len(plan(Enumerator(splits))) == 4
    assert len(plan(Enumerator(splits), num_partitions=7)) == 7


def test_big_splits_are_cut_by_estimated_bytes():
    splits = [Split("big", position=0, end=1 << 30), Split("small", position=0, end=10)]
    tasks = plan(Enumerator(splits, sizes={"big": 1 << 30, "small": 10}), parallelism=2)
    assert [one.id for task in tasks for one in task].count("big") == 2


def test_a_repeated_split_id_is_refused():
    with pytest.raises(ContractError, match="two splits have the id") as caught:
        plan(Enumerator([Split("a"), Split("a", position=1)]))
    assert (caught.value.source, caught.value.split, caught.value.rule) == ("given", "a", "SPL-1")


def test_a_retriable_error_is_tried_again():
    class Flaky(Enumerator):
        failures = 2

        def discover(self, known, first):
            if self.failures:
                self.failures -= 1
                raise RetriableError("not now")
            return super().discover(known, first)

    assert flat(plan(Flaky([Split("a")]), retries=2)) == [Split("a")]


def test_a_retriable_error_ends_planning_once_the_retries_are_used_up():
    class Down(Enumerator):
        tries = 0

        def latest(self, splits):
            self.tries += 1
            raise RetriableError("still down")

    enumerator = Down([Split("a")])
    with pytest.raises(RetriableError, match="still down") as caught:
        plan(enumerator, retries=1)
    assert enumerator.tries == 2
    assert caught.value.source == "given"
    assert enumerator.calls[-1] == ("close",)


@pytest.mark.parametrize("method", ["discover", "latest", "close"])
def test_a_foreign_error_keeps_its_type_and_says_where(method):
    enumerator = Enumerator([Split("a")])

    def fail(*_args, **_kwargs):
        raise KeyError("no such key")

    setattr(enumerator, method, fail)
    with pytest.raises(FatalError, match=rf"{method}\(\) failed with KeyError: 'no such key'") as caught:
        plan(enumerator)
    assert caught.value.source == "given"
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_error_of_close_does_not_hide_the_first_one():
    class Broken(Enumerator):
        def latest(self, splits):
            raise DataLossError("gone")

        def close(self):
            raise OSError("and stuck")

    with pytest.raises(DataLossError, match="gone") as caught:
        plan(Broken([Split("a")]))
    assert "and stuck" in caught.value.__notes__[0]


def test_a_discovery_that_never_answers_ends_in_an_error_with_the_next_step():
    never = threading.Event()

    class Stuck(Enumerator):
        def discover(self, known, first):
            never.wait(60)
            return super().discover(known, first)

    with pytest.raises(FatalError, match=r"discover\(\) did not return within 2 s") as caught:
        plan(Stuck(), planning_timeout="2s")
    never.set()
    assert "planningTimeout" in str(caught.value.advice)


@pytest.mark.parametrize(
    "answer",
    [None, [Split("a")], Discovered(["a"])],  # type: ignore[list-item]  # that is the mistake
)
def test_a_discovery_of_the_wrong_type_is_refused(answer):
    enumerator = Enumerator()
    vars(enumerator)["discover"] = lambda *_, **__: answer
    with pytest.raises(ContractError, match=r"discover\(\) returned"):
        plan(enumerator)


def test_an_enumerator_of_the_wrong_type_is_refused():
    with pytest.raises(ContractError, match=r"create_enumerator\(\) returned int"):
        plan(3)


def test_a_simple_source_is_planned_by_its_splits_and_latest_positions():
    class Regions(SimpleSource):
        bounded = False

        def schema(self):
            return SCHEMA

        def splits(self):
            return ["east", Split("west", position=2)]

        def latest(self, split):
            return 5 if split.id == "west" else None

        def read(self, split):
            return []

    tasks = plan_bounded(Regions(), HostOptions(), parallelism=8)
    assert flat(tasks) == [Split("east"), Split("west", position=2, end=5)]


def test_no_thread_is_left_behind():
    before = set(threading.enumerate())
    plan(Enumerator([Split("a")]))
    left = [thread for thread in threading.enumerate() if thread not in before]
    for thread in left:
        thread.join(5)
    assert not any(thread.is_alive() for thread in left)


class Choosing(Enumerator):
    """Has tasks of its own."""

    def __init__(self, splits, tasks):
        super().__init__(splits)
        self.own = tasks

    def tasks(self, slices):
        return self.own(slices)


def test_a_source_may_say_its_tasks_itself():
    splits = [Split("a", 0, 10), Split("b", 0, 4)]
    found = plan(Choosing(splits, lambda slices: [[slices[0].slice(0, 5)], [slices[0].slice(5, 10), slices[1]]]))
    assert found == [(Split("a", 0, 5),), (Split("a", 5, 10), Split("b", 0, 4))]
    assert len(plan(Choosing(splits, lambda slices: None), num_partitions=1)) == 1


@pytest.mark.parametrize(
    ("tasks", "says"),
    [
        (lambda slices: [[slices[0]]], "left out the split 'b'"),
        (lambda slices: [slices, [Split("c")]], "added the split 'c'"),
    ],
)
def test_tasks_that_are_not_what_is_to_be_read_are_refused(tasks, says):
    with pytest.raises(ContractError, match=says):
        plan(Choosing([Split("a", 0, 10), Split("b", 0, 4)], tasks))
