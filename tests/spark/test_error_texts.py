# SPDX-License-Identifier: Apache-2.0
"""`unwrap` parses the text of an error for Spark; without Spark."""

from __future__ import annotations

import contextlib
import traceback

import pytest

from forebay.errors import FatalError, ForebayError, RetriableError, unwrap
from forebay.spark.errors import as_spark_error


def raised(error):
    """The error as one that was raised: with frames."""
    with contextlib.suppress(type(error)):
        raise error
    return error


def printed(error, cause):
    """The text that Spark keeps of an error, raised from another one, in a connector."""
    with pytest.raises(ForebayError) as caught, as_spark_error("orders", "read()"):
        raise error from raised(cause)
    return "".join(traceback.format_exception(caught.value))


def test_the_error_that_was_raised_comes_back_and_not_one_it_was_raised_from():
    text = printed(ValueError("no more tries"), RetriableError("throttled", source="other", advice="wait"))
    found = unwrap(RuntimeError(text))
    assert type(found) is FatalError
    assert found.message == "read() failed with ValueError: no more tries"
    assert found.source == "orders" and "see the cause" in (found.advice or "")
    assert "caused by:" in text and text.count("throttled") > 1, "the cause is still shown"


def test_of_ours_from_a_foreign_one_from_ours_the_outermost_comes_back():
    low = KeyError("page")
    low.__cause__ = RetriableError("throttled", advice="wait")
    found = unwrap(RuntimeError(printed(RetriableError("no page", split="a"), low)))
    assert type(found) is RetriableError
    assert (found.message, found.source, found.split, found.advice) == ("no page", "orders", "a", None)
