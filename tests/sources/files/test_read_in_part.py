# SPDX-License-Identifier: Apache-2.0
"""Files that disappear or move after a stream has read a part of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import DataError

Put = Callable[..., Path]
Begin = Callable[..., Any]


def numbers(first: int, count: int) -> str:
    return "".join(f"{number:09}\n" for number in range(first, first + count))


@pytest.mark.parametrize("over_a_restart", [False, True])
def test_a_file_that_is_gone_when_half_of_it_was_read_is_an_error_before_more_of_it_is_planned(
    put: Put, stream: Begin, over_a_restart: bool
) -> None:
    path = put("a.txt", numbers(0, 30))
    put("b.txt", numbers(90, 5), at=1)
    query = stream(max_bytes_per_trigger=100)
    assert len(query.trigger()) == 10
    path.unlink()
    if over_a_restart:
        query.restart()
    query.clock.advance(60)
    with pytest.raises(DataError, match="was read only in part, and no longer exists") as raised:
        query.plan()
    assert raised.value.split == str(path)
    assert raised.value.option == "ignoreMissingFiles"
    put("a.txt", numbers(0, 30))
    query.restart()
    assert [value for values in query.drain() for value in values] == [
        *numbers(10, 20).split(),
        *numbers(90, 5).split(),
    ]


def test_the_rest_of_a_file_that_is_gone_is_left_out_if_the_user_says_so(put: Put, stream: Begin) -> None:
    path = put("a.txt", numbers(0, 30))
    put("b.txt", numbers(90, 5), at=1)
    query = stream(max_bytes_per_trigger=100)
    query.trigger()
    path.unlink()
    query.restart(ignore_missing_files=True)
    assert query.drain() == [numbers(90, 5).split()]
    put("a.txt", numbers(0, 30))
    query.restart()
    assert query.drain() == []


def test_what_is_not_listed_any_more_but_there_is_read_to_its_end(put: Put, stream: Begin) -> None:
    put("a.txt", numbers(0, 30))
    put("new/b.txt", numbers(90, 5), at=1)
    query = stream(max_bytes_per_trigger=100)
    assert len(query.trigger()) == 10
    path = put("a.txt", numbers(0, 30)).parent
    query.restart(path=f"{path}/new")
    assert [value for values in query.drain() for value in values] == [
        *numbers(10, 20).split(),
        *numbers(90, 5).split(),
    ]
    put("new/c.txt", numbers(0, 30), at=2)
    assert len(query.trigger()) == 10
    put("new/c.txt", numbers(0, 31), at=3)
    query.restart(path=str(path), recursive_file_lookup=False)
    with pytest.raises(DataError, match="has changed since it was read"):
        query.plan()
