# SPDX-License-Identifier: Apache-2.0
"""Finding the records of long batches in pieces: the guesses may be wrong, the result may not."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_records import PlainDecoder

from forebay.errors import DataError
from forebay.sources.kafka.records import columnar
from forebay.sources.kafka.records.batches import RawFetch, record_schema
from forebay.sources.kafka.records.columnar import ColumnarDecoder

SCHEMA = record_schema(["offset", "key", "value"])


@pytest.fixture
def alone(monkeypatch):
    """Counts the batches that are walked one record after the other."""
    walked = []

    def walk(*args, walk=columnar._walk):
        walked.append(1)
        walk(*args)

    monkeypatch.setattr(columnar, "_walk", walk)
    return walked


def read(data):
    parts = ColumnarDecoder(SCHEMA).decode(RawFetch("t", 0, data, 0))
    return [(row["key"], row["value"]) for part in parts if part.batch for row in part.batch.to_pylist()]


def text(chance, size):
    return bytes(chance.choice(b'abc{": ,') for _ in range(size))


KINDS = {
    "text": lambda chance, _: text(chance, chance.randrange(300)),
    "noise": lambda chance, _: chance.randbytes(chance.randrange(300)),
    "zeros": lambda chance, _: bytes(chance.randrange(300)),
    "null": lambda *_: None,
    "records": lambda chance, wire: b"".join(wire.record(n, n, None, b"x" * 9) for n in range(chance.randrange(20))),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batches", [1, 3])
def test_long_batches_are_read_in_pieces_whatever_is_in_them(wire, alone, kind, batches):
    chance = random.Random(kind)
    made, wanted = [], []
    for number in range(batches):
        rows = [(b"k" * (at % 3) or None, KINDS[kind](chance, wire)) for at in range(1000 + number)]
        made.append(wire.Batch([(at, at // 7, *row, ()) for at, row in enumerate(rows)], number * 2000))
        wanted += rows
    assert read(wire.join(*made)) == wanted
    if kind in ("text", "noise", "null"):
        assert not alone


def test_a_record_as_long_as_many_others_is_left_to_the_slow_walk(wire, alone):
    rows = [(None, b"x" * (50_000 if at == 500 else 20)) for at in range(1000)]
    made = wire.Batch([(at, 0, *row, ()) for at, row in enumerate(rows)])
    assert read(wire.join(made)) == rows
    assert alone == [1]


@given(seed=st.integers(0, 2**32), kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3))
def test_mixtures_are_read_as_they_are(wire, seed, kinds):
    chance = random.Random(seed)
    rows = [(None, KINDS[chance.choice(kinds)](chance, wire)) for _ in range(chance.randrange(256, 600))]
    assert read(wire.join(wire.Batch([(at, at, *row, ()) for at, row in enumerate(rows)]))) == rows


@given(seed=st.integers(0, 2**32))
def test_both_decoders_agree_on_a_damaged_long_batch(wire, seed):
    chance = random.Random(seed)
    rows = [(at, at, None, text(chance, 20), ()) for at in range(400)]
    spoilt = bytearray(wire.join(wire.Batch(rows)))
    for _ in range(3):
        spoilt[chance.randrange(61, len(spoilt))] = chance.randrange(256)
    outcomes = []
    for decoder in (ColumnarDecoder(SCHEMA, check_crcs=False), PlainDecoder(SCHEMA, check_crcs=False)):
        try:
            parts = [*decoder.decode(RawFetch("t", 0, memoryview(bytes(spoilt)), 0))]
            outcomes.append([part.batch.to_pylist() for part in parts if part.batch])
        except DataError as error:
            outcomes.append(error.position)
    assert outcomes[0] == outcomes[1]
