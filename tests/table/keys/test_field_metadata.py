# SPDX-License-Identifier: Apache-2.0
"""Keys in the metadata of columns."""

from __future__ import annotations

import json

import pytest

from forebay.errors import ConfigurationError
from forebay.table.keys import FIELD_KEY, KeySpec, declaration_id, declarations, key_metadata, without_key

KEY = KeySpec(("a", "b"), ("a", "b"), "gone", ("seq",))


def fields(key=KEY, declaration="x", **flags):
    return key_metadata(key, declaration, **flags)


def test_a_key_is_read_as_it_was_written():
    """K5: with its flag and its ordering columns, through JSON as engines keep it."""
    (found,) = declarations(json.loads(json.dumps(list(fields(ordered=True, transactional=True).items()))))
    assert (found.present(), found.lost, found.ordered, found.transactional) == (KEY, (), True, True)


def test_partition_columns_have_the_plain_entry_too():
    """K21: readers of Foundry's schemas find `includeInPartitioning`."""
    marked = {name for name, metadata in fields().items() if metadata.get("includeInPartitioning") is True}
    assert marked == {"a", "b"}


def test_without_key_leaves_other_metadata():
    """K18: a key is replaced, a comment is not."""
    assert without_key({**fields()["a"], "comment": "the customer"}) == {"comment": "the customer"}


def test_each_column_knows_what_is_lost():
    """K14: one column that is left names the others."""
    (found,) = declarations([("b", fields()["b"])])
    assert found.lost == ("a", "gone", "seq")
    assert found.present() == KeySpec(("b",))
    assert found.present(lenient=True) == KeySpec(("b",), ("b",))


def test_a_flag_alone_is_no_key():
    """K14: all key columns are gone."""
    assert declarations([("gone", fields()["gone"])]) == []


def test_the_keys_of_two_joined_tables_are_told_apart():
    """§2.2: by the id of the declaration, in the order of the columns."""
    found = declarations([*fields(KeySpec(("a",)), "x").items(), *fields(KeySpec(("b",)), "y").items()])
    assert [one.present() for one in found] == [KeySpec(("a",)), KeySpec(("b",))]


def test_a_column_selected_twice_keeps_its_declared_name():
    """§2.2: id, id AS k."""
    entry = fields(KeySpec(("id",)))["id"]
    (found,) = declarations([("k", entry), ("id", entry)])
    assert found.present() == KeySpec(("id",))


def test_two_copies_of_a_key_column_are_ambiguous():
    """§2.2: id AS k, id AS l. The lenient rule takes the first one."""
    entry = fields(KeySpec(("id",)))["id"]
    (found,) = declarations([("k", entry), ("l", entry)])
    with pytest.raises(ConfigurationError, match="'k' and 'l' are copies of the key column 'id'"):
        found.present()
    assert found.present(lenient=True) == KeySpec(("k",))


@pytest.mark.parametrize(
    ("entry", "text"),
    [({"v": 2, "set": "x", "name": "a", "key": {}}, "version 2"), ({"v": 1}, "damaged"), ("text", "damaged")],
)
def test_metadata_that_cannot_be_read_are_an_error(entry, text):
    """K21: a key is never dropped in silence."""
    with pytest.raises(ConfigurationError, match=text):
        declarations([("a", {FIELD_KEY: entry})])


def test_an_id_depends_on_its_parts_alone():
    """§2.2: eight hexadecimal digits, the same in every process."""
    assert declaration_id("orders", KEY) == declaration_id("orders", KEY)
    assert declaration_id("orders", KEY) != declaration_id("clients", KEY)
    assert declaration_id("orders") == "805f0e61"
