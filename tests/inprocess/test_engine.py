# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from forebay.framework.runtime.runtime import Next


@pytest.fixture
def stepped(world, engine_of, one_thread):
    """An engine, and how to step it until it brings something."""
    engine = engine_of(world, one_thread)

    def until_batch():
        for _ in range(1000):
            engine.step()
            one_thread.turn()
            if (batch := engine.take()) is not None:
                return batch
        return None

    return engine, until_batch


def test_nothing_happens_until_it_is_asked(stepped, world):
    """RDR-4: the current batch is not covered, so no step may happen."""
    engine, until_batch = stepped
    assert engine.step() is Next.WAIT and world.journal == []
    engine.ask()
    assert until_batch() is not None
    before = engine.progress()
    assert [engine.step() for _ in range(20)] == [Next.WAIT] * 20
    assert engine.progress() == before


def test_a_batch_that_was_not_taken_is_kept(stepped, one_thread):
    engine, _ = stepped
    engine.ask()
    while engine._ready is None:
        engine.step()
        one_thread.turn()
    assert engine.step() is Next.WAIT
    assert engine.take() is not None and engine.take() is None


def test_steps_alone_drive_a_whole_run(stepped, world, kit):
    """ENU-10: one thread, no wait anywhere: what a simulator needs."""
    engine, until_batch = stepped
    batches = []
    while True:
        engine.ask()
        batch = until_batch()
        if batch is None:
            break
        batches.append(batch)
    assert sorted(kit.rows_of(batches)) == world.everything()
    assert engine.step() is Next.DONE
    assert engine.close() == [] and engine.close() == []
