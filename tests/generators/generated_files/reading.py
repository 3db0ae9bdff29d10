# SPDX-License-Identifier: Apache-2.0
"""Reads damaged files with forebay, in a process of its own: what ends the process cannot be caught inside it.

`python -m generated_files.reading orc 0 400` reads the files 0 to 399. It prints each number before it reads the file,
and JSON at the end. A file that takes too long ends the process. With `--each` it also prints what each file gave, and
with `--write DIRECTORY` it writes the files.
"""

from __future__ import annotations

import argparse
import faulthandler
import io
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from forebay.errors import ForebayError
from forebay.formats.avro.format import AvroFormat
from forebay.formats.base import FileFormat
from forebay.formats.orc.format import OrcFormat
from forebay.formats.parquet.format import ParquetFormat
from generated_files.mutations import mutated
from generated_files.outcomes import digests, plain
from generated_files.seeds import SEEDS, WRITERS

READERS: Mapping[str, FileFormat] = {"avro": AvroFormat(), "orc": OrcFormat(), "parquet": ParquetFormat()}
PATH = "/data/f"
SECONDS = 20
"""For how long a file is read, at most."""


class MemoryFile:
    path = PATH

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size = len(data)

    def open(self) -> BinaryIO:
        return io.BytesIO(self.data)


class Files:
    """The damaged files of a format, by number."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._whole: dict[int, bytes] = {}

    def whole(self, number: int) -> bytes:
        """Return the file that the damage is done to."""
        seed = self.seed(number)
        if seed not in self._whole:
            self._whole[seed] = WRITERS[self._kind](seed)
        return self._whole[seed]

    def seed(self, number: int) -> int:
        """Return the number of that file."""
        return number % SEEDS

    def has_schema(self, number: int) -> bool:
        """Return whether the user gives the schema of the whole file, instead of inferring one."""
        return number // SEEDS % 2 == 1

    def damaged(self, number: int) -> bytes:
        return mutated(random.Random(number), self.whole(number))

    def schema(self, number: int) -> pa.Schema | None:
        """Return the schema that the user gives, or None."""
        whole = MemoryFile(self.whole(number))
        return READERS[self._kind].infer_schema([whole]) if self.has_schema(number) else None


def read(kind: str, data: bytes, schema: pa.Schema | None) -> pa.Table | str:
    """Read a file; return its rows, or the error."""
    reader, file = READERS[kind], MemoryFile(data)
    try:
        schema = reader.infer_schema([file]) if schema is None else schema
        reader.borders(file, 10_000)
        batches = [batch for batch, _ in reader.read(file, schema)]
    except ForebayError as error:
        if not error.message or PATH not in str(error):
            return f"an error that does not name the file: {error!r}"
        return f"{type(error).__name__}: {error}"
    table = pa.Table.from_batches(batches, schema)
    # Parquet's texts keep bytes that are not UTF-8, as in Spark.
    table.cast(pa.schema([(field.name, plain(field.type)) for field in schema])).validate(full=True)
    return table


def peak_megabytes() -> int:
    """Return the most memory this process had. Not ru_maxrss, which begins with that of the process that started it."""
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(peak) >> 10


def main(kind: str, first: int, last: int, write: Path | None, *, each: bool) -> None:
    files = Files(kind)
    ends: Counter[str] = Counter()
    slowest = 0.0
    for number in range(first, last):
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
        # Ends the process and shows where it hung.
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        data = files.damaged(number)
        if write is not None:
            (write / f"{number}.{kind}").write_bytes(data)
        schema = files.schema(number)
        began = time.perf_counter()
        found = read(kind, data, schema)
        slowest = max(slowest, time.perf_counter() - began)
        ends[found.split(":")[0] if isinstance(found, str) else "read"] += 1
        if each:
            sys.stdout.write(json.dumps(found if isinstance(found, str) else digests(found)) + "\n")
    sys.stdout.write(json.dumps({"ends": ends, "slowest": slowest, "megabytes": peak_megabytes()}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=sorted(READERS))
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--each", action="store_true")
    given = parser.parse_args()
    main(given.kind, given.first, given.last, given.write, each=given.each)
