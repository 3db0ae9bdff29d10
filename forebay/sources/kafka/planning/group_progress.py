# SPDX-License-Identifier: Apache-2.0
"""Publishes progress to a consumer group, so that a group that cannot be told holds nobody up."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from forebay.clock import Clock
from forebay.errors import ForebayError
from forebay.sources.kafka.client.client_options import ClientOptions
from forebay.sources.kafka.client.cluster import COORDINATOR_TRIES, Cluster
from forebay.sources.kafka.split import TopicPartition

_log = logging.getLogger(__name__)

_PATIENCE_MS = 5_000
"""How long one answer may take: a micro-batch waits for it."""
_TRIES = 4
"""How often a coordinator that does not answer yet is asked, but for the first time."""
_PAUSE = 30.0
"""Seconds without a try after one that failed."""


class GroupProgress:
    """Tells a group what is new. Called on the planning thread; connects, on its own, when there is something to tell.

    Args:
        options: Where the brokers are.
        group: The group.
        clock: How long ago telling failed.
    """

    def __init__(self, options: ClientOptions, group: str, clock: Clock) -> None:
        asked = options.settings.get("request_timeout_ms")
        patience = min(_PATIENCE_MS, asked) if isinstance(asked, int) else _PATIENCE_MS
        short = {"request_timeout_ms": patience, "bootstrap_timeout_ms": patience}
        self._cluster = Cluster(replace(options, settings={**options.settings, **short}), retries=0, interval=0)
        self._group = group
        self._clock = clock
        self._told: dict[TopicPartition, int] = {}
        self._new: dict[TopicPartition, int] = {}
        self._tries = COORDINATOR_TRIES
        self._failed: float | None = None

    def tell(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Publish what the group does not have yet, together with what could not be told before; may block.

        Trouble is warned of once, and then it is tried again after a pause: nothing that is read hangs on it.

        Args:
            offsets: The next ones to read.
        """
        self._new = {place: at for place, at in {**self._new, **offsets}.items() if self._told.get(place) != at}
        if not self._new or (self._failed is not None and self._clock.monotonic() - self._failed < _PAUSE):
            return
        # A cluster that has never had a group takes its time for the first one.
        tries, self._tries = self._tries, _TRIES
        try:
            self._cluster.commit(self._group, self._new, tries=tries)
        except ForebayError as error:
            if self._failed is None:
                text = "progress is not published to the group %r; reading goes on, and it is tried every %.0f s: %s"
                _log.warning(text, self._group, _PAUSE, error)
            self._failed = self._clock.monotonic()
            return
        if self._failed is not None:
            _log.info("progress is published to the group %r again", self._group)
        self._told |= self._new
        self._new, self._failed = {}, None

    def close(self) -> None:
        """Close the connections."""
        self._cluster.close()
