# SPDX-License-Identifier: Apache-2.0
"""Definitions: refused before any access to the store, and the same after a round trip."""

from __future__ import annotations

import pytest

from forebay.errors import ConfigurationError
from forebay.index import Datasource, ObjectType, Property
from forebay.table.index.types import parse_type

TEXT = Property("string")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: ObjectType("O", "id", [Datasource("a", {"x": TEXT}), Datasource("b", {"X": TEXT})]),
            "the property 'X' comes from the datasources 'a' and 'b'",
        ),
        (lambda: ObjectType("O", "id", [Datasource("a", {"id": TEXT})]), "'id' is a key of 'O', and a property of"),
        (lambda: ObjectType("O", "id", []), "has no datasource"),
        (lambda: ObjectType("O", [], [Datasource("a")]), "has no key"),
        (lambda: ObjectType("O", "id", Datasource("a")), "are Datasource, and no list of Datasource"),
        (lambda: ObjectType("O", "id", [Datasource("a", ["x"])]), "are no mapping of names to Property"),
        (
            lambda: ObjectType("O", "id", [Datasource("a", {"x": "string"})]),  # type: ignore[dict-item]
            "are no mapping of names to Property",
        ),
        (lambda: ObjectType("O", "id", [Datasource("a", key="number")]), "the key of the datasource 'a' is 'number'"),
        (lambda: ObjectType("O", "id", [Datasource("a"), Datasource("A")]), "two datasources have the name"),
        (lambda: ObjectType("../x", "id", [Datasource("a")]), "'../x' of the object type cannot be used"),
        (lambda: ObjectType("O", "id", [Datasource("a/b")]), "'a/b' of the datasource cannot be used"),
        (lambda: ObjectType("O", "id", [Datasource("a", key={"x": "y"})]), "maps 'x', which is no key of 'O'"),
        (lambda: ObjectType("O", {"id": "double"}, [Datasource("a")]), "the key 'id' cannot have the type double"),
        (lambda: ObjectType("O", {"id": "decimal(20,7)"}, [Datasource("a")]), r"cannot have the type decimal\(20,7\)"),
        (
            lambda: ObjectType("O", "id", [Datasource("a", {"x": Property("strng")})]),
            "the type 'strng' of the property 'x'",
        ),
        (lambda: ObjectType("O", {"id": "lng"}, [Datasource("a")]), "the type 'lng' of the key 'id' cannot be used"),
        (
            lambda: ObjectType("O", "id", [Datasource("a", {"x": Property("variant")})]),
            "the type 'variant' of the property",
        ),
        (lambda: ObjectType("O", "id", [Datasource("a", {"x": Property("int", text=True)})]), "words of strings alone"),
        (
            lambda: ObjectType("O", "id", [Datasource("a", {"x": Property("array<int>", filter=True)})]),
            "which has no order to filter by",
        ),
        (lambda: ObjectType("O", "id", [Datasource("a", conflict="most_recent")]), "needs both conflict='most_recent'"),
        (lambda: ObjectType("O", "id", [Datasource("a", timestamp="t")]), "needs both conflict='most_recent'"),
        (lambda: ObjectType("O", "id", [Datasource("a", conflict="newest", timestamp="t")]), "unknown conflict rule"),
        (
            lambda: ObjectType(
                "O", "id", [Datasource("a", {"t": Property("date")}, conflict="most_recent", timestamp="t")]
            ),
            "the timestamp 't' of the datasource 'a' is date",
        ),
        (lambda: ObjectType(None, "id", [Datasource("a")]), "the name None of the object type"),  # type: ignore[arg-type]
        (lambda: ObjectType("O", 5, [Datasource("a")]), "5 cannot be used for key"),  # type: ignore[arg-type]
        (lambda: ObjectType("O", [5], [Datasource("a")]), "5 cannot be used for key"),  # type: ignore[list-item]
        (lambda: ObjectType("O", {"id": 5}, [Datasource("a")]), "5 cannot be used for key"),  # type: ignore[dict-item]
        (lambda: ObjectType("O", "", [Datasource("a")]), "'' cannot be used for key"),
        (lambda: ObjectType("O", "i\0", [Datasource("a")]), r"'i\\x00' cannot be used for key"),
        (lambda: ObjectType("O", ["id", "ID"], [Datasource("a")]), "two keys of 'O' have one name: id, ID"),
        (lambda: ObjectType("O", "id", [Datasource("a", {1: TEXT})]), "1 cannot be used for properties"),  # type: ignore[dict-item]
        (lambda: ObjectType("O", "id", [Datasource("a", {"\ud800": TEXT})]), "cannot be used for properties"),
        (lambda: ObjectType("O", "id", [Datasource("a", {"x": Property(5)})]), "5 cannot be used for type"),  # type: ignore[arg-type]
        (
            lambda: ObjectType("O", "id", [Datasource("a", {"x": Property("array<" * 5000 + "int" + ">" * 5000)})]),
            "the type 'array<array<",
        ),
        (lambda: ObjectType("O", "id", [Datasource("a", {"x": Property("struct<b:int,b:int>")})]), "cannot be used"),
        (lambda: ObjectType("O", "id", [Datasource("a", {"x": Property("int", column="a\0")})]), "for properties"),
        (
            lambda: ObjectType("O", "id", [Datasource("a", {"x": Property("int", column="c"), "C": TEXT})]),
            "columns of the datasource 'a' have one name: C, c",
        ),
        (lambda: ObjectType("O", "id", [Datasource("a", keep="customer")]), "is to keep 'customer'"),
        (lambda: ObjectType("O", "id", [Datasource("a", keep=[5])]), "5 cannot be used for keep"),  # type: ignore[list-item]
        (lambda: ObjectType("O", "id", [Datasource("a", deleted=5)]), "5 cannot be used for deleted"),  # type: ignore[arg-type]
        (lambda: ObjectType("O", "id", [Datasource("a", key={"id": 5})]), "5 cannot be used for key"),  # type: ignore[dict-item]
        (lambda: ObjectType("O", {"a", "b"}, [Datasource("a")]), "cannot be used for key"),  # type: ignore[arg-type]
        (
            lambda: ObjectType("O", "id", [Datasource("a", {"x": Property("int", filter="no")})]),  # type: ignore[arg-type]
            "filter of the property 'x' is 'no'",
        ),
        (
            lambda: ObjectType("O", "id", [Datasource("a", {"x": Property("int", text=1)})]),  # type: ignore[arg-type]
            "text of the property 'x' is 1",
        ),
        (
            lambda: ObjectType("O", "id", [Datasource("a", {f"p{number}": TEXT for number in range(1998)})]),
            "has 1,999 keys, properties and times",
        ),
        (
            lambda: ObjectType(
                "O", "id", [Datasource("a", {"x": Property("int", renamed_from="y"), "y": Property("int")})]
            ),
            "'x' was 'y', and so is or was another one",
        ),
        (
            lambda: ObjectType(
                "O",
                "id",
                [
                    Datasource("a", {"x": Property("int", renamed_from="z")}),
                    Datasource("b", {"y": Property("int", renamed_from=["w", "z"])}),
                ],
            ),
            "'y' was 'z', and so is or was another one",
        ),
    ],
)
def test_a_wrong_definition_is_refused(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_a_definition_survives_its_facts():
    given = ObjectType(
        "O",
        {"id": "bigint", "code": "string"},
        [
            Datasource(
                "a", {"x": Property("decimal(12, 2)", "amount", filter=True), "n": Property("STRING", text=True)}
            ),
            Datasource("b", {"y": TEXT}, {"id": "no"}, "gone", "most_recent", "at"),
        ],
    )
    again = ObjectType.from_facts(given.to_facts())
    assert again.fingerprint() == given.fingerprint()
    assert (again.filters, again.texts) == (("id", "code", "x"), ("n",))
    assert again.datasource("b").columns == ("at", "y")
    assert ObjectType("O", "id", [Datasource("a")]).with_key_types({"id": "bigint"}).keys == {"id": "bigint"}


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("decimal(12, 2)", "decimal(12,2)"),
        ("DECIMAL", "decimal(10,0)"),
        ("varchar(5)", "string"),
        ("long", "bigint"),
        ("array<struct<a: int, `b c`:map<string, array<date>>>>", "array<struct<a:int,`b c`:map<string,array<date>>>>"),
        ("timestamp_ltz", "timestamp"),
        ("struct<>", "struct<>"),
        ("struct<`(1)` int,`a``b`: int>", "struct<`(1)`:int,`a``b`:int>"),
    ],
)
def test_types_are_read_as_spark_writes_them(text, written):
    assert parse_type(text).text == written
    assert parse_type(written).text == written


def test_filter_and_text_of_a_fact_may_be_numbers():
    facts = ObjectType("O", "id", [Datasource("a", {"x": Property("string", filter=True)})]).to_facts()
    facts["datasources"][0]["properties"][0][3:5] = [1, 0]
    stored = ObjectType.from_facts(facts).properties["x"]
    assert (stored.filter, stored.text) == (True, False)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("decimal(5,2)", ": an int or a Decimal with at most 2 places, and 5 digits"),
        ("int", ": an int of 32 bits"),
        ("date", ": a datetime.date"),
        ("timestamp", ": a datetime, with a time zone"),
        ("timestamp_ntz", ": a datetime, without a time zone"),
        ("string", ""),
    ],
)
def test_a_type_says_which_values_of_python_have_it(text, hint):
    assert parse_type(text).hint == hint


def test_one_type_of_a_key_has_one_text():
    texts = ("bigint", "long", " BIGINT", "Long")
    definitions = [ObjectType("O", {"id": text}, [Datasource("a")]) for text in texts]
    assert {each.fingerprint() for each in definitions} == {definitions[0].fingerprint()}
    assert definitions[1].keys == {"id": "bigint"}


@pytest.mark.parametrize(
    "text",
    [
        *("", "int int", "decimal(39,0)", "decimal(2,3)", "array<>", "map<int>", "array<int", "int(3)", "a;b"),
        *("`int`", "int`(`", "struct<(1):int>", "struct<<:int>"),
        pytest.param(f"decimal({'9' * 5_000})", id="many digits"),
        pytest.param(f"int{' ' * 200_000}$", id="many blanks, which a quadratic search reads for minutes"),
    ],
)
def test_what_is_no_type_is_refused(text):
    with pytest.raises(ConfigurationError, match="cannot be used"):
        parse_type(text)
