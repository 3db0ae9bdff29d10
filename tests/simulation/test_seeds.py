# SPDX-License-Identifier: Apache-2.0
"""The command: thousands of seeds are clean, and a seed is reproducible everywhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from forebay_simulator import Fault, simulate
from forebay_simulator.__main__ import main

COMMAND = [sys.executable, "-P", "-m", "forebay_simulator"]

DIGESTS = """
import hashlib
from forebay_simulator import simulate
for seed in range(30):
    lines = []
    simulate(seed, lines.append)
    print(seed, len(lines), hashlib.sha256("\\n".join(lines).encode()).hexdigest())
"""


def run_clean(record_property, *arguments):
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^problems +0$", done.stdout, re.MULTILINE)
    record_property("report", done.stdout.splitlines()[0].replace("  ", " "))
    return done


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", [30, pytest.param(2000, marks=pytest.mark.soak)])
def test_seeds_are_clean(record_property, seeds):
    done = run_clean(record_property, "--seeds", str(seeds))
    assert f"{seeds:,} of {seeds:,} seeds, 0 problems" in done.stderr
    counts = dict(re.findall(r"^  ([A-Z_]+) +([\d,]+) ", done.stdout, re.MULTILINE))
    # Every kind of fault happened often: otherwise clean seeds would prove little.
    assert counts.keys() == {fault.name for fault in Fault}
    assert all(int(count.replace(",", "")) >= seeds / 10 for count in counts.values()), counts


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_100000_other_seeds_are_clean(record_property):
    run_clean(record_property, "--first", "1000000", "--seeds", "100000")


@pytest.mark.soak
def test_the_same_seed_does_the_same_in_every_process():
    """Also in a process with another order of sets of strings, such as a replay."""
    output = [
        subprocess.run(
            [sys.executable, "-P", "-c", DIGESTS],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert output[0].count("\n") == 30
    assert output[0] == output[1]


@pytest.mark.soak
def test_another_seed_does_something_else():
    traces = []
    for seed in range(20):
        traces.append([])
        simulate(seed, traces[-1].append)
    assert len({tuple(trace) for trace in traces}) == 20


@pytest.mark.soak
def test_a_trace_changes_nothing():
    for seed in range(20):
        assert simulate(seed, [].append) == simulate(seed)


@pytest.mark.soak
def test_seeds_in_several_processes_come_to_the_same(capsys):
    lines = []
    for jobs in ("1", "2"):
        assert main(["--seeds", "40", "--jobs", jobs]) == 0
        lines.append(capsys.readouterr().out.splitlines()[1:])
    assert lines[0] == lines[1]


def test_one_seed_is_reported_in_words(capsys):
    assert main(["--seed", "3"]) == 0
    assert "seed 3: nothing was wrong" in capsys.readouterr().out


def test_a_trace_of_many_seeds_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--trace"])
    assert "--trace needs --seed" in capsys.readouterr().err
