# SPDX-License-Identifier: Apache-2.0
"""The writer of a target is killed by SIGKILL at each numbered point; the target equals that of an undisturbed run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

WRITER = Path(__file__).parent / "writer_program.py"

EXPECTED = {
    "plain": [[1, "a2"], [3, "c"]],
    "sequence": [[1, "a2", 2], [3, "c", 1], [2, 2], [4, 2]],
    "history": [[1, "a", 1, 2], [1, "a2", 2, None], [2, "b", 1, 2], [3, "c", 1, None], [2, 2], [4, 2]],
}
"""Rows, and after them the deleted keys that are remembered."""


@pytest.mark.parametrize("kind", ["plain", "sequence", "history"])
def test_a_writer_killed_at_any_point_leaves_whole_micro_batches(postgres, kind, record_property):
    """P8: before each statement, commit and COPY of two micro-batches, and after them; then all is written again."""
    command = [sys.executable, "-P", str(WRITER), postgres, kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["wrong"] == []
    assert result["expected"] == [EXPECTED[kind], []]
    assert result["points"] > 30
    record_property("report", f"PostgresTarget, {kind}: killed at {result['points']} points")
