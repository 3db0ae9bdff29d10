# SPDX-License-Identifier: Apache-2.0
"""Prints how many files, functions and classes of forebay one read of a small file passes through, as JSON.

A program, because what is imported already does not count. `python walk.py NAME` does the read of this name, and
`python walk.py NAME names` prints the functions in the order of their first calls, with thread and file. Planner and
task run in one process here; on Spark they are two.
"""

from __future__ import annotations

import json
import pickle
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType

import forebay

HOME = str(Path(forebay.__file__).parent) + "/"
ROWS = 1000


class Walk:
    """A profile hook that notes each call of a function of forebay."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.functions: dict[tuple[str, str], str] = {}
        """The thread of the first call."""
        self.classes: set[str] = set()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(HOME):
            return
        self.files.add(code.co_filename.removeprefix(HOME))
        name = (code.co_filename.removeprefix(HOME), code.co_qualname)
        self.functions.setdefault(name, threading.current_thread().name)
        if code.co_name in ("__init__", "__post_init__"):
            self.classes.add(type(frame.f_locals.get("self")).__qualname__)


def batch(path: Path) -> int:
    from pyspark_forebay_files import DefaultSource

    source = DefaultSource({"path": str(path), "header": "true"})
    reader = source.reader(source.schema())
    parts = pickle.loads(pickle.dumps(reader.partitions()))
    return sum(rows.num_rows for part in parts for rows in reader.read(part))


def stream(path: Path) -> int:
    from pyspark_forebay_files import DefaultSource

    source = DefaultSource({"path": str(path), "header": "true"})
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    end = reader.latestOffset(start, None)
    parts = pickle.loads(pickle.dumps(reader.partitions(start, end)))
    read = sum(rows.num_rows for part in parts for rows in reader.read(part))
    reader.commit(end)
    reader.stop()
    return read


def in_process(path: Path) -> int:
    return forebay.run(forebay.FileSource(path=str(path), format_options={"header": True})).to_table().num_rows


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "a.csv")
        file.write_text("k,v\n" + "".join(f"{n},x{n}\n" for n in range(ROWS)))
        read = {"batch": batch, "stream": stream, "in process": in_process}[sys.argv[1]]
        walk = Walk()
        threading.setprofile(walk)
        sys.setprofile(walk)
        rows = read(file)
        sys.setprofile(None)
        threading.setprofile(None)
    if sys.argv[2:] == ["names"]:
        for (name, function), thread in walk.functions.items():
            sys.stdout.write(f"{thread:<32} {name:<44} {function}\n")
    else:
        sys.stdout.write(json.dumps([rows, len(walk.files), len(walk.functions), len(walk.classes)]))
