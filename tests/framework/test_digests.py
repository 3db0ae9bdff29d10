# SPDX-License-Identifier: Apache-2.0
"""Digests recognise what was added, take few characters, and are read back exactly or refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.framework.digests import Digest, SplitDigests
from forebay.framework.split import Split


class File(Split):
    """A file."""

    moment: int = 0


def made(split: Split) -> list[Digest]:
    return [Digest(split.id, len(split.id), split.moment)] if isinstance(split, File) else []


def files(first: int, count: int) -> list[File]:
    return [File(f"/in/{number}", moment=number) for number in range(first, first + count)]


added = st.lists(st.lists(st.tuples(st.integers(0, 300), st.integers(-50, 50)), max_size=20), max_size=15)


@given(added, st.sampled_from([None, 1, 7, 1000]), st.integers(-60, 60))
def test_what_was_added_is_recognised_until_its_time_is_over(groups, span, moment):
    digests, model = SplitDigests(made, span), {}
    for group in groups:
        new = {f"{number}": File(f"{number}", moment=at) for number, at in group if f"{number}" not in model}
        assert sorted(digests.add(new.values())) == sorted(new)
        model |= new
    digests.expire(moment)
    again = SplitDigests(made, span)
    again.load(json.loads(json.dumps(digests.dump())))
    assert again.dump() == digests.dump()
    for split_id, split in model.items():
        assert again.mark(split_id) == digests.mark(split_id)
        assert digests.mark(split_id) in ((len(split_id),) if split.moment >= moment else (len(split_id), None))
    assert digests.mark("another") is None
    if span == 1:
        assert len(digests) == sum(split.moment >= moment for split in model.values())


def test_a_split_takes_fourteen_characters_and_few_segments_hold_many():
    digests = SplitDigests(made, None)
    for first in range(0, 20_000, 100):
        digests.add(files(first, 100))
    assert len(digests) == 20_000
    assert digests.characters < 13.7 * 20_000
    assert len(digests.dump()) <= 15
    assert digests.mark("/in/19999") == 9


def test_segments_of_one_time_are_merged_and_others_are_left():
    digests = SplitDigests(made, 1000)
    for first in range(0, 10_000, 500):
        digests.add(files(first, 500))
    assert len(digests.dump()) == 10
    digests.dropped.clear()
    before = digests.entries()
    digests.expire(5000)
    assert len(digests) == 5000
    assert {*digests.dropped} == {*before} - {*digests.entries()}


def test_a_split_without_a_digest_is_left_out():
    digests = SplitDigests(made)
    assert digests.add([Split("whole"), File("a")]) == ["a"]
    assert SplitDigests().add([File("a")]) == []


@pytest.mark.parametrize(
    "damage",
    [
        None,
        7,
        [[]],
        [["x", 1, "y"]],
        [[1, 1, "no digests"]],
        [[1, 2, "3"]],
        lambda text: text[:-8],
        lambda text: "~" + text[1:],
    ],
)
def test_damage_is_refused(damage):
    digests = SplitDigests(made)
    digests.add(files(0, 100))
    data = digests.dump()
    broken = [[*data[0][:2], damage(data[0][2])]] if callable(damage) else damage
    with pytest.raises((TypeError, ValueError)):
        SplitDigests(made).load(broken)
