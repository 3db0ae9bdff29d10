# SPDX-License-Identifier: Apache-2.0
"""`check_on_spark`: correct sources pass, and each rule SPK has sources that break it and are caught."""

from __future__ import annotations

import os
from typing import ClassVar

import pyarrow as pa
import pytest
from pyspark.errors import SparkRuntimeException

from forebay import Batch, ConfigurationError, Secret, SimpleSource, option
from forebay.testkit import ConformanceError, check_on_spark, on_spark
from forebay.testkit.outcomes import NotProvenWarning

SCHEMA = pa.schema({"split": pa.string(), "n": pa.int64()})


class Letters(SimpleSource):
    """Correct."""

    names: list[str] = option(default_factory=lambda: ["a"], doc="splits: each takes a start of the stream or two")
    rows: int = option(default=2, doc="rows of a split")
    token: Secret = option(default=Secret("a-secret-token"), doc="access token")

    def schema(self):
        return SCHEMA

    def splits(self):
        return self.names

    def read(self, split):
        for n in range(split.position or 0, self.rows):
            yield {"split": split.id, "n": n}


class GrowingLetters(Letters):
    """Correct: unbounded, with ends."""

    bounded = False
    positions_are_rows = True

    def latest(self, split):
        return self.rows

    def read(self, split):
        for n in range(split.position or 0, split.end):
            yield Batch([(split.id, n)], n + 1)


class EndlessLetters(GrowingLetters):
    """Correct: unbounded, without ends."""

    positions_are_rows = False
    latest = SimpleSource.latest

    def read(self, split):
        for n in range(split.position or 0, self.rows if split.end is None else split.end):
            yield Batch([(split.id, n)], n + 1)


class OtherRowsInAWorker(Letters):
    """Its rows depend on the process."""

    driver: int = option(default=0, doc="the process in which it is right")

    def read(self, split):
        for n in range(split.position or 0, self.rows):
            yield {"split": split.id, "n": n if os.getpid() == self.driver else n + 1}


class OtherRowsInAReplay(Letters):
    """Counts its reads in a file; the first one is that of the first attempt at a micro-batch."""

    counter: str = option(doc="a file")

    def read(self, split):
        with open(self.counter, "a+") as file:
            file.write(".")
            reads = file.tell()
        for n in range(split.position or 0, self.rows):
            yield {"split": split.id, "n": n if reads < 2 else n + reads}


class IgnoresItsOption(Letters):
    """Reads an attribute that is no option."""

    hidden: ClassVar[int]

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "hidden", 1)

    def read(self, split):
        for row in super().read(split):
            yield {**row, "n": row["n"] * self.hidden}


class PutsItsSecretIntoIds(Letters):
    """Its split ids are addresses with the token."""

    def splits(self):
        return [f"{name}?token={self.token.reveal()}" for name in self.names]


@pytest.mark.parametrize(
    "source",
    [Letters(names=["a", "b"]), pytest.param(GrowingLetters(rows=0), marks=pytest.mark.soak)],
    ids=lambda one: f"{one.name}{one.rows}",
)
def test_a_correct_source_passes(spark, source):
    report = check_on_spark(spark, source)
    assert (report.verdict, report.rules("passed")) == ("passed", {"SPK-1", "SPK-2", "SPK-3", "SPK-4"}), str(report)


@pytest.mark.soak
def test_the_options_of_the_host_cut_the_stream(spark):
    assert check_on_spark(spark, GrowingLetters(rows=4), max_rows_per_trigger=2).verdict == "passed"


@pytest.mark.soak
def test_a_source_without_ends_needs_no_option(spark):
    assert check_on_spark(spark, EndlessLetters()).verdict == "passed"


@pytest.fixture
def only(monkeypatch):
    """Leave out all checks but one."""
    return lambda rule: monkeypatch.setattr(
        on_spark, "_CHECKS", [one for one in on_spark._CHECKS if f"{one.__doc__}".startswith(f"{rule}:")]
    )


def failed(spark, source):
    with pytest.raises(ConformanceError) as caught:
        check_on_spark(spark, source)
    return caught.value


def test_spk1_other_rows_in_a_worker_are_caught(spark, only):
    only("SPK-1")
    error = failed(spark, OtherRowsInAWorker(driver=os.getpid()))
    assert error.report.rules("failed") == {"SPK-1"}
    assert "the first action of a batch read: row 0 is" in str(error)


def test_spk2_other_rows_in_a_replay_are_caught(spark, only, tmp_path):
    only("SPK-2")
    error = failed(spark, OtherRowsInAReplay(counter=str(tmp_path / "reads")))
    assert error.report.rules("failed") == {"SPK-2"}
    assert "was replayed after a crash" in str(error)


def test_spk3_a_setting_that_is_no_option_is_caught(spark):
    source = IgnoresItsOption()
    object.__setattr__(source, "hidden", 2)
    assert failed(spark, source).report.rules("failed") == {"SPK-3"}


def test_spk4_a_secret_that_leaves_the_source_is_caught(spark):
    error = failed(spark, PutsItsSecretIntoIds())
    assert error.report.rules("failed") == {"SPK-4"}
    assert "the secret of the option 'token' is in the progress of the query" in str(error)
    assert "a-secret-token" not in str(error)
    assert "replay: check_on_spark(spark, source)" in str(error)


def test_an_error_of_the_connector_is_told(spark, only):
    only("SPK-1")

    class FailsInAWorker(OtherRowsInAWorker):
        def read(self, split):
            if os.getpid() != self.driver:
                raise KeyError("only here")
            yield from super().read(split)

    error = failed(spark, FailsInAWorker(driver=os.getpid()))
    assert error.report.failed[0].why.startswith("FatalError: read() failed with KeyError: 'only here'")


def test_a_failure_of_spark_itself_is_not_held_against_the_source(monkeypatch, spark):
    """A loaded machine may start a Python worker too late, for example."""

    def fail(reads):
        """SPK-1: a check."""
        raise SparkRuntimeException("Python worker failed to connect back.")

    monkeypatch.setattr(on_spark, "_CHECKS", (fail,))
    with pytest.warns(NotProvenWarning, match="Spark failed outside of the source"):
        report = check_on_spark(spark, Letters(rows=1))
    assert report.verdict == "not proven"
    assert "Spark failed outside of the source: Python worker failed" in report.headline


def test_a_session_of_connect_is_refused_by_name():
    with pytest.raises(ConfigurationError, match="not one of Spark Connect"):
        check_on_spark(object(), Letters())


@pytest.mark.soak
def test_a_source_without_rows_is_not_proven(spark):
    """It hid a source that gives its rows only once."""
    with pytest.warns(NotProvenWarning, match="has no rows"):
        report = check_on_spark(spark, Letters(rows=0))
    assert report.verdict == "not proven"
