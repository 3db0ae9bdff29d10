# SPDX-License-Identifier: Apache-2.0
"""The source under test, and the plain read, with which its other reads are compared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import cast

import pyarrow as pa

from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay.testkit.findings import Broken, NotApplicable, Skip, unfit_rows
from forebay.testkit.harness.guarded_calls import calling
from forebay.testkit.harness.read_only_source import ReadOnlySource
from forebay.testkit.harness.source_calls import SourceCalls
from forebay.testkit.harness.traces import PlainRead, Trace, difference

_BATCHES = 60
"""Target number of record batches when a check reads the whole input many times."""


class Subject(SourceCalls):
    """One source, and everything that checks share; the arguments are those of `SourceCalls`."""

    def __init__(self, source: Source, *, seconds: float, seed: int, live: bool) -> None:
        super().__init__(source, seconds=seconds, seed=seed, live=live)
        self.blocked = ""
        """Why checks cannot run the enumerator with readers; set once a check has found it."""
        self.plain: PlainRead | None = None

    def on(self, source: Source, *, patience: float | None = None) -> Subject:
        """Return another source of the same input as a subject without a plain read, with the same deadline."""
        other = Subject(source, seconds=0.0, seed=self.seed, live=self.live)
        other.deadline, other.patience = self.deadline, patience or self.patience
        return other

    def rows(self, batch: object, split_id: str) -> list[str]:
        """Return the rows of a record batch as text; refuse another schema than the source's."""
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
        """Return an author's expected rows as the same text; refuse rows that do not fit the schema."""
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
        """Compare rows, in order. `how` says how they were read; it and `advice` are for the error.

        After a read without an end (`open_ended`) of an input that may grow, more rows at the end are no fault.

        Raises:
            Broken: They differ; the rule is that of the check unless given.
        """
        traces = self.plain.traces if self.plain else ()
        open_ended = open_ended or any(one.split.id == split_id and one.split.end is None for one in traces)
        shown = got if self.exact or not open_ended or len(got) < len(wanted) else got[: len(wanted)]
        if list(shown) != list(wanted):
            raise Broken(f"split {split_id!r}, {how}: {difference(shown, wanted)}", advice, rule=rule)

    def compare_traces(
        self, got: Mapping[str, Sequence[str]], how: str, advice: str, traces: Sequence[Trace] | None = None
    ) -> None:
        """Compare rows with the plain read, of all sampled splits unless `traces` are given."""
        for trace in self.traces if traces is None else traces:
            self.compare(trace.split.id, got.get(trace.split.id, []), trace.rows, how, advice)

    @property
    def _read(self) -> PlainRead:
        if self.plain is None:
            raise Skip("the plain read failed, so there is nothing to compare with")
        return self.plain

    @property
    def whole(self) -> bool:
        """Whether the plain read was of the whole input, not of a sample."""
        return self._read.whole

    @property
    def everything(self) -> Mapping[str, Sequence[str]]:
        """The rows of every split, or of the sampled ones of a large input."""
        return self._read.rows

    @property
    def traces(self) -> Sequence[Trace]:
        """The plain read of each sampled split."""
        return self._read.traces

    @property
    def splits(self) -> list[Split]:
        """The sampled splits."""
        return [trace.split for trace in self.traces]

    def waiting_splits(self) -> list[Split]:
        """Return the splits without an end, after all their rows: there a reader waits for more."""
        if self.source.bounded:
            raise NotApplicable("the source is bounded: its readers never wait for more")
        found = [trace for trace in self.traces if trace.split.id not in self.ending]
        if self.traces and not found:
            raise NotApplicable("every split has its own end: its readers never wait for more")
        return [trace.split.slice(trace.marks[-1][1], None) for trace in found]

    @property
    def filled(self) -> list[Trace]:
        """Return the `traces` with at least two record batches, so with a position in the middle."""
        if found := [trace for trace in self.traces if trace.last >= 2]:
            return found
        raise Skip(
            "no split has two record batches, so no read could be stopped and resumed in the middle",
            "check a source with more rows, or smaller pages",
        )

    def coordinated(self) -> tuple[Source, HostOptions]:
        """Return the source that a coordinator may use, and options for reading it in few record batches."""
        if self.plain is None:
            return self.source, self.options()
        sample = None if self.whole else self.splits
        source = self.source
        if self.live or sample:
            # A coordinator uses attributes of the source, and create_enumerator.
            source = cast("Source", ReadOnlySource(self.source, sample, live=self.live))
        return source, self.options(rows=max(1, self.plain.count // _BATCHES))


def through_json(split: Split, subject: Subject) -> Split:
    """Return a split as restored from a checkpoint: through JSON, rebuilt by the source's split class."""
    with calling("SER-2", "Split.to_json() or from_json()"):
        return subject.source.split_class.from_json(json.loads(json.dumps(split.to_json())))
