# SPDX-License-Identifier: Apache-2.0
"""Micro-batches kept in an archive, and what is read of them."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from forebay.errors import ConfigurationError, DataError
from forebay.spark.changelog.converting import from_changes
from forebay.spark.changelog.targets.archive import ArchiveTarget, read_archive, write_archive

CHANGES = "id int, v string, _change_type string, _split string, _pos long"
FIRST = [(1, "a", "insert", 1), (2, "b", "insert", 2), (3, "c", "insert", 3), (3, "c", "delete", 4)]
SECOND = [(1, "a", "update_preimage", 5), (1, None, "update_postimage", 5), (2, None, "delete", 6)]

PLACE = "an archive=[1] {é}"


def in_one_split(rows):
    """Changes as (id, v, kind, position), with the split."""
    return [(*row[:3], "s", row[3]) for row in rows]


def rows(df):
    return sorted((tuple(row) for row in df.collect()), key=repr)


@pytest.fixture
def target(tmp_path):
    return ArchiveTarget(tmp_path / PLACE)


@pytest.fixture(scope="module")
def begun(spark, tmp_path_factory):
    """An archive with one micro-batch: 0 of the query q."""
    place = tmp_path_factory.mktemp("begun") / PLACE
    assert ArchiveTarget(place).apply(spark.createDataFrame(in_one_split(FIRST), CHANGES), 0, "q", keys="id")
    return place


@pytest.fixture
def continued(begun, target, tmp_path):
    """The target of a copy of the archive `begun`."""
    shutil.copytree(begun, tmp_path / PLACE)
    return target


def test_both_views_of_two_micro_batches(spark, continued, tmp_path):
    """K10: the current view is deduplicated, the changelog has everything."""
    assert continued.apply(spark.createDataFrame(in_one_split(SECOND), CHANGES), 1, "q", keys="id")
    assert rows(read_archive(spark, tmp_path / PLACE)) == [(1, None)]
    changes = read_archive(spark, str(tmp_path / PLACE), view="changelog")
    assert changes.columns == ["id", "v", "_change_type", "_commit_version"]
    assert rows(changes) == [
        (1, "a", "update_postimage", 0),
        (1, None, "update_postimage", 1),
        (2, "b", "update_postimage", 0),
        (2, None, "delete", 1),
        (3, "c", "delete", 0),
    ]


def test_a_repeated_or_older_micro_batch_overwrites_nothing(spark, continued, tmp_path):
    first, second = (spark.createDataFrame(in_one_split(changes), CHANGES) for changes in (FIRST, SECOND))
    assert continued.apply(second, 2, "q", keys="id")
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / PLACE).rglob("*") if path.is_file()}
    for number, df in ((2, first), (0, second), (1, first)):
        assert not continued.apply(df, number, "q", keys="id")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / PLACE).rglob("*") if path.is_file()} == files


def test_another_query_is_refused_until_it_adopts(spark, continued, tmp_path):
    """§3.2."""
    with pytest.raises(ConfigurationError, match="was written by the query q"):
        continued.apply(spark.createDataFrame(in_one_split(FIRST), CHANGES), 0, "q2", keys="id")
    assert continued.apply(spark.createDataFrame(in_one_split(SECOND), CHANGES), 0, "q2", keys="id", adopt=True)
    assert rows(read_archive(spark, tmp_path / PLACE)) == [(1, None)]
    with pytest.raises(ConfigurationError, match="was written by the query q2"):
        continued.apply(spark.createDataFrame(in_one_split(FIRST), CHANGES), 8, "q", keys="id")


@pytest.mark.soak("rename")
@pytest.mark.parametrize("killed", ["write_text", "rename"])
def test_an_archive_whose_writer_died_shows_no_part_of_its_micro_batch(spark, continued, tmp_path, monkeypatch, killed):
    """P8: after the files, before they are at their place; the next attempt removes what is left."""
    df = spark.createDataFrame(in_one_split(SECOND), CHANGES)
    original = getattr(Path, killed)

    def die(path, *given, **named):
        if "_staging" in str(path):
            raise KeyboardInterrupt
        return original(path, *given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(Path, killed, die)
        with pytest.raises(KeyboardInterrupt):
            continued.apply(df, 1, "q", keys="id")
    assert rows(read_archive(spark, tmp_path / PLACE)) == [(1, "a"), (2, "b")]
    assert continued.apply(df, 1, "q", keys="id")
    assert rows(read_archive(spark, tmp_path / PLACE)) == [(1, None)]
    assert list((tmp_path / PLACE / "_staging").iterdir()) == []


@pytest.mark.soak("13")
@pytest.mark.parametrize(
    ("code", "message"), [(errno.ENOTEMPTY, "another query wrote version 1"), (errno.EACCES, "not be put in its place")]
)
def test_a_failed_rename_is_reported_with_its_reason(spark, target, tmp_path, monkeypatch, code, message):
    target.apply(spark.createDataFrame(in_one_split(FIRST), CHANGES), 0, "q", keys="id")
    second = spark.createDataFrame(in_one_split(SECOND), CHANGES)

    def fail(path, new):
        raise OSError(code, os.strerror(code), str(path), None, str(new))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", fail)
        with pytest.raises(ConfigurationError, match=message):
            target.apply(second, 1, "q", keys="id")
    assert list((tmp_path / PLACE / "_staging").iterdir()) == []


@pytest.mark.soak
def test_all_changes_are_kept_with_their_sequence(spark, target, tmp_path):
    """SCD type 2; an older change that arrives later is not the current one."""
    options = {"keys": "id", "sequence_by": "_pos", "stored_as_scd_type": 2}
    target.apply(spark.createDataFrame(in_one_split(SECOND), CHANGES), 0, "q", **options)
    target.apply(spark.createDataFrame(in_one_split(FIRST), CHANGES), 1, "q", **options)
    assert rows(read_archive(spark, tmp_path / PLACE)) == [(1, None)]
    assert read_archive(spark, tmp_path / PLACE, view="changelog").count() == 6


@pytest.mark.soak
def test_at_one_sequence_a_row_counts_before_its_retraction(spark, target, tmp_path):
    """As in PostgreSQL, in whatever micro-batches both come."""
    for number, kinds in enumerate([("insert", "delete"), ("delete", "insert")]):
        changes = [(key, "a", kind, 5) for key, kind in enumerate(kinds, 1)]
        target.apply(spark.createDataFrame(in_one_split(changes), CHANGES), number, "q", keys="id", sequence_by="_pos")
    assert rows(read_archive(spark, tmp_path / PLACE)) == [(1, "a"), (2, "a")]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("select", "message"),
    [
        (["id", "_change_type"], "'v' is string in the archive .*, and missing in the changes"),
        (["id", "1 AS v", "_change_type"], "'v' is string in the archive .*, and int in the changes"),
        (["id", "v", "2 AS w", "_change_type"], "'w' is missing in the archive .*, and int in the changes"),
    ],
)
def test_another_schema_is_refused_before_any_write(spark, continued, tmp_path, select, message):
    before = sorted((tmp_path / PLACE).rglob("*"))
    with pytest.raises(ConfigurationError, match=message):
        continued.apply(spark.createDataFrame(in_one_split(SECOND), CHANGES).selectExpr(*select), 1, "q", keys="id")
    with pytest.raises(ConfigurationError, match="has the keys id, not v"):
        continued.apply(spark.createDataFrame(in_one_split(SECOND), CHANGES), 1, "q", keys="v")
    assert sorted((tmp_path / PLACE).rglob("*")) == before


@pytest.mark.soak
def test_a_later_micro_batch_may_have_null_where_an_earlier_one_cannot(spark, target, tmp_path):
    """Spark's type of `array(1)` says that no element is NULL."""
    target.apply(spark.sql("SELECT 1 AS id, array(named_struct('x', 1)) AS a"), 0, "q", keys="id")
    target.apply(spark.sql("SELECT 2 AS id, array(named_struct('x', int(NULL)), NULL) AS a"), 1, "q", keys="id")
    assert rows(read_archive(spark, tmp_path / PLACE)) == [(1, [(1,)]), (2, [(None,), None])]


@pytest.mark.soak
def test_bad_rows_and_places_are_errors(spark, target, tmp_path):
    """K7: a NULL key."""
    with pytest.raises(DataError, match="'id' is NULL, _split s, _pos 1"):
        target.apply(spark.createDataFrame(in_one_split([(None, "a", "insert", 1)]), CHANGES), 0, "q", keys="id")
    assert rows(read_archive(spark, tmp_path / PLACE)) == []
    with pytest.raises(ConfigurationError, match="is not an archive"):
        read_archive(spark, tmp_path)
    with pytest.raises(ConfigurationError, match="unknown view 'all'"):
        read_archive(spark, tmp_path, view="all")
    with pytest.raises(ConfigurationError, match="atomic rename"):
        ArchiveTarget("s3://bucket/archive")


@pytest.mark.usefixtures("continued")
def test_an_archive_of_a_later_format_is_refused(spark, tmp_path):
    sidecar = tmp_path / PLACE / "_schema.json"
    sidecar.write_text(json.dumps({**json.loads(sidecar.read_text()), "format": 2}))
    with pytest.raises(ConfigurationError, match="format 2"):
        read_archive(spark, tmp_path / PLACE)


@pytest.mark.soak
def test_a_stream_is_archived(spark, stream_of_files, tmp_path):
    stream_of_files(None, CHANGES).write(in_one_split(FIRST))
    stream = from_changes(spark.readStream.schema(CHANGES).parquet(str(tmp_path / "in")), "id", ordered=True)
    query = write_archive(
        stream,
        tmp_path / PLACE,
        keys="id",
        checkpoint_location=str(tmp_path / "checkpoint"),
        trigger={"availableNow": True},
    )
    query.awaitTermination()
    assert rows(read_archive(spark, tmp_path / PLACE)) == [(1, "a"), (2, "b")]
