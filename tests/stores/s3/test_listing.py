# SPDX-License-Identifier: Apache-2.0
"""Listings in ranges, with a scripted client of any keys: each key once and in order, in few requests."""

from __future__ import annotations

import random
import runpy
from pathlib import Path
from typing import Any

import pytest

from forebay.stores.s3 import store as listing
from forebay.stores.s3.store import Listing

# Tests are no package; this file is shared with a program of its own process.
scripted_lister = runpy.run_path(str(Path(__file__).with_name("scripted_lister.py")))


def scripted(keys: list[str]) -> Any:
    lister = scripted_lister["ScriptedLister"](0)
    lister.keys = sorted(keys)
    return lister


def made(chance: random.Random) -> list[str]:
    """Return keys of some shape: deep or flat, with one directory or many, also with names that sort around a slash."""
    odd = chance.sample(["", "a-b", "a", "a0", "é", "😀"], 3)
    names = [f"n{number}" for number in range(chance.choice([1, 2, 30]))] + odd
    depth = chance.choice([0, 1, 2, 5])
    stem = "one/way/down/" * chance.choice([0, 1, 3])
    keys = {
        stem + "/".join([*(chance.choice(names) for _ in range(chance.randint(0, depth))), f"f{chance.randrange(999)}"])
        for _ in range(chance.choice([3, 60, 900]))
    }
    return [f"top/{key}" for key in keys] + ["top", "top-", "top0", "zzz"]


@pytest.mark.parametrize("seed", range(120))
def test_any_tree_is_listed_whole_and_in_order(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chance = random.Random(seed)
    page = chance.choice([2, 7, 50])
    monkeypatch.setattr(listing, "PAGE", page)
    lister = scripted(made(chance))
    after = chance.choice(["", "", chance.choice(lister.keys)])
    found = Listing(lister, "b", "s3").tree("top/", lambda _: True, after)
    wanted = [key for key in lister.keys if key.startswith("top/") and key > after]
    assert list(found.paths()) == [f"s3://b/{key}" for key in wanted]
    assert found.is_ascending()
    assert lister.requests <= len(wanted) / page + 1 + listing.THREADS * 4 + listing._DIRECTORY_PAGES * listing._LEVELS


def test_a_long_listing_reports_its_progress(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(listing, "PAGE", 2)
    monkeypatch.setattr(listing, "_REPORT_SECONDS", 0.0)
    lister = scripted([f"top/{day}/{part}" for day in range(10) for part in range(10)])
    with caplog.at_level("INFO", "forebay.stores.s3.store"):
        assert len(Listing(lister, "b", "s3").tree("top/", lambda _: True)) == 100
    reported = [record.getMessage() for record in caplog.records]
    assert len(reported) > 2
    assert reported[-1].startswith("listed 100 objects below s3://b/top/; ")
