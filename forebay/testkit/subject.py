# SPDX-License-Identifier: Apache-2.0
"""The source under test: its splits, what an undisturbed read of them gives, and what checks need around it."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import pyarrow as pa

from forebay.errors import RetriableError
from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.enumerator import SplitEnumerator
from forebay.framework.host_options import HostOptions
from forebay.framework.microbatch.split_providers.planning_context import PlanningContext
from forebay.framework.runtime.runtime import ThreadRuntime
from forebay.framework.simple import SimpleEnumerator, SimpleSource
from forebay.framework.source import Source
from forebay.framework.split import Position, Split
from forebay.options import Duration
from forebay.testkit.assigned import assigned_splits
from forebay.testkit.outcomes import Broken, NotApplicable, OutOfTime, Skip, UnfitRows
from forebay.testkit.scripted import RecordingContext
from forebay.testkit.shield import Shield
from forebay.testkit.traces import Trace, difference
from forebay.testkit.watch import calling

C = TypeVar("C")
T = TypeVar("T")

_TRIES = 4

_BATCHES = 60
"""Record batches that the whole input is read in, where a check reads all of it many times over."""


class KitContext(RecordingContext):
    """A reader context that lends clients from a pool of the kit's own."""

    def __init__(self, options: HostOptions, pool: dict[Hashable, list[Any]]) -> None:
        super().__init__(options=options)
        self._pool = pool
        self._borrowed: list[tuple[Hashable, Any]] = []

    def lease(self, key: Hashable, factory: Callable[[], C]) -> C:
        """Lend a free client of this key, or make one."""
        free = self._pool.setdefault(key, [])
        client: C = free.pop() if free else factory()
        self._borrowed.append((key, client))
        return client

    def hand_back(self) -> None:
        """Take back what the reader borrowed, once it has closed."""
        borrowed, self._borrowed = self._borrowed, []
        for key, client in borrowed:
            self._pool[key].append(client)


class Subject:
    """One source, and everything that checks share.

    Args:
        source: The source under test.
        seconds: The time for all checks; a sixth of it, but at least one second, is the patience with one silence.
        seed: Chooses moments and positions.
        live: The input is somebody's own: rows may be added to it meanwhile, and nothing may be done to it.
    """

    def __init__(self, source: Source, *, seconds: float, seed: int, live: bool) -> None:
        self.source = source
        self.seed = seed
        self.live = live
        self.patience = max(1.0, seconds / 6)
        self.exact = not live or bool(source.bounded)
        self.deadline = time.monotonic() + seconds
        self.blocked = ""
        """Why no check can run the enumerator with readers, once another one has said what is wrong with it."""
        self.clients: dict[Hashable, list[Any]] = {}
        self._schema: pa.Schema | None = None
        self._traces: Sequence[Trace] | None = None
        self._ending: set[str] = set()
        self._everything: Mapping[str, Sequence[str]] | None = None
        self._own_reader: bool | None = None

    # ---- around the checks

    def on(self, source: Source, *, patience: float | None = None) -> Subject:
        """Return another source of the same input as a subject of its own, without traces, for the time that is left.

        Args:
            source: The source.
            patience: How long one silence may last; by default as here.
        """
        other = Subject(source, seconds=0.0, seed=self.seed, live=self.live)
        other.deadline, other.patience = self.deadline, patience or self.patience
        return other

    def hurry(self) -> None:
        """Wait less from now on: a call has hung, and the verdict is clear."""
        self.patience = min(self.patience, 1.0)

    def random(self, name: str) -> random.Random:
        """Return the chance of one check: the same for the same seed, whatever ran before."""
        return random.Random(f"{self.seed}/{name}")

    def time_left(self) -> bool:
        """Whether another sample may be taken."""
        return time.monotonic() < self.deadline

    def need_time(self) -> None:
        """Skip the rest of a check when the time is over.

        Raises:
            OutOfTime: It is.
        """
        if not self.time_left():
            raise OutOfTime

    def options(self, *, rows: int = 1, poll_interval: float = 0.02) -> HostOptions:
        """Return host options that cut record batches small, so that there are many positions."""
        return HostOptions(
            max_rows_per_batch=rows,
            max_batch_delay=Duration(0.02),
            poll_interval=Duration(poll_interval),
            discovery_interval=Duration(0.05),
            close_timeout=Duration(self.patience),
            planning_timeout=Duration(self.patience),
        )

    def context(self, options: HostOptions) -> KitContext:
        """Return what a reader sees of its host."""
        return KitContext(options, self.clients)

    def close(self) -> None:
        """Close the clients that readers borrowed."""
        for client in [client for free in self.clients.values() for client in free]:
            close = getattr(client, "close", None)
            if callable(close):
                close()
        self.clients.clear()

    # ---- rows

    def schema(self) -> pa.Schema:
        """Return the source's schema, asked for once."""
        if self._schema is None:
            with calling("SRC-7", "schema()"):
                self._schema = self.source.schema()
        return self._schema

    def rows(self, batch: object, split_id: str) -> list[str]:
        """Return the rows of a record batch as text, for comparing and for showing.

        Raises:
            Broken: It is no record batch, or not of the source's schema.
        """
        if not isinstance(batch, pa.RecordBatch):
            raise Broken(f"split {split_id!r} gave a {type(batch).__name__}", "give pyarrow.RecordBatch", rule="SRC-7")
        if not batch.schema.equals(self.schema()):
            raise Broken(
                f"split {split_id!r} gave a record batch of\n{batch.schema}\nbut schema() says\n{self.schema()}",
                "make every record batch exactly of the schema: names, order, types",
                rule="SRC-7",
            )
        return [repr(row) for row in batch.to_pylist()]

    def rows_of(self, expected: Sequence[Mapping[str, object]]) -> list[str]:
        """Return rows that an author expects as the same text.

        Raises:
            UnfitRows: They do not fit the schema.
        """
        schema = self.schema()
        if isinstance(schema, pa.Schema):  # else `rows` says so
            for field in schema:
                try:
                    pa.array([row.get(field.name) for row in expected], type=field.type)
                except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                    raise UnfitRows(f"column {field.name!r} is {field.type}, and {error}") from error
        return self.rows(pa.RecordBatch.from_pylist(list(expected), schema=schema), "expected")

    def compare(
        self,
        split_id: str,
        got: Sequence[str],
        wanted: Sequence[str],
        how: str,
        advice: str,
        *,
        open_ended: bool = False,
        rule: str | None = None,
    ) -> None:
        """Compare rows, in order.

        Args:
            split_id: Whose rows.
            got: What came.
            wanted: What was to come.
            how: How it was read.
            advice: What to do if they differ.
            open_ended: The read had no end: where the input may grow, more rows at the end are no fault.
            rule: The rule that is broken if they differ; that of the check unless given.

        Raises:
            Broken: They differ.
        """
        open_ended = open_ended or any(one.split.id == split_id and one.split.end is None for one in self._traces or ())
        shown = got if self.exact or not open_ended or len(got) < len(wanted) else got[: len(wanted)]
        if list(shown) != list(wanted):
            raise Broken(f"split {split_id!r}, {how}: {difference(shown, wanted)}", advice, rule=rule)

    # ---- splits

    @contextmanager
    def enumerator(self) -> Iterator[SplitEnumerator | DiscoveryEnumerator]:
        """Make an enumerator of the source's own, and close it."""
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
        """Make the source's discovery enumerator, and close it.

        Raises:
            NotApplicable: The source has an enumerator of FLIP-27's own kind.
        """
        with self.enumerator() as enumerator:
            if not isinstance(enumerator, DiscoveryEnumerator):
                raise NotApplicable("the source brings a SplitEnumerator of its own")
            yield enumerator

    def discover(self) -> list[Split]:
        """Return the splits that a fresh enumerator finds, as they come: nothing is dropped or sorted."""
        with self.enumerator() as enumerator:
            if isinstance(enumerator, DiscoveryEnumerator):
                return list(self.discovered(enumerator, {}, first=True).splits)
        return assigned_splits(self.source, self.options(), self.patience)

    def discovered(self, enumerator: DiscoveryEnumerator, known: Mapping[str, Split], *, first: bool) -> Discovered:
        """Run one discovery, again after a `RetriableError`.

        Raises:
            Broken: The result is not what `discover` must return.
        """
        found: object = self.retried(lambda: enumerator.discover(known, first), "ENU-6", "discover()")
        if not isinstance(found, Discovered) or not all(isinstance(split, Split) for split in found.splits):
            raise Broken(f"discover() gave {found!r:.200}", "return Discovered(splits) of Split objects", rule="SPL-1")
        return found

    def latest(self, splits: Sequence[Split]) -> Mapping[str, Position]:
        """Return the present ends of splits, by id, of those that are known."""
        with self.enumerator() as enumerator:
            if not isinstance(enumerator, DiscoveryEnumerator):
                return {}
            return self.retried(lambda: enumerator.latest(splits), "DIS-1", "latest()")

    def overrides(self, enumerator: DiscoveryEnumerator, method: str) -> bool:
        """Whether the author answers an optional method of discovery."""
        if isinstance(enumerator, SimpleEnumerator) and isinstance(self.source, SimpleSource):
            if method == "advance" and self.source.positions_are_rows:
                return True
            return getattr(type(self.source), method, None) is not getattr(SimpleSource, method, None)
        return getattr(type(enumerator), method) is not getattr(DiscoveryEnumerator, method)

    def retried(self, call: Callable[[], T], rule: str, what: str) -> T:
        """Call into the connector; a `RetriableError` is tried again, as hosts do."""
        for left in range(_TRIES - 1, -1, -1):
            try:
                with calling(rule, what):
                    return call()
            except RetriableError:
                if not left:
                    raise
                time.sleep(0.05)
        raise AssertionError("unreachable")

    @property
    def has_own_reader(self) -> bool:
        """Whether the source brings a `SourceReader` of its own: `create_reader` gives one, and not None."""
        if self._own_reader is None:
            self._own_reader = False
            if type(self.source).create_reader is not Source.create_reader:
                context = self.context(self.options())
                with calling("RDR-2", "create_reader()"):
                    reader = self.source.create_reader(context)
                if reader is not None:
                    self._own_reader = True
                    with calling("RDR-9", "the reader's close()"):
                        reader.close()
                context.hand_back()
        return self._own_reader

    def ended(self, splits: Sequence[Split]) -> list[Split]:
        """Return the splits as a host reads them once: up to their own end, or their present one."""
        ends = self.latest(splits)
        key = self.source.order_key
        result = []
        for split in splits:
            end, own = ends.get(split.id), split.end
            if own is not None:
                self._ending.add(split.id)
            if end is None or (own is not None and (self.source.bounded or key(own) < key(end))):
                result.append(split)
            else:
                result.append(split.slice(split.position, end))
        return result

    # ---- the undisturbed read

    @property
    def traces(self) -> Sequence[Trace]:
        """What the undisturbed read gave, for each sampled split.

        Raises:
            Skip: It failed, which a check of its own has said.
        """
        if self._traces is None:
            raise Skip("the plain read failed, so there is nothing to compare with")
        return self._traces

    def splits_that_wait(self) -> list[Split]:
        """Return the splits behind all their rows, open: there a reader waits for more.

        Raises:
            NotApplicable: No reader of this source ever waits.
            Skip: The plain read failed.
        """
        if self.source.bounded:
            raise NotApplicable("the source is bounded: its readers never wait for more")
        found = [trace for trace in self.traces if trace.split.id not in self._ending]
        if self.traces and not found:
            raise NotApplicable("every split has an end of its own: its readers never wait for more")
        return [trace.rest(trace.last).slice(trace.marks[-1][1], None) for trace in found]

    @property
    def filled(self) -> list[Trace]:
        """Those of `traces` with at least two record batches, so with a position in the middle.

        Raises:
            Skip: There is none.
        """
        found = [trace for trace in self.traces if trace.last >= 2]
        if not found:
            raise Skip(
                "no split gave two record batches, so no read was stopped and resumed in its middle",
                "give the source more rows, or smaller pages",
            )
        return found

    @property
    def whole(self) -> bool:
        """Whether the whole input was read; else `everything` is a sample."""
        return self._everything is not None

    @property
    def everything(self) -> Mapping[str, Sequence[str]]:
        """The rows of every split, or of the sampled ones of a large input."""
        return self._everything or {trace.split.id: trace.rows for trace in self.traces}

    def keep(self, traces: Sequence[Trace], everything: Mapping[str, Sequence[str]] | None) -> None:
        """Take what every other check compares with: the traces, and all rows; None for a large input."""
        self._traces, self._everything = traces, everything

    @property
    def read(self) -> str:
        """How much was read, in words."""
        if self._traces is None:
            return ""
        rows = sum(len(one) for one in self.everything.values())
        sample = "" if self.whole else "a sample of "
        return f"{sample}{rows} rows of {len(self.everything)} splits"

    # ---- with coordinator and readers

    def coordinated(self) -> tuple[Source, HostOptions]:
        """Return the source as a coordinator may see it, and options for reading all of it in few record batches."""
        if self._traces is None:
            return self.source, self.options()
        rows = sum(len(one) for one in self.everything.values())
        sample = None if self.whole else [trace.split for trace in self.traces]
        source = Shield(self.source, sample, live=self.live).source if self.live or sample else self.source
        return source, self.options(rows=max(1, rows // _BATCHES))


def travelled(split: Split, subject: Subject) -> Split:
    """Return a split as it comes out of a checkpoint: through JSON, rebuilt by the source's split class."""
    with calling("SER-2", "Split.to_json() or from_json()"):
        return subject.source.split_class.from_json(json.loads(json.dumps(split.to_json())))
