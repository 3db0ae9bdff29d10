# SPDX-License-Identifier: Apache-2.0
"""The source under test, and the comparison of its reads with the plain read (one read without disturbance)."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, Protocol, TypeVar, cast, runtime_checkable

import pyarrow as pa

from forebay.errors import RetriableError
from forebay.framework.coordination.coordinator import Coordinator
from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.enumerator import SplitEnumerator, SplitEnumeratorContext
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import ThreadRuntime
from forebay.framework.simple import SimpleEnumerator, SimpleSource
from forebay.framework.source import Source
from forebay.framework.split import Position, Split
from forebay.framework.tasks.assign_tasks import PlannedReader, plan_assigned
from forebay.options import Duration
from forebay.retry import PROCESS_PAUSES, RetryCount
from forebay.testkit.harness.calls import KitContext, Silence, calling
from forebay.testkit.outcomes import UNANSWERED, Broken, Finding, NotApplicable, OutOfTime, Skip, unfit_rows

# -- The rows and positions of the plain read: one read without disturbance, with which checks compare all others.


Mark = tuple[int, Position | None]
"""A number of rows, and the position after them."""

KnownMark = tuple[int, Position]
"""The same, with a position that is known."""


@dataclass(frozen=True, slots=True)
class Interpolated:
    """The calculated marks of a split, in order.

    Args:
        inside: Marks inside pages: after a row that is not the last one of its page.
        gaps: Marks directly before a row whose id is not the next number after the id of the previous row.
    """

    inside: tuple[KnownMark, ...] = ()
    gaps: tuple[KnownMark, ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """The result of the plain read of one split.

    Args:
        split: The split that was read, with a fixed end if the source knows one.
        rows: The rows as text, in order.
        marks: The row number and position at the start of the split and after each record batch.
        whole: Whether the read reached the split's end. The read of a long split stops earlier.
        between: Positions inside record batches, which the read did not return: a read in smaller pages returned them,
            or they are calculated from the rows.
        full: The split as a host reads it, although the read of a long split stopped earlier.
    """

    split: Split
    rows: tuple[str, ...]
    marks: tuple[Mark, ...]
    whole: bool
    between: Interpolated = field(default_factory=Interpolated)
    full: Split | None = None

    @property
    def has_pages(self) -> bool:
        """Whether at least one record batch has more than one row."""
        return any(last - first > 1 for (first, _), (last, _) in pairwise(self.marks))

    @property
    def last(self) -> int:
        """The index of the last mark."""
        return len(self.marks) - 1

    def rest(self, mark: int) -> Split:
        """Return the split, starting at the position of the mark with index `mark`."""
        return self.split.at(self.marks[mark][1])

    def rows_of(self, start: int, stop: int) -> tuple[str, ...]:
        """Return the rows between the marks with the indexes `start` and `stop`."""
        return self.rows[self.marks[start][0] : self.marks[stop][0]]


@dataclass(frozen=True, slots=True)
class PlainRead:
    """The result of the plain read of a source.

    Args:
        traces: One trace for each sampled split.
        rows: The rows as text, by split id. Of a large input, only the rows of the sampled splits.
        whole: Whether the read covered the whole input.
    """

    traces: Sequence[Trace]
    rows: Mapping[str, Sequence[str]]
    whole: bool

    @property
    def count(self) -> int:
        """The number of rows of all splits together."""
        return sum(len(rows) for rows in self.rows.values())

    def __str__(self) -> str:
        splits = f"{len(self.rows)} split{'s' * (len(self.rows) != 1)}"
        resumed = sum(len(trace.rows) for trace in self.traces)
        what = f"{'' if self.whole else 'a sample of '}{self.count} row{'s' * (self.count != 1)} of {splits}"
        return what if resumed >= self.count else f"{what}, stopped and resumed in {resumed} of them"


def difference(got: Sequence[str], expected: Sequence[str]) -> str:
    """Describe the first difference between the rows `got` and the rows `expected`, with both row counts."""
    at = next((n for n, (one, other) in enumerate(zip(got, expected, strict=False)) if one != other), None)
    counts = f"{len(got)} rows came, {len(expected)} were expected"
    if at is not None:
        return f"row {at} is\n{got[at]:.300}\nbut should be\n{expected[at]:.300}\n({counts})"
    missing = len(got) < len(expected)
    first = expected[len(got)] if missing else got[len(expected)]
    return f"{counts}; the first {'missing' if missing else 'surplus'} one is\n{first:.300}"


# -- Calls a source's planning methods (`schema`, `create_enumerator`, `discover`, `latest`) with a time limit.


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

    def silent(self, broken: Broken) -> Finding:
        """Return `broken`, found in a silence; a `Skip` if the service asked for a pause that still lasts."""
        left = PROCESS_PAUSES.remaining(self.source.name)
        if left <= 0:
            return broken
        return Skip(f"{broken.saw}; the service asked for a pause, of which {left:.1f} s are left", UNANSWERED)

    def leg_of(self, split: Split) -> int:
        """Return the index of the leg of a hybrid that reads a split; 0 for other sources."""
        return getattr(split, "leg", 0) if isinstance(self.source, Hybrid) else 0

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

    def context(self, options: HostOptions, *, promised: bool = False) -> KitContext:
        """Return a new reader context, which shares leased clients with the others of this object.

        With `promised`, the next read starts at the ends of the splits, wherever this one stops, as on Spark.
        """
        return KitContext(options, self.clients, promised=promised)

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
        context = Coordinator(self.source.name, ThreadRuntime(), reads_once=True)
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
        coordinator = Coordinator(self.source.name, ThreadRuntime(), reads_once=True)
        with calling("ENU-10", "the enumerator, asked for all splits of a batch read,"):
            enumerator = cast("SplitEnumerator", self.source.create_enumerator(coordinator))
            return plan_assigned(self.source, enumerator, coordinator, timeout)

    def discovered(self, enumerator: DiscoveryEnumerator, known: Mapping[str, Split], *, first: bool) -> Discovered:
        """Call the enumerator's `discover(known, first)`, with retries after a `RetriableError`."""
        discovered: object = self.retried(lambda: enumerator.discover(known, first), "ENU-6", "discover()")
        if not isinstance(discovered, Discovered) or not all(isinstance(split, Split) for split in discovered.splits):
            raise Broken(
                f"discover() returned {discovered!r:.200}", "return Discovered(splits) of Split objects", rule="SPL-1"
            )
        return discovered

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
    """Return all splits that the source's enumerator assigns to a reader that keeps requesting, in that order.

    A real reader requests less often. ENU-11 compares these splits with those that a real reader gets.
    """
    coordinator, reader = Coordinator(calls.source.name, ThreadRuntime()), PlannedReader(calls.source.name)
    before, silence = 0, Silence(calls.patience)
    try:
        with calling("ENU-2", "the enumerator"):
            coordinator.attach(cast("SplitEnumerator", calls.source.create_enumerator(coordinator)))
            coordinator.begin()
            coordinator.register(reader, None)
            coordinator.request()
        while not coordinator.no_more:
            with calling("ENU-2", "the enumerator"):
                more = coordinator.run_next()
            if len(reader) > before:
                before = len(reader)
                silence.reset()
                coordinator.run_in_coordinator_thread(coordinator.request)
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
    return reader.take()


SmallPages = tuple[str, int, Source]
"""An option that sets the size of pages, a smaller size, and a copy of the source with it."""


@runtime_checkable
class Hybrid(Protocol):
    """A source that reads other sources, its legs: `HybridSource`, which the kit may not import.

    Its splits have the index of their leg as `leg`.
    """

    name: ClassVar[str]

    @property
    def legs(self) -> Sequence[Source]:
        """The sources, in the order in which they are read."""

    def with_legs(self, legs: Sequence[Source]) -> Source:
        """Return a copy with other sources of the same schemas and splits."""


_BATCHES = 60
"""Target number of record batches when a check reads the whole input many times."""


@dataclass(frozen=True, slots=True)
class WrongPages:
    """A read in smaller pages that left out, doubled or moved rows, or ended early.

    Args:
        option: The option that sets the size of a page.
        size: Its value for this read.
        split_id: The split that was read.
        got: The rows of the read, as text.
        rows: The rows of the read with the source's own pages, as text.
    """

    option: str
    size: int
    split_id: str
    got: Sequence[str]
    rows: Sequence[str]


class Subject(SourceCalls):
    """The source under test and the results that its checks share.

    It takes the arguments of `SourceCalls`, and splits that older versions of the connector stored.
    """

    def __init__(
        self,
        source: Source,
        *,
        seconds: float,
        seed: int,
        live: bool,
        stored: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        super().__init__(source, seconds=seconds, seed=seed, live=live)
        self.stored = stored
        """Splits that older versions of the connector stored, as `Split.to_json` returned them."""
        self.blocked = ""
        """Why checks cannot run the enumerator with readers; set once a check has found it."""
        self.plain: PlainRead | None = None
        self.small_pages: SmallPages | None = None
        """The smaller pages that fitted; None if no option sets the size of a page."""
        self.wrong_pages: WrongPages | None = None
        """A read in smaller pages that left out, doubled or moved rows, or ended early."""

    def on(self, source: Source, *, patience: float | None = None) -> Subject:
        """Return a subject for another source of the same input, with the deadline of this one and no plain read.

        Args:
            source: The other source.
            patience: Maximum seconds to wait for one call; None for the `patience` of this subject.
        """
        other = Subject(source, seconds=0.0, seed=self.seed, live=self.live)
        other.deadline, other.patience = self.deadline, patience or self.patience
        return other

    def rows(self, batch: object, split_id: str) -> list[str]:
        """Return the rows of a record batch as text. Raises `Broken` if its schema is not the source's."""
        if not isinstance(batch, pa.RecordBatch):
            raise Broken(
                f"split {split_id!r} returned a {type(batch).__name__}", "give pyarrow.RecordBatch", rule="SRC-7"
            )
        if not batch.schema.equals(self.schema):
            raise Broken(
                f"split {split_id!r} returned a record batch of\n{batch.schema}\nbut schema() says\n{self.schema}",
                "give every record batch exactly the names, order and types of the schema",
                rule="SRC-7",
            )
        return [repr(row) for row in batch.to_pylist()]

    def rows_of(self, expected: Sequence[Mapping[str, object]]) -> list[str]:
        """Return an author's expected rows as `rows` would. Raises an error if a value does not fit the schema."""
        schema = self.schema
        if isinstance(schema, pa.Schema):  # else `rows` raises
            for field in schema:
                try:
                    pa.array([row.get(field.name) for row in expected], type=field.type)
                except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                    raise unfit_rows(f"column {field.name!r} is {field.type}, and {error}") from error
        return self.rows(pa.RecordBatch.from_pylist(list(expected), schema=schema), "expected")

    def compare(
        self,
        split_id: str,
        got: Sequence[str],
        expected: Sequence[str],
        how: str,
        advice: str,
        *,
        open_ended: bool = False,
        rule: str | None = None,
    ) -> None:
        """Compare the rows of one split with the expected rows, in order.

        Args:
            split_id: The split.
            got: The rows that were read, as text.
            expected: The expected rows, as text.
            how: How the rows were read, for the error text.
            advice: The author's next step, for the error text.
            open_ended: Whether the read had no end. More rows than expected are then allowed if the input may grow.
            rule: The id of the rule that a difference breaks; None for the rule of the running check.

        Raises:
            Broken: The rows differ.
        """
        traces = self.plain.traces if self.plain else ()
        open_ended = open_ended or any(trace.split.id == split_id and trace.split.end is None for trace in traces)
        shown = got if self.exact or not open_ended or len(got) < len(expected) else got[: len(expected)]
        if list(shown) != list(expected):
            raise Broken(f"split {split_id!r}, {how}: {difference(shown, expected)}", advice, rule=rule)

    def compare_traces(
        self, got: Mapping[str, Sequence[str]], how: str, advice: str, traces: Sequence[Trace] | None = None
    ) -> None:
        """Compare the rows of several splits with the rows of the plain read.

        Args:
            got: The rows that were read, as text, by split id.
            how: How the rows were read, for the error text.
            advice: The author's next step, for the error text.
            traces: The splits to compare; None for all sampled splits.

        Raises:
            Broken: The rows of a split differ.
        """
        for trace in self.traces if traces is None else traces:
            self.compare(trace.split.id, got.get(trace.split.id, []), trace.rows, how, advice)

    @property
    def _read(self) -> PlainRead:
        if self.plain is None:
            raise Skip("the plain read failed, so there is nothing to compare with")
        return self.plain

    @property
    def whole(self) -> bool:
        """Whether the plain read covered the whole input, not only a sample."""
        return self._read.whole

    @property
    def everything(self) -> Mapping[str, Sequence[str]]:
        """The rows of the plain read, by split id. Of a large input, only the rows of the sampled splits."""
        return self._read.rows

    @property
    def traces(self) -> Sequence[Trace]:
        """The plain reads of the sampled splits, one for each split."""
        return self._read.traces

    @property
    def splits(self) -> list[Split]:
        """The splits that the plain read sampled."""
        return [trace.split for trace in self.traces]

    def waiting_splits(self) -> list[Split]:
        """Return the splits without an own end, positioned after their last row, where a reader waits for new rows.

        Raises:
            NotApplicable: The source is bounded, or every split has its own end.
        """
        if self.source.bounded:
            raise NotApplicable("the source is bounded: its readers never wait for more")
        waiting = [trace for trace in self.traces if trace.split.id not in self.ending]
        if self.traces and not waiting:
            raise NotApplicable("every split has its own end: its readers never wait for more")
        return [trace.split.slice(trace.marks[-1][1], None) for trace in waiting]

    @property
    def filled(self) -> list[Trace]:
        """The `traces` with at least two record batches, in which a read can stop and resume.

        Raises:
            Skip: No split has two record batches, or a leg of a hybrid has no rows.
        """
        if isinstance(self.source, Hybrid):
            with_rows = {self.leg_of(trace.split) for trace in self.traces if trace.rows}
            for number, leg in enumerate(self.source.legs):
                if number not in with_rows:
                    raise Skip(
                        f"source {number + 1} of the hybrid, {leg.name}, has no rows, so nothing was seen of it",
                        "run the checks on an input of which each source reads some rows",
                    )
        if filled := [trace for trace in self.traces if trace.last >= 2]:
            return filled
        raise Skip(
            "no split has two record batches, so no read could be stopped and resumed in the middle",
            "run the checks on a source with more rows; or make the size of a page an option, such as page_rows: int = "
            "option(default=500), so that check() reads smaller pages too",
        )

    def coordinated(self) -> tuple[Source, HostOptions]:
        """Return a source that a coordinator can run safely, and options for reading it in few record batches.

        The source is read-only if the input is live, and has only the sampled splits if the plain read was a sample.
        """
        if self.plain is None:
            return self.source, self.options()
        sample = None if self.whole else self.splits
        source = self.source
        if self.live or sample:
            # A coordinator uses attributes of the source, and create_enumerator.
            source = cast("Source", ReadOnlySource(self.source, sample, live=self.live))
        return source, self.options(rows=max(1, self.plain.count // _BATCHES))


def through_json(split: Split, subject: Subject) -> Split:
    """Return a copy of a split, converted to JSON and back, as a restore from a checkpoint makes it."""
    with calling("SER-2", "Split.to_json() or from_json()"):
        return subject.source.split_class.from_json(json.loads(json.dumps(split.to_json())))


# -- Wraps a source, so that a coordinator cannot change its input and, if that is large, reads only a sample.


class ReadOnlySource:
    """A source whose `DiscoveryEnumerator` is restricted; everything else is the source's own.

    Args:
        source: The source.
        sample: Discover only these splits, with these ends; None discovers everything.
        live: Do not call `finished` and `committed` of the source's enumerator, because they may change the input.
    """

    def __init__(self, source: Source, sample: Sequence[Split] | None, *, live: bool) -> None:
        self._source = source
        self._sample = sample
        self._live = live

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of the source
        return getattr(self._source, name)

    def create_enumerator(self, context: SplitEnumeratorContext) -> SplitEnumerator | DiscoveryEnumerator:
        """Return the source's own enumerator, restricted if it is a `DiscoveryEnumerator`."""
        made = self._source.create_enumerator(context)
        if not isinstance(made, DiscoveryEnumerator):
            return made
        # On the object: a wrapper would have to forward every method that the class may have.
        if self._live:
            vars(made).update(finished=lambda _: None, committed=lambda _: None)
        if self._sample is not None:
            sample, discover = {split.id: split for split in self._sample}, made.discover

            def sampled(known: Mapping[str, Split], first: bool) -> Discovered:
                discovered: object = discover(known, first)
                if not isinstance(discovered, Discovered):
                    return cast("Discovered", discovered)  # refused by the coordinator
                return replace(
                    discovered, splits=[sample[split.id] for split in discovered.splits if split.id in sample]
                )

            vars(made)["discover"] = sampled
        return made
