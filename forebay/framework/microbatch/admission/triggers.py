# SPDX-License-Identifier: Apache-2.0
"""The trigger modes of a streaming query: what each call of `StreamPlanner.latest` may read, and whether it waits."""

from __future__ import annotations

from collections.abc import Mapping

from forebay.framework.microbatch.admission.available_range import Backlog
from forebay.framework.microbatch.offsets.offset import To


class Trigger:
    """The trigger of a query that runs until it is stopped: limits apply, and a micro-batch may wait for more rows."""

    limited = True
    """Whether limits such as `maxRowsPerTrigger` apply."""
    waits = True
    """Whether a call waits for fresh answers, for `minRowsPerTrigger`, and for records in empty ranges."""
    target: Mapping[str, To] | None = None
    """The fixed ends of the run, by split id; None if ends are not fixed."""

    @property
    def fresh(self) -> bool:
        """Whether this call of `latest` must ask the source: it uses no cached answer, and raises if the source fails.

        A run that ends by itself needs this: else an outage would end it as if there were no data.
        """
        return False

    def begin(self, available: Backlog) -> None:
        """Record the splits that are available in this call of `latest`."""


class Once(Trigger):
    """The trigger of a query that runs one micro-batch of all available data, without limits."""

    limited = False
    waits = False
    fresh = True


class AvailableNow(Trigger):
    """The trigger of a series of micro-batches up to the ends that are found in its first call (S17)."""

    waits = False

    @property
    def fresh(self) -> bool:
        """Whether this is the first call of `latest`, in which the ends of the run are not fixed yet."""
        return self.target is None

    def begin(self, available: Backlog) -> None:
        """In the first call, fix the ends of the run: the present ends of the available splits."""
        if self.target is None:
            self.target = available.ends()
