# SPDX-License-Identifier: Apache-2.0
"""Failures of readers: after which errors, and how often, a reader is replaced; the error that ends the run."""

from __future__ import annotations

import random
from collections.abc import Collection

from forebay.errors import FatalError, ForebayError, RetriableError
from forebay.framework.inprocess.delivery_log import DeliveryLog
from forebay.framework.runtime.connector_errors import connector_error, is_programming_error
from forebay.framework.runtime.host_options import HostOptions
from forebay.retry import RetryPolicy

MAX_RESTARTS = 3
"""Maximum consecutive replacements of a reader without a delivered record batch of the split."""


class ReaderFailures:
    """Counts consecutive failures of each split, and of each reader that failed without having a split.

    With `restarts` False, no reader is replaced.
    """

    def __init__(self, source: str, options: HostOptions, deliveries: DeliveryLog, *, restarts: bool) -> None:
        self.source = source
        self.options = options
        self._deliveries = deliveries
        self._restarts = restarts
        self._in_a_row: dict[str | int, int] = {}

    def progressed(self, subtask: int, split_id: str) -> None:
        """Record that a reader delivered a batch of a split, or finished the split.

        The failure counts of the reader and of the split start from 0 again.
        """
        self._in_a_row.pop(split_id, None)
        self._in_a_row.pop(subtask, None)

    def restart_pause(self, subtask: int, error: BaseException, chance: random.Random) -> float:
        """Count a failure of a reader; return the seconds until the reader may be replaced.

        `chance` makes the pause random, see `RetryPolicy`.

        Raises:
            BaseException: The reader must not be replaced. The error is `error`, with source, split and position.
        """
        held = self._deliveries.held_by(subtask)
        times = self._count(subtask, held, error)
        if self._restarts and may_restart(error, times, self.options.retries):
            return RetryPolicy.of(self.options).pause(times, chance, error)
        raise self._surfaced(subtask, held, error, times)

    def _count(self, subtask: int, held: Collection[str], error: BaseException) -> int:
        """Count a failure for the split that the error names, else for all splits of the reader, else for the reader.

        Returns:
            The highest of the counts that were increased.
        """
        named = getattr(error, "split", None)
        blamed: Collection[str | int] = [named] if named is not None and named in held else held or [subtask]
        for each in blamed:
            self._in_a_row[each] = self._in_a_row.get(each, 0) + 1
        return max(self._in_a_row[each] for each in blamed)

    def _surfaced(self, subtask: int, held: list[str], error: BaseException, times: int) -> BaseException:
        if isinstance(error, Exception):
            named = getattr(error, "split", None)
            split = named if named is not None else held[0] if len(held) == 1 else None
            position = None if split is None else self._deliveries.position(split)
            doing = f"reader {subtask}"
            error = connector_error(error, source=self.source, doing=doing, split=split, position=position)
        if times > MAX_RESTARTS:
            error.add_note(f"reader {subtask} failed again after it was replaced {MAX_RESTARTS} times in a row")
        return error


def may_pass(error: BaseException) -> bool:
    """Whether a new reader may succeed after this error.

    True for a `RetriableError` and for exceptions of client libraries, also if a `FatalError` wraps them. False for all
    other errors of forebay (options, data, contract, loss), and for mistakes in the connector's code.
    """
    if isinstance(error, FatalError) and error.__cause__ is not None:
        return may_pass(error.__cause__)  # the framework wrapped an exception of the connector
    if isinstance(error, ForebayError):
        return isinstance(error, RetriableError)
    return isinstance(error, Exception) and not is_programming_error(error)


def may_restart(error: BaseException, times: int, retries: int | None) -> bool:
    """Whether a reader is replaced after it has failed `times` times in a row, now with `error`.

    Each failure with a `RetriableError` counts as the `1 + retries` tries of its fetcher, and up to four tries are made
    in total, as for a Spark task. If `retries` is None, the fetcher has retried as long as `retryTimeout` allows.
    """
    if isinstance(error, RetriableError) and retries is None:
        return False
    rounds = (times + 1) * (1 + (retries or 0)) if isinstance(error, RetriableError) else times + 1
    return rounds <= 1 + MAX_RESTARTS and may_pass(error)
