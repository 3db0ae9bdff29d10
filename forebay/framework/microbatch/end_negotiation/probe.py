# SPDX-License-Identifier: Apache-2.0
"""A look at whether there is anything new in splits that cannot say it: read until the first record, and leave it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from forebay.framework.host_options import HostOptions
from forebay.framework.microbatch.tasks.open_read import Bell, OpenRead
from forebay.framework.runtime.runtime import Runtime
from forebay.framework.source import Source
from forebay.framework.split import Split


class RecordProbe:
    """Reads splits up to their first record, or until they are caught up, on threads of its own.

    A planner's: its methods are called on the planning thread. A split that gives no answer for long goes on being
    asked while the planner does other things.

    Args:
        source: What is read.
        splits: From where.
        options: Bounds and time-outs.
        runtime: Threads and time.

    Raises:
        ForebayError: The source cannot make its reader.
    """

    def __init__(self, source: Source, splits: Sequence[Split], options: HostOptions, runtime: Runtime) -> None:
        self.silent: set[str] = {split.id for split in splits}
        """The ids of the splits that have not answered yet."""
        self._something: set[str] = set()
        self._nothing: set[str] = set()
        self._clock = runtime.clock
        self._bell = Bell(runtime)
        self._read = OpenRead(source, splits, dataclasses.replace(options, max_rows_per_batch=1), runtime)

    def answers(self) -> tuple[set[str], set[str]]:
        """Return the ids of the splits that have a record, and of those that are caught up; each is told once."""
        told = self._something, self._nothing
        self._something, self._nothing = set(), set()
        return told

    def look(self, patience: float = 0.0, grace: float = 0.0) -> None:
        """Take in the answers that have come; close once there are all.

        Args:
            patience: Seconds to wait for all answers.
            grace: Seconds to wait for the others once a split has something.

        Raises:
            ForebayError: The source failed or broke a rule; then it is closed.
        """
        until = self._clock.monotonic() + patience
        try:
            while self.silent:
                delivered = self._read.poll()
                if delivered is not None and delivered.split_id in self.silent:
                    until = min(until, self._clock.monotonic() + grace)
                    self.silent.discard(delivered.split_id)
                    self._something.add(delivered.split_id)
                    self._read.pause(delivered.split_id)  # its turn goes to another one
                caught_up = (self._read.caught_up | self._read.finished) & self.silent
                self.silent -= caught_up
                self._nothing |= caught_up
                available, left = self._read.available(), until - self._clock.monotonic()
                if not available.done() and self.silent:
                    if left <= 0:
                        return
                    self._bell.wait([available], left)
        except BaseException as error:
            self._read.close(error)
            raise
        self.close()

    def close(self) -> None:
        """Stop asking.

        Raises:
            ForebayError: A reader did not end.
        """
        self._read.close()
