# SPDX-License-Identifier: Apache-2.0
"""The retry policy, pauses that services ask for, and cached clients after an error."""

from __future__ import annotations

import logging
import math
import pickle
import random
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pyarrow as pa
import pytest
from forebay_simulator.inline import InlineRuntime
from manual_clock import ManualClock

import forebay
from forebay.errors import ConfigurationError, RetriableError
from forebay.framework.runtime.clients import ConnectorCalls, drop_clients
from forebay.framework.runtime.host_options import HostOptions
from forebay.retry import RetryCount, RetryPolicy

QUICK = HostOptions(retry_first_pause=0.001, retry_max_pause=0.002)


def count_of(policy, clock=None):
    return RetryCount(policy, clock or ManualClock(), random.Random(0))


def test_pauses_grow_from_the_first_to_the_longest_and_half_of_each_is_random():
    policy = RetryPolicy(first_pause=1, factor=4, max_pause=20)
    for failures, bound in ((1, 1), (2, 4), (3, 16), (4, 20), (1000, 20)):
        pauses = [policy.pause(failures, random.Random(seed)) for seed in range(50)]
        assert bound / 2 <= min(pauses) < max(pauses) <= bound


@pytest.mark.parametrize(
    ("asked", "seconds"), [(7, 7.0), (0.5, 0.5), (timedelta(minutes=2), 120.0), ("90", 90.0), (-3, 0.0), (None, None)]
)
def test_retry_after_is_seconds_a_timedelta_or_the_text_of_the_header(asked, seconds):
    assert RetriableError("429", retry_after=asked).retry_after == seconds


def test_retry_after_may_be_a_date_and_survives_pickling():
    error = RetriableError("503", retry_after=format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True))
    assert 3500 < error.retry_after <= 3600
    assert pickle.loads(pickle.dumps(error)).retry_after == error.retry_after


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [("1.5", 1.5), ("0.2", 0.2), (" 3 ", 3.0), ("-1", 0.0), (b"7", 7.0), ("Thu, 01 Jan 1970 00:00:00", 0.0)],
)
def test_a_header_with_a_fraction_or_a_date_without_a_zone_is_a_pause(asked, seconds, caplog):
    assert RetriableError("429", retry_after=asked).retry_after == seconds
    assert not caplog.records


@pytest.mark.parametrize(
    "asked",
    [*("", "soon", "inf", "1e400", "1e3", "1_0", "٣", "Thu, 99 Foo 1970", "9" * 400), 10**400, math.nan, math.inf, [3]],
)
def test_a_retry_after_that_is_no_pause_is_ignored_with_a_warning(asked, caplog):
    """It must not hide the failure that it came with."""
    assert RetriableError("429", retry_after=asked).retry_after is None
    assert f"retry_after {asked!r:.100} is neither seconds nor an HTTP date" in caplog.text


def test_a_service_that_asks_for_a_pause_gets_it_also_beyond_the_longest():
    policy = RetryPolicy(max_pause=1)
    assert policy.pause(1, random.Random(0), RetriableError("429", retry_after=60)) == 60


def test_retries_end_by_number_and_by_time():
    count = count_of(RetryPolicy(retries=2))
    assert [count.fail(RetriableError("x")) > 0 and count.exhausted for _ in range(3)] == [False, False, True]
    clock = ManualClock()
    count = count_of(RetryPolicy(retries=100, timeout=60), clock)
    while not count.exhausted:
        clock.advance(count.fail(RetriableError("x")))
    assert 60 < clock.monotonic() < 100


@pytest.mark.parametrize("timeout", [0.2, 4, 30, 120])
@pytest.mark.parametrize("seed", range(5))
def test_the_last_try_is_made_when_the_time_ends(timeout, seed):
    clock = ManualClock()
    count = RetryCount(RetryPolicy(timeout=timeout), clock, random.Random(seed))
    while not count.exhausted:
        pause = count.fail(RetriableError("x"))
        clock.advance(0 if count.exhausted else pause)
    assert clock.monotonic() == pytest.approx(timeout)


def test_a_pause_that_the_service_asks_for_is_not_cut():
    clock = ManualClock()
    count = count_of(RetryPolicy(timeout=60), clock)
    assert count.fail(RetriableError("429", retry_after=61)) == 61 and count.exhausted
    count.succeed()
    assert count.fail(RetriableError("429", retry_after=59)) >= 59 and not count.exhausted


def test_the_last_error_says_how_long_was_tried_and_what_to_do():
    clock = ManualClock()
    count = count_of(RetryPolicy(retries=1), clock)
    clock.advance(count.fail(RetriableError("no answer")))
    error = RetriableError("no answer", retry_after=5)
    count.fail(error)
    last = count.last_error(error)
    assert last.message.startswith("no answer (2 tries in 0.")
    assert "the service asks to wait 5 s" in last.advice
    assert "numPartitions" in last.advice


def test_a_factor_below_one_is_refused_by_name():
    with pytest.raises(ConfigurationError, match="retryFactor"):
        HostOptions(retry_factor=0.5)


def test_a_planner_waits_as_long_as_the_service_asks():
    runtime = InlineRuntime()
    calls = ConnectorCalls("shop", runtime, retry=RetryPolicy(retries=1), timeout=100)
    asked = []

    def answer():
        asked.append(runtime.clock.monotonic())
        if len(asked) == 1:
            raise RetriableError("429", retry_after=33)
        return "yes"

    assert calls.call("splits()", answer) == "yes"
    assert asked[1] - asked[0] >= 33


def refuse():
    raise RetriableError("429", retry_after=15)


def test_a_pause_that_ends_a_call_holds_no_other():
    runtime = InlineRuntime()
    calls = ConnectorCalls("shop", runtime, retry=RetryPolicy(timeout=3), timeout=100)

    with pytest.raises(RetriableError, match="1 try"):
        calls.call("splits()", refuse)
    start = runtime.clock.monotonic()
    assert calls.call("splits()", lambda: "yes") == "yes"
    assert runtime.clock.monotonic() == start


def test_a_pause_that_a_call_was_asked_for_holds_the_next_one_though_it_had_too_few_tries():
    runtime = InlineRuntime()
    calls = ConnectorCalls("shop", runtime, retry=RetryPolicy(retries=0), timeout=100)

    with pytest.raises(RetriableError, match="1 try"):
        calls.call("splits()", refuse)
    start = runtime.clock.monotonic()
    with pytest.raises(RetriableError, match=r"latest\(\) would have to wait 15.0 s, as the service asked") as caught:
        calls.call("latest()", lambda: "no", within=("latestTimeout", 5))
    assert "latestTimeout" in caught.value.advice
    assert calls.call("splits()", lambda: "yes") == "yes"
    assert runtime.clock.monotonic() == start + 15


class Throttled(forebay.SimpleSource):
    """Two splits; the first read is refused, and asks for a pause."""

    def schema(self):
        return pa.schema({"n": pa.int64()})

    def splits(self):
        return ["a", "b", "c", "d"]

    def read(self, split):
        READS.append(split.id)
        if len(READS) == 1:
            raise RetriableError("429", retry_after=0.3, split=split.id)
        yield {"n": 1}


READS: list[str] = []


def test_a_read_that_is_refused_goes_on_after_the_pause_that_the_service_asks_for(caplog):
    READS.clear()
    with caplog.at_level(logging.WARNING):
        table = forebay.run(Throttled(), options=QUICK).to_table()
    assert table.num_rows == 4
    assert "retried in 0.3 s" in caplog.text


class Client:
    """A client that can die."""

    made = 0

    def __init__(self):
        type(self).made += 1
        self.closed = False

    def close(self):
        self.closed = True


class Database(forebay.SimpleSource):
    """One row; the first client of a process is dead."""

    url: str = "x"

    @forebay.cached
    def client(self):
        return Client()

    def schema(self):
        return pa.schema({"n": pa.int64()})

    def read(self, split):
        number = Client.made if self.client else 0
        if number == 1:
            raise RetriableError("terminated by the administrator")
        yield {"n": number}


@pytest.fixture(autouse=True)
def _forgotten():
    drop_clients("database", Exception())
    Client.made = 0


def test_after_a_retriable_error_the_next_try_connects_again():
    assert forebay.run(Database(), options=QUICK).to_table()["n"].to_pylist() == [2]


def test_a_throttled_client_stays():
    client = Database().client
    drop_clients("database", RetriableError("429", retry_after=1))
    assert Database().client is client
    drop_clients("another", RetriableError("gone"))
    assert Database().client is client


def test_a_discarded_client_is_closed_and_replaced():
    client = Database().client
    other = Database(url="y").client
    forebay.discard(client)
    assert client.closed
    assert Database().client is not client
    assert Database(url="y").client is other
    forebay.discard(client)  # again: nothing more happens
    assert Client.made == 3


def test_a_client_that_its_user_closed_is_replaced():
    client = Database().client
    client.close()
    assert Database().client is not client
