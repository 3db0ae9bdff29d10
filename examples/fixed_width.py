# SPDX-License-Identifier: Apache-2.0
"""A file format of one's own: records of a fixed width, as mainframes write them.

A package offers it by an entry point, and then `fileFormat=fixed` finds it, on the workers too:

    [project.entry-points."forebay.formats"]
    fixed = "fixed_width:FixedWidthFormat"

Run it: ``python examples/fixed_width.py``.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import ConfigurationError
from forebay.formats.base import FileFormat, InputFile, damaged_file
from forebay.options import option

BLOCK = 16_384  # records of a batch


@dataclass(frozen=True)
class FixedWidthOptions:
    layout: dict[str, int] = option(prefix="width.", doc="the width of each column in bytes: `width.name`")
    line_end: bool = option(default=True, doc="whether a line feed follows each record")

    def __post_init__(self):
        if not self.layout or min(self.layout.values()) <= 0:
            raise ConfigurationError("each column needs a width above 0", option="width", advice="set width.<column>")


class FixedWidthFormat(FileFormat):
    """Columns of fixed widths, padded with spaces. A position is a byte offset, so files are cut anywhere."""

    name = "fixed"
    options_class = FixedWidthOptions
    fixed_schema = True

    def infer_schema(self, files: Sequence[InputFile]) -> pa.Schema:
        return pa.schema([(name, pa.string()) for name in self.options.layout])

    def sliceable(self, file: InputFile) -> bool:
        return True

    def read(self, file, schema, *, columns=None, position=0, end=None) -> Iterator[tuple[pa.RecordBatch, int]]:
        wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
        width = sum(self.options.layout.values()) + self.options.line_end
        if file.size % width:
            raise damaged_file(f"{file.path} has {file.size} bytes, which are no whole records of {width}")
        position = -(-position // width) * width  # a record belongs to the slice in which it begins
        stop = file.size if end is None else min(file.size, -(-end // width) * width)
        with file.open() as raw:
            stream = io.BufferedReader(raw, BLOCK * width)
            stream.seek(position)
            while position < stop:
                data = stream.read(min(BLOCK * width, stop - position))
                position += len(data)
                records = pa.Array.from_buffers(pa.binary(width), len(data) // width, [None, pa.py_buffer(data)])
                yield pa.record_batch([self._column(records, field) for field in wanted], schema=wanted), position

    def _column(self, records: pa.Array, field: pa.Field) -> pa.Array:
        start = 0
        for name, width in self.options.layout.items():
            if name == field.name:
                texts = pc.binary_slice(records, start, start + width).cast(pa.binary()).cast(pa.string())
                return pc.utf8_trim_whitespace(texts).cast(field.type)
            start += width
        return pa.nulls(len(records), field.type)


def main() -> None:
    import tempfile

    import forebay

    with tempfile.NamedTemporaryFile("w", suffix=".fixed") as file:
        file.writelines(f"{number:<6}{'shop ' + str(number % 3):<10}{number * 1.5:>8.2f}\n" for number in range(5))
        file.flush()
        options = {"width.order": 6, "width.shop": 10, "width.amount": 8}
        source = forebay.FileSource(path=file.name, file_format="fixed", format_options=options)
        schema = pa.schema([("order", pa.int64()), ("shop", pa.string()), ("amount", pa.float64())])
        print(forebay.run(source.with_schema(schema)).to_table())


if __name__ == "__main__":
    main()
