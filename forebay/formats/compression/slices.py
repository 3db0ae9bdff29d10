# SPDX-License-Identifier: Apache-2.0
"""Cuts compressed files into slices, which several tasks read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from forebay.formats.base import even_borders
from forebay.formats.compression.byte_streams import decoded_stream
from forebay.formats.compression.codecs import (
    RawBytes,
    ReadFailed,
    codec_of,
    once_decompressed,
    open_decompressed,
    wrap_damage,
)

if TYPE_CHECKING:
    from forebay.formats.base import InputFile

_SLICE = 10**15
"""A position in a compressed file is this × the byte at which the slice starts + an offset in its decoded bytes."""
_LEAST_SLICE_BYTES = 1 << 20
"""The smallest slice. Each slice also decodes a block (0.2 MB or more) of the next, so smaller slices do not pay."""
_CUT_CODECS = ("bz2", "xz", "zst")


class OpenSlice(NamedTuple):
    """A slice that `open_slice` has opened: a stream of its decompressed bytes and of those after it."""

    stream: BinaryIO
    start: int
    """The position of the first byte of the stream."""
    end: Callable[[], int | None]
    """Returns the position at which the slice ends; None if it ends with the file or beyond what has been read."""


def slice_borders(file: InputFile, target_bytes: int) -> list[int]:
    """Return the inner positions that cut a compressed file into slices of about `target_bytes` compressed bytes.

    Returns [] if the file cannot be cut. Reads only the end of an xz or zstd file, which shows whether the file has
    several blocks; reads nothing of other files. Errors are those of `open_decompressed`.
    """
    codec = codec_of(file.path)
    if codec not in _CUT_CODECS:
        return []
    borders = even_borders(file.size, max(target_bytes, _LEAST_SLICE_BYTES))
    if not borders or not _has_several_blocks(file, codec):
        return []
    return [border * _SLICE for border in borders]


def open_slice(file: InputFile, position: int, end: int | None) -> OpenSlice:
    """Open a file to read `[position, end)` and what follows. The stream may begin before `position`.

    The stream of a bzip2, xz or zstd slice begins with the first block that starts in the slice. Errors are those of
    `open_decompressed`.
    """
    first, last = position // _SLICE, None if end is None else end // _SLICE
    codec = codec_of(file.path)
    if codec not in _CUT_CODECS or not (first or last):
        return OpenSlice(open_decompressed(file), 0, lambda: end)
    # Not above: no plain file needs them.
    from forebay.formats.compression.bzip2_blocks import Bzip2Blocks
    from forebay.formats.compression.xz_blocks import XzBlocks
    from forebay.formats.compression.zstd_frames import ZstdFrames

    raw = file.open()
    compressed = RawBytes(raw)
    blocks: Bzip2Blocks | XzBlocks | ZstdFrames
    if codec == "bz2":
        raw.seek(first)
        blocks = Bzip2Blocks(compressed.read, first, last)
    else:
        blocks = (XzBlocks if codec == "xz" else ZstdFrames)(compressed.at, file.size, first, last)

    def found_end() -> int | None:
        if end is None or last == first:
            return end
        return None if blocks.border is None else first * _SLICE + blocks.border + end % _SLICE

    chunks = wrap_damage(blocks.decode(), file.path, codec)
    if not first:
        chunks = once_decompressed(chunks, file.path)
    return OpenSlice(decoded_stream(raw, chunks), first * _SLICE, found_end)


def _has_several_blocks(file: InputFile, codec: str) -> bool:
    if codec == "bz2":
        return True
    from forebay.formats.compression.xz_blocks import has_several_blocks
    from forebay.formats.compression.zstd_frames import has_seek_table

    with file.open() as raw:
        try:
            return (has_several_blocks if codec == "xz" else has_seek_table)(RawBytes(raw).at, file.size)
        except ReadFailed as error:
            raise (error.__cause__ or error) from None
        except (EOFError, ValueError):
            return False  # the file is damaged or shorter than listed: the task that reads it reports that
