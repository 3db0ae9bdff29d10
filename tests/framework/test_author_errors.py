# SPDX-License-Identifier: Apache-2.0
"""Common mistakes of authors: the error names the call, the line and the next step, and is not retried."""

from __future__ import annotations

import inspect
import json
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import forebay
from forebay.errors import ConfigurationError, ContractError, FatalError, RemoteTraceback, RetriableError, unwrap
from forebay.framework.inprocess.reader import may_pass
from forebay.framework.split import Split
from forebay.framework.tasks.assign_tasks import plan_bounded
from forebay.options import Secret
from forebay.spark.errors import as_spark_error

N = pa.schema({"n": pa.int64()})
READS: list[str] = []


class Small(forebay.SimpleSource):
    """A source for mistakes."""

    def schema(self) -> pa.Schema:
        return N

    def read(self, split: Split) -> Any:
        READS.append(split.id)
        yield {"n": 1}


AT_ONCE = forebay.HostOptions(retry_first_pause="0s")


def error_of(source: forebay.Source) -> forebay.ForebayError:
    READS.clear()
    with pytest.raises(forebay.ForebayError) as caught:
        forebay.run(source, options=AT_ONCE).to_table()
    return caught.value


def line_of(function: Callable[..., object], text: str) -> str:
    lines, start = inspect.getsourcelines(function)
    number = next(number for number, line in enumerate(lines) if text in line)
    return f"{Path(__file__)}:{start + number} in {function.__name__}()"


def test_an_error_in_latest_names_latest() -> None:
    class Late(Small):
        bounded = False

        def latest(self, split: Split) -> int:
            raise OSError("no route")

    class Throttled(Late):
        def latest(self, split: Split) -> int:
            raise RetriableError("slow down")

    for source in (Late(), Throttled()):
        with pytest.raises(forebay.ForebayError) as caught, forebay.run(source, options=QUICK) as run:
            next(run)
        error = caught.value
        assert error.split == "all"
        assert "read()" not in error.message
    no_route = pytest.raises(FatalError, match=r"^latest\(\) failed with OSError: no route")
    with no_route, forebay.run(Late(), options=AT_ONCE) as run:
        next(run)


QUICK = forebay.HostOptions(retries=0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "returned None, which is not a list"),
        (7, "returned 7, which is not a list"),
        ("ab", "returned the text 'ab'"),
    ],
)
def test_splits_that_are_not_a_list_are_named(given: object, said: str) -> None:
    class Wrong(Small):
        def splits(self) -> Any:
            return given

    for action in (lambda: forebay.run(Wrong()).to_table(), lambda: plan_bounded(Wrong(), forebay.HostOptions())):
        with pytest.raises(ContractError, match=said) as caught:
            action()
        assert (caught.value.source, caught.value.rule) == ("wrong", "SPL-1")
        assert "return a list of ids" in (caught.value.advice or "")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "returned None"),
        ({"n": 1}, "returned a dict"),
        (pa.record_batch({"n": [1]}), "returned a RecordBatch"),
        (pa.table({"n": [1]}), "returned a Table"),
        (forebay.Batch([{"n": 1}], 1), "returned a Batch"),
        ("n", "returned a str"),
        (5, "returned a int"),
    ],
)
def test_a_read_without_an_iterable_is_advised_to_yield(given: object, said: str) -> None:
    class Returning(Small):
        def read(self, split: Split) -> Any:
            return given

    error = error_of(Returning())
    assert isinstance(error, ContractError)
    assert said in error.message
    assert (error.source, error.split) == ("returning", "all")
    assert "`yield`" in (error.advice or "")


@pytest.mark.parametrize("given", [[], [{"n": 1}], [pa.record_batch({"n": [1]})], iter([(1,)])])
def test_a_read_may_return_a_list_or_an_iterator(given: Any) -> None:
    class Returning(Small):
        def read(self, split: Split) -> Any:
            return given

    rows = len(given) if isinstance(given, list) else 1
    assert forebay.run(Returning()).to_table().num_rows == rows


NOTHING: dict[str, object] = {}


class Missing(Small):
    def read(self, split: Split) -> Iterator[dict[str, object]]:
        READS.append(split.id)
        yield {"n": NOTHING["id"]}


class Parsing(Small):
    def read(self, split: Split) -> Iterator[dict[str, object]]:
        READS.append(split.id)
        yield {"n": json.loads(5)}  # type: ignore[arg-type]  # fails in json's own code, with a TypeError


class Attribute(Small):
    def read(self, split: Split) -> Iterator[dict[str, object]]:
        READS.append(split.id)
        yield {"n": split.nothing}  # type: ignore[attr-defined]  # that is the point


class Undefined(Small):
    def read(self, split: Split) -> Iterator[dict[str, object]]:
        READS.append(split.id)
        yield {"n": undefined}  # type: ignore[name-defined]  # noqa: F821 - that is the point


class Assigning(Small):
    def read(self, split: Split) -> Iterator[dict[str, object]]:
        READS.append(split.id)
        self.at = 1
        yield {"n": 1}


@pytest.mark.parametrize(
    ("source", "kind", "line"),
    [
        (Missing(), KeyError, 'NOTHING["id"]'),
        (Parsing(), TypeError, "json.loads(5)"),
        (Attribute(), AttributeError, "split.nothing"),
        (Undefined(), NameError, "undefined"),
        (Assigning(), AttributeError, "self.at = 1"),
    ],
)
def test_a_mistake_in_the_code_names_file_and_line_and_is_not_retried(
    source: forebay.SimpleSource, kind: type[Exception], line: str
) -> None:
    error = error_of(source)
    assert isinstance(error, FatalError)
    assert isinstance(error.__cause__, kind)
    assert line_of(type(source).read, line) in (error.advice or "")
    assert READS == ["all"]


def test_what_clients_raise_is_tried_with_a_new_reader_as_before() -> None:
    class Network(Small):
        def read(self, split: Split) -> Any:
            READS.append(split.id)
            yield from ()
            raise OSError("reset")

    error = error_of(Network())
    assert READS == ["all"] * 4
    assert line_of(Network.read, "raise OSError") in (error.advice or "")
    assert "RetriableError" in (error.advice or "")


def test_a_mistake_whose_text_shows_a_secret_is_not_retried_either() -> None:
    token = Secret("s3cret-of-this-test")

    class Telling(Small):
        def read(self, split: Split) -> Any:
            READS.append(split.id)
            yield from ()
            raise KeyError(token.reveal())

    error = error_of(Telling())
    assert READS == ["all"]
    assert "s3cret" not in "".join(traceback.format_exception(error))
    assert not may_pass(error)


def test_state_on_self_gets_advice() -> None:
    error = error_of(Assigning())
    assert "keep no state on self" in (error.advice or "")
    assert "@forebay.cached" in (error.advice or "")

    class Checking(Small):
        url: str = ""

        def check(self) -> None:
            self.url = "x"  # type: ignore[misc]  # that is the point

    with pytest.raises(ContractError, match=r"check\(\) changes the source.*'url'") as caught:
        Checking()
    assert "a source is frozen" in (caught.value.advice or "")


class Plain(Small):
    url = "http://x"
    page_rows = 100
    limit: int = 5


MADE: Any = Plain


@pytest.mark.parametrize(
    ("make", "name", "advice"),
    [
        (lambda: MADE(url="y"), "url", "`url: str = …`"),
        (lambda: MADE(page_rows=5, limit=1), "page_rows", "`page_rows: int = …`"),
        (lambda: Plain.from_options({"URL": "y"}), "url", "`url: str = …`"),
        (lambda: Plain.from_options({"pagerows": "y"}), "page_rows", "`page_rows: int = …`"),
    ],
)
def test_an_attribute_without_annotation_is_advised_to_have_one(
    make: Callable[[], object], name: str, advice: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"'{name}' is an attribute of Plain without an annotation") as caught:
        make()
    assert f"annotate it in the class to make it an option: {advice}" in (caught.value.advice or "")


@pytest.mark.parametrize("name", ["bounded", "name", "read", "splits", "nothing", "split_class"])
def test_an_attribute_of_the_contract_needs_no_annotation(name: str) -> None:
    with pytest.raises(ConfigurationError, match="no such option"):
        Plain(**{name: 1})


def test_an_option_without_annotation_is_advised_to_have_one() -> None:
    with pytest.raises(ContractError, match="Bare: 'url' has no annotation") as caught:

        class Bare(Small):
            url = forebay.option(doc="where")

    assert "annotate it to make it an option: `url: str = option(…)`" in (caught.value.advice or "")


# ---- errors restored from an engine's text


def test_unwrap_gives_the_traceback_of_the_cause() -> None:
    with pytest.raises(FatalError) as caught, as_spark_error("orders", "read()"):
        list(Missing().read(Split("a")))
    text = "".join(traceback.format_exception(caught.value))
    found = unwrap(RuntimeError(f"An exception was thrown:\n{text}\n\tat org.apache.spark.X(Y.scala:1)\n"))
    assert isinstance(found, FatalError)
    assert found.message == "read() failed with KeyError: 'id'"
    assert line_of(Missing.read, 'NOTHING["id"]') in (found.advice or "")
    assert isinstance(found.__cause__, RemoteTraceback)
    shown = str(found.__cause__)
    assert shown.startswith("Traceback (most recent call last):\n")
    assert 'yield {"n": NOTHING["id"]}' in shown
    assert shown.endswith("KeyError: 'id'")
    assert "org.apache.spark" not in shown


def test_unwrap_gives_no_cause_where_there_was_none() -> None:
    with pytest.raises(RetriableError) as caught, as_spark_error("orders", "read()"):
        raise RetriableError("slow")
    found = unwrap(RuntimeError("".join(traceback.format_exception(caught.value))))
    assert isinstance(found, RetriableError)
    assert found.__cause__ is None


NOT_FOUND = (
    "org.apache.spark.SparkClassNotFoundException: [DATA_SOURCE_NOT_FOUND] Failed to find the data source: {}. Make "
    "sure the provider name is correct and the package is properly registered. SQLSTATE: 42K02\n\tat org.X(Y:1)"
)


@pytest.mark.parametrize(
    ("name", "said", "advice"),
    [
        ("forebay_filse", "did you mean 'forebay_files'?", "forebay.register(spark, ItsClass)"),
        ("forebay_files", "does not know the format 'forebay_files'", "forebay.register(spark) once"),
        ("com.acme.orders", "no source has the name 'com.acme.orders'", "forebay.register(spark, ItsClass)"),
    ],
)
def test_unwrap_explains_a_format_that_spark_does_not_find(name: str, said: str, advice: str) -> None:
    found = unwrap(RuntimeError(NOT_FOUND.format(name)))
    assert isinstance(found, ConfigurationError)
    assert said in found.message
    assert advice in (found.advice or "")


FAULT = 'Fatal Python error: Segmentation fault\n\nThread 0x1 (most recent call first):\n  File "x.py", line 3 in read'


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("SparkException: Python worker exited unexpectedly (crashed): \n\n\tat org.apache.spark.X(Y:1)\n", None),
        ("SparkException: Python worker exited unexpectedly (crashed). Consider setting 'x'.\n\tat org.X(Y:1)\n", None),
        (
            f"Job aborted: SparkException: Python worker exited unexpectedly (crashed): {FAULT}\n\n\tat org.X(Y:1)\n",
            FAULT,
        ),
    ],
)
def test_unwrap_explains_a_worker_that_died(text: str, cause: str | None) -> None:
    found = unwrap(RuntimeError(text))
    assert isinstance(found, FatalError)
    assert found.message.startswith("a Python worker process of Spark crashed")
    assert "memory" in (found.advice or "")
    assert (None if found.__cause__ is None else str(found.__cause__)) == cause
    assert cause is None or cause.split("\n")[0] in found.message


def test_unwrap_says_nothing_of_what_concerns_no_source() -> None:
    assert unwrap(RuntimeError("[TABLE_OR_VIEW_NOT_FOUND] The table `t` cannot be found.")) is None
