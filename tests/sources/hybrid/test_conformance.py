# SPDX-License-Identifier: Apache-2.0
"""The conformance kit on hybrids: of counting sources, and in the soak of files and of rows at a rate."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay import FileSource, HybridSource, RateSource, testkit
from forebay.testkit.scripted import Counting


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
