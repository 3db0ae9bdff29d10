# SPDX-License-Identifier: Apache-2.0
"""A partitioned log in a directory: `<partition>.log` files of lines, read from byte positions.

Run it: ``python examples/partitioned_log.py``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

import forebay
from forebay import Batch, SimpleSource, Split, option


class PartitionedLog(SimpleSource):
    bounded = False
    directory: str = option(doc="where the .log files are")

    def schema(self) -> pa.Schema:
        return pa.schema({"partition": pa.string(), "offset": pa.int64(), "line": pa.string()})

    def splits(self) -> Iterable[str]:
        return sorted(path.stem for path in Path(self.directory).glob("*.log"))

    def latest(self, split: Split) -> int:
        data = self.path(split).read_bytes()
        return data.rfind(b"\n") + 1  # without the line that is still being written

    def read(self, split: Split) -> Iterator[Batch]:
        with self.path(split).open("rb") as log:
            log.seek(at := split.position or 0)
            while at < split.end:
                line = log.readline()
                row = {"partition": split.id, "offset": at, "line": line.decode().rstrip("\n")}
                at += len(line)
                yield Batch([row], at)

    def path(self, split: Split) -> Path:
        return Path(self.directory, f"{split.id}.log")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        for partition in ("0", "1"):
            Path(directory, f"{partition}.log").write_text("".join(f"event {n} of {partition}\n" for n in range(3)))
        print(forebay.peek(PartitionedLog(directory=directory)))
