# SPDX-License-Identifier: Apache-2.0
"""Properties P1-P4 and P14 of the references and, for changelogs in any order, of the vectorised materializer."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import pairwise
from typing import Any, Protocol

import pytest
from changelogs.cases import KEY, PATH, legal, strict, unnumbered
from changelogs.reference import (
    BarrierMaterializer,
    Change,
    How,
    JoinReference,
    ListMaterializer,
    Normalizer,
    Row,
    SignedMaterializer,
    View,
    apply_sequential,
    columns,
    fold,
    join,
    whole,
)
from changelogs.strategies import ACTS, PLACES, Case, arrivals
from changelogs.vectorised import Vectorised
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from forebay.table.changelog.operators.retract import Retract
from forebay.table.changelog.shape import RowKind


class Steps(Protocol):
    """A materializer of the rows of `changelogs.cases`."""

    def step(self, changes: Iterable[Change]) -> list[Change]: ...


Make = Callable[[], Steps]
FIRST_FOUND = settings(phases=[Phase.generate], max_examples=5000)
"""Of `find`, which raises if there is no example: the smallest ones are in test_reference.py."""

LEGAL: dict[str, Make] = {
    "list": lambda: ListMaterializer(KEY),
    "list by upsert key": lambda: ListMaterializer(KEY, PATH),
    "signed": lambda: SignedMaterializer(KEY),
    "signed with -U": lambda: SignedMaterializer(KEY, update_before=True),
    "signed by upsert key": lambda: SignedMaterializer(KEY, PATH),
    "vectorised": Vectorised,
    "vectorised with -U": lambda: Vectorised(operator=Retract(on_missing="hold", preimages=True)),
    "vectorised, hashes collide": lambda: Vectorised(bits=1),
}
"""What is right for legal orders of strict changelogs, in any micro-batches."""
ANY_ORDER: dict[str, Make] = {
    name: make for name, make in LEGAL.items() if name.startswith(("signed", "vectorised")) and "upsert" not in name
}
"""What is right for any order."""
BARRIERS: dict[str, Make] = {
    "barrier": lambda: BarrierMaterializer(KEY),
    "barrier by upsert key": lambda: BarrierMaterializer(KEY, PATH),
    "barrier that keeps the first": lambda: BarrierMaterializer(KEY, on_conflict="nothing"),
    "vectorised barrier": lambda: Vectorised(operator=Retract(on_missing="error", on_conflict="error")),
}


def of(makers: dict[str, Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("make", makers.values(), ids=makers)


def emitted(steps: Steps, batches: Iterable[Sequence[Change]]) -> list[Change]:
    return [out for batch in batches for out in steps.step(batch)]


def consistent_cuts(changes: Sequence[Change], places: Iterable[int]) -> list[list[Change]]:
    """Cut strict changes where no update is half done, which is where a barrier is right."""
    whole_updates = [at for at in range(len(changes)) if changes[at].kind is not RowKind.UPDATE_AFTER]
    edges = [0, *sorted({whole_updates[place % len(whole_updates)] for place in places if whole_updates}), len(changes)]
    return [list(changes[start:stop]) for start, stop in pairwise(edges)]


def assert_valid(changes: Iterable[Change], *, with_update_before: bool) -> None:
    """Fold a changelog step by step: every change must fit what was emitted before."""
    view: View = {}
    half_updated: Hashable = None
    for kind, row, _ in changes:
        key = KEY(row)
        if kind is RowKind.INSERT:
            assert key not in view
        elif kind is RowKind.UPDATE_AFTER:
            assert key in view
            assert (half_updated == key) or not with_update_before
        else:
            assert view[key] == row
        half_updated = key if kind is RowKind.UPDATE_BEFORE else None
        if kind.adds:
            view[key] = row
        elif kind is RowKind.DELETE:
            del view[key]
    assert half_updated is None


# -- P1 and P2 -------------------------------------------------------------------------------------------------------


@of(LEGAL)
@given(case=arrivals("strict", PATH))
def test_legal_orders_in_any_batches_end_like_sequential_application(make: Make, case: Case) -> None:
    """P1: strict changelogs have one live row a key, so that the last one needs no order."""
    assert fold(emitted(make(), case.batches), KEY) == apply_sequential(case.changes, KEY)


@of({"signed by upsert key": LEGAL["signed by upsert key"]})
@given(case=arrivals("upserts", KEY))
def test_upserts_in_the_order_of_their_key_end_like_sequential_application(make: Make, case: Case) -> None:
    """P1: without `-U`, and with several live rows a key; Flink's list leaves deleted rows here (A9)."""
    assert fold(emitted(make(), case.batches), KEY) == apply_sequential(case.changes, KEY, PATH)


@of(ANY_ORDER)
@given(case=arrivals("strict", None))
def test_any_order_in_any_batches_ends_like_sequential_application(make: Make, case: Case) -> None:
    """P2: also retractions before their rows, and in other batches."""
    steps = make()
    assert fold(emitted(steps, case.batches), KEY) == apply_sequential(case.changes, KEY)
    assert not isinstance(steps, SignedMaterializer) or steps.held == 0


@of(ANY_ORDER)
@given(case=arrivals("many_live", None, ordered=True))
def test_changes_that_know_their_order_may_leave_several_live_rows(make: Make, case: Case) -> None:
    """P2: with `_sequence` or positions, the last added live row is current, whatever came first."""
    assert fold(emitted(make(), case.batches), KEY) == apply_sequential(case.changes, KEY)


@pytest.mark.parametrize("upsert_key", [whole, PATH], ids=["whole rows", "upsert key"])
def test_flinks_list_is_not_right_for_any_order(upsert_key: Callable[[Row], Hashable]) -> None:
    """P2: the guard against a test that nothing fails."""

    def is_wrong(case: Case) -> bool:
        steps = ListMaterializer(KEY, upsert_key)
        return fold(emitted(steps, case.batches), KEY) != apply_sequential(case.changes, KEY)

    find(arrivals("strict", None), is_wrong, settings=FIRST_FOUND)


def test_flinks_list_leaves_deleted_rows_of_upserts_in_legal_orders() -> None:
    """P1: so that Flink with an upsert key is no judge of changelogs without `-U`."""

    def is_wrong(case: Case) -> bool:
        steps = ListMaterializer(KEY, PATH)
        return fold(emitted(steps, case.batches), KEY) != apply_sequential(case.changes, KEY, PATH)

    find(arrivals("upserts", KEY), is_wrong, settings=FIRST_FOUND)


# -- P3 and P4 -------------------------------------------------------------------------------------------------------


@of(BARRIERS)
@given(acts=ACTS, places=PLACES, picks=st.lists(st.integers(0, 5), max_size=20))
def test_a_barrier_on_consistent_cuts_stores_one_row_a_key(
    make: Make, acts: list[Any], places: list[int], picks: list[int]
) -> None:
    """P3: each batch may arrive in any legal order; after each one, the state is the view."""
    steps, view, done = make(), View(), list[Change]()
    for batch in consistent_cuts(strict(acts), places):
        view = fold(steps.step(unnumbered(legal(batch, PATH, picks))), KEY, view)
        done += batch
        assert view == apply_sequential(done, KEY)
        assert not isinstance(steps, BarrierMaterializer) or steps.stored == len(view)
    assert not isinstance(steps, BarrierMaterializer) or steps.unmatched == 0


@of(BARRIERS)
@given(acts=ACTS)
def test_a_barrier_emits_nothing_for_a_batch_without_net_effect(make: Make, acts: list[Any]) -> None:
    """P3: all that a batch adds, it removes again."""
    changes = strict(acts)
    undone = [Change(RowKind.DELETE, row) for row in apply_sequential(changes, KEY).values()]
    assert make().step([*unnumbered(changes), *undone]) == []


@of({**LEGAL, **BARRIERS})
@given(data=st.data())
def test_the_output_is_a_valid_changelog(make: Make, data: st.DataObject) -> None:
    """P4: `+I` only of absent keys, `-U` and `-D` only of the row that was emitted last."""
    steps = make()
    if make in BARRIERS.values():
        batches = consistent_cuts(strict(data.draw(ACTS)), data.draw(PLACES))
    else:
        order = None if make in ANY_ORDER.values() else PATH
        batches = data.draw(arrivals("strict", order)).batches
    assert_valid(
        emitted(steps, batches), with_update_before=make in (LEGAL["signed with -U"], LEGAL["vectorised with -U"])
    )


@given(case=arrivals("upserts", KEY))
def test_normalize_gives_a_valid_changelog_of_the_last_rows(case: Case) -> None:
    """P4: deletes carry only their key."""
    bare = [
        [one if one.kind.adds else one._replace(row=(one.row[0], None, None)) for one in batch]
        for batch in case.batches
    ]
    out = emitted(Normalizer(KEY), bare)
    assert_valid(out, with_update_before=True)
    expected: View = {}
    for one in case.changes:
        expected.pop(KEY(one.row), None)
        if one.kind.adds:
            expected[KEY(one.row)] = one.row
    assert fold(out, KEY) == expected


# -- P14 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
@given(left=ACTS, right=ACTS, data=st.data())
def test_a_join_folds_to_the_join_of_the_folded_inputs_after_each_batch(
    how: How, left: list[Any], right: list[Any], data: st.DataObject
) -> None:
    """P14: both sides in any order; the left row's path is compared with the right row's key."""
    sides = [data.draw(arrivals("strict", None)), data.draw(arrivals("strict", None))]
    steps = JoinReference(KEY, KEY, columns(1), KEY, how=how, left_width=3, right_width=3)
    folded: dict[Hashable, Row] = {}
    views: list[View] = [{}, {}]
    inputs = [SignedMaterializer(KEY), SignedMaterializer(KEY)]
    for at in range(max(len(side.batches) for side in sides)):
        batch = [side.batches[at] if at < len(side.batches) else [] for side in sides]
        views = [fold(one.step(some), KEY, view) for one, some, view in zip(inputs, batch, views, strict=True)]
        folded = fold(steps.step(*batch), steps.key, folded)
        rows = join(views[0].values(), views[1].values(), columns(1), KEY, how, 3)
        assert sorted(folded.values(), key=repr) == sorted(rows, key=repr)


# -- equality --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["strict", "many_live"])
@given(data=st.data())
def test_the_vectorised_materializer_emits_what_the_reference_emits(kind: str, data: st.DataObject) -> None:
    """P2, P4: in each micro-batch; keys come in any order."""
    case = data.draw(arrivals(kind, None, ordered=True))
    ours, reference = Vectorised(), SignedMaterializer(KEY)
    for batch in case.batches:
        assert sorted(ours.step(batch)) == sorted(reference.step(batch))
