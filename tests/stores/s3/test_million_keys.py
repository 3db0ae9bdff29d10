# SPDX-License-Identifier: Apache-2.0
"""A million keys, from a scripted client: memory, requests, and the same files and tasks as with few."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Report = Callable[[str, object], None]


def measured(count: int) -> dict[str, Any]:
    command = [sys.executable, str(Path(__file__).with_name("million_keys_program.py")), str(count)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


LONG = [pytest.param(*size, marks=pytest.mark.soak) for size in ((200_000, 80), (1_000_000, 250))]


@pytest.mark.soak
@pytest.mark.parametrize(("count", "megabytes"), [(50_000, 40), *LONG])
def test_very_many_keys_are_listed_and_planned_in_little_memory(
    record_property: Report, count: int, megabytes: int
) -> None:
    found = measured(count)
    seconds = f"{found['seconds']:.1f} s of CPU ({found['listed in']:.1f} s to list)"
    text = f"{found['megabytes']} MB, {seconds}, {found['pickled'] // count} bytes a file for the tasks"
    record_property(f"{count} keys listed and planned", text)
    assert found["files"] == count
    assert found["first"].startswith("s3://bucket/lake/events/day=000000/part-00000")
    assert found["last"].endswith(f"/part-00999-4f0c1b52-93b7-4f0e-8d43-{count - 1:012}.c000.parquet")
    assert (found["etag"], found["size"]) == (f"{count - 1:032x}", 100_000 + count - 1)
    assert found["texts"] == [["000000"], [f"{count // 1000 - 1:06}"]]
    assert found["sum"] == sum(range(100_000, 100_000 + count))
    tasks, *splits = found["tasks"]
    assert tasks == 2 * -(-found["sum"] >> 31), "a multiple of two cores, of at most 1 GB each"
    assert all(0.9 * count / tasks < one < 1.1 * count / tasks for one in splits)
    assert found["requests"] <= count / 1000 + 40
    assert found["megabytes"] < megabytes
