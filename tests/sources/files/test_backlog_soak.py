# SPDX-License-Identifier: Apache-2.0
"""A long backlog that grows while it is read, with a restart: every file once, in small offsets."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from forebay.framework.discovery import Discovered
from forebay.framework.split import Split
from forebay.sources.files.stream_enumerator import FileStreamEnumerator

Begin = Callable[..., Any]
NOON = 1_700_000_000
ROUNDS = 10
"""Micro-batches of the backlog, and parts of the late files."""


class Stopwatch:
    """Measures the wall time and CPU time of named steps."""

    def __init__(self) -> None:
        self.took: dict[str, list[tuple[float, float]]] = {}

    @contextlib.contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        began, used = time.perf_counter(), time.process_time()
        yield
        self.took.setdefault(what, []).append((time.perf_counter() - began, time.process_time() - used))

    def report(self) -> str:
        """Return the sums, as text."""
        return ", ".join(
            f"{what} {len(each)} times in {sum(wall):.1f} s ({sum(cpu):.1f} s of CPU)"
            for what, each in self.took.items()
            for wall, cpu in [zip(*each, strict=True)]
        )


class Late:
    """Writes files from a thread of its own, one part at a time. Each file appears complete.

    Args:
        inbox: Where they arrive.
        parts: The names of each part.
    """

    def __init__(self, inbox: Path, parts: Sequence[Sequence[str]]) -> None:
        self._inbox = inbox
        self._aside = inbox.parent / "aside"
        self._aside.mkdir()
        self._start = threading.Semaphore(0)
        self._parts = parts
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def more(self) -> None:
        """Write the next part in the background."""
        self._start.release()

    def all(self) -> None:
        """Wait until all files are written."""
        self._start.release(len(self._parts))
        self._thread.join()
        assert not self._failed

    def _write(self) -> None:
        try:
            for part in self._parts:
                self._start.acquire()
                for name in part:
                    write(self._aside / name)
                    (self._aside / name).rename(self._inbox / name)
        except BaseException as error:  # noqa: BLE001 - raised by `all`, on the thread of the test
            self._failed.append(error)


def write(path: Path) -> None:
    """Write a file of one line. All files have the same time."""
    path.write_bytes(b"x\n")
    os.utime(path, (NOON, NOON))


@pytest.fixture
def crowded(inbox: Path) -> Iterator[Path]:
    """A directory for many files, which is removed after the test."""
    yield inbox
    shutil.rmtree(inbox)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("files", "late"), [(1_000, 50), pytest.param(200_000, 1_000, marks=pytest.mark.soak)], ids=["small", "large"]
)
def test_a_backlog_that_grows_while_it_is_read_comes_once_over_a_restart(
    files: int,
    late: int,
    crowded: Path,
    stream: Begin,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Stopwatch()
    discover = FileStreamEnumerator.discover

    def discovered(self: FileStreamEnumerator, known: Mapping[str, Split], first: bool) -> Discovered:
        with clock("listed"):
            return discover(self, known, first)

    monkeypatch.setattr(FileStreamEnumerator, "discover", discovered)
    with clock("written"):
        for number in range(files):
            write(crowded / f"{number:06}.txt")
    names = [f"{number * (files // late):06}-late.txt" for number in range(late)]  # anywhere among the others
    arriving = Late(crowded, [names[part::ROUNDS] for part in range(ROUNDS)])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    query = stream(state_location=str(tmp_path / "state"), max_files_per_trigger=files // ROUNDS)
    planned: list[list[str]] = []

    def ids(end: Mapping[str, Any]) -> list[str]:
        return [split.id for task in query.planner.tasks(query.offset, end) for split in task.slices]

    def turn() -> bool:
        with clock("planned"):
            end = query.plan()
        if end is None:
            return False
        planned.append(ids(end))
        query.ends.append(end)
        query.planner.commit(end)
        query.offset = end
        return True

    for _ in range(ROUNDS // 2):
        arriving.more()
        assert turn()
    query.restart()
    query.offset = query.ends[-2]
    assert ids(query.ends[-1]) == planned[-1]  # the last micro-batch is replayed
    query.offset = query.ends[-1]
    for _ in range(ROUNDS // 4):
        arriving.more()
        assert turn()
    arriving.all()
    query.restart()
    query.planner.prepare_available_now()
    while turn():
        pass

    assert Counter(ids_of(crowded, files, names)) == Counter(split_id for turn in planned for split_id in turn)
    assert len(planned) == ROUNDS + 1 and max(len(turn) for turn in planned) <= files // ROUNDS
    longest = max(len(json.dumps(end)) for end in query.ends)
    assert longest < 100_000
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    record_property(
        "report",
        f"{files:,} files and {late:,} late ones in {len(planned)} micro-batches: {clock.report()}; the longest offset "
        f"{longest:,} characters; peak RSS {peak >> 10} MB, {(peak - before) >> 10} MB more than before",
    )


def ids_of(directory: Path, files: int, names: Sequence[str]) -> list[str]:
    """Return the expected splits."""
    return [f"{directory}/{name}" for name in (*(f"{number:06}.txt" for number in range(files)), *names)]
