# SPDX-License-Identifier: Apache-2.0
"""Errors keep what they know through pickling and through the text of an engine's exception."""

from __future__ import annotations

import pickle
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay import errors
from forebay.errors import ContractError, DataError, FatalError, ForebayError, RetriableError, unwrap
from forebay.options import Secret

labels = st.none() | st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=20
)


@given(st.sampled_from(list(errors._BY_NAME.values())), st.text("abc xyz.,:'\"é→", min_size=1), labels, labels, labels)
def test_the_text_of_a_traceback_gives_the_error_back(
    cls: type[ForebayError], message: str, split: str | None, position: str | None, advice: str | None
) -> None:
    message = message.strip() or "m"
    error = cls(message, split=split, position=position, advice=advice)
    text = "".join(traceback.format_exception_only(error))
    found = unwrap(RuntimeError(f"org.apache.spark.SparkException: boom\n{text}\tat org.apache.spark.X(Y.scala:1)\n"))
    assert type(found) is cls
    assert found.message == message
    assert (found.split, found.position, found.advice) == (split, position, advice)


LINES = [
    "server said:",
    "",
    "at line 3",
    "\tat org.foo.Bar(Bar.scala:1)",
    "    \tat org.foo",
    "  Traceback (most recent call last):",
    "Driver stacktrace:",
    "    raise ValueError(7)",
    "  source: other",
    "  next step: wait",
    "forebay.errors.RetriableError: throttled",
]


@given(st.lists(st.sampled_from(LINES), min_size=1, max_size=6), labels, labels)
def test_a_message_of_many_lines_comes_back_whatever_they_look_like(
    lines: list[str], source: str | None, advice: str | None
) -> None:
    error = FatalError("\n".join(["read() failed with X: forebay.errors.DataError: y", *lines, "end"]))
    error.with_context(source=source, advice=advice)
    text = "".join(traceback.format_exception_only(error))
    found = unwrap(RuntimeError(f"boom: {text}\tat org.apache.spark.X(Y.scala:1)\n\nDriver stacktrace:\n"))
    assert found is not None
    assert (type(found), found.message) == (FatalError, error.message)
    assert (found.source, found.advice) == (source, advice)


def test_a_message_of_plain_lines_is_printed_as_it_is() -> None:
    assert str(FatalError("one\n  two\nthree", source="s")) == "one\n  two\nthree\n  source: s"


def test_a_secret_of_many_lines_is_hidden_also_in_lines_that_are_moved() -> None:
    key = Secret("-----BEGIN\n\n    abcdefgh\nat 1234")
    for error in (FatalError(f"no\n{key.reveal()}"), FatalError("no", position=key.reveal())):
        assert "***" in str(error) and "abcdefgh" not in str(error)


def test_pickling_keeps_everything() -> None:
    error = DataError("bad", source="s", split="a", position=7, option="o", rule="R-1", advice="do")
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), str(back)) == (DataError, str(error))
    assert str(error).splitlines()[-1] == "  next step: do"


def test_unwrap_looks_at_causes_and_says_none_where_there_is_nothing() -> None:
    inner = RetriableError("throttled")
    outer = ValueError("outer")
    outer.__cause__ = inner
    assert unwrap(outer) is inner
    assert unwrap(ValueError("nothing of ours")) is None


def test_the_outermost_error_of_a_text_wins() -> None:
    """A traceback prints the outermost error last."""
    text = "forebay.errors.DataError: first\n  split: a\n\nThe above …\nforebay.errors.FatalError: second\n  split: b\n"
    found = unwrap(RuntimeError(text))
    assert isinstance(found, FatalError)
    assert (found.message, found.split) == ("second", "b")


def test_what_a_plan_would_raise_is_no_error_that_was_raised() -> None:
    """`from_delta_cdf` and `apply_changes` put errors into plans, and Spark shows the plan of a query that failed."""
    plan = (
        "Project [raise_error(USER_RAISED_EXCEPTION, map(errorMessage, concat(forebay.errors.DataError: , unknown, k#1"
    )
    text = (
        "[STREAM_FAILED] Query a terminated with exception: forebay.errors.DataError: bad value\n  next step: mend it\n"
    )
    found = unwrap(RuntimeError(f"{text}=== Streaming Query ===\nLogical Plan:\n{plan}\nforebay.errors.FatalError: x"))
    assert isinstance(found, DataError)
    assert (found.message, found.advice) == ("bad value", "mend it")
    assert unwrap(RuntimeError(f"[UNSUPPORTED_FEATURE] interval;\n'{plan}")) is None


def test_places_are_filled_in_once() -> None:
    error = ContractError("x", split="inner").with_context(split="outer", source="s")
    assert (error.split, error.source) == ("inner", "s")
    with pytest.raises(TypeError, match="no label"):
        error.with_context(nonsense="x")
