# SPDX-License-Identifier: Apache-2.0
"""The snippets of the guide for authors run as they stand, and the sources made of them pass `check`."""

from __future__ import annotations

import itertools
import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

import forebay
from forebay import Batch, SimpleSource, Split
from forebay.testkit import check

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "writing-a-source.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
ROWS = pa.schema({"n": pa.int64()})


def snippet(words):
    """Return the only snippet with these words."""
    (found,) = [code for code in SNIPPETS if words in code]
    return found


def source_of(base, code, **names):
    """Return the class with the snippet as its body, in this module, so that it can be pickled."""
    scope: dict[str, Any] = {**globals(), **names, "Base": base}
    exec(compile(f"class Made(Base):\n{textwrap.indent(code, '    ')}", "guide", "exec"), scope)
    return scope["Made"]


class Countdowns(SimpleSource):
    """What the smallest source is compared with."""

    def schema(self):
        return ROWS

    def read(self, split):
        yield from ()


class OrdersTable(SimpleSource):
    """A bounded table by ids; the snippet brings `slices`."""

    page_rows: int = 37

    def schema(self):
        return pa.schema({"id": pa.int64()})

    def query(self, sql):
        assert "min(id)" in sql and "FROM orders" in sql
        return 1, 301

    def read(self, split):
        at, end = split.position or 1, 301 if split.end is None else split.end
        while at < end:
            stop = min(at + self.page_rows, end)
            yield Batch([{"id": n} for n in range(at, stop)], stop)
            at = stop


class Feed(SimpleSource):
    """A feed without `latest`; the snippets bring `read`."""

    bounded = False
    page_rows: int = 20

    def schema(self):
        return pa.schema({"n": pa.int64()})

    def get(self, path, **query):
        if path == "feed":
            start = int(query["after"] or -1) + 1
            return [{"cursor": str(n), "n": n} for n in range(start, min(start + self.page_rows, 70))]
        assert path == "readings"
        start = int(query["cursor"] or 0)
        stop = min(start + query["limit"], 70)
        return {"readings": [{"n": n} for n in range(start, stop)], "next": str(stop)}


class TokenExpired(Exception):
    """The service no longer knows a token."""


class Entries(SimpleSource):
    """Tokens that expire after three requests, and each fifth page comes twice; the snippet brings `read`."""

    bounded = False
    url: str = "x"
    page_rows: int = 20
    requests: ClassVar[list[int]] = [0]

    def schema(self):
        return pa.schema({"seq": pa.int64()})

    def get(self, path, *, split, token, limit):
        assert (path, split) == ("entries", "all")
        self.requests[0] += 1
        start, issued = map(int, token.split(".")) if token else (0, self.requests[0])
        if self.requests[0] > issued + 3:
            raise TokenExpired
        stop = start + limit
        entries = [{"seq": 3 * n + n % 2} for n in range(70)][start:stop]
        return {"entries": entries, "next": f"{start if self.requests[0] % 5 == 0 else stop}.{self.requests[0]}"}


def test_the_smallest_source_passes():
    scope: dict[str, Any] = {"__name__": "guide"}
    exec(compile(snippet("class Countdown(forebay.SimpleSource)"), "guide", "exec"), scope)
    assert check(scope["Countdown"]()).verdict == "passed"


CASES = {
    "slices": (OrdersTable, "SELECT coalesce(min(id), 0), coalesce(max(id), 0) + 1 FROM orders"),
    "a cursor in each record": (Feed, 'self.get("feed", after=cursor)'),
    "a cursor for each page": (Feed, 'self.get("readings"'),
    "tokens that expire": (Entries, 'self.get("entries"'),
}


@pytest.mark.parametrize("case", CASES)
def test_a_source_with_the_snippet_passes_check_alone(case):
    base, words = CASES[case]
    report = check(source_of(base, snippet(words), itertools=itertools, TOKENS={})(), seconds=60)
    assert report.verdict == "passed", report


class Changes(SimpleSource):
    """The changes of the table, by `(time, id)`."""

    bounded = False

    def schema(self):
        return pa.schema({"id": pa.int64()})

    def latest(self, split):
        return (0, 331)

    def read(self, split):
        rows = ((0, n) for n in range(301, 331))
        for at in rows:
            if at >= (split.position or (0, 0)) and (split.end is None or at < split.end):
                yield Batch([{"id": at[1]}], (0, at[1] + 1))


def test_a_hybrid_of_the_table_with_the_snippet_passes_check_alone():
    table = source_of(OrdersTable, snippet(CASES["slices"][1]), itertools=itertools)
    report = check(forebay.HybridSource(table(), Changes()), seconds=60)
    assert report.verdict == "passed", report
    assert list(table().slices(Split("all", 298, 301), 1)) == [Split("all", 298, 301)]
    assert list(table().slices(Split("all", 301, 301), 4)) == [Split("all", 301, 301)]


class Doubled(Entries):
    """One page, in which each record is twice, and no token for a next one."""

    def get(self, path, *, split, token, limit):
        return {"entries": [{"seq": n} for n in (1, 1, 2, 2, 4)]}


def test_the_snippet_of_tokens_drops_doubles_of_one_page_and_needs_no_next():
    made = source_of(Doubled, snippet('self.get("entries"'), TOKENS={})
    assert [(row["seq"]) for batch in made().read(Split("all", None, 9)) for row in batch.rows] == [1, 2, 4]
    assert [(row["seq"]) for batch in made().read(Split("all", 2, 4)) for row in batch.rows] == [2]


class Service(Entries):
    """Each service has other numbers, and tokens that mean a place in all of them."""

    limits: ClassVar[list[int]] = []
    refused: ClassVar[set[int]] = set()

    def get(self, path, *, split, token, limit):
        self.limits.append(limit)
        if len(self.limits) in self.refused:
            raise forebay.RetriableError("429")
        start = int(token or 0)
        step = {"one": 1, "three": 3}[self.url]
        return {"entries": [{"seq": step * n} for n in range(6_000)][start : start + limit], "next": str(start + limit)}


def test_the_snippet_of_tokens_keeps_services_apart_and_passes_over_large_pages():
    made = source_of(Service, snippet('self.get("entries"'), TOKENS=(tokens := {}))
    Service.limits.clear()

    def read(url, position, end):
        return [row["seq"] for batch in made(url=url).read(Split("all", position, end)) for row in batch.rows]

    assert read("one", None, 4_990) == list(range(4_990))
    assert read("three", 3_000, 3_300) == list(range(3_000, 3_300, 3))
    assert read("one", 4_990, 5_100) == list(range(4_990, 5_100))
    assert len(tokens) == 2
    Service.limits.clear()
    assert read("three", 3_300, 3_303) == [3_300] and read("three", 3_303, 3_309) == [3_303, 3_306]
    assert len(Service.limits) == 2, "records that come meanwhile cost no second look at the old ones"
    tokens.clear()  # of another process
    Service.limits.clear()
    Service.refused.add(4)
    with pytest.raises(forebay.RetriableError):
        read("one", 4_990, 5_100)
    assert read("one", 4_990, 5_100) == list(range(4_990, 5_100))
    Service.refused.clear()
    assert Service.limits == [1_000] * 6 + [20] * 5, "the failure costs one request"


def test_the_snippet_of_upgrade_keeps_what_an_older_version_stored():
    scope: dict[str, Any] = {"Split": Split}
    exec(compile(snippet("class LogSplit(Split)"), "guide", "exec"), scope)
    kind = scope["LogSplit"]
    (given,) = [code for code in SNIPPETS if "stored=[" in code]
    scope |= {"check": lambda source, stored: None, "LogSource": lambda: None}
    exec(compile(given, "guide", "exec"), scope)
    stored = scope["stored"]
    assert kind.from_json(stored) == kind("orders-0", 3_000, log="orders")
    assert kind.from_json({"v": 1, "id": "orders-0", "topic": "orders"}) == kind("orders-0", log="orders")


def test_the_snippet_of_events_defines_events_that_carry_their_fields():
    scope: dict[str, Any] = {"forebay": forebay, "__name__": "guide"}
    exec(compile(snippet("class Progress(forebay.SourceEvent)"), "guide", "exec", dont_inherit=True), scope)
    assert scope["Progress"](rows=3).rows == 3
    sent: list[Any] = []
    enumerator: Any = type("Fake", (), {})()
    enumerator.rows, enumerator.context = {0: 1, 1: 1}, type("Context", (), {})()
    enumerator.context.send_event_to_reader = lambda subtask, event: sent.append((subtask, event))
    scope["Enumerator"].handle_source_event(enumerator, 1, scope["Progress"](rows=3))
    assert sent == [(1, scope["Throttle"](seconds=1.0))]


def test_the_snippet_of_http_errors_reads_the_service_of_the_examples():
    sys.path.append(str(ROOT / "examples"))
    from order_service import OrderService
    from rest_orders import Orders

    names: dict[str, Any] = {"urlopen": __import__("urllib.request").request.urlopen, "forebay": forebay, "json": json}
    names["urlencode"] = __import__("urllib.parse").parse.urlencode
    with OrderService(orders=90) as service:
        source = source_of(Orders, snippet("with forebay.http_errors(path"), **names)(url=service.url, page_rows=10)
        assert check(source, seconds=60).verdict == "passed"


@pytest.mark.parametrize(
    ("words", "example"),
    [("return segments[-1], whole_lines", "segment_log.py"), ("broker.acknowledge", "acked_queue.py")],
)
def test_a_snippet_of_an_example_is_in_the_example(words, example):
    """Lines with `…` or `...`, and comments, are left out."""
    text = " ".join((ROOT / "examples" / example).read_text(encoding="utf-8").split())
    for line in snippet(words).splitlines():
        code = line.split("  #")[0].strip()
        if code and "…" not in code and code != "...":
            assert code.removeprefix("def ").split("(self")[0].strip() in text, code
