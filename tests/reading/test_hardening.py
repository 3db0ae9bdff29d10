# SPDX-License-Identifier: Apache-2.0
"""Careless or hostile connectors end in an error or in the right rows, never silently in wrong rows."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

import forebay
from forebay import Batch, ConfigurationError, ContractError, FatalError, HostOptions, SimpleSource, Split
from forebay.framework.source import Source
from forebay.framework.tasks.assign_tasks import plan_bounded
from forebay.framework.tasks.read_task import ReadTask, run_task

SCHEMA = pa.schema({"n": pa.int64()})
ANSWERS: Iterator[int] = iter(())


def in_tasks(source: Source) -> list[int]:
    tasks = plan_bounded(source, HostOptions(), parallelism=1)
    read = [run_task(ReadTask(source, slices, HostOptions(), index, len(tasks))) for index, slices in enumerate(tasks)]
    return [n for one in read for delivered in one for n in delivered.batch.column("n").to_pylist()]


class Speechless(Exception):
    def __str__(self) -> str:
        return self.reason  # type: ignore[attr-defined,no-any-return]  # that is the point


class Numbers(SimpleSource):
    def schema(self) -> pa.Schema:
        return SCHEMA


class Failing(Numbers):
    def read(self, split):
        yield {"n": 1}
        raise Speechless


def test_an_error_that_cannot_say_its_text_still_ends_the_read() -> None:
    with pytest.raises(FatalError, match="Speechless: .its text is not available"):
        in_tasks(Failing())


def test_a_minimum_of_rows_above_the_maximum_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="minRowsPerTrigger is 20, more than maxRowsPerTrigger, 10"):
        HostOptions(min_rows_per_trigger=20, max_rows_per_trigger=10)


@pytest.mark.parametrize(
    "option", ["max_rows_per_batch", "max_bytes_per_batch", "queue_batches", "queue_bytes", "num_partitions"]
)
def test_bounds_of_a_host_are_positive(option: str) -> None:
    with pytest.raises(ConfigurationError, match="give 1 or more"):
        HostOptions(**{option: 0})
    with pytest.raises(ConfigurationError):
        HostOptions(**{option: -1})
    with pytest.raises(ConfigurationError):
        HostOptions(retries=-1)


class Empty(Numbers):
    def splits(self):
        return [Split("a", None, 0)]

    def read(self, split):
        yield {"n": 0}


class EmptyNow(Numbers):
    bounded = False

    def latest(self, split):
        return 0

    def read(self, split):
        yield {"n": 0}


@pytest.mark.parametrize("source", [Empty(), EmptyNow()])
def test_a_split_that_ends_at_zero_has_no_rows(source: Source) -> None:
    assert in_tasks(source) == []


class Lagging(Numbers):
    bounded = False

    def latest(self, split):
        return next(ANSWERS)

    def read(self, split):
        for n in range(split.position or 0, 100):
            yield {"n": n}


def test_a_latest_that_lags_behind_doubles_nothing() -> None:
    global ANSWERS  # noqa: PLW0603 - sources are frozen, and this one is asked in turn
    ANSWERS = iter([5, 3, 3, 8, *[8] * 1000])
    got: list[int] = []
    with forebay.run(Lagging(), options=HostOptions(poll_interval=forebay.Duration(0.01))) as batches:
        for batch in batches:
            got += batch.column("n").to_pylist()
            if len(got) >= 8:
                break
    assert got == list(range(8))


class Passing(Numbers):
    bounded = False

    def latest(self, split):
        return 5

    def read(self, split):
        yield Batch([{"n": n} for n in range(8)], 8)


def test_a_batch_beyond_an_end_that_was_asked_for_is_refused_at_once() -> None:
    with forebay.run(Passing()) as batches, pytest.raises(ContractError, match="beyond the end 5"):
        next(batches)


class Mixed(Numbers):
    def read(self, split):
        yield Batch([{"n": 1}], 1)
        yield Batch(pa.RecordBatch.from_pydict({"n": [2]}, schema=SCHEMA), 2)
        yield Batch([{"n": 3}], 3)


def test_dicts_and_arrow_keep_their_order() -> None:
    assert in_tasks(Mixed()) == [1, 2, 3]


class OneText(Numbers):
    def splits(self):
        return "eu"

    def read(self, split):
        yield {"n": 1}


def test_a_text_is_no_list_of_ids() -> None:
    with pytest.raises(ContractError, match="iterates by character"):
        in_tasks(OneText())


class Clients(Numbers):
    url: str = "x"

    def read(self, split):
        return []

    @forebay.cached
    def session(self) -> object:
        return object()

    @forebay.cached
    def http(self) -> tuple[object]:
        return (self.session,)


def test_a_cached_client_may_use_another() -> None:
    found: list[object] = []
    source = Clients()
    thread = threading.Thread(target=lambda: found.append(source.http), daemon=True)
    thread.start()
    thread.join(20)
    assert found == [(source.session,)]


def test_a_class_that_was_defined_again_has_clients_of_its_own() -> None:
    def cell(version: int) -> Numbers:
        class Notebook(Numbers):
            def read(self, split):
                return []

            @forebay.cached
            def client(self) -> int:
                return version

        return Notebook()

    assert [cell(version).client for version in (1, 2, 3)] == [1, 2, 3]  # type: ignore[attr-defined]  # made above
