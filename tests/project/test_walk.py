# SPDX-License-Identifier: Apache-2.0
"""How much of forebay one read of a small file passes through: what a reader of the code has to know."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

# Files, functions and classes, imports included. What makes them fewer lowers the bounds.
BOUNDS = {"batch": (81, 823, 48), "stream": (106, 1138, 64), "in process": (85, 927, 51)}


@pytest.mark.parametrize("read", BOUNDS)
def test_a_read_passes_through_at_most_this(read, record_property):
    program = [sys.executable, "-P", str(Path(__file__).with_name("walk.py")), read]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    rows, *counts = json.loads(done.stdout)
    record_property("report", "a read of a CSV file, {}: {} files, {} functions, {} classes".format(read, *counts))
    assert rows == 1000
    assert all(count <= bound for count, bound in zip(counts, BOUNDS[read], strict=True)), counts
