# SPDX-License-Identifier: Apache-2.0
"""What transformations do to a key: the examples of the rules."""

from __future__ import annotations

import pytest

from forebay.table.keys import KeySpec, after_join, after_loss, after_rename, after_stateful, after_union

KEY = KeySpec(("a", "b"), ("a", "b"), "gone", ("s", "t"))


def test_a_renamed_column_stays_in_the_key():
    """K11: rename a → x gives (x, b)."""
    assert after_rename(KEY, {"a": "x", "gone": "g", "t": "u"}) == KeySpec(("x", "b"), ("x", "b"), "g", ("s", "u"))


def test_a_lost_column_leaves_the_partition_key():
    """K12, K13: drop x of (x, b) gives (b)."""
    assert after_loss(KeySpec(("x", "b")), {"x"}) == KeySpec(("b",))


def test_a_key_without_columns_is_gone():
    """K14: all columns lost."""
    assert after_loss(KEY, {"a", "b"}) == KeySpec()


def test_a_primary_key_that_loses_a_column_is_lost():
    """K14: (a) would merge the records (a=1, b=1) and (a=1, b=2)."""
    assert after_loss(KEY, {"b"}) == KeySpec(("a",))


def test_a_primary_key_without_its_flag_is_lost():
    """K14: without the flag, deleted records would come back."""
    assert after_loss(KEY, {"gone"}) == KeySpec(("a", "b"))


def test_ordering_columns_are_lost_together():
    """K20: a part of them would order other rows first."""
    assert after_loss(KEY, {"s"}) == KeySpec(("a", "b"), ("a", "b"), "gone")


def test_the_lenient_rule_shrinks_the_primary_key():
    """K14: as Foundry does."""
    assert after_loss(KEY, {"a", "gone"}, lenient=True) == KeySpec(("b",), ("b",), None, ("s", "t"))


def test_state_loses_the_primary_key():
    """K17: groupBy("id").count() has the partition key (id)."""
    assert after_stateful(KEY) == KeySpec(("a", "b"))


def test_both_sides_of_a_union_must_have_the_key():
    """§2.2: union, intersect and except."""
    assert after_union(KEY, KEY) == KEY
    assert after_union(KEY, KeySpec(("a",))) == after_union(KeySpec(), KEY) == KeySpec()


@pytest.mark.parametrize(
    ("how", "kept"), [("inner", "l"), ("left", "l"), ("semi", "l"), ("anti", "l"), ("cross", "l"), ("right", "r")]
)
def test_a_join_keeps_the_key_of_one_side(how, kept):
    """§2.2: the side whose rows are all kept; left for an inner join."""
    assert after_join(KeySpec(("l",)), KeySpec(("r",)), how) == KeySpec((kept,))


def test_a_full_outer_join_keeps_no_key():
    """§2.2: both sides get NULLs."""
    assert after_join(KEY, KEY, "full") == KeySpec()
