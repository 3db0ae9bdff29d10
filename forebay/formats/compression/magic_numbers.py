# SPDX-License-Identifier: Apache-2.0
"""Recognizes compressed data by its first bytes, so that it is never read as text."""

from __future__ import annotations

import zlib
from typing import Final

from forebay.errors import ConfigurationError

HEAD_BYTES: Final = 4096
"""How many bytes of a file to check. Magic numbers are short; zlib has none, and is recognized by decompressing."""

LZ4_FRAME: Final = b"\x04\x22\x4d\x18"

_MAGIC: Final = [
    (b"\x1f\x8b\x08", "gzip", ".gz"),
    (b"\x28\xb5\x2f\xfd", "zstd", ".zst"),
    (b"\xfd7zXZ\0", "xz", ".xz"),
    (LZ4_FRAME, "LZ4", ".lz4"),
    (b"\x02\x21\x4c\x18", "LZ4's old frames", None),
    (b"\xff\x06\0\0sNaPpY", "framed Snappy", None),
    (b"\x89LZO\0\r\n\x1a\n", "LZO", None),
    (b"]\0\0", "LZMA", None),
    (b"LZIP\x01", "lzip", None),
    (b"\x1f\x9d", "compress (.Z)", None),
    (b"PK\x03\x04", "ZIP", None),
    (b"PK\x05\x06", "ZIP", None),
    (b"7z\xbc\xaf\x27\x1c", "7z", None),
    (b"Rar!\x1a\x07", "RAR", None),
]
"""Magic number, name of the format, and the suffix by which files of this format are read; None if they are not."""

_BZIP2 = (b"1AY&SY", b"\x17rE8P\x90")  # behind `BZh` and a digit: a block, or the end of an empty stream


def is_skippable_frame(head: bytes) -> bool:
    """Return whether the data begin with a skippable frame, which zstd and LZ4 have in common."""
    return head[1:4] == b"\x2a\x4d\x18" and head[0] & 0xF0 == 0x50


def is_compressed(data: bytes) -> bool:
    """Return whether data are compressed, as far as their start tells."""
    return _compression(data[:HEAD_BYTES]) is not None


def refuse_compressed(head: bytes, path: str, *, decompressed: bool) -> None:
    """Raise an error if what is to be read as text is compressed.

    Args:
        head: The first `HEAD_BYTES` of the data, or all of it.
        path: The path of the file, for the error.
        decompressed: Whether the data were already decompressed, as the suffix of the file says.

    Raises:
        ConfigurationError: The data are compressed.
    """
    found = _compression(head)
    if found is None:
        return
    name, suffix = found
    if decompressed:
        raise ConfigurationError(
            f"{path} is compressed twice: what its suffix says, and {name} inside",
            source=path,
            advice="decompress the file once, or exclude it with pathGlobFilter",
        )
    way = f"rename the file so that its name ends in {suffix}" if suffix else "decompress the file"
    raise ConfigurationError(
        f"{path} holds data compressed by {name}, but its name does not say so, and its bytes are no text",
        source=path,
        advice=f"{way}, or exclude it with pathGlobFilter",
    )


def _compression(head: bytes) -> tuple[str, str | None] | None:
    """Return the name of the compression and its suffix, if there is one; None if the data are not compressed."""
    for magic, name, suffix in _MAGIC:
        if head.startswith(magic):
            return name, suffix
    if head.startswith(b"BZh") and head[3:4].isdigit() and head[4:10] in _BZIP2:
        return "bzip2", ".bz2"
    if is_skippable_frame(head):
        return "zstd or LZ4", ".zst or .lz4"
    return ("zlib", ".deflate") if _is_zlib(head) else None


def _is_zlib(head: bytes) -> bool:
    """Return whether `head` is a zlib stream, or the start of one. Its header alone could be text, such as `x^`."""
    if head[:1] != b"x" or len(head) < 2 or int.from_bytes(head[:2], "big") % 31:
        return False
    stream = zlib.decompressobj()
    try:
        stream.decompress(head)
    except zlib.error:
        return False
    return stream.eof or len(head) >= HEAD_BYTES
