# SPDX-License-Identifier: Apache-2.0
"""The output of `forebay.progress`."""

from __future__ import annotations

import io
import json
import sys
import types
from importlib import import_module

import pytest

import forebay
from forebay.inspection.progress import QueryProgress, html, lines, one_line, progress


def ours(n, behind, *, worst=(), unit="rows", read=0, splits=None):
    return {
        "source": "orders",
        "n": n,
        "idle": False,
        "splits": {"open": 8, "done": 0, "behind": len(worst) if splits is None else splits},
        "behind": {} if unit == "splits" else {unit: behind},
        "last": {"n": n, "splits": 8, unit: read},
        "discovery": {"seconds": 0.0, "retried": 0},
        "worst": list(worst),
    }


def report(batch, *latest, second=0, rate=1000.0):
    sources = [
        {
            "description": "org.apache.spark.sql.execution.datasources.v2.python.PythonMicroBatchStream@1f2e",
            "latestOffset": one if one is None or isinstance(one, str) else json.dumps(one),
            "processedRowsPerSecond": rate,
            "numInputRows": 10,
        }
        for one in latest
    ]
    return {"timestamp": f"2024-01-01T00:00:{second:02}.000Z", "batchId": batch, "sources": sources}


class Query:
    """Returns given reports, then ends."""

    name = "my_query"

    def __init__(self, *reports, error=None):
        self.reports = list(reports)
        self.last = None
        self.error = error

    @property
    def lastProgress(self):  # noqa: N802
        if self.reports:
            self.last = self.reports.pop(0)
        if isinstance(self.last, Exception):
            raise self.last
        return self.last

    def awaitTermination(self, timeout=None):  # noqa: N802
        if self.reports:
            return False
        if self.error is not None:
            raise self.error
        return True


EU = {"split": "eu", "position": 400, "end": 2500, "behind": 2100, "last": {"rows": 125}}
LONG = {"split": "s3://bucket/" + "x" * 50 + "/part-0001", "position": None, "end": "to its own end", "bytes": 7}


def test_a_query_is_drawn_with_a_bar_for_each_source_and_a_line_for_each_of_the_worst_splits():
    state = QueryProgress()
    state.update("my_query", report(3, ours(3, 4000, read=1000, worst=[EU], splits=1), second=1))
    state.update("my_query", report(4, ours(4, 3000, read=1000, worst=[EU, LONG], splits=9), second=2))
    assert lines(state) == [
        "my_query, micro-batch 4",
        "  orders  █████████░░░░░░░░░░░░░░░ 40 %",
        "    3,000 rows behind, 1,000 rows/s, caught up in about 3 s",
        "    eu                                        2,100 behind, at 400 of 2,500",
        "    …xxxxxxxxxxxxxxxxxxxxxxxxxxxxx/part-0001  behind by an unknown amount, not begun",
        "    and 7 more behind",
    ]


def test_a_failed_discovery_is_shown_until_it_is_over():
    error = {"at": "2024-01-01T12:00:05Z", "text": "no <broker>\n  next step: wait", "over": False}
    state = QueryProgress()
    failing = ours(3, 4000, read=1000)
    failing["discovery"]["error"] = error
    state.update("q", report(3, failing))
    assert lines(state)[-1] == "    the last discovery failed at 12:00:05 UTC: no <broker>"
    assert one_line(state).endswith("; the last discovery failed at 12:00:05 UTC: no <broker>")
    assert "UTC: no &lt;broker&gt;</p>" in html(state)
    error["over"] = True
    state.update("q", report(4, failing, second=1))
    assert "no <broker>" not in one_line(state)


def test_names_that_others_chose_cannot_control_the_terminal():
    evil = "\x1b]0;owned\x07\x1b[2J\u202e\r\x9b31m.csv"
    observed = ours(1, 7, worst=[{"split": evil, "position": evil, "behind": 7}])
    observed["source"] = evil
    observed["discovery"]["error"] = {"at": "2024-01-01T00:00:00+00:00", "over": False, "text": f"{evil}\nmore"}
    state = QueryProgress()
    state.update(evil, report(1, observed))
    shown = "\n".join([*lines(state), one_line(state)])
    assert all(line.isprintable() for line in shown.split("\n"))
    assert shown.count("\\x1b[2J") >= 7


def test_the_same_in_one_line_and_as_html():
    state = QueryProgress()
    state.update("<q>", report(3, ours(3, 4000, read=1000, worst=[EU])))
    assert one_line(state) == "<q>, micro-batch 3; orders 20 %  4,000 rows behind, 1,000 rows/s"
    shown = html(state)
    assert "&lt;q&gt;" in shown and '<progress value="0.200" max="1">' in shown and "<td>2,100</td>" in shown


def test_a_growing_backlog_moves_the_bar_by_what_was_read():
    state = QueryProgress()
    shares = []
    for batch, behind in enumerate((900, 950, 1_000, 500, 0)):
        state.update("q", report(batch, ours(batch, behind, read=100), second=batch))
        shares.append(state.sources[0].share)
    assert shares == [100 / 1_000, 200 / 1_150, 300 / 1_300, 800 / 1_300, 1.0]


@pytest.mark.parametrize(
    ("behind", "words"),
    [
        ([100, 0], "100 %  caught up, 1,000 rows/s"),
        ([100, 100], "0 %  100 rows behind, 1,000 rows/s, not catching up"),
        ([100, 150], "0 %  150 rows behind, 1,000 rows/s, not catching up"),
        ([100_000, 99_900], "0 %  99,900 rows behind, 1,000 rows/s, caught up in about 17 min"),
        ([10_000_000, 9_999_000], "0 %  9,999,000 rows behind, 1,000 rows/s, caught up in about 3 h"),
    ],
)
def test_when_it_will_have_caught_up(behind, words):
    state = QueryProgress()
    for second, rows in enumerate(behind):
        state.update(None, report(second, ours(second, rows), second=second))
    assert one_line(state) == f"query, micro-batch 1; orders {words}"


@pytest.mark.parametrize("unit", ["bytes", "splits"])
def test_where_rows_are_not_known_something_else_is_counted(unit):
    state = QueryProgress()
    state.update(None, report(0, ours(0, 6, unit=unit, splits=6)))
    assert f"6 {unit} behind" in one_line(state)


def test_other_sources_are_named_and_have_no_bar():
    state = QueryProgress()
    state.update(None, report(0, None, "not json", '{"logOffset": 3}'))
    assert lines(state)[1:] == ["  PythonMicroBatchStream", "    1,000 rows/s"] * 3


def test_a_query_is_followed_to_its_end_a_line_for_each_new_report():
    out = io.StringIO()
    first, last = report(0, ours(0, 9)), report(1, ours(1, 0), second=1)
    progress(Query(None, first, first, last), every=0, file=out)
    assert out.getvalue().splitlines() == [
        "my_query, starting",
        "my_query, micro-batch 0; orders 0 %  9 rows behind, 1,000 rows/s",
        "my_query, micro-batch 1; orders 100 %  caught up, 1,000 rows/s",
        "my_query, micro-batch 1, ended; orders 100 %  caught up, 1,000 rows/s",
    ]


def test_a_terminal_is_drawn_in_place():
    import_module("rich")

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    out = Terminal()
    progress(Query(report(0, ours(0, 9, worst=[EU])), report(1, ours(1, 0), second=1)), every=0, file=out)
    text = out.getvalue()
    assert "micro-batch 0" in text and "2,100 behind" in text and "micro-batch 1, ended" in text
    assert "\x1b[" in text


def test_without_rich_a_terminal_gets_lines(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    out = io.StringIO()
    progress(Query(report(0, ours(0, 9))), every=0, file=out)
    assert len(out.getvalue().splitlines()) == 2


def test_a_notebook_shows_one_cell_and_replaces_it(monkeypatch):
    shown = []

    class Handle:
        def update(self, what):
            shown.append(("update", what))

    def display(what, *, display_id):
        shown.append(("display", what))
        return Handle()

    ipython = types.SimpleNamespace(get_ipython=lambda: types.SimpleNamespace(kernel=1))
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(HTML=str, display=display))
    progress(Query(report(0, ours(0, 9))), every=0)
    assert [kind for kind, _ in shown] == ["display", "update"]
    assert "9 rows behind" in shown[0][1] and "ended" in shown[1][1]


def test_the_view_never_ends_the_wait():
    class Broken(io.StringIO):
        def write(self, text):
            raise OSError("the terminal went away")

    query = Query(report(0, ours(0, 9)), ValueError("no session"), {"timestamp": "?"}, report(1, {"source": 1}))
    progress(query, every=0, file=Broken())
    assert not query.reports


def test_the_error_of_the_query_is_raised():
    out = io.StringIO()
    with pytest.raises(RuntimeError, match="failed"):
        progress(Query(report(0, ours(0, 9)), error=RuntimeError("the query failed")), every=0, file=out)
    assert "9 rows behind" in out.getvalue()


def test_it_is_at_the_door():
    assert forebay.progress is progress
