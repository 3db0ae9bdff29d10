# SPDX-License-Identifier: Apache-2.0
"""Flink's WatermarkOutputMultiplexerTest, and the rules it does not know."""

from __future__ import annotations

import itertools

import pytest

from forebay.errors import ContractError
from forebay.watermarks.event_time import MAX_WATERMARK, MIN_WATERMARK
from forebay.watermarks.outputs import WatermarkMultiplexer


class Recorder:
    """A downstream that remembers everything in order, and checks the order of signals."""

    def __init__(self) -> None:
        self.calls: list[object] = []
        self.idle = False

    @property
    def last(self):
        return next((call for call in reversed(self.calls) if isinstance(call, int)), None)

    def emit_watermark(self, us):
        assert not self.idle, "no watermark comes while the downstream is idle"
        assert self.last is None or us > self.last, "watermarks strictly rise"
        self.calls.append(us)

    def mark_idle(self):
        assert not self.idle, "idle is signalled once"
        self.idle = True
        self.calls.append("idle")

    def mark_active(self):
        assert self.idle, "active is signalled once"
        self.idle = False
        self.calls.append("active")


@pytest.fixture
def down():
    return Recorder()


@pytest.fixture
def combined(down):
    return WatermarkMultiplexer(down)


_ids = itertools.count()


def immediate(combined):
    output_id = f"output-{next(_ids)}"
    combined.register(output_id)
    return combined.immediate(output_id)


def deferred(combined):
    output_id = f"output-{next(_ids)}"
    combined.register(output_id)
    return combined.deferred(output_id)


def test_single_immediate_watermark(combined, down):
    """WX-1: singleImmediateWatermark."""
    immediate(combined).emit_watermark(0)
    assert down.calls == [0]


def test_single_immediate_idleness(combined, down):
    """WX-3: singleImmediateIdleness, idle without any watermark."""
    immediate(combined).mark_idle()
    assert down.calls == ["idle"]


def test_single_immediate_watermark_after_idleness(combined, down):
    """WX-3: singleImmediateWatermarkAfterIdleness, emitting a watermark makes the output active again."""
    output = immediate(combined)
    output.mark_idle()
    output.emit_watermark(0)
    assert down.calls == ["idle", "active", 0]


def test_multiple_immediate_watermark(combined, down):
    """WX-1: multipleImmediateWatermark, the minimum over active outputs."""
    one, two, three = immediate(combined), immediate(combined), immediate(combined)
    one.emit_watermark(2)
    two.emit_watermark(5)
    three.mark_idle()
    assert down.calls == [2]


def test_when_immediate_output_becomes_idle_watermark_advances(combined, down):
    """WX-1: whenImmediateOutputBecomesIdleWatermarkAdvances."""
    one, two = immediate(combined), immediate(combined)
    one.emit_watermark(2)
    two.emit_watermark(5)
    assert down.calls == [2]
    one.mark_idle()
    assert down.calls == [2, 5]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_when_all_immediate_outputs_become_idle_watermark_advances(combined, down, order):
    """WX-3: whenAllImmediateOutputsBecomeIdleWatermarkAdvances, whichever becomes idle first."""
    outputs = [immediate(combined), immediate(combined)]
    outputs[0].emit_watermark(5)
    outputs[1].emit_watermark(2)
    assert down.calls == [2]
    for each in order:
        outputs[each].mark_idle()
    assert down.calls == [2, 5, "idle"]


def test_when_all_deferred_outputs_emit_and_idle_watermark_advances(combined, down):
    """WX-3: whenAllDeferredOutputsEmitAndIdleWatermarkAdvances, the maximum is flushed before idle."""
    one, two = deferred(combined), deferred(combined)
    one.emit_watermark(5)
    one.mark_idle()
    two.emit_watermark(2)
    two.mark_idle()
    assert down.calls == []
    combined.update()
    assert down.calls == [5, "idle"]


def test_combined_watermark_does_not_regress_when_idle_output_regresses(combined, down):
    """WX-1: combinedWatermarkDoesNotRegressWhenIdleOutputRegresses."""
    one, two = immediate(combined), immediate(combined)
    one.emit_watermark(2)
    two.emit_watermark(5)
    one.mark_idle()
    one.emit_watermark(3)
    assert down.calls == [2, 5]


def test_an_idle_output_that_returns_lower_holds_the_next_advance(combined, down):
    """WX-1: an output that came back takes part in the minimum again."""
    one, two = immediate(combined), immediate(combined)
    one.emit_watermark(2)
    two.emit_watermark(5)
    one.mark_idle()
    one.emit_watermark(3)
    two.emit_watermark(9)
    assert down.calls == [2, 5]
    one.emit_watermark(7)
    assert down.calls == [2, 5, 7]


def test_no_combined_deferred_update_when_we_have_zero_outputs(combined, down):
    """WX-4: noCombinedDeferredUpdateWhenWeHaveZeroOutputs, nothing emitted and not idle."""
    combined.update()
    assert down.calls == [] and not combined.idle and combined.watermark == MIN_WATERMARK


def test_deferred_output_does_not_immediately_advance_watermark(combined, down):
    """WX-2: deferredOutputDoesNotImmediatelyAdvanceWatermark."""
    one, two = deferred(combined), deferred(combined)
    one.emit_watermark(0)
    two.emit_watermark(1)
    assert down.calls == []
    combined.update()
    assert down.calls == [0]


def test_single_deferred_watermark(combined, down):
    """WX-2: singleDeferredWatermark."""
    deferred(combined).emit_watermark(0)
    combined.update()
    assert down.calls == [0]


def test_single_deferred_idleness(combined, down):
    """WX-3: singleDeferredIdleness, signalled once however often the tick comes."""
    deferred(combined).mark_idle()
    assert down.calls == []
    combined.update()
    combined.update()
    assert down.calls == ["idle"]


def test_single_deferred_watermark_after_idleness(combined, down):
    """WX-3: singleDeferredWatermarkAfterIdleness."""
    output = deferred(combined)
    output.mark_idle()
    combined.update()
    output.emit_watermark(0)
    combined.update()
    assert down.calls == ["idle", "active", 0]


def test_multiple_deferred_watermark(combined, down):
    """WX-1: multipleDeferredWatermark."""
    one, two, three = deferred(combined), deferred(combined), deferred(combined)
    one.emit_watermark(2)
    two.emit_watermark(5)
    three.mark_idle()
    combined.update()
    assert down.calls == [2]


def test_immediate_updates_take_deferred_updates_into_account(combined, down):
    """WX-2: immediateUpdatesTakeDeferredUpdatesIntoAccount, the two are taken together."""
    now, later = immediate(combined), deferred(combined)
    later.emit_watermark(5)
    assert down.calls == []
    now.emit_watermark(2)
    assert down.calls == [2]


def test_immediate_update_on_same_output_as_deferred_update_does_not_regress(combined, down):
    """WX-1: immediateUpdateOnSameOutputAsDeferredUpdateDoesNotRegress."""
    combined.register("same")
    combined.deferred("same").emit_watermark(5)
    combined.update()
    combined.immediate("same").emit_watermark(2)
    combined.update()
    assert down.calls == [5]


def test_lower_immediate_update_on_same_output_does_not_emit_combined_update(combined, down):
    """WX-2: lowerImmediateUpdateOnSameOutputDoesNotEmitCombinedUpdate."""
    combined.register("same")
    combined.deferred("same").emit_watermark(5)
    combined.immediate("same").emit_watermark(2)
    assert down.calls == []


def test_remove_unblocks_watermarks(combined, down):
    """WX-4: testRemoveUnblocksWatermarks."""
    combined.register("lower")
    combined.register("higher")
    combined.immediate("lower").emit_watermark(156765)
    combined.unregister("lower")
    combined.immediate("higher").emit_watermark(156775)
    assert down.calls == [156775]


def test_remove_of_lowest_does_not_immediately_advance_watermark(combined, down):
    """WX-4: testRemoveOfLowestDoesNotImmediatelyAdvanceWatermark, the next update does."""
    combined.register("lower")
    combined.register("higher")
    combined.immediate("lower").emit_watermark(-4343)
    combined.immediate("higher").emit_watermark(-4333)
    combined.unregister("lower")
    assert down.calls == [-4343]
    combined.update()
    assert down.calls == [-4343, -4333]


def test_remove_of_highest_does_not_retract_watermark(combined, down):
    """WX-4: testRemoveOfHighestDoesNotRetractWatermark."""
    combined.register("higher")
    combined.immediate("higher").emit_watermark(2)
    combined.unregister("higher")
    combined.register("lower")
    combined.immediate("lower").emit_watermark(1)
    assert down.calls == [2]


def test_remove_registered_return_value(combined):
    """WX-4: testRemoveRegisteredReturnValue."""
    combined.register("does-exist")
    assert combined.unregister("does-exist") is True


def test_remove_not_registered_return_value(combined):
    """WX-4: testRemoveNotRegisteredReturnValue."""
    assert combined.unregister("does-not-exist") is False


def test_not_emitting_idle_after_all_splits_removed(combined, down):
    """WX-4: testNotEmittingIdleAfterAllSplitsRemoved."""
    combined.register("only")
    combined.immediate("only").emit_watermark(1)
    combined.unregister("only")
    combined.update()
    assert down.calls == [1] and not combined.idle


def test_when_idle_immediate_outputs_become_active_the_downstream_is_marked_active(combined, down):
    """WX-3: whenIdleImmediateOutputsBecomeActiveUnderlyingOutputIsMarkedActive."""
    one, two = immediate(combined), immediate(combined)
    one.emit_watermark(5)
    two.emit_watermark(2)
    one.mark_idle()
    two.mark_idle()
    one.mark_active()
    assert down.calls == [2, 5, "idle", "active"]


def test_when_an_idle_deferred_output_resumes_the_downstream_is_marked_active(combined, down):
    """WX-3: whenIdleDeferredOutputResumesUnderlyingOutputIsMarkedActive, also if it does not advance."""
    one, two = deferred(combined), deferred(combined)
    one.emit_watermark(5)
    two.emit_watermark(2)
    one.mark_idle()
    two.mark_idle()
    combined.update()
    one.emit_watermark(3)
    combined.update()
    assert down.calls == [5, "idle", "active"]


def test_an_immediate_output_that_resumes_below_the_combined_watermark_ends_idleness(combined, down):
    """WX-3: emitting any watermark makes the output active, and with it the downstream."""
    output = immediate(combined)
    output.emit_watermark(5)
    output.mark_idle()
    output.emit_watermark(3)
    assert down.calls == [5, "idle", "active"]


def test_when_a_registered_output_reports_nothing_nothing_is_reported(combined, down):
    """WX-4: whenRegisteredOutputReportsNothingNothingIsReported."""
    combined.register("silent")
    combined.update()
    assert down.calls == []


def test_an_output_registered_while_all_are_idle_ends_idleness_at_the_next_update(combined, down):
    """OUT-4: an unread split holds the watermark, so the source is not idle."""
    immediate(combined).mark_idle()
    combined.register("new")
    assert down.calls == ["idle"]
    combined.update()
    assert down.calls == ["idle", "active"]


def test_a_flush_of_outputs_that_are_idle_again_wakes_and_rests_the_downstream(combined, down):
    """WX-3: a watermark from before the output fell silent again is not withheld."""
    output = deferred(combined)
    output.mark_idle()
    combined.update()
    output.emit_watermark(9)
    output.mark_idle()
    combined.update()
    assert down.calls == ["idle", "active", 9, "idle"]


def test_a_duplicate_id_is_an_error_that_names_it(combined):
    """WX-4: duplicate id → error."""
    combined.register("orders-3")
    with pytest.raises(ContractError, match="orders-3") as caught:
        combined.register("orders-3")
    assert caught.value.rule == "WX-4" and caught.value.split == "orders-3"


@pytest.mark.parametrize("ask", ["immediate", "deferred", "watermark_of", "idle_of"])
def test_an_unknown_id_is_an_error_that_names_it(combined, ask):
    with pytest.raises(ContractError, match="orders-3"):
        getattr(combined, ask)("orders-3")


@pytest.mark.parametrize("wrong", [1.5, None, "7", True, MAX_WATERMARK + 1, MIN_WATERMARK - 1])
@pytest.mark.parametrize("kind", ["immediate", "deferred"])
def test_what_is_no_watermark_is_refused_with_the_split(combined, wrong, kind):
    """WM-1: a watermark is an event time, 64-bit microseconds."""
    combined.register("orders-3")
    with pytest.raises(ContractError) as caught:
        getattr(combined, kind)("orders-3").emit_watermark(wrong)
    assert caught.value.split == "orders-3" and caught.value.rule == "WM-1"


def test_a_finished_output_leaves_the_minimum(combined, down):
    """AL-1 and opportunity 14: finished is not MAX for the others, they go on at their own pace."""
    one, two = immediate(combined), immediate(combined)
    one.emit_watermark(3)
    two.emit_watermark(8)
    one.emit_watermark(MAX_WATERMARK)
    assert down.calls == [3, 8]
    two.emit_watermark(9)
    assert down.calls == [3, 8, 9]


@pytest.mark.parametrize("finish_first", [True, False])
def test_one_finished_and_the_rest_idle_is_idle_and_not_the_end(combined, down, finish_first):
    """Opportunity 14: FLINK-38477, an idle output that comes back must not find everything late."""
    one, two = immediate(combined), immediate(combined)
    one.emit_watermark(3)
    two.emit_watermark(8)
    steps = [lambda: one.emit_watermark(MAX_WATERMARK), two.mark_idle]
    for step in steps if finish_first else reversed(steps):
        step()
    assert down.calls == [3, 8, "idle"]
    two.emit_watermark(9)
    assert down.calls == [3, 8, "idle", "active", 9]


def test_when_all_are_finished_the_end_goes_downstream_once(combined, down):
    """WM-1: MAX at the end of the input; opportunity 14: only when all are finished, idle or not before."""
    one, two = immediate(combined), immediate(combined)
    one.emit_watermark(MAX_WATERMARK)
    two.mark_idle()
    two.emit_watermark(MAX_WATERMARK)
    combined.update()
    assert down.calls == ["idle", "active", MAX_WATERMARK]
    assert not combined.any_active()


def test_nothing_follows_the_end(combined, down):
    """WM-1: after MAX there is neither a watermark nor idleness."""
    combined.register("a")
    combined.finish()
    combined.finish()
    combined.immediate("a").mark_idle()
    combined.immediate("a").emit_watermark(4)
    combined.update()
    assert down.calls == [MAX_WATERMARK]


def test_any_hashable_may_be_an_id(combined, down):
    """A host combines its readers by their index with the same object."""
    for reader in (0, 1):
        combined.register(reader)
        combined.immediate(reader).emit_watermark(10 + reader)
    assert down.calls == [10] and combined.watermark_of(1) == 11


def test_activity_differs_from_having_no_outputs(combined):
    """Design §6: without an active output, hosts must not wait for this watermark."""
    assert not combined.any_active()
    combined.register("a")
    assert combined.any_active()
    combined.immediate("a").mark_idle()
    assert not combined.any_active() and combined.idle_of("a")
