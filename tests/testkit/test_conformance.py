# SPDX-License-Identifier: Apache-2.0
"""The reports, verdicts and skipped checks of the kit, and that it does not change its input."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pytest

import forebay
from forebay import testkit
from forebay.errors import ConfigurationError, FatalError, RetriableError
from forebay.framework.arrow.row_packer import Batch
from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.enumerator import SplitEnumerator
from forebay.framework.simple import SimpleSource
from forebay.framework.split import Split
from forebay.testkit.checks import ALL, Check
from forebay.testkit.harness.subject import Subject
from forebay.testkit.outcomes import Report, Result
from forebay.testkit.scripted import Counting

RELEASE = threading.Event()
REASONS = [("short", "A"), ("more of it", "A"), ("small", "B")]


@pytest.fixture(autouse=True)
def _release():
    RELEASE.clear()
    yield
    RELEASE.set()


class Countdown(SimpleSource):
    start: int = 5

    def schema(self):
        return pa.schema({"n": pa.int64()})

    def read(self, split):
        for i in range(split.position or 0, self.start):
            yield {"n": self.start - i}


class Jumping(Countdown):
    def read(self, split):
        for i in range((split.position or 0) * 2, self.start):
            yield {"n": self.start - i}


class Forgets(Countdown):
    """Its rows are gone after so many reads, as messages that someone acknowledged."""

    reads: ClassVar[list[int]] = [0]

    def read(self, split):
        self.reads[0] += 1
        return super().read(split) if self.reads[0] < 12 else iter(())


@pytest.mark.soak
def test_rows_that_vanish_while_the_kit_reads_are_said_to_vanish():
    with pytest.raises(testkit.ConformanceError) as caught:
        testkit.check(Forgets())
    assert caught.value.report.headline.startswith("forgets breaks RDR-5: later, after ")
    assert "read again, with 1 rows a record batch: 0 rows came, 5 were expected" in caught.value.report.headline


class LimitsTheRate(Countdown):
    """Every second call is refused."""

    calls: ClassVar[list[int]] = [0]

    def read(self, split):
        for row in super().read(split):
            self.calls[0] += 1
            if self.calls[0] % 2:
                raise RetriableError("too many requests", retry_after=0.05)
            yield row


def test_time_that_went_into_retries_is_said():
    with pytest.warns(testkit.NotProvenWarning, match="the time limit was reached, and until then"):
        report = testkit.check(LimitsTheRate(start=30), seconds=2)
    assert report.verdict == "not proven"
    assert " failures of the source were retried, each after a pause; next step: allow more `seconds`, or check a " in (
        report.headline
    )


class AsksForPatience(Countdown):
    """Answers 429 from the third row on, with a time to wait that is longer than the kit is patient."""

    def read(self, split):
        for row, _ in zip(super().read(split), range(2), strict=False):
            yield row
        raise RetriableError("too many requests", retry_after=60)


def test_a_read_that_waits_as_long_as_the_service_asks_breaks_no_rule():
    with pytest.warns(testkit.NotProvenWarning, match=r"not returned.*asked for a pause, of which 5\d"):
        report = testkit.check(AsksForPatience(start=30), seconds=6)
    assert not report.failed
    assert "next step: check a service that answers and does not limit the rate" in report.headline


class HangsAfterAFailure(Countdown):
    """Keeps what it took when its client failed, so that the next try waits for it."""

    failures: ClassVar[list[int]] = []

    def read(self, split):
        for row, _ in zip(super().read(split), range(2), strict=False):
            yield row
        self.failures.append(1)
        if len(self.failures) == 1:
            raise RetriableError("reset by peer")
        threading.Event().wait(20)


def test_a_read_that_hangs_after_a_failure_breaks_a_rule():
    with pytest.raises(testkit.ConformanceError, match="has not returned"):
        testkit.check(HangsAfterAFailure(start=30), seconds=6)


def test_a_service_that_answers_no_more_breaks_no_rule():
    def asks(subject):
        """RDR-3: it answers."""
        raise RetriableError("too many requests")

    result = Check.of(asks).judge(Subject(Countdown(start=3), seconds=10, seed=0, live=False))
    assert (result.outcome, result.why) == ("skipped", "RetriableError: too many requests")
    assert result.advice.startswith("check a service that answers")


@pytest.mark.parametrize("stored", ["x", ["a", 3], {"id": "all", "position": 3}])
def test_what_to_json_did_not_return_is_no_stored_split(stored):
    with pytest.raises(Exception, match=r"is not what Split.to_json\(\) returns: a dict with the version as 'v'"):
        testkit.check(Countdown(start=3), stored=[stored], rules=["SER-1"])


class MistakenSplits(Countdown):
    """A mistake in `splits`, from the second call on."""

    calls: ClassVar[list[int]] = [0]

    def splits(self):
        self.calls[0] += 1
        return ["all", *([] if self.calls[0] == 1 else dict[str, str]()["x"])]


def test_a_mistake_in_splits_is_shown_with_its_place():
    place = rf"{Path(__file__).name}:\d+ in splits\(\)"
    with pytest.raises(testkit.ConformanceError, match=rf"KeyError: 'x'.*: correct the connector at .*{place}"):
        testkit.check(MistakenSplits(start=3))
    with pytest.raises(FatalError, match=rf"discover\(\) failed with KeyError: 'x'[\s\S]*{place}"):
        list(forebay.run(MistakenSplits(start=3)))


@pytest.mark.soak
def test_a_report_is_a_table_of_every_check_and_why_it_was_skipped():
    report = testkit.check(Countdown())
    lines = str(report).splitlines()
    assert lines[0].startswith("countdown: passed: ") and lines[0].endswith("(seed 0)")
    assert len(lines) == 1 + len(ALL) == 1 + len(report.results)
    assert all(result.why for result in report.results if result.outcome != "passed")
    assert report.skipped == []
    assert any(line.split()[:2] == ["DIS-2", "n/a"] and "is not overridden" in line for line in lines)


def test_an_error_names_rule_split_rows_and_the_next_step():
    with pytest.raises(testkit.ConformanceError) as caught:
        testkit.check(Jumping(), seed=3)
    text = str(caught.value)
    assert isinstance(caught.value, AssertionError)
    assert "RDR-5: from any position, a new reader returns exactly the rows up to the end" in text
    assert (
        "split 'all', started at position 1, after 1 rows: row 0 is\n    {'n': 3}\n    but should be\n    {'n': 4}"
        in text
    )
    assert "next step: " in text and "(seed 3)" in text


def test_rules_chosen_are_the_only_ones_checked():
    report = testkit.check(Countdown(), rules={"SR-1", "SPL-1"})
    assert report.rules("passed") == {"SR-1", "SPL-1", "ENU-6", "RDR-3"}  # ENU-6: its check names SPL-1 too
    assert report.verdict == "passed"


def test_every_rule_for_connectors_is_checked():
    kept = {
        *("SRC-1", "SRC-2", "SRC-4", "SPL-1", "SPL-2", "SER-1", "SER-2", "SER-3"),
        *("ENU-2", "ENU-3", "ENU-4", "ENU-5", "ENU-6", "ENU-9", "ENU-10"),
        *("RDR-2", "RDR-3", "RDR-4", "RDR-5", "RDR-6", "RDR-7", "RDR-8", "RDR-9"),
        *("SR-1", "SR-2", "SR-3", "SR-4", "SR-5", "SR-6"),
    }
    assert kept <= {rule for check in ALL for rule in check.rules}
    assert len({check.test_name for check in ALL}) == len(ALL)


@pytest.mark.parametrize("error", [RetriableError("nobody answers"), ConfigurationError("no such bucket")])
def test_a_source_out_of_reach_says_so_itself(error):
    class Unreachable(Countdown):
        def splits(self):
            raise error

    with pytest.raises(type(error), match=str(error)):
        testkit.check(Unreachable())


def test_a_class_is_refused_with_the_way_to_an_instance():
    with pytest.raises(ConfigurationError) as caught:
        testkit.check(Countdown)
    assert caught.value.advice == "give an instance: Countdown(…)"


def test_a_source_without_splits_is_an_error_before_any_check():
    class Nothing(Countdown):
        def splits(self):
            return []

        def read(self, split):
            raise AssertionError("nothing to read")

    with pytest.raises(ConfigurationError, match="the source has no split: discovery returned an empty list") as caught:
        testkit.check(Nothing())
    assert caught.value.advice == "call check() with a source that has data"


def test_an_exception_of_the_connector_is_reported_with_its_rule():
    class Buggy(Countdown):
        def splits(self):
            return [1 / 0]

    with pytest.raises(testkit.ConformanceError, match="SPL-1: .*\n.*ZeroDivisionError: division by zero"):
        testkit.check(Buggy(), rules={"SPL-1"})


def test_a_call_that_never_returns_is_named_and_abandoned():
    class Stuck(Countdown):
        def splits(self):
            RELEASE.wait()
            return ["all"]

    with pytest.raises(testkit.ConformanceError, match=r"discover\(\) has not returned for .*in splits") as caught:
        testkit.check(Stuck(), seconds=3)
    assert len(caught.value.report.results) == 1  # every other check would hang as well


def unproven(source, **how):
    """Check a source that cannot be proven; return the report."""
    with pytest.warns(testkit.NotProvenWarning) as warned:
        report = testkit.check(source, **how)
    assert report.verdict == "not proven"
    assert str(warned[0].message) == report.headline == str(report).splitlines()[0]
    assert "passed:" not in report.headline
    return report


def test_checks_without_time_are_skipped_and_listed():
    report = unproven(Countdown(), seconds=0.0)
    assert {result.why for result in report.results if result.rule == "DIS-2"} == {"the time limit was reached"}
    assert "countdown: not proven: the time limit was reached; next step: allow more `seconds` (" in report.headline


def test_the_first_line_has_each_reason_for_which_checks_did_not_run():
    """Else the second reason shows only after the first one is mended."""
    short, more, small = (Result("R", "a check", "skipped", why, advice) for why, advice in REASONS)
    headline = Report("orders", [small, short, more, small], 0, 1.0).headline
    reasons = "small; next step: B; also: short; next step: A"
    assert headline.startswith(f"orders: not proven: {reasons} (4 checks skipped (R),")


def test_time_ends_also_where_the_input_never_does():
    """Each discovery finds one more split, so that readers always have something to do."""

    class Breeding(SimpleSource):
        bounded = False
        known: ClassVar[list[str]] = ["0"]

        def schema(self):
            return pa.schema({"n": pa.int64()})

        def splits(self):
            self.known.append(str(len(self.known)))
            return list(self.known)

        def read(self, split):
            for n in range(split.position or 0, 2):
                yield {"n": n}

    asked = Breeding.known
    report = unproven(Breeding(), seconds=0.2)
    assert any("time limit was reached" in result.why for result in report.skipped)
    assert len(asked) < 10_000


class Large(Countdown):
    start: int = 10_000_000


@pytest.mark.soak
def test_a_large_input_is_only_sampled_and_the_verdict_says_so():
    report = testkit.check(Large(), rules={"RDR-5", "ENU-3", "SR-2"})
    assert (report.verdict, report.skipped) == ("passed", [])
    assert "a sample of 120 rows of 1 split in" in report.headline


def test_a_large_input_of_an_enumerator_of_ones_own_is_not_proven():
    class Dealing(Large):
        def create_enumerator(self, context):
            return Dealer(context)

    report = unproven(Dealing(), rules={"ENU-3"})
    assert (
        "the input is large" in report.headline
        and "; next step: check the source with a smaller input" in report.headline
    )


class Dealer(SplitEnumerator):
    def __init__(self, context):
        self.context = context
        self.waiting = [Split("all")]

    def handle_split_request(self, subtask, host):
        if self.waiting:
            self.context.assign_splits({subtask: [self.waiting.pop()]})
        else:
            self.context.signal_no_more_splits(subtask)

    def add_splits_back(self, splits, subtask):
        self.waiting += splits

    def snapshot_state(self, checkpoint_id):
        return [split.to_json() for split in self.waiting]


def test_two_hundred_rows_are_not_large():
    class Many(Countdown):
        start: int = 40

        def splits(self):
            return [f"s{n}" for n in range(5)]

    report = testkit.check(Many(), rules={"ENU-3", "ENU-5", "ENU-10"})
    assert report.verdict == "passed" and "200 rows of 5 splits" in report.headline


def test_an_input_without_rows_proves_nothing():
    report = unproven(Countdown(start=0))
    assert "countdown: not proven: no split has a position yet; next step: check a source with rows" in report.headline
    assert report.rules("skipped") == {"SR-3", "RDR-5"}


def test_pages_whose_positions_do_not_follow_from_rows_are_not_proven():
    """Only an input that grows can then end a read inside a page."""

    class Opaque(SimpleSource):
        bounded = False

        def schema(self):
            return pa.schema({"n": pa.int64()})

        def latest(self, split):
            return 100

        def read(self, split):
            for at in range(split.position or 0, split.end, 20):
                yield Batch([{"n": at * at + i} for i in range(3)], at + 20)

    report = unproven(Opaque())
    assert report.rules("skipped") == {"SR-2"}
    assert "use SourceContract, whose write() lets the input grow" in report.headline


class Noting(Counting):
    """Notes what is done to its input."""

    def create_enumerator(self, context):
        return NotingEnumerator()


DONE: list[str] = []


class NotingEnumerator(DiscoveryEnumerator):
    def discover(self, known, first):
        return Discovered([Split("a", 0, 7), Split("b", 0, 3)])

    def finished(self, splits):
        DONE.append("finished")

    def committed(self, positions):
        DONE.append("committed")


@pytest.mark.soak
def test_nothing_is_done_to_a_live_input():
    DONE.clear()
    report = testkit.check(Noting(sizes={"a": 7, "b": 3}, batch_rows=2))
    assert not report.failed
    assert DONE == []
    assert report.verdict == "passed"  # crashes too, although finished() may act on the input


def test_the_same_seed_reports_the_same():
    reports = [testkit.check(Countdown(), seed=11, rules={"SR-1", "RDR-8", "ENU-3"}) for _ in range(2)]
    assert reports[0].results == reports[1].results


def test_importing_the_kit_needs_neither_pytest_nor_spark():
    program = "import sys, forebay.testkit\nprint([m for m in ('pytest', 'pyspark', 'hypothesis') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


CHECKED_AT_IMPORT = """
import pyarrow as pa
from forebay import SimpleSource, testkit

class Numbers(SimpleSource):
    def schema(self):
        return pa.schema({"n": pa.int64()})
    def read(self, split):
        yield from ({"n": n} for n in range(split.position or 0, 5))

testkit.check(Numbers())
"""


def test_a_check_while_its_module_is_imported_is_refused_at_once(tmp_path, monkeypatch):
    """Its threads pickle the class, and would wait for the import."""
    (tmp_path / "checked_at_import.py").write_text(CHECKED_AT_IMPORT)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigurationError, match="while the module checked_at_import is imported") as caught:
        importlib.import_module("checked_at_import")
    assert "__main__" in str(caught.value.advice)


@pytest.mark.soak
def test_a_script_may_check_its_own_source(tmp_path):
    (tmp_path / "script.py").write_text(CHECKED_AT_IMPORT + "print('checked')")
    command = [sys.executable, "-P", "-W", "error", str(tmp_path / "script.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "checked\n", done.stderr
