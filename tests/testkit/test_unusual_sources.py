# SPDX-License-Identifier: Apache-2.0
"""Right connectors of unusual shapes: `check` accuses none."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pytest

from forebay import Batch, SimpleSource, Split, option
from forebay.errors import DataLossError
from forebay.testkit import check

SCHEMA = pa.schema({"id": pa.int64(), "ts": pa.int64()})
ROWS = [(5 + 3 * n + n % 2, 1000 + n // 4 * 10) for n in range(200)]
TIES = [(1000 + n * 3 if n % 9 else 1003 + (n - 1) * 3, f"r{n}") for n in range(200)]


class Table(SimpleSource):
    def schema(self):
        return SCHEMA


class CountsPages(Table):
    """Positions are numbers of pages, and so are the ends of splits."""

    page_size: int = 40

    def splits(self):
        return [Split("all", 0, -(-len(ROWS) // self.page_size))]

    def read(self, split):
        for page in range(split.position, split.end):
            yield Batch(ROWS[page * self.page_size : (page + 1) * self.page_size], page + 1)


class AtMostSomePages(Table):
    """The service gives no more than `max_pages` pages of `page_rows` rows."""

    page_rows: int = 50
    max_pages: int = 3

    def read(self, split):
        pages, after = split.position or (0, 0)
        while pages < self.max_pages:
            page = [row for row in ROWS if row[0] > after and (split.end is None or row[0] <= split.end[1])]
            if not page:
                return
            pages, after = pages + 1, page[: self.page_rows][-1][0]
            yield Batch(page[: self.page_rows], (pages, after))


class FixedPages(Table):
    """The page of a stored file has ten rows; a page is read from its beginning."""

    def read(self, split):
        for page in range((split.position or 0) // 10, len(ROWS) // 10):
            if split.end is not None and page * 10 >= split.end:
                return
            yield Batch(ROWS[page * 10 : page * 10 + 10], page * 10 + 10)


class PagesOfAFormat(Table):
    """Another size of a page finds nothing, and no restart has another one."""

    page_size: int = option(default=20, may_change=False)

    def read(self, split):
        for page in range(split.position or 0, len(ROWS) // 20 if split.end is None else split.end):
            yield Batch(ROWS[page * 20 : page * 20 + 20] if self.page_size == 20 else [], page + 1)


class Offsets(SimpleSource):
    """Positions are offsets of bytes, which are in a column too."""

    path: str

    def schema(self):
        return pa.schema({"line": pa.string(), "next_offset": pa.int64()})

    def read(self, split):
        with Path(self.path).open("rb") as file:
            file.seek(split.position or 0)
            while True:
                rows = []
                while len(rows) < 20 and (split.end is None or file.tell() < split.end) and (line := file.readline()):
                    rows.append((line.decode().rstrip("\n"), file.tell()))
                if not rows:
                    return
                yield Batch(rows, file.tell())


class TimeAndNumber(SimpleSource):
    """A position is a time and the number of rows of that time; most pages end with the first one."""

    def schema(self):
        return pa.schema({"time": pa.int64(), "name": pa.string()})

    def read(self, split):
        keyed = [((time, 1 + sum(other == time for other, _ in TIES[:n])), n) for n, (time, _) in enumerate(TIES)]
        end = split.end or (10**9, 0)
        rest = [(position, TIES[n]) for position, n in keyed if (split.position or (0, 0)) < position <= end]
        for start in range(0, len(rest), 20):
            page = rest[start : start + 20]
            yield Batch([row for _, row in page], page[-1][0])


class Snapshot(Split):
    version: ClassVar[int] = 2
    snapshot: int = 0

    @classmethod
    def upgrade(cls, version, fields):
        return {**{name: value for name, value in fields.items() if name != "snap"}, "snapshot": fields["snap"]}


class Snapshots(Table):
    """A stored split reads the older snapshot of the table on, which may be gone."""

    split_class = Snapshot
    gone: bool = False
    page_rows: int = 20

    def splits(self):
        return [Snapshot(id="all", snapshot=9)]

    def read(self, split):
        if self.gone and split.snapshot < 9:
            raise DataLossError("the snapshot has expired", split=split.id)
        at, end = split.position or 0, 60 if split.end is None else split.end
        while at < end:
            page = [(number, split.snapshot * 1000) for number in range(at, min(at + self.page_rows, end))]
            at += len(page)
            yield Batch(page, at)


STORED = [{"v": 1, "id": "all", "position": 20, "snap": 7}]
RIGHT = {
    "positions count pages": (CountsPages, {}),
    "a number of pages at most": (AtMostSomePages, {}),
    "pages of a fixed size": (FixedPages, {}),
    "pages of a format": (PagesOfAFormat, {}),
    "offsets of bytes": (Offsets, {}),
    "a time and a number": (TimeAndNumber, {}),
    "an older snapshot": (Snapshots, {"stored": STORED}),
    "an expired snapshot": (lambda: Snapshots(gone=True), {"stored": STORED}),
}


@pytest.mark.parametrize("name", RIGHT)
def test_check_accuses_no_right_source_of_an_unusual_shape(name, tmp_path):
    make, arguments = RIGHT[name]
    lines = tmp_path / "lines.txt"
    lines.write_text("".join(f"line {n} {'x' * (n % 7)}\n" for n in range(200)))
    source = make(path=str(lines)) if make is Offsets else make()
    assert check(source, **arguments).verdict == "passed"
