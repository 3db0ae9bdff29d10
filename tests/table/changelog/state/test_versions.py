# SPDX-License-Identifier: Apache-2.0
"""Segments and merges against a dictionary: every version that is kept can be read, and nothing else stays."""

from __future__ import annotations

import math
import random
from itertools import pairwise
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.table.changelog.state import segments, shard
from forebay.table.changelog.state import shard as merging
from forebay.table.changelog.state.shard import lookup

NAMES = st.tuples(st.integers(-3, 3), st.integers(0, 4))
MICRO_BATCHES = st.lists(st.dictionaries(NAMES, st.integers(-1, 2), max_size=12), min_size=1, max_size=14)


@pytest.fixture(scope="session")
def limits():
    """Patch the limits of segments and runs."""

    def patched(rows, size, small):
        return (
            mock.patch.multiple(merging, ROWS=rows, BYTES=size, SMALL=small),
            mock.patch.object(segments.split_rows, "__defaults__", (rows, size)),
            mock.patch.multiple(shard, SWEEP=4),
        )

    return patched


@given(
    steps=MICRO_BATCHES,
    keep=st.integers(1, 4),
    rows=st.integers(1, 40),
    size=st.sampled_from([1, 200, 1 << 20]),
    small=st.sampled_from([0, 1, 5, 1000]),
)
def test_all_kept_versions_are_readable_under_any_limits(memory_shard, limits, steps, keep, rows, size, small):
    """Inserts, updates, retractions and tombstones; a key may be in several segments of a run."""
    one, two, three = limits(rows, size, small)
    with one, two, three:
        on = memory_shard(keep)
        manifest = on.step({})
        for entries in steps:
            manifest = on.step(entries)
            assert on.shard.versions()[-1] == on.version - 1
            for version in range(max(0, on.version - 1 - keep), on.version):
                assert on.stored(version) == on.history[version]
            for run in manifest.runs:
                assert all(one.last <= other.first for one, other in pairwise(run))
                assert all(one.rows <= rows for one in run)
        assert on.shard.versions() == list(range(max(0, on.version - 1 - keep), on.version))
        retired = {name for _, name in manifest.retired}
        assert on.segment_files() <= on.segments_in_use() | retired


@given(data=st.data(), rows=st.integers(1, 6))
def test_a_lookup_finds_the_keys_that_it_asks_for_over_borders_of_segments(memory_shard, limits, data, rows):
    one, two, three = limits(rows, 1 << 20, 0)
    with one, two, three:
        on = memory_shard()
        for entries in data.draw(st.lists(st.dictionaries(NAMES, st.integers(1, 2), max_size=30), max_size=4)):
            on.step(entries)
        asked = sorted(data.draw(st.sets(st.integers(-5, 5))))
        if on.version:
            found = on.stored(on.version - 1, np.array(asked, np.int64))
            assert found == {name: count for name, count in on.model.items() if name[0] in asked}


def test_a_key_whose_entries_span_several_segments(memory_shard, limits):
    one, two, three = limits(10, 1 << 20, 0)
    with one, two, three:
        on = memory_shard()
        on.step({(5, row): 1 for row in range(95)} | {(key, 0): 1 for key in (4, 6)})
        manifest = on.step({(5, row): 0 for row in range(0, 95, 2)})
        assert sum(segment.first == segment.last == 5 for run in manifest.runs for segment in run) > 5
        assert on.stored(1) == on.model
        assert on.stored(1, np.array([4, 6])) == {(4, 0): 1, (6, 0): 1}


@pytest.mark.parametrize("entries", [100_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_very_many_entries_of_one_key(memory_shard, limits, entries):
    one, two, three = limits(entries // 4, 64 << 20, 4096)
    on = memory_shard(remembers=False)
    with one, two, three:
        on.step({(5, row): 1 for row in range(entries)})
        manifest = on.step({(5, row): 0 for row in range(0, entries, 2)} | {(6, 0): 1})
    assert sum(len(run) for run in manifest.runs) > 4
    runs = on.shard.open(manifest)
    found = lookup(runs, np.array([5]), timed=False)
    assert len(found) == entries // 2 and (found.row_hashes % 2 == 1).all()
    assert len(lookup(runs, np.array([6]), timed=False)) == 1


def test_what_killed_attempts_left_is_swept(memory_shard, limits):
    """P4: an attempt is killed between its segments and its manifest, again and again."""
    rng = random.Random(1)

    class Killed(Exception):
        pass

    def kill(name):
        if name.endswith(".json") and rng.random() < 0.5:
            raise Killed

    one, two, three = limits(4, 1 << 20, 2)
    with one, two, three:
        on = memory_shard(keep=2)
        on.step({})
        on.store.before_put = kill
        while on.version < 30:
            entries = {(rng.randrange(9), rng.randrange(3)): rng.randrange(3) for _ in range(6)}
            try:
                on.step(entries)
            except Killed:
                continue
            for version in range(max(0, on.version - 3), on.version):
                assert on.stored(version) == on.history[version]
        on.store.before_put = lambda name: None
        orphans = on.segment_files() - on.segments_in_use()
        assert orphans, "no attempt was killed after it had written a segment"
        for _ in range(8):
            on.step({})
        assert on.segment_files() == on.segments_in_use()


def test_of_two_attempts_one_writes_and_the_other_leaves_nothing(memory_shard):
    """P4: speculation."""
    on = memory_shard()
    on.step({(1, 1): 1})
    other = memory_shard()
    other.store = on.store
    other.shard = shard.Shard(on.store, on.store, "op/", 0, 3)
    other.version = on.version
    entries = {(1, 1): 0, (2, 2): 1}

    def overtake(name):
        if name.endswith("v000000000001.json"):
            on.store.before_put = lambda name: None
            other.step(entries)

    on.store.before_put = overtake
    assert on.step(entries) == on.shard.manifest(1)
    assert on.segment_files() == on.segments_in_use()
    assert on.stored(1) == {(2, 2): 1}


@pytest.mark.soak(but=["random"])
@pytest.mark.parametrize("sizes", ["equal", "falling", "random", "rising"])
def test_a_micro_batch_costs_what_it_touches_and_a_logarithm(memory_shard, limits, sizes):
    """Entries written and runs searched, not time: both grow with the logarithm of what is stored."""
    rng = random.Random(2)
    each = {
        "equal": [20] * 400,
        "falling": list(range(200, 0, -1)),
        "random": [rng.randrange(1, 60) for _ in range(400)],
        "rising": list(range(1, 150)),
    }[sizes]
    one, two, three = limits(1 << 18, 64 << 20, 0)
    with one, two, three:
        on = memory_shard(remembers=False)
        total = 0
        runs = []
        for size in each:
            manifest = on.step({(rng.getrandbits(62), 0): 1 for _ in range(size)})
            total += size
            runs.append(len(manifest.runs))
            assert runs[-1] <= 2 + 2 * math.log2(len(each)), f"{runs[-1]} runs of {total} entries"
        assert on.store.rows_written <= total * (2 + math.log2(len(each)))


def test_a_small_micro_batch_writes_as_much_beside_many_entries_as_beside_few(memory_shard, limits):
    def cost(stored):
        one, two, three = limits(1 << 18, 64 << 20, 64)
        with one, two, three:
            on = memory_shard(remembers=False)
            on.step({(key * 1009, 0): 1 for key in range(stored)})
            begun = on.store.written, on.store.rows_written
            for number in range(64):
                on.step({(key * 1009, 0): number + 2 for key in range(number, 640 + number, 64)})
            return on.store.written - begun[0], on.store.rows_written - begun[1]

    (few_bytes, few_rows), (many_bytes, many_rows) = cost(10_000), cost(200_000)
    assert many_rows == few_rows
    assert many_bytes < 1.05 * few_bytes


def test_a_small_micro_batch_does_not_rewrite_large_payloads(memory_shard, limits):
    """The bytes of a run count too: 500 entries of 50 KB are no small run."""
    one, two, three = limits(1 << 18, 64 << 20, 4096)
    with one, two, three:
        on = memory_shard(remembers=False)
        on.text = "x" * 50_000
        on.step({(key, 0): 1 for key in range(500)})
        begun = on.store.written
        for number in range(20):
            on.step({(number, 0): 2})
        assert on.store.written - begun < 20 * 25_000_000 / 10, "whole runs are written again and again"
