# SPDX-License-Identifier: Apache-2.0
"""What a key may be."""

from __future__ import annotations

import pytest

from forebay.errors import ConfigurationError
from forebay.table.keys import KeySpec


def test_a_key_without_cdc_groups_rows_only():
    """K1, K18: the partition key alone; nothing is deduplicated."""
    assert KeySpec.keyed_by(["device"]) == KeySpec(("device",), None)


def test_with_cdc_partition_and_primary_key_are_the_same_columns():
    """K5, K19: and the flag and the ordering columns belong to the primary key."""
    key = KeySpec.keyed_by(["a", "b"], cdc=True, deleted="gone", ordering=["seq"])
    assert key == KeySpec(("a", "b"), ("a", "b"), "gone", ("seq",))
    assert key.columns == ("a", "b", "gone", "seq")


@pytest.mark.parametrize("given", [{"deleted": "gone"}, {"ordering": ["seq"]}])
def test_flag_and_ordering_need_cdc(given):
    """K18: without CDC mode only columns are allowed."""
    with pytest.raises(ConfigurationError, match="need a primary key") as caught:
        KeySpec.keyed_by(["id"], **given)
    assert caught.value.option == next(iter(given))


def test_a_key_has_a_column():
    """K3: a frame without a key is one on which nobody called key_by."""
    with pytest.raises(ConfigurationError, match="a key needs a column"):
        KeySpec.keyed_by([])


@pytest.mark.parametrize(
    "given",
    [
        {"partition": ("a", "a")},
        {"partition": ("a",), "primary": ("a",), "deleted": "a"},
        {"primary": ("b",), "ordering": ("s", "s")},
        {"primary": ("b",), "ordering": ("b",)},
        {"partition": ("f",), "primary": ("a",), "deleted": "f"},
    ],
)
def test_a_column_has_one_role(given):
    """K5: a flag or an ordering column is no key column."""
    with pytest.raises(ConfigurationError, match="twice"):
        KeySpec(**given)


def test_an_unknown_column_is_named_with_those_there_are():
    """K1: the error names the column and lists the columns."""
    with pytest.raises(ConfigurationError, match="no column 'devise'") as caught:
        KeySpec(("devise",)).check(["device", "value"])
    assert "device, value" in str(caught.value.advice)


def test_a_column_that_exists_twice_cannot_be_a_key():
    """K1: after a join, a name may stand for two columns."""
    with pytest.raises(ConfigurationError, match="'id' exists twice"):
        KeySpec(("id",)).check(["id", "value", "id"])


def test_a_primary_key_beside_another_partition_key_is_told():
    """K9: such a key can only be written by hand."""
    assert not KeySpec(("a",), ("a", "b")).primary_is_partition
    assert KeySpec(("b", "a"), ("a", "b")).primary_is_partition
    assert KeySpec(("a",)).primary_is_partition
