# SPDX-License-Identifier: Apache-2.0
"""The source under test, and the comparison of its reads with the plain read (one read without disturbance)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import pyarrow as pa

from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.enumerator import SplitEnumerator, SplitEnumeratorContext
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay.testkit.findings import Broken, NotApplicable, Skip, unfit_rows
from forebay.testkit.harness.guarded_calls import calling
from forebay.testkit.harness.source_calls import SourceCalls
from forebay.testkit.harness.traces import PlainRead, Trace, difference

_BATCHES = 60
"""Target number of record batches when a check reads the whole input many times."""


@dataclass(frozen=True, slots=True)
class WrongPages:
    """A read in smaller pages that left out, doubled or moved rows.

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
        self.small_pages: tuple[str, Source] | None = None
        """The option that sets the size of pages, if there is one, and a copy of the source with smaller pages."""
        self.wrong_pages: WrongPages | None = None
        """A read in smaller pages that left out, doubled or moved rows."""

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
        wanted: Sequence[str],
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
            wanted: The expected rows, as text.
            how: How the rows were read, for the error text.
            advice: The author's next step, for the error text.
            open_ended: Whether the read had no end. More rows than expected are then allowed if the input may grow.
            rule: The id of the rule that a difference breaks; None for the rule of the running check.

        Raises:
            Broken: The rows differ.
        """
        traces = self.plain.traces if self.plain else ()
        open_ended = open_ended or any(one.split.id == split_id and one.split.end is None for one in traces)
        shown = got if self.exact or not open_ended or len(got) < len(wanted) else got[: len(wanted)]
        if list(shown) != list(wanted):
            raise Broken(f"split {split_id!r}, {how}: {difference(shown, wanted)}", advice, rule=rule)

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
        found = [trace for trace in self.traces if trace.split.id not in self.ending]
        if self.traces and not found:
            raise NotApplicable("every split has its own end: its readers never wait for more")
        return [trace.split.slice(trace.marks[-1][1], None) for trace in found]

    @property
    def filled(self) -> list[Trace]:
        """The `traces` with at least two record batches, in which a read can stop and resume.

        Raises:
            Skip: No split has two record batches.
        """
        if found := [trace for trace in self.traces if trace.last >= 2]:
            return found
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
                found: object = discover(known, first)
                if not isinstance(found, Discovered):
                    return cast("Discovered", found)  # refused by the coordinator
                return replace(found, splits=[sample[one.id] for one in found.splits if one.id in sample])

            vars(made)["discover"] = sampled
        return made
