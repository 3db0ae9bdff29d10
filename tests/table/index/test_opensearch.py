# SPDX-License-Identifier: Apache-2.0
"""OpenSearch as a second database: a real server, followers that fail in each way, and the same answers as a node."""

from __future__ import annotations

import itertools
import math
import random
import re
import shlex
import shutil
import signal
import sys
import threading
import time
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from child_processes import Child
from opensearchpy import OpenSearch, Transport

from forebay.cli import main
from forebay.errors import ConfigurationError, DataError, RetriableError
from forebay.index import Datasource, ObjectType, OpenSearchIndex, OpenSearchObjects, Property
from forebay.retry import RetryPolicy
from forebay.table.index.gc import collect
from forebay.table.index.opensearch_cluster import Cluster
from forebay.table.index.opensearch_documents import bulk_lines, gone_document, id_of
from forebay.table.index.runs import runs
from forebay.testkit.proxies import Fault, FaultProxy

PAGE = Path(__file__).parents[3] / "docs" / "indexing.md"
QUICK = RetryPolicy(first_pause=0.01, max_pause=0.05, timeout=5.0)
SETTINGS = {"number_of_shards": 2, "number_of_replicas": 0}
ROWS = [
    {"id": number, "name": f"name {number % 3}", "note": "配送 late" if number % 2 else None} for number in range(9)
]


class Pair:
    """An object type, with OpenSearch as its second database under a name of its own."""

    _numbers = itertools.count()

    def __init__(self, objects, server):
        self.objects, self.server = objects, server
        self.name = f"o{next(self._numbers)}"
        self.client = OpenSearch(hosts=[server.url])

    def follower(self, **options: Any):
        options = {"name": self.name, "settings": SETTINGS, "retry": QUICK, "hosts": self.server.url} | options
        return OpenSearchIndex(self.objects.location, self.objects.definition.name, **options)

    def reader(self, **options: Any):
        return OpenSearchObjects(self.server.url, self.objects.definition.name, name=self.name, retry=QUICK, **options)

    def indexes(self):
        return sorted(self.client.indices.get(index=f"{self.name}-*"))

    def documents(self):
        """The documents of the index behind the alias, by id, whether they can be found or not."""
        (index,) = self.client.indices.get_alias(name=self.name)
        found = self.client.search(index=index, body={"size": 1000, "version": True})
        return {hit["_id"]: (hit["_version"], hit["_source"]) for hit in found["hits"]["hits"]}


@pytest.fixture
def pair(objects, opensearch):
    return Pair(objects, opensearch)


def rows(answers, *names):
    page, found = answers.objects.limit(4).fetch(), []
    while page.rows:
        found += [tuple(row[name] for name in names) if names else dict(row) for row in page.rows]
        page = page.next_page()
    return found


def test_the_same_calls_and_answers_as_a_node(pair):
    objects = pair.objects
    objects.commit("a", ROWS)
    assert pair.follower().catch_up().data == 1
    reader, node = pair.reader(), objects.node()
    for answers in (reader, node):
        assert answers.version.data == 1 and answers.count() == 9
        assert rows(answers) == [{"name": None, "note": None, "city": None, **row} for row in ROWS]
        assert answers.get(3) == {"id": 3, "name": "name 0", "note": "配送 late", "city": None}
        assert answers.get(99) is None
        assert answers.where(name=["name 1", None]).count() == answers.where("name = 'name 1' OR name IS NULL").count()
        page = answers.where("name >= 'name 1'").search("送 LATE").order_by("-name").limit(2).fetch()
        assert [row["id"] for row in page.rows] == [5, 1] and page.version.data == 1
        assert [row["id"] for row in page.next_page().rows] == [7] and not page.next_page().has_next
        with pytest.raises(ConfigurationError, match=r"'note' of 'O' has no index"):
            answers.where(note="y").fetch()
    page = reader.objects.limit(2).fetch()
    objects.commit("a", [{"id": 1, "name": "other"}, {"id": 2, "deleted": True}])
    objects.commit("b", [{"id": 50, "city": "Oslo"}])
    assert pair.follower().catch_up().data == 3
    assert reader.get(1)["name"] == "name 1"
    assert reader.refresh().data == 3
    assert rows(reader, "id", "name")[:3] == [(0, "name 0"), (1, "other"), (3, "name 0")]
    assert reader.get(2) is None and reader.get(50)["city"] == "Oslo" and reader.count() == 9
    assert [row["id"] for row in page.next_page().rows] == [2, 3], "a page is of the point in time of the first one"
    assert pair.follower().verify().is_equal
    before = pair.documents()
    assert before[id_of(objects.definition.codec.encode((2,)))] == (3, gone_document((2 + 2**63).to_bytes(8)))
    assert pair.follower().catch_up().data == 3 and pair.documents() == before
    assert len(pair.indexes()) == 1
    reader.close()
    with pytest.raises(ConfigurationError, match="are closed"):
        reader.count()


@pytest.mark.soak("user_edits")
@pytest.mark.parametrize("conflict", ["user_edits", "most_recent"])
def test_folded_edits_are_in_opensearch_too(objects_at, opensearch, conflict):
    """As a build and as an update; also for keys that no datasource has, and for deleted ones that come back."""
    name = Property("string", filter=True)
    timed = {"timestamp": "at"} if conflict == "most_recent" else {}
    source = Datasource("a", conflict=conflict, properties={"name": name}, **timed)
    objects = objects_at(ObjectType("O", key={"id": "bigint"}, datasources=[source]), types={"a": {"at": "timestamp"}})
    at = datetime(2020, 1, 1, tzinfo=UTC)
    objects.commit("a", [{"id": number, "name": "row", "at": at} for number in range(4)])
    pair, node = Pair(objects, opensearch), objects.node()
    node.edit(1, name="edited")
    node.delete(2)
    node.edit(9, name="made")
    objects.flush()
    for follower in (pair.follower(), pair.follower()):
        version = follower.catch_up()
        node.refresh()
        with pair.reader() as reader:
            assert reader.version == version and version.offset == node.version.offset
            assert rows(reader) == rows(node) and reader.count() == node.count()
        assert follower.verify().is_equal
        node.edit(2, name="again")
        node.edit(3, name="edited")
        objects.commit("a", [{"id": 1, "name": "newer", "at": at.replace(year=2100)}])
        objects.flush()


def test_without_the_library_the_error_says_what_to_install(pair, monkeypatch):
    monkeypatch.setitem(sys.modules, "opensearchpy", None)
    for made in (pair.follower, pair.reader):
        with pytest.raises(
            ConfigurationError, match=r"opensearch-py, which is not installed[\s\S]*forebay\[opensearch\]"
        ):
            made()


@pytest.mark.soak
def test_one_character_stands_for_all_words_that_begin_with_it(pair):
    """By default OpenSearch takes 50 words, and leaves out the others without a word."""
    pair.objects.commit("a", [{"id": number, "note": f"late 東{chr(0x4E00 + number)}"} for number in range(200)])
    pair.follower().catch_up()
    with pair.reader() as reader:
        assert reader.search("東").count() == reader.search("late 東", phrase=True).count() == 200


@pytest.mark.soak
def test_progress_has_documents(pair):
    seen: list[tuple[int, int]] = []
    pair.objects.commit("a", [{"id": number} for number in range(2_500)])
    pair.follower(progress=lambda *given: seen.append(given)).catch_up()
    assert seen == [(1_000, 2_500), (2_000, 2_500), (2_500, 2_500)]


def test_a_late_writer_replaces_nothing_and_revives_nothing(pair):
    """OpenSearch forgets a real delete after `gc_deletes`, here at once."""
    pair.objects.commit("a", ROWS[:3])
    pair.follower(settings={**SETTINGS, "gc_deletes": "1ms"}).catch_up()
    stale = pair.documents()
    pair.objects.commit("a", [{"id": 0, "deleted": True}, {"id": 1, "name": "new"}])
    pair.follower().catch_up()
    time.sleep(0.1)
    lines = [bulk_lines(identity, version, document) for identity, (version, document) in stale.items()]
    Cluster(pair.server.url).bulk(f"{pair.indexes()[0]}-writer", lines, str)
    assert pair.follower().catch_up().data == 2
    pair.client.indices.refresh(index=pair.name)
    with pair.reader() as reader:
        assert rows(reader, "id", "name") == [(1, "new"), (2, "name 2")]
    assert pair.follower().verify().is_equal


def test_an_index_of_someone_else_is_refused_by_name(pair):
    pair.objects.commit("a", ROWS[:1])
    pair.client.indices.create(index=f"{pair.name}-theirs", body={"aliases": {pair.name: {}}})
    for refused in (pair.follower().catch_up, pair.follower().verify, pair.reader):
        with pytest.raises(
            ConfigurationError,
            match=rf"'{pair.name}' of OpenSearch is {pair.name}-theirs, which is not of.*object_type 'O'",
        ):
            refused()
    pair.client.indices.delete(index=f"{pair.name}-theirs")
    with pytest.raises(ConfigurationError, match=r"has no index 'o\d+' of 'O'[\s\S]*catch_up"):
        pair.reader()
    pair.client.indices.create(index=pair.name)
    with pytest.raises(ConfigurationError, match=rf"OpenSearch is {pair.name}, which"):
        pair.follower().catch_up()
    assert pair.client.indices.get(index=f"{pair.name}*").keys() == {pair.name}


def test_an_index_of_another_location_is_refused_by_name(pair, objects_at, opensearch):
    pair.objects.commit("a", ROWS[:1])
    pair.follower().catch_up()
    other = Pair(objects_at(), opensearch)
    other.name = pair.name
    other.objects.commit("a", ROWS)
    with pytest.raises(ConfigurationError, match=r"is not of .*location '.*'[\s\S]*give another name"):
        other.follower().catch_up()
    assert pair.follower().verify().is_equal


def test_a_refused_document_is_named_and_the_progress_stays(pair):
    pair.objects.commit("a", [{"id": 7, "name": "x" * 40_000}])
    with pytest.raises(DataError, match=r"OpenSearch refuses O \(id=7\)"):
        pair.follower().catch_up()
    assert pair.indexes() == [], "a build that failed leaves nothing"
    pair.objects.commit("a", [*ROWS[:2], {"id": 7, "deleted": True}])
    pair.follower().catch_up()
    pair.objects.commit("a", [{"id": 1, "name": "fine"}, {"id": 7, "name": "x" * 40_000}, {"id": 8, "name": "too"}])
    for _ in range(2):
        with pytest.raises(DataError, match=r"OpenSearch refuses O \(id=7\): .*immense term in field=.object\.name"):
            pair.follower().catch_up()
        with pair.reader() as reader:
            assert reader.version.data == 2
    assert pair.objects.node().get(7)["name"] == "x" * 40_000
    pair.objects.commit("a", [{"id": 7, "name": "short"}])
    assert pair.follower().catch_up().data == 4
    with pair.reader() as reader:
        assert rows(reader, "id", "name") == [(0, "name 0"), (1, "fine"), (7, "short"), (8, "too")]


def test_a_long_text_is_a_bound_as_a_short_one_is(objects_at, opensearch):
    """OpenSearch itself refuses a range above a text of 1,000 bytes."""
    definition = ObjectType("L", {"id": "bigint"}, [Datasource("a", {"s": Property("string", filter=True)})])
    pair = Pair(objects_at(definition), opensearch)
    texts = ["", *(letter * size for letter in "aé" for size in (1, 200, 201, 999, 1000, 5000))]
    pair.objects.commit("a", [{"id": number, "s": text} for number, text in enumerate([None, *texts])])
    pair.follower().catch_up()
    with pair.objects.node() as node, pair.reader() as reader:
        for text in texts:
            conditions = [f"s {operator} '{text}'" for operator in ("<", "<=", ">", ">=", "=", "!=")]
            for condition in [*conditions, f"s BETWEEN '{text}' AND '{'a' * 4000}'"]:
                for asked in (condition, f"NOT ({condition})"):
                    assert reader.where(asked).fetch().rows == node.where(asked).fetch().rows, asked[:20]
            assert node.where(f"s > '{text}'").count() == sum(each > text for each in texts)


def test_a_busy_server_is_asked_again_and_each_item_is_checked(pair):
    """An answer of a proxy, and single documents that the server refuses for a while."""
    pair.objects.commit("a", ROWS)
    with FaultProxy(pair.server.url) as proxy:
        proxy.inject(
            Fault("slow_down", path="*_bulk*", nth=(1, 3)), Fault("reset", path="*_bulk*", nth=(2,)),
            Fault("reset_in_body", path="*_refresh*", nth=(1,)), Fault("reset_in_body", path="*_aliases*", nth=(1, 3)),
            Fault("reset_in_body", method="PUT", path=f"/{pair.name}-*", nth=(1,)),
        )  # fmt: skip
        busy = Busy(hosts=[proxy.url], max_retries=0)
        assert pair.follower(hosts=busy).catch_up().data == 1
        assert busy.refused == 3
        pair.follower(hosts=proxy.url).catch_up(full=True)
        proxy.inject(Fault("slow_down"))
        with pytest.raises(RetriableError, match=r"OpenSearch does not answer: .*503[\s\S]*tries in"):
            pair.follower(hosts=proxy.url, retry=RetryPolicy(retries=2, first_pause=0.01)).catch_up()
    assert pair.follower().verify().is_equal


class Busy(OpenSearch):
    """A client whose server refuses some documents of the first bulk requests with 429: they are not sent to it."""

    refused = 0

    def bulk(self, *, body, **options):
        lines = body.split(b"\n")[:-1]
        pairs = [lines[at : at + 2] for at in range(0, len(lines), 2)]
        wait = [self.refused < 3 and number in (1, 3) for number in range(len(pairs))]
        sent = b"".join(b"\n".join(pair) + b"\n" for pair, busy in zip(pairs, wait, strict=True) if not busy)
        answer = super().bulk(body=sent, **options)
        items, self.refused = iter(answer["items"]), self.refused + sum(wait)
        busy = {"index": {"status": 429, "error": {"reason": "rejected execution"}}}
        return {"errors": True, "items": [dict(busy) if each else next(items) for each in wait]}


def test_verify_names_what_differs(pair):
    pair.objects.commit("a", ROWS[:4])
    pair.follower().catch_up()
    (index,) = pair.indexes()
    encode = pair.objects.definition.codec.encode
    change = {"refresh": "true"}
    pair.client.delete(index=index, id=id_of(encode((0,))), params=change)
    pair.client.update(index=index, id=id_of(encode((1,))), body={"doc": {"object": {"name": "y"}}}, params=change)
    pair.client.update(index=index, id=id_of(encode((3,))), body={"doc": {"words": ["other"]}}, params=change)
    more = {"gone": False, "key": encode((77,)).hex(), "object": {"id": 77}}
    pair.client.index(index=index, id=id_of(encode((77,))), body=more, params=change)
    found = pair.follower().verify()
    assert found.differing == 4 and sorted(found.named) == [
        "(id=0) is missing in the index",
        "(id=1) differs from the rows of its datasources",
        "(id=3) differs from the rows of its datasources",
        "(id=77) is in the index, and in no datasource",
    ]
    pair.client.indices.create(index=f"{pair.name}-theirs")
    pair.follower(name=f"{pair.name}-eu").catch_up()
    pair.follower().catch_up(full=True)
    assert pair.follower().verify().is_equal and index not in pair.indexes()
    assert len(pair.indexes()) == 3, "neither one of someone else nor that of another alias is removed"


def test_it_is_built_again_if_the_log_went_on_or_is_another_one_or_the_disk_is_lost(pair):
    objects = pair.objects
    objects.commit("a", ROWS)
    pair.follower().catch_up()
    reader = pair.reader()
    for number in range(3):
        objects.commit("a", [{"id": number, "deleted": True}])
    collect(objects.index, keep=1)
    assert pair.follower().catch_up().data == 4  # by a full build: facts that it has not seen are gone
    assert reader.count() == 6 and reader.version.data == 4, (
        "the point in time went with the index; the next one is taken"
    )
    page = reader.objects.limit(2).fetch()
    pair.client.indices.delete(index=f"{pair.name}-*")
    with pytest.raises(ConfigurationError, match="has no index"):
        reader.count()
    with pytest.raises(RetriableError, match=r"has ended[\s\S]*from the first page on"):
        page.next_page()
    pair.follower().catch_up()
    assert reader.count() == 6 and pair.follower().verify().is_equal and len(pair.indexes()) == 1
    for facts in (2, 4):  # another log: not as far as the one before, and further
        shutil.rmtree(objects.location)
        for number in range(facts):
            objects.commit("a", [{"id": number, "name": f"of {facts}"}])
        with pytest.raises(ConfigurationError, match="yet, or the log has its last fact no more"):
            pair.follower().verify()
        assert pair.follower().catch_up().data == facts and pair.follower().verify().is_equal
    with pair.reader() as fresh:
        assert rows(fresh, "id", "name") == [(number, "of 4") for number in range(4)]


def test_long_keys_are_found_by_a_hash_and_what_opensearch_does_not_take_is_refused(objects_at, opensearch):
    definition = ObjectType("L", {"k": "string"}, [Datasource("a", {"v": Property("int", filter=True)})])
    pair = Pair(objects_at(definition), opensearch)
    keys = ["", "x" * 255, "x" * 256, "x" * 16_000 + "a", "x" * 16_000 + "b", "é"]
    pair.objects.commit("a", [{"k": key, "v": number} for number, key in enumerate(keys)])
    pair.follower().catch_up()
    with pair.reader() as reader:
        assert [reader.get(key)["v"] for key in keys] == list(range(6)) and reader.get("x" * 258) is None
        assert rows(reader, "k") == [(key,) for key in sorted(keys)]
        assert reader.where(" OR ".join(f"v = {number}" for number in range(5_000))).count() == 6
        for operator in ("OR", "AND"):  # a range counts twice for OpenSearch
            text = f" {operator} ".join(f"v < {number}" for number in range(1_000))
            with pytest.raises(ConfigurationError, match=r"maxClauseCount is set to 1024[\s\S]*ask in smaller queries"):
                reader.where(text).count()
        with pytest.raises(ConfigurationError, match="the query has 1,100 conditions"):
            reader.where(" OR ".join(f"v < {number}" for number in range(1_100))).count()
    assert pair.follower().verify().is_equal
    pair.objects.commit("a", [{"k": "x" * 16_384, "v": 1}])
    with pytest.raises(DataError, match=r"OpenSearch refuses L \(k='xxx.*immense term in field=.key"):
        pair.follower().catch_up()


def test_the_command(pair, capsys, monkeypatch):
    pair.objects.commit("a", ROWS)
    monkeypatch.setenv("SEARCH", pair.server.url)

    def shown(*more: str, code: int = 0) -> str:
        where = ["opensearch", pair.objects.location, "O", "--hosts", "env:SEARCH", "--name", pair.name]
        assert main(["index", *where, *more]) == code
        return " ".join("".join(capsys.readouterr()).split())

    assert "has no index" in shown("--verify", code=1)
    assert shown("--setting", "number_of_replicas=0") == "O: OpenSearch has fact 1 of the log"
    (index,) = pair.indexes()
    assert pair.client.indices.get(index=index)[index]["settings"]["index"]["number_of_replicas"] == "0"
    assert shown(
        "--json", "--full"
    ) == '{"pipeline": "000001", "number": 1, "data": 1, "offset": 0}' and pair.indexes() != [index]
    assert "fact 1 of the log: equal to the states of all datasources, 9 objects" in shown("--verify")
    (index,), gone = pair.indexes(), id_of(pair.objects.definition.codec.encode((3,)))
    pair.client.delete(index=index, id=gone, params={"refresh": "true"})
    assert "1 keys differ (id=3) is missing" in shown("--verify", code=1)
    assert "OpenSearch makes no index" in shown("--full", "--setting", "nonsense=1", code=1)


def test_the_daemon_keeps_opensearch_up_to_date(objects_at, opensearch, capsys):
    objects = objects_at(ObjectType("Kept", {"id": "bigint"}, [Datasource("a", {"name": Property("string")})]))
    objects.commit("a", [{"id": 1, "name": "x"}], follow=False)
    command = ["index", "run", objects.location, "--once", "--opensearch", opensearch.url]
    for count in (1, 2):
        assert main(command) == 0
        assert [run.subject for run in runs(objects.index)] == ["index 000001", "opensearch kept"] * count
        objects.commit("a", [{"id": 2, "name": "y"}], follow=False)
    with OpenSearchObjects(opensearch.url, "Kept") as node:
        assert node.count() == 2
    assert [(run.since, run.to, run.decision) for run in runs(objects.index) if run.job == "opensearch"] == [
        (-1, 1, "FULL"),
        (1, 2, "INCREMENTAL"),
    ]
    assert main([*command[:-1], "http://127.0.0.1:9"]) == 1
    assert "ALERT: failed of opensearch kept: run 5: RetriableError" in capsys.readouterr().err


def test_the_snippets_of_the_page_run(objects_at, opensearch, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text, decimal = Property("string", text=True, filter=True), Property("decimal(12,2)", filter=True)
    order = ObjectType(
        "Order", {"order_id": "bigint"}, [Datasource("a", {"status": text, "total": decimal, "note": text})]
    )
    row = {"order_id": 7, "status": "open", "total": Decimal("5.00"), "note": "東京への配送が遅延しています"}
    objects_at(order, location="objects").commit("a", [row])
    page = PAGE.read_text(encoding="utf-8").replace("http://localhost:9200", opensearch.url)
    (block,) = [each for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "OpenSearch" in each]
    exec(compile(block, str(PAGE), "exec"), {})
    assert capsys.readouterr().out == f"1 ({row},) {row}\n"
    (commands,) = [each for each in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if "opensearch" in each]
    for line in commands.splitlines():
        assert main(shlex.split(line, comments=True)[1:]) == 0, line
    assert "equal to the states of all datasources, 1 objects" in capsys.readouterr().out


def test_answers_never_go_back(pair):
    pair.objects.commit("a", ROWS)
    pair.objects.commit("a", [{"id": 0, "name": "new"}])
    pair.follower().catch_up()
    reader = pair.reader()
    page = reader.objects.limit(1).fetch()
    older = {"progress": {"data": 1, "attempt": "of a follower that was slow", "edits": 0}}
    (index,) = pair.indexes()
    pair.client.index(index=index, id="progress", body=older)
    assert reader.refresh().data == 2 and reader.get(0)["name"] == "new" and page.next_page().version.data == 2
    pair.client.indices.close(index=index)
    pair.client.indices.open(index=index)
    with pytest.raises(RetriableError, match=r"is at fact 1 of the log, and answers before were at 2[\s\S]*catch_up"):
        reader.count()
    assert pair.follower().catch_up().data == 2 and reader.count() == 9


def test_a_zombie_makes_no_index_of_the_name_of_a_removed_one(pair):
    pair.objects.commit("a", ROWS)
    pair.follower().catch_up()
    (removed,) = pair.indexes()
    pair.follower().catch_up(full=True)
    with pytest.raises(RetriableError, match="is gone"):
        Cluster(pair.server.url, QUICK).bulk(f"{removed}-writer", [bulk_lines("00", 1, gone_document(b""))], str)
    assert removed not in pair.indexes()


WORDS = ["late", "parcel", "Straße", "ｶﾀｶﾅ", "東京都", "配送", "遅延", "京", "x_y", "lat", "東"]


@pytest.mark.soak
def test_a_node_and_opensearch_give_the_same_answers(objects_at, opensearch):
    """Random rows, filters, searches, orders and pages, after random transactions."""
    draw = random.Random(5)
    kinds = {"i": "int", "l": "bigint", "d": "double", "w": "decimal(30,2)", "s": "string", "t": "timestamp"}
    properties = {name: Property(kind, filter=True) for name, kind in kinds.items()}
    notes = {"n": Property("string", text=True), "m": Property("string", text=True, filter=True)}
    definition = ObjectType("R", {"k": "string", "j": "bigint"}, [Datasource("a", {**properties, **notes})])
    pair = Pair(objects_at(definition), opensearch)
    values: dict[str, list[Any]] = {
        "i": [None, *range(5)],
        "l": [None, -(2**63), -(2**63) + 1, 2**63 - 1, *range(5)],
        "d": [None, math.nan, -math.inf, math.inf, -1.5, 0.0, 1.5, 1e300],
        "w": [None, *(Decimal(number) / 4 for number in range(-4, 4))],
        "s": [None, "", "a", "b", "é", "\uffee", "𐀀", "a\0"],
        "t": [None, datetime(1, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)],
        "n": [None, *(draw.choice(["", " ", "、"]).join(draw.choices(WORDS, k=4)) for _ in range(40))],
        "m": [None, *WORDS],
    }
    literals = {
        "i": ["1", "2.5", "99999999999"], "l": ["3", "-9223372036854775808", "9223372036854775808", "-10"],
        "d": ["1.5", "-1e400", "0"], "w": ["0.25", "0.3", "-1", "1" + "0" * 40], "s": ["''", "'a'", "'é'", "'𐀀'"],
        "t": ["TIMESTAMP '2024-01-01'", "'2023-12-31 23:59:59'"], "m": ["'late'", "'東'"],
        "k": ["'k1'", "'k'"], "j": ["5", "70.5"],
    }  # fmt: skip

    def condition(depth: int = 3) -> str:
        if depth and draw.random() < 0.6:
            joined = f" {draw.choice(['AND', 'OR'])} ".join(f"({condition(depth - 1)})" for _ in range(2))
            return draw.choice([joined, f"NOT ({joined})"])
        name = draw.choice(sorted(literals))
        some = draw.choices(literals[name], k=2)
        return draw.choice(
            [
                f"{name} {draw.choice(['=', '!=', '<', '<=', '>', '>='])} {some[0]}",
                f"{name} IS {draw.choice(['', 'NOT '])}NULL",
                f"{name} {draw.choice(['', 'NOT '])}IN ({', '.join(some)})",
                f"{name} BETWEEN {some[0]} AND {some[1]}",
            ]
        )

    reader = node = None
    asked = 0
    for _ in range(8):
        keys = {(f"k{draw.randrange(3)}", draw.randrange(100)) for _ in range(120)}
        rows_of = [
            {"k": k, "j": j, "deleted": draw.random() < 0.1, **{name: draw.choice(of) for name, of in values.items()}}
            for k, j in sorted(keys)
        ]
        pair.objects.commit("a", rows_of)
        pair.follower().catch_up()
        node, reader = node or pair.objects.node(), reader or pair.reader()
        assert node.refresh().data == reader.refresh().data and node.count() == reader.count()
        assert repr(rows(node)) == repr(rows(reader))
        for _ in range(60):
            text = condition()
            names = [draw.choice(["", "-"]) + name for name in draw.sample(sorted(literals), draw.randrange(3))]
            query, phrase = (
                draw.choice([" ", "", "、"]).join(draw.choices(WORDS, k=draw.randrange(1, 3))),
                draw.random(),
            )
            answers = []
            for each in (node, reader):
                found = each.where(text).order_by(*names).limit(draw.choice([5]))
                found = found.search(query, phrase=phrase < 0.5) if phrase < 0.7 else found
                page, got = found.fetch(), []
                while page.rows:
                    got += page.rows
                    page = page.next_page()
                answers.append((found.count(), repr(got)))
            assert answers[0] == answers[1], (text, names, query, phrase)
            asked += bool(answers[0][0])
        for row in rows_of[:20]:
            assert repr(node.get((row["k"], row["j"]))) == repr(reader.get((row["k"], row["j"])))
    assert pair.follower().verify().is_equal and asked > 100


@pytest.mark.soak
def test_followers_and_servers_that_are_killed_lose_nothing(pair):
    """20 kills of each. A server that is down stops neither commits nor nodes, and gets everything later, in order."""
    draw = random.Random(3)
    node, kills = None, 0
    for number in range(20):
        changed = [
            {"id": key, "name": f"{number}", "deleted": draw.random() < 0.3} for key in draw.sample(range(3_000), 1_500)
        ]
        pair.objects.commit("a", changed)
        at, follower = 1 + number % 5, pair.follower()
        work = lambda follower=follower, full=number % 7 == 5: follower.catch_up(full=full) and 0  # noqa: E731 - now
        when = "before" if at % 2 else "after"
        kills += Child(work, at, when, methods=((Transport, "perform_request"),)).wait() == -signal.SIGKILL
        if number % 2:
            pair.server.kill()
            with pytest.raises(RetriableError, match="does not answer"):
                pair.follower(retry=RetryPolicy(retries=1, first_pause=0.01)).catch_up()
            pair.objects.commit("b", [{"id": number, "city": "Oslo"}])
            node = node or pair.objects.node()
            assert node.refresh().data == pair.objects.index.head().number
            pair.server.start()
        if number % 3 == 0:
            ended = threading.Timer(draw.random() * 0.3, lambda: (pair.server.kill(), pair.server.start()))
            ended.start()
            try:
                pair.follower(retry=RetryPolicy(first_pause=0.1, max_pause=0.5, timeout=60)).catch_up()
            except RetriableError:
                assert number % 3 == 0
            ended.join()
        if number % 4 == 3:
            pair.follower(retry=RetryPolicy(first_pause=0.1, max_pause=0.5, timeout=60)).catch_up()
            assert pair.follower().verify().is_equal
    pair.follower().catch_up()
    assert pair.follower().verify().is_equal and kills == 20
    with pair.reader() as reader:
        assert rows(reader) == rows(pair.objects.node())


@pytest.mark.soak
def test_a_disk_that_is_lost_is_filled_again(pair):
    pair.objects.commit("a", ROWS)
    pair.follower().catch_up()
    pair.server.kill()
    pair.server.wipe()
    pair.server.start()
    with pytest.raises(ConfigurationError, match="has no index"):
        pair.reader()
    assert pair.follower().catch_up().data == 1 and pair.follower().verify().is_equal
