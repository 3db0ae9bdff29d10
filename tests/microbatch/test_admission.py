# SPDX-License-Identifier: Apache-2.0
"""Limits are hard, shares are fair, and no split starves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import ConfigurationError, ContractError
from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.microbatch.admission import Admission, BatchLimits, shares
from forebay.framework.microbatch.offset import Planned, UnknownEnd
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.split import Split
from forebay.options import ByteSize


class Rows(DiscoveryEnumerator):
    """One position is one row of a fixed size; `advance` never exceeds a budget."""

    def __init__(self, row_bytes=10):
        self.row_bytes = row_bytes

    def discover(self, known, first):
        return Discovered([])

    def size(self, split):
        return None if split.end is None else (split.end - (split.position or 0)) * self.row_bytes

    def advance(self, split, *, rows=None, byte_budget=None):
        most = rows if rows is not None else byte_budget // self.row_bytes if self.row_bytes else 1
        return min((split.position or 0) + most, split.end)


class Blind(Rows):
    """Knows sizes only, as a listing of files does."""

    def advance(self, split, *, rows=None, byte_budget=None):
        return None


class Unknowing(Blind):
    """Knows neither sizes nor positions."""

    def size(self, split):
        return None


def there(**backlogs):
    return [Planned(Split(name, 0), count) for name, count in backlogs.items()]


def counted(taken):
    return {planned.split.id: planned.rows for planned in taken}


def admit(limits, backlog, enumerator=None):
    return counted(Admission("src", enumerator or Rows(), limits).admit(backlog))


WEIGHTS = st.lists(st.integers(0, 1 << 40), min_size=1, max_size=20)


@given(WEIGHTS, st.integers(1, 1 << 42))
def test_s16_shares_add_up_and_are_proportional(weights, total):
    """S16: the sum of shares is the limit; only the first share differs from its proportion by 1 or more."""
    given_ = shares(weights, total)
    assert sum(given_) == min(total, sum(weights))
    assert all(0 <= share <= weight for share, weight in zip(given_, weights, strict=True))
    if sum(weights) > total:
        for share, weight in zip(given_, weights, strict=True):
            assert abs(share - weight * total / sum(weights)) < 1 + 1e-6 * weight


@given(WEIGHTS, st.integers(1, 1 << 42))
def test_s16_the_first_that_wants_something_gets_something(weights, total):
    """S16: so the split that has waited longest is never left out."""
    first = next((index for index, weight in enumerate(weights) if weight), None)
    if first is not None:
        assert shares(weights, total)[first] > 0


def test_shares_that_spark_gets_wrong():
    """Trap 11: rounding down gives too little to three equal parts, and a minimum of 1 too much to a thousand."""
    assert shares([10, 10, 10], 10) == [4, 3, 3]
    assert shares([1] * 1000, 10) == [1] * 10 + [0] * 990
    # The test of Spark's own Kafka source: 100, 10 and 1 records there, ten at most: it takes 8 + 1 + 1 by chance.
    assert shares([101, 11, 1], 10) == [9, 1, 0]
    assert shares([1, 11, 101], 10) == [1, 1, 8]


def test_s16_three_equal_splits_take_three_micro_batches():
    """S16: exactly the limit."""
    backlog = {"a": 10, "b": 10, "c": 10}
    turns = 0
    while any(backlog.values()):
        taken = admit(BatchLimits(rows=10), there(**{name: count for name, count in backlog.items() if count}))
        assert sum(taken.values()) == 10
        backlog = {name: count - taken.get(name, 0) for name, count in backlog.items()}
        turns += 1
    assert turns == 3


LIMITS = st.builds(
    BatchLimits,
    rows=st.none() | st.integers(1, 30),
    byte_budget=st.none() | st.integers(1, 300),
    files=st.none() | st.integers(1, 4),
)
BACKLOGS = st.lists(st.integers(1, 50), min_size=1, max_size=8)


@given(LIMITS, BACKLOGS, st.integers(0, 40), st.booleans())
def test_s16_all_limits_hold_together_and_something_is_taken(limits, backlogs, row_bytes, in_order):
    """S16: rows, bytes and files are each a hard limit; a single record larger than the limit comes alone."""
    enumerator = Rows(row_bytes)
    backlog = [Planned(Split(f"s{index}", None if index % 2 else 0), count) for index, count in enumerate(backlogs)]
    admission = Admission("src", enumerator, limits)
    taken = admission.admit_in_order(backlog) if in_order else admission.admit(backlog)
    counts = counted(taken)
    rows = sum(counts.values())
    assert rows > 0
    assert all(counts.values())
    assert all(counts[f"s{index}"] <= count for index, count in enumerate(backlogs) if f"s{index}" in counts)
    assert limits.rows is None or rows <= limits.rows
    assert limits.files is None or len(taken) <= limits.files
    assert limits.byte_budget is None or rows * row_bytes <= limits.byte_budget or rows == 1 or row_bytes == 0
    assert taken[0].split.id == "s0", "who waited longest"
    if in_order:
        assert [planned.split.id for planned in taken] == [f"s{index}" for index in range(len(taken))]
        assert all(counts[f"s{index}"] == backlogs[index] for index in range(len(taken) - 1))


@given(
    LIMITS, st.integers(1, 40), st.lists(st.lists(st.integers(0, 20), min_size=5, max_size=5), min_size=1, max_size=12)
)
def test_s16_nobody_starves_whatever_the_others_bring(limits, row_bytes, arrivals):
    """S16: in a queue where those who got something go to the end, each comes to its turn in as many turns as there
    are splits, however the backlogs change."""
    queue = [f"s{index}" for index in range(5)]
    backlog = dict.fromkeys(queue, 0)
    waited = dict.fromkeys(queue, 0)
    for turn in range(60):
        for index, name in enumerate(sorted(queue)):
            backlog[name] += arrivals[turn % len(arrivals)][index]
        wanting = [Planned(Split(name, 0), backlog[name]) for name in queue if backlog[name]]
        taken = admit(limits, wanting, Rows(row_bytes)) if wanting and limits else counted(wanting)
        for planned in wanting:
            name = planned.split.id
            backlog[name] -= taken.get(name, 0)
            waited[name] = 0 if name in taken else waited[name] + 1
        assert max(waited.values()) < len(queue)
        queue = [name for name in queue if name not in taken] + [name for name in queue if name in taken]


def test_bytes_too_few_for_a_record_each_are_given_to_the_first_ones():
    """A share of ten bytes for each of ten splits is too small for a row of forty."""
    assert admit(BatchLimits(byte_budget=100), there(**{f"s{n}": 5 for n in range(10)}), Rows(40)) == {"s0": 1, "s1": 1}


def test_a_record_larger_than_the_limit_comes_alone():
    assert admit(BatchLimits(byte_budget=1), there(a=5, b=5), Rows(1000)) == {"a": 1}
    admission = Admission("src", Rows(1000), BatchLimits(byte_budget=1))
    assert counted(admission.admit_in_order(there(a=5, b=5))) == {"a": 1}


def test_what_is_estimated_at_no_bytes_is_read_all_the_same():
    assert admit(BatchLimits(byte_budget=100), there(a=5), Rows(0)) == {"a": 5}


def test_files_that_cannot_be_cut_are_taken_whole_up_to_the_limit():
    """The first file is always read: otherwise one larger than the limit would stop the stream."""
    files = [Planned(Split(name, end=size), UnknownEnd.WHOLE) for name, size in {"a": 1, "b": 1, "c": 1}.items()]
    assert [one.split.id for one in Admission("src", Blind(), BatchLimits(byte_budget=25)).admit_in_order(files)] == [
        "a",
        "b",
    ]
    assert [one.split.id for one in Admission("src", Blind(), BatchLimits(byte_budget=5)).admit_in_order(files)] == [
        "a"
    ]
    assert all(
        one.to is UnknownEnd.WHOLE
        for one in Admission("src", Blind(), BatchLimits(byte_budget=5)).admit_in_order(files)
    )


class Whole(Split):
    """A split that is read whole, in one micro-batch."""

    @property
    def ends_itself(self):
        return True


def test_s16_splits_that_are_read_whole_share_the_limit():
    files = [Planned(Whole(name, end=1), UnknownEnd.WHOLE) for name in "abc"]
    assert [one.split.id for one in Admission("src", Blind(), BatchLimits(byte_budget=25)).admit(files)] == ["a", "b"]


class Uncounted(Rows):
    """Its positions are no numbers of rows, but it knows how far rows reach."""

    def advance(self, split, *, rows=None, byte_budget=None):
        return (min(split.position[0] + rows, split.end[0]),)


def test_s16_a_limit_of_rows_is_hard_where_only_advance_counts_them():
    splits = [Planned(Split(name, (0,), (3,)), (3,)) for name in "abc"]
    taken = Admission("src", Uncounted(), BatchLimits(rows=4)).admit_in_order(splits)
    assert [(one.split.id, one.to) for one in taken] == [("a", (3,))]


def test_positions_given_as_lists_become_tuples():
    class Lists(Rows):
        def size(self, split):
            return 100

        def advance(self, split, *, rows=None, byte_budget=None):
            return [3, 4]

    taken = Admission("src", Lists(), BatchLimits(byte_budget=10)).admit([Planned(Split("a", (1, 2)), (9, 9))])
    assert [planned.to for planned in taken] == [(3, 4)]


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("to", [7, UnknownEnd.WHOLE, UnknownEnd.NEGOTIATED, "seven", (7,)])
def test_s16_a_limit_of_rows_where_positions_are_not_rows_is_refused_by_name(in_order, to):
    """S16: also if everything is within the limit, so that the error comes early."""
    admission = Admission("src", Blind(), BatchLimits(rows=1000))
    with pytest.raises(ConfigurationError, match="does not support maxRowsPerTrigger: the number of rows") as caught:
        (admission.admit_in_order if in_order else admission.admit)([Planned(Split("a"), to)])
    assert (caught.value.option, caught.value.split, caught.value.source) == ("maxRowsPerTrigger", "a", "src")


def test_s16_a_limit_of_bytes_where_sizes_are_not_known_is_refused_by_name():
    """S16: the option is named."""
    with pytest.raises(ConfigurationError, match="does not support maxBytesPerTrigger: the number of bytes") as caught:
        admit(BatchLimits(byte_budget=10), there(a=7), Unknowing())
    assert caught.value.option == "maxBytesPerTrigger"


def test_minimum_rows_where_positions_are_not_rows_are_refused_under_their_own_name():
    with pytest.raises(ConfigurationError, match="does not support minRowsPerTrigger") as caught:
        Admission("src", Blind(), BatchLimits()).rows(there(a=7))
    assert caught.value.option == "minRowsPerTrigger"


def test_without_an_enumerator_nobody_can_measure():
    with pytest.raises(ConfigurationError, match="does not support maxBytesPerTrigger"):
        Admission("src", None, BatchLimits(byte_budget=10)).admit(there(a=7))
    with pytest.raises(ConfigurationError, match="does not support maxRowsPerTrigger"):
        Admission("src", None, BatchLimits(rows=10)).admit(there(a=7))
    assert counted(Admission("src", None, BatchLimits(files=1)).admit(there(a=7, b=7))) == {"a": 7}


def test_an_advance_that_does_not_go_on_is_reported():
    class Stuck(Rows):
        def advance(self, split, *, rows=None, byte_budget=None):
            return split.position

    with pytest.raises(ContractError, match="returned the position where the split begins") as caught:
        admit(BatchLimits(rows=3), there(a=7), Stuck())
    assert (caught.value.rule, caught.value.split) == ("DIS-3", "a")


def test_limits_come_from_the_options():
    assert not BatchLimits.of(HostOptions())
    options = HostOptions(max_rows_per_trigger=1, max_bytes_per_trigger=ByteSize(2), max_files_per_trigger=3)
    assert BatchLimits.of(options) == BatchLimits(1, 2, 3)
