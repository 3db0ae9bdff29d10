# SPDX-License-Identifier: Apache-2.0
"""Changes that arrive in a later micro-batch than newer ones, and histories (SCD type 2)."""

from __future__ import annotations

import random

import pytest

from forebay.errors import ConfigurationError, DataError

SCHEMA = "id int, v string, gone boolean, seq long"
OPTIONS = {"keys": "id", "sequence_by": "seq", "apply_as_deletes": "gone", "except_column_list": ["seq", "gone"]}


def apply(spark, table, batches, **more):
    for number, rows in enumerate(batches):
        assert table.target.apply(spark.createDataFrame(rows, SCHEMA), number, "q", **OPTIONS, **more)


def test_an_older_change_that_arrives_later_changes_nothing(spark, table):
    """C4: an older row, an older delete, and a row that was deleted since."""
    apply(
        spark,
        table,
        [
            [(1, "new", None, 9), (2, "b", None, 9), (3, None, True, 9)],
            [(1, "old", None, 8), (2, None, True, 8), (3, "dead", None, 8)],
            [(3, "alive", None, 10)],
        ],
    )
    assert table.rows('id, v, "__SEQUENCE"') == [(1, "new", 9), (2, "b", 9), (3, "alive", 10)]


@pytest.mark.soak
def test_a_row_wins_over_a_retraction_at_its_sequence(spark, table):
    """Both halves of an update have one sequence, and may come in two micro-batches in either order."""
    schema = "id int, v string, _change_type string, seq long"
    batches = [
        [(1, "a", "insert", 1), (2, "a", "insert", 1)],
        [(1, "a", "update_preimage", 2), (2, "b", "update_postimage", 2)],
        [(1, "b", "update_postimage", 2), (2, "a", "update_preimage", 2)],
    ]
    for number, rows in enumerate(batches):
        df = spark.createDataFrame(rows, schema)
        table.target.apply(df, number, "q", keys="id", sequence_by="seq", except_column_list=["seq"])
    assert table.rows("id, v") == [(1, "b"), (2, "b")]


@pytest.mark.soak
def test_sequences_of_texts_compare_by_bytes(spark, table):
    """Spark's order, whatever the language of the database."""
    for number, (text, sequence) in enumerate([("first", "B"), ("second", "a"), ("older", "C")]):
        df = spark.createDataFrame([(1, text, sequence)], "id int, v string, s string")
        table.target.apply(df, number, "q", keys="id", sequence_by="s")
    assert table.rows("v") == [("second",)]
    assert table.sql(
        "SELECT c.collname FROM pg_attribute a JOIN pg_collation c ON c.oid = a.attcollation "
        "WHERE attrelid = '{t}'::regclass AND attname = '__SEQUENCE'"
    ) == [("C",)]


def test_a_null_sequence_is_an_error(spark, table):
    with pytest.raises(DataError, match='sequence_by is NULL for the key {"id":1}'):
        apply(spark, table, [[(1, "a", None, None)]])
    assert table.rows() == []


@pytest.mark.parametrize(
    "sequence",
    ["cast(seq AS string) COLLATE UTF8_LCASE", "make_ym_interval(1, 1)", "make_interval(1)", "array(seq)"],
)
def test_a_sequence_that_cannot_be_compared_is_refused(spark, table, sequence):
    """By a collation the order within a micro-batch would be another one than that of two micro-batches."""
    options = OPTIONS | {"sequence_by": sequence}
    with pytest.raises(ConfigurationError, match="sequence_by is .*, which targets cannot compare"):
        table.target.apply(spark.createDataFrame([(1, "a", None, 1)], SCHEMA), 0, "q", **options)


@pytest.mark.soak
def test_versions_in_a_table_with_a_column_of_json(spark, table):
    """It has no equality, and no union with jsonb."""
    table.sql(
        'CREATE TABLE {t} (id int, v json, "__START_AT" bigint, "__END_AT" bigint, PRIMARY KEY (id, "__START_AT"))'
    )
    for number, (value, sequence) in enumerate([([1], 1), ([2], 3), ([9], 2)]):
        df = spark.createDataFrame([(1, value, sequence)], "id int, v array<int>, seq long")
        options = {"keys": "id", "sequence_by": "seq", "except_column_list": ["seq"], "stored_as_scd_type": 2}
        table.target.apply(df, number, "q", **options)
    assert table.rows() == [(1, [1], 1, 2), (1, [2], 3, None), (1, [9], 2, 3)]


@pytest.mark.soak
def test_versions_hold_from_one_change_to_the_next(spark, table):
    """SCD type 2, as `create_auto_cdc_flow` names its columns."""
    apply(
        spark,
        table,
        [
            [(1, "a", None, 1), (1, "b", None, 3), (2, "x", None, 1)],
            [(1, None, True, 5), (2, "y", None, 2)],
            [(1, "late", None, 2), (3, None, True, 7)],
            [(1, "again", None, 8), (3, "before", None, 6)],
        ],
        stored_as_scd_type=2,
    )
    assert table.rows('id, v, "__START_AT", "__END_AT"') == [
        (1, "a", 1, 2),
        (1, "again", 8, None),
        (1, "b", 3, 5),
        (1, "late", 2, 3),
        (2, "x", 1, 2),
        (2, "y", 2, None),
        (3, "before", 6, 7),
    ]


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(50))
@pytest.mark.parametrize("kind", [1, 2])
def test_any_order_and_any_cut_give_what_the_order_of_sequences_gives(spark, table, kind, seed):
    """P1, P2: for changes that a sequence orders. Sixty keys share the micro-batches."""
    rng = random.Random(seed)
    changes, versions = [], []
    for key in range(60):
        own = [(key, f"v{number}", rng.random() < 0.5, number) for number in range(rng.randint(1, 8))]
        changes += own
        for change, after in zip(own, [*own[1:], (None,) * 4], strict=True):
            if not change[2]:
                versions.append((key, change[1], change[3], after[3]))
    live = [row[:2] for row in versions if row[3] is None]
    rng.shuffle(changes)
    apply(spark, table, [changes[cut::3] for cut in range(3)], stored_as_scd_type=kind)
    found = table.rows("id, v") if kind == 1 else table.rows('id, v, "__START_AT", "__END_AT"')
    assert found == sorted(live if kind == 1 else versions, key=repr)
