# SPDX-License-Identifier: Apache-2.0
"""`StreamingQuery.stop` in the middle of a micro-batch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "stop_program.py"


@pytest.mark.soak
@pytest.mark.parametrize("times", [3, 60])
def test_a_stop_in_a_micro_batch_prints_no_stack_overflow(tmp_path, times):
    """Spark matches a recursive pattern against the text of the error that leaves foreachBatch."""
    command = [sys.executable, "-P", str(PROGRAM), str(tmp_path), str(times)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "StackOverflowError" not in done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == f"stopped {times} micro-batches"
