# SPDX-License-Identifier: Apache-2.0
"""Reads splits in the planner up to their first record, if only reading shows whether they have one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pyarrow as pa

from forebay.framework.microbatch.tasks.open_read import FutureWaiter, OpenRead
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import Runtime
from forebay.framework.source import Source
from forebay.framework.split import Split


class RecordProbe:
    """Reads splits up to their first record, or until they have caught up. Called on the planning thread.

    Fetcher threads read, so reading a slow split goes on between two calls of `poll`.

    Raises:
        ForebayError: The source cannot create its reader.
    """

    def __init__(self, source: Source, splits: Sequence[Split], options: HostOptions, runtime: Runtime) -> None:
        self.silent: set[str] = {split.id for split in splits}
        """Ids of the splits that have not answered."""
        self.first: dict[str, pa.RecordBatch] = {}
        """The first record of each split that has one."""
        self._something: set[str] = set()
        self._nothing: set[str] = set()
        self._clock = runtime.clock
        self._waiter = FutureWaiter(runtime)
        self._read = OpenRead(source, splits, dataclasses.replace(options, max_rows_per_batch=1), runtime)

    def answers(self) -> tuple[set[str], set[str]]:
        """Return the ids of the splits that turned out to have a record, and of those that turned out to have none.

        Only answers since the previous call are returned.
        """
        answers = self._something, self._nothing
        self._something, self._nothing = set(), set()
        return answers

    def poll(self, patience: float = 0.0, grace: float = 0.0) -> None:
        """Wait for records of the splits; stop reading when each split has a record or has caught up.

        Args:
            patience: Maximum seconds to wait for all splits.
            grace: Maximum seconds to wait for the other splits once one has a record.

        Raises:
            ForebayError: The source failed or broke a rule; the probe is closed.
        """
        until = self._clock.monotonic() + patience
        try:
            while self.silent:
                delivered = self._read.poll()
                if delivered is not None and delivered.split_id in self.silent:
                    until = min(until, self._clock.monotonic() + grace)
                    self.silent.discard(delivered.split_id)
                    self._something.add(delivered.split_id)
                    self.first[delivered.split_id] = delivered.batch
                    self._read.pause(delivered.split_id)  # so that the others are read
                caught_up = (self._read.caught_up | self._read.finished) & self.silent
                self.silent -= caught_up
                self._nothing |= caught_up
                available, left = self._read.available(), until - self._clock.monotonic()
                if not available.done() and self.silent:
                    if left <= 0:
                        return
                    self._waiter.wait([available], left)
        except BaseException as error:
            self._read.close(error)
            raise
        self.close()

    def close(self) -> None:
        """Stop reading."""
        self._read.close()
