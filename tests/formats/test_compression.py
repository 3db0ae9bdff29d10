# SPDX-License-Identifier: Apache-2.0
"""Compression by suffix: supported codecs are read, and damage is an error with the name of the file."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import pickle
import struct
import zlib
from pathlib import Path

import pyarrow as pa
import pytest
from text_files.compression import COMPRESS

from forebay.errors import ConfigurationError, DataError
from forebay.formats.compression.codecs import REFUSED_SUFFIXES, codec_of, open_decompressed
from forebay.formats.csv.format import CsvFormat
from forebay.formats.csv.options import CsvOptions
from forebay.formats.json.format import JsonFormat
from forebay.formats.json.options import JsonOptions
from forebay.formats.text import TextFormat, TextOptions

TEXT = b"".join(b"%d,hello %d\n" % (number, number * 7919) for number in range(20_000))


suffixes = pytest.mark.parametrize("suffix", COMPRESS)


@suffixes
def test_plain_bytes_come_back(memory_file, suffix) -> None:
    data = COMPRESS[suffix](TEXT)
    assert open_decompressed(memory_file(data, f"/data/x.{suffix}")).read() == TEXT


@suffixes
def test_concatenated_members_are_one_file(memory_file, suffix) -> None:
    data = COMPRESS[suffix](TEXT) + COMPRESS[suffix](b"the end\n")
    assert open_decompressed(memory_file(data, f"/data/x.{suffix}")).read() == TEXT + b"the end\n"


@suffixes
def test_an_empty_file_is_an_empty_stream(memory_file, suffix) -> None:
    assert open_decompressed(memory_file(b"", f"/data/x.{suffix}")).read() == b""


@pytest.mark.soak(but=["100-gz", "100-bz2", "100-xz", "100-deflate", "100-zst", "100-lz4", "100-snappy"])
@suffixes
@pytest.mark.parametrize("cut", [1, 5, 100, -9, -1])
def test_a_truncated_file_is_an_error_with_its_name(memory_file, suffix, cut) -> None:
    data = COMPRESS[suffix](TEXT)[:cut]
    with pytest.raises(DataError, match=f"/data/x.{suffix}") as caught:
        open_decompressed(memory_file(data, f"/data/x.{suffix}")).read()
    assert caught.value.source == f"/data/x.{suffix}"
    assert "ignoreCorruptFiles" in str(caught.value.advice)


@suffixes
def test_garbage_is_an_error_with_the_name_of_the_file(memory_file, suffix) -> None:
    with pytest.raises(DataError, match=f"/data/x.{suffix}"):
        open_decompressed(memory_file(b"this is no compressed data", f"/data/x.{suffix}")).read()


@suffixes
def test_an_error_of_the_storage_is_not_taken_for_damage(memory_file, suffix) -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise ConnectionResetError("the network is gone")

    file = type("File", (), {"path": f"/data/x.{suffix}", "open": lambda self: Broken(b"")})()
    with pytest.raises(ConnectionResetError):
        open_decompressed(file).read()


def test_zero_padding_after_gzip_members_is_skipped(memory_file) -> None:
    data = gzip.compress(b"a\n") + b"\0" * 10 + gzip.compress(b"b\n") + b"\0" * 3
    assert open_decompressed(memory_file(data, "/data/x.gz")).read() == b"a\nb\n"


def test_lz4_frames_of_the_command_line_tool_are_read_too(memory_file) -> None:
    data = pa.Codec("lz4").compress(TEXT, asbytes=True)
    assert open_decompressed(memory_file(data, "/data/x.lz4")).read() == TEXT


def test_lz4_frames_may_begin_with_a_skippable_frame(memory_file) -> None:
    data = struct.pack("<II", 0x184D2A50, 4) + b"abcd" + pa.Codec("lz4").compress(TEXT, asbytes=True)
    assert open_decompressed(memory_file(data, "/data/x.lz4")).read() == TEXT


@pytest.mark.parametrize("name", ["x.csv.gzip", "x.GZIP", "x.csv.zstd", "x.Zstd"])
def test_the_long_suffixes_of_spark_4_2_are_decompressed(memory_file, name) -> None:
    compress = COMPRESS["gz" if "gz" in name.lower() else "zst"]
    assert open_decompressed(memory_file(compress(TEXT), f"/data/{name}")).read() == TEXT


MAGIC = {
    **{name: COMPRESS[name](TEXT) for name in ("gz", "bz2", "xz", "deflate", "zst")},
    "empty bz2": bz2.compress(b""),
    "short deflate": zlib.compress(b"x\n"),
    "fast deflate": zlib.compress(TEXT, 1),
    "lz4 frame": pa.Codec("lz4").compress(TEXT, asbytes=True),
    "skippable frame": struct.pack("<II", 0x184D2A5F, 4) + b"abcd" + COMPRESS["zst"](TEXT),
    "lzma": lzma.compress(TEXT, format=lzma.FORMAT_ALONE),
    "zip": b"PK\x03\x04\x14\x00",
    "7z": b"7z\xbc\xaf\x27\x1c\0",
    "rar": b"Rar!\x1a\x07\x01\0",
    "lzip": b"LZIP\x01\x0c",
    "compress": b"\x1f\x9d\x90",
    "lzo": b"\x89LZO\0\r\n\x1a\n",
    "framed snappy": b"\xff\x06\0\0sNaPpY",
}
READERS = {
    "csv": CsvFormat(CsvOptions()),
    "csv, header": CsvFormat(CsvOptions(header=True)),
    "csv, multiLine": CsvFormat(CsvOptions(multi_line=True)),
    "csv, encoding": CsvFormat(CsvOptions(encoding="ISO-8859-1")),
    "json": JsonFormat(JsonOptions()),
    "json, multiLine": JsonFormat(JsonOptions(multi_line=True)),
    "text": TextFormat(TextOptions()),
    "text, wholetext": TextFormat(TextOptions(wholetext=True)),
}


@pytest.mark.soak(
    but=[
        "gz-csv",
        "bz2-json",
        "xz-text",
        "zst-csv, multiLine",
        "deflate-csv, encoding",
        "lz4 frame-text, wholetext",
        "skippable frame-csv",
    ]
)
@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
@pytest.mark.parametrize("data", MAGIC.values(), ids=MAGIC)
def test_compressed_data_under_a_name_of_text_are_refused_and_not_read_as_text(memory_file, data, reader) -> None:
    """Spark reads bytes as text here, and so makes up rows."""
    schema = pa.schema({"a": pa.string()})
    for file in (memory_file(data, "/data/x.csv.bgz"), memory_file(gzip.compress(data), "/data/x.csv.gz")):
        with pytest.raises(ConfigurationError, match=rf"{file.path} (holds data compressed by|is compressed twice)"):
            list(reader.read(file, schema))
        with pytest.raises(ConfigurationError, match=file.path):
            if reader.fixed_schema:
                list(reader.read(file, schema))
            else:
                reader.infer_schema([file])
    text = b"x,1\n"
    assert reader.join([text, data]) is None


@pytest.mark.parametrize(
    "text",
    [b"x^2 + 1\n", b"x^2" * 5000, b"x\x01,1\n", b"x\xda\x80,\n", b"BZh9 is a magic number\n", b"PK\n", b"x", b"]\n"],
)
def test_text_that_begins_like_a_magic_number_is_text(memory_file, text) -> None:
    assert open_decompressed(memory_file(text)).read() == text
    stream = open_decompressed(memory_file(text))
    assert stream.seek(1) == 1
    assert stream.read() == text[1:]
    assert stream.seek(0) == 0
    assert stream.read(3) == text[:3]
    assert stream.tell() == len(text[:3])


@pytest.mark.parametrize("suffix", REFUSED_SUFFIXES)
def test_unsupported_compression_is_refused_and_not_read_as_text(memory_file, suffix) -> None:
    with pytest.raises(ConfigurationError, match=f"x{suffix}"):
        open_decompressed(memory_file(b"", f"/data/x{suffix}"))


@pytest.mark.parametrize(
    "path", ["x.csv", "x", "gz", "x.gz/part", "x.gz.csv", "zip://x.csv::p.csv.gz", "http://h/x.csv?from=y.gz"]
)
def test_only_the_last_suffix_of_the_name_counts(path) -> None:
    assert codec_of(path) is None


@pytest.mark.parametrize(
    ("path", "codec"),
    [
        ("/data/x.csv.GZ", "gz"),
        ("/data/x.csv.Bz2", "bz2"),
        ("/data/.GZ", "gz"),
        ("zip://d/x.csv.gz::file:///p.zip", "gz"),
        ("tar://x.csv.ZST::p.tar", "zst"),
        ("simplecache::s3://b/x.csv.gz", "gz"),
        ("http://h/x.csv.gz?token=a/b.c#d", "gz"),
    ],
)
def test_upper_case_archives_and_queries_do_not_hide_a_suffix(path, codec) -> None:
    """Hadoop ignores the case of a suffix: Spark 4.2 decompresses x.csv.GZ."""
    assert codec_of(path) == codec


@pytest.mark.parametrize("name", ["x.ZIP", "x.Tar", "x.TGZ", "x.tar.gz", "x.csv.TAR.bz2", "x.z"])
def test_archives_are_refused_however_they_are_written(name) -> None:
    with pytest.raises(ConfigurationError, match=name):
        codec_of(f"/data/{name}")


@suffixes
def test_closing_the_stream_closes_the_file(suffix) -> None:
    raw = io.BytesIO(COMPRESS[suffix](TEXT))
    file = type("File", (), {"path": f"/data/x.{suffix}", "open": lambda self: raw})()
    with open_decompressed(file) as stream:
        stream.read(10)
    assert raw.closed


@suffixes
def test_a_compressed_csv_file_resumes_at_any_position_it_gave(memory_file, suffix) -> None:
    reader = pickle.loads(pickle.dumps(CsvFormat(CsvOptions(block_bytes=50_000))))
    file = memory_file(COMPRESS[suffix](TEXT), f"/data/x.csv.{suffix}")
    schema = pa.schema({"a": pa.int64(), "b": pa.string()})
    assert not reader.sliceable(file)
    batches = list(reader.read(file, schema))
    middle = len(batches) // 2
    before = [batch for batch, _ in batches[: middle + 1]]
    rest = [batch for batch, _ in reader.read(file, schema, position=batches[middle][1])]
    assert len(before) > 1
    assert pa.Table.from_batches(before + rest).column("a").to_pylist() == list(range(20_000))


@pytest.mark.parametrize("codec", ["gzip", "bzip2", "deflate", "lz4", "snappy"])
def test_what_spark_compresses_comes_back(spark_utc, memory_file, tmp_path, codec) -> None:
    lines = spark_utc.range(0, 30_000, 1, 1).selectExpr("concat('line ', id, ' ', repeat('x', id % 50))")
    lines.write.option("compression", codec).text(str(tmp_path / "out"))
    (written,) = Path(tmp_path / "out").glob("part-*")
    text = open_decompressed(memory_file(written.read_bytes(), str(written))).read()
    assert text == b"".join(b"line %d " % number + b"x" * (number % 50) + b"\n" for number in range(30_000))
