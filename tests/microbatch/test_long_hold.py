# SPDX-License-Identifier: Apache-2.0
"""The warning about a stream that waits for one caught-up split: after a minute, once, naming the split."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
from manual_clock import ManualClock

from forebay.framework.microbatch.alignment import LongHold


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def hold(clock, caplog):
    caplog.set_level(logging.WARNING)
    return LongHold("orders-source", SimpleNamespace(clock=clock))


def test_one_warning_after_a_minute_names_source_and_split(hold, clock, caplog):
    hold.follow("orders/7")
    clock.advance(59)
    hold.follow("orders/7")
    assert not caplog.records
    clock.advance(1)
    hold.follow("orders/7")
    clock.advance(600)
    hold.follow("orders/7")
    (message,) = caplog.messages
    assert "orders-source" in message
    assert "'orders/7'" in message
    assert "idleTimeout" in message


@pytest.mark.parametrize("between", [None, "orders/8"], ids=["a record was read", "another split holds"])
def test_the_minute_begins_anew_when_the_hold_moves_on(hold, clock, caplog, between):
    hold.follow("orders/7")
    clock.advance(59)
    hold.follow(between)
    clock.advance(1)
    hold.follow("orders/7")
    clock.advance(59)
    hold.follow("orders/7")
    assert not caplog.records
    clock.advance(1)
    hold.follow("orders/7")
    assert len(caplog.records) == 1


def test_a_later_hold_by_another_split_is_named_too(hold, clock, caplog):
    for split in ("orders/7", "orders/8"):
        hold.follow(split)
        clock.advance(60)
        hold.follow(split)
    assert ["orders/7" in caplog.messages[0], "orders/8" in caplog.messages[1]] == [True, True]


def test_no_warning_while_no_split_holds_the_others(hold, clock, caplog):
    for _ in range(3):
        hold.follow(None)
        clock.advance(120)
    assert not caplog.records
