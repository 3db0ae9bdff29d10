# SPDX-License-Identifier: Apache-2.0
"""What transactions do to objects: kinds, duplicates, ids, flags, shares of changed rows."""

from __future__ import annotations

import math
import sqlite3
import tempfile
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pyarrow as pa
import pytest

from forebay.errors import ConfigurationError, DataError, RetriableError
from forebay.index import Datasource, ObjectType, Property
from forebay.table.changelog.shape import RowKind
from forebay.table.index.follower import FullRule
from forebay.table.index.verify import verify


def hundred(start=0, **changed):
    return [{"id": number, "name": changed.get(f"n{number}", f"name {number}")} for number in range(start, 100)]


def test_a_snapshot_with_ten_other_rows_gives_exactly_ten_changes(objects):
    objects.commit("a", hundred(), "snapshot")
    names = {f"n{number}": "new" for number in range(0, 100, 10)}
    objects.commit("a", hundred(**names), "snapshot")
    assert objects.changes(2) == [(number, RowKind.UPDATE_AFTER) for number in range(0, 100, 10)]
    version = objects.index.newest_version("000001")
    assert (version.decision, version.shares, version.count) == ("INCREMENTAL", ((10, 100),), 100)
    assert [row for row in objects.rows(objects.node(), "id", "name") if row[1] == "new"] == [
        (number, "new") for number in range(0, 100, 10)
    ]


def test_the_same_snapshot_again_in_another_order_makes_no_version(objects):
    first = objects.commit("a", hundred(), "snapshot")
    before = objects.index.newest_version("000001")
    again = objects.commit("a", hundred()[::-1], "snapshot")
    assert (again.number, again.counts["updated"]) == (first.number + 1, 0)
    assert objects.changes(again.number) == []
    assert objects.index.newest_version("000001") == before


def test_a_key_that_a_snapshot_lacks_is_deleted(objects):
    objects.commit("a", hundred(), "snapshot")
    objects.commit("a", hundred(start=1), "snapshot")
    node = objects.node()
    assert (node.get(0), node.get(1)["name"], node.count()) == (None, "name 1", 99)


def test_an_empty_snapshot_is_refused_unless_it_is_allowed(objects):
    objects.commit("a", hundred(), "snapshot")
    with pytest.raises(ConfigurationError, match=r"'a' has 100: it would delete all[\s\S]*allow_empty=True"):
        objects.commit("a", [], "snapshot", "t")
    with pytest.raises(ConfigurationError, match="would delete all"):
        objects.commit("a", [{"id": 1, "deleted": True}], "snapshot", "t")
    assert objects.node().count() == 100
    objects.commit("a", [], "snapshot", "t", allow_empty=True)
    assert objects.index.newest_version("000001").decision == "FULL"
    node = objects.node()
    assert (node.count(), node.get(1), node.where(name="name 1").fetch().rows) == (0, None, ())


def test_the_latest_transaction_of_a_key_counts(objects):
    objects.commit("a", [{"id": 1, "name": "a"}], "append", "t1")
    objects.commit("a", [{"id": 1, "name": "b"}], "append", "t2")
    objects.commit("a", [{"id": 2, "name": "c"}], "append", "t3")
    assert objects.rows(objects.node(), "id", "name") == [(1, "b"), (2, "c")]
    assert not objects.commit("a", [{"id": 1, "name": "b"}], "append", "t2").applied
    assert not objects.commit("a", [{"id": 1, "name": "a"}], "append", "t1").applied
    assert objects.rows(objects.node(), "id", "name") == [(1, "b"), (2, "c")]


def test_a_known_id_with_other_rows_is_refused(objects):
    objects.commit("a", [{"id": 1, "name": "a"}], transaction="t1")
    with pytest.raises(ConfigurationError, match=r"'t1' of the datasource 'a' was committed with other rows"):
        objects.commit("a", [{"id": 1, "name": "b"}], transaction="t1")
    # Ids have no order, and those of datasources have nothing to do with one another.
    assert objects.commit("b", [{"id": 1, "city": "x"}], transaction="t1").applied
    assert objects.commit("a", [{"id": 1, "name": "c"}], transaction="t0").applied


def test_a_known_id_as_another_kind_is_refused(objects):
    """A snapshot deletes what it does not have, so it is not an update with the same rows."""
    objects.commit("a", hundred(), "snapshot", "t0")
    row = [{"id": 1, "name": "a"}]
    objects.commit("a", row, "update", "t1")
    with pytest.raises(ConfigurationError, match="or as another kind: their digest was"):
        objects.commit("a", row, "snapshot", "t1")
    assert not objects.commit("a", row, "append", "t1").applied
    assert not objects.commit("a", hundred(), "snapshot", "t0").applied
    objects.commit("a", row, "snapshot", "t2")
    with pytest.raises(ConfigurationError, match="or as another kind: their digest was"):
        objects.commit("a", row, "update", "t2")


def test_an_unchanged_transaction_is_known_too(objects):
    """Otherwise its redelivery after another transaction would set rows back."""
    objects.commit("a", [{"id": 1, "name": "old"}], transaction="t0")
    objects.commit("a", [{"id": 1, "name": "old"}], transaction="t1")
    objects.commit("a", [{"id": 1, "name": "new"}], transaction="t2")
    assert not objects.commit("a", [{"id": 1, "name": "old"}], transaction="t1").applied
    assert objects.node().get(1)["name"] == "new"


@pytest.mark.parametrize("kind", ["snapshot", "append", "update", "delete"])
def test_a_key_twice_in_a_transaction_is_refused_and_the_id_stays_free(objects, kind):
    objects.commit("a", hundred(), "snapshot")
    rows = [{"id": number, "name": "x"} for number in (7, 7, 7, 8, 8, 9)]
    with pytest.raises(DataError, match=r"object type 'O', datasource 'a', transaction 't'") as caught:
        objects.commit("a", rows, kind, "t")
    text = str(caught.value)
    assert "(id=7) occurs 3 times" in text and "(id=8) occurs 2 times" in text and "(2 keys)" in text
    assert "id=9" not in text
    assert objects.index.log.head().number == 1
    assert objects.commit("a", rows[2:3] + rows[4:], kind, "t").applied


def test_duplicates_of_which_only_one_shard_knows_leave_nothing_visible(objects):
    """The other shards are done already, and a different transaction comes next."""
    objects.commit("a", hundred(), "snapshot")
    with pytest.raises(DataError, match="id=7"):
        objects.commit("a", [*hundred(n1="x"), {"id": 7, "name": "x"}], "snapshot", "mon")
    objects.commit("a", hundred(n2="y"), "snapshot", "tue")
    assert objects.changes(2) == [(2, RowKind.UPDATE_AFTER)]
    assert objects.node().get(1)["name"] == "name 1"


def test_more_duplicates_than_an_error_names_are_counted(objects):
    rows = [{"id": number} for number in range(30) for _ in range(2)]
    with pytest.raises(DataError, match=r"and 10 more \(30 keys\)"):
        objects.commit("a", rows)


def test_a_key_that_is_null_is_refused(objects):
    shown = (
        r"the key 'id' of the datasource 'a' is NULL in the row \(id=None, name=x, note=None\); nothing was committed"
    )
    with pytest.raises(DataError, match=shown):
        objects.commit("a", [{"id": 1}, {"id": None, "name": "x"}])
    assert objects.index.log.head().number == 0


def test_a_flagged_row_deletes_and_a_later_one_revives(objects):
    objects.commit("a", [{"id": 1, "name": "x", "deleted": None}])
    assert objects.node().get(1)["name"] == "x"
    objects.commit("a", [{"id": 1, "name": "x", "deleted": True}])
    assert objects.node().get(1) is None
    objects.commit("a", [{"id": 1, "name": "y", "deleted": False}])
    assert objects.node().get(1)["name"] == "y"


@pytest.mark.parametrize("name", ["string", "bigint"])
@pytest.mark.parametrize("key_hash", [lambda key: hash(("key", *key)), lambda key: key[0] % 3])
def test_a_snapshot_of_another_type_keeps_the_sequences_of_deletes(objects_at, name, key_hash):
    """Late changes change nothing, also in shards of which the snapshot has no row; nothing is left of old types."""
    objects = objects_at(shards=3, key_hash=key_hash)
    objects.commit("a", [{"id": key, "name": "x", "sequence": 5} for key in range(20)])
    objects.commit("a", [{"id": key, "deleted": True, "sequence": 6} for key in range(20)])
    objects.types["a"] = {"name": name}

    def row(key, **others):
        return {"id": key, "name": "7" if name == "string" else 7, **others}

    objects.commit("a", [row(3), row(4, deleted=True)], "snapshot")
    late = objects.commit("a", [row(key, sequence=2) for key in range(20) if key != 3])
    assert (late.counts["late"], objects.node().count()) == (19, 1)
    objects.commit("a", [row(key, sequence=7) for key in range(5)])
    assert objects.commit("a", [row(3)], "snapshot").counts["deleted"] == 4
    objects.follow(full=True)
    assert objects.rows(objects.node(), "id", "name") == [(3, "7")] and verify(objects.index).is_equal


def test_the_delete_of_an_unknown_key_is_counted(objects):
    objects.commit("a", [{"id": 1}])
    before = objects.index.newest_version("000001")
    committed = objects.commit("a", [{"id": 5}], "delete")
    assert (committed.counts["deletes_unknown"], committed.counts["deleted"]) == (1, 0)
    assert objects.index.newest_version("000001") == before


def test_objects_are_the_rows_of_all_datasources_by_key(objects):
    objects.commit("a", [{"id": 1, "name": "x"}])
    objects.commit("b", [{"id": 1, "city": "y"}, {"id": 2, "city": "z"}])
    names = ("id", "name", "city")
    assert objects.rows(objects.node(), *names) == [(1, "x", "y"), (2, None, "z")]
    objects.commit("a", [{"id": 1}], "delete")
    assert objects.rows(objects.node(), *names) == [(1, None, "y"), (2, None, "z")]
    objects.commit("b", [{"id": 1}], "delete")
    assert objects.rows(objects.node(), *names) == [(2, None, "z")]
    assert objects.index.newest_version("000001").count == 1


@pytest.mark.parametrize(
    ("changed", "inserted", "threshold", "decision"),
    [
        (79, 0, "0.8", "INCREMENTAL"),
        (80, 0, "0.8", "FULL"),
        (81, 0, "0.8", "FULL"),
        (79, 1, "0.8", "FULL"),
        (99, 0, "1", "INCREMENTAL"),
        (100, 0, "1", "FULL"),
        (100, 0, None, "INCREMENTAL"),
    ],
)
def test_the_whole_index_is_built_from_a_share_of_changed_rows_on(objects_at, changed, inserted, threshold, decision):
    objects = objects_at(rule=FullRule(threshold and Fraction(threshold)))
    objects.commit("a", hundred(), "snapshot")
    rows = hundred(**{f"n{number}": "new" for number in range(changed)})
    objects.commit("a", rows + [{"id": 1000 + number} for number in range(inserted)], "snapshot")
    version = objects.index.newest_version("000001")
    assert (version.decision, version.shares) == (decision, ((changed + inserted, 100),))


def test_the_share_is_that_of_the_datasource_or_of_the_objects(objects_at):
    for of, decision in (("datasource", "FULL"), ("objects", "INCREMENTAL")):
        objects = objects_at(rule=FullRule(of=of))
        objects.commit("a", hundred())
        objects.commit("b", [{"id": 1, "city": "x"}])
        objects.commit("b", [{"id": 1, "city": "y"}])
        assert objects.index.newest_version("000001").decision == decision


def test_a_micro_batch_never_builds_the_whole_index(objects):
    objects.commit("a", [{"id": 0, "name": "x"}])
    for number in range(3):
        rows = [{"id": 1, "name": str(number), "sequence": number}]
        objects.commit("b", rows, transaction=f"q/{number}", owner="q", batch=number)
        assert objects.index.newest_version("000001").decision == "INCREMENTAL"


def test_a_late_older_change_of_a_stream_changes_nothing(objects):
    def change(number, sequence, name, **more):
        row: dict[str, object] = {"id": 1, "name": name, "sequence": sequence, **more}
        return objects.commit("a", [row], transaction=f"q/{number}", owner="q", batch=number)

    change(0, 10, "ten")
    assert change(1, 5, "five").counts["late"] == 1
    assert change(2, 10, "ten again").counts["late"] == 1
    assert objects.node().get(1)["name"] == "ten"
    change(3, 20, None, deleted=True)
    assert change(4, 15, "fifteen").counts["late"] == 1
    assert objects.node().get(1) is None
    change(5, 21, "back")
    assert objects.node().get(1)["name"] == "back"
    # A newer change with the same row moves the sequence on, and is no change of the object.
    before = objects.index.newest_version("000001")
    change(6, 40, "back")
    assert objects.index.newest_version("000001") == before
    assert change(7, 30, "thirty").counts["late"] == 1
    assert objects.node().get(1)["name"] == "back"


def test_a_row_counts_before_its_retraction_of_one_sequence(objects):
    def change(number, sequence, **row):
        row = {"id": 1, "sequence": sequence, **row}
        return objects.commit("a", [row], transaction=f"q/{number}", owner="q", batch=number)

    change(0, 1, name="old")
    change(1, 2, deleted=True)  # an update_preimage
    assert objects.node().get(1) is None
    assert change(2, 2, name="new").counts["late"] == 0  # its update_postimage
    assert objects.node().get(1)["name"] == "new"
    assert change(3, 2, deleted=True).counts["late"] == 1
    change(4, 3, deleted=True)
    assert change(5, 2, name="new").counts["late"] == 1
    assert objects.node().get(1) is None


def test_any_sequence_is_newer_than_none(objects):
    for number, sequence in enumerate((-(2**63), -(2**63) + 1)):
        objects.commit("a", [{"id": number, "name": "old"}], adopt=True)
        row = {"id": number, "name": "new", "sequence": sequence}
        objects.commit("a", [row], transaction=f"q/{number}", owner="q", batch=number, adopt=True)
        assert objects.node().get(number)["name"] == "new"


def test_changes_of_a_key_from_two_logs_are_refused(objects):
    def change(number, **row):
        objects.commit("a", [{"id": 1, **row}], transaction=f"q/{number}", owner="q", batch=number)

    change(0, sequence=1, name="of the snapshot")
    change(1, sequence=5, name="first", log="one")
    with pytest.raises(DataError, match=r"{'id': 1} of the datasource 'a' come from the logs 'one' and 'two'"):
        change(2, sequence=6, name="second", log="two")
    change(2, sequence=6, name="third", log="one")
    assert objects.node().get(1)["name"] == "third"


UNKNOWN: list[dict[str, object]] = [{"sequence": 9, "deleted": True}, {"sequence": 5, "name": "late"}]


def test_the_delete_of_an_unknown_key_keeps_its_sequence(objects):
    for number, row in enumerate(UNKNOWN):
        objects.commit("a", [{"id": 1, **row}], transaction=f"q/{number}", owner="q", batch=number)
    assert objects.node().get(1) is None


def test_a_column_of_another_type_needs_a_snapshot(objects):
    objects.commit("a", [{"id": 1, "name": "1"}, {"id": 2, "name": "2"}])
    objects.types = {"a": {"name": "bigint"}}
    with pytest.raises(ConfigurationError, match=r"the column 'name' of the datasource 'a' is BIGINT, and was STRING"):
        objects.commit("a", [{"id": 1, "name": 5}])
    objects.commit("a", [{"id": 1, "name": 5}], "snapshot")
    assert objects.rows(objects.node(), "id", "name") == [(1, "5")]


def test_keys_with_equal_hashes_are_different_keys(objects_at):
    objects = objects_at(key_hash=lambda key: 5)
    objects.commit("a", [{"id": 1, "name": "one"}, {"id": 3, "name": "three"}])
    objects.commit("b", [{"id": 3, "city": "c"}, {"id": 5, "city": "e"}])
    objects.commit("a", [{"id": 1, "name": "ONE"}, {"id": 5, "name": "five"}])
    objects.commit("a", [{"id": 3}], "delete")
    assert objects.rows(objects.node(), "id", "name", "city") == [(1, "ONE", None), (3, None, "c"), (5, "five", "e")]
    assert objects.index.newest_version("000001").count == 3


@pytest.mark.parametrize(
    ("given", "value", "wanted", "found"),
    [
        ("double", 1.005, "decimal(12,2)", None),
        ("double", 0.1, "decimal(12,2)", Decimal("0.10")),
        ("decimal(20,19)", Decimal("0.1234567890123456789"), "double", None),
        ("decimal(12,2)", Decimal("0.10"), "double", 0.1),
        ("decimal(6,2)", Decimal("5.00"), "int", 5),
        ("bigint", 5, "decimal(5,2)", Decimal("5.00")),
        ("bigint", 2, "boolean", None),
        ("int", 1, "boolean", True),
        ("timestamp", datetime(2024, 1, 1, tzinfo=UTC), "date", None),
        ("timestamp_ntz", datetime(2024, 1, 1, 5), "date", None),
        ("timestamp_ntz", datetime(2024, 1, 1), "date", date(2024, 1, 1)),
        ("bigint", 5, "timestamp", None),
        ("date", date(2024, 1, 1), "int", None),
        ("double", 1e20, "string", None),
        ("timestamp", datetime(2024, 1, 1, tzinfo=UTC), "string", None),
        ("decimal(3,2)", Decimal("1.50"), "string", "1.50"),
        ("struct<a:int>", {"a": 1}, "struct<b:int>", None),
        ("struct<a:int,b:int>", {"a": 1, "b": 2}, "struct<b:bigint,a:int>", {"b": 2, "a": 1}),
        ("array<double>", [0.1], "array<float>", None),
        ("array<double>", [0.5, None, math.nan], "array<float>", [0.5, None, math.nan]),
        ("map<string,bigint>", {"x": 1}, "map<string,int>", {"x": 1}),
        ("map<string,timestamp>", {"x": datetime(2024, 1, 1, tzinfo=UTC)}, "map<string,string>", None),
    ],
)
def test_a_value_is_cast_to_one_that_means_the_same_or_refused(objects_at, given, value, wanted, found):
    kind = ObjectType("O", {"id": "bigint"}, [Datasource("a", {"v": Property(wanted)})])
    objects = objects_at(kind, types={"a": {"v": given}})
    objects.commit("a", [{"id": 1, "v": None}])
    node = objects.node()
    stored = list(value.items()) if given.startswith("map") else value
    if found is None:
        with pytest.raises(DataError, match=r"of the column 'v' of the datasource 'a' in the row \(id=2\) cannot be"):
            objects.commit("a", [{"id": 1, "v": None}, {"id": 2, "v": stored}])
    else:
        objects.commit("a", [{"id": 2, "v": stored}])
        node.refresh()
        assert repr(node.get(2)["v"]) == repr(found)
    assert objects.commit("a", [{"id": 2}, {"id": 1}], "delete").counts["deleted"]
    assert node.refresh() and node.count() == 0


@pytest.mark.parametrize("call", ["connect", "TemporaryDirectory", "read_bytes", "spill"])
def test_temporary_files_that_cannot_be_written_are_a_typed_error(objects, monkeypatch, call):
    def fails(*arguments, **options):
        raise (sqlite3.OperationalError if call == "connect" else OSError)("is full")

    match call:
        case "spill":
            monkeypatch.setattr("forebay.table.index.changelog.SPILLED", 1)
            monkeypatch.setattr(pa.ipc, "new_file", fails)
        case "read_bytes":
            monkeypatch.setattr(Path, call, fails)
        case _:
            monkeypatch.setattr(sqlite3 if call == "connect" else tempfile, call, fails)
    with pytest.raises(RetriableError, match=r"a temporary file below .* cannot be written: is full[\s\S]*TMPDIR"):
        objects.commit("a", hundred(), "snapshot", "t")
    monkeypatch.undo()
    assert objects.commit("a", hundred(), "snapshot", "t").applied is (call not in ("connect", "read_bytes"))
    assert objects.node().count() == 100
