# SPDX-License-Identifier: Apache-2.0
"""A log whose segments roll over: ``<log>/<first record>.seg`` files, of which the last one is still written.

A split is a log, never a segment: a position is (segment, record in it), so a read goes on from one segment to the
next, and no split has to be closed. Run it: ``python examples/segment_log.py``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa

import forebay
from forebay import Batch, SimpleSource, Split, option

NAME = "{:012d}.seg"


class SegmentLog(SimpleSource):
    bounded = False
    directory: str = option(doc="where the directories of the logs are")
    page_rows: int = option(default=500, doc="records of one page")

    def schema(self) -> pa.Schema:
        return pa.schema({"log": pa.string(), "record": pa.int64(), "text": pa.string()})

    def splits(self) -> Iterable[str]:
        return sorted(path.name for path in Path(self.directory).iterdir() if path.is_dir())

    def latest(self, split: Split) -> tuple[int, int]:
        segments = self.segments(split)
        if not segments:
            return 0, 0
        whole_lines = self.path(split, segments[-1]).read_bytes().count(b"\n")  # without a line that is being written
        return segments[-1], whole_lines

    def read(self, split: Split) -> Iterator[Batch]:
        start, begin = split.position or (0, 0)
        last, stop = split.end
        segments = [segment for segment in self.segments(split) if start <= segment <= last]
        first_left = segments[0] if segments else last + stop  # a segment has the number of its first record
        if split.position and first_left > start + begin:
            raise forebay.DataLossError(
                f"the segments of the log {split.id!r} with the records from {start + begin} on are gone",
                split=split.id,
                position=split.position,
                advice="restore them, or begin with a new checkpoint, which reads what is left from its beginning on",
            )
        for segment in segments:
            first = begin if segment == start else 0
            yield from self.pages(split, segment, first, stop if segment == last else None)

    def pages(self, split: Split, segment: int, first: int, stop: int | None) -> Iterator[Batch]:
        # As `latest` counts: a record may hold other line ends.
        with self.path(split, segment).open(newline="\n") as file:
            lines = islice(enumerate(file), first, stop)
            while page := list(islice(lines, self.page_rows)):
                yield Batch(
                    [(split.id, segment + n, line.rstrip("\n")) for n, line in page], (segment, page[-1][0] + 1)
                )

    def segments(self, split: Split) -> list[int]:
        """Return the numbers of the first records of the segments: the order in which they were written."""
        return sorted(int(path.stem) for path in Path(self.directory, split.id).glob("*.seg"))

    def path(self, split: Split, segment: int) -> Path:
        return Path(self.directory, split.id, NAME.format(segment))


class SegmentWriter:
    """Writes one log, and begins a new segment after so many records."""

    def __init__(self, directory: str | Path, log: str, records: int = 100) -> None:
        self.place, self.records, self.written = Path(directory, log), records, 0
        self.place.mkdir()

    def append(self, *texts: str) -> None:
        for text in texts:
            segment = self.written // self.records * self.records
            with (self.place / NAME.format(segment)).open("a") as file:
                file.write(f"{text}\n")
            self.written += 1


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        for name in ("north", "south"):
            SegmentWriter(directory, name, records=3).append(*(f"event {n} of {name}" for n in range(5)))
        print(forebay.peek(SegmentLog(directory=directory), 10))
