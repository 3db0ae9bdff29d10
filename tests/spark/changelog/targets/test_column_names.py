# SPDX-License-Identifier: Apache-2.0
"""Columns with any name, in PostgreSQL and in archives; Delta has its own test."""

from __future__ import annotations

import random

import pytest

from forebay.errors import ConfigurationError
from forebay.spark.changelog.targets.archive import ArchiveTarget, read_archive

NAMES = [
    *("at", "until", "gone", "later", "e", "l", "v", "s", "t", "d", "k", "excluded", "task", "c0", "ctid2", "rank"),
    *(
        "select",
        "NULL",
        "user",
        "order by",
        'quo"te',
        '""',
        "a.b",
        "a`b",
        "``",
        "x'y",
        "$1",
        "%s",
        "%",
        "{t}",
        "\\",
        "-- x",
    ),
    *(
        "Été",
        "日本語",
        "🙂",
        "a b",
        " a",
        "a\nb",
        "a\tb",
        "UPPER",
        "x" * 63,
        "é" * 31,
        "[0]",
        "(x)",
        "a,b",
        ";",
        "#",
        "=1",
    ),
    *(
        "__forebay",
        "_start_at",
        "sequence",
        "value",
        "element",
        "key",
        "array",
        "col1",
        "_1",
        "1",
        "-",
        "*",
        "/",
        "\\x",
        "?",
    ),
]
OPTIONS = {"sequence_by": "_sequence", "apply_as_deletes": None}


def shuffled(seed):
    """Distinct names in Spark's sense, the key first."""
    rng = random.Random(seed)
    letters = [*NAMES, *("".join(rng.choices("aB.\"'`%\\ é_$0", k=rng.randint(1, 12))) for _ in range(8))]
    names = list({name.lower(): name for name in letters}.values())
    rng.shuffle(names)
    return names


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("kind", [1, 2])
@pytest.mark.soak
def test_any_names_of_columns_and_keys(spark, table, tmp_path, kind, seed):
    names = shuffled(seed)[: 16 if seed == 0 else None]  # all take 6 s
    wide = [*names, "_sequence", "_change_type"]

    def changes(*rows):
        filled = [
            (key, *(f"{value}{place}" for place in range(1, len(names))), at, what) for key, value, at, what in rows
        ]
        df = spark.createDataFrame(filled, [f"c{place}" for place in range(len(wide))])
        return df.toDF(*wide)

    first = changes((1, "a", 1, "insert"), (2, "b", 1, "insert"), (3, "c", 1, "insert"))
    second = changes((1, "d", 2, "update_postimage"), (2, "b", 2, "delete"))
    archive = ArchiveTarget(tmp_path / "archive")
    for target in (table.target, archive):
        for number, df in enumerate((first, second)):
            assert target.apply(df, number, "q", keys=names[0], sequence_by="_sequence", stored_as_scd_type=kind)
    live = {(1, "d1"), (3, "c1")}
    stored = read_archive(spark, tmp_path / "archive")
    assert stored.columns == names
    assert {tuple(row)[:2] for row in stored.collect()} == live
    assert table.sql(
        "SELECT array_agg(attname::text ORDER BY attnum) FROM pg_attribute WHERE attrelid = '{t}'::regclass "
        "AND attnum > 0 AND left(attname, 2) <> '__' OR attrelid = '{t}'::regclass AND attname = '__forebay'"
    ) == [(names,)]
    rows = table.rows()
    if kind == 2:
        assert sorted((row[0], row[1], row[-2], row[-1]) for row in rows if row[-1] is not None) == [
            (1, "a1", 1, 2),
            (2, "b1", 1, 2),
        ]
        rows = [row for row in rows if row[-1] is None]
    assert {row[:2] for row in rows} == live


@pytest.mark.parametrize("name", ["x" * 64, "é" * 32, "", "ctid", "xmax", "a\0b"])
def test_a_name_that_postgresql_cannot_have_is_refused(spark, table, name):
    df = spark.createDataFrame([(1, "a")], "id int, v string").toDF("id", name)
    with pytest.raises(ConfigurationError, match="PostgreSQL cannot have a column") as refused:
        table.target.apply(df, 0, "q", keys="id")
    assert repr(name) in refused.value.message
    assert table.sql("SELECT to_regclass('{t}')") == [(None,)]


def test_a_name_that_an_archive_needs_itself_is_refused(spark, tmp_path):
    df = spark.createDataFrame([(1, 2)], "id int, _SEQUENCE int")
    with pytest.raises(ConfigurationError, match="'_SEQUENCE' has a name that archives reserve"):
        ArchiveTarget(tmp_path / "archive").apply(df, 0, "q", keys="id")
