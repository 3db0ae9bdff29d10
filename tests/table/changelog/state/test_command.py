# SPDX-License-Identifier: Apache-2.0
"""`forebay state show` and `forebay state reshard`: output, errors and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forebay.cli import main
from forebay.errors import FatalError


@pytest.fixture
def shown_text(capsys):
    """Run the command; return its exit code, output and errors, each error in one line."""

    def run(*arguments):
        code = main(["state", *map(str, arguments)])
        shown = capsys.readouterr()
        return code, shown.out, " ".join(shown.err.replace("│", " ").split())

    return run


@pytest.fixture
def orders(query, small):
    """A query with 30 keys, a retracted one and a retraction that waits for its row."""
    small(small=0)
    on = query(shards=2)
    on.step([(1, (key, "a")) for key in range(30)])
    on.step([(-1, (3, "a")), (-1, (40, "b")), (1, (5, "c"))])
    return on


def test_show_tells_shards_versions_and_counts(orders, shown_text):
    code, shown, _ = shown_text("show", orders.state.location)
    assert code == 0
    assert "orders: materialize retract by k bigint, after micro-batch 1" in shown
    assert "query query-1, since micro-batch 0, generation 0" in shown
    assert "conflicts 1, expired 0, retractions_unmatched 1" in shown
    (total,) = [line for line in shown.splitlines() if "total" in line]
    assert [cell.strip() for cell in total.split("│")[1:5]] == ["total", "0 to 1", "33", "1"]


def test_show_is_json_too(orders, shown_text):
    code, shown, _ = shown_text("show", orders.state.location, "--json", "--rows", 3, "--verify")
    assert code == 0
    (found,) = json.loads(shown)["operators"]
    assert found["total"]["entries"] == 33 and found["total"]["last"] == 1 and found["info"]["shards"] == 2
    assert len(found["shards"]) == 2 and 1 <= found["skew"] < 2 and len(found["rows"]) == 3
    assert found["verified"]["problems"] == [] and found["verified"]["versions"] == 4


def test_rows_of_a_key_and_of_an_older_version(orders, shown_text):
    def rows(*arguments):
        code, shown, error = shown_text("show", orders.state.location, "--json", *arguments)
        assert code == 0, error
        found = json.loads(shown)["operators"][0]["rows"]
        return sorted((row["row"]["k"], row["row"]["v"], row["count"]) for row in found)

    assert rows("--key", "k=5") == [(5, "a", 1), (5, "c", 1)]
    assert rows("--key", "k=5", "--key", "v=c") == [(5, "c", 1)]
    assert rows("--key", "k=3") == []
    assert rows("--key", "k=3", "--version", 0) == [(3, "a", 1)]
    assert rows("--key", "k=40") == [(40, "b", -1)]
    assert len(rows("--rows", 1000)) == 31
    assert len(rows("--rows", 7)) == 7


def test_all_rows_are_found_where_keys_have_many_entries(query, small, shown_text):
    small(rows=300, small=0)
    on = query(shards=1)
    on.step([(1, (7, f"v{number}")) for number in range(3000)])
    on.step([(1, (key, "a")) for key in range(2000)])
    _, shown, _ = shown_text("show", on.state.location, "--json", "--rows", 10_000)
    rows = [(row["row"]["k"], row["row"]["v"]) for row in json.loads(shown)["operators"][0]["rows"]]
    assert len(rows) == len(set(rows)) == 5000


def test_rows_are_shown_as_a_table(orders, shown_text):
    code, shown, _ = shown_text("show", orders.state.location, "--key", "k=40")
    assert code == 0
    assert [cell.strip() for cell in shown.splitlines()[-2].split("│")[1:-1]] == ["40", "b", "-1", "1"]


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (["--name", "other"], ["no state of 'other'", "give one of the names orders"]),
        (["--version", 9], ["have the version 9", "can be read: 0 to 1"]),
        (["--key", "x=1"], ["no column 'x'", "give one of k, v"]),
        (["--key", "k=abc"], ["'abc' is not a value of the column 'k' of type int64"]),
        (["-o", "key=secret-1"], ["takes no stateStorage options"]),
    ],
)
def test_what_is_not_there_is_told_with_what_is(orders, shown_text, arguments, texts):
    code, _, error = shown_text("show", orders.state.location, *arguments)
    assert code == 1 and all(text in error for text in texts), error
    assert "secret-1" not in error


def test_an_empty_location_is_an_error(tmp_path, shown_text):
    code, shown, error = shown_text("show", tmp_path)
    assert (code, shown) == (1, "") and "there is no state below" in error


def test_verify_names_each_damaged_file_and_ends_with_one(orders, shown_text):
    root = orders.root()
    first, second, *_ = sorted(root.rglob("*.arrow"))
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 1
    first.write_bytes(data)
    second.unlink()
    manifest = root / "orders/00001/v000000000000.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"counts"', b'"counti"'))
    code, shown, _ = shown_text("show", orders.state.location, "--verify")
    assert code == 1
    assert f"{first.name}: its digest differs" in shown and f"{second.name}: it does not exist" in shown
    assert "v000000000000.json: " in shown and "next step: restore" in shown
    code, shown, _ = shown_text("show", orders.state.location, "--verify", "--json")
    assert code == 1 and len(json.loads(shown)["operators"][0]["verified"]["problems"]) == 3


def test_verify_misses_a_version_that_one_shard_lacks(orders, shown_text):
    orders.step([])
    (orders.root() / "orders/00001/v000000000001.json").unlink()
    code, shown, _ = shown_text("show", orders.state.location, "--verify")
    assert code == 1 and "orders/00001/v000000000001.json: it does not exist" in shown


def test_reshard_tells_what_it_did(orders, shown_text):
    code, shown, _ = shown_text("reshard", orders.state.location, "--name", "orders", "--shards", 3)
    assert code == 0
    assert shown.startswith("orders: 2 shards are now 3, with 3") and "the last micro-batch in the state is 1" in shown
    code, shown, _ = shown_text("show", orders.state.location)
    assert code == 0 and "generation 1" in shown
    code, _, error = shown_text("reshard", orders.state.location, "--name", "orders", "--shards", 3)
    assert code == 1 and "has 3 shards already" in error


@pytest.mark.parametrize(
    "content", [b"#!/bin/sh\n", b"", b"ARROW1\x00\x00", b"ARROW1\x00\x00" + b"\xff" * 64 + b"ARROW1"]
)
def test_rows_of_a_segment_that_is_no_arrow_file_are_a_typed_error(orders, shown_text, content):
    for path in Path(orders.state.location).rglob("*.arrow"):
        path.write_bytes(content)
    code, shown, error = shown_text("show", orders.state.location, "--rows", 5)
    assert (code, shown) == (1, "")
    assert "of the state is damaged" in error and "next step: restore" in error
    assert "Traceback" not in error
    code, shown, _ = shown_text("show", orders.state.location, "--verify")
    assert code == 1 and "damaged" in shown


@pytest.mark.parametrize("wrong", [{"shards": "x"}, {"shards": 20_000_000}, {"directory": -1}, {"first": None}])
def test_an_operator_file_with_other_types_is_a_typed_error(orders, shown_text, wrong):
    file = orders.root() / "orders/operator.json"
    facts = json.loads(file.read_text())
    del facts["sum"]
    file.write_text(json.dumps(facts | wrong))
    for arguments in (["--rows", 5], ["--verify"], ["--json"]):
        code, shown, error = shown_text("show", orders.state.location, *arguments)
        assert (code, shown) == (1, "") and "orders/operator.json of the state is damaged" in error


@pytest.mark.parametrize("wrong", [{"counts": -1}, {"oldest": []}, {"tombstones": "x"}])
def test_a_manifest_with_other_types_is_a_typed_error_also_in_a_running_query(orders, shown_text, wrong):
    for file in orders.root().rglob("v000000000001.json"):
        facts = json.loads(file.read_text())
        del facts["sum"]
        for part in [facts, *(segment for run in facts["runs"] for segment in run)]:
            part |= {name: value for name, value in wrong.items() if name in part}
        file.write_text(json.dumps(facts))
    code, shown, error = shown_text("show", orders.state.location)
    assert (code, shown) == (1, "") and "v000000000001.json of the state is damaged" in error
    with pytest.raises(FatalError, match=r"v000000000001\.json of the state is damaged"):
        orders.step([(1, (7, "d"))])


@pytest.mark.parametrize("command", [["show"], ["reshard", "--name", "orders", "--shards", "2"]])
def test_a_location_that_is_too_long_is_told_at_once(tmp_path, shown_text, command):
    code, shown, error = shown_text(*command, tmp_path / ("x" * 300))
    assert (code, shown) == (1, "") and "too long" in error and "tries" not in error


def test_a_number_of_shards_beyond_the_maximum_is_refused(orders, shown_text):
    code, _, error = shown_text("reshard", orders.state.location, "--name", "orders", "--shards", 100_001)
    assert code == 1 and "give 1 to 100,000" in error
