# SPDX-License-Identifier: Apache-2.0
"""`forebay.report` writes one HTML file that opens offline, from progress reports or from a checkpoint."""

from __future__ import annotations

import json
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


@pytest.mark.parametrize("given", [SimpleNamespace(recentProgress=[]), "no/such/directory", 7, None])
def test_what_has_no_progress_is_refused(given, tmp_path):
    with pytest.raises(ConfigurationError, match="no progress"):
        forebay.report(given, tmp_path / "out.html")
    with pytest.raises(ConfigurationError, match="no progress"):
        forebay.report(str(tmp_path))


def test_a_url_with_a_password_is_refused_and_not_shown(tmp_path):
    with pytest.raises(ConfigurationError, match="contains a password") as caught:
        forebay.report("s3://AKIA:canary+7/x=@b/x", tmp_path / "out.html")
    assert "canary" not in str(caught.value)
