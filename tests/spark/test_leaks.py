# SPDX-License-Identifier: Apache-2.0
"""No secret is in what a session of Spark shows and stores: plans, errors, event log, checkpoints, logs, UI, REST."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

KINDS = {
    *("forebay_files", "forebay_kafka", "forebay_hybrid", "target", "state", "http", "checkpoint"),
    *("ours-error", "ours-describe", "ours-peek", "ours-offsets", "output"),
}


@pytest.mark.soak
def test_a_session_shows_and_stores_no_secret(tmp_path, record_property):
    program = Path(__file__).with_name("leaks_program.py")
    done = subprocess.run(
        [sys.executable, "-P", program, tmp_path], capture_output=True, text=True, check=False, errors="replace"
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    shown = tmp_path / "shown"
    captures = {
        str(path.relative_to(shown)): path.read_text(errors="replace") for path in shown.rglob("*") if path.is_file()
    }
    captures["output"] = done.stdout + done.stderr
    assert {kind for kind in KINDS if not any(name.startswith(kind) for name in captures)} == set()
    assert "StreamingRelationV2" in "".join(captures.values())
    assert [name for name, text in captures.items() if "hunter2" in text] == []
    ours = {name: text for name, text in captures.items() if name.startswith("ours")}
    assert [name for name, text in ours.items() if any(not (char.isprintable() or char == "\n") for char in text)] == []
    record_property("report", f"{len(captures)} captures of a session, {len(ours)} of forebay's own: no secret")
