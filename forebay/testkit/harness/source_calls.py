# SPDX-License-Identifier: Apache-2.0
"""Calls a source's planning methods (`schema`, `create_enumerator`, `discover`, `latest`) with a time limit."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar, cast

import pyarrow as pa

from forebay.errors import RetriableError
from forebay.framework.coordination.coordinator import Coordinator
from forebay.framework.coordination.messages import AddSplits, NoMoreSplits, ToReader
from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.enumerator import SplitEnumerator
from forebay.framework.microbatch.split_providers.planning_context import PlanningContext
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import Next, ThreadRuntime
from forebay.framework.simple import SimpleEnumerator, SimpleSource
from forebay.framework.source import Source
from forebay.framework.split import Position, Split
from forebay.options import Duration
from forebay.retry import RetryCount
from forebay.testkit.findings import Broken, NotApplicable, OutOfTime
from forebay.testkit.harness.guarded_calls import calling
from forebay.testkit.harness.session_base import KitContext, Silence

T = TypeVar("T")

_TRIES = 4
"""Maximum calls of a planning method that raises `RetriableError`."""

_QUIET = 0.3
"""Seconds without an assignment after which an unbounded source that has assigned a split counts as done."""


_SIMPLE = {"event_times": "event_time_at", "positions_at": "position_at"}
"""Maps methods of a `DiscoveryEnumerator` to those of a `SimpleSource` that have another name."""


class SourceCalls:
    """Calls the planning methods of one source, and reports a broken rule if a call fails.

    Args:
        source: The source under test.
        seconds: The time for all checks. A check waits at most a sixth of it, but at least one second, for one call.
        seed: Seeds the random choices of the checks.
        live: Whether the input is the author's real data: it may grow during the checks, and they must not change it.
    """

    def __init__(self, source: Source, *, seconds: float, seed: int, live: bool) -> None:
        self.source = source
        self.seed = seed
        self.live = live
        self.patience = max(1.0, seconds / 6)
        self.exact = not live or bool(source.bounded)
        self.deadline = time.monotonic() + seconds
        self._failures_before = RetryCount.failures_in_process
        self.clients: dict[Hashable, list[Any]] = {}
        self.ending: set[str] = set()
        """The ids of the splits that have their own end."""

    def hurry(self) -> None:
        """Wait at most one second for each further call. Called after a call has hung."""
        self.patience = min(self.patience, 1.0)

    def random(self, name: str) -> random.Random:
        """Return the random number generator of the check `name`, seeded with `seed` and `name` only."""
        return random.Random(f"{self.seed}/{name}")

    @property
    def failures_retried(self) -> int:
        """How many failures of the source were retried since the checks began."""
        return RetryCount.failures_in_process - self._failures_before

    def time_left(self) -> bool:
        """Return whether the deadline of the checks is still ahead."""
        return time.monotonic() < self.deadline

    def need_time(self) -> None:
        """Raise `OutOfTime`, which skips the rest of the check, if the deadline of the checks has passed."""
        if not self.time_left():
            raise OutOfTime

    def options(self, *, rows: int = 1, poll_interval: float = 0.02) -> HostOptions:
        """Return host options for small record batches, so that a read has many positions to resume from.

        Args:
            rows: Maximum rows of a record batch.
            poll_interval: Seconds between two polls of a caught-up split.
        """
        return HostOptions(
            max_rows_per_batch=rows,
            max_batch_delay=Duration(0.02),
            poll_interval=Duration(poll_interval),
            discovery_interval=Duration(0.05),
            close_timeout=Duration(self.patience),
            retry_first_pause=Duration(0.05),
            planning_timeout=Duration(self.patience),
        )

    def context(self, options: HostOptions) -> KitContext:
        """Return a new reader context, which shares leased clients with the others of this object."""
        return KitContext(options, self.clients)

    def close(self) -> None:
        """Close the clients that readers leased and gave back."""
        for client in [client for free in self.clients.values() for client in free]:
            close = getattr(client, "close", None)
            if callable(close):
                close()
        self.clients.clear()

    @cached_property
    def schema(self) -> pa.Schema:
        """The source's schema."""
        with calling("SRC-7", "schema()"):
            return self.source.schema()

    @contextmanager
    def enumerator(self) -> Iterator[SplitEnumerator | DiscoveryEnumerator]:
        """Yield a new enumerator of the source, and close it at the end of the `with` block."""
        context = PlanningContext(self.source.name, ThreadRuntime(), timeout=self.patience)
        with calling("SRC-1", "create_enumerator()"):
            enumerator = self.source.create_enumerator(context)
        try:
            yield enumerator
        finally:
            with calling("ENU-9", "the enumerator's close()"):
                enumerator.close()

    @contextmanager
    def discovery(self) -> Iterator[DiscoveryEnumerator]:
        """Yield a new `DiscoveryEnumerator` of the source, and close it at the end of the `with` block.

        Raises:
            NotApplicable: The source's enumerator is a `SplitEnumerator`.
        """
        with self.enumerator() as enumerator:
            if not isinstance(enumerator, DiscoveryEnumerator):
                raise NotApplicable("the source has its own SplitEnumerator")
            yield enumerator

    def discover(self) -> list[Split]:
        """Return all splits that a new enumerator discovers or assigns, in its order."""
        with self.enumerator() as enumerator:
            if isinstance(enumerator, DiscoveryEnumerator):
                return list(self.discovered(enumerator, {}, first=True).splits)
        return _assigned_splits(self)

    def planned(self, timeout: float) -> list[Split]:
        """Return the splits that the source's own `SplitEnumerator` assigns to a batch read, as `spark.read` does.

        Raises:
            ForebayError: The enumerator failed, does not end a batch read, or did not end it within `timeout` seconds.
        """
        context = PlanningContext(self.source.name, ThreadRuntime(), timeout=timeout)
        with calling("ENU-10", "the enumerator, asked for all splits of a batch read,"):
            enumerator = cast("SplitEnumerator", self.source.create_enumerator(context))
            return context.plan(enumerator, bounded=bool(self.source.bounded))

    def discovered(self, enumerator: DiscoveryEnumerator, known: Mapping[str, Split], *, first: bool) -> Discovered:
        """Call the enumerator's `discover(known, first)`, with retries after a `RetriableError`."""
        found: object = self.retried(lambda: enumerator.discover(known, first), "ENU-6", "discover()")
        if not isinstance(found, Discovered) or not all(isinstance(split, Split) for split in found.splits):
            raise Broken(
                f"discover() returned {found!r:.200}", "return Discovered(splits) of Split objects", rule="SPL-1"
            )
        return found

    def latest(self, splits: Sequence[Split], enumerator: DiscoveryEnumerator | None = None) -> Mapping[str, Position]:
        """Return the current end of each split that has a known one, by split id.

        Args:
            splits: The splits.
            enumerator: The enumerator to ask; None to create one for this call.
        """
        if enumerator is not None:
            return self.retried(lambda: enumerator.latest(splits), "DIS-1", "latest()")
        with self.enumerator() as fresh:
            return self.latest(splits, fresh) if isinstance(fresh, DiscoveryEnumerator) else {}

    def overrides(self, enumerator: DiscoveryEnumerator, method: str) -> bool:
        """Return whether the source's author overrides `method` of `DiscoveryEnumerator`."""
        if isinstance(enumerator, SimpleEnumerator) and isinstance(self.source, SimpleSource):
            if method == "advance" and self.source.positions_are_rows:
                return True
            name = _SIMPLE.get(method, method)
            return getattr(type(self.source), name, None) is not getattr(SimpleSource, name, None)
        return getattr(type(enumerator), method) is not getattr(DiscoveryEnumerator, method)

    def retried(self, call: Callable[[], T], rule: str, name: str) -> T:
        """Return the result of `call`, with retries after a `RetriableError`, as hosts do.

        Args:
            call: Calls a method of the connector.
            rule: The id of the rule that is broken if the call fails.
            name: The method's name for the error text.
        """
        for left in range(_TRIES - 1, -1, -1):
            try:
                with calling(rule, name):
                    return call()
            except RetriableError:
                if not left:
                    raise
                time.sleep(0.05)
        raise AssertionError("unreachable")

    @cached_property
    def has_own_reader(self) -> bool:
        """Whether the source has its own `SourceReader`: `create_reader` does not return None."""
        if type(self.source).create_reader is Source.create_reader:
            return False
        context = self.context(self.options())
        with calling("RDR-2", "create_reader()"):
            reader = self.source.create_reader(context)
        if reader is not None:
            with calling("RDR-9", "the reader's close()"):
                reader.close()
        context.hand_back()
        return reader is not None

    def ended(self, splits: Sequence[Split]) -> list[Split]:
        """Return the splits with the ends that a host sets for a single read.

        A split ends at its own end or at its current end, whichever comes first. A split of a bounded source keeps its
        own end. A split with neither end is returned unchanged.
        """
        ends = self.latest(splits)
        key = self.source.order_key
        result = []
        for split in splits:
            end, own = ends.get(split.id), split.end
            if own is not None:
                self.ending.add(split.id)
            if end is None or (own is not None and (self.source.bounded or key(own) < key(end))):
                result.append(split)
            else:
                result.append(split.slice(split.position, end))
        return result


def _assigned_splits(calls: SourceCalls) -> list[Split]:
    """Return all splits that the source's enumerator assigns to one reader that keeps requesting, in that order.

    A real reader requests less often. ENU-11 compares these splits with those that real readers get.
    """
    received: list[ToReader] = []
    coordinator = Coordinator(calls.source, ThreadRuntime(), parallelism=1, options=calls.options())
    coordinator.start()
    coordinator.register_reader(0, None, received.append)
    coordinator.handle_split_request(0, None)
    before, silence = 0, Silence(calls.patience)
    try:
        while not any(isinstance(message, NoMoreSplits) for message in received):
            with calling("ENU-2", "the enumerator"):
                more = coordinator.step() is Next.AGAIN
            if coordinator.error is not None:
                raise coordinator.error
            if len(received) > before:
                before = len(received)
                silence.reset()
                coordinator.handle_split_request(0, None)
            if not calls.source.bounded and before and silence.seconds > _QUIET:
                break
            if silence.left < 0:
                raise Broken(
                    "a reader requested a split, and got neither a split nor the end signal for "
                    f"{silence.seconds:.1f} s",
                    "assign a split, call signal_no_more_splits(), or remember the request",
                    rule="ENU-2",
                )
            if not more:
                coordinator.signal.wait(0.01)
                coordinator.signal.clear()
    finally:
        with calling("ENU-9", "the enumerator's close()"):
            coordinator.close(calls.patience)
    return [split for message in received if isinstance(message, AddSplits) for split in message.splits]
