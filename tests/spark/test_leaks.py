# SPDX-License-Identifier: Apache-2.0
"""No secret is in what a session of Spark shows and stores: plans, exceptions, event log, checkpoints, logs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_no_secret_is_in_plans_exceptions_event_log_checkpoints_and_logs(tmp_path):
    program = Path(__file__).with_name("leaks_program.py")
    done = subprocess.run([sys.executable, "-P", program, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    captures = {
        str(path): path.read_text(errors="replace") for path in (tmp_path / "shown").rglob("*") if path.is_file()
    }
    captures["output"] = done.stdout + done.stderr
    assert len(captures) > 8
    assert "StreamingRelationV2" in "".join(captures.values())
    assert [name for name, text in captures.items() if "hunter2" in text] == []
