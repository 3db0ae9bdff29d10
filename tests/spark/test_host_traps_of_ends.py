# SPDX-License-Identifier: Apache-2.0
"""More mistakes of hosts, as in `test_host_traps`: where a read ends, whose state it is, and how much each split gets.

Each is made by a source that somebody might write who knows Spark's examples, and not by forebay. `make test` reads
forebay's source alone; that Spark still lets the naive one go wrong is looked at in `make soak`.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, SupportsTriggerAvailableNow

from forebay.framework.arrow.row_packer import Batch
from forebay.framework.simple import SimpleSource
from forebay.spark.register import read_stream

ROWS = pa.schema({"n": pa.int64()})
WHO = pytest.mark.parametrize("who", ["ours", pytest.param("naive", marks=pytest.mark.soak)])


def size(home):
    return int((Path(home) / "rows").read_text())


def grow(home, rows):
    (home / "rows").write_text(str(rows))


def look(home):
    """Return how much there is, in whatever process: one more with each look, from 5 to 8."""
    for there in range(5, 8):
        with contextlib.suppress(FileExistsError):
            (Path(home) / f"look-{there}").touch(exist_ok=False)
            return there
    return 8


class Naive(DataSource):
    reader_class: type[NaiveReader]

    @classmethod
    def name(cls):
        return "naive"

    def schema(self):
        return "n bigint"

    def streamReader(self, schema):  # noqa: N802 - Spark's name
        return self.reader_class(Path(self.options["home"]), self.options)


class NaiveReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What all of them have in common: offsets with a number."""

    def __init__(self, home, options):
        self.home, self.options = home, options

    def initialOffset(self):  # noqa: N802
        return {"n": -1}

    def getDefaultReadLimit(self):  # noqa: N802
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self):  # noqa: N802
        pass


class ClaimsAfterReading(NaiveReader):
    """The end is unknown: a task reads the available rows, and the first one claims its end."""

    def latestOffset(self, start, limit):  # noqa: N802
        return {"n": 0} if start["n"] < 0 else start

    def partitions(self, start, end):
        return [InputPartition(None)]

    def read(self, partition):
        claim = self.home / "claim"
        end = int(claim.read_text()) if claim.exists() else look(self.home)
        with socket.create_connection(("127.0.0.1", int(self.options["meeting"])), timeout=60) as met:
            met.recv(1)  # the other attempt has looked as well
        for n in range(end):
            yield (n,)
        with contextlib.suppress(FileExistsError), claim.open("x") as file:
            file.write(str(end))


class KeepsStateByNumber(NaiveReader):
    """The offset would be long, so what a micro-batch reads is in a file that is called after its number."""

    def plan(self, n):
        return json.loads((self.home / f"plan-{n}").read_text()) if n >= 0 else [0, 0]

    def latestOffset(self, start, limit):  # noqa: N802
        begin, end = self.plan(start["n"])[1], size(self.home)
        if begin >= end:
            return start
        (self.home / f"plan-{start['n'] + 1}").write_text(json.dumps([begin, end]))
        return {"n": start["n"] + 1}

    def partitions(self, start, end):
        return [InputPartition(tuple(self.plan(end["n"])))]

    def read(self, partition):
        for n in range(*partition.value):
            yield (n,)


class SharesAsSparkDoes(NaiveReader):
    """Each part gets its share of the cap, rounded down, and at least one row, as Spark's Kafka source does it."""

    def initialOffset(self):  # noqa: N802
        return {"n": -1, "to": [0] * int(self.options["parts"])}

    def latestOffset(self, start, limit):  # noqa: N802
        left = [size(self.home) - at for at in start["to"]]
        if not any(left):
            return start
        shares = [max(1, int(self.options["cap"]) * rows // sum(left)) for rows in left]
        to = [at + min(share, rows) for at, share, rows in zip(start["to"], shares, left, strict=True)]
        return {"n": start["n"] + 1, "from": start["to"], "to": to}

    def partitions(self, start, end):
        return [InputPartition(part) for part in zip(end["from"], end["to"], strict=True)]

    def read(self, partition):
        for n in range(*partition.value):
            yield (n,)


class ReadsPages(NaiveReader):
    """Reads pages of 5 rows; it emits whole pages, and none that ends beyond the end."""

    def latestOffset(self, start, limit):  # noqa: N802
        begin, end = start.get("to", 0), size(self.home)
        return {"n": start["n"] + 1, "from": begin, "to": end} if begin < end else start

    def partitions(self, start, end):
        return [InputPartition((end["from"], end["to"]))]

    def read(self, partition):
        at, end = partition.value
        while at < end:
            page = range(at, min(at + 5, size(self.home)))
            at = page.stop
            if self.options["beyond"] == "dropped" and at > end:
                return
            for n in page:
                yield (n,)


class Ours(SimpleSource):
    """The same rows through forebay, with the same bad behaviour."""

    name = "ours"
    bounded = False
    home: Path

    def schema(self):
        return ROWS


class OursUnknownEnd(Ours):
    def read(self, split):
        end = look(self.home) if split.end is None else split.end
        if (split.position or 0) < end:
            yield Batch([{"n": n} for n in range(split.position or 0, end)], end)


class OursGrowing(Ours):
    def read(self, split):
        end = size(self.home) if split.end is None else split.end
        if (split.position or 0) < end:
            yield Batch([{"n": n} for n in range(split.position or 0, end)], end)


class OursOfParts(Ours):
    positions_are_rows = True
    parts: int

    def splits(self):
        return [str(part) for part in range(self.parts)]

    def latest(self, split):
        return size(self.home)

    def read(self, split):
        for n in range(split.position or 0, split.end):
            yield {"n": n}


class OursOfPages(Ours):
    def latest(self, split):
        return size(self.home)

    def read(self, split):
        at = split.position or 0
        while at < split.end:
            page = range(at, min(at + 5, size(self.home)))
            at = page.stop
            for n in page:
                yield {"n": n}


@pytest.fixture
def home(tmp_path):
    path = tmp_path / "home"
    path.mkdir()
    grow(path, 5)
    return path


@pytest.fixture
def naive(spark, home):
    # Spark's workers cannot import a test: forebay sees to that by itself.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])

    def load(reader, **options):
        spark.dataSource.register(type("Naive", (Naive,), {"reader_class": reader}))
        return spark.readStream.format("naive").options(home=str(home), **options).load()

    yield load
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def meeting():
    """The port of a place where two tasks wait for each other."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)

        def meet():
            with contextlib.suppress(TimeoutError), server.accept()[0], server.accept()[0]:
                pass  # closing both releases the tasks

        thread = threading.Thread(target=meet, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        thread.join(60)


@pytest.mark.soak
@WHO
def test_trap_3_two_reads_that_negotiate_their_end_afterwards_return_different_rows(
    spark, naive, home, request, run_stream, tmp_path, who
):
    """Trap 3: the first read sets the start of the next micro-batch; rows of the other one are repeated."""

    def twice(frame):
        return frame.union(frame)

    if who == "naive":
        frame = naive(ClaimsAfterReading, meeting=request.getfixturevalue("meeting"))
        found = run_stream(frame, tmp_path / "naive", view=twice)
        assert found == {0: sorted([*range(5), *range(6)])}
        return
    frame = read_stream(spark, OursUnknownEnd(home=home), state_location=str(tmp_path / "state"))
    batches = run_stream(frame, tmp_path / "ours", view=twice)
    rows = sorted(n for batch in batches.values() for n in batch)
    assert len(rows) >= 2 * 5
    assert rows == sorted([*range(len(rows) // 2)] * 2)


@pytest.mark.soak
@WHO
def test_trap_4_two_queries_of_one_load_count_the_same_numbers(spark, naive, home, run_stream, tmp_path, who):
    """Trap 4: no planner knows its query, so queries share state by number; rows of the other query are skipped."""
    if who == "ours":
        frame = read_stream(spark, OursGrowing(home=home), state_location=str(tmp_path / "state"))
    else:
        frame = naive(KeepsStateByNumber)
    first, second = tmp_path / "first", tmp_path / "second"
    assert run_stream(frame, first) == {0: list(range(5))}
    grow(home, 9)
    assert run_stream(frame, second) == {0: list(range(9))}
    rest = [n for batch in run_stream(frame, first).values() for n in batch]
    assert rest == (list(range(5, 9)) if who == "ours" else [])


@WHO
@pytest.mark.parametrize(("parts", "rows", "sprung"), [(3, 10, [9, 9, 9, 3]), (30, 1, [30])])
@pytest.mark.soak
def test_trap_11_shares_that_are_rounded_waste_the_cap_or_break_it(
    spark, naive, home, run_stream, tmp_path, parts, rows, sprung, who
):
    """Trap 11: with a cap of 10, 3 parts of 10 rows take a micro-batch too many, and 30 of one row come in one."""
    grow(home, rows)
    if who == "ours":
        frame = read_stream(spark, OursOfParts(home=home, parts=parts), max_rows_per_trigger=10)
    else:
        frame = naive(SharesAsSparkDoes, parts=parts, cap=10)
    found = [len(batch) for batch in run_stream(frame, tmp_path / "checkpoint").values()]
    assert found == ([10, 10, 10] if who == "ours" else sprung)


@pytest.mark.soak
@WHO
@pytest.mark.parametrize(
    ("beyond", "first"),
    [
        pytest.param("given", list(range(10)), id="doubled"),
        pytest.param("dropped", list(range(5)), id="lost"),
    ],
)
def test_trap_20_a_page_goes_beyond_the_planned_end(spark, naive, home, run_stream, tmp_path, beyond, first, who):
    """Trap 20: the service has grown since the plan was made, and its pages do not end where the plan ends."""
    ours = who == "ours"
    frame = read_stream(spark, OursOfPages(home=home)) if ours else naive(ReadsPages, beyond=beyond)
    grow(home, 7)
    batches = run_stream(frame, tmp_path / "checkpoint", before=lambda: grow(home, 12))
    batches |= run_stream(frame, tmp_path / "checkpoint")
    assert batches == {0: list(range(7)) if ours else first, 1: list(range(7, 12))}
