# SPDX-License-Identifier: Apache-2.0
"""Nodes whose files are damaged while they answer, and questions that cannot be answered."""

from __future__ import annotations

import decimal
import re
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from random import Random

import pytest

from forebay.errors import ConfigurationError, FatalError, RetriableError
from forebay.index import Datasource, ObjectType, Property, SearchNode
from forebay.table.index.follower import FullRule
from forebay.table.index.segment_cache import SegmentCache
from forebay.table.index.verify import verify
from forebay.table.index.why import explain

NUMBERS = ObjectType(
    "O",
    {"id": "decimal(20,2)"},
    [Datasource("a", {"n": Property("int", filter=True), "f": Property("float", filter=True)})],
)


def rows(count):
    return [{"id": number, "name": f"name {number}" * 20, "note": f"note {number}"} for number in range(count)]


def cut(cache, size=8192):
    for file in cache.glob("*.db"):
        with file.open("r+b") as opened:
            opened.truncate(size)


@pytest.mark.parametrize("ask", ["get", "where", "search", "count"])
def test_a_copy_that_is_damaged_while_a_node_answers_is_named_and_copied_again(objects, tmp_path, ask):
    objects.commit("a", rows(3000))
    node = objects.node(cache=tmp_path / "mine")
    asked = {
        "get": lambda: node.get(1500)["note"] == "note 1500",
        "where": lambda: len(node.where("name > 'n'").limit(5000).fetch().rows) == 3000,
        "search": lambda: node.search("note").count() == 3000,
        "count": lambda: node.where("name > 'n'").count() == 3000,
    }[ask]
    cut(tmp_path / "mine")
    with pytest.raises(RetriableError, match=r"the copy of the segment O/\S+ cannot be read any more"):
        asked()
    version = node.version
    assert node.refresh() == version
    assert asked()
    objects.commit("a", [{"id": 1, "name": "x"}])
    cut(tmp_path / "mine")
    with pytest.raises(RetriableError, match="cannot be read any more"):
        while True:
            node.refresh()
            node.where("name > 'n'").count()
            node.get(1500)
    assert node.refresh().data == 2
    assert node.where("name > 'n'").count() == 3000
    assert node.get(1)["name"] == "x"


def of_other_format(data):
    """Change the format of the text index to one that SQLite does not know."""
    place = data.index(b"version\x04")
    data[place + 7] = 9


def without_keys(data):
    """Change the type of each key from bytes to NULL, in the headers of rows."""
    place = -1
    while (place := data.find((1 << 63).to_bytes(8)[:6], place + 1)) >= 0:
        for header in range(max(0, place - 14), place):
            if data[header] == 0x1C:  # a BLOB of 8 bytes
                data[header] = 0


@pytest.mark.parametrize("damage", [of_other_format, without_keys])
@pytest.mark.parametrize("ask", ["search", "count", "fetch"])
def test_a_copy_whose_texts_or_keys_are_damaged_is_copied_again(objects_at, tmp_path, ask, damage):
    objects = objects_at(shards=1)
    objects.commit("a", [{"id": number, "name": "n", "note": "late"} for number in range(30)], "snapshot")
    objects.commit("a", [{"id": 3, "name": "q", "note": "late"}])
    node = objects.node(cache=tmp_path / "mine")
    asked = {
        "search": lambda: node.search("late").count() == 30,
        "count": lambda: node.where(name="n").count() == 29,
        "fetch": lambda: len(node.search("late").fetch().rows) == 30,
    }[ask]
    for file in (tmp_path / "mine").glob("*.db"):
        data = bytearray(file.read_bytes())
        damage(data)
        with file.open("r+b") as opened:
            opened.write(data)
    if damage is of_other_format and ask == "count":
        assert asked()
        return
    with pytest.raises(RetriableError, match="cannot be read"):
        asked()
    node.refresh()
    assert asked()


def test_an_edit_of_an_object_whose_copy_is_damaged_is_refused_until_it_is_copied_again(objects_at, tmp_path):
    objects = objects_at(shards=1)
    objects.commit("a", [{"id": number, "name": "n", "note": f"text {number}"} for number in range(10)])
    node, other = objects.node(cache=tmp_path / "mine"), objects.node()
    for file in (tmp_path / "mine").glob("*.db"):
        data = bytearray(file.read_bytes())
        data[data.rindex(25, 0, data.index(b"text 3"))] ^= 1  # in the header of the row: bytes instead of a text
        with file.open("r+b") as opened:
            opened.write(data)
    with pytest.raises(RetriableError, match="an object of version 1 of the pipeline 000001 cannot be read"):
        node.edit(3, name="m")
    other.edit(3, name="o")
    node.refresh()
    assert node.get(3) == other.get(3) == {"id": 3, "name": "o", "note": "text 3", "city": None}
    assert node.edit(3, name="m") == 2


def test_a_new_copy_that_is_damaged_before_it_answers_is_copied_again(objects, tmp_path, monkeypatch):
    objects.commit("a", [{"id": number, "note": f"text {number}"} for number in range(10)])
    node = objects.node(cache=tmp_path / "mine")
    node.edit(3, name="m")
    objects.commit("a", [{"id": number, "note": f"texts {number}"} for number in range(10)], "snapshot")
    fetch = SegmentCache.fetch

    def damaging(cache, segments, progress=None):
        fetch(cache, segments, progress)
        monkeypatch.setattr(SegmentCache, "fetch", fetch)
        for file in (tmp_path / "mine").glob("*.db"):
            data = bytearray(file.read_bytes())
            if (place := data.find(b"texts 3")) >= 0:
                data[data.rindex(27, 0, place)] ^= 1  # in the header of the row: bytes instead of a text
            with file.open("r+b") as opened:
                opened.write(data)

    monkeypatch.setattr(SegmentCache, "fetch", damaging)
    with pytest.raises(RetriableError, match="cannot be read"):
        node.refresh()
    node.refresh()
    assert node.get(3) == {"id": 3, "name": "m", "note": "texts 3", "city": None}


def test_damage_that_is_met_during_a_refresh_is_mended_by_the_next_one(objects_at, tmp_path, monkeypatch):
    objects = objects_at(shards=1, rule=FullRule(None))
    objects.commit("a", rows(3000), "snapshot")
    node = objects.node(cache=tmp_path / "mine")
    (copy,) = (tmp_path / "mine").glob("*.db")
    objects.commit("a", [{"id": 1, "name": "x"}])
    fetch = SegmentCache.fetch

    def damaging(cache, segments, progress=None):
        fetch(cache, segments, progress)
        monkeypatch.setattr(SegmentCache, "fetch", fetch)
        with copy.open("r+b") as opened:
            opened.truncate(8192)
        with pytest.raises(RetriableError):
            node.where("name > 'n'").count()

    monkeypatch.setattr(SegmentCache, "fetch", damaging)
    assert node.refresh().data == 2
    node.refresh()
    assert node.where("name > 'n'").count() == 3000


def test_a_damaged_time_of_a_row_is_damage_in_one_edit_of_several_changes(objects_at, tmp_path):
    recent = Datasource("a", {"name": Property("string")}, conflict="most_recent", timestamp="at")
    objects = objects_at(ObjectType("R", {"id": "bigint"}, [recent]), types={"a": {"at": "timestamp"}})
    objects.commit("a", [{"id": 3, "name": "n", "at": datetime(2026, 1, 1, tzinfo=UTC)}])
    node = objects.node(cache=tmp_path / "mine")
    for file in (tmp_path / "mine").glob("*.db"):
        with sqlite3.connect(file) as opened:
            opened.execute("UPDATE o SET s0 = 'x'")
        opened.close()
    with pytest.raises(RetriableError, match="cannot be read"):
        node.edit_many([(3, {"name": "m"}), (3, None)])
    node.refresh()
    node.edit_many([(3, {"name": "m"}), (3, None)])
    assert node.get(3) is None


def test_what_verify_finds_in_a_copy_is_copied_again(objects_at, tmp_path):
    objects = objects_at(shards=1)
    objects.commit("a", rows(10))
    for damage in ("c0 = 12", "c0 = x'01'", "c1 = 'x'"):
        node = objects.node(cache=tmp_path / "mine")
        for file in (tmp_path / "mine").glob("*.db"):
            with sqlite3.connect(file) as opened:
                opened.execute(f"UPDATE o SET {damage} WHERE c0 = 3")
            opened.close()
        if damage.startswith("c0"):
            with pytest.raises(RetriableError, match="cannot be read any more"):
                verify(objects.index, node.view())
        else:
            assert verify(objects.index, node.view()).named == ("(id=3) differs from the rows of its datasources",)
        node.refresh()
        assert verify(objects.index, node.view()).is_equal
        node.close()


def test_threads_that_meet_damage_together_get_its_error(objects_at, tmp_path):
    objects, random, errors = objects_at(shards=1, rule=FullRule(None)), Random(1), Counter()
    objects.commit("a", [{"id": number, "note": f"late parcel {number}"} for number in range(500)], "snapshot")
    objects.commit("a", [{"id": 7, "note": "late"}])
    node = objects.node(cache=tmp_path / "mine")
    for file in (tmp_path / "mine").glob("*.db"):
        data = bytearray(file.read_bytes())
        for _ in range(2000):
            data[random.randrange(4096, len(data))] = random.randrange(256)
        with file.open("r+b") as opened:
            opened.write(data)

    def ask():
        for _ in range(3000):
            try:
                node.search("late").count()
            except Exception as error:  # noqa: BLE001 - of whatever kind
                errors[type(error), str(error.__cause__)] += 1

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum(errors.values()) == 9000
    assert set(errors) == {(RetriableError, "database disk image is malformed")}
    node.refresh()
    assert node.search("late").count() == 500


def test_a_damaged_text_is_damage_whatever_it_says(objects, tmp_path):
    objects.commit("a", [{"id": number, "note": f"too many items {number:04}"} for number in range(2000)])
    node = objects.node(cache=tmp_path / "mine")
    for file in (tmp_path / "mine").glob("*.db"):
        data = file.read_bytes().replace(b"too many items 10", b"too many items \xff0")
        with file.open("r+b") as opened:
            opened.write(data)
    with pytest.raises(RetriableError, match="too many items"):
        [node.get(number) for number in range(1000, 1100)]
    node.refresh()
    assert node.get(1050)["note"] == "too many items 1050"


def test_an_object_of_the_greatest_width_is_asked_in_any_order(objects_at):
    widest = {f"p{number}": Property("int", filter=number < 3) for number in range(1997)}
    objects = objects_at(ObjectType("O", {"id": "bigint"}, [Datasource("a", widest)]), shards=1)
    objects.commit("a", [{"id": number, "p0": number % 2, "p1": number, "p1996": 5} for number in range(5)])
    node = objects.node()
    first = node.order_by("p0", "-p1", "p2").limit(3).fetch()
    assert [row["id"] for row in (*first.rows, *first.next_page().rows)] == [4, 2, 0, 3, 1]
    assert [row["p1996"] for row in node.where(p0=1).fetch().rows] == [5, 5] and node.get(4)["p1"] == 4


@pytest.mark.parametrize("overruled", [0, 399])  # with the latter, all rows of most parts that are read
def test_pages_of_a_copy_whose_keys_are_out_of_order_end(objects_at, tmp_path, overruled):
    objects = objects_at(shards=1, rule=FullRule(None))
    objects.commit("a", [{"id": number, "name": "n"} for number in range(400)], "snapshot")
    objects.commit("a", [{"id": number, "name": "m"} for number in range(overruled)] or [{"id": 399, "name": "m"}])
    node = objects.node(cache=tmp_path / "mine")
    assert len(node.view().runs) == 2

    def keys():
        page = node.objects.limit(2).fetch()
        for _ in range(201):
            yield from (row["id"] for row in page.rows)
            page = page.next_page()
        assert not page.has_next, "the pages go round in circles"

    for file in (tmp_path / "mine").glob("*.db"):
        data = file.read_bytes().replace((2**63 + 305).to_bytes(8), (2**63 + 201).to_bytes(8))
        with file.open("r+b") as opened:
            opened.write(data)
    with pytest.raises(RetriableError, match=r"cannot be read.* not in order"):
        list(keys())
    node.refresh()
    assert list(keys()) == list(range(400))


def test_a_process_survives_a_copy_that_is_cut_after_it_was_read(objects, tmp_path):
    """A file that is mapped into memory would end the process by SIGBUS."""
    objects.commit("a", rows(3000))
    program = f"""
from pathlib import Path
from forebay.errors import RetriableError
from forebay.index import SearchNode
node = SearchNode({objects.location!r}, "O", cache={str(tmp_path / "mine")!r})
assert node.where("name > 'n'").count() == 3000
for file in Path({str(tmp_path / "mine")!r}).glob("*.db"):
    with file.open("r+b") as opened:
        opened.truncate(8192)
for _ in range(3):
    try:
        found = [node.get(number) for number in range(3000)]
    except RetriableError:
        node.refresh()
print(found[2999]["note"])
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (0, "note 2999\n"), done.stderr


def test_the_advice_for_a_damaged_store_mends_it(objects, tmp_path):
    objects.commit("a", rows(10))
    for segment in objects.index.newest_version("000001").segments:
        path = objects.index.store.local_path(segment.name)
        path.unlink()
        path.write_bytes(b"x" * segment.size)
    with pytest.raises(FatalError, match=r"is damaged[\s\S]*follow\(full=True\)"):
        objects.node()
    objects.follow(full=True)
    assert objects.node().count() == 10


def test_refreshes_of_several_threads_wait_for_one_another(objects):
    objects.commit("a", rows(50))
    node, problems = objects.node(), []

    def refresh():
        try:
            for _ in range(8):
                node.refresh()
                if node.count() != 50:
                    problems.append(node.count())
        except Exception as error:  # noqa: BLE001 - shown by the assertion
            problems.append(error)

    threads = [threading.Thread(target=refresh) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(6):
        objects.commit("a", [{"id": number, "name": "new"}])
    for thread in threads:
        thread.join()
    node.refresh()
    assert problems == []
    assert node.where(name="new").count() == 6


@pytest.mark.parametrize("text", ["1e999999", "NaN", "sNaN", "Infinity", "1e-999999"])
def test_numbers_that_no_key_and_no_property_has_are_refused(objects_at, text):
    objects = objects_at(NUMBERS)
    objects.commit("a", [{"id": decimal.Decimal("1.00"), "n": 3, "f": 1.5}])
    node, number = objects.node(), decimal.Decimal(text)
    with pytest.raises(ConfigurationError, match="is no key"):
        node.get(number)
    if not number.is_finite():
        with pytest.raises(ConfigurationError, match="cannot be compared"):
            node.where(n=number).count()
    else:
        assert node.where(n=number).count() == 0
    with pytest.raises(ConfigurationError, match="the property 'f' of type float cannot be compared"):
        node.where(f=10**400).count()
    for limit in ("5", 2.5, 10**30, 0):
        with pytest.raises(ConfigurationError, match="limit is"):
            node.objects.limit(limit)


@pytest.mark.soak
def test_long_conditions_are_answered_and_too_long_ones_refused(objects_at):
    objects = objects_at(NUMBERS)
    objects.commit("a", [{"id": number, "n": number} for number in range(100)])
    node = objects.node()
    assert node.where(n=[*range(90, 10_090)]).count() == 10
    assert node.where(n=[1, None]).count() == 1
    assert node.where("n IN (" + ", ".join(map(str, range(90, 1500))) + ")").count() == 10
    assert node.where(" OR ".join(f"n = {number}" for number in range(95, 1500))).count() == 5
    with pytest.raises(ConfigurationError, match=r"compared with 40,000 values[\s\S]*at most 10,000"):
        node.where(n=[*range(40_000)]).count()
    for text in ("(" * 2000 + "n = 1" + ")" * 2000, "NOT " * 3000 + "n = 1"):
        with pytest.raises(ConfigurationError):
            node.where(text).count()
    several = node.objects
    with pytest.raises(ConfigurationError, match="the query is too large") as caught:
        for _ in range(30):
            several = several.where(n=[*range(9_000)])
        several.count()
    assert isinstance(caught.value.__cause__, sqlite3.Error)


@pytest.mark.parametrize(
    ("ask", "refusal"),
    [
        (lambda node: node.where(" OR ".join(f"n > {n}" for n in range(1_001))),
         r"has 1,001 conditions[\s\S]*at most 1,000[\s\S]*IN"),
        (lambda node: node.where(" AND ".join(f"n > {n}" for n in range(600))).where(
            " AND ".join(f"n < {n}" for n in range(600))), "has 1,200 conditions"),
        (lambda node: node.where(" OR ".join(f"(n = {n} AND f > 0)" for n in range(600))), "has 1,200 conditions"),
        (lambda node: node.where(n=[*range(10_001)]), r"'n' is compared with 10,001 values[\s\S]*at most 10,000"),
    ],
)  # fmt: skip
def test_more_conditions_than_sqlite_plans_quickly_are_refused(objects_at, ask, refusal):
    objects = objects_at(NUMBERS)
    objects.commit("a", [{"id": 1, "n": 1}])
    asked = ask(objects.node())
    for answer in (asked.fetch, asked.count):
        with pytest.raises(ConfigurationError, match=refusal):
            answer()


def test_equalities_are_one_list_wherever_they_stand(objects_at):
    """Each alone would be a condition of its own, of which there may be 1,000."""
    objects = objects_at(NUMBERS)
    objects.commit("a", [{"id": number, "n": number, "f": number} for number in range(10)] + [{"id": 10, "n": None}])
    node, far = objects.node(), range(8, 2_000)
    either = " OR ".join(f"n = {number}" for number in far)
    neither = " AND ".join(f"n != {number}" for number in far)
    for text, count in {
        either: 2,
        f"n IN (1, 2) OR {either} OR f = 5": 5,
        f"NOT ({either})": 8,
        neither: 8,
        f"{neither} AND n NOT IN (1, 2) AND f != 5": 5,
        f"NOT ({neither})": 2,
        f"n = 1 AND ({either})": 0,
        f"n = 1 AND {neither}": 1,
    }.items():
        assert node.where(text).count() == count, text[:50]
    halves = [f"n NOT IN ({', '.join(map(str, range(start, start + 6_000)))})" for start in (8, 6_008)]
    assert node.where(halves[0]).where(halves[1]).count() == 8, "more than a list takes"
    each = node.objects
    for number in far:
        each = each.where(f"n <> {number}")
    assert each.count() == 8


def test_as_many_conditions_as_there_may_be_are_answered(objects_at):
    objects = objects_at(NUMBERS)
    objects.commit("a", [{"id": number, "n": number} for number in range(10)])
    node = objects.node()
    for operator in ("AND", "OR"):
        assert node.where(f" {operator} ".join(f"n > {number % 5}" for number in range(1_000))).count() > 0


def test_more_words_than_the_index_finds_quickly_are_refused(objects):
    objects.commit("a", [{"id": 1, "note": " ".join(f"w{number}" for number in range(1_500)) + "配" * 100}])
    node = objects.node()
    words = [f"w{number}" for number in range(1_001)]
    assert node.search(" ".join(words[:1_000])).count() == 1
    assert node.search(" ".join(words[:1_000]), phrase=True).count() == 1
    assert node.search("配" * 100).count() == 1 and node.search("配" * 20_000).count() == 0
    for asked in (
        node.search(" ".join(words)),
        node.search(" ".join(words), phrase=True),
        node.search(" ".join(words[:600])).search(" ".join(words[600:])),
    ):
        with pytest.raises(ConfigurationError, match=r"has 1,001 words[\s\S]*at most 1,000 words"):
            asked.count()
    for asked in (node.search("配" * 20_001), node.search("配" * 12_000).search("配" * 8_001)):
        with pytest.raises(ConfigurationError, match=r"of 20,001 characters[\s\S]*20,000 characters of scripts"):
            asked.fetch()


def test_a_number_is_never_rounded(objects_at):
    wide = ObjectType("O", {"id": "decimal(38,6)"}, [Datasource("a", {"w": Property("decimal(38,18)", filter=True)})])
    objects = objects_at(wide)
    most, key = decimal.Decimal("9" * 20 + "." + "9" * 18), decimal.Decimal("9" * 32 + "." + "9" * 6)
    objects.commit(
        "a",
        [
            {"id": key, "w": most},
            {"id": key.copy_negate(), "w": most.copy_negate()},
            {"id": decimal.Decimal(1), "w": None},
        ],
    )
    node = objects.node()
    assert (node.get(key)["w"], node.where(w=most).count()) == (most, 1)
    assert node.get(key.copy_negate())["w"] == most.copy_negate()
    node.edit(decimal.Decimal(1), w=most)
    assert node.where(w=most).count() == 2
    for zeros in (30, 110, 1100):  # more digits than any context has
        nearly = decimal.Decimal("1." + "0" * zeros + "1")
        with pytest.raises(ConfigurationError, match="is no key"):
            node.get(nearly)
        with pytest.raises(ConfigurationError, match="the property 'w' of type"):
            node.edit(decimal.Decimal(1), w=nearly)
        node.edit(decimal.Decimal(1), w=decimal.Decimal(1))
        assert node.where(w=nearly).count() == node.where(f"w = {nearly}").count() == 0
        assert node.where(f"w < {nearly} AND w >= 1").count() == 1


@pytest.mark.parametrize(
    "moment",
    [
        datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-12))),
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=12))),
    ],
)
def test_a_time_that_no_year_of_utc_has_is_refused(objects_at, moment):
    objects = objects_at(ObjectType("O", {"id": "timestamp"}, [Datasource("a", {"u": Property("timestamp")})]))
    objects.commit("a", [{"id": datetime(2024, 1, 1, tzinfo=UTC)}])
    node = objects.node()
    for ask in (node.get, node.delete, lambda key: node.edit(key, u=None), lambda key: explain(objects.index, key)):
        with pytest.raises(ConfigurationError, match="is no key: the key is"):
            ask(moment)
    with pytest.raises(ConfigurationError, match="cannot be compared"):
        node.where(id=moment).count()


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda node: node.edit_many({1: {"name": "x"}}), r"is no pair[\s\S]*edits\.items\(\)"),
        (lambda node: node.edit_many(None), "None is no pair"),
        (lambda node: node.edit_many([1]), "1 is no pair"),
        (lambda node: node.edit_many([(1, "name")]), r"\(1, 'name'\) is no pair"),
        (lambda node: node.edit_many([(1, {"name": "x"}, 3)]), "is no pair"),
        (lambda node: node.where(5), r"5 is no text[\s\S]*where\(status='open'\)"),
        (lambda node: node.search(None), "None is no text"),
        (lambda node: node.order_by(None), "None is no text"),
        (lambda node: list(node.where(name="x")), r"has no rows before it is asked[\s\S]*fetch\(\)"),
    ],
)
def test_what_is_called_in_another_way_says_what_to_write(objects, ask, message):
    objects.commit("a", rows(3))
    node = objects.node()
    with pytest.raises(ConfigurationError, match=message):
        ask(node)
    assert node.version.offset == 0
    assert len(node.limit(2).fetch().rows) == 2


def test_words_that_the_index_cannot_tell_apart_are_not_searched(objects):
    word = "b" * 32_767
    objects.commit(
        "a", [{"id": 1, "note": f"{word} x"}, {"id": 2, "note": f"{word}cd"}, {"id": 3, "note": "配" * 12_000}]
    )
    node = objects.node()
    assert [row["id"] for row in node.search(word).fetch().rows] == [1]
    assert node.search("配" * 12_000).count() == 1 and node.search("配" * 12_001).count() == 0
    for longer in (f"{word}c", f"{word}ce", "é" * 16_384):
        with pytest.raises(ConfigurationError, match="has more than 32,767 bytes"):
            node.search(f"x {longer}").count()


def test_a_node_that_is_closed_does_not_use_its_cache_again(objects, tmp_path):
    objects.commit("a", rows(3))
    first = objects.node(cache=tmp_path / "mine")
    first.close()
    second = objects.node(cache=tmp_path / "mine")
    for ask in (first.refresh, first.count, lambda: first.edit(1, name="x"), lambda: first.get(1)):
        with pytest.raises(ConfigurationError, match="is closed"):
            ask()
    assert second.refresh() and second.count() == 3


def test_a_wrong_name_does_not_claim_the_cache(objects, tmp_path):
    objects.commit("a", rows(3))
    for name in ("o", "Nothing"):
        with pytest.raises(ConfigurationError, match=f"nothing of '{name}' is below"):
            SearchNode(objects.location, name, cache=tmp_path / "mine")
    with SearchNode(objects.location, "O", cache=tmp_path / "mine") as node:
        assert node.count() == 3


def test_an_argument_of_another_type_is_refused_by_name(objects):
    objects.commit("a", rows(3))
    for cache in (None, "", 7, "a\0b"):
        with pytest.raises(ConfigurationError, match=re.escape(f"cache is {cache!r}")):
            SearchNode(objects.location, "O", cache=cache)
    with pytest.raises(ConfigurationError, match="a name in storage is 1"):
        SearchNode(objects.location, "O", cache="unused", storage={1: "x"})  # type: ignore[dict-item]
    node = objects.node()
    for offset in ("1", None, 1.0):
        for ask in (node.refresh, lambda at_least: node.get(1, at_least=at_least)):
            with pytest.raises(ConfigurationError, match=f"at_least is {offset!r}"):
                ask(at_least=offset)
