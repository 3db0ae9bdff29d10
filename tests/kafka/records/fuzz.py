# SPDX-License-Identifier: Apache-2.0
"""Random and mutated record batches, as a program, so that a crash or hang of the decoder does not end the tests.

`python -P tests/kafka/records/fuzz.py --first 1234 --cases 1` tries the case of seed 1234 again.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import faulthandler
import importlib.util
import random
import resource
import struct
import sys
import time
import warnings
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import crc32c
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[2] / "generators"))

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python's, about its own way of imports
    from plain_records import PlainDecoder

    from forebay.errors import DataError
    from forebay.sources.kafka.records.batches import COLUMNS, BatchHeader, Body, RawFetch, headers, record_schema
    from forebay.sources.kafka.records.columnar import ColumnarDecoder

MEMORY = 1 << 30
"""Address space beyond the imports; a decoder that needs more has trusted a damaged number."""
PATIENCE = 300
"""Maximum seconds of one case; a slower one counts as hanging and ends with a stack."""
T0 = 1_700_000_000_000
Rows = tuple[pa.Table, int] | str


def _encoder() -> Any:
    spec = importlib.util.spec_from_file_location("encoder", Path(__file__).with_name("conftest.py"))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["encoder"] = module
    spec.loader.exec_module(module)
    return module.Encoder


WIRE = _encoder()


class Case:
    """One seed: the bytes of a fetch, and how it is read.

    Args:
        seed: Everything follows from it.
    """

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.last = 0
        self.kind = chance.choice(sorted(KINDS))
        self.data = memoryview(bytes(KINDS[self.kind](self)))
        self.check_crcs = chance.random() < 0.3
        self.group_bytes = chance.choice([1, 500, 1 << 20])
        self.pruned = chance.random() < 0.2
        names = chance.sample(sorted(COLUMNS), chance.randint(1, 4)) if self.pruned else list(COLUMNS)
        self.schema = record_schema(names)

    def fetch(self) -> RawFetch:
        """How it is read; called once."""
        chance = self.chance
        start = chance.randrange(self.last + 3) if chance.random() < 0.5 else 0
        end = chance.randrange(start, self.last + 300) if chance.random() < 0.4 else None
        aborted = [(producer, chance.randrange(self.last + 1)) for producer in (5, 6) if chance.random() < 0.5]
        return RawFetch("orders", 3, self.data, start, end, read_committed=chance.random() < 0.5, aborted=aborted)

    # ---- what producers write

    def blob(self) -> bytes | None:
        chance = self.chance
        size = chance.choice([0, 0, 1, 5, 12, 13, 30, chance.randrange(300), chance.randrange(20_000)])
        kind = chance.randrange(4)
        return [None, bytes(size), chance.randbytes(size), (b'{"a": 1, "b": "text"} ' * (size // 20 + 1))[:size]][kind]

    def pairs(self) -> list[tuple[bytes, bytes | None]]:
        chance = self.chance
        count = chance.choice([0] * 12 + [1, 2, 3, chance.randrange(40)])
        if chance.random() < 0.002:
            count = 1001 + chance.randrange(200)
        return [(chance.choice([b"", b"key", b"a\xff", "ä€".encode(), chance.randbytes(3)]), self.blob())
                for _ in range(count)]  # fmt: skip

    def records(self, count: int) -> list[tuple[Any, ...]]:
        chance, delta, found = self.chance, 0, []
        for _ in range(count):
            stamp = chance.choice([0, 1, delta, -delta, chance.randrange(-(10**10), 10**10)])
            found.append((delta, stamp, self.blob(), self.blob(), self.pairs()))
            delta += chance.choice([1] * 10 + [2, 60])
        return found

    def batch(self, records: list[tuple[Any, ...]]) -> Any:
        chance = self.chance
        attributes = chance.choice([0, 0, WIRE.LOG_APPEND, WIRE.TRANSACTIONAL])
        made = WIRE.Batch(
            records,
            self.last,
            codec=chance.choice(WIRE.codecs),
            attributes=attributes,
            producer=chance.choice([-1, 5, 6]) if attributes != WIRE.TRANSACTIONAL else chance.choice([5, 6]),
        )
        made.last = self.last + max([0, *(one[0] for one in records)]) + chance.choice([0, 0, 7])
        self.last = made.last + chance.choice([1, 1, 4])
        return made

    def batches(self) -> list[Any]:
        """Batches as brokers keep them: few long ones, many short ones, marks of transactions in between."""
        chance = self.chance
        shape = chance.random()
        if shape < 0.05:
            small = [(at, at // 3, b"k" * (at % 3) or None, b"v" * (at % 40), ()) for at in range(256 + self.odd(500))]
            return [self.batch(small) for _ in range(chance.randint(1, 2))]
        if shape < 0.15:
            return [self.batch(self.records(chance.randrange(4))) for _ in range(24 + self.odd(20))]
        made = []
        for _ in range(chance.randint(1, 5)):
            made.append(self.batch(self.records(chance.randrange(9))))
            if chance.random() < 0.3:
                made.append(WIRE.mark(self.last, chance.choice([5, 6]), abort=chance.random() < 0.5))
                self.last += 1
        return made

    def odd(self, below: int) -> int:
        return self.chance.randrange(below)

    # ---- what becomes of it

    def mutated(self, data: bytearray) -> bytearray:
        """Change some bytes, or cut, double, or move pieces."""
        chance = self.chance
        for _ in range(chance.choice([1, 1, 2, 3, 10])):
            if not data:
                break
            at, size = chance.randrange(len(data)), chance.choice([1, 2, 4, 8, chance.randrange(1, 200)])
            match chance.randrange(8):
                case 0:
                    data[at] ^= 1 << chance.randrange(8)
                case 1 | 2:
                    data[at] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
                case 3:
                    data[at : at + size] = chance.choice([b"\xff", b"\0", b"\x80", b"\x7f"]) * size
                case 4:
                    del data[at : at + size]
                case 5:
                    data[at:at] = chance.randbytes(size)
                case 6:
                    data[at:at] = data[at : at + size]
                case 7:
                    del data[len(data) - min(size, len(data)) :]
        return data


def written(case: Case) -> bytes | bytearray:
    return bytes(WIRE.join(*case.batches()))


def spoilt(case: Case) -> bytes | bytearray:
    """Anything, anywhere: mostly the checksums tell."""
    return case.mutated(bytearray(written(case)))


def spoilt_inside(case: Case) -> bytes | bytearray:
    """Damage within the records, which checksums and codecs have let through."""
    made = case.batches()
    for batch in case.chance.sample(made, min(2, len(made))):
        plain = bytearray(b"".join(WIRE.record(*one) for one in batch.records))
        batch.count, batch.body = len(batch.records), bytes(case.mutated(plain))
    return bytes(WIRE.join(*made))


def spoilt_packed(case: Case) -> bytes | bytearray:
    """Damage of what a codec has made, with the right checksum."""
    found = bytearray()
    for batch in case.batches():
        whole = bytearray(batch.encode())
        head, packed = whole[:61], case.mutated(whole[61:])
        if packed and case.chance.random() < 0.1:  # where codecs say how much they hold
            packed[:1] = case.chance.choice([b"\xff\xff\xff\xff\x0f", b"\xff\xff\x7f", b"\x80", b"\0"])
        found += _sealed(head + packed)
    return found


def spoilt_header(case: Case) -> bytes | bytearray:
    """A field of the header says something else, with the right checksum."""
    found, chance = bytearray(), case.chance
    for batch in case.batches():
        whole = bytearray(batch.encode())
        at, form = chance.choice([(0, ">q"), (12, ">i"), (21, ">h"), (23, ">i"), (27, ">q"), (35, ">q"), (43, ">q"),
                                  (57, ">i")])  # fmt: skip
        most = (1 << (8 * struct.calcsize(form) - 1)) - 1
        struct.pack_into(form, whole, at, chance.choice([0, 1, 5, 255, -1, -2, most, -most - 1, most // 1000]))
        found += _sealed(whole)
    return found


def noise_inside(case: Case) -> bytes | bytearray:
    batch = WIRE.Batch(body=case.chance.randbytes(case.odd(300)), count=case.odd(40), last=400)
    batch.codec, case.last = case.chance.choice(WIRE.codecs), 400
    return bytes(batch.encode())


def noise(case: Case) -> bytes | bytearray:
    return case.chance.randbytes(case.odd(400))


def old(case: Case) -> bytes | bytearray:
    """Messages of formats 0 and 1, alone or packed, whole or damaged."""
    chance, magic = case.chance, case.chance.randrange(2)
    inner = b"".join(_message(at, magic, 0, case.blob(), case.blob()) for at in range(chance.randint(1, 5)))
    codec = chance.choice(["none", "gzip", "snappy", "xerial", "lz4"])
    if codec != "none":
        number, pack = WIRE.packers[codec]
        inner = _message(4, magic, number, None, pack(inner))
    case.last = 5
    return case.mutated(bytearray(inner)) if chance.random() < 0.6 else inner


def _message(offset: int, magic: int, attributes: int, key: bytes | None, value: bytes | None) -> bytes:
    def field(blob: bytes | None) -> bytes:
        return struct.pack(">i", -1) if blob is None else struct.pack(">i", len(blob)) + blob

    covered = struct.pack(">bb", magic, attributes) + (struct.pack(">q", T0 + offset) if magic else b"")
    covered += field(key) + field(value)
    return struct.pack(">qiI", offset, len(covered) + 4, zlib.crc32(covered)) + covered


def _sealed(batch: bytearray) -> bytearray:
    """Write the length and the checksum that fit."""
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">I", batch, 17, crc32c.crc32c(bytes(batch[21:])))
    return batch


KINDS: dict[str, Any] = {
    one.__name__: one
    for one in (written, spoilt, spoilt_inside, spoilt_packed, spoilt_header, noise_inside, noise, old)
}


# ---- both decoders


class Columnar(ColumnarDecoder):
    """Counts the groups that it read."""

    groups = 0

    def _columns(self, group: Sequence[Body], fetch: RawFetch) -> pa.RecordBatch | None:
        found = super()._columns(group, fetch)
        Columnar.groups += 1
        return found


def outcome(decoder: ColumnarDecoder, fetch: RawFetch, schema: pa.Schema, *, old: bool) -> Rows:
    """The rows and where reading goes on, or where the damage is."""
    batches: list[pa.RecordBatch] = []
    after = fetch.start
    try:
        for part in decoder.decode(fetch):
            assert part.next_offset >= after, "it goes back"
            assert fetch.end is None or part.next_offset <= max(fetch.end, fetch.start), "it goes beyond the end"
            before, after = after, part.next_offset
            if part.batch is not None:
                part.batch.validate(full=True)
                assert part.batch.num_rows, "a record batch without rows"
                if "offset" in schema.names:
                    offsets = part.batch.column("offset").to_pylist()
                    assert max(offsets) < after, "an offset that is read again"
                    assert min(offsets) >= (fetch.start if old else before), "an offset that was read before"
                batches.append(part.batch)
    except DataError as error:
        return f"damaged at {error.position}"
    return pa.Table.from_batches(batches, schema).combine_chunks(), after


def _headers(fetch: RawFetch) -> list[BatchHeader]:
    found = []
    with contextlib.suppress(DataError):
        for header in headers(fetch.data, fetch.topic_partition):
            found.append(header)  # noqa: PERF402 - those before damage count
    return found


def problem(case: Case) -> tuple[str | None, str]:
    """What is wrong with a case, if anything; and what both decoders said of it."""
    fetch = case.fetch()
    options = {"check_crcs": case.check_crcs, "group_bytes": case.group_bytes}
    # Old messages may hold others, and tell their last offset only.
    old = case.kind == "old" or any(header.magic < 2 for header in _headers(fetch))
    plain = outcome(PlainDecoder(case.schema, **options), fetch, case.schema, old=old)
    columnar = outcome(Columnar(case.schema, **options), fetch, case.schema, old=old)
    kind = "refused" if isinstance(plain, str) else "read" if plain[0].num_rows else "nothing in it"
    if isinstance(plain, str) and (case.pruned or isinstance(columnar, str)):
        # The columnar decoder looks only at columns that are wanted: it may not see damage of the others.
        same = case.pruned or plain == columnar
    else:
        same = plain == columnar
    if case.kind == "written" and isinstance(plain, str):
        return f"what a producer writes is refused: {plain}", kind
    return None if same else f"columnar {_shown(columnar)}; record by record {_shown(plain)}", kind


def _shown(rows: Rows) -> str:
    return repr(rows) if isinstance(rows, str) else f"{rows[0].num_rows} rows, next offset {rows[1]}"


def problems(first: int, cases: int, *, each: bool) -> Iterator[str]:
    """Try the seeds; yield what is wrong. Progress goes to the output."""
    began = reported_at = time.monotonic()
    counts: collections.Counter[str] = collections.Counter()
    for seed in range(first, first + cases):
        if each:
            say(f"seed {seed}")
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        try:
            case = Case(seed)
            wrong, outcome = problem(case)
            counts[f"{case.kind} {outcome}"] += 1
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            wrong = f"{type(error).__name__}: {error}"
        if wrong is not None:
            yield f"seed {seed}: {wrong[:500]}\n  again: python -P {__file__} --first {seed} --cases 1"
        if time.monotonic() - reported_at > 10:
            reported_at = time.monotonic()
            done = seed - first + 1
            say(
                f"{done:,} of {cases:,} record batches, {done / (reported_at - began):.0f} a second, "
                f"{_peak():.0f} MB at most"
            )
    faulthandler.cancel_dump_traceback_later()
    for name, count in sorted(counts.items()):
        say(f"  {name:<32} {count:>7,}")
    say(f"{cases:,} cases in {time.monotonic() - began:.0f} s, {_peak():.0f} MB at most")
    say(f"{Columnar.groups:,} groups of batches were read column by column")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--each", action="store_true", help="print every seed before it is tried: which one crashes?")
    given = parser.parse_args()
    faulthandler.enable()
    if sys.platform == "linux":
        taken = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, resource.RLIM_INFINITY))
    wrong = 0
    for line in problems(given.first, given.cases, each=given.each):
        say(line)
        wrong += 1
        if wrong == 10:
            break
    say(f"problems {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
