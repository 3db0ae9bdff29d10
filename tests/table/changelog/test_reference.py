# SPDX-License-Identifier: Apache-2.0
"""Known answers of the references (A1, A2, A6, A8-A10, A12, A13), of Flink and of the documents."""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Protocol

import pytest
from changelogs.reference import (
    BarrierMaterializer,
    Change,
    JoinReference,
    ListMaterializer,
    Normalizer,
    Row,
    SignedMaterializer,
    View,
    apply_sequential,
    columns,
    current_view,
    fold,
    latest_per_key,
    whole,
)

from forebay.errors import DataError
from forebay.table.changelog.shape import RowKind

ADD, UB, UA, DEL = RowKind
FIRST, SECOND = columns(0), columns(1)


class Steps(Protocol):
    """Any of the references with one input."""

    def step(self, changes: Iterable[Change]) -> list[Change]: ...


def told(changes: Iterable[Change]) -> list[str]:
    """Write changes as `+I a1`: the kind and the last column."""
    return [f"{change.kind.short} {change.row[-1]}" for change in changes]


def answers(steps: Steps, changes: Iterable[Change]) -> list[str]:
    """Give changes one by one; a step that emits nothing is a dot."""
    return [" ".join(told(steps.step([change]))) or "." for change in changes]


def change(kind: RowKind, *row: int | str | bool | None) -> Change:
    return Change(kind, row)


# -- the current view ------------------------------------------------------------------------------------------------

NEWEST_FIRST: list[Row] = [
    ("Key2", None, False),
    ("Key1", "thirdVal", True),
    ("Key2", "secondVal", False),
    ("Key1", "firstVal", False),
]


def test_the_current_view_is_the_newest_row_of_each_key_whole():
    """A1: the NULL of the newest row is data, and a deleted key is gone."""
    view = current_view(reversed(NEWEST_FIRST), FIRST, lambda row: row[2])
    assert view == {("Key2",): ("Key2", None, False)}


def test_the_newest_rows_keep_tombstones_and_rows_without_a_flag():
    """A6: the usual window snippet is right as a final view, and loses deletes as a feed."""
    rows: list[Row] = [(1, "a", False), (2, "b", None), (1, "a", True)]
    snippet = {key: row for key, row in latest_per_key(rows, FIRST).items() if row[2] is False}
    assert snippet == {}, "`~is_deleted` also drops the row whose flag is NULL"
    assert latest_per_key(rows, FIRST) == {(1,): (1, "a", True), (2,): (2, "b", None)}
    assert current_view(rows, FIRST, lambda row: row[2]) == {(2,): (2, "b", None)}


# -- the three cases of the join -------------------------------------------------------------------------------------

CASES = {
    1: [change(ADD, 1, 10, "a1"), change(UB, 1, 10, "a1"), change(UA, 1, 20, "b1")],
    2: [change(UA, 1, 20, "b1"), change(ADD, 1, 10, "a1"), change(UB, 1, 10, "a1")],
    3: [change(ADD, 1, 10, "a1"), change(UA, 1, 20, "b1"), change(UB, 1, 10, "a1")],
}
RIGHT = {(1,): (1, 20, "b1")}


def naive(changes: Iterable[Change], *, ignore_update_before: bool) -> View:
    """Apply changes by key alone, as a sink without a materializer does."""
    view: View = {}
    for one in changes:
        if one.kind.adds:
            view[FIRST(one.row)] = one.row
        elif not (ignore_update_before and one.kind is UB):
            view.pop(FIRST(one.row), None)
    return view


def test_a_sink_without_materializer_is_wrong_in_two_of_three_cases():
    """A2: a sink that deletes on `-U`, and one that ignores it."""
    wrong = {(1,): (1, 10, "a1")}
    assert [naive(CASES[case], ignore_update_before=False) for case in CASES] == [RIGHT, {}, {}]
    assert [naive(CASES[case], ignore_update_before=True) for case in CASES] == [RIGHT, wrong, RIGHT]


@pytest.mark.parametrize("upsert_key", [whole, columns(0, 1)])
def test_flinks_list_emits_what_the_description_says_in_each_case(upsert_key):
    """A2: with the upsert key (id, level) and without; C8."""
    emitted = {case: answers(ListMaterializer(FIRST, upsert_key), CASES[case]) for case in CASES}
    assert emitted == {
        1: ["+I a1", "-D a1", "+I b1"],
        2: ["+I b1", "+U a1", "+U b1"],
        3: ["+I a1", "+U b1", "."],
    }


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("make", [ListMaterializer, SignedMaterializer, BarrierMaterializer])
def test_every_materializer_ends_with_the_right_row_in_each_case(make, case):
    """A2: in one micro-batch, the barrier and the signed multiset emit nothing else."""
    emitted = make(FIRST).step(CASES[case])
    assert fold(emitted, FIRST) == apply_sequential(CASES[1], FIRST) == RIGHT
    if make is not ListMaterializer:
        assert told(emitted) == ["+I b1"]


def test_a_retraction_before_its_row_ends_right_by_signed_counts_only():
    """A2: in the order that no path allows, Flink's list keeps the dead row."""
    illegal = [CASES[1][1], CASES[1][0], CASES[1][2]]
    assert fold(SignedMaterializer(FIRST).step(illegal), FIRST) == RIGHT
    early = [CASES[1][1], CASES[1][2], CASES[1][0]]
    signed, flinks = SignedMaterializer(FIRST), ListMaterializer(FIRST)
    assert answers(signed, early) == [".", "+I b1", "."]
    assert fold(flinks.step(early), FIRST) == {(1,): (1, 10, "a1")}
    assert (signed.held, flinks.unmatched) == (0, 1)


# -- Flink's SinkUpsertMaterializerTest ------------------------------------------------------------------------------


def sink(kinds_and_ids: str, column: str = "a") -> list[Change]:
    """Parse `+1 -2` into inserts and deletes of rows (id, 1, a<id>), whose key is the second column."""
    return [
        change(ADD if one[0] == "+" else DEL, int(one[1:]), 1, f"{column}{one[1:]}") for one in kinds_and_ids.split()
    ]


AFTER_THREE = {
    (1, 2, 3): [".", ".", "-D a3"],
    (2, 1, 3): [".", ".", "-D a3"],
    (3, 2, 1): ["+U a2", "+U a1", "-D a1"],
    (1, 3, 2): [".", "+U a2", "-D a2"],
    (2, 3, 1): [".", "+U a1", "-D a1"],
    (3, 1, 2): ["+U a2", ".", "-D a2"],
}
BOTH = pytest.mark.parametrize("make", [ListMaterializer, SignedMaterializer])


@BOTH
@pytest.mark.parametrize("upsert_key", [whole, FIRST])
def test_rows_of_a_key_take_turns_as_in_flinks_own_test(make, upsert_key):
    """A8: and a retraction after the time to live finds nothing."""
    steps = make(SECOND, upsert_key)
    emitted = answers(steps, sink("+1 +2 +3 -2 -3 -1 +4"))
    assert emitted == ["+I a1", "+U a2", "+U a3", ".", "+U a1", "-D a1", "+I a4"]
    steps.forget((1,))
    assert answers(steps, sink("-4")) == ["."]
    assert steps.unmatched + getattr(steps, "held", 0) == 1


@BOTH
@pytest.mark.parametrize("upsert_key", [whole, FIRST])
@pytest.mark.parametrize("order", AFTER_THREE)
def test_three_rows_may_be_retracted_in_any_order(make, upsert_key, order):
    """A8: all six orders."""
    steps = make(SECOND, upsert_key)
    steps.step(sink("+1 +2 +3"))
    assert answers(steps, sink(" ".join(f"-{one}" for one in order))) == AFTER_THREE[order]


CHANGING = [
    change(ADD, 1, 1, "a1"),
    change(UA, 1, 1, "a11"),
    change(ADD, 3, 1, "a3"),
    change(DEL, 1, 1, "a111"),
    change(DEL, 3, 1, "a33"),
    change(ADD, 4, 1, "a4"),
]


def test_an_upsert_key_matches_rows_whose_other_columns_changed():
    """A9: Flink's delete has the columns of the retraction; ours those of the row that was emitted."""
    flinks, ours = ListMaterializer(SECOND, FIRST), SignedMaterializer(SECOND, FIRST)
    assert answers(flinks, CHANGING) == ["+I a1", "+U a11", "+U a3", ".", "-D a33", "+I a4"]
    assert answers(ours, CHANGING) == ["+I a1", "+U a11", "+U a3", ".", "-D a3", "+I a4"]
    for steps in (flinks, ours):
        steps.forget((1,))
        assert answers(steps, [change(DEL, 4, 1, "a4")]) == ["."]
        assert steps.unmatched == 1


def test_flinks_list_keeps_a_deleted_row_that_was_replaced_in_place():
    """A9: the smallest legal case; the replaced row was emitted last, and its retraction emits nothing."""
    stale = [change(ADD, 1, 1, "a1"), change(ADD, 2, 1, "a2"), change(UA, 1, 1, "a11"), change(DEL, 1, 1, "a11")]
    right = apply_sequential(stale, SECOND, FIRST)
    assert right == {(1,): (2, 1, "a2")}
    assert fold(ListMaterializer(SECOND, FIRST).step(stale), SECOND) == {(1,): (1, 1, "a11")}
    ours = SignedMaterializer(SECOND, FIRST)
    assert fold([out for one in stale for out in ours.step([one])], SECOND) == right


@BOTH
@pytest.mark.parametrize("value", ["key", b"key", Decimal("1.50"), None, ("nested", 1)])
def test_an_upsert_key_may_be_any_column_of_any_type(make, value):
    """A10: the regressions of Flink's serializer; NULLs are equal."""
    steps = make(FIRST, columns(2))
    rows: list[Row] = [(1, "a", value), (1, "b", value), (1, "c", "other")]
    changes = [
        Change(ADD, rows[0]),
        Change(UA, rows[1]),
        Change(ADD, rows[2]),
        Change(DEL, rows[2]),
        Change(DEL, rows[0]),
    ]
    emitted = [out for one in changes for out in steps.step([one])]
    assert [one.kind for one in emitted] == [ADD, UA, UA, UA, DEL]
    assert [one.row for one in emitted][:4] == [rows[0], rows[1], rows[2], rows[1]]


# -- Flink's WatermarkCompactingSinkMaterializerTest -----------------------------------------------------------------

KEEP = pytest.mark.parametrize("on_conflict", ["error", "nothing"])


def barrier(on_conflict: str, *batches: list[Change], upsert_key=FIRST) -> list[list[str]]:
    """Return what a barrier on the second column emits for each batch."""
    steps = BarrierMaterializer(SECOND, upsert_key, on_conflict=on_conflict)  # type: ignore[arg-type]
    return [told(steps.step(batch)) for batch in batches]


@KEEP
@pytest.mark.parametrize("upsert_key", [whole, FIRST])
def test_insert_and_delete_of_a_batch_cancel_out(on_conflict, upsert_key):
    """A12: and in two batches both are emitted."""
    assert barrier(on_conflict, sink("+1 -1"), upsert_key=upsert_key) == [[]]
    assert barrier(on_conflict, sink("+1"), sink("-1"), upsert_key=upsert_key) == [["+I a1"], ["-D a1"]]


def test_two_live_rows_are_a_conflict():
    """A12: `nothing` keeps the first, `error` names the key, `deduplicate` keeps the last."""
    both = sink("+1 +2")
    assert barrier("nothing", both) == [["+I a1"]]
    assert barrier("deduplicate", both, sink("-2")) == [["+I a2"], ["+U a1"]]
    with pytest.raises(DataError, match=re.escape("key (1,) has 2 live rows")):
        barrier("error", both)


def test_two_live_rows_in_two_batches_are_a_conflict():
    """A12: `testUpdateWithoutUpsertKey…`: the stored row and a new one."""
    batches = (sink("+1"), [change(UA, 2, 1, "a2")])
    assert barrier("nothing", *batches, upsert_key=whole) == [["+I a1"], []]
    with pytest.raises(DataError, match=re.escape("key (1,) has 2 live rows")):
        barrier("error", *batches, upsert_key=whole)


@KEEP
def test_rows_of_one_upsert_key_replace_one_another(on_conflict):
    """A12: the last one stays, also if the first batch after a restart holds all that was buffered."""
    buffered = [change(ADD, 1, 1, "v1"), change(UA, 1, 1, "v2"), change(UA, 1, 1, "v3")]
    assert barrier(on_conflict, buffered[:2]) == [["+I v2"]]
    assert barrier(on_conflict, buffered) == [["+I v3"]]


@KEEP
def test_disorder_inside_a_batch_gives_one_insert(on_conflict):
    """A12: the example of FLIP-558, and a `+U` before its `-U` with whole rows."""
    assert barrier(on_conflict, [change(UA, 2, 1, "b1"), change(ADD, 1, 1, "a1"), change(UB, 1, 1, "a1")]) == [
        ["+I b1"]
    ]
    late = [change(ADD, 1, 1, "a1"), change(UA, 1, 1, "a2"), change(UB, 1, 1, "a1")]
    assert barrier(on_conflict, late, upsert_key=whole) == [["+I a2"]]


@KEEP
def test_an_unchanged_row_is_not_emitted_again(on_conflict):
    """A12: `testNoEmissionWhenValueUnchanged`."""
    assert barrier(on_conflict, [change(ADD, 1, 1, "v")], [change(UA, 1, 1, "v")]) == [["+I v"], []]


@KEEP
def test_two_inputs_give_one_row_at_each_barrier(on_conflict):
    """A12: inputs at t = 2, 4 and 6, and barriers at 3, 5 and 10."""
    batches = (
        [change(ADD, 1, 1, "v1")],
        [change(UB, 1, 1, "v1"), change(UA, 2, 1, "v3")],
        [change(UA, 1, 1, "v4"), change(UB, 2, 1, "v3")],
    )
    assert barrier(on_conflict, *batches) == [["+I v1"], ["+U v3"], ["+U v4"]]


def test_identical_inserts_are_two_rows_without_an_upsert_key():
    """A12: `testIdenticalInsertsWithoutUpsertKey…`."""
    assert barrier("nothing", sink("+1 +1"), upsert_key=whole) == [["+I a1"]]
    with pytest.raises(DataError, match=re.escape("key (1,) has 2 live rows")):
        barrier("error", sink("+1 +1"), upsert_key=whole)


# -- normalize and join ----------------------------------------------------------------------------------------------


def test_normalize_emits_the_difference_to_the_stored_row():
    """A13: C16 line by line."""
    lines = [
        (change(ADD, 1, "a"), [change(ADD, 1, "a")]),
        (change(UA, 1, "b"), [change(UB, 1, "a"), change(UA, 1, "b")]),
        (change(UA, 1, "b"), []),
        (change(DEL, 1, None), [change(DEL, 1, "b")]),
        (change(DEL, 1, None), []),
        (change(UA, 1, "c"), [change(ADD, 1, "c")]),
    ]
    steps = Normalizer(FIRST)
    assert [steps.step([given]) for given, _ in lines] == [expected for _, expected in lines]


def test_normalize_emits_one_transition_a_key_for_a_micro_batch():
    """A13: what a batch adds and deletes again is not emitted."""
    steps = Normalizer(FIRST)
    assert steps.step([change(ADD, 1, "a"), change(UA, 1, "b"), change(ADD, 2, "x"), change(DEL, 2, None)]) == [
        change(ADD, 1, "b")
    ]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("inner", [["+I b"], ["-D b"], ["+I b"]]),
        ("left", [["+I b"], ["-D b", "+I None"], ["-D None", "+I b"]]),
        ("semi", [["+I 10"], ["-D 10"], ["+I 20"]]),
        ("anti", [[], ["+I 20"], ["-D 20"]]),
    ],
)
def test_a_join_follows_both_sides(how, expected):
    """A2: student 1 moves from level 10 to 20, and then level 20 appears."""
    steps = JoinReference(FIRST, FIRST, columns(1), FIRST, how=how, left_width=2, right_width=2)
    batches: list[tuple[list[Change], list[Change]]] = [
        ([change(ADD, 1, 10)], [change(ADD, 10, "b")]),
        ([change(UB, 1, 10), change(UA, 1, 20)], []),
        ([], [change(ADD, 20, "b")]),
    ]
    assert [told(steps.step(*batch)) for batch in batches] == expected
