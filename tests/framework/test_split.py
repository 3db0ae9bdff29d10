# SPDX-License-Identifier: Apache-2.0
"""SPL and SER: splits are immutable, exact and survive JSON, also across versions."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import ContractError
from forebay.framework.split import Position, Split

positions = st.recursive(
    st.one_of(st.integers(-(2**70), 2**70), st.text(max_size=8)),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)


class Part(Split):
    topic: str
    tags: tuple[str, ...] = ()


class Renamed(Split):
    """Version 2 calls `where` what version 1 called `place`."""

    version = 2
    where: str

    @classmethod
    def upgrade(cls, version: int, fields: dict[str, Any]) -> dict[str, Any]:
        fields["where"] = fields.pop("place")
        return fields


@given(
    st.text(min_size=1),
    st.none() | positions,
    st.none() | positions,
    st.text(),
    st.lists(st.text(max_size=4), max_size=3),
)
def test_a_split_survives_json(
    split_id: str, position: Position | None, end: Position | None, topic: str, tags: list[str]
) -> None:
    """SER-2: identity for fresh, partly read and finished splits; storing again gives equal bytes."""
    split = Part(split_id, position, end, topic=topic, tags=tuple(tags))
    text = json.dumps(split.to_json(), sort_keys=True)
    back = Part.from_json(json.loads(text))
    assert back == split
    assert json.dumps(back.to_json(), sort_keys=True) == text
    assert pickle.loads(pickle.dumps(split)) == split


def test_a_split_is_frozen_and_progress_makes_a_new_one() -> None:
    """SPL-2: an immutable snapshot; `at` and `slice` keep the id and every field."""
    split = Part("a", 3, topic="t")
    with pytest.raises(dataclasses.FrozenInstanceError):
        split.position = 4  # type: ignore[misc]  # that is the point
    assert split.at(9) == Part("a", 9, topic="t")
    assert split.slice(1, 5) == Part("a", 1, 5, topic="t")
    assert split == Part("a", 3, topic="t")


@pytest.mark.parametrize(
    ("position", "advice"),
    [
        (1.5, "a float is not exact"),
        (dt.datetime(2024, 1, 1, tzinfo=dt.UTC), "microseconds since 1970"),
        (dt.date(2024, 1, 1), "microseconds since 1970"),
        (True, "an int, a str"),
        (b"x", "an int, a str"),
        ((1, 2.5), "a float is not exact"),
        ({"a": 1}, "an int, a str"),
    ],
)
def test_positions_that_are_not_exact_are_refused_with_advice(position: Any, advice: str) -> None:
    with pytest.raises(ContractError, match=advice) as raised:
        Split("a", position)
    assert raised.value.split == "a"
    with pytest.raises(ContractError):
        Split("a", 0, position)


def test_lists_become_tuples_because_json_makes_lists_of_tuples() -> None:
    """host-traps 17: (1, 2) and [1, 2] are one position."""
    assert Split("a", [1, [2, "x"]]) == Split("a", (1, (2, "x")))  # type: ignore[arg-type]  # as JSON gives it


@pytest.mark.parametrize("split_id", ["", None, 7])
def test_an_id_must_be_a_text(split_id: Any) -> None:
    """SPL-1: a non-empty text."""
    with pytest.raises(ContractError, match="non-empty string"):
        Split(split_id)


def test_an_older_version_is_brought_along_and_a_newer_one_refused() -> None:
    """SER-1: writes only its version, reads every older one, never guesses at a newer one."""
    golden = '{"v": 1, "id": "a", "position": 3, "place": "shelf"}'
    assert Renamed.from_json(json.loads(golden)) == Renamed("a", 3, where="shelf")
    assert Renamed("a", where="x").to_json()["v"] == 2
    with pytest.raises(ContractError, match="reads only versions up to 2"):
        Renamed.from_json({"v": 3, "id": "a", "where": "x"})
    with pytest.raises(ContractError, match="reads only versions up to 2"):
        Renamed.from_json({"id": "a", "where": "x"})
    with pytest.raises(ContractError, match="cannot convert version"):
        Part.from_json({"v": 0, "id": "a"})
    with pytest.raises(ContractError, match="do not fit Part"):
        Part.from_json({"v": 1, "id": "a", "nonsense": 1})


class Grown(Split):
    """Version 2 has a default for each of its fields."""

    version = 2
    key: str = ""
    shard: int = 0


def grown(upgrade: Callable[[dict[str, Any]], Any]) -> type[Grown]:
    """Return the class with this `upgrade`."""
    return type("Upgraded", (Grown,), {"upgrade": classmethod(lambda _, __, fields: upgrade(fields))})


def without(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda fields: {kept: value for kept, value in fields.items() if kept != name}


@pytest.mark.parametrize("lost", ["id", "position", "end", "key"])
def test_ser1_an_upgrade_that_loses_a_field_is_refused_and_names_it(lost: str) -> None:
    """SER-1: a default would take its place, and the start that of a lost position."""
    stored = {"v": 1, "id": "a", "position": 3, "end": 9, "key": "k"}
    for upgrade in (without(lost), lambda fields: {**fields, lost: None}):
        with pytest.raises(ContractError, match=f"loses the field '{lost}'") as raised:
            grown(upgrade).from_json(stored)
        assert raised.value.split == "a"
        assert "return {**fields, …}" in str(raised.value.advice)


def test_ser1_an_upgrade_that_changes_the_id_is_refused() -> None:
    """SPL-1: the split would be read again from its start, under its old id or the new one."""
    with pytest.raises(ContractError, match="changes the id of a stored split to 'xa'") as raised:
        grown(lambda fields: {**fields, "id": "x" + fields["id"]}).from_json({"v": 1, "id": "a", "position": 3})
    assert (raised.value.split, raised.value.rule) == ("a", "SPL-1")


def test_ser1_an_error_in_an_upgrade_names_it_and_the_split() -> None:
    """SER-1: `position` is missing in the fields of a split that was not begun."""
    with pytest.raises(ContractError, match=r"upgrade\(1, fields\) failed: KeyError: 'position'") as raised:
        grown(lambda fields: {**fields, "position": fields["position"] + 1}).from_json({"v": 1, "id": "a"})
    assert raised.value.split == "a" and "may be missing" in str(raised.value.advice)


def test_ser1_an_upgrade_may_drop_what_the_class_has_no_more_and_add_what_is_new() -> None:
    """SER-1."""
    more = grown(lambda fields: {**fields, "shard": 7})
    assert more.from_json({"v": 1, "id": "a", "position": 3, "key": "k"}) == more("a", 3, key="k", shard=7)
    fewer = grown(without("colour"))
    assert fewer.from_json({"v": 1, "id": "a", "position": 3, "key": "k", "colour": "red"}) == fewer("a", 3, key="k")


@pytest.mark.parametrize("result", [None, "text", ["id"]])
def test_ser1_an_upgrade_that_returns_no_fields_is_refused(result: Any) -> None:
    """SER-1."""
    with pytest.raises(ContractError, match="of a stored split"):
        grown(lambda _: result).from_json({"v": 1, "id": "a"})


def test_ser1_an_upgrade_with_a_field_that_the_class_does_not_have_names_those_it_has() -> None:
    """SER-1."""
    odd = grown(lambda fields: {**fields, "colour": "red"})
    with pytest.raises(ContractError, match="colour") as raised:
        odd.from_json({"v": 1, "id": "a", "position": 3})
    assert "id, position, end, key, shard" in str(raised.value.advice)
