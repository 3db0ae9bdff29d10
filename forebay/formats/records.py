# SPDX-License-Identifier: Apache-2.0
"""What text, CSV and JSON share: finding the borders of records, encodings, and options."""

from __future__ import annotations

import codecs
import functools
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, ClassVar, Literal

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.formats.base import JoinedContents, even_borders
from forebay.formats.compression.codecs import STEP_BYTES, codec_of, decoded_stream, is_compressed, read_fully
from forebay.formats.compression.slices import open_slice, slice_borders
from forebay.formats.values.time_columns import TimeOptions
from forebay.options import option

if TYPE_CHECKING:
    from forebay.formats.base import InputFile


# -- Decodes invalid UTF-8 as Java does, and converts streams of other encodings to UTF-8.


_ENCODINGS = {
    "UTF-8": "utf-8",
    "US-ASCII": "ascii",
    "ISO-8859-1": "latin-1",
    "UTF-16": "utf-16",
    "UTF-16BE": "utf-16-be",
    "UTF-16LE": "utf-16-le",
    "UTF-32": "utf-32",
}
"""Maps the encodings that Spark 4 accepts to Python's names for them."""

_MARKS = {
    "utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
    "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
}
"""Byte order marks. Without one Java assumes big-endian; Python assumes none or the machine's order."""

_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACEMENT = "\ufffd".encode()


def check_encoding(name: str) -> str:
    """Return the name of an encoding in Spark's spelling.

    Raises:
        ConfigurationError: Spark does not support this encoding.
    """
    if name.upper() not in _ENCODINGS:
        raise ConfigurationError(
            f"the encoding {name!r} is not supported",
            option="encoding",
            advice="use one of " + ", ".join(_ENCODINGS),
        )
    return name.upper()


def decoded(data: bytes | bytearray) -> str:
    """Decode UTF-8 as Java does: U+FFFD for invalid bytes, only one for an encoded surrogate."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return _SURROGATE.sub(_REPLACEMENT, data).decode("utf-8", "replace")


def one_value(data: bytes | bytearray, large_type: pa.DataType) -> pa.Array:
    """Return an array whose single value is `data`, without a copy.

    `large_type` is `large_string` or `large_binary`.
    """
    offsets = pa.py_buffer(struct.pack("=qq", 0, len(data)))
    return pa.Array.from_buffers(large_type, 1, [None, offsets, pa.py_buffer(data)])


def valid_utf8(data: bytes | bytearray) -> bytes | bytearray:
    """Return the data if it is valid UTF-8; else with U+FFFD for invalid bytes, as in Java. Fast for ASCII."""
    if data.isascii():
        return data
    try:
        one_value(data, pa.large_string()).validate(full=True)
    except pa.ArrowInvalid:
        return decoded(data).encode()
    return data


def with_valid_utf8(texts: pa.Array) -> tuple[pa.Array, list[int]]:
    """Apply `valid_utf8` to each value; return the column and the indexes of the values that changed.

    Null stays null.
    """
    values = texts.to_pylist()
    spoiled: list[int] = []
    for row, value in enumerate(values):
        valid = None if value is None else valid_utf8(value)
        if valid is not value:
            values[row] = valid
            spoiled.append(row)
    return pa.array(values, pa.binary()), spoiled


def utf8_problem(text: bytes) -> str | None:
    """Return a message that names the first byte that is not UTF-8; None if the text is valid UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return f"byte {error.start} is not UTF-8"
    return None


def as_utf8(stream: BinaryIO, encoding: str, *, without: bytes = b"") -> BinaryIO:
    """Return a stream of the same text in UTF-8. A UTF-8 stream is returned unchanged, even if it is invalid.

    Closing the returned stream closes `stream`.

    Args:
        stream: The stream to decode.
        encoding: Its encoding.
        without: Bytes that are dropped if a stream of another encoding than UTF-8 begins with them.
    """
    name = check_encoding(encoding)
    return stream if name == "UTF-8" else decoded_stream(stream, _transcoded(stream, _ENCODINGS[name], without))


def _transcoded(stream: BinaryIO, codec: str, without: bytes) -> Iterator[bytes]:
    marks, data = _MARKS.get(codec), read_fully(stream.read, len(without))
    if data == without:
        data = b""
    if marks is not None:
        data += read_fully(stream.read, max(0, len(marks[0]) - len(data)))
        codec = codec if data.startswith(marks) else f"{codec}-be"
    decoder = codecs.getincrementaldecoder(codec)("replace")
    yield decoder.decode(data).encode("utf-8", "replace")
    while data := stream.read(STEP_BYTES):
        yield decoder.decode(data).encode("utf-8", "replace")
    yield decoder.decode(b"", final=True).encode("utf-8", "replace")


# -- Cuts the text of a file into blocks of whole records, in bounded memory.


BLOCK_BYTES = 2 << 20
"""The default of the option `blockBytes`: large enough for vectorised parsing, small enough for the memory limit."""

MAX_RECORD_BYTES = 128 << 20
"""The default of the option `maxRecordBytes`."""

BOM = b"\xef\xbb\xbf"
"""A byte order mark. At the start of a file of lines, in any encoding, it is not part of the text, as in Hadoop's line
reader."""

_FIRST_STEP = 1 << 10
_PAST_END_BYTES = 64 << 10
_CUT_HEAD_BYTES = 64 << 10
_SAMPLES = 64
_MIN_STRIDE = 1 << 10


@dataclass(frozen=True, slots=True)
class Block:
    """A block of complete records. `data` begins where a record starts, and ends where a record or the file ends."""

    data: bytearray
    end: int
    """The byte offset after the block in the decompressed file; the next record starts there, or the file ends."""
    cut: bool = False
    """Whether `data` is only the start of a record longer than the limit; the rest was skipped."""

    def offset(self, index: int) -> int:
        """Return the byte offset of `data[index]` in the decompressed file.

        It is counted from the block's end, because a byte order mark may have been removed from its start.
        """
        return self.end - len(self.data) + index


@dataclass(frozen=True, slots=True)
class RecordBlocks:
    """Cuts files into blocks of whole records. Shared by text, CSV and JSON.

    Args:
        separator: The end of a record; None for any of LF, CR LF and CR, as in Spark.
        block_bytes: How many bytes to read at a time.
        max_record_bytes: The most bytes of a record. For a longer one, a block with `cut` holds only its start.
        encoding: The encoding of the file. Blocks and positions refer to its text as UTF-8.
        drops_mark: Whether a byte order mark at the start of the decoded text is not part of it.
    """

    separator: bytes | None = None
    block_bytes: int = BLOCK_BYTES
    max_record_bytes: int = MAX_RECORD_BYTES
    encoding: str = "UTF-8"
    drops_mark: bool = True

    def sliceable(self, file: InputFile) -> bool:
        """Return whether a read can start at any position of a file.

        This is true for uncompressed UTF-8 with a separator that cannot overlap itself.
        """
        return self.seekable(file) and not self._ambiguous

    def borders(self, file: InputFile, target_bytes: int) -> list[int]:
        """Return the positions that cut a file into slices of about `target_bytes`; see `FileFormat.borders`."""
        if self.sliceable(file):
            return even_borders(file.size, target_bytes)
        if self._ambiguous or self.encoding != "UTF-8":
            return []
        # A record that starts at the border belongs to the slice before it: only that slice knows where it starts.
        return [border + self._width for border in slice_borders(file, target_bytes)]

    def read(self, file: InputFile, *, position: int = 0, end: int | None = None) -> Iterator[Block]:
        """Yield the blocks of the records that start in `[position, end)`."""
        if end is not None and end <= position:
            return
        _keep_freed_memory()
        before = max(0, position - self._width)
        opened = open_slice(file, before, end)
        with as_utf8(opened.stream, self.encoding, without=BOM) as stream:
            window = Window(stream, opened.start)
            if position:
                window.skip_to(before, seekable=self.seekable(file))
                if not self._drop_to_start(window, position - before):
                    return
            while (stop := opened.end()) is None or window.base < stop:
                block = self._next(window, opened.end)
                if block is None:
                    return
                yield block

    def parts(self, block: Block, max_records: int) -> Iterator[Block]:
        """Divide a block into blocks of about `max_records` records at most. An empty block is returned unchanged."""
        count = -(-self._records_in(block.data, max_records) // max_records)
        if count <= 1:
            yield block
            return
        at, step = 0, -(-len(block.data) // count)
        while at < len(block.data):
            after = self.next_start(block.data, min(at + step, len(block.data)) - 1)
            yield Block(block.data[at:after], block.offset(after))
            at = after

    def _records_in(self, data: bytearray, limit: int) -> int:
        """Return the number of records in the data; an estimate from an eighth of the data if far below `limit`."""
        separator, stride = self.separator or b"\n", len(data) // _SAMPLES
        if stride >= _MIN_STRIDE:
            size = stride // 8
            # A different eighth of each stride, in case the data repeat with its period.
            starts = (place * stride + place % 8 * size for place in range(_SAMPLES))
            count = 8 * sum(data.count(separator, start, start + size) for start in starts)
            if 2 * count < limit:
                return count
        return data.count(separator)

    def next_start(self, data: bytearray, index: int) -> int:
        """Return the start of the record that follows the record at `data[index]`, in a complete block."""
        return self._start_after(data, index + 1, True) or len(data)

    def seekable(self, file: InputFile) -> bool:
        """Return whether byte offsets in the text equal byte offsets in the file, so that a read can seek."""
        return codec_of(file.path) is None and self.encoding == "UTF-8"

    def _next(self, window: Window, found_end: Callable[[], int | None]) -> Block | None:
        """Return the next block of records that start before the end of the slice; None at the end of the file."""
        step = max(1, min(self.block_bytes, self.max_record_bytes // 2))
        while True:
            end = found_end()
            missing = step if end is None else end - window.base - len(window.data)
            stop = self._stop(window, None if end is None else end - window.base, step)
            if stop > self.max_record_bytes or (not stop and len(window.data) > self.max_record_bytes):
                # A step is at most half of the limit, so only the first record can be the long one.
                stop = self._start_after(window.data, 1, window.ended) or len(window.data)
                if stop > self.max_record_bytes:
                    return self._skip_record(window)
            if stop:
                return self._block(window, stop)
            if window.ended:
                return None
            # A long record is searched again after each step, so its steps grow with it.
            largest = max(step, len(window.data) // 2)
            window.fill(min(largest, max(missing, len(window.data), _PAST_END_BYTES)))

    def _stop(self, window: Window, inside: int | None, step: int) -> int:
        """Return the end of the next block, as an index into the window; 0 if more data must be read to find it.

        `inside` is the index at which the slice ends, if the window contains it. `step` is the number of bytes read at
        a time.
        """
        if inside is not None and len(window.data) >= inside:
            stop = self._start_after(window.data, inside, window.ended)
            if stop is not None:
                return stop
        if window.ended:
            return len(window.data)
        return self._last_start(window.data) if len(window.data) >= step else 0

    def _block(self, window: Window, stop: int) -> Block | None:
        first = window.base == 0
        data = window.take(stop)
        if first and self.drops_mark and data.startswith(BOM):
            del data[: len(BOM)]
        return Block(data, window.base) if data else None

    def _skip_record(self, window: Window) -> Block:
        head = window.data[:_CUT_HEAD_BYTES]
        self._drop_to_start(window, 1)
        return Block(head, window.base, cut=True)

    def _drop_to_start(self, window: Window, index: int) -> bool:
        """Drop the data before the first record start at or after `index` of the window.

        Return False if there is none.
        """
        while True:
            start = self._start_after(window.data, index, window.ended) if window.data else None
            if start is not None:
                window.take(start)
                return True
            if window.ended:
                window.take(len(window.data))
                return False
            # The last bytes stay: a separator may have begun in them.
            index -= window.drop(max(0, len(window.data) - self._width))
            index = max(index, 1)
            window.fill(min(self.block_bytes, max(4 * len(window.data), _PAST_END_BYTES)))

    @property
    def _width(self) -> int:
        return len(self.separator or b"\n")

    @property
    def _ambiguous(self) -> bool:
        """Whether the separator can overlap itself, as `aa` does in `aaa`.

        Then record starts can be found only by a scan from the start of the file.
        """
        separator = self.separator or b""
        return any(separator.startswith(separator[shift:]) for shift in range(1, len(separator)))

    def _start_after(self, data: bytearray, index: int, ended: bool) -> int | None:
        """Return the first record start at or after `index`; None if more data is needed.

        `ended` says whether the file ends with `data`.
        """
        low = max(0, index - self._width)
        if self.separator is not None:
            at = data.find(self.separator, low)
            return None if at < 0 else at + self._width
        feed, carriage = self._line_end(data, low)
        if carriage < 0:
            return None if feed < 0 else feed + 1
        after = carriage + 1
        if after == len(data):
            return after if ended else None
        return after + 1 if data[after] == 0x0A else after

    @staticmethod
    def _line_end(data: bytearray, low: int) -> tuple[int, int]:
        """Return the index of the first line feed from `low` on, and of the first carriage return before it.

        A missing one is -1. The search takes growing steps, so that the total cost stays linear.
        """
        feed = carriage = -1
        step = _FIRST_STEP
        while feed < 0 and carriage < 0 and low < len(data):
            feed = data.find(b"\n", low, low + step)
            carriage = data.find(b"\r", low, low + step if feed < 0 else feed)
            low, step = low + step, 2 * step
        return feed, carriage

    def _last_start(self, data: bytearray) -> int:
        """Return the end of the last record in `data` whose end does not depend on later data; 0 if there is none."""
        if self.separator is None:
            feed = data.rfind(b"\n") + 1
            # A carriage return at the very end may be half of a `\r\n`.
            return max(feed, data.rfind(b"\r", feed, len(data) - 1) + 1)
        if not self._ambiguous:
            place = data.rfind(self.separator)
            return 0 if place < 0 else place + self._width
        last = 0
        while (place := data.find(self.separator, last)) >= 0:
            last = place + self._width
        return last


class Window:
    """A window on a stream. `data` holds the bytes from offset `base` to the last byte read."""

    def __init__(self, stream: BinaryIO, base: int = 0) -> None:
        self._stream = stream
        self._scratch = bytearray()
        self.data = bytearray()
        self.base = base
        self.ended = False

    def skip_to(self, offset: int, *, seekable: bool) -> None:
        """Drop all bytes before `offset`, without reading them if the stream is `seekable`."""
        if seekable:
            self._stream.seek(offset)
        else:
            missing = offset - self.base
            while missing and (part := self._stream.read(min(missing, BLOCK_BYTES))):
                missing -= len(part)
        self.base = offset

    def fill(self, count: int) -> None:
        """Read `count` more bytes, or up to the end of the file."""
        missing = count
        while missing > 0:
            came = self._append(missing)
            if not came:
                self.ended = True
                return
            missing -= came

    def _append(self, most: int) -> int:
        """Read at most `most` bytes with one call; return how many bytes were read."""
        readinto = getattr(self._stream, "readinto", None)
        if readinto is None:
            part = self._stream.read(most)
            self.data += part
            return len(part)
        # Read into the same memory each time: fresh memory costs more than the copy.
        if len(self._scratch) < min(most, BLOCK_BYTES):
            self._scratch = bytearray(min(most, BLOCK_BYTES))
        with memoryview(self._scratch) as whole, whole[:most] as room:
            came: int = readinto(room)
            self.data += room[:came]
        return came

    def take(self, count: int) -> bytearray:
        """Remove and return the first `count` bytes."""
        data, self.data = self.data, self.data[count:]
        del data[count:]
        self.base += count
        return data

    def drop(self, count: int) -> int:
        """Remove the first `count` bytes; return how many bytes were removed."""
        del self.data[:count]
        self.base += count
        return count


@functools.cache
def _keep_freed_memory() -> None:
    """Make glibc keep freed blocks for later ones, by raising its thresholds (mallopt(3), M_MMAP_THRESHOLD).

    Without it, new pages for each block took 10 % of the CPU time of reading CSV.
    """
    bytes(30 << 20)


# -- Joins the contents of small files of lines, so that one read parses them all.


def join_lines(
    contents: Sequence[bytes], *, header: bool = False, not_one_row: Sequence[bytes] = ()
) -> JoinedContents | None:
    """Join the contents of files of UTF-8 lines to the content of one file; return None if this could change a row.

    Args:
        contents: The content of each file.
        header: Whether the first line of a file is a header. All files must have the same header.
        not_one_row: How lines may begin that give no row or several rows.
    """
    if any(is_compressed(content) for content in contents):
        return None  # a read of the file alone refuses it
    contents = [content.replace(b"\r\n", b"\n") for content in contents]
    first = contents[0][: contents[0].find(b"\n") + 1] if header else b""
    if header and not first.strip():
        return None
    bodies = []
    for content in contents:
        if not content.startswith(first):
            return None
        body = content[len(first) :]
        bodies.append(body if not body or body.endswith(b"\n") else body + b"\n")
    joined = first + b"".join(bodies)
    # A lone carriage return ends a line too. Readers skip a byte order mark only at the start of a file.
    if b"\r" in joined or BOM in joined:
        return None
    if any(joined.startswith(start) or b"\n" + start in joined for start in not_one_row):
        return None
    return JoinedContents(joined, [body.count(b"\n") for body in bodies])


# -- The options that CSV and JSON share.


Mode = Literal["PERMISSIVE", "DROPMALFORMED", "FAILFAST"]


@dataclass(frozen=True, kw_only=True)
class RecordOptions(TimeOptions):
    """The options that CSV and JSON share: those of Spark, with names in snake case.

    Raises:
        ConfigurationError: A value is invalid.
    """

    drops_all_marks: ClassVar[bool] = True
    """Whether a byte order mark is no part of the text in other encodings than UTF-8, too."""

    multi_line: bool = False
    line_sep: str | None = None
    encoding: str | None = option(default=None, aliases="charset")
    mode: Mode = "PERMISSIVE"
    column_name_of_corrupt_record: str = "_corrupt_record"
    sampling_ratio: float = 1.0
    max_record_bytes: int = MAX_RECORD_BYTES
    """Bytes; a longer record is malformed, or an error in CSV with `multiLine`. Not an option of Spark."""
    block_bytes: int | None = None
    """How many bytes to read and parse at a time. Not an option of Spark."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.encoding is not None:
            check_encoding(self.encoding)
        if self.mode not in ("PERMISSIVE", "DROPMALFORMED", "FAILFAST"):
            raise self._wrong("mode", "it must be PERMISSIVE, DROPMALFORMED or FAILFAST")
        if not self.sampling_ratio > 0:
            raise self._wrong("sampling_ratio", "it must be greater than 0")
        self._check_positive("max_record_bytes", "block_bytes")

    def blocks(self, block_bytes: int | None = None) -> RecordBlocks:
        """Return the settings for cutting a file into blocks of lines. `block_bytes` replaces the option."""
        encoding = check_encoding(self.encoding or "UTF-8")
        return RecordBlocks(
            separator=None if self.line_sep is None else self.line_sep.encode(),
            block_bytes=block_bytes or self.block_bytes or BLOCK_BYTES,
            max_record_bytes=self.max_record_bytes,
            encoding=encoding,
            drops_mark=self.drops_all_marks or encoding == "UTF-8",
        )

    def _check_positive(self, *fields: str) -> None:
        for field in fields:
            value = getattr(self, field)
            if value is not None and value < 1:
                raise self._wrong(field, "it must be at least 1")
