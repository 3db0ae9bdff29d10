# SPDX-License-Identifier: Apache-2.0
"""The snippets of the README run word for word, one after another, in an empty directory."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_the_snippets_of_the_readme_run_in_an_empty_directory(tmp_path: Path) -> None:
    snippets = re.findall(r"^```python\n(.*?)^```", README.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert len(snippets) == README.read_text("utf-8").count("```python") >= 5
    script = tmp_path / "snippets.py"
    # A marker behind each snippet tells which of them ended, and is no line of the README.
    script.write_text("".join(f"{code}\nprint('snippet {number} ended')\n" for number, code in enumerate(snippets)))
    done = subprocess.run(
        [sys.executable, "-P", script], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.findall(r"snippet (\d+) ended", done.stdout) == [str(number) for number in range(len(snippets))]
    assert "|2024-01|    2|" in done.stdout
    assert "first" not in done.stderr
    assert re.search(r"passed|not proven", done.stdout)
