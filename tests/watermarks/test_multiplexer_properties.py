# SPDX-License-Identifier: Apache-2.0
"""The combined watermark against brute force, for random histories."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay.watermarks.event_time import MAX_WATERMARK, MIN_WATERMARK
from forebay.watermarks.outputs import WatermarkMultiplexer

IDS = ["a", "b", "c", "d"]
ACTIONS = st.one_of(
    st.tuples(st.sampled_from(["immediate", "deferred"]), st.sampled_from(IDS), st.integers(-50, 50)),
    st.tuples(st.sampled_from(["immediate", "deferred"]), st.sampled_from(IDS), st.just(MAX_WATERMARK)),
    st.tuples(
        st.sampled_from(["idle", "later idle", "active", "register", "unregister"]), st.sampled_from(IDS), st.none()
    ),
    st.just(("tick", "a", None)),
)


class Strict:
    """A downstream that checks the order of the calls."""

    def __init__(self) -> None:
        self.last, self.idle = MIN_WATERMARK, False

    def emit_watermark(self, us):
        assert us > self.last, f"{us} after {self.last}: watermarks strictly rise"
        assert not self.idle
        self.last = us

    def mark_idle(self):
        assert not self.idle
        self.idle = True

    def mark_active(self):
        assert self.idle
        self.idle = False


class Model:
    """Outputs as plain pairs, everything recomputed each time."""

    def __init__(self) -> None:
        self.outputs: dict[str, tuple[int, bool]] = {}
        self.last, self.idle = MIN_WATERMARK, False

    def update(self):
        if not self.outputs or self.last == MAX_WATERMARK:
            return
        unfinished = {us: idle for us, idle in sorted(self.outputs.values(), reverse=True) if us != MAX_WATERMARK}
        active = [us for us, idle in self.outputs.values() if not idle and us != MAX_WATERMARK]
        self.idle = not active and bool(unfinished)
        floor = min(active) if active else max(unfinished) if unfinished else MAX_WATERMARK
        self.last = max(self.last, floor)


def play(combined, model, action):
    kind, output_id, us = action
    if kind == "tick":
        combined.update()
        model.update()
    elif kind == "register":
        if output_id not in model.outputs:
            combined.register(output_id)
            model.outputs[output_id] = (MIN_WATERMARK, False)
    elif kind == "unregister":
        assert combined.unregister(output_id) is (model.outputs.pop(output_id, None) is not None)
    elif output_id in model.outputs:
        signal(combined, model, kind, output_id, us)


def signal(combined, model, kind, output_id, us):
    before, _ = model.outputs[output_id]
    output = combined.deferred(output_id) if kind in ("deferred", "later idle") else combined.immediate(output_id)
    if us is not None:
        output.emit_watermark(us)
        model.outputs[output_id] = (max(us, before), False)
        combines = kind == "immediate" and (model.idle or (us > before and us > model.last))
    else:
        output.mark_active() if kind == "active" else output.mark_idle()
        model.outputs[output_id] = (before, kind != "active")
        combines = kind != "later idle"
    if combines:
        model.update()


@given(st.integers(0, 4), st.lists(ACTIONS, max_size=60))
def test_the_combination_equals_brute_force_at_every_step(registered, actions):
    """WX-1: min over active outputs, never backwards; WX-2, WX-3 and WX-4 for any history."""
    down = Strict()
    combined, model = WatermarkMultiplexer(down), Model()
    for output_id in IDS[:registered]:
        play(combined, model, ("register", output_id, None))
    for action in actions:
        play(combined, model, action)
        assert (down.last, down.idle) == (model.last, model.idle) == (combined.watermark, combined.idle)


@given(st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(-(10**15), 10**15)), min_size=1, max_size=60))
def test_a_tick_gives_the_highest_minimum_so_far(updates):
    """WX-1: with a tick after each update the combined watermark is the running maximum of the minima over active."""
    down = Strict()
    combined = WatermarkMultiplexer(down)
    own: dict[int, int] = dict.fromkeys(range(6), MIN_WATERMARK)
    idle: set[int] = set()
    expected = MIN_WATERMARK
    for each in own:
        combined.register(each)
    for each, us in updates:
        if us is None:
            combined.deferred(each).mark_idle()
            idle.add(each)
        else:
            combined.deferred(each).emit_watermark(us)
            own[each] = max(own[each], us)
            idle.discard(each)
        combined.update()
        active = [own[each] for each in own if each not in idle]
        expected = max(expected, min(active) if active else max(own.values()))
        assert combined.watermark == down.last == expected
        assert down.idle is (not active)
