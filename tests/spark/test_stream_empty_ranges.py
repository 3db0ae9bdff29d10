# SPDX-License-Identifier: Apache-2.0
"""A stream on Spark whose ends are times: an idle one makes no micro-batches, and a new record is read immediately."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest

import forebay
from forebay import Batch, SimpleSource


class Dated(SimpleSource):
    """A record is a file, named by the time in ns at which it came; the end is now."""

    bounded = False
    home: Path

    def schema(self):
        return pa.schema({"at": pa.int64()})

    def latest(self, split):
        with (self.home / "looks").open("ab") as looks:
            looks.write(b".")
        return (time.time_ns(),)

    def read(self, split):
        for at in sorted(int(path.stem) for path in self.home.glob("*.event")):
            if (split.position or (0,)) <= (at,) < split.end:
                yield Batch([{"at": at}], (at + 1,))


def looked(home, times):
    """Wait until the planner has asked for the end so many times more."""
    looks = home / "looks"
    wanted = (looks.stat().st_size if looks.exists() else 0) + times
    for _ in range(6000):
        if looks.exists() and looks.stat().st_size >= wanted:
            return
        time.sleep(0.02)
    raise AssertionError(f"not {times} looks")


@pytest.mark.soak
def test_s4_an_idle_stream_by_time_makes_no_micro_batches(spark, tmp_path):
    """S4: also on Spark, which asks again and again; what came is read when it is asked for."""
    home, batches = tmp_path / "home", []
    home.mkdir()
    frame = forebay.read_stream(spark, Dated(home=home), refresh_interval="0s")
    writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "checks"))
    query = writer.foreachBatch(lambda found, _: batches.append([row.at for row in found.collect()])).start()
    try:
        looked(home, 20)
        assert batches == [[]], "the first micro-batch, which is planned in any case"
        at = time.time_ns()
        (home / f"{at}.event").touch()
        query.processAllAvailable()
        assert batches[1] == [at]
    finally:
        query.stop()
