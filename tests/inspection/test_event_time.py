# SPDX-License-Identifier: Apache-2.0
"""How `forebay.progress` and `forebay.offsets` show event time, and what they say about rows that Spark dropped."""

from __future__ import annotations

import json
from typing import Any

import pytest

from forebay.inspection.event_time import dropped_rows_advice, span
from forebay.inspection.offsets import offsets
from forebay.inspection.progress import QueryProgress, html, lines, one_line

ALIGNED: dict[str, Any] = {
    "watermark": "2024-01-01T00:00:10.999999Z",
    "limit": "2024-01-01T00:01:10.999999Z",
    "drift": 45.0,
    "maxDrift": 60.0,
    "delay": 5.0,
    "held": 2,
    "idle": 0,
    "late": 0,
    "slowest": {"split": "orders/7", "watermark": "2024-01-01T00:00:10.999999Z", "why": "caught up"},
    "splits": [
        {"split": "orders/7", "watermark": "2024-01-01T00:00:10.999999Z", "ahead": 0.0},
        {"split": "orders/1", "watermark": "2024-01-01T00:00:55.999999Z", "ahead": 45.0, "held": True},
    ],
}
NEEDED = "withWatermark needs a delay of at least alignmentMaxDrift + watermarkDelay, 65 s"


def source(event_time=None, *, worst=({"split": "orders/7", "behind": 900},), behind=900):
    latest = {
        "source": "orders",
        "n": 1,
        "splits": {"open": 8, "done": 0, "behind": 1},
        "behind": {"rows": behind},
        "last": {"n": 1, "rows": 10},
        "worst": list(worst),
        **({} if event_time is None else {"eventTime": event_time}),
    }
    return {"description": "x", "latestOffset": json.dumps(latest), "processedRowsPerSecond": 10.0}


def report(*sources, dropped=0, watermark="2024-01-01T00:05:00.000Z", second=1):
    return {
        "timestamp": f"2024-01-01T00:00:{second:02}.000Z",
        "batchId": 1,
        "sources": list(sources),
        "stateOperators": [{"numRowsDroppedByWatermark": dropped}, {"numRowsDroppedByWatermark": 0}],
        "eventTime": {"watermark": watermark},
    }


def test_progress_shows_what_waits_for_what():
    state = QueryProgress()
    state.update("q", report(source(ALIGNED)))
    words = "watermark 2024-01-01 00:00:10 UTC, drift 45 s of 60 s, 2 splits held for orders/7 (caught up)"
    assert f"    {words}" in lines(state)
    assert one_line(state).endswith(f"; {words}")
    assert f"<p>{words}</p>" in html(state)


def test_the_slowest_split_is_not_held_for_itself():
    first, second = ALIGNED["splits"]
    state = QueryProgress()
    state.update("q", report(source({**ALIGNED, "held": 3, "splits": [{**first, "held": True}, second]})))
    assert "2 splits held for orders/7" in one_line(state)
    found = state.sources[0].event_time
    assert found is not None
    assert [split.held for split in found.splits] == [False, True]
    alone = {**ALIGNED, "held": 1, "splits": [{**first, "held": True}]}
    state = QueryProgress()
    state.update("q", report(source(alone)))
    assert "held" not in one_line(state)


def test_a_source_that_is_held_back_is_not_called_slow():
    state = QueryProgress()
    for second in (1, 2):
        state.update("q", report(source(ALIGNED), second=second))
    assert "900 rows behind, 10 rows/s, held back in event time" in one_line(state)
    free = QueryProgress()
    for second in (1, 2):
        free.update("q", report(source({**ALIGNED, "held": 0}), second=second))
    assert "not catching up" in one_line(free)


def test_idle_and_late_splits_are_counted():
    state = QueryProgress()
    state.update("q", report(source({**ALIGNED, "held": 0, "idle": 1, "late": 3})))
    assert "drift 45 s of 60 s, 1 split idle, idle or new splits were late 3 times" in one_line(state)
    state = QueryProgress()
    state.update("q", report(source({"held": 0, "idle": 0, "late": 0, "delay": 0.0, "maxDrift": 9.0})))
    assert "no event time of a split is known" in one_line(state)


def test_of_splits_in_order_the_limit_is_shown():
    files = {"limit": ALIGNED["limit"], "held": 0, "idle": 0, "late": 2, "delay": 5.0, "maxDrift": 60.0}
    state = QueryProgress()
    state.update("q", report(source(files), dropped=1))
    words = (
        "event time limit 2024-01-01 00:01:10 UTC (alignmentMaxDrift 60 s), 2 splits late by more than watermarkDelay"
    )
    assert f"    {words} (5 s)" in lines(state)
    assert "2 new splits began earlier in event time than watermarkDelay allows" in state.advice
    assert "idleTimeout" not in state.advice and NEEDED in state.advice


def test_dropped_rows_are_summed_up_and_explained():
    state = QueryProgress()
    state.update("q", report(source(ALIGNED), dropped=7))
    state.update("q", report(source(ALIGNED), dropped=5, second=2))
    state.update("q", report(source(ALIGNED), second=3))
    (shown,) = [line for line in lines(state) if "dropped" in line]
    assert shown.startswith("  Spark's watermark dropped 12 rows: the split of 'orders' that is furthest behind is ")
    assert "'orders/7', 4.8 min behind Spark's watermark; " + NEEDED in shown
    assert shown.strip() in one_line(state)
    assert "dropped 12 rows" in html(state)


def test_without_alignment_the_split_with_the_largest_lag_is_named():
    other = source(worst=[{"split": "small", "behind": 1}])
    advice = dropped_rows_advice(report(other, source(), dropped=1))
    assert advice is not None
    assert advice.startswith("the split of 'orders' that is furthest behind is 'orders/7', by 900 rows; set alignmentM")
    advice = dropped_rows_advice(report(source(worst=[]), dropped=1))
    assert advice is not None and advice.startswith("no split of 'orders' is behind now")
    advice = dropped_rows_advice(report(source(worst=[{"split": "f", "bytes": 2000}]), dropped=1))
    assert advice is not None and "'f', by 2,000 bytes" in advice


def test_a_split_that_came_back_needs_a_longer_idle_timeout():
    for changed in ({"late": 1}, {"splits": [{**ALIGNED["splits"][0], "idle": True}]}):
        advice = dropped_rows_advice(report(source({**ALIGNED, **changed}), dropped=1))
        assert advice is not None and "longer idleTimeout" in advice and NEEDED in advice
    advice = dropped_rows_advice(report(source(ALIGNED), dropped=1))
    assert advice is not None and "idleTimeout" not in advice


def test_nothing_is_advised_without_dropped_rows_or_a_source_of_ours():
    assert dropped_rows_advice(report(source(ALIGNED))) is None
    assert dropped_rows_advice(report({"latestOffset": '{"logOffset": 3}'}, dropped=4)) is None
    state = QueryProgress()
    state.update("q", report({"description": "x", "latestOffset": None}, dropped=4))
    assert one_line(state).endswith("; Spark's watermark dropped 4 rows")
    state = QueryProgress()
    state.update("q", report({"description": "x", "latestOffset": None}, dropped=1))
    assert one_line(state).endswith("; Spark's watermark dropped 1 row")


def test_names_that_others_chose_cannot_control_the_terminal():
    evil = "\x1b]0;owned\x07\u202e"
    timed = {**ALIGNED, "slowest": {"split": evil, "why": evil}, "splits": [{**ALIGNED["splits"][0], "split": evil}]}
    state = QueryProgress()
    state.update("q", report(source(timed), dropped=3))
    assert all(line.isprintable() for line in (*lines(state), one_line(state)))


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0 s"), (0.25, "0.2 s"), (119, "119 s"), (120, "2 min"), (-90, "-90 s"), (7200, "2 h"), (864_000, "10.0 d")],
)
def test_spans_have_a_fitting_unit(seconds, shown):
    assert span(seconds) == shown


@pytest.fixture
def checkpoint(tmp_path):
    """Return a function that writes a checkpoint of one offset with this `eventTime`."""

    def make(event_time):
        (tmp_path / "offsets").mkdir(exist_ok=True)
        offset = {"v": 1, "source": "orders", "n": 3, "id": "q", "splits": [["orders/1", 9, 4], ["orders/7", 5]]}
        metadata = {"batchTimestampMs": 1_704_067_200_000, "batchWatermarkMs": 1_704_067_100_000}
        lines = ["v1", json.dumps(metadata), json.dumps({**offset, "eventTime": event_time})]
        (tmp_path / "offsets" / "3").write_text("\n".join(lines))
        return offsets(str(tmp_path))

    return make


def test_offsets_shows_the_watermarks_of_the_last_micro_batch(checkpoint):
    found = checkpoint(ALIGNED)
    shown = str(found)
    assert "Spark's watermark was 2023-12-31 23:58:20 UTC" in shown
    assert "│ watermark" in shown
    assert "│ 2024-01-01 00:00:55 UTC, held │" in shown
    assert "orders: watermark 2024-01-01 00:00:10 UTC, drift 45 s of 60 s, 2 splits held for orders/7" in shown
    assert [each.event_time.held for each in found.splits] == [True, False]
    assert "00:00:55 UTC, held" in found._repr_html_()


@pytest.mark.parametrize("event_time", [None, {}, 7, {"held": "x", "idle": 0}, {**ALIGNED, "watermark": "yesterday"}])
def test_offsets_shows_the_rest_without_event_times(checkpoint, event_time):
    shown = str(checkpoint(event_time))
    assert "orders/7" in shown and "│ watermark" not in shown
