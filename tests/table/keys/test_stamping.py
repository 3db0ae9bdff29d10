# SPDX-License-Identifier: Apache-2.0
"""Sources stamp their keys into their Arrow schema."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

from forebay.errors import ConfigurationError
from forebay.table.keys import NONE, PER_SPLIT, Guarantee, KeySpec, OrderScope, declarations, stamp, stamped

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False, metadata={"comment": "x"}), ("gone", pa.bool_())], metadata={"m": "1"}
)
KEY = KeySpec(("id",), ("id",), "gone")


def declared(schema: pa.Schema):
    return declarations((field.name, stamped(field)) for field in schema)


def test_a_stamped_key_is_read_from_the_fields():
    """§3.2: names, types, nullability and other metadata stay."""
    found = stamp(SCHEMA, KEY)
    (declaration,) = declared(found)
    assert (declaration.present(), declaration.ordered, declaration.transactional) == (KEY, True, False)
    assert found.equals(SCHEMA, check_metadata=False)
    assert found.metadata == {b"m": b"1"}
    assert (found.field("id").metadata or {})[b"comment"] == b"x"


def test_a_second_stamp_replaces_the_first():
    """K18: one without columns removes the key."""
    again = stamp(stamp(SCHEMA, KEY), KeySpec(("gone",)), ordered=False, transactional=True)
    (declaration,) = declared(again)
    assert (declaration.present(), declaration.ordered, declaration.transactional) == (KeySpec(("gone",)), False, True)
    assert stamp(again, KeySpec()).equals(SCHEMA, check_metadata=True)


def test_two_processes_stamp_alike():
    """§3.2: planners and restarts of a stream see the same schema."""
    program = (
        "import pyarrow as pa; from forebay.keys import KeySpec, stamp;"
        "print(stamp(pa.schema({'id': pa.int64()}), KeySpec(('id',))).field('id').metadata)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(stamp(pa.schema({"id": pa.int64()}), KeySpec(("id",))).field("id").metadata)


def test_a_column_that_is_not_there_cannot_be_stamped():
    """K1: the connector's mistake is named."""
    with pytest.raises(ConfigurationError, match="no column 'key'"):
        stamp(SCHEMA, KeySpec(("key",)))


def test_guarantees_are_ordered_and_compared_without_the_reason():
    """K3, K27: NONE < PER_SPLIT < PER_KEY; the weakest hop is a remark."""
    assert NONE.scope < PER_SPLIT.scope < Guarantee.per_key("id").scope is OrderScope.PER_KEY
    assert Guarantee(OrderScope.NONE, (), "a shuffle") == NONE
    assert str(Guarantee(OrderScope.PER_KEY, ("a", "b"), "Sort")) == "PER_KEY(a, b): Sort"
