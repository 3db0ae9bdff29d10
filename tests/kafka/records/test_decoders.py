# SPDX-License-Identifier: Apache-2.0
"""The decoder on batches of the encoder: what it reads, and that its reference agrees."""

from __future__ import annotations

import struct
import zlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecordsBuilder
from plain_records import PlainDecoder

from forebay.errors import ConfigurationError, DataError
from forebay.sources.kafka.records import columnar as arrays
from forebay.sources.kafka.records.batches import Decoded, RawFetch, record_schema
from forebay.sources.kafka.records.columnar import ColumnarDecoder
from forebay.sources.kafka.records.selecting import MalformedError

FULL = record_schema(include_headers=True)
T0 = 1_700_000_000_000


class Strict(ColumnarDecoder):
    """Does not give up: the columnar way itself must have read it."""

    def _group(self, bodies, after, fetch):
        if not bodies or any(body.header.magic < 2 for body in bodies):
            yield from super()._group(bodies, after, fetch)
        else:
            yield Decoded(self._columns(bodies, fetch), after)


def listed(batch):
    """The rows; a damaged time may be beyond those that Python knows."""
    try:
        return batch.to_pylist()
    except OverflowError:
        at = batch.schema.names.index("timestamp")
        return batch.set_column(at, "timestamp", batch.column(at).cast(pa.int64())).to_pylist()


def outcome(decoder, fetch):
    """Rows and the next offset, or the error."""
    try:
        parts = list(decoder.decode(fetch))
    except DataError as error:
        return error
    rows = [row for part in parts if part.batch is not None for row in listed(part.batch)]
    assert all(part.batch is None or part.batch.num_rows for part in parts)
    for part in parts:
        if part.batch is not None:
            part.batch.validate(full=True)
            assert part.batch.schema == decoder._schema
    return rows, parts[-1].next_offset if parts else fetch.start


def both(data, start=0, end=None, schema=FULL, **more):
    """Return what the decoder reads, or the text of its error. The reference reads the same, or reports that place."""
    options = {key: more.pop(key) for key in ("check_crcs", "group_bytes") if key in more}
    fetch = RawFetch("orders", 3, data, start, end, **more)
    columnar, reference = (
        outcome(ColumnarDecoder(schema, **options), fetch),
        outcome(PlainDecoder(schema, **options), fetch),
    )
    if isinstance(columnar, DataError):
        assert isinstance(reference, DataError), reference
        assert columnar.position == reference.position
        return str(columnar)
    assert columnar == reference
    return columnar


def strict(data, start=0, end=None, schema=FULL, **more):
    """The same, and the columnar way was not left."""
    result = both(data, start, end, schema, **more)
    options = {key: more.pop(key) for key in ("check_crcs", "group_bytes") if key in more}
    assert outcome(Strict(schema, **options), RawFetch("orders", 3, data, start, end, **more)) == result
    return result


def offsets(result):
    return [row["offset"] for row in result[0]]


def plain(number, value=b"v"):
    return (number, number, None, value, ())


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "xerial", "lz4", "zstd"])
def test_all_columns_as_spark_has_them(wire, codec):
    records = [
        (0, 0, b"k", b"value of the first", ((b"h", b"1"), (b"h", None), (b"h", b"1"))),
        (1, 5, None, b"", ()),
        (2, -7, b"", None, ((b"\xc3\xa9" * 20, b""),)),
        (3, 20_000_000, b"a key beyond twelve", b"x" * 100_000, ()),
    ]
    rows, after = strict(wire.join(wire.Batch(records, 100, codec=codec)))
    assert after == 104
    assert [row["key"] for row in rows] == [b"k", None, b"", b"a key beyond twelve"]
    assert [row["value"] for row in rows] == [b"value of the first", b"", None, b"x" * 100_000]
    assert [row["offset"] for row in rows] == [100, 101, 102, 103]
    assert [row["timestamp"].timestamp() for row in rows] == [(T0 + one[1]) / 1000 for one in records]
    assert {(row["topic"], row["partition"], row["timestampType"]) for row in rows} == {("orders", 3, 0)}
    assert [row["headers"] for row in rows] == [
        [{"key": "h", "value": b"1"}, {"key": "h", "value": None}, {"key": "h", "value": b"1"}],
        None,
        [{"key": "é" * 20, "value": b""}],
        None,
    ]


def test_the_broker_stamps_the_records(wire):
    batches = [
        wire.Batch([plain(0), plain(1)], attributes=wire.LOG_APPEND, latest=T0 + 50),
        wire.Batch([plain(0), plain(1)], 2),
    ]
    rows, _ = strict(wire.join(*batches))
    assert [(row["timestampType"], int(row["timestamp"].timestamp() * 1000) - T0) for row in rows] == [
        (1, 50), (1, 50), (0, 0), (0, 1),
    ]  # fmt: skip


def test_only_the_range_is_read(wire):
    data = wire.join(*(wire.Batch([plain(n) for n in range(10)], base) for base in (0, 10, 20, 30)))
    assert strict(data, 5, 25)[1] == 25
    assert offsets(strict(data, 5, 25)) == [*range(5, 25)]
    assert offsets(strict(data, 12, 14)) == [12, 13]
    assert offsets(strict(data, 30)) == [*range(30, 40)]
    assert both(data, 40) == ([], 40)


def test_gaps_of_compaction_are_passed_by_the_headers(wire):
    batches = [
        wire.Batch([plain(2), plain(7)], 10, last=19),  # records removed at both ends
        wire.Batch([], 20, last=29),  # all of them
        wire.Batch([plain(0)], 50, last=50),
        wire.Batch([], 60, last=69),
    ]
    data = wire.join(*batches)
    assert offsets(strict(data, 10)) == [12, 17, 50]
    assert strict(data, 10)[1] == 70
    assert strict(data, 10, 18) == (strict(data, 10)[0][:2], 18)
    assert both(data, 18, 50) == ([], 50)  # nothing there: the end is reached all the same
    assert both(data, 51, 65) == ([], 65)


def test_a_batch_that_was_cut_off_is_left_to_the_next_fetch(wire):
    data = wire.join(wire.Batch([plain(0)]), wire.Batch([plain(0)], 1))
    for cut in range(1, 70):
        assert strict(data[:-cut])[1] == 1
    assert both(data[:10]) == ([], 0)


def test_aborted_transactions_and_marks_are_left_out_when_committed_ones_are_read(wire):
    aborted = {"producer": 7, "attributes": wire.TRANSACTIONAL}
    data = wire.join(
        wire.Batch([plain(0, b"aborted")], 0, **aborted),
        wire.Batch([plain(0, b"other")], 1, producer=8, attributes=wire.TRANSACTIONAL),
        wire.Batch([plain(0, b"not in one")], 2, producer=7),
        wire.mark(3, 7, abort=True),
        wire.Batch([plain(0, b"committed")], 4, **aborted),
        wire.mark(5, 7, abort=False),
        wire.mark(6, 8, abort=False),
    )
    rows, after = strict(data, read_committed=True, aborted=[(7, 0)])
    assert ([row["value"] for row in rows], after) == ([b"other", b"not in one", b"committed"], 7)
    assert offsets(strict(data)) == [0, 1, 2, 4]
    assert offsets(strict(data, 4, read_committed=True, aborted=[])) == [4]
    assert both(data, 5, read_committed=True) == ([], 7)


def test_a_wrong_checksum_names_the_place_and_can_be_overlooked(wire):
    data = wire.join(wire.Batch([plain(0)], 7), wire.Batch([plain(0)], 8, crc=1))
    for decoder in (ColumnarDecoder(FULL), PlainDecoder(FULL)):
        parts = decoder.decode(RawFetch("orders", 3, data, 7))
        assert next(parts).next_offset == 8
        with pytest.raises(DataError, match="topic orders, partition 3, offset 8: the checksum") as caught:
            next(parts)
        assert caught.value.position == "8"
    assert offsets(both(data, 7, check_crcs=False)) == [7, 8]


@pytest.mark.parametrize("damage", [{"body": b"\x0c\0\0\0\x03\x01\0"}, {"attributes": 5}])
def test_records_before_a_damaged_batch_are_read_and_the_first_damage_is_reported(wire, damage):
    batches = [wire.Batch([plain(0), plain(1)]), wire.Batch([plain(0)], 2, **damage), wire.Batch([], 3, crc=1)]
    for decoder in (ColumnarDecoder(FULL), PlainDecoder(FULL)):
        parts = decoder.decode(RawFetch("orders", 3, wire.join(*batches), 1))
        first = next(parts)
        assert first.batch is not None
        assert (first.batch.column("offset").to_pylist(), first.next_offset) == ([1], 2)
        with pytest.raises(DataError, match="offset 2: ") as caught:
            next(parts)
        assert caught.value.position == "2"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"count": 2}, "too small for its records"),
        ({"count": 0, "body": b"", "last": 40}, "over 0 offsets"),
        ({"count": -1}, "-1 records"),
        ({"count": 2**30}, "too small for its records"),
        ({"attributes": 5}, "the compression codec 5 is unknown"),
        ({"attributes": 4}, "zstd cannot decompress"),
        ({"attributes": 2}, "snappy cannot decompress"),
        ({"body": b"\x80" * 20}, "a varint has more than 5 bytes"),
        ({"body": b"\x7f" + b"\0" * 20}, "a record's length is negative"),
        ({"body": b"\x0c\0\0\x02\x01\x01\0"}, "a record has an offset outside its batch"),
        ({"body": b"\x0c\0\0\0\x03\x01\0"}, "the length of a field is negative"),
        ({"body": b"\x0c\0\0\0\x01\x20\0"}, "a field reaches beyond its record"),
        ({"body": b"\x0e\0\0\0\x01\x01\0\0"}, "bytes are left after a record's headers"),
        ({"body": b"\x10\0\0\0\x01\x01\x02\x01\0"}, "a header reaches beyond its record"),
        ({"body": b"\x0c\0\0\0\x01\x01\x7f"}, "the header count of a record is invalid"),
        ({"body": b"\x0c\0\0\0\x01\x01\0more"}, "bytes are left after the records of a batch"),
    ],
)
def test_damage_is_reported_with_its_location(wire, change, text):
    batch = wire.Batch([plain(0)], 41, **change)
    assert "topic orders, partition 3, offset 41: " in both(wire.join(batch), 41)
    assert text in both(wire.join(batch), 41)


def test_a_length_that_cannot_be_is_damage(wire):
    data = bytearray(wire.join(wire.Batch([plain(0)])))
    struct.pack_into(">i", data, 8, 20)
    assert "invalid format 2 or length 20" in both(memoryview(data))


def test_a_time_beyond_microseconds_is_damage(wire):
    assert "out of range" in both(wire.join(wire.Batch([plain(0)], first=2**62)))
    assert len(both(wire.join(wire.Batch([plain(0)], first=2**62)), schema=record_schema(["value"]))[0]) == 1


@pytest.mark.soak
def test_many_batches_side_by_side_and_few_long_ones(wire):
    sizes = [1, 3, 300, 2, 40] * 12 + [2000]
    bases = [sum(sizes[:n]) for n in range(len(sizes))]
    batches = [
        wire.Batch([(n, n % 9, b"k" * (n % 5), b"v" * ((n * 37 + base) % 200), ()) for n in range(size)], base)
        for size, base in zip(sizes, bases, strict=True)
    ]
    batches.append(wire.Batch([(0, 0, None, b"L" * 9000, ()), (1, 0, None, b"L" * 3_000_000, ())], sum(sizes)))
    assert offsets(strict(wire.join(*batches))) == [*range(sum(sizes) + 2)]
    assert offsets(strict(wire.join(*batches), group_bytes=1000)) == [*range(sum(sizes) + 2)]
    assert offsets(strict(wire.join(*batches), 999, 2777)) == [*range(999, 2777)]


def test_the_group_size_bounds_memory(wire):
    data = wire.join(*(wire.Batch([plain(0, b"x" * 10_000)], base, codec="zstd") for base in range(10)))
    for decoder in (ColumnarDecoder(FULL, group_bytes=25_000), PlainDecoder(FULL, group_bytes=25_000)):
        parts = list(decoder.decode(RawFetch("orders", 3, data, 0)))
        assert [part.next_offset for part in parts] == [3, 6, 9, 10]
        assert [part.batch.num_rows for part in parts if part.batch] == [3, 3, 3, 1]


@pytest.mark.parametrize("columns", [["value"], ["offset", "timestamp"], ["key"], ["headers"], ["topic"]])
def test_only_the_wanted_columns_are_decoded(wire, columns, monkeypatch):
    made = []
    monkeypatch.setattr(arrays, "binary", lambda *args, real=arrays.binary: made.append(1) or real(*args))
    data = wire.join(wire.Batch([(0, 0, b"k", b"v", ((b"h", b"1"),)), plain(1)]))
    schema = record_schema(columns)
    full = both(data)[0]
    made.clear()
    assert outcome(Strict(schema), RawFetch("orders", 3, data, 0)) == ([{c: r[c] for c in columns} for r in full], 2)
    assert len(made) == {"value": 1, "key": 1, "headers": 2}.get("".join(columns), 0)


def test_an_unknown_column_is_named():
    with pytest.raises(ConfigurationError, match="no column 'vlaue'"):
        record_schema(["vlaue"])


def test_a_header_key_that_is_no_text_is_read_as_java_does(wire):
    rows, _ = strict(wire.join(wire.Batch([(0, 0, None, b"", ((b"a\xff", b"1"), (b"b", b"2")))])))
    assert [pair["key"] for pair in rows[0]["headers"]] == ["a�", "b"]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, 1])
def test_old_formats_are_read(magic, codec):
    builder = MemoryRecordsBuilder(magic=magic, compression_type=codec, batch_size=10_000, offset=0)
    for number in range(5):
        builder.append(timestamp=T0 + number, key=b"k%d" % number, value=None if number == 3 else b"v")
    builder.close()
    stored = bytearray(builder.buffer())
    if codec:  # a broker gives the message that holds others the offset of the last one
        struct.pack_into(">q", stored, 0, 4)
    data = memoryview(bytes(stored))
    rows, after = both(data, 1, 4)
    assert [(row["offset"], row["key"], row["value"]) for row in rows] == [
        (1, b"k1", b"v"), (2, b"k2", b"v"), (3, b"k3", None),
    ]  # fmt: skip
    assert after == 4
    assert {row["timestampType"] for row in rows} == ({-1} if magic == 0 else {0})
    assert rows[0]["timestamp"].timestamp() == (-0.001 if magic == 0 else (T0 + 1) / 1000)
    spoilt = bytearray(data)
    spoilt[-1] ^= 1
    assert "offset" in both(memoryview(spoilt))


@pytest.mark.parametrize("codec", ["gzip", "snappy", "xerial", "lz4"])
def test_old_compressed_messages_need_no_package_but_ours(wire, codec):
    builder = MemoryRecordsBuilder(magic=1, compression_type=0, batch_size=10_000, offset=0)
    for number in range(3):
        builder.append(timestamp=T0 + number, key=b"k%d" % number, value=b"v" * number)
    builder.close()
    number, pack = wire.packers[codec]
    inner = pack(bytes(builder.buffer()))
    covered = struct.pack(">bbqii", 1, number, T0, -1, len(inner)) + inner
    data = struct.pack(">qiI", 12, len(covered) + 4, zlib.crc32(covered)) + covered
    rows, after = both(memoryview(data), 11)
    assert [(row["offset"], row["key"], row["value"]) for row in rows] == [(11, b"k1", b"v"), (12, b"k2", b"vv")]
    assert after == 13
    assert "is damaged" in both(memoryview(data[:30] + bytes(len(data) - 30)), check_crcs=False)


blobs = st.one_of(st.none(), st.binary(max_size=40), st.integers(0, 20_000).map(lambda size: b"z" * size))
pairs = st.lists(st.tuples(st.binary(max_size=14), blobs), max_size=4)
values = st.tuples(st.integers(-(10**10), 10**10), blobs, blobs, pairs)


@st.composite
def batches(draw, wire, base=0):
    """Batches as brokers keep them: with gaps, in any codec, with and without transactions."""
    made = []
    for _ in range(draw(st.integers(1, 6))):
        deltas = sorted(draw(st.sets(st.integers(0, 300), max_size=8)))
        records = [(delta, *draw(values)) for delta in deltas]
        last = base + max([*deltas, draw(st.integers(0, 20))])
        attributes = draw(st.sampled_from([0, wire.LOG_APPEND, wire.TRANSACTIONAL]))
        codec = draw(st.sampled_from(wire.codecs))
        producer = draw(st.sampled_from([-1, 5, 6])) if attributes != wire.TRANSACTIONAL else draw(st.integers(5, 6))
        made.append(wire.Batch(records, base, last, codec, attributes, producer=producer))
        base = last + 1 + draw(st.integers(0, 3))
        if draw(st.booleans()):
            made.append(wire.mark(base, draw(st.integers(5, 6)), abort=draw(st.booleans())))
            base += 1
    return made


@given(data=st.data())
def test_whatever_a_producer_writes_both_decoders_read_the_same(wire, data):
    made = data.draw(batches(wire))
    last = made[-1].base + 400
    start = data.draw(st.integers(0, last))
    end = data.draw(st.one_of(st.none(), st.integers(start, last)))
    committed = data.draw(st.booleans())
    aborted = [(producer, data.draw(st.integers(0, last))) for producer in (5, 6) if data.draw(st.booleans())]
    more = {
        "read_committed": committed,
        "aborted": aborted,
        "group_bytes": data.draw(st.sampled_from([1, 500, 1 << 20])),
    }
    result = strict(wire.join(*made), start, end, **more)
    assert not isinstance(result, str)
    assert all(start <= offset and (end is None or offset < end) for offset in offsets(result))


@given(data=st.data())
def test_whatever_is_damaged_both_decoders_say_the_same(wire, data):
    made = data.draw(batches(wire))
    spoilt = bytearray(wire.join(*made))
    for _ in range(data.draw(st.integers(1, 3))):
        spoilt[data.draw(st.integers(0, len(spoilt) - 1))] = data.draw(st.integers(0, 255))
    both(memoryview(spoilt), check_crcs=data.draw(st.sampled_from([False, False, True])))


@given(body=st.binary(max_size=200), count=st.integers(0, 30))
def test_noise_is_refused_or_read_by_both(wire, body, count):
    both(wire.join(wire.Batch(body=body, count=count, last=300)))


def test_the_columnar_way_gives_up_instead_of_guessing(wire):
    with pytest.raises((MalformedError, IndexError)):
        batch = wire.Batch([plain(0)], body=b"\x0c\0\0\0\x03\x01\0")
        fetch = RawFetch("orders", 3, wire.join(batch), 0)
        decoder = Strict(FULL)
        decoder._columns(_bodies(fetch), fetch)


def _bodies(fetch):
    from forebay.sources.kafka.records.selecting import Selection

    return [body for body, _ in Selection(fetch).bodies() if body is not None]


def test_the_table_shape_is_sparks(wire):
    assert FULL.names == [
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers",
    ]  # fmt: skip
    assert FULL.field("timestamp").type == pa.timestamp("us", "UTC")
    assert record_schema().names == FULL.names[:-1]
