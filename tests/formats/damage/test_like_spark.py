# SPDX-License-Identifier: Apache-2.0
"""Damaged files that forebay reads give the rows that Spark's own readers give, or Spark refuses them.

Each reader has processes of its own, because some files make Spark's readers hang. Spark may read what forebay refuses:
a sample of these files is counted by the reasons. `MUTATIONS_SPARK=20000 make soak` compares more files.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from generated_files.seeds import SEEDS

pytestmark = [pytest.mark.soak, pytest.mark.timeout(7_200)]

GENERATORS = Path(__file__).parents[2] / "generators"
FILES = {"avro": 8_000, "orc": 1_500, "parquet": 3_000}
REFUSED_SAMPLE = 25
"""Of the files that forebay refuses, Spark reads one in this many."""
TIMESTAMPS = {"t", "z"}
INT96_SEEDS = 2
"""Parquet files of these numbers modulo 6 have INT96 timestamps."""
Outcome = dict[str, str] | str
"""Digests of the columns, or the text of an error."""


def run(module: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", f"generated_files.{module}", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(GENERATORS), "RUST_BACKTRACE": "0"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def pairs(lines: list[str]) -> Iterator[tuple[int, Outcome]]:
    """Yield the files and what they gave; the last one of a process that ended has given nothing."""
    for number, found in zip(lines[::2], lines[1::2], strict=False):
        yield int(number), json.loads(found)


def by_forebay(kind: str, directory: Path, count: int) -> dict[int, Outcome]:
    found: dict[int, Outcome] = {}
    first = 0
    while True:
        done = run("reading", kind, first, count, "--each", "--write", directory)
        lines = done.stdout.splitlines()
        if done.returncode == 0:
            return found | dict(pairs(lines[:-1]))
        assert kind == "orc", done.stderr[-3_000:]
        found |= dict(pairs(lines))
        first = int(lines[-1]) + 1  # Arrow ended the process for this file
        found[first - 1] = "Arrow ends the process"


def by_spark(kind: str, directory: Path, numbers: list[int]) -> dict[int, Outcome]:
    found: dict[int, Outcome] = {}
    while todo := [number for number in numbers if number not in found]:
        done = run("reading_by_spark", kind, directory, *todo)
        lines = done.stdout.splitlines()
        assert lines, done.stderr[-3_000:]
        found |= dict(pairs(lines))
        if len(lines) % 2:
            found[int(lines[-1])] = "Spark hangs, or its JVM ends"
    return found


def reason(text: str) -> str:
    """Return an error without what differs from file to file."""
    text = text.split("JVM stacktrace", maxsplit=1)[0]
    causes = re.findall(r"Caused by: (.*)", text)
    line = causes[-1] if causes else text.splitlines()[0]
    return re.sub(r"(/|file:)\S+|-?\d+|'[^']*'|\"[^\"]*\"|[^ -~]+", "_", line)[:100]


def nanoseconds_apart(kind: str, number: int) -> bool:
    """Return whether a file has days or seconds, and nanoseconds apart, of which Arrow tells the sum only.

    If damage makes the nanoseconds too many, Arrow adds all of them. Spark's reader of ORC refuses them, but cuts them
    to 32 bits before; in INT96 they have a sign for Spark, and none for Arrow.
    """
    return kind == "orc" or (kind == "parquet" and number % SEEDS % 6 == INT96_SEEDS)


@pytest.mark.parametrize("kind", FILES)
def test_damaged_files_are_read_as_by_spark_or_refused(kind: str, tmp_path: Path, record_property: Any) -> None:
    count = int(os.environ.get("MUTATIONS_SPARK", FILES[kind]))
    ours = by_forebay(kind, tmp_path, count)
    refused = [number for number, found in ours.items() if isinstance(found, str)]
    theirs = by_spark(kind, tmp_path, sorted({*ours} - {*refused} | {*refused[::REFUSED_SAMPLE]}))
    differ = []
    counts: Counter[str] = Counter()
    for number, spark in theirs.items():
        mine = ours[number]
        if isinstance(mine, str):
            counts["both refuse" if isinstance(spark, str) else f"only forebay refuses: {reason(mine)}"] += 1
        elif isinstance(spark, str):
            counts[f"only Spark refuses: {reason(spark)}"] += 1
        elif mine == spark:
            counts["the same rows"] += 1
        else:
            columns = [name for name in {**mine, **spark} if mine.get(name) != spark.get(name)]
            if TIMESTAMPS.issuperset(columns) and nanoseconds_apart(kind, number):
                counts["other times, of damaged nanoseconds"] += 1
            else:
                differ.append((number, columns))
    record_property("report", f"damaged {kind} files: {json.dumps(dict(counts.most_common()), indent=1)}")
    assert counts["the same rows"] > len(ours) * 0.02
    assert not differ
