# SPDX-License-Identifier: Apache-2.0
"""The decoder and its reference agree on random and mutated record batches, in bounded memory; and earlier findings."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from pathlib import Path

import cramjam
import pytest
from plain_records import PlainDecoder

from forebay.errors import DataError
from forebay.sources.kafka.records.batches import RawFetch, record_schema
from forebay.sources.kafka.records.columnar import ColumnarDecoder
from forebay.sources.kafka.records.selecting import decompress

COMMAND = [sys.executable, "-P", str(Path(__file__).with_name("fuzz.py"))]
FULL = record_schema(include_headers=True)
LEAST = -(1 << 63)


def run_clean(record_property, first, cases, patience):
    arguments = [*COMMAND, "--first", str(first), "--cases", str(cases)]
    # In a process of its own: an abort of a library, or a hang, fails the test and not the run.
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=patience)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    assert done.stdout.splitlines()[-1] == "problems 0"
    record_property("report", "fuzzing of record batches: " + done.stdout.splitlines()[-3])
    return done.stdout


@pytest.mark.soak
def test_200_record_batches_are_clean(record_property):
    output = run_clean(record_property, 0, 200, 250)
    counts = {
        name: int(count) for name, count in re.findall(r"^  (\w+ (?:read|refused)) +(\d+)$", output, re.MULTILINE)
    }
    # Every kind of damage came, and some of it can be read all the same: else clean cases would say little.
    assert min(counts.values()) >= 3 and len(counts) >= 12, output


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_100000_other_record_batches_are_clean(record_property):
    run_clean(record_property, 1_000_000, 100_000, 3500)


def error_of(data, **options):
    """Return the error text of the decoder; the reference reports damage at the same offset."""
    found = []
    for decoder in (ColumnarDecoder(FULL, **options), PlainDecoder(FULL, **options)):
        with pytest.raises(DataError) as caught:
            list(decoder.decode(RawFetch("orders", 3, data, 0)))
        found.append(caught.value)
    assert found[0].position == found[1].position
    return found[0].message


@pytest.mark.parametrize("field", ["first", "latest"])
def test_the_least_time_stamp_there_is_is_out_of_range(wire, field):
    """Its absolute value does not fit in 64 bits, and was taken for a small one."""
    attributes = wire.LOG_APPEND if field == "latest" else 0
    batch = wire.Batch([(0, 0, None, b"v", ())], attributes=attributes, **{field: LEAST})
    assert "the timestamp of a record is out of range" in error_of(wire.join(batch))


@pytest.mark.parametrize("base", [LEAST, -1, 2**63 - 1])
def test_an_offset_that_cannot_be_is_damage(wire, base):
    data = bytearray(wire.join(wire.Batch([(0, 0, None, b"v", ())])))
    struct.pack_into(">q", data, 0, base)  # the checksum does not cover it
    assert f"offset {base}: a record batch has an invalid offset" in error_of(memoryview(data))


def test_offsets_that_run_beyond_64_bits_are_damage(wire):
    batch = wire.Batch([(0, 0, None, b"v", ()), (9, 0, None, b"v", ())], 2**63 - 5, last=2**63 + 4)
    assert "a record batch has the invalid counts of 2 records over 10 offsets" in error_of(wire.join(batch))


@pytest.mark.parametrize("second", [0, 5, 9])
def test_a_batch_does_not_begin_before_the_end_of_the_one_before_it(wire, second):
    """Its records came twice, and the position went back."""
    data = wire.join(wire.Batch([(0, 0, None, b"v", ())], last=9), wire.Batch([(0, 0, None, b"v", ())], second))
    assert f"offset {second}: a record batch begins here, but the one before it ends at 9" in error_of(data)


def test_records_before_a_damaged_old_message_are_read(wire):
    """It has only its last offset, so the position stays before it."""
    data = wire.join(wire.Batch([(0, 0, None, b"v", ())], 3), old_message(9, 1, b"junk"))
    for decoder in (ColumnarDecoder(FULL, check_crcs=False), PlainDecoder(FULL, check_crcs=False)):
        parts = decoder.decode(RawFetch("orders", 3, data, 0))
        assert next(parts).next_offset == 4
        with pytest.raises(DataError, match="offset 9: a message of format 1 is damaged"):
            next(parts)


def old_message(offset, attributes, value):
    covered = struct.pack(">bbqii", 1, attributes, 0, -1, len(value)) + value
    return struct.pack(">qiI", offset, len(covered) + 4, 0) + covered


def test_an_old_message_does_not_hold_offsets_after_its_own(wire):
    inner = old_message(2**62, 0, b"v") + old_message(-(2**62), 0, b"v")
    data = memoryview(old_message(5, 1, bytes(cramjam.gzip.compress(inner))))
    assert "a message of format 1 is damaged" in error_of(data, check_crcs=False)


@pytest.mark.parametrize("framed", [False, True])
def test_a_snappy_block_that_claims_gigabytes_is_refused_before_memory_is_taken(framed):
    """Where that much memory cannot be had, the library aborts the process."""
    block = b"\xff\xff\xff\xff\x0f" + b"some bytes"
    data = b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, len(block)) + block if framed else block
    with pytest.raises(
        ValueError, match="snappy cannot decompress the records: 15 compressed bytes claim to contain 4294967295 bytes"
    ):
        decompress(2, memoryview(data), 1 << 30)


def test_the_best_compressed_snappy_data_is_read():
    packed = memoryview(bytes(cramjam.snappy.compress_raw(bytes(10_000_000))))
    assert len(decompress(2, packed, 1 << 30)) == 10_000_000
