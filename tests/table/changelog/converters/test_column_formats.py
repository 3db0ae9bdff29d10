# SPDX-License-Identifier: Apache-2.0
"""Change feeds of tables, deletion flags, and appends."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from forebay.errors import ConfigurationError, DataError
from forebay.table.changelog.converters.column_formats import (
    DELTA_CDF,
    HUDI,
    ICEBERG_CHANGES,
    from_append,
    from_flag,
    to_delta_cdf,
    to_flag,
)
from forebay.table.changelog.row_kind import CHANGE_TYPES

AT = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


def test_a_change_data_feed_of_delta():
    """C17."""
    feed = pa.record_batch(
        {
            "id": [1, 1, 1, 1],
            "_change_type": list(CHANGE_TYPES),
            "_commit_version": [3, 4, 4, 5],
            "_commit_timestamp": [AT] * 4,
        }
    )
    found = DELTA_CDF.convert(feed)
    assert found.to_pylist() == feed.to_pylist()
    assert to_delta_cdf(found.append_column("_split", pa.array(["s"] * 4))).equals(found)


def test_a_changelog_view_of_iceberg():
    """C17."""
    view = pa.record_batch(
        {
            "id": [1, 1, 1, 1],
            "_change_type": ["INSERT", "UPDATE_BEFORE", "UPDATE_AFTER", "DELETE"],
            "_change_ordinal": pa.array([0, 1, 1, 2], pa.int32()),
            "_commit_snapshot_id": [77, 78, 78, 79],
        }
    )
    found = ICEBERG_CHANGES.convert(view).to_pydict()
    assert found == {
        "id": [1, 1, 1, 1],
        "_change_type": list(CHANGE_TYPES),
        "_sequence": [0, 1, 1, 2],
        "_transaction": ["77", "78", "78", "79"],
    }


def test_a_change_stream_of_hudi():
    """C17."""
    stream = pa.record_batch(
        {
            "_hoodie_commit_time": ["20240101000000000"] * 4,
            "_hoodie_commit_seqno": ["20240101000000000_0_1"] * 4,
            "_hoodie_operation": ["I", "-U", "U", "D"],
            "id": [1, 1, 1, 1],
        }
    )
    found = HUDI.convert(stream).to_pydict()
    assert found == {"id": [1] * 4, "_change_type": list(CHANGE_TYPES), "_sequence": ["20240101000000000"] * 4}


@pytest.mark.parametrize("word", ["upsert", None])
def test_an_unknown_kind_is_named_with_its_row(word):
    """C2."""
    with pytest.raises(DataError, match=f"unknown kind {word!r} in change data feed of Delta, at position row 1"):
        DELTA_CDF.convert(pa.record_batch({"id": [1, 2], "_change_type": pa.array(["insert", word])}))


def test_rows_that_are_no_feed():
    with pytest.raises(ConfigurationError, match="not a change stream of Hudi: there is no column '_hoodie_operation'"):
        HUDI.convert(pa.record_batch({"id": [1]}))


def test_a_deletion_flag_of_null_is_false():
    """K7, A18: `NOT is_deleted` would drop the second row."""
    rows = pa.record_batch({"id": [1, 2, 3], "gone": pa.array([True, None, False])})
    found = from_flag(rows, "gone")
    assert found.to_pydict() == {"id": [1, 2, 3], "_change_type": ["delete", "update_postimage", "update_postimage"]}
    assert to_flag(found, "gone").to_pydict() == {"id": [1, 2, 3], "gone": [True, False, False]}
    with pytest.raises(ConfigurationError, match="the deletion flag 'id' is not boolean"):
        from_flag(rows, "id")
    with pytest.raises(ConfigurationError, match="the deletion flag 'x' does not exist"):
        from_flag(rows, "x")


def test_flags_have_no_row_for_the_row_before():
    changes = pa.record_batch({"id": [1, 1, 1, 1], "_change_type": list(CHANGE_TYPES)})
    assert to_flag(changes, "gone").column("gone").to_pylist() == [False, False, True]


def test_appended_rows_are_inserts():
    assert from_append(pa.record_batch({"id": [1, 2]})).column("_change_type").to_pylist() == ["insert"] * 2
