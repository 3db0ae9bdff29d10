# SPDX-License-Identifier: Apache-2.0
"""Commits progress to a consumer group. A failed commit never stops the query."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from forebay.clock import Clock
from forebay.errors import ForebayError
from forebay.sources.kafka.client.client_options import ClientOptions
from forebay.sources.kafka.client.cluster import COORDINATOR_RETRIES, Cluster
from forebay.sources.kafka.split import TopicPartition

_log = logging.getLogger(__name__)

_TIMEOUT_MS = 5_000
"""Request timeout in ms. The next micro-batch waits for the answer."""
_RETRIES = 4
"""Retries of a commit while the group coordinator is unavailable; the first commit has more."""
_PAUSE = 30.0
"""Minimum seconds between a failed commit and the next try."""


class GroupProgress:
    """Commits offsets to a consumer group. Called on the planning thread; connects at the first commit."""

    def __init__(self, options: ClientOptions, group: str, clock: Clock) -> None:
        given = options.settings.get("request_timeout_ms")
        timeout = min(_TIMEOUT_MS, given) if isinstance(given, int) else _TIMEOUT_MS
        short = {"request_timeout_ms": timeout, "bootstrap_timeout_ms": timeout}
        self._cluster = Cluster(replace(options, settings={**options.settings, **short}), retries=0, interval=0)
        self._group = group
        self._clock = clock
        self._published: dict[TopicPartition, int] = {}
        self._pending: dict[TopicPartition, int] = {}
        self._retries = COORDINATOR_RETRIES
        self._failed_at: float | None = None

    def publish(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit the next offset of each partition, except those already committed. May block.

        A failure is logged once. After a pause, a later call tries again with all offsets of failed commits.
        """
        pending = {**self._pending, **offsets}
        self._pending = {one: offset for one, offset in pending.items() if self._published.get(one) != offset}
        if not self._pending or (self._failed_at is not None and self._clock.monotonic() - self._failed_at < _PAUSE):
            return
        # A cluster creates its topic for group offsets at the first commit, which takes seconds.
        retries, self._retries = self._retries, _RETRIES
        try:
            self._cluster.commit(self._group, self._pending, retries=retries)
        except ForebayError as error:
            if self._failed_at is None:
                text = "committing progress to the group %r failed; the query continues and retries every %.0f s: %s"
                _log.warning(text, self._group, _PAUSE, error)
            self._failed_at = self._clock.monotonic()
            return
        if self._failed_at is not None:
            _log.info("committing progress to the group %r works again", self._group)
        self._published |= self._pending
        self._pending, self._failed_at = {}, None

    def close(self) -> None:
        """Close the connections."""
        self._cluster.close()
