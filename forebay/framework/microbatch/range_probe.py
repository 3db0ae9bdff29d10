# SPDX-License-Identifier: Apache-2.0
"""Keeps a stream from planning micro-batches without a record, where `latest` moves on without records."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from typing import Final

from forebay.errors import ForebayError, RetriableError
from forebay.framework.host_options import HostOptions
from forebay.framework.microbatch.end_negotiation.probe import RecordProbe
from forebay.framework.microbatch.offsets.offset import Agreed, Planned, Whole
from forebay.framework.microbatch.split_providers.refresh_policy import RefreshPolicy
from forebay.framework.microbatch.split_providers.split_provider import SplitProvider
from forebay.framework.runtime.runtime import Runtime
from forebay.framework.source import Source
from forebay.options import Duration

_log = logging.getLogger(__name__)

_PATIENCE: Final = 10.0
"""Seconds that planning waits for a first record; after that the micro-batch is planned unprobed."""

_CLOSE_TIMEOUT: Final = 1.0
"""Most seconds that planning waits for the reader of an unanswered probe to end."""

_SHARE: Final = 0.2
"""Most of the time that probes take: an empty micro-batch, which reads the same, takes longer than a probe."""

_LONGEST_HOLD: Final = 600.0
"""Seconds after which a range is planned although it is empty, so that positions stay within a source's retention."""


class RangeProbe:
    """Reads the first record before the ends that `latest` gave, and says whether there is one.

    An end such as "now less a settling time" moves on without records. Tasks cannot tell the planner that they read
    nothing, so the planner reads a first record itself, before it plans. Probes take at most a fifth of the time. A
    probe that fails or stays unanswered holds nothing back. Lives in the planner; called on its thread.

    Args:
        source: What is read.
        options: `refresh_interval`, bounds and time-outs.
        supply: Its enumerator says whether probes are needed, and how long an answer is trusted at least.
        runtime: Threads and time.
    """

    def __init__(self, source: Source, options: HostOptions, supply: SplitProvider, runtime: Runtime) -> None:
        enumerator = supply.enumerator
        self._source = source
        close_timeout = min(options.close_timeout, Duration(_CLOSE_TIMEOUT))
        self._options = dataclasses.replace(options, close_timeout=close_timeout)
        self._runtime = runtime
        self._clock = runtime.clock
        self._needed = (
            enumerator is not None and not enumerator.exact_ends and not source.bounded and not supply.in_order
        )
        interval = options.refresh_interval
        seconds = None if interval is None else interval.total_seconds()
        floor = 0.0 if enumerator is None else enumerator.refresh_floor
        self._freshness = RefreshPolicy(runtime, seconds, floor, _SHARE)
        self._has_record = True
        self._trusted_until = float("-inf")
        self._planned_at = runtime.clock.monotonic()
        self._holding = False

    def finds_nothing(self, there: Sequence[Planned]) -> bool:
        """Whether the splits are known to hold no record up to their ends, so that no micro-batch is worth planning.

        May block, for a first record.

        Args:
            there: The splits with something to read, each planned as far as it goes.
        """
        self._holding = self._needed and bool(there) and not self._worth_planning(there)
        if not self._holding:
            self._planned_at = self._clock.monotonic()
        return self._holding

    def due_soon(self, since: float, within: float) -> float | None:
        """Return in how many seconds an answer from before `since` is too old; None = none is, or nothing is held back.

        Args:
            since: A monotonic time.
            within: An answer that is trusted for more seconds than these does not count.
        """
        return self._freshness.due_soon(since, within) if self._holding else None

    def _worth_planning(self, there: Sequence[Planned]) -> bool:
        if any(planned.ends or isinstance(planned.to, (Whole, Agreed)) for planned in there):
            return True
        now = self._clock.monotonic()
        if now < self._trusted_until or now >= self._planned_at + _LONGEST_HOLD:
            return True
        if self._freshness.is_due():
            try:
                self._freshness.measure(lambda: self._probe(there))
            except ForebayError as error:
                # The planner may not reach what tasks reach: their attempt says whether the source can be read.
                self._put_off(error)
            else:
                # While records flow, the cost of probing is bounded by its share of the time alone.
                self._trusted_until = now + self._freshness.took / _SHARE if self._has_record else float("-inf")
        return self._has_record

    def _probe(self, there: Sequence[Planned]) -> None:
        probe = RecordProbe(self._source, [planned.slice() for planned in there], self._options, self._runtime)
        probe.look(_PATIENCE)
        something, _ = probe.answers()
        if probe.silent:
            probe.close()
            if not something:
                text = f"reading gave no first record within {_PATIENCE:g} s"
                raise RetriableError(text, source=self._source.name, split=min(probe.silent))
        self._has_record = bool(something)

    def _put_off(self, error: ForebayError) -> None:
        self._has_record = True
        pause = self._freshness.put_off(error)
        _log.warning(
            "%s: looking for a first record before the new ends failed, again in %.1f s; micro-batches are planned "
            "meanwhile: %s",
            self._source.name,
            pause,
            error,
        )
