# SPDX-License-Identifier: Apache-2.0
"""Converts errors for Spark, which keeps only their text; `forebay.errors.unwrap` parses it."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import indent

from forebay.errors import CAUSED_BY, INDENT, ForebayError
from forebay.framework.runtime.connector_errors import wrap_errors
from forebay.options import redact

_FRAMES = 6
"""Maximum number of innermost frames in the text of a connector's error."""


@contextmanager
def as_spark_error(source: str, doing: str) -> Iterator[None]:
    """Convert every error in a `with` block to a `ForebayError` whose text contains the traceback of its cause.

    All methods that Spark calls in its own processes use this context manager. `doing` is the failed action, for the
    error text.

    Raises:
        ForebayError: The error raised inside, or a `FatalError` that wraps it.
    """
    try:
        with wrap_errors(source, doing):
            yield
    except ForebayError as original:
        error = _plain(original)
        cause = original.__cause__
        if cause is not None and not isinstance(cause, ForebayError):
            # Spark drops the chain of causes, and with it the lines in the connector.
            shown = redact(
                "".join(traceback.format_exception(cause, limit=-_FRAMES))
            )  # it contains lines of source code
            error.add_note(f"{CAUSED_BY}\n" + indent(shown.rstrip(), INDENT))
        if error is original:
            raise
        raise error from original


def _plain(error: ForebayError) -> ForebayError:
    """Convert an error of a connector's own class to the base class in forebay.errors, which `unwrap` can parse."""
    ours = next(cls for cls in type(error).__mro__ if cls.__module__ == ForebayError.__module__)
    if type(error) is ours:
        return error
    assert issubclass(ours, ForebayError)  # noqa: S101 - for the type checker
    labels = {name: getattr(error, name) for name in ("source", "split", "position", "option", "rule", "advice")}
    plain = ours(error.message, **labels)
    for note in getattr(error, "__notes__", ()):
        plain.add_note(note)
    return plain
