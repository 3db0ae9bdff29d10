# SPDX-License-Identifier: Apache-2.0
"""Files that a stream forgets, and forgotten files that change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Put = Callable[..., Path]
Begin = Callable[..., Any]
DAY = 86_400


@pytest.mark.parametrize("on_changed_file", ["error", "ignore", "reread"])
def test_a_file_that_was_forgotten_and_changes_is_a_new_one(put: Put, stream: Begin, on_changed_file: str) -> None:
    put("a.txt", "1\n")
    query = stream(max_file_age="10s", on_changed_file=on_changed_file)
    for second in (0, 30, 60):
        query.clock.advance(30)
        put(f"{second}.txt", at=second)
        query.drain()
    assert not [split_id for split_id in query.planner._committed.done if split_id.endswith("a.txt")]
    put("a.txt", "1\n2\n", at=61)
    assert query.drain() == [["1", "2"]]


@pytest.mark.parametrize("what", ["latest first", "no times", "years ahead"])
def test_what_is_never_forgotten(put: Put, stream: Begin, what: str) -> None:
    options: dict[str, Any] = {"latest_first": True} if what == "latest first" else {}
    ahead = 3 * 365 * DAY if what == "years ahead" else 0
    query = stream(max_file_age="10s", **options)
    for second in range(0, 100, 20):
        query.clock.advance(20)
        put(f"{second}.txt", at=(-1_700_000_000 if what == "no times" else second + ahead))
        query.drain()
    assert len(query.planner._committed.done) == 5
