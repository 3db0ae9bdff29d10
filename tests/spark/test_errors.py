# SPDX-License-Identifier: Apache-2.0
"""Failing connectors on real Spark: `unwrap` returns the typed error with source, split and next step."""

from __future__ import annotations

import os
import signal
import threading
import time
from urllib.parse import quote

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from forebay.errors import (
    ConfigurationError,
    ContractError,
    DataError,
    DataLossError,
    FatalError,
    ForebayError,
    RemoteTraceback,
    RetriableError,
    unwrap,
)
from forebay.framework.arrow.row_packer import Batch
from forebay.framework.inprocess import run
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.simple import SimpleSource
from forebay.framework.split import Split
from forebay.framework.tasks.assign_tasks import plan_bounded
from forebay.framework.tasks.read_task import ReadTask, run_task
from forebay.options import Secret, option
from forebay.spark.data_source import format_class
from forebay.spark.processes import dumps
from forebay.spark.register import read, register
from forebay.spark.session import PickledClass, Session

N = pa.schema({"n": pa.int64()})
PLACES = ("check", "schema", "splits", "latest", "first row", "midway")


def soaked(value):
    return pytest.param(*(value if isinstance(value, tuple) else [value]), marks=pytest.mark.soak)


def some(values, *chosen):
    """The chosen ones in `make test`, so that each place fails there; all in `make soak`."""
    return [value if value in chosen else soaked(value) for value in values]


class Failing(SimpleSource):
    """Raises in one place: an error of forebay's, or one of its own."""

    bounded = False
    place: str = ""
    own: bool = False

    def fail(self, place):
        if place == self.place:
            if self.own:
                raise LookupError(f"no such thing: {place} 🎈\nsecond line")
            raise DataLossError(f"gone: {place}", split="s1", position=7, advice="start again")

    def check(self):
        self.fail("check")

    def schema(self):
        self.fail("schema")
        return N

    def splits(self):
        self.fail("splits")
        return ["s1"]

    def latest(self, split):
        self.fail("latest")
        return 100

    def read(self, split):
        self.fail("first row")
        for n in range(split.position or 0, split.end or 0):
            if n == 50:
                self.fail("midway")
            yield Batch([{"n": n}], n + 1)


def failure(action) -> tuple[Exception, ForebayError]:
    """Run an action that must fail inside Spark; return the error of Spark and the unwrapped one."""
    with pytest.raises(Exception, match=r"forebay\.errors\.") as caught:
        action()
    assert type(caught.value).__module__.startswith("pyspark.")
    error = unwrap(caught.value)
    assert error is not None
    return caught.value, error


def load(spark, **options):
    register(spark, Failing)
    return spark.read.format("failing").options(**options).load().collect()


@pytest.mark.soak("latest")
@pytest.mark.parametrize("place", some(PLACES, "schema", "latest", "first row"))
def test_an_error_of_ours_comes_back_with_type_labels_and_advice(spark, place):
    raised, error = failure(lambda: load(spark, place=place))
    assert type(error) is DataLossError
    assert error.message == f"gone: {place}"
    assert (error.source, error.split, error.position, error.advice) == ("failing", "s1", "7", "start again")
    assert "start again" in str(raised)


@pytest.mark.parametrize("place", some(PLACES, "check", "splits", "midway"))
def test_a_connectors_own_error_keeps_its_type_and_message_and_says_where(spark, place):
    raised, error = failure(lambda: load(spark, place=place, own=True))
    assert type(error) is FatalError
    assert f"LookupError: no such thing: {place} 🎈" in error.message
    assert error.source == "failing"
    assert error.advice is not None
    assert "second line" in error.message
    assert "in fail" in str(raised), "the connector's own lines of the traceback are shown"
    if place in ("first row", "midway"):
        assert error.split == "s1"
    assert error.position == ("50" if place == "midway" else None)


def test_a_connectors_own_kind_of_error_of_ours_comes_back_as_the_one_it_extends(spark):
    class Throttled(DataLossError):
        """A kind that only the connector knows."""

    class Kinds(SimpleSource):
        def schema(self):
            return N

        def read(self, split):
            raise Throttled(
                "too old", split="a\nb\\n", position=("x", 1), advice="first line\nsecond line\n\n  source: no"
            )

    _, error = failure(lambda: read(spark, Kinds()).collect())
    assert type(error) is DataLossError
    assert (error.message, error.split, error.position) == ("too old", "a\nb\\n", "('x', 1)")
    assert error.advice == "first line\nsecond line\n\n  source: no"


def test_a_message_with_blank_lines_keeps_its_labels(spark):
    class Wordy(SimpleSource):
        def schema(self):
            raise ValueError("first\n\nlast")

        def read(self, split):
            return []

    _, error = failure(lambda: read(spark, Wordy()))
    assert error.message.endswith("first\n\nlast")
    assert error.source == "wordy"


def test_an_unknown_option_names_the_nearest_one(spark):
    _, error = failure(lambda: load(spark, plaze="check"))
    assert isinstance(error, ConfigurationError)
    assert "did you mean 'place'?" in error.message
    assert error.option == "plaze"


def test_an_unknown_option_of_the_host_names_the_nearest_one(spark):
    _, error = failure(lambda: load(spark, numPartition=3))
    assert "did you mean 'numPartitions'?" in error.message


def test_a_value_of_the_wrong_type_names_option_and_example(spark):
    _, error = failure(lambda: load(spark, own="perhaps"))
    assert isinstance(error, ConfigurationError)
    assert error.option == "own"


@pytest.mark.soak
def test_text_options_of_a_source_made_in_python_are_refused(spark):
    frame = read(spark, Failing())
    assert frame.count() == 100
    with pytest.raises(ConfigurationError, match="num_partition") as caught:
        read(spark, Failing(), num_partition=3)
    assert caught.value.source == "failing"


def test_a_retriable_error_is_retried_and_no_row_is_lost_or_doubled(spark, tmp_path):
    class Flaky(SimpleSource):
        path: str

        def schema(self):
            return N

        def read(self, split):
            for n in range(split.position or 0, 30):
                marker = tmp_path / str(n)
                if n % 10 == 5 and not marker.exists():
                    marker.touch()
                    raise RetriableError("busy")
                yield Batch([{"n": n}], n + 1)

    assert sorted(row.n for row in read(spark, Flaky(path=str(tmp_path))).collect()) == list(range(30))


class Odd(SimpleSource):
    """Breaks one rule of the contract, as `how` says."""

    how: str

    def schema(self):
        return {"n": "int"} if self.how == "schema" else N

    def splits(self):
        match self.how:
            case "repeated id":
                return ["a", "b", "a"]
            case "number as id":
                return [1]
            case "float position":
                return [Split("a", position=0.5)]  # type: ignore[arg-type]  # this is the mistake
            case "no list":
                return None
        return [Split("a", position=0, end=10)]

    def read(self, split):
        match self.how:
            case "text as number":
                yield {"n": "twelve"}
            case "number as row":
                yield 12
            case "unknown column":
                yield {"m": 12}
            case "no iterable":
                return None
            case "other batch":
                yield Batch(pa.record_batch({"n": ["x"]}), 1)
            case "backwards":
                yield Batch([{"n": 1}], 5)
                yield Batch([{"n": 2}], 3)
            case "stands still":
                yield Batch([{"n": 1}], 0)
            case "beyond the end":
                yield Batch([{"n": 1}], 11)
        return None


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("schema", ContractError),
        ("repeated id", ContractError),
        ("number as id", ContractError),
        ("float position", ContractError),
        ("no list", ForebayError),
        ("text as number", ForebayError),
        ("number as row", ContractError),
        ("unknown column", ForebayError),
        ("other batch", ForebayError),
        ("backwards", ContractError),
        ("stands still", ContractError),
        ("beyond the end", ContractError),
    ],
)
def test_a_broken_rule_is_an_error_that_names_source_and_next_step(how, kind):
    """By the calls that Spark makes, in this process; the next test is on Spark."""
    with pytest.raises(ForebayError) as caught:
        found = format_class(PickledClass("odd", dumps(Odd, "odd")), Session())({"how": how, "maxRowsPerBatch": "1"})
        reader = found.reader(found.schema())
        for part in reader.partitions():
            list(reader.read(cloudpickle.loads(cloudpickle.dumps(part))))
    is_told_with_source_and_next_step(caught.value, how, kind)


@pytest.mark.parametrize(("how", "kind"), [("repeated id", ContractError), ("backwards", ContractError)])
def test_a_broken_rule_comes_back_from_spark(spark, how, kind):
    _, error = failure(lambda: read(spark, Odd(how=how), max_rows_per_batch=1).collect())
    is_told_with_source_and_next_step(error, how, kind)


def is_told_with_source_and_next_step(error, how, kind):
    assert isinstance(error, kind)
    assert error.source == "odd"
    assert error.advice
    if how in ("text as number", "backwards", "beyond the end", "number as row"):
        assert error.split == "a"


def test_a_source_that_never_answers_while_planning_ends_in_an_error(spark):
    class Silent(SimpleSource):
        def schema(self):
            return N

        def splits(self):
            time.sleep(60)
            return ["a"]

        def read(self, split):
            return []

    _, error = failure(lambda: read(spark, Silent(), planning_timeout="2s").collect())
    assert isinstance(error, FatalError)
    assert "discover() did not return within 2 s" in error.message


def test_a_read_that_blocks_for_ever_can_be_cancelled(spark, tmp_path):
    class Blocks(SimpleSource):
        path: str

        def schema(self):
            return N

        def read(self, split):
            (tmp_path / "blocked").touch()
            threading.Event().wait()
            yield {"n": 1}

    frame = read(spark, Blocks(path=str(tmp_path)))
    context = spark.sparkContext
    raised: list[BaseException] = []

    def run() -> None:
        context.setJobGroup("blocked", "a read that blocks", interruptOnCancel=True)
        try:
            frame.collect()
        except Exception as error:  # noqa: BLE001 - what Spark makes of a cancelled job
            raised.append(error)

    from pyspark import InheritableThread

    thread = InheritableThread(target=run)
    thread.start()
    while not (tmp_path / "blocked").exists():
        time.sleep(0.05)
    context.cancelJobGroup("blocked")
    thread.join(60)
    assert not thread.is_alive()
    assert "cancelled" in str(raised[0])


def test_limit_over_a_read_that_blocks_afterwards_comes_back(spark):
    class FirstThenNothing(SimpleSource):
        def schema(self):
            return N

        def read(self, split):
            # Spark's worker sends what it has once 64 KiB are together, so there must be more than that.
            yield pa.record_batch({"n": range(100_000)})
            threading.Event().wait()

    frame = read(spark, FirstThenNothing(), close_timeout="200ms")
    assert len(frame.limit(3).collect()) == 3


def test_damaged_data_is_an_error_that_names_the_split(spark):
    class Narrow(SimpleSource):
        def schema(self):
            return pa.schema({"n": pa.int16()})

        def read(self, split):
            yield pa.record_batch({"n": [1 << 20]})

    _, error = failure(lambda: read(spark, Narrow()).collect())
    assert isinstance(error, (DataError, ContractError))
    assert (error.source, error.split) == ("narrow", "all")


TOKEN = "t0p-secret/42"


def refuse(secret):
    raise OSError(f"401 for https://h/?t={quote(secret, safe='')} with {secret!r}")


class Leaky(SimpleSource):
    """Its client writes the token into its errors."""

    place: str
    style: str = "foreign"
    token: Secret
    headers: dict[str, str] = option(default_factory=dict, prefix="headers.")

    def call(self, place):
        if place != self.place:
            return
        secret = self.headers["auth.token"] if self.style == "plain" else self.token.reveal()
        try:
            refuse(secret)
        except OSError as error:
            if self.style == "foreign":
                error.add_note(f"sent {secret}")
                raise
            if self.style == "plain":
                raise RetriableError(f"try again: {error}") from error
            raise LookupError("no such thing")  # noqa: B904 - its context shows the token

    def schema(self):
        self.call("schema")
        return N

    def splits(self):
        self.call("splits")
        return ["s1"]

    def read(self, split):
        self.call("read")
        yield {"n": 1}
        self.call("later")


LEAKS = [(style, place) for style in ("foreign", "plain", "context") for place in ("schema", "splits", "read", "later")]


@pytest.mark.soak("foreign-later")
@pytest.mark.parametrize(
    ("style", "place"),
    some(LEAKS, ("foreign", "schema"), ("context", "splits"), ("plain", "read"), ("foreign", "later")),
)
def test_no_secret_is_in_what_spark_prints_of_a_clients_error(spark, place, style):
    register(spark, Leaky)
    reader = spark.read.format("leaky").options(place=place, style=style, retries=0)
    reader = reader.options(
        **({"headers.auth.token": TOKEN, "token": "none"} if style == "plain" else {"token": TOKEN})
    )
    raised, error = failure(lambda: reader.load().collect())
    for text in (str(raised), str(error)):
        assert "p-secret" not in text
    assert ("no such thing" if style == "context" else "401 for https://h/?t=*** with '***'") in error.message
    assert "in call" in str(raised) or style == "plain", "the connector's own lines of the traceback are shown"


def test_no_secret_of_a_reference_is_in_what_spark_prints(spark, tmp_path):
    (tmp_path / "token").write_text(TOKEN)
    source = Leaky(place="read", token=Secret(f"file:{tmp_path / 'token'}"))
    raised, error = failure(lambda: read(spark, source, retries=0).collect())
    assert "p-secret" not in str(raised)
    assert "401 for" in error.message


def test_an_option_is_named_with_its_capitals_although_spark_lower_cases_it(spark):
    _, error = failure(lambda: load(spark, maxRowsPerBatch="many"))
    assert (type(error), error.option) == (ConfigurationError, "maxRowsPerBatch")
    assert error.message.startswith("'maxRowsPerBatch' takes a whole number")


AT_ONCE = HostOptions(retry_first_pause="0s", retries=3)


def test_a_retriable_error_is_tried_four_times_as_in_process(tmp_path):
    class Trying(SimpleSource):
        log: str

        def schema(self):
            return N

        def read(self, split):
            with open(self.log, "a") as log:
                log.write("x")
            raise RetriableError("not now")

    for host in ("spark", "process"):
        source = Trying(log=str(tmp_path / host))
        with pytest.raises(RetriableError):
            if host == "spark":
                (task,) = plan_bounded(source, AT_ONCE)
                list(run_task(ReadTask(source, task, AT_ONCE)))
            else:
                run(source, options=AT_ONCE).to_table()
        assert (tmp_path / host).read_text() == "xxxx"


class Ending(SimpleSource):
    """A mistake in the code, or the end of the worker."""

    how: str

    def schema(self):
        return N

    def read(self, split):
        if self.how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        yield {"n": {"no": 1}["id"]}


def test_a_mistake_in_the_code_comes_back_with_file_line_and_traceback(spark):
    _, error = failure(lambda: read(spark, Ending(how="wrong")).collect())
    assert (type(error), error.message) == (FatalError, "read() failed with KeyError: 'id'")
    assert f"{__file__}:" in error.advice and " in read()" in error.advice
    assert isinstance(error.__cause__, RemoteTraceback)
    assert str(error.__cause__).startswith("Traceback (most recent call last)")
    assert str(error.__cause__).endswith("KeyError: 'id'")


@pytest.mark.parametrize("stream", [False, True])
def test_a_mistyped_format_names_the_nearest_one(spark, stream):
    register(spark, Ending)
    with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND") as caught:
        (spark.readStream if stream else spark.read).format("endign").load()
    error = unwrap(caught.value)
    assert isinstance(error, ConfigurationError)
    assert "did you mean 'ending'?" in error.message


def test_a_dead_worker_is_a_fatal_error(spark):
    with pytest.raises(Exception, match="exited unexpectedly") as caught:
        read(spark, Ending(how="killed")).collect()
    error = unwrap(caught.value)
    assert isinstance(error, FatalError)
    assert error.message == "a Python worker process of Spark crashed"
    assert "memory" in error.advice
