# SPDX-License-Identifier: Apache-2.0
"""`forebay.report` writes one HTML file that opens offline, from progress reports or from a checkpoint."""

from __future__ import annotations

import json
import os
import re
from html.parser import HTMLParser
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import pytest

import forebay
from forebay.errors import ConfigurationError

EVIL = "<script>alert('&')</script>\x1b"


def event_time(second, name="eu"):
    at = f"2024-01-01T00:00:{second:02}.000000Z"
    splits = [
        {"split": name, "watermark": at, "ahead": 0.0, "held": True},
        {"split": "us", "watermark": at, "ahead": 0.0, "idle": second > 2},
    ]
    state = {"held": 1, "idle": 0, "watermark": at, "drift": 0.0, "maxDrift": 9.0}
    return {**state, "slowest": {"split": "asia", "why": "unread"}, "splits": splits}


def progress(second, *, dropped=0, name="eu"):
    latest = {"source": name, "splits": {"behind": 1}, "behind": {"rows": 100 - second}, "worst": []}
    return {
        "timestamp": f"2024-01-01T01:00:{second:02}.000Z",
        "id": "7f",
        "batchId": second,
        "sources": [{"latestOffset": json.dumps({**latest, "eventTime": event_time(second, name)})}],
        "stateOperators": [{"numRowsDroppedByWatermark": dropped}],
        "eventTime": {"watermark": "2024-01-01T00:00:01.000Z"},
    }


class Tags(HTMLParser):
    """Collects the tags, and what they refer to."""

    def __init__(self):
        super().__init__()
        self.tags, self.links = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]


def written(given, tmp_path):
    """Return the text of the report; its drawings are well-formed, and it needs no other file."""
    text = (tmp_path / "out.html").read_text() if forebay.report(given, tmp_path / "out.html") else ""
    tags = Tags()
    tags.feed(text)
    assert not tags.links and not {"script", "link", "img"} & set(tags.tags)
    for part in text.split("<svg")[1:]:
        ET.fromstring("<svg" + part.partition("</svg>")[0] + "</svg>")
    return text


def test_a_query_is_drawn_from_its_recent_progress(tmp_path):
    query = SimpleNamespace(recentProgress=[progress(second, dropped=second) for second in range(5)])
    text = written(query, tmp_path)
    assert (
        text.count("<polyline") == 8
    )  # watermarks of two splits, Spark's, two splits and limit ahead, lag, dropped rows
    assert 'class="held"' in text and 'class="idle"' in text
    assert "dropped by Spark's watermark: 10<" in text and "withWatermark needs a delay" in text
    assert "prefers-color-scheme:dark" in text


def test_a_directory_of_reports_has_a_section_for_each_query(tmp_path):
    for name in "ab":
        lines = [json.dumps({**progress(second), "name": name}) for second in range(3)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join([*lines, "[]", '{"half']))
    text = written(str(tmp_path), tmp_path)
    assert "<h1>a</h1><p>3 micro-batches" in text and "<h1>b</h1>" in text


def test_a_checkpoint_is_drawn_without_lag(tmp_path):
    (tmp_path / "offsets").mkdir()
    for number in (9, 10):
        metadata = json.dumps({"batchTimestampMs": 1_704_067_200_000 + number, "batchWatermarkMs": 1_704_067_100_000})
        offset = json.dumps({"v": 1, "source": "orders", "n": number, "eventTime": event_time(number)})
        (tmp_path / "offsets" / str(number)).write_text(f"v1\n{metadata}\n{offset}")
    text = written(tmp_path, tmp_path)
    assert text.count("<polyline") == 5 and "record_progress" in text


def test_lines_and_spans_stop_where_the_query_did(tmp_path):
    seconds = [0, 1, 2, 3, 50, 51]
    text = written(SimpleNamespace(recentProgress=[progress(second) for second in seconds]), tmp_path)
    # All seven lines are in two parts but one: "us" is idle after the gap, and not ahead of active splits then.
    assert text.count("<polyline") == 13
    assert text.count('class="held"') == 2, "one bar for each run of reports"


def test_all_charts_of_a_page_have_one_axis_of_time(tmp_path):
    """Watermarks are known later than the lag, and rows are dropped in the last micro-batch only."""
    reports = [progress(second, dropped=second == 50) for second in (0, 10, 20, 30, 40, 50)]
    for report in reports[:2]:
        latest = json.loads(report["sources"][0]["latestOffset"])
        del latest["eventTime"]
        report["sources"][0]["latestOffset"] = json.dumps(latest)
    text = written(SimpleNamespace(recentProgress=reports), tmp_path)
    charts = [chart.partition("</svg>")[0] for chart in text.split("<svg")[1:]]
    axes = [
        re.findall(r'x="([\d.]+)"[^>]*text-anchor="middle">([\d:]+)<', chart) for chart in charts if "<text" in chart
    ]
    assert len(axes) == 5, "watermarks, ahead, held and idle, lag, dropped rows"
    assert all(axis == axes[0] for axis in axes) and len(axes[0]) > 2


def test_a_line_has_a_colour_of_its_own_or_none(tmp_path):
    report = progress(1)
    latest = json.loads(report["sources"][0]["latestOffset"])
    at = "2024-01-01T00:00:0{}.000000Z"
    splits = [{"split": f"t/{n}", "watermark": at.format(0 if n == 10 else 5)} for n in range(12)]
    latest["eventTime"] = {**event_time(1), "splits": splits}
    report["sources"][0]["latestOffset"] = json.dumps(latest)
    text = written(SimpleNamespace(recentProgress=[report]), tmp_path)
    chart = text.partition("<h3>Watermarks")[2].partition("</ul>")[0]
    styles = [part.partition('"')[0] for part in chart.split('<polyline class="')[1:]]
    assert sorted(styles) == [*(f"c{n}" for n in range(8)), *["rest"] * 4, "spark"]
    names = [part.partition("<")[0].strip() for part in chart.split("</svg> ")[1:]]
    assert names == [*(f"t/{n}" for n in range(7)), "t/10", "Spark&#x27;s watermark", "4 other splits"]


def test_files_show_their_limit(tmp_path):
    report = progress(1)
    latest = json.loads(report["sources"][0]["latestOffset"])
    latest["eventTime"] = {"held": 0, "idle": 0, "limit": "2024-01-01T00:00:09.000000Z", "maxDrift": 9.0}
    report["sources"][0]["latestOffset"] = json.dumps(latest)
    text = written(SimpleNamespace(recentProgress=[report]), tmp_path)
    assert "event time limit 2024-01-01 00:00:09 UTC" in text and '<polyline class="limit"' in text
    del latest["eventTime"]
    report["sources"][0]["latestOffset"] = json.dumps(latest)
    assert "limit" not in written(SimpleNamespace(recentProgress=[report]), tmp_path).partition("<body>")[2]


def test_names_that_others_chose_are_escaped(tmp_path):
    text = written(SimpleNamespace(recentProgress=[progress(second, name=EVIL) for second in range(3)]), tmp_path)
    assert "<script" not in text and "\x1b" not in text
    assert "&lt;script&gt;" in text


def changed(second, **changes):
    """Return a report, as a line, some of whose source's fields are changed."""
    report = progress(second)
    latest = json.loads(report["sources"][0]["latestOffset"])
    return json.dumps({**report, "sources": [{"latestOffset": {**latest, **changes}}]})


NOT_FILES = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "directory": lambda path: path.mkdir(),
    "broken link": lambda path: path.symlink_to("nowhere"),
}


@pytest.mark.parametrize("make", NOT_FILES.values(), ids=NOT_FILES)
def test_what_is_no_file_is_left_out(make, tmp_path):
    reports, checkpoint = tmp_path / "reports", tmp_path / "checkpoint"
    (checkpoint / "offsets").mkdir(parents=True)
    reports.mkdir()
    make(reports / "a.jsonl")
    (reports / "b.jsonl").write_text(json.dumps(progress(1)))
    make(checkpoint / "offsets" / "1")
    offset = json.dumps({"v": 1, "source": "orders", "n": 0, "eventTime": event_time(0)})
    (checkpoint / "offsets" / "0").write_text(f'v1\n{{"batchTimestampMs":1704067200000}}\n{offset}')
    for given in (reports, checkpoint):
        assert "1 micro-batches" in written(given, tmp_path)


def test_a_file_without_end_is_left_out(tmp_path):
    (tmp_path / "offsets").mkdir()
    for name in ("a.jsonl", "offsets/0"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(1 << 40)
    with pytest.raises(ConfigurationError, match="no progress"):
        forebay.report(tmp_path, tmp_path / "out.html")


DEEP = "[" * 200_000
DAMAGED = {
    "deep": DEEP,
    "deep offset": json.dumps({**progress(1), "sources": [{"latestOffset": DEEP}]}),
    "no time zone": json.dumps({**progress(1), "timestamp": "2024-01-01T00:00:00"}),
    "year 1": json.dumps({**progress(1), "timestamp": "0001-01-01T00:00:00+14:00"}),
    "watermark without time zone": changed(1, eventTime={**event_time(1), "watermark": "2024-01-01T00:00:00"}),
    "endless drift": changed(1, eventTime={**event_time(1), "maxDrift": float("inf")}),
    "huge lag": changed(1, behind={"rows": 10**400}),
    "endless lag": changed(1, behind={"rows": float("inf")}),
}


@pytest.mark.parametrize("line", DAMAGED.values(), ids=DAMAGED)
def test_damaged_reports_are_skipped(line, tmp_path):
    (tmp_path / "a.jsonl").write_text("\n".join([json.dumps(progress(0)), line, json.dumps(progress(2))]))
    assert re.search("<p>[23] micro-batches", written(tmp_path, tmp_path))


def test_a_damaged_offset_of_a_checkpoint_is_skipped(tmp_path):
    (tmp_path / "offsets").mkdir()
    offset = json.dumps({"v": 1, "source": "orders", "n": 0, "eventTime": event_time(0)})
    metadata = '{"batchTimestampMs":1704067200000}'
    contents = {"0": f"v1\n{metadata}\n{offset}", "1": f"v1\n{DEEP}\n{offset}", "2": f"v1\n{metadata}\n{{{DEEP}"}
    for name, content in {**contents, "٣": contents["0"], "03": contents["0"]}.items():
        (tmp_path / "offsets" / name).write_text(content)
    assert "<p>1 micro-batches" in written(tmp_path, tmp_path)


@pytest.mark.parametrize("given", ["no/such/directory", "x" * 5000, "\0"])
def test_a_directory_that_does_not_exist_is_refused(given, tmp_path):
    with pytest.raises(ConfigurationError, match="there is no directory"):
        forebay.report(given, tmp_path / "out.html")


@pytest.mark.parametrize("given", [SimpleNamespace(recentProgress=[]), 7, None])
def test_what_has_no_progress_is_refused(given, tmp_path):
    with pytest.raises(ConfigurationError, match="no progress"):
        forebay.report(given, tmp_path / "out.html")
    with pytest.raises(ConfigurationError, match="no progress"):
        forebay.report(str(tmp_path))


def test_a_url_with_a_password_is_refused_and_not_shown(tmp_path):
    with pytest.raises(ConfigurationError, match="contains a password") as caught:
        forebay.report("s3://AKIA:canary+7/x=@b/x", tmp_path / "out.html")
    assert "canary" not in str(caught.value)
