# SPDX-License-Identifier: Apache-2.0
"""The benchmarks start, as `make bench` starts them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = sorted(path for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text("utf-8"))


# One process imports what most programs import, and is forked for each: twenty imports of PySpark take long.
STARTS = """
import contextlib, io, json, os, runpy, sys, traceback
import forebay, numpy, pyarrow.parquet, pyspark.sql.datasource
def start(program):
    sys.argv = [program, "--help"]
    out, status, error = io.StringIO(), 0, ""
    try:
        with contextlib.redirect_stdout(out):
            runpy.run_path(program, run_name="__main__")
    except SystemExit as ended:
        status = ended.code or 0
    except BaseException:
        status, error = 1, traceback.format_exc()
    return [status, out.getvalue(), error]
for program in sys.argv[1:]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with os.fdopen(writing, "w") as answer:
            json.dump(start(program), answer)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        print(answer.read())
    os.waitpid(child, 0)
"""


PLACES = f"{ROOT / 'benchmarks'}{os.pathsep}{ROOT / 'tests' / 'servers'}"
"""As `make bench` has them."""


@pytest.fixture(scope="module")
def starts() -> dict[Path, tuple[int, str, str]]:
    """Of each program with `--help`: its status, what it printed, and its error."""
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": PLACES}
    command = [sys.executable, "-P", "-c", STARTS, *map(str, PROGRAMS)]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return dict(zip(PROGRAMS, (json.loads(line) for line in done.stdout.splitlines()), strict=True))


@pytest.mark.soak
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_benchmark_starts(starts: dict[Path, tuple[int, str, str]], program: Path) -> None:
    """Its imports exist, and `--help` lists its options."""
    status, shown, error = starts[program]
    assert status == 0, error
    assert "--" in shown


def test_make_bench_lets_programs_find_their_neighbours() -> None:
    """With -P, neither the current directory nor that of the program is on sys.path."""
    recipe = re.search(r"^bench:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert recipe is not None
    assert "PYTHONPATH=$(abspath benchmarks):$(abspath tests/servers) $(PY) -P benchmarks/" in recipe[1]
