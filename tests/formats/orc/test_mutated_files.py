# SPDX-License-Identifier: Apache-2.0
"""Damaged ORC files end in an error or are read: no crash, no hang, bounded memory.

The number of files of the long test is in the environment: `ORC_MUTATIONS=5000 make soak`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("mutated_files.py")
PER_PROCESS = 5_000


def check(first: int, last: int) -> None:
    command = [sys.executable, "-P", str(PROGRAM), str(first), str(last)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1_800)
    *numbers, found = done.stdout.splitlines()
    assert done.returncode == 0, f"file {found or numbers[-1:]}: {done.returncode} {done.stderr}"
    result = json.loads(found)
    assert set(result["ends"]) <= {"DataError", "ConfigurationError", "read"}, result
    assert result["ends"]["DataError"] > (last - first) // 4
    assert result["ends"]["read"] > (last - first) // 10
    assert result["slowest"] < 20, result
    assert result["megabytes"] < 500, result


def test_damaged_files_are_refused_or_read() -> None:
    check(0, 400)


@pytest.mark.soak
def test_fifty_thousand_damaged_files_are_refused_or_read() -> None:
    count = int(os.environ.get("ORC_MUTATIONS", "50000"))
    for first in range(0, count, PER_PROCESS):
        check(first, min(count, first + PER_PROCESS))
