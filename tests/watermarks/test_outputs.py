# SPDX-License-Identifier: Apache-2.0
"""Per-split outputs: SourceReaderBaseTest.testPerSplitWatermark, SourceOperatorEventTimeTest, and OUT-1…5."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from manual_clock import ManualClock

from forebay.errors import ConfigurationError, ContractError
from forebay.watermarks.event_time import MAX_WATERMARK, MIN_WATERMARK, EventTimes, max_allowed
from forebay.watermarks.outputs import SourceOutputs, SplitStatus
from forebay.watermarks.strategy import WatermarkStrategy


class AsIs:
    """Emits the latest event time of each batch as it is, at once."""

    def on_event(self, batch, times, output):
        output.emit_watermark(times.latest)

    def on_periodic_emit(self, output):
        pass


class OnTick(AsIs):
    """The same on the tick."""

    def __init__(self):
        self.latest = None

    def on_event(self, batch, times, output):
        self.latest = times.latest

    def on_periodic_emit(self, output):
        if self.latest is not None:
            output.emit_watermark(self.latest)


class Recorder:
    """A downstream that remembers everything in order."""

    def __init__(self, clock=None):
        self.calls: list[object] = []
        self.batches: list[tuple[object, ...]] = []
        self.clock = clock
        self.work = 0.0

    @property
    def watermarks(self):
        return [call for call in self.calls if isinstance(call, int)]

    def collect(self, split_id, batch, position, times):
        self.calls.append((split_id, batch.column(0).to_pylist()))
        self.batches.append((split_id, batch, position, times))
        if self.work:
            self.clock.advance(self.work)

    def emit_watermark(self, us):
        self.calls.append(us)

    def mark_idle(self):
        self.calls.append("idle")

    def mark_active(self):
        self.calls.append("active")


AS_IS = WatermarkStrategy.for_generator(AsIs).with_event_time("at")
ON_TICK = WatermarkStrategy.for_generator(OnTick).with_event_time("at")


def batch(*times):
    return pa.record_batch({"at": pa.array(times, pa.timestamp("us", "UTC"))})


def made(strategy=AS_IS, **options):
    clock = ManualClock()
    down = Recorder(clock)
    return SourceOutputs(strategy, clock, down, **options), down, clock


def instants(*times):
    return batch(*times).column(0).to_pylist()


def test_per_split_watermark_with_both_splits_added_first():
    """WX-1: testPerSplitWatermark, A gives no watermark while B has none; B gives 150, 250, 300."""
    outputs, down, _ = made()
    a, b = outputs.create("A"), outputs.create("B")
    for us in (100, 200, 300):
        a.collect(batch(us))
    assert down.watermarks == []
    for us in (150, 250, 350):
        b.collect(batch(us))
    assert down.watermarks == [150, 250, 300]


def test_per_split_watermark_with_one_split_alone():
    """WX-1: testPerSplitWatermark, alone A goes on; B, added later, holds but never sets back."""
    outputs, down, _ = made()
    a = outputs.create("A")
    for us in (100, 200, 300):
        a.collect(batch(us))
    assert down.watermarks == [100, 200, 300]
    b = outputs.create("B")
    for us in (150, 250, 350):
        b.collect(batch(us))
    a.collect(batch(400))
    assert down.watermarks == [100, 200, 300, 350]


def test_the_assigner_gets_what_the_source_said_and_has_the_last_word():
    """OUT-1: collect(r) gives the assigner nothing, collect(r, ts) gives it ts; its answer holds."""
    given_to = []

    def assign(_batch, times):
        given_to.append(times)
        return EventTimes(70, 80)

    outputs, down, _ = made(WatermarkStrategy.for_generator(AsIs).with_timestamp_assigner(assign))
    split = outputs.create("A")
    split.collect(batch(1), 7)
    split.collect(batch(1), 8, EventTimes(5, 6))
    assert given_to == [None, EventTimes(5, 6)]
    assert [(position, times) for _, _, position, times in down.batches] == [(7, (70, 80)), (8, (70, 80))]
    assert down.watermarks == [80]


def test_without_an_assigner_the_source_has_the_word():
    """OUT-1: the default keeps the record's own timestamp; no timestamp, no event for the generator."""
    outputs, down, _ = made(WatermarkStrategy.for_generator(AsIs))
    split = outputs.create("A")
    split.collect(batch(1))
    assert down.batches[0][3] is None and down.watermarks == []
    split.collect(batch(1), None, EventTimes(5, 6))
    assert down.watermarks == [6]


def test_event_times_in_the_wrong_order_are_an_error_that_names_split_and_position():
    """OUT-1: earliest ≤ latest."""
    outputs, down, _ = made(WatermarkStrategy.none())
    with pytest.raises(ContractError) as caught:
        outputs.create("A").collect(batch(1), 17, EventTimes(6, 5))
    assert (caught.value.split, caught.value.position, caught.value.rule) == ("A", "17", "OUT-1")
    assert down.batches == []


def test_a_column_that_does_not_fit_is_named():
    """OUT-1: event times come from a timestamp or int64 column only."""
    outputs, _, _ = made()
    with pytest.raises(ConfigurationError, match="'at' is string"):
        outputs.create("A").collect(pa.record_batch({"at": ["x"]}))


def test_the_batch_goes_downstream_before_its_watermark():
    """OUT-2: a watermark never overtakes the record that caused it."""
    outputs, down, _ = made()
    outputs.create("A").collect(batch(5, 9))
    assert down.calls == [("A", instants(5, 9)), 9]


def test_a_generator_does_not_see_a_batch_that_the_downstream_refused():
    """OUT-2: what did not get out causes no watermark."""
    outputs, down, _ = made()
    split = outputs.create("A")

    def refuse(*_):
        raise OSError("the consumer is gone")

    down.collect = refuse
    with pytest.raises(OSError, match="gone"):
        split.collect(batch(5))
    assert down.watermarks == []


def test_an_output_is_created_once():
    """OUT-3: createOutputForSplit is idempotent."""
    outputs, _, _ = made()
    assert outputs.create("A") is outputs.create("A") is outputs.of("A")


def test_a_released_split_no_longer_holds_the_watermark():
    """OUT-3: without release the dead split pins the watermark for ever."""
    outputs, down, _ = made()
    a, b = outputs.create("A"), outputs.create("B")
    a.collect(batch(10))
    b.collect(batch(50))
    assert down.watermarks == [10]
    assert outputs.release("A") is True
    assert down.watermarks == [10], "releasing does not emit"
    outputs.on_periodic_emit()
    assert down.watermarks == [10, 50]


def test_releasing_what_is_not_there_says_so():
    """WX-4: removing unknown → false."""
    outputs, _, _ = made()
    outputs.create("A")
    assert [outputs.release("A"), outputs.release("A"), outputs.release("B")] == [True, False, False]


@pytest.mark.parametrize(
    "use",
    [lambda o: o.collect(batch(1)), lambda o: o.emit_watermark(1), lambda o: o.mark_idle(), lambda o: o.mark_active()],
)
def test_a_released_output_refuses_everything(use):
    """OUT-3: nothing of that split is emitted afterwards (RB-3)."""
    outputs, down, _ = made()
    split = outputs.create("A")
    outputs.release("A")
    with pytest.raises(ContractError, match="'A'") as caught:
        use(split)
    assert caught.value.rule == "OUT-3" and down.calls == []


def test_a_split_that_was_not_added_is_an_error_that_names_it():
    """RB-5: a record for a split with no state."""
    outputs, _, _ = made()
    with pytest.raises(ContractError, match="'B'") as caught:
        outputs.of("B")
    assert caught.value.rule == "RB-5"


def test_an_unread_split_holds_the_watermark_from_the_moment_it_is_added():
    """OUT-4: testCreatingPerSplitOutputOnSplitAddition (FLINK-26018)."""
    outputs, down, _ = made(ON_TICK)
    a = outputs.create("A")
    outputs.create("unread")
    a.collect(batch(100))
    outputs.on_periodic_emit()
    assert down.watermarks == []
    outputs.of("unread").collect(batch(40))
    outputs.on_periodic_emit()
    assert down.watermarks == [40]


def test_timestamps_only_assigns_and_does_nothing_else():
    """OUT-5: batch mode, timestamps only; watermarks and idleness are no-ops."""
    outputs, down, clock = made(AS_IS.with_idleness(1), timestamps_only=True)
    split = outputs.create("A")
    split.collect(batch(3, 5), 9)
    split.emit_watermark(77)
    split.mark_idle()
    split.mark_active()
    outputs.main.mark_idle()
    for _ in range(5):
        clock.advance(10)
        outputs.on_periodic_emit()
    assert down.calls == [("A", instants(3, 5))]
    assert down.batches[0][2:] == (9, EventTimes(3, 5))


def test_a_batch_without_rows_passes_but_is_no_event():
    """OUT-2: a batch without rows carries a position and nothing else."""
    outputs, down, _ = made(WatermarkStrategy.for_generator(AsIs))
    outputs.create("A").collect(batch(), 12, EventTimes(1, 2))
    assert down.batches[0][2:] == (12, None) and down.watermarks == []


def test_a_batch_of_nothing_but_nulls_is_activity_without_event_time():
    """OUT-1: null event times are left out."""
    outputs, down, _ = made()
    outputs.create("A").collect(batch(None, None), 12)
    assert down.batches[0][2:] == (12, None) and down.watermarks == []


def test_a_source_may_emit_watermarks_of_its_own():
    """WX-2: watermarks of the source are combined at once with those of the generators."""
    outputs, down, _ = made(ON_TICK)
    a, b = outputs.create("A"), outputs.create("B")
    a.emit_watermark(30)
    assert down.watermarks == []
    b.emit_watermark(20)
    assert down.watermarks == [20]


def test_a_split_that_the_source_called_idle_stays_idle_over_ticks():
    """WX-3: the generator's repeated watermark does not wake it; a record does."""
    outputs, down, _ = made(WatermarkStrategy.bounded_disorder(0).with_event_time("at"))
    split = outputs.create("A")
    split.collect(batch(10))
    split.mark_idle()
    outputs.on_periodic_emit()
    outputs.on_periodic_emit()
    assert down.calls == [("A", instants(10)), "idle"]
    split.collect(batch(20))
    outputs.on_periodic_emit()
    assert down.calls[2:] == ["active", ("A", instants(20)), 19]


def test_deferred_watermarks_of_all_splits_combine_once():
    """WX-2: the tick lets all generators emit, then combines."""
    outputs, down, _ = made(ON_TICK)
    for split_id, us in (("A", 10), ("B", 20), ("C", 30)):
        outputs.create(split_id).collect(batch(us))
    outputs.on_periodic_emit()
    assert down.watermarks == [10]


# ---- idleness ----


def idling(timeout=10, strategy=ON_TICK, behind=frozenset(), **options):
    """Outputs whose splits are silent, but for those in `behind`."""
    outputs, down, clock = made(
        strategy.with_idleness(timeout), silent=lambda split_id: split_id not in behind, **options
    )

    def ticks(seconds, step=1):
        for _ in range(int(seconds / step)):
            clock.advance(step)
            outputs.on_periodic_emit()

    return outputs, down, ticks


def test_an_idle_timeout_needs_a_proof_of_silence():
    """WM-4: silence alone does not prove that a split is idle."""
    with pytest.raises(ContractError) as caught:
        made(AS_IS.with_idleness(1))
    assert caught.value.rule == "WM-4"


def test_a_silent_split_stops_holding_the_watermark_and_all_silent_is_idle_once():
    """WM-4: idle after the timeout; signalled once; any record makes it active."""
    outputs, down, ticks = idling()
    a, b = outputs.create("A"), outputs.create("B")
    a.collect(batch(100))
    b.collect(batch(40))
    ticks(1)
    assert down.watermarks == [40]
    for us in (101, 102, 103):
        a.collect(batch(us))
        ticks(5)
    assert down.watermarks == [40, 103], (
        "B is idle 12 s after its record: a probe with activity, one that starts, the timeout"
    )
    ticks(30)
    assert down.calls.count("idle") == 1
    b.collect(batch(60))
    assert down.calls[-2:] == ["active", ("B", instants(60))], "active before the batch leaves"
    assert outputs.split_status()["B"] == SplitStatus(40, idle=False, paused=False)


def test_a_split_with_records_on_the_way_is_never_idle():
    """WM-4: a starved split is not idle (peers: wall-clock idleness loses data)."""
    behind = {"A"}
    outputs, down, ticks = idling(behind=behind)
    outputs.create("A")
    outputs.create("B").collect(batch(500))
    ticks(100)
    assert down.watermarks == [] and not outputs.split_status()["A"].idle
    behind.clear()
    ticks(15)
    assert down.watermarks == [500] and outputs.split_status()["A"].idle


def test_an_idle_split_with_news_at_the_source_holds_again_before_its_first_record():
    """WM-4: once it is known to be behind again it is active."""
    behind: set[str] = set()
    outputs, down, ticks = idling(behind=behind)
    outputs.create("A")
    ticks(15)
    assert down.calls == ["idle"]
    behind.add("A")
    ticks(1)
    assert down.calls == ["idle", "active"] and not outputs.idle


def test_the_first_record_of_a_new_split_ends_the_idleness_of_the_others():
    """WM-4: the downstream is active before a batch leaves, also if no tick came since the split was added."""
    outputs, down, ticks = idling()
    outputs.create("A")
    ticks(15)
    outputs.create("B").collect(batch(7))
    assert down.calls == ["idle", "active", ("B", instants(7))]


def test_an_idle_split_with_a_record_holds_at_once_and_not_from_the_next_tick_on():
    """WM-4: any record makes it active; the others must not run past it before the tick."""
    outputs, down, ticks = idling()
    a, b = outputs.create("A"), outputs.create("B")
    a.collect(batch(5))
    ticks(9)
    for us in (10, 11):
        b.collect(batch(us))
        ticks(8)
    assert down.watermarks == [5, 10, 11] and outputs.split_status()["A"].idle
    a.collect(batch(12))
    assert not outputs.split_status()["A"].idle
    b.emit_watermark(40)
    assert down.watermarks == [5, 10, 11]


def test_what_a_source_said_of_idleness_outlasts_the_timer():
    """WX-3: a source that called a split idle is believed until it sends something, also when the timer is not."""
    behind: set[str] = set()
    outputs, down, ticks = idling(behind=behind)
    outputs.create("A").mark_idle()
    ticks(15)
    behind.add("A")
    ticks(5)
    assert down.calls == ["idle"]


def test_a_record_without_event_time_is_activity():
    """WM-4: any record, also one that no generator sees."""
    outputs, down, ticks = idling()
    split = outputs.create("A")
    for _ in range(5):
        split.collect(batch(None))
        ticks(8)
    assert "idle" not in down.calls


def test_a_batch_without_rows_is_no_activity():
    """WM-4: a position that moves without rows does not keep a split active."""
    outputs, down, ticks = idling()
    split = outputs.create("A")
    for _ in range(5):
        split.collect(batch())
        ticks(8)
    assert down.calls.count("idle") == 1


def test_a_split_paused_after_its_timeout_ran_out_is_not_judged_at_the_next_tick():
    """AL-6: a paused split is never judged idle."""
    outputs, down, ticks = idling()
    outputs.create("A")
    ticks(1)
    down.clock.advance(50)
    outputs.pause(["A"])
    outputs.on_periodic_emit()
    assert down.calls == []


def test_backpressure_and_idleness():
    """WM-4: testBackpressureAndIdleness, neither watermark nor idle while the host takes nothing."""
    outputs, down, ticks = idling()
    outputs.create("A").collect(batch(42))
    outputs.create("B")
    outputs.set_backpressured(True)
    outputs.set_backpressured(True)
    ticks(100)
    assert down.calls == [("A", instants(42))]
    outputs.set_backpressured(False)
    ticks(100)
    assert down.calls[-2:] == [42, "idle"] and down.calls.count("idle") == 1


def test_the_time_the_downstream_needs_is_no_silence():
    """WM-4: while a batch is worked on nothing can be read, so the clock stops (FLINK-35886)."""
    outputs, down, ticks = idling()
    outputs.create("A")
    b = outputs.create("B")
    down.work = 60.0
    ticks(2)
    for us in (1, 2, 3):
        b.collect(batch(us))
        outputs.on_periodic_emit()
    assert not outputs.split_status()["A"].idle and down.watermarks == []


def test_split_watermark_alignment_and_idleness():
    """AL-6: testSplitWatermarkAlignmentAndIdleness, a paused split is never judged idle."""
    outputs, down, ticks = idling()
    a, b = outputs.create("A"), outputs.create("B")
    a.collect(batch(5))
    outputs.pause(["A", "unknown"])
    for us in range(6, 46):
        b.collect(batch(us))
        ticks(9)
    assert down.watermarks == [5], "A still holds"
    assert outputs.split_status()["A"] == SplitStatus(5, idle=False, paused=True)
    outputs.resume(["A", "unknown"])
    outputs.resume(["A"])
    for us in range(46, 50):
        b.collect(batch(us))
        ticks(9)
    assert down.watermarks[-1] > 45 and outputs.split_status()["A"].idle


def test_pausing_twice_needs_one_resume():
    """RDR-8: pause and resume say a state, they do not count."""
    outputs, _, ticks = idling()
    outputs.create("A")
    outputs.pause(["A"])
    outputs.pause(["A"])
    outputs.resume(["A"])
    ticks(15)
    assert outputs.split_status()["A"] == SplitStatus(MIN_WATERMARK, idle=True, paused=False)


def test_the_source_is_idle_only_when_main_and_all_split_outputs_are():
    """WX-5: testMainAndPerSplitWatermarkIdleness; the main output starts idle."""
    outputs, down, ticks = idling()
    split = outputs.create("A")
    ticks(15)
    assert down.calls == ["idle"], "the unused main output does not count"
    outputs.main.collect(batch(7))
    assert down.calls[1:] == ["active", (None, instants(7))]
    split.collect(batch(9))
    for us in (10, 11, 12):
        split.collect(batch(us))
        ticks(8)
    assert "idle" not in down.calls[1:], "the split is active while main falls silent"
    assert down.watermarks[-1] == 12
    for us in (13, 14, 15):
        outputs.main.collect(batch(us))
        ticks(8)
    assert "idle" not in down.calls[1:], "main is active while the split falls silent"
    ticks(15)
    assert down.calls[-1] == "idle" and down.calls.count("idle") == 2


def test_a_used_main_output_takes_part_in_the_minimum():
    """WX-5: main and split outputs are combined like any others."""
    outputs, down, _ = made()
    outputs.main.collect(batch(5))
    assert down.watermarks == [5]
    outputs.create("A").collect(batch(9))
    outputs.main.collect(batch(7))
    assert down.watermarks == [5, 7]


def test_without_splits_nothing_is_emitted_and_the_downstream_is_not_idle():
    """WX-4: no outputs → emit nothing, and not idle; a host must not wait for it (design: never +∞)."""
    outputs, down, ticks = idling()
    ticks(100)
    assert down.calls == [] and outputs.idle
    outputs.create("A")
    assert not outputs.idle


def test_what_a_reader_reports_for_alignment():
    """AL-1: nothing before it has a watermark, never lower while reading, MAX when idle and when finished."""
    outputs, _, ticks = idling()
    split = outputs.create("A")
    assert outputs.report() is None
    split.collect(batch(50))
    ticks(1)
    assert outputs.report() == 50
    split.collect(batch(30))
    ticks(1)
    assert outputs.report() == 50, "testReportedWatermarkDoNotDecrease"
    ticks(20)
    assert outputs.report() == MAX_WATERMARK
    split.collect(batch(20))
    assert outputs.report() == 50


def test_readers_without_splits_do_not_limit_others():
    """AL-1: SourceOperatorAlignmentTest …WithoutSplit."""
    reading, empty = made()[0], made()[0]
    reading.create("A").collect(batch(50))
    for outputs in (reading, empty):
        outputs.on_periodic_emit()
    assert max_allowed((outputs.report() for outputs in (reading, empty)), 0) == 50


@given(
    st.lists(st.tuples(st.sampled_from("ABC"), st.lists(st.integers(0, 1000), min_size=1, max_size=4)), max_size=30),
    st.integers(0, 20),
)
def test_with_bounded_disorder_the_combined_watermark_is_the_slowest_split(batches, delay):
    """WX-1: through the whole path, min over splits of latest − delay − 1, never backwards."""
    outputs, down, _ = made(WatermarkStrategy.bounded_disorder(delay / 1e6).with_event_time("at"))
    latest: dict[str, int] = {}
    for split_id in "ABC":
        outputs.create(split_id)
    for split_id, times in batches:
        outputs.of(split_id).collect(batch(*times))
        outputs.on_periodic_emit()
        latest[split_id] = max([latest.get(split_id, -1), *times])
        if len(latest) == 3:
            assert down.watermarks[-1] == min(latest.values()) - delay - 1
        else:
            assert down.watermarks == []
    assert down.watermarks == sorted(set(down.watermarks))
