# SPDX-License-Identifier: Apache-2.0
"""`SourceContract`: the conformance kit as a test class, for a source whose input the test can write."""

from __future__ import annotations

import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, TypeVar

from forebay.framework.runtime.clients import drop_clients
from forebay.framework.source import Source
from forebay.framework.split import Position
from forebay.testkit.checks import AFTER_READING, ALL, READ, Check
from forebay.testkit.checks.faults import NO_CALL, unclosed
from forebay.testkit.checks.readers import OLD_END
from forebay.testkit.harness.reads import Written, check_range, check_written, compare_written, read, read_plain
from forebay.testkit.harness.single_thread_host import SingleThreadHost
from forebay.testkit.harness.subject import Hybrid, Subject
from forebay.testkit.harness.surroundings import failing_calls
from forebay.testkit.outcomes import (
    AuthorMistake,
    ConformanceError,
    ConformanceWarning,
    Finding,
    NotApplicable,
    Report,
    Result,
    unfit_rows,
)

Row = Mapping[str, Any]
T = TypeVar("T")


def _skip(why: str) -> None:
    """Skip the test that is running."""
    import pytest  # it runs the author's tests, so it is installed

    pytest.skip(why)


def _named(test: Callable[[SourceContract], None], name: str, doc: str | None) -> Callable[[SourceContract], None]:
    test.__name__, test.__qualname__, test.__doc__ = name, f"SourceContract.{name}", doc
    return test


def _with_rows(
    *sizes: int, splits: int = 1, unbounded: bool = False
) -> Callable[[Callable[[SourceContract, Subject, Written], None]], Callable[[SourceContract], None]]:
    """Return a decorator that makes a check a test method, which first writes one split for each row count in `sizes`.

    The test is skipped if the source cannot have `splits` splits, or if it is bounded and `unbounded` is True.
    """

    def decorate(check: Callable[[SourceContract, Subject, Written], None]) -> Callable[[SourceContract], None]:
        def test(self: SourceContract) -> None:
            __tracebackhide__ = True
            if unbounded and self.source().bounded:
                _skip("the source is bounded")
            if self.most_splits is not None and self.most_splits < splits:
                _skip(f"the source has at most {self.most_splits} splits")
            self._need_reading()
            written = self._written(*sizes)

            def run(subject: Subject) -> None:
                check(self, subject, {split_id: subject.rows_of(rows) for split_id, rows in written.items()})

            run.__doc__ = check.__doc__
            self._judge(self._subject(), Check.of(run))

        return _named(test, check.__name__, check.__doc__)

    return decorate


class SourceContract(ABC):
    """A test class that checks every rule for sources. Subclass it in a test module; begin the name with `Test`.

    ```python
    class TestOrders(SourceContract):
        def setup_method(self): self.service = self.enter_context(FakeService())
        def source(self): return Orders(url=self.service.url)
        def add_split(self): return self.service.add_region()
        def write(self, split_id, n): return self.service.add_orders(split_id, n)
    ```

    pytest creates a new instance for each test. Create an empty input in `setup_method` or in an autouse fixture. All
    splits and rows are written before `source` is called, except for an unbounded source, which must also find later
    splits and rows. A check that does not apply to the source is a skipped test. A check that applies and cannot run
    fails.
    """

    most_splits: int | None = None
    """Maximum number of splits that `add_split` can add; None for no limit."""

    seconds: float = 30.0
    """Maximum seconds for one test. A source that returns nothing for a sixth of this time counts as hanging."""

    seed: int = 0
    """Seeds the random positions and steps at which the tests interrupt a read."""

    stored: Sequence[Mapping[str, Any]] = ()
    """Splits that older versions of the connector stored, as `Split.to_json` returned them; see `check`."""

    @abstractmethod
    def source(self) -> Source:
        """Return the source under test, which reads the input of this test."""

    @abstractmethod
    def add_split(self) -> str:
        """Add an empty split to the input and return its id."""

    @abstractmethod
    def write(self, split_id: str, n: int) -> Sequence[Row]:
        """Append `n` records to a split and return them as rows, in the order in which the source must return them.

        Called once for each split of a bounded source. Arrow must be able to convert each value to its column's type.
        """

    def enter_context(self, manager: AbstractContextManager[T]) -> T:
        """Enter a context manager, and exit it when the test ends; for `setup_method`."""
        self.__dict__.setdefault("_contexts", ExitStack())
        stack: ExitStack = self.__dict__["_contexts"]
        return stack.enter_context(manager)

    def teardown_method(self) -> None:
        """Exit the entered context managers. Called by pytest."""
        self.__dict__.pop("_contexts", ExitStack()).close()

    # ---- the rows written are the rows read

    @_with_rows(17, 5, 0, 1)
    def test_sr_2_rows_are_those_written(self, subject: Subject, rows: Written) -> None:
        """SR-2: discovery finds the written splits and no others; each split returns the written rows, in order."""
        check_written(subject, rows)

    @_with_rows(0)
    def test_sr_3_an_empty_split_is_finished(self, subject: Subject, rows: Written) -> None:
        """SR-3: a split without records is finished, also if the whole input is empty."""
        check_written(subject, rows)

    @_with_rows(1)
    def test_sr_4_a_split_of_one_record_gives_it_once(self, subject: Subject, rows: Written) -> None:
        """SR-4: a split of one record returns it once, also if the input has no other record."""
        check_written(subject, rows)

    # ---- rows that are written later are read too

    @_with_rows(4, 0, unbounded=True)
    def test_sr_2_rows_written_later_follow_from_the_position_reached(self, subject: Subject, rows: Written) -> None:
        """SR-2: after a split has grown, a read from the end of the last read returns the new rows."""
        for _ in range(2):
            read_plain(subject)
            held = [trace.rest(trace.last) for trace in subject.traces]
            later = {split_id: subject.rows_of(self._write(split_id, 3)) for split_id in rows}
            for split in subject.ended([split.slice(split.position, None) for split in held]):
                expected = {split.id: later[split.id]}
                compare_written(subject, read(subject, [split]).rows, expected, "read further after it had grown")

    @_with_rows(1, 2, unbounded=True)
    def test_sr_2_an_old_end_stays_an_end(self, subject: Subject, rows: Written) -> None:
        """SR-2: a read to an old end returns the same rows after the input has grown.

        After a crash, Spark reads a micro-batch again, to its old end.
        """
        ends: list[tuple[str, int, Position | None]] = []
        for size in _GROWTH:
            read_plain(subject)
            ends += [(one.split.id, len(one.rows), one.split.end) for one in subject.traces if one.rows]
            self._grow(subject, rows, size)
        read_plain(subject)
        for trace in subject.traces:
            split_id = trace.split.id
            compare_written(subject, {split_id: trace.rows}, {split_id: rows[split_id]}, "read after it had grown")
            for grown, count, end in ends:
                if grown == split_id:
                    check_range(subject, trace, trace.marks[0], (count, end), where=OLD_END)

    @_with_rows(3, 1, unbounded=True)
    def test_rdr_5_rows_written_while_readers_run_come_once(self, subject: Subject, rows: Written) -> None:
        """RDR-5: running readers return the rows that are added to their splits, once."""
        with SingleThreadHost(subject) as host:
            for _ in range(3):
                host.run(lambda: host.has_read(rows))
                self._grow(subject, rows, 2)
            host.run(lambda: host.has_read(rows))
        compare_written(subject, host.rows, rows, "with rows written while it was read")

    @_with_rows(3, splits=3, unbounded=True)
    def test_ctx_7_splits_added_later_are_found_once(self, subject: Subject, rows: Written) -> None:
        """CTX-7: a later discovery finds new splits once, also after a crash."""
        with SingleThreadHost(subject) as host:
            host.run(lambda: host.has_read(rows))
            self._grow(subject, rows, 4, [self._new_split()])
            host.run(lambda: host.has_read(rows))
            checkpoint = host.checkpoint()
        self._grow(subject, rows, 2, [self._new_split()])
        with SingleThreadHost(subject, restored=checkpoint) as host:
            host.run(lambda: host.has_read(rows))
        compare_written(subject, host.rows, rows, "with splits added while it was read, and after a crash")

    # ---- records that reading takes away

    @_with_rows(1, 2, unbounded=True)
    def test_err_1_a_failure_while_records_are_taken_loses_none(self, subject: Subject, rows: Written) -> None:
        """ERR-1: a source that consumes its input loses and doubles no record when a call of its client fails.

        The calls of discovery and `latest` fail one after the other. The records may come in any order.
        """
        if not subject.source.consumes:
            raise NotApplicable("the source takes no records away: `consumes` is False")
        failed: list[str] = []
        for number in range(1, _MOST_FAILURES):
            self._grow(subject, rows, 2)
            with failing_calls(number) as failing:
                try:
                    subject.latest(subject.discover())
                except Finding:
                    raise
                except Exception as error:  # noqa: BLE001 - any error is a right answer
                    drop_clients(subject.source.name, error)
            if not failing.failed:
                break
            failed.append(failing.failed)
        if not failed:
            raise NotApplicable(NO_CALL)
        ends = subject.latest(subject.discover())
        while ends != (ends := subject.latest(subject.discover())):
            subject.need_time()
        read_plain(subject)
        how = f"after these had failed, one at a time: {', '.join(dict.fromkeys(failed))}"
        for split_id, expected in rows.items():
            advice = (
                "store records durably, then acknowledge them; and know those that are stored already by an id when "
                "they are delivered again"
            )
            subject.compare(split_id, sorted(subject.everything.get(split_id, [])), sorted(expected), how, advice)

    # ---- how a test runs

    def _run_generic(self, check: Check) -> None:
        """Write up to three splits, do the plain read with which most checks compare, and run a generic check."""
        __tracebackhide__ = True
        if check in AFTER_READING:
            self._need_reading()
        self._written(9, 0, 5)
        subject = self._subject()
        if check in AFTER_READING and self._plain_read_failed(READ.judge(subject)):
            subject.close()
            self._need_reading()
        self._judge(subject, check)

    def _subject(self) -> Subject:
        source = self.source()
        if isinstance(source, Hybrid):
            raise AuthorMistake(
                f"source() returned {source.name}, whose splits and rows depend on when its sources are read: write a "
                "SourceContract for each of its sources, and call check() with the hybrid"
            )
        return Subject(source, seconds=self.seconds, seed=self.seed, live=False, stored=self.stored)

    def _judge(self, subject: Subject, check: Check) -> None:
        __tracebackhide__ = True
        started = time.monotonic()
        with unclosed():  # the checks of leaks count these warnings
            try:
                result = check.judge(subject)
            finally:
                subject.close()
        if check is READ:
            self._plain_read_failed(result)
        if result.outcome in {"failed", "skipped"}:
            raise ConformanceError(Report(subject.source.name, [result], self.seed, time.monotonic() - started))
        if result.outcome == "warned":
            warnings.warn(f"{subject.source.name}: {result.rule}: {result.line}", ConformanceWarning, stacklevel=2)
        if result.outcome == "n/a":
            _skip(result.why)

    def _plain_read_failed(self, result: Result) -> bool:
        """Return whether the plain read failed. Record a failure on the class, so that later tests are skipped."""
        if result.outcome != "passed":
            setattr(type(self), _UNREADABLE, True)
        return result.outcome != "passed"

    def _need_reading(self) -> None:
        """Skip the test if the plain read failed in an earlier test: a hanging read would hang in every test."""
        if _UNREADABLE in vars(type(self)):
            _skip(f"the plain read failed: see {READ.test_name}")

    # ---- the input

    def _written(self, *sizes: int) -> dict[str, Sequence[Row]]:
        """Add one split per size, at most `most_splits`, and write its rows. Return the rows by split id."""
        ids = [self._new_split() for _ in sizes[: self.most_splits]]
        return {
            split_id: self._write(split_id, size) if size else [] for split_id, size in zip(ids, sizes, strict=False)
        }

    def _grow(self, subject: Subject, rows: Written, size: int, split_ids: Iterable[str] | None = None) -> None:
        """Write `size` rows to each of `split_ids`, or to all splits, and add them to the expected `rows`."""
        for split_id in split_ids or list(rows):
            rows[split_id] = rows.get(split_id, []) + subject.rows_of(self._write(split_id, size))

    def _new_split(self) -> str:
        """Add a split and return its id. Refuse an id that `add_split` has returned before."""
        made: set[str] = self.__dict__.setdefault("_made", set())
        split_id = self.add_split()
        if split_id in made:
            raise AuthorMistake(
                f"add_split() must add a new split each time, but returned {split_id!r} again: if the source cannot "
                f"have more than {len(made)}, set most_splits = {len(made)} in the class"
            )
        made.add(split_id)
        return split_id

    def _write(self, split_id: str, n: int) -> Sequence[Row]:
        """Call `write` and return its rows. Refuse a wrong result, which would look like a defect of the source."""
        try:
            written: object = self.write(split_id, n)
        except Exception as error:  # of the author's test, whatever it is
            raise AuthorMistake(
                f"write() failed with {type(error).__name__}: {error}; if that is about threads: it runs on others "
                "than setup_method(), for which a connection of SQLite needs check_same_thread=False"
            ) from error
        if not isinstance(written, Iterable):
            raise unfit_rows(f"it returned {written!r:.80}")
        rows = list(written)
        if len(rows) != n:
            raise unfit_rows(f"it returned {len(rows)} rows for n = {n}")
        for number, row in enumerate(rows):
            if not isinstance(row, Mapping):
                raise unfit_rows(f"row {number} is a {type(row).__name__}")
        return rows


_MOST_FAILURES = 30
_GROWTH = (2, 1, 3, 5)
"""Numbers of rows to write between two reads. They vary, so that ends lie at many places inside pages of any size."""
_UNREADABLE = "_plain_read_failed_before"


def _add_generic_tests() -> None:
    """Add a test method to `SourceContract` for each generic check."""
    for check in ALL:

        def test(self: SourceContract, check: Check = check) -> None:
            __tracebackhide__ = True
            self._run_generic(check)

        setattr(SourceContract, check.test_name, _named(test, check.test_name, f"{check.rule}: {check.text}."))


_add_generic_tests()
