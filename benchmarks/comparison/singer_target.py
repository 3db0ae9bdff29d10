# SPDX-License-Identifier: Apache-2.0
"""Stands for a target of Singer: keeps the rows before each state message, then the state, as Meltano does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def main() -> int:
    """Run the tap with the last state."""
    python, tap, url, state, out = sys.argv[1:]
    Path(state).mkdir(exist_ok=True)
    Path(out).mkdir(exist_ok=True)
    config, kept, rows = Path(state, "config.json"), Path(state, "state.json"), []
    config.write_text(json.dumps({"url": url}))
    command = [python, tap, "--config", str(config), *(["--state", str(kept)] if kept.exists() else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        for line in running.stdout or ():
            message = json.loads(line)
            if message["type"] == "RECORD":
                rows.append(message["record"])
            elif message["type"] == "STATE":
                with Path(out, "orders.jsonl").open("a") as file:
                    file.writelines(json.dumps(row) + "\n" for row in rows)
                rows = []
                Path(state, "next").write_text(json.dumps(message["value"]))
                Path(state, "next").rename(kept)
    return running.returncode


if __name__ == "__main__":
    sys.exit(main())
