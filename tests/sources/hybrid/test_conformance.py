# SPDX-License-Identifier: Apache-2.0
"""The conformance kit on hybrids: of pages and of counting sources, and in the soak of files and of rows at a rate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from forebay import Batch, FileSource, HybridSource, RateSource, SimpleSource, Source, Split, option, testkit
from forebay.errors import RetriableError
from forebay.testkit.scripted import Counting


class Pages(SimpleSource):
    """The numbers below `stop`, in pages that are larger than most inputs."""

    stop: int = 40
    page_rows: int = option(default=500)
    skipped: ClassVar[int] = 0  # rows between two pages that are left out

    def schema(self) -> pa.Schema:
        return pa.schema({"n": pa.int64()})

    def read(self, split: Split) -> Iterator[Batch]:
        start, stop = split.position or 0, self.stop if split.end is None else split.end
        while start < stop:
            page = range(start, min(stop, start + self.page_rows))
            start = page.stop if page.stop == stop else page.stop + self.skipped
            yield Batch([{"n": n} for n in page], start)


class LivePages(Pages):
    bounded = False

    def latest(self, split: Split) -> int:
        return self.stop


class SkippingPages(LivePages):
    skipped = 1


def test_a_hybrid_passes_whose_sources_come_in_one_page_each() -> None:
    report = testkit.check(HybridSource(Pages(), LivePages(stop=25)), seconds=60)
    assert report.verdict == "passed", report
    assert {"SR-2", "RDR-5"} <= report.rules("passed")


def test_a_row_that_is_left_out_between_pages_of_the_last_source_is_found() -> None:
    with pytest.raises(testkit.ConformanceError, match=r"split '1/all', read with page_rows=3: row 3 is"):
        testkit.check(HybridSource(Pages(), SkippingPages(stop=25)), seconds=60)


def test_a_hybrid_of_which_a_source_has_no_rows_is_not_proven() -> None:
    with pytest.warns(testkit.NotProvenWarning, match="source 2 of the hybrid, live_pages, has no rows"):
        testkit.check(HybridSource(Pages(), LivePages(stop=0)), seconds=60)


class Files(LivePages):
    """Its rows are the lines of a file, if it can be opened."""

    path: str = ""
    swallows: ClassVar[bool] = False

    def read(self, split: Split) -> Iterator[Batch]:
        try:
            count = len(Path(self.path).read_text().splitlines())
        except OSError as error:
            if self.swallows:
                return
            raise RetriableError("no answer") from error
        for batch in super().read(split):
            assert batch.position <= count
            yield batch


class SwallowingFiles(Files):
    swallows = True


@pytest.mark.parametrize("first", [True, False])
def test_a_failure_that_a_source_of_a_hybrid_takes_for_its_end_is_found(tmp_path: Path, first: bool) -> None:
    """Also that of the source with fewer rows."""
    (tmp_path / "lines").write_text("x\n" * 25)
    path = str(tmp_path / "lines")
    sound, swallowing = Files(stop=25, path=path), SwallowingFiles(stop=20, path=path)
    assert "ERR-1" in testkit.check(HybridSource(sound, sound), seconds=60, rules=["ERR-1"]).rules("passed")
    source = HybridSource(swallowing, sound) if first else HybridSource(sound, swallowing)
    with pytest.raises(testkit.ConformanceError, match=f"breaks ERR-1: split '{int(not first)}/all'"):
        testkit.check(source, seconds=60, rules=["ERR-1"])


@dataclass
class Switch:
    """Has a field that no copy equals."""

    taken: object = field(default_factory=object)

    def __call__(self, then: Source, finished: Sequence[Split]) -> Source:
        return then


@pytest.mark.parametrize("switch", [lambda then, _: then, partial(lambda _, then, __: then, 1), Switch()])
def test_any_switch_that_can_be_sent_may_be_checked(switch: Any) -> None:
    source = HybridSource(Pages(), LivePages(stop=25), switch=switch)
    assert "SRC-1" in testkit.check(source, rules=["SRC-1"]).rules("passed")


def test_stored_splits_are_for_the_checks_of_the_sources() -> None:
    with pytest.raises(Exception, match="`stored` is for the check of the source whose splits these are"):
        testkit.check(HybridSource(Pages(), LivePages()), stored=[{"v": 1, "id": "1/all"}], rules=["SER-1"])


class ContractOfAHybrid(testkit.SourceContract):
    def source(self) -> HybridSource:
        return HybridSource(Pages(), LivePages())

    def add_split(self) -> str:
        return "0/all"

    def write(self, split_id: str, n: int) -> list[dict[str, int]]:
        return []


def test_a_contract_refuses_a_hybrid_and_says_what_to_test() -> None:
    with pytest.raises(Exception, match="write a SourceContract for each of its sources, and call check"):
        ContractOfAHybrid().test_sr_3_an_empty_split_is_finished()


@pytest.mark.soak
def test_a_hybrid_of_counting_sources_passes() -> None:
    """RDR-8 too: a paused split of the first source does not hold up the second one."""
    source = HybridSource(Counting(sizes={"a": 30, "b": 7}), Counting(sizes={"x": 25}))
    assert testkit.check(source, seconds=60).verdict == "passed"


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_hybrids_of_files_and_of_rows_pass(tmp_path: Path, seed: int) -> None:
    for number in range(4):
        (tmp_path / f"{number}.csv").write_text("n,t\n" + "".join(f"{row},x{row}\n" for row in range(20)))
    files = FileSource(path=str(tmp_path), file_format="csv", format_options={"header": True, "inferSchema": True})
    live = RateSource(rows_per_second=300.0, start_time=1_700_000_000_000_000)
    for source in (HybridSource(files, files), HybridSource(RateSource(rows=50, num_splits=2), live)):
        assert testkit.check(source, seconds=120, seed=seed).verdict == "passed"
