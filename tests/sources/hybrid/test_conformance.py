# SPDX-License-Identifier: Apache-2.0
"""The conformance kit on hybrids: of pages and of counting sources, and in the soak of files and of rows at a rate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pytest

from forebay import Batch, FileSource, HybridSource, RateSource, SimpleSource, Split, option, testkit
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
