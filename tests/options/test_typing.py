# SPDX-License-Identifier: Apache-2.0
"""mypy understands `option`: it accepts what authors write and refuses what is wrong."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
# Kept from run to run: mypy reads all of the installed forebay again only where it has changed. Only this test uses it.
CACHE = HERE.parents[1] / ".mypy_cache" / "users"
ERROR = re.compile(r".*?:(\d+): error: .*\[([a-z-]+)\]")

# Written to a file when the test runs, since `make lint` checks all files.
WRONG = """
a: int = option(3.5)  # assignment
b: int = option(default_factory=list)  # assignment
c: int = option(None)  # assignment
option(1, default_factory=int)  # call-overload
option(docs="x")  # call-overload
option(1, may_change="no")  # call-overload
Orders(url="u", token=Secret("t"))  # call-arg
Orders(path="p", retries="3")  # arg-type
Orders(path="p", poll_interval=5)  # arg-type
Orders(path="p", token="t")  # arg-type
Orders(path="p", mode="c")  # arg-type
orders.start = 5  # misc
HostOptions(poll_interval=None)  # arg-type
HostOptions(discovery_interval=[])  # arg-type
"Bearer " + orders.token  # operator
"""


def test_mypy_accepts_right_declarations_and_refuses_each_wrong_one(tmp_path):
    right = (HERE / "typing_ok.py").read_text(encoding="utf-8")
    path = tmp_path / "sample.py"
    path.write_text(right + WRONG, encoding="utf-8")
    # As in a user's own project: nothing but `--strict` and the installed package.
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--cache-dir", str(CACHE)]
    command += ["--no-error-summary", path.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    found = [ERROR.fullmatch(line) for line in done.stdout.splitlines() if ": error: " in line]
    assert all(found), done.stdout + done.stderr
    expected = [
        (number, line.rsplit("  # ", 1)[1])
        for number, line in enumerate((right + WRONG).splitlines(), 1)
        if number > len(right.splitlines()) and line
    ]
    assert len(expected) > 10
    assert [(int(match[1]), match[2]) for match in found if match] == expected, done.stdout
