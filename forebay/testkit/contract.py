# SPDX-License-Identifier: Apache-2.0
"""`SourceContract`: the conformance kit as a test class, for a source whose input the test can write."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, TypeVar

from forebay.framework.source import Source
from forebay.framework.split import Position
from forebay.testkit.checks import AFTER_READING, ALL, READ, Check
from forebay.testkit.leaks import unclosed
from forebay.testkit.outcomes import Broken, ConformanceError, RepeatedSplit, Report, Result, UnfitRows
from forebay.testkit.parts import read_part
from forebay.testkit.rig import Rig
from forebay.testkit.session import Session, read_undisturbed
from forebay.testkit.subject import Subject

Row = Mapping[str, Any]
T = TypeVar("T")


class SourceContract(ABC):
    """Every rule that any source must keep, as test methods; subclass it in a test module, under a name in `Test…`.

    ```python
    class TestOrders(SourceContract):
        def setup_method(self): self.service = self.enter_context(FakeService())
        def source(self): return Orders(url=self.service.url)
        def add_split(self): return self.service.add_region()
        def write(self, split_id, n): return self.service.add_orders(split_id, n)
    ```

    pytest makes a new instance for each test, so each begins with an empty input; make it in `setup_method` or in an
    autouse fixture. All splits and rows are written before `source` is called, except for an unbounded source, which
    must find what is written later too. Needs nothing of pytest but its collecting, and its `skip`, for what does not
    apply to the source; a check that applies and cannot run fails.
    """

    most_splits: int | None = None
    """How many splits `add_split` can make, for a source that has only so many."""

    seconds: float = 30.0
    """The time for one test; a sixth of it is how long one silence may last."""

    seed: int = 0
    """Chooses positions and moments."""

    @abstractmethod
    def source(self) -> Source:
        """Return the source, reading the input of this test."""

    @abstractmethod
    def add_split(self) -> str:
        """Add an empty split to the input and return its id."""

    @abstractmethod
    def write(self, split_id: str, n: int) -> Sequence[Row]:
        """Append `n` records to a split and return them as rows, in the order in which they must come.

        Called once for each split of a bounded source. Values may be anything that Arrow makes the column's type of.
        """

    def enter_context(self, manager: AbstractContextManager[T]) -> T:
        """Enter a context manager that is left when the test ends; for `setup_method`."""
        self.__dict__.setdefault("_contexts", ExitStack())
        stack: ExitStack = self.__dict__["_contexts"]
        return stack.enter_context(manager)

    def teardown_method(self) -> None:
        """Leave what was entered. Called by pytest."""
        self.__dict__.pop("_contexts", ExitStack()).close()

    # ---- what was written is what is read

    def test_sr_2_rows_are_those_written(self) -> None:
        """SR-2: each split gives its rows, in order, and discovery finds these splits and no others."""
        self._run(_ROWS, _discovered_and_equal, 13, 5)

    def test_sr_3_an_empty_split_is_finished(self) -> None:
        """SR-3: a split without a record ends, alone."""
        self._run("SR-3: a split without a record ends, alone", _discovered_and_equal, 0)

    def test_sr_3_an_empty_split_among_others_is_finished(self) -> None:
        """SR-3: a split without a record ends, among others; SR-4, a split of one record."""
        self._need(4)
        self._run("SR-3: a split without a record ends, among others", _discovered_and_equal, 0, 4, 0, 1)

    def test_sr_4_a_split_of_one_record_gives_it_once(self) -> None:
        """SR-4: one record, one end."""
        self._run("SR-4: a split of one record gives it once", _discovered_and_equal, 1)

    def test_enu_10_a_reader_more_than_splits(self) -> None:
        """ENU-10: an idle reader does not keep a read from ending."""
        self._run(
            "ENU-10: more readers than splits: all rows come, and every reader comes to its end",
            lambda subject, rows: _by_readers(subject, rows, len(rows) + 1),
            3,
            2,
        )

    # ---- what is written later is read too

    def test_sr_2_rows_written_later_follow_from_the_position_reached(self) -> None:
        """SR-2: an unbounded split that has grown gives what is new, from where its last read ended."""
        self._need_unbounded()

        def grow(subject: Subject, rows: dict[str, list[str]]) -> None:
            for _ in range(2):
                read_undisturbed(subject)
                held = [trace.rest(trace.last) for trace in subject.traces]
                later = {split_id: subject.rows_of(self._write(split_id, 3)) for split_id in rows}
                held = subject.ended([split.slice(split.position, None) for split in held])
                for split in held:
                    with Session(subject, [split]) as session:
                        session.run()
                    _equal(subject, split.id, session.rows(split.id), later[split.id], "read on after it had grown")

        self._run("SR-2: a split that has grown gives what is new, from where its last read ended", grow, 4, 0)

    def test_sr_2_an_old_end_stays_an_end(self) -> None:
        """SR-2: a read to an end of before gives what it gave then, however much has come since.

        Spark reads a micro-batch again after a crash, to its old end.
        """
        self._need_unbounded()

        def grow(subject: Subject, rows: dict[str, list[str]]) -> None:
            ends: list[tuple[str, int, Position | None]] = []
            for size in _GROWTH:
                read_undisturbed(subject)
                ends += [(one.split.id, len(one.rows), one.split.end) for one in subject.traces if one.rows]
                for split_id in rows:
                    rows[split_id] += subject.rows_of(self._write(split_id, size))
            read_undisturbed(subject)
            for trace in subject.traces:
                _equal(subject, trace.split.id, trace.rows, rows[trace.split.id], "read after it had grown")
                for split_id, count, end in ends:
                    if split_id == trace.split.id:
                        read_part(subject, trace, trace.marks[0], (count, end), where=_OLD)

        self._run("SR-2: a read to an old end gives what it gave then, however much has come since", grow, 1, 2)

    def test_rdr_5_rows_written_while_readers_run_come_once(self) -> None:
        """RDR-5: running readers give what is added to their splits."""
        self._need_unbounded()

        def grow(subject: Subject, rows: dict[str, list[str]]) -> None:
            with Rig(subject, 2) as rig:
                for _ in range(3):
                    rig.run(lambda: rig.caught_up({key: len(value) for key, value in rows.items()}))
                    for split_id in rows:
                        rows[split_id] += subject.rows_of(self._write(split_id, 2))
                rig.run(lambda: rig.caught_up({key: len(value) for key, value in rows.items()}))
            _equal_all(subject, rig.rows, rows, "with rows written while it was read")

        self._run("RDR-5: running readers give what is added to their splits", grow, 3, 1)

    def test_ctx_7_splits_added_later_are_found_once(self) -> None:
        """CTX-7: a later discovery finds what is new, and nothing twice; an earlier crash does not change that."""
        self._need_unbounded()
        self._need(3)

        def later(subject: Subject, rows: dict[str, list[str]]) -> None:
            with Rig(subject, 2) as rig:
                rig.run(lambda: rig.caught_up({key: len(value) for key, value in rows.items()}))
                self._add(subject, rows, 4)
                rig.run(lambda: rig.caught_up({key: len(value) for key, value in rows.items()}))
                cut = rig.checkpoint()
            self._add(subject, rows, 2)
            with Rig(subject, 3, cut=cut) as rig:
                rig.run(lambda: rig.caught_up({key: len(value) for key, value in rows.items()}))
            _equal_all(subject, rig.rows, rows, "with splits added while it was read, and after a crash")

        self._run("CTX-7: a later discovery finds what is new, and nothing twice", later, 3)

    # ---- machinery

    def _run(self, says: str, run: Callable[[Subject, dict[str, list[str]]], None], *sizes: int) -> None:
        """Write splits of these sizes, and judge a check that knows their rows; `says` is its rule, and what holds."""
        __tracebackhide__ = True
        self._need_reading()
        written = self._written(*sizes)
        subject = Subject(self.source(), seconds=self.seconds, seed=self.seed, live=False)
        rows: dict[str, list[str]] = {}

        def with_rows(checked: Subject) -> None:
            rows.update((split_id, checked.rows_of(expected)) for split_id, expected in written.items())
            run(checked, rows)

        rule, _, text = says.partition(": ")
        self._judge(subject, Check(rule, text, with_rows))

    def _run_generic(self, check: Check) -> None:
        """Write some splits, and judge a generic check, after the plain read that most compare with."""
        __tracebackhide__ = True
        if check in AFTER_READING:
            self._need_reading()
        self._written(9, 0, 5)
        subject = Subject(self.source(), seconds=self.seconds, seed=self.seed, live=False)
        if check in AFTER_READING and self._plain_read_failed(READ.judge(subject)):
            subject.close()
            self._need_reading()
        self._judge(subject, check)

    def _judge(self, subject: Subject, check: Check) -> None:
        __tracebackhide__ = True
        started = time.monotonic()
        with unclosed():  # a check of its own counts them
            try:
                result = check.judge(subject)
            finally:
                subject.close()
        if check is READ:
            self._plain_read_failed(result)
        if result.outcome in {"failed", "skipped"}:
            raise ConformanceError(Report(subject.source.name, [result], self.seed, time.monotonic() - started))
        if result.outcome == "n/a":
            _skip(result.why)

    def _plain_read_failed(self, result: Result) -> bool:
        """Return whether the plain read failed, and keep that for the other tests of the class."""
        if result.outcome != "passed":
            setattr(type(self), _UNREADABLE, True)
        return result.outcome != "passed"

    def _need_reading(self) -> None:
        """Skip what compares with the plain read, if that failed: one that hangs would hang in every test."""
        if _UNREADABLE in vars(type(self)):
            _skip(f"the plain read failed: see {READ.test_name}")

    def _written(self, *sizes: int) -> dict[str, Sequence[Row]]:
        """Add splits and write to each; fewer where the source has fewer."""
        ids = [self._new_split() for _ in sizes[: self.most_splits]]
        return {
            split_id: self._write(split_id, size) if size else [] for split_id, size in zip(ids, sizes, strict=False)
        }

    def _new_split(self) -> str:
        """Add a split, and refuse one that is there: its rows would be looked for twice."""
        made: set[str] = self.__dict__.setdefault("_made", set())
        split_id = self.add_split()
        if split_id in made:
            raise RepeatedSplit(split_id, len(made))
        made.add(split_id)
        return split_id

    def _write(self, split_id: str, n: int) -> Sequence[Row]:
        """Write rows, and refuse what cannot be those: that would be told as a fault of the source."""
        written: object = self.write(split_id, n)
        if not isinstance(written, Iterable):
            raise UnfitRows(f"it returned {written!r:.80}")
        rows = list(written)
        if len(rows) != n:
            raise UnfitRows(f"it returned {len(rows)} rows for n = {n}")
        for number, row in enumerate(rows):
            if not isinstance(row, Mapping):
                raise UnfitRows(f"row {number} is a {type(row).__name__}")
        return rows

    def _add(self, subject: Subject, rows: dict[str, list[str]], size: int) -> None:
        split_id = self._new_split()
        rows[split_id] = subject.rows_of(self._write(split_id, size))

    def _need(self, splits: int) -> None:
        if self.most_splits is not None and self.most_splits < splits:
            _skip(f"the source has at most {self.most_splits} splits")

    def _need_unbounded(self) -> None:
        if self.source().bounded:
            _skip("the source is bounded")


def _discovered_and_equal(subject: Subject, rows: dict[str, list[str]]) -> None:
    found = {split.id for split in subject.discover()}
    if found != rows.keys():
        raise Broken(f"discovery found {sorted(found)}, but the splits are {sorted(rows)}", _DISCOVER, rule="SPL-1")
    read_undisturbed(subject)
    got = {trace.split.id: list(trace.rows) for trace in subject.traces}
    _equal_all(subject, got, rows, "read by a reader of its own")
    with Session(subject, [trace.split for trace in subject.traces]) as session:
        session.run()
    _equal_all(subject, session.output.rows, rows, "read by one reader with all the others")


def _by_readers(subject: Subject, rows: dict[str, list[str]], readers: int) -> None:
    with Rig(subject, readers) as rig:
        if subject.source.bounded:
            rig.run(rig.everything_told)
        else:
            rig.run(lambda: rig.caught_up({key: len(value) for key, value in rows.items()}))
    _equal_all(subject, rig.rows, rows, f"read by {readers} readers")


def _equal(subject: Subject, split_id: str, got: Sequence[str], wanted: Sequence[str], how: str) -> None:
    subject.compare(split_id, got, wanted, how, "give every record that is there, once, in order")


def _equal_all(
    subject: Subject, got: Mapping[str, Sequence[str]], wanted: Mapping[str, Sequence[str]], how: str
) -> None:
    for split_id, rows in wanted.items():
        _equal(subject, split_id, got.get(split_id, []), rows, how)
    if surplus := sorted(split_id for split_id in got.keys() - wanted.keys() if got[split_id]):
        raise Broken(f"rows came for {surplus}, which were not written, {how}", _DISCOVER)


_ROWS = "SR-2: each split gives its rows, in order, and discovery finds these splits and no others"
_OLD = ", an old end, with more behind it by now"
_GROWTH = (2, 1, 3, 5)
"""Rows that are written between two reads, so that ends lie at many places of pages of any size."""
_UNREADABLE = "_plain_read_failed_before"
_DISCOVER = "discover each part of the input once, under an id derived from what it is, and nothing else"


def _skip(why: str) -> None:
    """Skip the test that is running."""
    import pytest  # of the author's own tests, so it is there

    pytest.skip(why)


def _add_generic_tests() -> None:
    """Give the class one test method for each generic check."""

    def method(check: Check) -> Callable[[SourceContract], None]:
        def test(self: SourceContract) -> None:
            __tracebackhide__ = True
            self._run_generic(check)

        test.__doc__ = f"{check.rule}: {check.text}."
        test.__name__ = check.test_name
        test.__qualname__ = f"{SourceContract.__qualname__}.{check.test_name}"
        return test

    for check in ALL:
        setattr(SourceContract, check.test_name, method(check))


_add_generic_tests()
