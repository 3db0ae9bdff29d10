# SPDX-License-Identifier: Apache-2.0
"""What it costs to remember files that were read: sizes, time and memory with 200,000 of them, at once and in bits.

Run it: ``python -P benchmarks/memory_of_files.py``, or with less: ``… --files 20000 --batch 100``. It needs no Spark
and has no peer: Spark's own file stream keeps its list on the JVM's side.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from forebay.framework.microbatch.offset import Offset, Planned, UnknownEnd, canonical
from forebay.framework.microbatch.offset_codec import FinishedSplits
from forebay.framework.microbatch.spilling_codec import SpillingOffsetCodec
from forebay.framework.runtime.clients import ConnectorCalls
from forebay.framework.runtime.runtime import ThreadRuntime
from forebay.retry import RetryPolicy
from forebay.sources.files import FileSource
from forebay.sources.files.split import FileSplit
from forebay.state.local_state_store import LocalStateStore
from forebay.text_tables import text_table

T = TypeVar("T")
WHERE = Path("build/bench")


def file(number: int) -> FileSplit:
    """A file as Spark and most tools name it."""
    mixed = number * 2654435761 % 2**32
    day, hour = number // 24 % 28 + 1, number % 24
    unique = f"{mixed:08x}-{mixed * 31 % 65536:04x}-4{mixed * 37 % 4096:03x}-{mixed * 7919 % 2**48:012x}"
    return FileSplit(
        f"/lake/events/date=2024-02-{day:02}/hour={hour:02}/part-{number % 200:05}-{unique}-c000.snappy.parquet",
        0,
        size=10_000_000 + mixed % 90_000_000,
        modified_at=1_700_000_000_000_000_000 + number * 1_000_003 + mixed,
        partitions=(("date", f"2024-02-{day:02}"), ("hour", f"{hour:02}")),
    )


class Run:
    """One query with its memory in a directory; its restarts go on from the last offset."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.source = FileSource(path="/lake/events", file_format="parquet")
        self.codec = self.opened()
        self.done = FinishedSplits(FileSplit)
        self.n = 0
        self.rows: list[list[str]] = []
        self.figures: list[dict[str, object]] = []
        self.last: dict[str, Any] = {}

    def opened(self) -> SpillingOffsetCodec:
        calls = ConnectorCalls("files", ThreadRuntime(), retry=RetryPolicy(retries=0), timeout=600)
        return SpillingOffsetCodec(self.source, LocalStateStore(self.directory), calls)

    def take(self, files: list[FileSplit]) -> tuple[float, float]:
        """Plan a micro-batch, read its plan back as tasks do, and commit it; return both times."""
        offset = Offset("forebay_files", self.n, "query", [Planned(split, UnknownEnd.WHOLE) for split in files])
        data, wrote = timed(lambda: self.codec.write(offset, self.done))
        self.last = json.loads(canonical(data))
        _, read = timed(lambda: self.codec.read(self.last))
        self.codec.batch_committed(offset)
        self.done.mark_written()
        self.done.add(files)
        self.n += 1
        return wrote, read

    def note(self, what: str, **figures: float) -> None:
        """Add a line to the table."""
        there = [path.stat().st_size for path in Path(self.directory).rglob("*") if path.is_file()]
        state = self.last.get("state")
        found: dict[str, object] = {
            "cell": what,
            "remembered": len(self.done),
            "offset_characters": len(canonical(self.last)),
            "segments": len(there),
            "largest_segment_mb": round(max(there, default=0) / 1e6, 2),
            "all_segments_mb": round(sum(there) / 1e6, 2),
            "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
            **{name: round(value, 3) for name, value in figures.items()},
        }
        self.figures.append(found)
        times = ", ".join(f"{name} {value:.3f} s" for name, value in figures.items())
        self.rows.append([str(value) for value in list(found.values())[:7]] + [times])
        assert isinstance(state, dict) or len(self.done) < 1000


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """Run it; return what it returned, and the seconds."""
    began = time.perf_counter()
    return work(), time.perf_counter() - began


def measure(directory: str, files: int, batch: int, name: str) -> list[list[str]]:
    """Read so many files in micro-batches of `batch`, and restart."""
    run = Run(directory)
    slowest, total = 0.0, 0.0
    for first in range(0, files, batch):
        taken = [file(number) for number in range(first, min(files, first + batch))]
        wrote, _ = run.take(taken)
        slowest, total = max(slowest, wrote), total + wrote
    run.note(f"{name}: {run.n} micro-batches", write_mean=total / run.n, write_slowest=slowest)
    wrote, _ = run.take([file(files)])
    run.note(f"{name}: one file more", write=wrote)
    wrote, _ = run.take([file(files + 1)])
    run.note(f"{name}: and one more", write=wrote)
    codec = run.opened()
    done, took = timed(lambda: codec.read_done(run.last))
    done.mark_written()
    run.note(f"{name}: restart", read=took)
    assert len(done) == files + 1
    run.figures[-1]["name"] = name
    WHERE.mkdir(parents=True, exist_ok=True)
    (WHERE / f"memory_of_files-{name}.json").write_text(json.dumps(run.figures, indent=2) + "\n")
    return run.rows


def main() -> None:
    """Measure both ways in a temporary directory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=500)
    chosen = parser.parse_args()
    rows: list[list[str]] = []
    for name, batch in (("bits", chosen.batch), ("at-once", chosen.files)):
        with tempfile.TemporaryDirectory() as directory:
            rows += measure(directory, chosen.files, batch, name)
    header = ["what", "files", "offset, chars", "segments", "largest, MB", "all, MB", "peak RSS, MB", "seconds"]
    print(text_table(header, rows))


if __name__ == "__main__":
    main()
