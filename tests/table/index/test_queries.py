# SPDX-License-Identifier: Apache-2.0
"""Filters, text, order and pages: as Spark's `where` and as the same question over Python's values."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import ConfigurationError
from forebay.formats.values.dates import session_zone
from forebay.index import Datasource, ObjectType, OpenSearchIndex, OpenSearchObjects, Property
from forebay.table.index.conditions import parsed_condition
from forebay.table.index.opensearch_documents import Documents
from forebay.table.index.opensearch_objects import query_of

TYPES = {
    "i": "int",
    "l": "bigint",
    "d": "double",
    "f": "float",
    "n": "decimal(6,2)",
    "w": "decimal(38,18)",
    "s": "string",
    "b": "boolean",
    "x": "binary",
    "t": "date",
    "u": "timestamp",
    "v": "timestamp_ntz",
}
TYPED = ObjectType(
    "T",
    {"id": "bigint"},
    [Datasource("a", {name: Property(kind, filter=True) for name, kind in TYPES.items()})],
)
WIDE = Decimal("12345678901234567890.123456789012345678")
VALUES: dict[str, list[Any]] = {
    "i": [None, 0, 5, -(2**31), 2**31 - 1],
    "l": [None, 0, 5, -(2**63), 2**63 - 1],
    "d": [None, 0.0, -0.0, 1.5, math.nan, math.inf, -math.inf, 1e300, 5.0],
    "f": [None, 0.0, 1.5, math.nan, math.inf, 5.0],
    "n": [None, Decimal("0.00"), Decimal("1.50"), Decimal("-9999.99"), Decimal("5.00")],
    "w": [None, Decimal(0), WIDE, WIDE + Decimal("1e-18"), -WIDE, Decimal("1.5")],
    "s": [None, "", "a", "b", "ab", "a\0b", "ключ-🗝", "é", "Z", "𐀀", "\uffee"],
    "b": [None, True, False],
    "x": [None, b"", b"a", b"a\0", b"\xff"],
    "t": [None, date(1, 1, 1), date(1970, 1, 1), date(2024, 2, 29)],
    "u": [None, datetime(1900, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, 12, 0, 0, 1, tzinfo=UTC)],
    "v": [None, datetime(1900, 1, 1), datetime(2024, 1, 1, 12, 0, 0, 1)],
}


def order(value):
    """A value that compares as Spark's values do: NaN after all numbers and equal to itself."""
    return (1, 0.0) if isinstance(value, float) and math.isnan(value) else (0, value)


def compared(value, operator, literal):
    if value is None:
        return None
    one, other = order(value), order(literal)
    return {"=": one == other, "<": one < other, "<=": one <= other, ">": one > other, ">=": one >= other}[operator]


def negated(outcome):
    return None if outcome is None else not outcome


def both(operator, one, other):
    deciding = operator == "OR"
    if deciding in (one, other):
        return deciding
    return None if None in (one, other) else not deciding


LITERALS: dict[str, list[tuple[str, Any]]] = {
    "i": [
        ("0", Decimal(0)),
        ("1.5", Decimal("1.5")),
        ("99999999999999999999", Decimal(99999999999999999999)),
        ("-3", Decimal(-3)),
    ],
    "l": [
        ("5", Decimal(5)),
        ("-0.5", Decimal("-0.5")),
        ("9223372036854775807", Decimal(2**63 - 1)),
        ("-9223372036854775809", Decimal(-(2**63) - 1)),
    ],
    "d": [("0", 0.0), ("1.5", 1.5), ("1e300", 1e300), ("-1", -1.0)],
    "f": [("1.5", 1.5), ("5", 5.0)],
    "n": [
        ("1.5", Decimal("1.5")),
        ("1.505", Decimal("1.505")),
        ("1.495", Decimal("1.495")),
        ("10000", Decimal(10000)),
        ("-10000", Decimal(-10000)),
    ],
    "w": [
        (str(WIDE), WIDE),
        (str(WIDE) + "5", Decimal(str(WIDE) + "5")),
        ("1.5", Decimal("1.5")),
        ("1" + "0" * 39, Decimal(10) ** 39),
        ("-1" + "0" * 39, -(Decimal(10) ** 39)),
    ],
    "s": [("''", ""), ("'a'", "a"), ("'é'", "é"), ("'O\\'x'", "O'x"), ("'ключ-🗝'", "ключ-🗝"), ("'\uffee'", "\uffee")],
    "b": [("TRUE", True), ("FALSE", False)],
    "t": [("DATE '1970-01-01'", date(1970, 1, 1)), ("'2024-02-29'", date(2024, 2, 29))],
    "u": [("TIMESTAMP '2024-01-01 12:00:00.000001'", datetime(2024, 1, 1, 12, 0, 0, 1, tzinfo=UTC))],
    "v": [("'2024-01-01 12:00:00'", datetime(2024, 1, 1, 12))],
}


@st.composite
def comparisons(draw):
    """A comparison as SQL, and as a function of a row."""
    name = draw(st.sampled_from(sorted(LITERALS)))
    if draw(st.integers(0, 5)) == 0:
        return f"{name} IS NULL", lambda row: row[name] is None
    text, literal = draw(st.sampled_from(LITERALS[name]))
    operator = draw(st.sampled_from(["=", "<", "<=", ">", ">="]))
    if draw(st.integers(0, 3)) == 0:
        other, bound = draw(st.sampled_from(LITERALS[name]))
        return f"{name} BETWEEN {text} AND {other}", lambda row: both(
            "AND", compared(row[name], ">=", literal), compared(row[name], "<=", bound)
        )
    return f"{name} {operator} {text}", lambda row: compared(row[name], operator, literal)


def expressions():
    """Expressions of comparisons, AND, OR and NOT."""

    def larger(inner):
        two = st.tuples(st.sampled_from(["AND", "OR"]), inner, inner).map(
            lambda found: (
                f"({found[1][0]}) {found[0]} ({found[2][0]})",
                lambda row: both(found[0], found[1][1](row), found[2][1](row)),
            )
        )
        return st.one_of(two, inner.map(lambda found: (f"NOT ({found[0]})", lambda row: negated(found[1](row)))))

    return st.recursive(comparisons(), larger, max_leaves=4)


ENGINES = ["node", pytest.param("opensearch", marks=pytest.mark.soak)]
"""What answers: the same tests hold for a node and for OpenSearch."""

NAMES = itertools.count()


@contextmanager
def answering(engine, objects, request) -> Iterator[Any]:
    """What is asked about all that was committed."""
    if engine == "node":
        with objects.node() as node:
            yield node
        return
    where = {"hosts": request.getfixturevalue("opensearch").url, "name": f"q{next(NAMES)}"}
    settings = {"number_of_shards": 2, "number_of_replicas": 0}
    index = OpenSearchIndex(objects.location, objects.definition.name, settings=settings, **where)
    index.catch_up()
    assert index.verify().is_equal
    with OpenSearchObjects(object_type=objects.definition.name, **where) as found:
        yield found


@pytest.fixture(scope="module", params=ENGINES)
def typed(new_objects, request):
    """Values of all types; a node has them in two versions of segments."""
    rows = [
        {
            "id": number,
            **{name: values[(number * step) % len(values)] for step, (name, values) in enumerate(VALUES.items(), 1)},
        }
        for number in range(60)
    ]
    with tempfile.TemporaryDirectory() as directory:
        objects = new_objects(Path(directory) / "s", Path(directory) / "c", TYPED)
        objects.commit("a", [{**row, "s": "old"} for row in rows], "snapshot")
        objects.commit("a", rows[:20], "update")
        objects.commit("a", [{"id": 3}, {"id": 50}], "delete")
        with answering(request.param, objects, request) as node:
            kept = [{**row, "s": row["s"] if row["id"] < 20 else "old"} for row in rows if row["id"] not in (3, 50)]
            yield node, kept


@given(expression=expressions(), page=st.sampled_from([1, 7, 100]))
def test_a_filter_has_the_outcome_of_the_same_question_over_the_model(typed, expression, page):
    """P17: three-valued logic, exact decimals, NaN, and pages."""
    node, rows = typed
    text, holds = expression
    wanted = [row["id"] for row in rows if holds(row) is True]
    found, answer = [], node.where(text).limit(page).fetch()
    while answer.rows:
        found += [row["id"] for row in answer.rows]
        answer = answer.next_page()
    assert found == wanted
    assert node.where(text).count() == len(wanted)


def satisfies(query, fields):
    """Whether a document has what a query of OpenSearch asks for, as OpenSearch documents its queries."""
    ((name, inside),) = query.items()
    if name == "bool":
        assert inside.keys() <= {"filter", "must_not", "should"}
        return (
            all(satisfies(each, fields) for each in inside.get("filter", ()))
            and not any(satisfies(each, fields) for each in inside.get("must_not", ()))
            and any(satisfies(each, fields) for each in inside.get("should", [{"exists": {"field": "object.id"}}]))
        )
    if name in ("match_none", "exists"):
        return name == "exists" and inside["field"] in fields
    ((field, wanted),) = inside.items()
    value = fields.get(field)
    if name == "terms":
        return value in wanted
    assert name == "range"
    ranges = {"lt": "<", "lte": "<=", "gt": ">", "gte": ">="}
    return all(compared(value, ranges[each], bound) is True for each, bound in wanted.items())


class Fields:
    """The columns of the typed object type."""

    def column(self, name):
        return name, TYPED.columns[name]


@given(expression=expressions(), row=st.fixed_dictionaries({name: st.sampled_from(of) for name, of in VALUES.items()}))
def test_a_filter_for_opensearch_has_the_outcome_of_the_same_question_over_the_model(expression, row):
    text, holds = expression
    query = query_of(parsed_condition(text, Fields(), session_zone("UTC")), TYPED)
    columns = [kind.encode({"id": 1, **row}[name]) for name, kind in TYPED.columns.items()]
    document = Documents(TYPED).alive(b"1", columns)
    assert satisfies(query, {f"object.{name}": value for name, value in document["object"].items()}) is (
        holds(row) is True
    )
    assert Documents(TYPED).columns(document) == tuple(columns)


@given(
    names=st.lists(
        st.tuples(st.sampled_from(sorted(TYPES)), st.booleans()), min_size=1, max_size=3, unique_by=lambda one: one[0]
    ),
    page=st.sampled_from([3, 100]),
)
def test_pages_come_in_the_order_that_was_asked_for(typed, names, page):
    node, rows = typed
    for name, descending in reversed(names):
        rows = (
            sorted(
                sorted(rows, key=lambda row: row["id"]) if name == names[-1][0] else rows,
                key=lambda row: (row[name] is not None, order(row[name]) if row[name] is not None else ()),
                reverse=descending,
            )
            if not descending
            else _descending(sorted(rows, key=lambda row: row["id"]) if name == names[-1][0] else rows, name)
        )
    answer, found = node.order_by(*(f"-{name}" if down else name for name, down in names)).limit(page).fetch(), []
    while answer.rows:
        found += [row["id"] for row in answer.rows]
        answer = answer.next_page()
    assert found == [row["id"] for row in rows]


def _descending(rows, name):
    """Sort stably in descending order, NULL last."""
    ranked = sorted({order(row[name]) for row in rows if row[name] is not None})
    place = {value: -number for number, value in enumerate(ranked)}
    return sorted(
        rows, key=lambda row: (row[name] is None, place.get(order(row[name]), 0) if row[name] is not None else 0)
    )


def test_values_come_back_as_they_were(typed):
    node, rows = typed
    for row in rows:
        found = node.get(row["id"])
        for name, value in row.items():
            if isinstance(value, float) and math.isnan(value):
                assert math.isnan(found[name])
            else:
                assert found[name] == value
                assert type(found[name]) is type(value)


def test_keywords_are_equality_lists_and_null(typed):
    node, rows = typed

    def count(**equal):
        return node.where(**equal).limit(1000).count()

    assert count(s=None) == sum(row["s"] is None for row in rows)
    assert count(n=Decimal("1.5")) == sum(row["n"] == Decimal("1.5") for row in rows)
    assert count(d=[1.5, math.nan]) == sum(
        row["d"] == 1.5 or row["d"] != row["d"] for row in rows if row["d"] is not None
    )
    assert count(s=[]) == 0
    assert count(i=[5, None]) == sum(row["i"] in (5, None) for row in rows)
    assert count(i=[None]) == count(i=None) > 0
    assert count(w=WIDE) == sum(row["w"] == WIDE for row in rows)
    assert node.where("NOT (i IN (5))", s="old").count() == sum(
        row["s"] == "old" and row["i"] not in (None, 5) for row in rows
    )
    for wrong in ({"n": 1.5}, {"s": 5}, {"i": "5"}, {"t": datetime(2024, 1, 1)}, {"u": datetime(2024, 1, 1)}):
        with pytest.raises(ConfigurationError, match="cannot be compared with"):
            count(**wrong)


def test_what_has_no_index_is_refused(objects):
    objects.commit("a", [{"id": 1, "name": "x", "note": "y"}])
    node = objects.node()
    with pytest.raises(
        ConfigurationError, match=r"'note' of 'O' has no index[\s\S]*filter=True, or give one of id, name"
    ):
        node.where(note="y").fetch()
    with pytest.raises(ConfigurationError, match=r"has no property 'nothing' in version 1[\s\S]*order_by"):
        node.order_by("-nothing").fetch()
    with pytest.raises(ConfigurationError, match=r"cannot be parsed[\s\S]*look at the rows of the pages"):
        node.where("name = 'x'; DROP TABLE o").count()
    with pytest.raises(ConfigurationError, match="limit is 0"):
        node.where(name="x").limit(0)
    assert node.where("id > 0 AND name = 'x'").count() == 1


NOTES = [
    "東京都の配送が遅延しています",
    "ｶﾀｶﾅ 検索",
    "Straße naïve Tokyo遅延",
    "京都の送配",
    "x_y don't stop",
    "late parcel",
    "parcel, late",
    None,
    "",
    "हिन्दी שָׁלוֹם",
    "दिन हो नि",
    "மகா می\u200cخواهم क\u094d\u200dष",
]


@pytest.fixture(params=ENGINES)
def texts(objects, request):
    objects.commit("a", [{"id": number, "note": note} for number, note in enumerate(NOTES)])
    with answering(request.param, objects, request) as found:
        yield found


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("配送", [0]),
        ("遅延", [0, 2]),
        ("東京都", [0]),
        ("東", [0]),
        ("都", [0, 3]),
        ("京配", []),
        ("配送 遅延", [0]),
        ("カタカナ", [1]),
        ("strasse", [2]),
        ("STRASSE tokyo", [2]),
        ("NAÏVE", [2]),
        ("y", [4]),
        ("late", [5, 6]),
        ("parcel LATE", [5, 6]),
        ("lat", []),
        ("हिन्दी", [9]),
        ("दिन हो नि", [10]),
        ("שָׁלוֹם", [9]),
        ("மக", []),
        ("மகா", [11]),
        ("می\u200cخواهم", [11]),
        ("خواهم", []),
        ("क्ष", [11]),
        ("", []),
        ('" * ^ - :', []),
    ],
)
def test_words_are_found(texts, query, found):
    assert [row["id"] for row in texts.search(query).fetch().rows] == found


def test_a_phrase_is_in_order(texts):
    assert [row["id"] for row in texts.search("late parcel", phrase=True).fetch().rows] == [5]
    assert [row["id"] for row in texts.search("Tokyo 遅延", phrase=True).fetch().rows] == [2]
    assert [row["id"] for row in texts.search("配送が", phrase=True).fetch().rows] == [0]


@pytest.mark.parametrize("engine", ENGINES)
def test_text_and_filter_and_order_in_one_query(objects, engine, request):
    for number in range(5):
        objects.commit("a", [{"id": number, "name": "ab"[number % 2], "note": f"late {number}"}])
    objects.commit("a", [{"id": 4, "name": "a", "note": "gone"}])
    with answering(engine, objects, request) as node:
        page = node.where(name="a").search("late").order_by("-name").limit(10).fetch()
        assert [row["id"] for row in page.rows] == [0, 2]


@given(query=st.text(st.sampled_from('ab"*^-:(){}+\\/ ANDORNTE\x00配送'), max_size=12))
def test_query_text_is_never_syntax(typed_texts, query):
    """P18: any text is an answer, never an error, and has words alone."""
    node, texts = typed_texts
    found = {row["id"] for row in node.search(query).limit(100).fetch().rows}
    words = "".join(char if char.isalnum() else " " for char in query.casefold()).split()
    if all(word.isascii() for word in words):
        wanted = {key for key, text in texts.items() if words and set(words) <= set(text.casefold().split())}
        assert found == wanted


@pytest.fixture(scope="module", params=ENGINES)
def typed_texts(new_objects, request):
    texts = dict(enumerate(["a b", "AND OR", "a AND b", "not near", "ab ba", "配送 a"]))
    with tempfile.TemporaryDirectory() as directory:
        objects = new_objects(Path(directory) / "s", Path(directory) / "c")
        objects.commit("a", [{"id": key, "note": text} for key, text in texts.items()])
        with answering(request.param, objects, request) as node:
            yield node, texts


@pytest.mark.parametrize("engine", ENGINES)
def test_a_text_of_a_megabyte_is_found_and_returned_whole(objects, engine, request):
    text = " ".join(f"word{number}" for number in range(110_000)) + " 最後の言葉"
    objects.commit("a", [{"id": 1, "note": text}])
    assert len(text) > 1 << 20
    with answering(engine, objects, request) as node:
        assert node.search("word109999 言葉").fetch().rows[0]["note"] == text


NESTED = ObjectType(
    "N",
    {"region": "string", "number": "decimal(10,2)"},
    [
        Datasource(
            "a",
            {
                "list": Property("array<int>"),
                "record": Property("struct<x:int,`y z`:array<struct<d:date>>>"),
                "table": Property("map<string,decimal(5,2)>"),
                "select": Property("string", filter=True),
                'ro"wid`': Property("double", filter=True),
                "a.b %": Property("string", filter=True),
                "a": Property("bigint", filter=True),
            },
        )
    ],
)


@pytest.mark.parametrize("engine", ENGINES)
def test_nested_values_with_nulls_and_odd_names(objects_at, engine, request):
    objects = objects_at(NESTED)
    rows = [
        {
            "region": "a",
            "number": Decimal("1.00"),
            "list": [1, None],
            "record": {"x": None, "y z": [{"d": date(2024, 1, 1)}, None]},
        },
        {
            "region": "ab",
            "number": Decimal("1.5"),
            "list": [],
            "record": {"x": 1, "y z": None},
            "table": {"k": Decimal("1.50"), "l": None},
        },
        {"region": "a\0", "number": Decimal(-3), "select": "from", 'ro"wid`': math.nan, "a.b %": "x", "a": 1},
    ]
    objects.commit("a", rows)
    with answering(engine, objects, request) as node:
        empty = dict.fromkeys([*NESTED.keys, *NESTED.properties])
        for row in rows:
            found = node.get((row["region"], row["number"]))
            if row["region"] == "a\0":
                assert math.isnan(found.pop('ro"wid`'))
                row.pop('ro"wid`')
                assert found == {**{name: None for name in empty if name != 'ro"wid`'}, **row}
            else:
                assert found == {**empty, **row}
        assert [row["region"] for row in node.objects.fetch().rows] == ["a", "a\0", "ab"]
        assert node.where(select="from").count() == node.where("`a.b %` = 'x' AND a = 1").count() == 1
    objects.commit("a", [{**rows[1], "list": [None]}])
    assert objects.index.log.head().counts["updated"] == 1
    objects.commit("a", [{**rows[1], "list": [None]}], "update")
    assert objects.index.log.head().counts["updated"] == 0
