# SPDX-License-Identifier: Apache-2.0
"""Errors on their way into Spark: Spark keeps the text alone, so the text must say everything.

`forebay.errors.unwrap` reads the typed error back from what Spark raises.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import indent

from forebay.errors import CAUSED_BY, INDENT, ForebayError
from forebay.framework.runtime.connector_errors import explained
from forebay.options import redact

_FRAMES = 6
"""Calls shown of where a connector's own error was raised: the innermost ones."""


@contextmanager
def as_spark_error(source: str, doing: str) -> Iterator[None]:
    """Let every error leave for Spark as a `ForebayError` whose text also shows where its cause was raised.

    Put around everything that Spark calls, in the processes that Spark starts.

    Args:
        source: The format name.
        doing: The call, as the author of the connector knows it: `schema()`.

    Raises:
        ForebayError: What was raised inside, or a `FatalError` that wraps it.
    """
    try:
        with explained(source, doing):
            yield
    except ForebayError as found:
        error = _plain(found)
        cause = found.__cause__
        if cause is not None and not isinstance(cause, ForebayError):
            # Spark cuts the chain of causes off, and with it the only lines that the author of a connector knows.
            shown = redact("".join(traceback.format_exception(cause, limit=-_FRAMES)))  # also lines of source code
            error.add_note(f"{CAUSED_BY}\n" + indent(shown.rstrip(), INDENT))
        if error is found:
            raise
        raise error from found


def _plain(error: ForebayError) -> ForebayError:
    """Return an error of one of our own classes: a connector's subclass could not be read back from the text."""
    ours = next(cls for cls in type(error).__mro__ if cls.__module__ == ForebayError.__module__)
    if type(error) is ours:
        return error
    assert issubclass(ours, ForebayError)  # noqa: S101 - the first of our classes that an error of ours has
    labels = {name: getattr(error, name) for name in ("source", "split", "position", "option", "rule", "advice")}
    plain = ours(error.message, **labels)
    for note in getattr(error, "__notes__", ()):
        plain.add_note(note)
    return plain
