# SPDX-License-Identifier: Apache-2.0
"""Makes a message of zeros in a codec, decodes it in the same process, and prints the memory that decoding takes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import cramjam
import zstandard
from kafka.record.memory_records import MemoryRecordsBuilder

from forebay.errors import DataError
from forebay.sources.kafka.records.batches import CRC_BEGIN, RawFetch, record_schema
from forebay.sources.kafka.records.columnar import ColumnarDecoder

SIZE = 600_000_000
_PIECE = bytes(4_000_000)


def megabytes(kind: str) -> int:
    """Return the process' memory in MB: VmRSS now, VmHWM at most so far."""
    line = next(one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith(kind))
    return int(line.split()[1]) // 1024


def zstd_without_size() -> bytes:
    """Return a frame as Java's producers write it."""
    writer = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return b"".join([writer.compress(_PIECE) for _ in range(SIZE // len(_PIECE))]) + writer.flush()


def stream(codec: object) -> bytes:
    """Return a stream of a codec of cramjam."""
    writer = codec.Compressor()  # type: ignore[attr-defined]
    parts = []
    for _ in range(SIZE // len(_PIECE)):
        writer.compress(_PIECE)
        parts.append(bytes(writer.flush()))
    return b"".join(parts) + bytes(writer.finish())


def xerial() -> bytes:
    """Return snappy in blocks, as the Java library writes it."""
    block = bytes(cramjam.snappy.compress_raw(_PIECE))
    blocks = (len(block).to_bytes(4, "big") + block) * (SIZE // len(_PIECE))
    return b"\x82SNAPPY\x00" + (1).to_bytes(4, "big") * 2 + blocks


BOMBS = {
    "gzip": (1, lambda: stream(cramjam.gzip)),
    "snappy": (2, lambda: bytes(cramjam.snappy.compress_raw(bytes(SIZE)))),
    "snappy in blocks": (2, xerial),
    "lz4": (3, lambda: bytes(cramjam.lz4.compress(bytes(SIZE)))),
    "zstd": (4, lambda: zstandard.ZstdCompressor().compress(bytes(SIZE))),
    "zstd without a size": (4, zstd_without_size),
}


def fetched(codec: int, packed: bytes) -> bytes:
    """Return a record batch of one record with these compressed bytes."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 20)
    builder.append(timestamp=0, key=None, value=b"x", headers=[])
    builder.close()
    batch = bytearray(bytes(builder.buffer())[:61])
    batch[21:23] = codec.to_bytes(2, "big")
    batch += packed
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    import crc32c

    batch[CRC_BEGIN - 4 : CRC_BEGIN] = crc32c.crc32c(bytes(batch[CRC_BEGIN:])).to_bytes(4, "big")
    return bytes(batch)


def main(name: str) -> None:
    """Make the bomb in a child process, so that only decoding counts here."""
    reader, writer = os.pipe()
    codec, make = BOMBS[name]
    if os.fork() == 0:
        os.close(reader)
        with os.fdopen(writer, "wb") as sink:
            sink.write(fetched(codec, make()))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as source:
        data = source.read()
    os.wait()
    idle = megabytes("VmRSS")
    decoder = ColumnarDecoder(record_schema(["value"]))
    try:
        rows = sum(part.batch.num_rows for part in decoder.decode(RawFetch("t", 0, memoryview(data), 0)) if part.batch)
        text = f"{rows} rows"
    except DataError as error:
        text = str(error.option)
    sys.stdout.write(f"{text},{len(data)},{megabytes('VmHWM') - idle}\n")


if __name__ == "__main__":
    main(sys.argv[1])
