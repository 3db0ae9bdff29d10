# SPDX-License-Identifier: Apache-2.0
"""Avoids empty micro-batches of sources whose `latest` may move forward although there is no new record."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from typing import Final

from forebay.errors import ForebayError, RetriableError
from forebay.framework.microbatch.end_negotiation.probe import RecordProbe
from forebay.framework.microbatch.offsets.offset import Planned, UnknownEnd
from forebay.framework.microbatch.split_providers.refresh_policy import RefreshPolicy
from forebay.framework.microbatch.split_providers.split_provider import SplitProvider
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import Runtime
from forebay.framework.source import Source
from forebay.options import Duration

_log = logging.getLogger(__name__)

_PATIENCE: Final = 10.0
"""Maximum seconds that planning waits for a first record; after that the micro-batch is planned without an answer."""

_CLOSE_TIMEOUT: Final = 1.0
"""Maximum seconds that planning waits for the reader of an unanswered probe to end."""

_SHARE: Final = 0.2
"""Maximum share of the time that probes take. An empty micro-batch reads the same and takes longer."""

_LONGEST_HOLD: Final = 600.0
"""Seconds after which an empty range is planned anyway, so that positions stay within the source's retention."""


class RangeProbe:
    """Finds out, by reading in the planner, whether there is a record before the ends that `latest` returned.

    An end such as "now less a delay" moves forward without records, and tasks cannot report empty reads to the planner.
    If the probe fails or finds no answer in time, the micro-batch is planned. Called on the planning thread.
    """

    def __init__(self, source: Source, options: HostOptions, split_provider: SplitProvider, runtime: Runtime) -> None:
        enumerator = split_provider.enumerator
        self._source = source
        close_timeout = min(options.close_timeout, Duration(_CLOSE_TIMEOUT))
        self._options = dataclasses.replace(options, close_timeout=close_timeout)
        self._runtime = runtime
        self._clock = runtime.clock
        exact = enumerator is None or enumerator.exact_ends
        self._needed = not (exact or source.bounded or split_provider.in_order)
        floor = 0.0 if enumerator is None else enumerator.refresh_floor
        self._refresh = RefreshPolicy(runtime, options.refresh_interval, floor, _SHARE)
        self._has_record = True
        self._trusted_until = float("-inf")
        self._planned_at = runtime.clock.monotonic()
        self._holding = False

    def finds_nothing(self, available: Sequence[Planned]) -> bool:
        """Return whether a probe has found that the available splits have no record. May block while it reads."""
        self._holding = self._needed and bool(available) and not self._worth_planning(available)
        if not self._holding:
            self._planned_at = self._clock.monotonic()
        return self._holding

    def due_soon(self, since: float, within: float) -> float | None:
        """Return the seconds until the next probe, None if the caller should not wait for it.

        The caller should wait if `finds_nothing` returned True, under the conditions of `RefreshPolicy.due_soon`.
        """
        return self._refresh.due_soon(since, within) if self._holding else None

    def _worth_planning(self, available: Sequence[Planned]) -> bool:
        if any(planned.ends or isinstance(planned.to, UnknownEnd) for planned in available):
            return True
        now = self._clock.monotonic()
        if now < self._trusted_until or now >= self._planned_at + _LONGEST_HOLD:
            return True
        if self._refresh.is_due():
            try:
                self._refresh.measure(lambda: self._probe(available))
            except ForebayError as error:
                # Executors may reach a server that the driver does not: the tasks show whether the source can be read.
                self._has_record = True
                pause = self._refresh.put_off(error)
                _log.warning(
                    "%s: reading a first record in the planner failed and is retried in %.1f s; until then, "
                    "micro-batches are planned without this check for new records: %s",
                    self._source.name,
                    pause,
                    error,
                )
            else:
                # While records flow, only the share of the time bounds the cost of probes.
                self._trusted_until = now + self._refresh.took / _SHARE if self._has_record else float("-inf")
        return self._has_record

    def _probe(self, available: Sequence[Planned]) -> None:
        probe = RecordProbe(self._source, [planned.slice() for planned in available], self._options, self._runtime)
        probe.poll(_PATIENCE)
        with_record, _ = probe.answers()
        if probe.silent:
            probe.close()
            if not with_record:
                text = f"read() returned no record within {_PATIENCE:g} s"
                raise RetriableError(
                    text,
                    source=self._source.name,
                    split=min(probe.silent),
                    advice="in the connector, end read() where there are no more records, and give its requests a time "
                    "limit",
                )
        self._has_record = bool(with_record)
