# SPDX-License-Identifier: Apache-2.0
"""Offsets, state and checkpoints that an earlier version wrote are read on: nothing is lost, nothing comes twice."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

import forebay

sys.path.append(str(Path(__file__).parent))
written = importlib.import_module("written")
sys.path.pop()


@pytest.mark.parametrize("case", written.CASES)
def test_a_query_of_an_earlier_version_goes_on(case, tmp_path):
    data = json.loads((written.DATA / f"{case}.json").read_text())
    written.plant(tmp_path / "state", data["state"])
    written.memory_files(case)
    stream = written.Stream(case, tmp_path / "state", data["log"])
    rows = sorted(row for rows in stream.turns() for row in rows)
    assert rows == [tuple(row) for row in data["rest"]]


@pytest.mark.parametrize("case", written.CASES)
def test_a_micro_batch_that_an_earlier_version_planned_is_replayed(case, tmp_path):
    data = json.loads((written.DATA / f"{case}.json").read_text())
    written.plant(tmp_path / "state", data["state"])
    written.memory_files(case)
    stream = written.Stream(case, tmp_path / "state", data["log"])
    assert stream.read(stream.log[0], stream.log[1]) == [tuple(row) for row in data["micro_batches"][1]]


def test_a_checkpoint_of_an_earlier_version_is_restored(tmp_path):
    data = json.loads((written.DATA / "checkpoint.json").read_text())
    written.plant(tmp_path / "checkpoint", data["checkpoint"])
    first: dict[str, int] = {}
    seen: list[tuple[str, int]] = []
    with forebay.run(written.Known(), checkpoint=tmp_path / "checkpoint") as run:
        while {(split, 11) for split in "abc"} - set(seen):
            for row in next(run).to_pylist():
                first.setdefault(row["split"], row["n"])
                seen.append((row["split"], row["n"]))
    # The record batch in hand, of two rows at most, may come again.
    assert all(position - 2 <= first[split] <= position for split, position in data["positions"].items())
    assert sorted(seen) == [(split, n) for split in "abc" for n in range(first[split], 12)]
