# SPDX-License-Identifier: Apache-2.0
"""The event time options of `HostOptions` in process: they make the strategy that they describe on Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest

from forebay.errors import ConfigurationError
from forebay.framework.inprocess import run
from forebay.framework.inprocess.running import event_time_strategy
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.simple import SimpleSource
from forebay.watermarks.event_time import MAX_WATERMARK
from forebay.watermarks.strategy import WatermarkStrategy

SECOND = 1_000_000


class Payloads(SimpleSource):
    """Its event time is inside a struct; the source names none."""

    def schema(self):
        return pa.schema(
            {"n": pa.int64(), "value": pa.struct([("ts", pa.timestamp("us", "UTC")), ("note", pa.string())])}
        )

    def read(self, split):
        for n in range(4):
            yield {"n": n, "value": {"ts": n * SECOND, "note": "x"} if n != 3 else None}


def made(source, **options):
    return event_time_strategy(None, source, HostOptions(**options))[0]


def test_the_options_make_the_strategy(source):
    wanted = WatermarkStrategy.bounded_disorder(5).with_event_time("at").with_idleness(30).with_alignment(60)
    options = {"watermark_delay": "5s", "idle_timeout": "30s", "alignment_max_drift": "1m"}
    assert made(source, **options) == wanted
    assert made(source, event_time_column="at", **options) == wanted
    assert made(source, event_time_column="at") == WatermarkStrategy.monotonous().with_event_time("at")
    assert made(source) is None


def test_a_run_with_options_has_a_watermark(source, one_thread):
    with run(source, options=HostOptions(watermark_delay="1s"), runtime=one_thread) as reading:
        one_thread.clock.advance(1)
        next(reading)
        one_thread.clock.advance(1)
        next(reading)
        assert reading.watermark == SECOND - 1
        list(reading)
        assert reading.watermark == MAX_WATERMARK


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"event_time_column": "at"}, "eventTimeColumn"),
        ({"watermark_delay": "1s"}, "watermarkDelay"),
        ({"alignment_max_drift": "1s"}, "alignmentMaxDrift"),
        ({"idle_timeout": "1s"}, "idleTimeout"),
    ],
)
def test_options_beside_a_strategy_are_refused_by_name(source, options, name):
    with pytest.raises(ConfigurationError, match=f"watermarks= and the options {name}") as caught:
        run(source, watermarks=WatermarkStrategy.monotonous(), options=HostOptions(**options))
    assert caught.value.option == name


def test_all_options_beside_a_strategy_are_named(source):
    options = HostOptions(watermark_delay="1s", idle_timeout="2s")
    with pytest.raises(ConfigurationError, match="watermarkDelay, idleTimeout"):
        run(source, watermarks=WatermarkStrategy.monotonous(), options=options)


def test_without_an_event_time_column_the_options_are_refused():
    with pytest.raises(ConfigurationError, match="watermarkDelay needs to know which column") as caught:
        run(Payloads(), options=HostOptions(watermark_delay="1s"))
    assert caught.value.option == "eventTimeColumn"


@pytest.mark.parametrize("column", ["nix", "n.ts", "value.note"])
def test_a_column_that_is_no_event_time_is_refused_before_anything_is_read(column):
    with pytest.raises(ConfigurationError, match=f"'{column}'") as caught:
        run(Payloads(), options=HostOptions(event_time_column=column))
    assert caught.value.option == "eventTimeColumn"


def test_the_event_time_is_read_from_inside_a_struct_that_is_not_among_the_columns(one_thread):
    options = HostOptions(event_time_column="value.ts", columns=["n"], max_rows_per_batch=1)
    observed = []
    with run(Payloads(), options=options) as reading:
        for batch in reading:
            assert batch.schema.names == ["n"]
            observed.append(reading.watermark)
        assert reading.watermark == MAX_WATERMARK
    assert len(observed) == 4


def test_an_idle_timeout_of_zero_is_refused(source):
    with pytest.raises(ConfigurationError) as caught:
        run(source, options=HostOptions(idle_timeout="0s"))
    assert caught.value.option == "idleTimeout"
