# SPDX-License-Identifier: Apache-2.0
"""Which failures of a reader are worth a new one, how often, and how the last is told."""

from __future__ import annotations

from collections.abc import Collection

from forebay.errors import FatalError, ForebayError, RetriableError
from forebay.framework.runtime.connector_errors import connector_error, is_programming_error
from forebay.framework.split import Position

MAX_RESTARTS = 3
"""Replacements of a reader in a row, without a record batch of the split concerned in between."""


class Failures:
    """Counts the failures in a row of each split, and of each reader that failed without one."""

    def __init__(self) -> None:
        self._in_a_row: dict[str | int, int] = {}

    def progressed(self, subtask: int, split_id: str) -> None:
        """A reader delivered a record batch of a split, or its end."""
        self._in_a_row.pop(split_id, None)
        self._in_a_row.pop(subtask, None)

    def count(self, subtask: int, held: Collection[str], error: BaseException) -> int:
        """Count a failure; return how many in a row the worst of the splits concerned has.

        Concerned is the split that the error names, else all that the reader held, else the reader itself.
        """
        named = getattr(error, "split", None)
        blamed: Collection[str | int] = [named] if named is not None and named in held else held or [subtask]
        for each in blamed:
            self._in_a_row[each] = self._in_a_row.get(each, 0) + 1
        return max(self._in_a_row[each] for each in blamed)


def may_pass(error: BaseException) -> bool:
    """Whether another reader may fare better: after retriable trouble, and after what clients raise.

    Errors that a connector raises on purpose (options, data, contract, loss) are final, as are mistakes in its code.
    """
    if isinstance(error, FatalError) and error.__cause__ is not None:
        return may_pass(error.__cause__)  # the framework's wrapping of what a connector raised
    if isinstance(error, ForebayError):
        return isinstance(error, RetriableError)
    return isinstance(error, Exception) and not is_programming_error(error)


def may_restart(error: BaseException, times: int, retries: int) -> bool:
    """Whether a reader is replaced after so many failures in a row.

    A `RetriableError` comes here after its fetcher has tried it `1 + retries` times; those tries count, so that by
    default it is tried as often as in a task of Spark: four times, not four times four.

    Args:
        error: The last failure.
        times: Failures in a row, this one included.
        retries: The host's option.
    """
    rounds = (times + 1) * (1 + retries) if isinstance(error, RetriableError) else times + 1
    return rounds <= 1 + MAX_RESTARTS and may_pass(error)


def surfaced(
    error: BaseException, *, source: str, subtask: int, split: str | None, position: Position | None
) -> BaseException:
    """Return the error to raise: with source, split, position and advice in it; a foreign one wrapped."""
    if not isinstance(error, Exception):
        return error
    return connector_error(error, source=source, doing=f"reader {subtask}", split=split, position=position)
