# SPDX-License-Identifier: Apache-2.0
"""The benchmarks start, as `make bench` starts them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = sorted(path for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text("utf-8"))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_benchmark_starts(program: Path) -> None:
    """Its imports exist, and `--help` lists its options."""
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": str(ROOT / "benchmarks")}
    command = [sys.executable, "-P", str(program), "--help"]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "--" in done.stdout


def test_make_bench_lets_programs_find_their_neighbours() -> None:
    """With -P, neither the current directory nor that of the program is on sys.path."""
    recipe = re.search(r"^bench:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert recipe is not None
    assert "PYTHONPATH=$(abspath benchmarks) $(PY) -P benchmarks/" in recipe[1]
