# SPDX-License-Identifier: Apache-2.0
"""`SourceContract` on an input that a test writes: a good source passes, and what only writing can show is caught."""

from __future__ import annotations

import threading

import pytest
from kit_connectors.written import INPUT, AcknowledgesBeforeItStores, FindsSplitsOnce, Lists, OfLists, PagesBeyondItsEnd

from forebay.framework.arrow.row_packer import Batch
from forebay.framework.split import Split
from forebay.testkit import ConformanceError, SourceContract
from forebay.testkit.checks import ALL
from forebay.testkit.scripted import Counting

RELEASE = threading.Event()


class TestLists(OfLists):
    """All tests of the kit, collected as an author's are."""


class TestBounded(SourceContract):
    """The same for a bounded source of the full layer."""

    def setup_method(self):
        self.sizes: dict[str, int] = {}

    def source(self):
        return Counting(sizes=self.sizes, batch_rows=2)

    def add_split(self):
        self.sizes[f"split {len(self.sizes)}"] = 0
        return list(self.sizes)[-1]

    def write(self, split_id, n):
        self.sizes[split_id] = n
        return [{"split": split_id, "n": i} for i in range(n)]


class FindsSplitsUnderNewIds(Lists):
    def splits(self):
        return [f"{split_id} of {len(INPUT)}" for split_id in INPUT]

    def latest(self, split):
        return len(INPUT[split.id.partition(" of ")[0]])

    def read(self, split):
        yield from super().read(Split(split.id.partition(" of ")[0], split.position, split.end))


class LeavesOutTheFirst(Lists):
    def read(self, split):
        for at in range(split.position or 1, split.end):
            yield Batch([INPUT[split.id][at]], at + 1)


class SkipsWhatGrew(Lists):
    """Takes a position that was the end for the end."""

    seen: str = ""

    def read(self, split):
        start = split.position or 0
        for at in range(start + 1 if start == 4 else start, split.end):
            yield Batch([INPUT[split.id][at]], at + 1)


class FindsWhatIsNotThere(Lists):
    def splits(self):
        return [*INPUT, "and another"]

    def latest(self, split):
        return len(INPUT.get(split.id, []))


class LeavesOutTheNewest(Lists):
    def latest(self, split):
        return max(0, len(INPUT[split.id]) - 1)


@pytest.mark.parametrize(
    ("kind", "test", "rule"),
    [
        (FindsSplitsOnce, "test_ctx_7_splits_added_later_are_found_once", "CTX-7"),
        (FindsSplitsUnderNewIds, "test_ctx_7_splits_added_later_are_found_once", "CTX-7"),
        (LeavesOutTheFirst, "test_sr_2_rows_are_those_written", "SR-2"),
        (LeavesOutTheFirst, "test_sr_4_a_split_of_one_record_gives_it_once", "SR-4"),
        (SkipsWhatGrew, "test_sr_2_rows_written_later_follow_from_the_position_reached", "SR-2"),
        (FindsWhatIsNotThere, "test_sr_2_rows_are_those_written", "SPL-1"),
        (PagesBeyondItsEnd, "test_sr_2_an_old_end_stays_an_end", "SR-2"),
        (LeavesOutTheNewest, "test_sr_2_rows_are_those_written", "SR-2"),
        (AcknowledgesBeforeItStores, "test_err_1_a_failure_while_records_are_taken_loses_none", "ERR-1"),
    ],
)
def test_what_only_writing_can_show_is_caught(kind, test, rule):
    contract = type("Broken", (OfLists,), {"kind": kind, "seconds": 6.0})()
    contract.setup_method()
    with pytest.raises(ConformanceError) as caught:
        getattr(contract, test)()
    assert caught.value.report.rules("failed") == {rule}
    first = str(caught.value).splitlines()[0]
    assert f" breaks {rule}: " in first and "; next step: " in first
    assert "_equal" not in str(caught.value)  # functions of the kit say nothing to an author


def test_a_read_that_does_not_return_is_waited_for_once():
    """Each further test of the class would wait as long: all of them, for minutes."""
    reads = []

    class WaitsForMore(Lists):
        def latest(self, split):
            return None

        def read(self, split):
            reads.append(split.id)
            yield Batch(INPUT[split.id], len(INPUT[split.id]))
            RELEASE.wait()

    contract = type("Waiting", (OfLists,), {"kind": WaitsForMore, "seconds": 3.0})()
    contract.setup_method()
    with pytest.raises(ConformanceError, match=r"has not returned.*return from read\(\) when the split is caught up"):
        contract.test_rdr_3_available()
    RELEASE.set()
    before = len(reads)
    for test in ("test_rdr_5_resumes_anywhere", "test_enu_3_killed_readers", "test_sr_2_rows_are_those_written"):
        with pytest.raises(pytest.skip.Exception, match="the plain read failed: see test_rdr_3_available"):
            getattr(contract, test)()
    assert len(reads) == before


def test_every_generic_check_is_a_test_method():
    assert {check.test_name for check in ALL} <= set(dir(SourceContract))
    documented = SourceContract.test_rdr_5_resumes_anywhere.__doc__  # type: ignore[attr-defined]  # made by the kit
    assert documented == (
        "RDR-5: from any position, a new reader returns exactly the rows up to the end or to a later position."
    )


def test_what_was_entered_is_left_when_the_test_ends(tmp_path):
    contract = OfLists()
    file = contract.enter_context((tmp_path / "a").open("w"))
    contract.teardown_method()
    assert file.closed


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        (lambda rows: None, "it returned None"),
        (lambda rows: rows[1:], "it returned 16 rows for n = 17"),
        (lambda rows: [tuple(row.values()) for row in rows], "row 0 is a tuple"),
        (lambda rows: [{**row, "n": "twelve"} for row in rows], "column 'n' is int64, and "),
    ],
)
def test_what_write_returns_is_checked_before_the_source_is_blamed(returned, why):
    class Mistaken(OfLists):
        def write(self, split_id, n):
            return returned(super().write(split_id, n))

    author = Mistaken()
    author.setup_method()
    with pytest.raises(AssertionError) as caught:
        author.test_sr_2_rows_are_those_written()
    assert str(caught.value).startswith(
        "write() must return the n rows that it wrote, as dicts of the values to be read, of the types in schema(): "
        f"{why}"
    ), caught.value
    assert not isinstance(caught.value, ConformanceError)


def test_an_error_of_write_is_one_of_the_test():
    class Failing(OfLists):
        def write(self, split_id, n):
            raise OSError("the thread is another one")

    author = Failing()
    author.setup_method()
    with pytest.raises(AssertionError, match=r"write\(\) failed with OSError: the thread is another one") as caught:
        author.test_sr_2_rows_are_those_written()
    assert not isinstance(caught.value, ConformanceError)


class OneSplit(OfLists):
    """An author who does not say that there is only one split."""

    def add_split(self):
        INPUT.setdefault("all", [])
        return "all"


class OneSplitSaid(OneSplit):
    most_splits = 1


def test_a_split_that_is_added_twice_is_a_mistake_of_the_test():
    case = OneSplit()
    case.setup_method()
    with pytest.raises(AssertionError, match=r"returned 'all' again.*set most_splits = 1 in the class"):
        case.test_sr_2_rows_are_those_written()
    said = OneSplitSaid()
    said.setup_method()
    said.test_sr_2_rows_are_those_written()
