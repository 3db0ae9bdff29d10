# SPDX-License-Identifier: Apache-2.0
"""Offset codecs: finished splits are in offsets or below stateLocation, and survive any restart (S1, S15)."""

from __future__ import annotations

import json
import logging
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.errors import ConfigurationError, RetriableError
from forebay.framework.digests import Digest, SplitDigests
from forebay.framework.microbatch import spilling_codec
from forebay.framework.microbatch.offset import Offset, Planned, UnknownEnd, canonical, dump_offset
from forebay.framework.microbatch.offset_codec import FinishedSplits, InlineOffsetCodec
from forebay.framework.microbatch.spilling_codec import SpillingOffsetCodec, decode, encode, outdated
from forebay.framework.runtime.clients import ConnectorCalls
from forebay.framework.runtime.runtime import ThreadRuntime
from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay.retry import RetryPolicy
from forebay.state.local_state_store import LocalStateStore


class File(Split):
    """A file."""

    size: int = 0
    modified_at: int = 0


class Files(Source):
    """The source of the offsets."""

    name = "files"
    split_class = File

    def schema(self):
        raise NotImplementedError

    def create_enumerator(self, context):
        raise NotImplementedError

    def create_split_reader(self, context):
        raise NotImplementedError


class MemoryStore:
    """A store in memory that counts its calls, and fails on demand."""

    def __init__(self, location="mem"):
        self.location = location
        self.facts = {}
        self.gets = 0
        self.failing = []

    def get(self, name):
        self.gets += 1
        return self.facts.get(name)

    def put_if_absent(self, name, data):
        if self.failing:
            raise self.failing.pop()
        return self.facts.setdefault(name, data) is data

    def names(self, prefix):
        return sorted(name for name in self.facts if name.startswith(prefix))

    def delete(self, names):
        for name in names:
            del self.facts[name]


def file(number: int, at: int = 0) -> File:
    mixed = number * 2654435761 % 2**32
    return File(
        f"/lake/events/day=2024-{number % 12 + 1:02}/part-{number:05}-{mixed:08x}-{mixed * 7919 % 2**32:08x}.parquet",
        at,
        size=10_000_000 + mixed % 90_000_000,
        modified_at=1_700_000_000_000_000_000 + mixed * 1_000_003,
    )


KEPT = 30
"""So many micro-batches keep their segments where `few_are_kept` is used; 200 do in production."""


@pytest.fixture
def few_are_kept(monkeypatch):
    monkeypatch.setattr(spilling_codec, "KEPT", KEPT)


def stored(store, *, retries=0, digests=None):
    return SpillingOffsetCodec(
        Files(),
        store,
        ConnectorCalls("files", ThreadRuntime(), retry=RetryPolicy(retries=retries), timeout=60),
        digests,
    )


def wire(data):
    """Return the offset as Spark stores it."""
    return json.loads(canonical(data))


class Query:
    """Uses a codec as the planner does: plans and commits micro-batches, remembers finished splits, restarts."""

    def __init__(self, offset_codec, start=None):
        self.offset_codec = offset_codec
        self.n, self.done, self.ended = -1, FinishedSplits(File), []
        if start is not None:
            offset = offset_codec.read(start)
            self.done = offset_codec.read_done(start)
            self.done.mark_written()
            self.n = offset.n
            self.done.add(planned.split for planned in offset.splits if planned.ends)

    def plan(self, splits):
        offset = Offset("files", self.n + 1, "q", [Planned(split, UnknownEnd.WHOLE) for split in splits])
        return wire(self.offset_codec.write(offset, self.done))

    def prove(self, splits):
        self.n += 1
        self.done.mark_written()
        self.done.add(splits)

    def run(self, splits):
        data = self.plan(splits)
        self.prove(splits)
        return data


def remembered(done):
    return {split_id: done[split_id].size for split_id in done}


# ---- in the offset


def test_inline_a_micro_batch_takes_what_fits_and_stops_before_anything_is_missed(tmp_path, caplog):
    waiting = [file(number) for number in range(8000)]
    offset_codec = InlineOffsetCodec(Files())
    query, offsets = Query(offset_codec), []
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(ConfigurationError, match="does not fit into an offset") as caught,
    ):
        while len(query.done) < len(waiting):
            taken = waiting[len(query.done) :]
            taken = taken[: offset_codec.room([Planned(split, UnknownEnd.WHOLE) for split in taken])]
            offsets.append((query.plan(taken), set(query.done)))
            query.prove(taken)
    assert caught.value.option == "stateLocation" and "nothing is lost or read twice" in caught.value.advice
    assert max(len(canonical(data)) for data, _ in offsets) < 100 << 10
    assert len(offsets) >= 2 and len(query.done) >= 1000
    assert len([record for record in caplog.records if "finished splits" in record.message]) == 1
    # The last offset that was written, and stateLocation: on from there, with everything before.
    on = Query(stored(LocalStateStore(str(tmp_path))), offsets[-1][0])
    assert set(on.done) == set(query.done) == {split.id for split in waiting[: len(query.done)]}
    rest = waiting[len(on.done) :]
    data = on.run(rest)
    assert len(canonical(data)) < 100 << 10
    again = Query(stored(LocalStateStore(str(tmp_path))), data)
    assert set(again.done) == {split.id for split in waiting}
    assert remembered(again.done) == remembered(on.done)


def test_room_is_measured_and_one_split_always_fits():
    offset_codec = InlineOffsetCodec(Files())
    short = [Planned(Split(str(number)), UnknownEnd.WHOLE) for number in range(100_000)]
    chance = random.Random(7)
    long = [Planned(Split(chance.randbytes(1000).hex()), UnknownEnd.WHOLE) for _ in range(50)]
    assert 2000 < offset_codec.room(short) < 100_000
    assert 1 <= offset_codec.room(long) < 50
    assert offset_codec.room([Planned(Split(chance.randbytes(3000).hex()), UnknownEnd.WHOLE) for _ in range(50)]) == 1
    assert offset_codec.room([Planned(Split("x" * 10), UnknownEnd.WHOLE)]) == 1
    assert offset_codec.room() == 400
    offset_codec.write(Offset("files", 0, "q", short[: offset_codec.room(short)]), FinishedSplits(Split))
    assert offset_codec.room() > 2000


@pytest.mark.parametrize("active", [False, True])
def test_two_thousand_open_splits_fit_into_an_offset(active):
    splits = [
        Planned(
            Split(f"orders-{number}", 7_000_000 + number * 7919 % 100_003),
            7_000_000 + number * 7919 % 100_003 + active * (1 + number % 977),
        )
        for number in range(2000)
    ]
    done = FinishedSplits(Split)
    assert len(canonical(InlineOffsetCodec(Files()).write(Offset("files", 3, "q", splits), done))) < 50 << 10
    store = MemoryStore()
    data = wire(stored(store).write(Offset("files", 3, "q", splits), done))
    assert len(canonical(data)) < 32 << 10
    assert list(stored(store).read(data).splits) == [Planned(File(p.split.id, p.split.position), p.to) for p in splits]


def test_more_open_splits_than_fit_are_refused_by_name(caplog):
    offset_codec, done = InlineOffsetCodec(Files()), FinishedSplits(Split)
    half = [Planned(file(number, 5), 5) for number in range(1800)]
    offset_codec.write(Offset("files", 0, "q", half), done)
    assert "half of the maximum" in caplog.text
    with pytest.raises(ConfigurationError, match="offset with 5000 splits") as caught:
        offset_codec.write(Offset("files", 1, "q", [Planned(file(number, 5), 5) for number in range(5000)]), done)
    assert caught.value.option == "stateLocation"


def digesting():
    def digest(split: Split) -> list[Digest]:
        assert isinstance(split, File)
        return [Digest(split.id, split.size, split.modified_at)]

    return SplitDigests(digest)


def test_inline_digests_take_the_place_of_what_does_not_fit(tmp_path):
    """The last micro-batches stay whole; with stateLocation nothing is condensed, and nothing is lost."""
    waiting = [file(number) for number in range(5000)]
    digests = digesting()
    query = Query(InlineOffsetCodec(Files(), digests), dump_offset(Offset("files")))
    data = {}
    for first in range(0, 5000, 500):
        data = query.run(waiting[first : first + 500])
    assert query.done.count == 5000
    assert len(canonical(data)) < 14 * 5000 + (40 << 10)
    assert data["v"] == 2
    assert set(query.done).isdisjoint(split.id for split in waiting if digests.mark(split.id) is not None)

    def known(done, digests):
        marks = {split.id: digests.mark(split.id) for split in waiting} | remembered(done)
        return {split_id: mark for split_id, mark in marks.items() if mark is not None}

    everything = {split.id: split.size for split in waiting}
    again = digesting()
    restarted = Query(InlineOffsetCodec(Files(), again), data)
    assert known(restarted.done, again) == known(query.done, digests) == everything
    assert restarted.plan([]) == query.plan([])
    for _ in range(3):
        moved = digesting()
        on = Query(stored(LocalStateStore(str(tmp_path)), digests=moved), data)
        assert known(on.done, moved) == everything
        assert on.done.count == len(everything)
        new = file(5000 + on.n)
        data = on.run([new])
        everything[new.id] = new.size
        assert len(canonical(data)) < 1500


# ---- below stateLocation


def test_short_things_stay_in_the_offset_and_the_store_is_not_touched():
    store = MemoryStore()
    query = Query(stored(store))
    offsets = [query.run([file(number)]) for number in range(10)]
    assert store.facts == {} and store.gets == 0
    assert all("state" not in data for data in offsets)
    assert set(Query(InlineOffsetCodec(Files()), offsets[-1]).done) == set(query.done)


def test_a_plan_of_any_size_is_read_back_exactly(tmp_path):
    splits = [file(number) for number in range(6000)]
    data = Query(stored(LocalStateStore(str(tmp_path)))).plan(splits)
    assert len(canonical(data)) < 1000
    assert [planned.split for planned in stored(LocalStateStore(str(tmp_path))).read(data).splits] == splits


def test_a_long_state_of_an_enumerator_is_read_back_exactly():
    store = MemoryStore()
    state = {"pending": [f"piece-{number}" for number in range(5000)]}
    data = wire(stored(store).write(Offset("files", 0, "q", [], state), FinishedSplits(File)))
    assert len(canonical(data)) < 1000
    assert stored(store).read(data).enumerator == state


def test_the_plan_of_this_process_is_not_fetched_again():
    store = MemoryStore()
    offset_codec = stored(store)
    data = Query(offset_codec).plan([file(number) for number in range(3000)])
    for _ in range(3):
        offset_codec.read(data)
    assert store.gets == 0


def test_few_segments_and_few_bytes_for_a_long_memory():
    store = MemoryStore()
    offset_codec = stored(store)
    query, data, written, longest = Query(offset_codec), {}, 0, 0
    for n in range(500):
        before = set(store.facts)
        data = query.run([file(5 * n + k) for k in range(5)])
        written += sum(len(decode(store.facts[name]).data) for name in set(store.facts) - before)
        longest = max(longest, len(offset_codec._levels[n]))
    whole = len(encode(0, None, {}, (), [query.done.entries()])[1])
    assert longest <= 13
    assert written < 14 * whole
    assert len(canonical(data)) < 1000
    assert remembered(Query(stored(store), data).done) == remembered(query.done)


def test_forgotten_splits_stay_forgotten_over_restarts():
    store = MemoryStore()
    query = Query(stored(store))
    query.run([file(number) for number in range(2000)])
    data = query.run([file(2000)])
    for n in range(5):
        query.done.forget(lambda split, n=n: split.size % 97 == n)
        data = query.run([file(2001 + n)])
        assert len(query.offset_codec._levels[query.n]) > 1  # the base was not written again
        again = Query(stored(store), data)
        assert remembered(again.done) == remembered(query.done)
    assert 1700 < len(query.done) < 1960


def test_old_segments_are_deleted_and_the_last_ones_can_be_gone_back_to(few_are_kept):
    store = MemoryStore()
    query, offsets, known = Query(stored(store)), [], []
    for n in range(3 * KEPT):
        known.append(remembered(query.done))
        offsets.append(query.run([file(12 * n + k) for k in range(12)]))
        query.offset_codec.batch_committed(query.offset_codec.read(offsets[-1]))
    assert len(store.facts) < KEPT + 80
    for n in range(2 * KEPT, 3 * KEPT):
        assert remembered(stored(store).read_done(offsets[n])) == known[n]
        stored(store).read(offsets[n])
    with pytest.raises(ConfigurationError, match="is missing"):
        stored(store).read_done(offsets[KEPT // 2])


def test_runs_of_one_micro_batch_delete_too(few_are_kept):
    store = MemoryStore()
    data = Query(stored(store)).run([file(number) for number in range(1000)])
    for n in range(1, 2 * KEPT):
        data = Query(stored(store), data).run([file(1000 + n)])
    assert len(store.facts) < KEPT + 20
    assert len(Query(stored(store), data).done) == 1000 + 2 * KEPT - 1


def test_segments_of_a_crash_are_harmless_and_deleted_later(few_are_kept):
    store = MemoryStore()
    query = Query(stored(store))
    first = query.run([file(number) for number in range(1000)])
    second = query.run([file(1001)])
    lost = Query(stored(store), second)
    lost.plan([file(2000 + number) for number in range(900)])  # written, and then the process died
    orphans = set(store.facts)
    query = Query(stored(store), second)
    data = query.run([file(1002)])
    orphans -= {data["state"]["segment"]}
    assert set(query.done) == {file(number).id for number in (*range(1000), 1001, 1002)}
    for n in range(2 * KEPT):
        data = query.run([file(3000 + n)])
        query.offset_codec.batch_committed(query.offset_codec.read(data))
    assert len(store.facts) < KEPT + 80
    assert not any(name.startswith("q/segments/000000000002-") for name in store.facts)
    assert len(orphans) >= 3 and first != second


def test_deleting_that_fails_is_a_warning(caplog):
    store = MemoryStore()
    query = Query(stored(store))
    data = query.run([file(number) for number in range(1000)])

    def refuse(_prefix):
        raise RetriableError("away")

    store.names = refuse
    query = Query(stored(store), data)
    query.offset_codec.batch_committed(query.offset_codec.read(data))
    query.run([file(2000)])
    assert "could not be deleted" in caplog.text


def test_a_store_that_is_away_for_a_moment_is_tried_again():
    store = MemoryStore()
    store.failing = [RetriableError("away")]
    data = Query(stored(store, retries=2)).plan([file(number) for number in range(1000)])
    assert len(stored(store).read(data).splits) == 1000
    store.failing = [RetriableError("away")]
    with pytest.raises(RetriableError, match="away"):
        Query(stored(store)).plan([file(number) for number in range(1001)])


# ---- moving


def moved(store):
    query = Query(stored(store))
    query.run([file(number) for number in range(1000)])
    return query, query.run([file(1001)])


def test_without_the_location_the_error_says_it():
    _, data = moved(MemoryStore("/the/state"))
    with pytest.raises(ConfigurationError, match="but the option is not set") as caught:
        InlineOffsetCodec(Files()).read(data)
    assert "/the/state" in caught.value.advice


def test_at_another_location_the_error_says_both_and_a_copy_is_accepted():
    store = MemoryStore("/the/state")
    query, data = moved(store)
    other = MemoryStore("/another")
    with pytest.raises(ConfigurationError, match="'/the/state', and the file .* is missing from '/another'") as caught:
        stored(other).read_done(data)
    assert "stateLocation to /the/state" in caught.value.advice
    other.facts = dict(store.facts)
    on = Query(stored(other), data)
    assert remembered(on.done) == remembered(query.done)
    assert on.run([file(1)])["state"]["at"] == "/another"


@pytest.mark.parametrize("which", ["plan", "memory"])
@pytest.mark.parametrize("damage", ["gone", "cut", "other"])
def test_a_segment_that_is_not_what_was_written_is_refused_by_name(which, damage):
    store = MemoryStore()
    query = Query(stored(store))
    plan = query.run([file(number) for number in range(1000)])
    memory = query.run([file(1001)])
    data = plan if which == "plan" else memory
    name = "q/segments/" + data["state"]["segment"]
    if damage == "gone":
        del store.facts[name]
    else:
        store.facts[name] = store.facts[name][:100] if damage == "cut" else encode(1, None, {}, (), ())[1]
    read = stored(store).read if which == "plan" else stored(store).read_done
    with pytest.raises(ConfigurationError, match=name) as caught:
        read(data)
    assert caught.value.option == "stateLocation" and "restore the file" in caught.value.advice


def test_a_damaged_segment_of_the_same_name_is_not_built_on():
    store = MemoryStore()
    name = "q/segments/" + Query(stored(MemoryStore())).plan([file(n) for n in range(1000)])["state"]["segment"]
    store.facts[name] = b"half"
    with pytest.raises(ConfigurationError, match="does not match its name"):
        Query(stored(store)).plan([file(n) for n in range(1000)])


@pytest.mark.parametrize("state", [7, {}, {"segment": "../../x", "digest": "0"}, {"segment": "x"}])
def test_an_offset_that_names_no_segment_is_damaged(state):
    store = MemoryStore()
    _, data = moved(store)
    with pytest.raises(ConfigurationError, match="damaged"):
        stored(store).read_done({**data, "state": state})


def test_a_newer_segment_is_refused():
    store = MemoryStore()
    _, data = moved(store)
    import hashlib
    import zlib

    text = zlib.compress(b'{"v":2,"forebay":"9.9"}\n')
    name = data["state"]["segment"]
    store.facts["q/segments/" + name] = text
    state = {**data["state"], "digest": hashlib.sha256(text).hexdigest()}
    with pytest.raises(ConfigurationError, match="newer forebay, 9.9"):
        stored(store).read_done({**data, "state": state})


# ---- against a model


def test_outdated_keeps_what_is_built_on():
    def name(n, below):
        return f"{n:012d}-{'base' if below is None else f'{below:012d}'}-{n:016x}"

    names = [name(0, None), name(1, 0), name(2, 1), name(3, None), name(4, 3), name(5, 3), "notes.txt"]
    assert outdated(names, 0) == []
    assert outdated(names, 3) == names[:3]
    assert outdated(names, 5) == [*names[:3], names[4]]
    assert outdated(names, 2) == []
    assert outdated(names, 9) == names[:6]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(0, 60)),
        st.tuples(st.just("plan and drop"), st.integers(0, 60)),
        st.tuples(st.just("forget"), st.integers(2, 60)),
        st.tuples(st.just("restart"), st.integers(0, 5)),
        st.tuples(st.just("prove"), st.just(0)),
    ),
    max_size=30,
)


@given(steps, st.booleans())
@settings(max_examples=settings().max_examples // 2)
def test_any_history_is_remembered_as_a_set_would(history, began_inline):
    """Read, crash, forget, restart from any of the last offsets: the finished splits equal a plain dictionary."""
    store = MemoryStore()
    offset_codec = InlineOffsetCodec(Files()) if began_inline else stored(store)
    query, next_file = Query(offset_codec), 0
    model: dict[str, int] = {}
    log: list[tuple[dict, dict, int]] = []  # offset, what is remembered once it is done, files so far
    # A base heavy enough for others to build on it; a query that began without a location moves there first.
    for what, number in [("take", 300), *([("restart", 0)] if began_inline else []), ("take", 1), *history]:
        if what in ("take", "plan and drop"):
            splits = [file(next_file + k) for k in range(number)]
            data = query.plan(splits)
            if what == "plan and drop":
                continue
            query.prove(splits)
            next_file += number
            model |= {split.id: split.size for split in splits}
            log.append((data, dict(model), next_file))
        elif what == "forget":
            new = set(query.done.added)  # these are not forgotten yet
            query.done.forget(lambda split, number=number: split.size % number == 0)
            model = {split_id: size for split_id, size in model.items() if size % number or split_id in new}
        elif what == "prove" and log:
            query.offset_codec.batch_committed(query.offset_codec.read(log[-1][0]))
        elif what == "restart" and log:
            del log[max(1, len(log) - number) :]
            data, model, next_file = log[-1][0], dict(log[-1][1]), log[-1][2]
            query = Query(stored(store), data)
        assert remembered(query.done) == model
    if log:
        # Two that go on from one offset write the same bytes.
        one, other = (Query(stored(store), log[-1][0]).plan([]) for _ in range(2))
        assert one == other
