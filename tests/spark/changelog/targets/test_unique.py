# SPDX-License-Identifier: Apache-2.0
"""Values of unique columns beside the key that rows of one micro-batch hand over, shift and exchange."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, StringType, StructField

from forebay.errors import ConfigurationError, DataError

FIELDS = (StructField("id", IntegerType()), StructField("v", StringType()))


@pytest.fixture
def unique(table):
    """A table whose column `v` is unique, and a function that applies {id: value, or None for a delete}."""

    def apply(number, rows, **more):
        columns = {"id": pa.array(rows, pa.int32()), "v": pa.array([*rows.values()])}
        deleted = [value is None for value in rows.values()]
        return table.write(number, columns, fields=FIELDS, deleted=deleted, **more)

    table.apply = apply
    return table


TABLES = {
    "constraint": ["CREATE TABLE {t} (id int PRIMARY KEY, v text NOT NULL UNIQUE)"],
    "deferrable": ["CREATE TABLE {t} (id int PRIMARY KEY, v text UNIQUE DEFERRABLE)"],
    "expression": [
        "CREATE TABLE {t} (id int PRIMARY KEY, v text)",
        "CREATE UNIQUE INDEX ON {t} (lower(v || 'X'))",
        "CREATE UNIQUE INDEX ON {t} (v) WHERE length(v) > 1",
    ],
    "exclusion": ["CREATE TABLE {t} (id int PRIMARY KEY, v text, EXCLUDE (v WITH =))"],
    "deferrable key": ["CREATE TABLE {t} (id int PRIMARY KEY DEFERRABLE, v text NOT NULL UNIQUE)"],
    "referenced": [
        "CREATE TABLE {t} (id int PRIMARY KEY, v text NOT NULL UNIQUE)",
        "CREATE TABLE child_{n} (parent int REFERENCES {t} ON DELETE CASCADE)",
    ],
}


def create(table, kind):
    for statement in TABLES[kind]:
        table.sql(statement.replace("{n}", table.name))


def exchanges(before, changes):
    """Whether rows take values in a circle: none of them can be first."""
    owner = {value: key for key, value in before.items()}
    waits = {key: owner.get(value) for key, value in changes.items() if value is not None}
    for key in waits:
        seen, at = set(), key
        while at in waits and at not in seen:
            seen.add(at)
            following = waits[at]
            at = None if following == at or changes.get(following) is None else following
        if at in seen:
            return True
    return False


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 40))])
def test_unique_values_move_between_rows_as_in_a_plain_model(unique, kind, seed):
    """Deletes, new rows, hand-overs, shifts and circles; a circle that is refused changes nothing."""
    create(unique, kind)
    rng = random.Random(f"{kind} {seed}")
    ordered = seed % 2 == 1
    if ordered:
        unique.sql('ALTER TABLE {t} ADD COLUMN "__SEQUENCE" bigint')
    model: dict[int, str] = {}
    refused = applied = 0
    for number in range(12):
        after = dict(model)
        for key in rng.sample(range(12), rng.randint(0, 3)):
            after.pop(key, None)
        for key in rng.sample(range(12), rng.randint(0, 3)):
            after.setdefault(key, f"new {number} {key}")
        moved = rng.sample(sorted(after), min(len(after), rng.randint(0, 6)))
        values = [after[key] for key in moved]
        turned = values[1:] + values[:1] if rng.random() < 0.5 else rng.sample(values, len(values))
        after.update(zip(moved, turned, strict=True))
        if moved and rng.random() < 0.5:
            after[moved[-1]] = f"free {number}"  # a shift instead of a circle
        changes = {key: after.get(key) for key in {**model, **after} if model.get(key) != after.get(key)}
        changes = dict(rng.sample(sorted(changes.items()), len(changes)))
        if not changes:
            continue
        circle = kind == "referenced" and exchanges(model, changes)
        if circle:
            with pytest.raises(ConfigurationError, match="exchange values of"):
                unique.apply(number, changes, sequence=number if ordered else None)
            refused += 1
        else:
            assert unique.apply(number, changes, sequence=number if ordered else None)
            model = after
            applied += 1
        assert unique.rows("id, v") == sorted(model.items(), key=repr)
        if kind == "referenced":
            unique.sql(f"INSERT INTO child_{unique.name} SELECT id FROM {{t}}")
    assert applied and (seed or kind != "referenced" or refused)


def test_an_exchange_in_a_referenced_table_works_after_the_advice(unique):
    """Delete and insert would delete the rows that reference it."""
    create(unique, "referenced")
    unique.apply(0, {1: "a", 2: "b"})
    unique.sql(f"INSERT INTO child_{unique.name} VALUES (1), (2)")
    with pytest.raises(ConfigurationError, match="the foreign key .* references them") as refused:
        unique.apply(1, {1: "b", 2: "a"})
    assert f"{unique.name}_v_key" in refused.value.message
    unique.sql(str(refused.value.advice).partition(";")[0])
    assert unique.apply(1, {1: "b", 2: "a"})
    assert unique.rows() == [(1, "b"), (2, "a")]
    assert unique.sql(f"SELECT count(*) FROM child_{unique.name}") == [(2,)]


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ("ALTER TABLE {t} ADD COLUMN made timestamptz DEFAULT now()", "do not have their column made"),
        (
            (
                "CREATE TRIGGER audit BEFORE UPDATE ON {t} FOR EACH ROW "
                "EXECUTE FUNCTION suppress_redundant_updates_trigger()"
            ),
            "the trigger audit would run",
        ),
    ],
)
def test_rows_that_would_lose_something_are_not_deleted_and_inserted_again(unique, extra, reason):
    unique.sql("CREATE TABLE {t} (id int PRIMARY KEY, v text)")
    unique.sql("CREATE UNIQUE INDEX one_v_{n} ON {t} (v)".replace("{n}", unique.name))
    unique.sql(extra)
    unique.apply(0, {1: "a", 2: "b"})
    assert unique.apply(1, {2: "a", 1: "c"})
    with pytest.raises(ConfigurationError, match=reason) as refused:
        unique.apply(2, {1: "a", 2: "c"})
    assert str(refused.value.advice).startswith(f'DROP INDEX "public"."one_v_{unique.name}"')
    assert unique.rows("id, v") == [(1, "c"), (2, "a")]


def test_two_rows_with_one_value_are_an_error_that_names_the_constraint(unique):
    create(unique, "constraint")
    unique.apply(0, {1: "a", 2: "b"})
    with pytest.raises(DataError, match=rf'"{unique.name}_v_key" .Key \(v\)=\(a\) already exists') as failed:
        unique.apply(1, {2: "a"})
    assert "drop this constraint" in failed.value.advice
    assert unique.rows() == [(1, "a"), (2, "b")]


def test_an_old_change_does_not_remove_a_row_while_others_exchange_values(unique):
    create(unique, "constraint")
    unique.sql('ALTER TABLE {t} ADD COLUMN "__SEQUENCE" bigint')
    unique.apply(0, {1: "a", 2: "b"}, sequence=5)
    unique.sql('UPDATE {t} SET "__SEQUENCE" = 9 WHERE id = 1')
    unique.apply(1, {1: "x", 2: "c", 3: "b"}, sequence=7)
    assert unique.rows("id, v") == [(1, "a"), (2, "c"), (3, "b")]


@pytest.mark.parametrize("key", ["", "DEFERRABLE"])
def test_current_versions_exchange_values_of_a_partial_unique_index(unique, key):
    columns = 'id int, v text, "__START_AT" bigint, "__END_AT" bigint'
    unique.sql(f'CREATE TABLE {{t}} ({columns}, PRIMARY KEY (id, "__START_AT") {key})')
    unique.sql('CREATE UNIQUE INDEX ON {t} (v) WHERE "__END_AT" IS NULL')
    for number, rows in enumerate([{1: "a", 2: "b", 3: "c"}, {1: "b", 2: "a", 3: None}, {4: "a", 2: None}]):
        assert unique.apply(number, rows, sequence=number, history=True)
    assert unique.rows() == [
        *((1, "a", 0, 1), (1, "b", 1, None), (2, "a", 1, 2), (2, "b", 0, 1), (3, "c", 0, 1), (4, "a", 2, None)),
    ]
    with pytest.raises(DataError, match="duplicate key value violates unique constraint"):
        unique.apply(3, {5: "a"}, sequence=3, history=True)
