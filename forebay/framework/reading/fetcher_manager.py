# SPDX-License-Identifier: Apache-2.0
"""The fetchers of one reader: one for all splits, a fixed number, or one per split."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Sequence
from typing import NamedTuple

from forebay.errors import FatalError, ForebayError
from forebay.framework.reader import SourceReaderContext
from forebay.framework.reading.fetcher import Fetcher
from forebay.framework.reading.queue import HandOverQueue
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import WorkerHandle
from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay.retry import RetryPolicy


class _Running(NamedTuple):
    fetcher: Fetcher
    handle: WorkerHandle


class FetcherManager:
    """Starts fetchers, routes splits to them, ends idle fetchers and keeps the first error (FM-1 … FM-5).

    All methods are called on the task thread. Fetcher threads report their errors to it.
    """

    def __init__(
        self,
        source: Source,
        context: SourceReaderContext,
        queue: HandOverQueue,
        options: HostOptions,
        *,
        until_caught_up: bool = False,
    ) -> None:
        self._source = source
        self._context = context
        self._queue = queue
        self._runtime = context.runtime
        self._options = options
        self._until_caught_up = until_caught_up
        self._running: dict[str, _Running] = {}
        self._ending: list[_Running] = []
        self._lock = context.runtime.lock()
        self._error: ForebayError | None = None
        self._late: ForebayError | None = None
        self._closed = False

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Pass splits to their fetchers; start fetchers that do not run (FM-2).

        Raises:
            FatalError: The manager is closed (FM-3).
        """
        if self._closed:
            raise FatalError(
                f"splits were assigned to a closed reader of {self._source.name}",
                rule="FM-3",
                advice="report this as a bug",
            )
        routed: dict[str, list[Split]] = {}
        for split in splits:
            routed.setdefault(self._route(split.id), []).append(split)
        for key, group in routed.items():
            if key not in self._running:
                self._running[key] = self._start(key)
            self._running[key].fetcher.add_splits(group)

    def pause_or_resume_splits(self, pause: Collection[str], resume: Collection[str]) -> None:
        """Pause and resume splits, given by id, in their fetchers (FM-4)."""
        # In the order of the splits, not of a set: a simulation must run alike in every process.
        keys = dict.fromkeys(self._route(split_id) for split_id in (*pause, *resume))
        for key in (one for one in keys if one in self._running):
            self._running[key].fetcher.pause_or_resume(
                [split_id for split_id in pause if self._route(split_id) == key],
                [split_id for split_id in resume if self._route(split_id) == key],
            )

    def check_errors(self) -> None:
        """Raise the first error of any fetcher, if there is one, at every call; later errors are its notes (FM-1)."""
        with self._lock:
            error = self._error
        if error is not None:
            raise error

    def shutdown_finished(self) -> bool:
        """End idle fetchers; return whether no fetcher is left (FM-2)."""
        for key, running in list(self._running.items()):
            if running.fetcher.is_idle():
                running.fetcher.close(after_recycling=True)
                self._ending.append(self._running.pop(key))
        return not self._running

    def close(self, timeout: float) -> list[str]:
        """End all fetchers within `timeout` seconds (FM-3); return the names of blocked threads, which are abandoned.

        A second call does nothing.
        """
        self._closed = True
        deadline = self._runtime.clock.monotonic() + timeout
        fetchers = [*self._running.items(), *((f"ended {number}", one) for number, one in enumerate(self._ending))]
        for _, running in fetchers:
            running.fetcher.close()
        while self._queue.poll() is not None:
            pass  # make room for fetchers that wait with a hand-over
        abandoned = []
        for key, running in fetchers:
            if not running.handle.join(max(0.0, deadline - self._runtime.clock.monotonic())):
                abandoned.append(f"{self._source.name} fetcher {key}")
        self._running.clear()
        self._ending.clear()
        return abandoned

    def late_error(self) -> ForebayError | None:
        """Return the first error since `close` began, such as that of a split reader's `close`."""
        with self._lock:
            return self._late

    def _route(self, split_id: str) -> str:
        fetchers = self._source.fetchers
        return split_id if fetchers is None else str(zlib.crc32(split_id.encode()) % fetchers)

    def _start(self, key: str) -> _Running:
        fetcher = Fetcher(
            self._source.name,
            self._source.create_split_reader(self._context),
            self._queue,
            self._runtime,
            retry=RetryPolicy.of(self._options),
            until_caught_up=self._until_caught_up,
            on_error=self._keep_error,
        )
        self._ending = [one for one in self._ending if one.handle.alive()]
        return _Running(fetcher, self._runtime.start(f"forebay-{self._source.name}-fetcher-{key}", fetcher))

    def _keep_error(self, error: ForebayError) -> None:
        with self._lock:
            if self._closed and self._late is None:
                self._late = error
            if self._error is None:
                self._error = error
            elif error is not self._error:
                self._error.add_note(f"and then: {type(error).__name__}: {error}")
        self._queue.notify_available()
