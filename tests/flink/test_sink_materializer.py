# SPDX-License-Identifier: Apache-2.0
"""Flink's own operator as judge of the materializers, on known answers and on thousands of random changelogs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Protocol

import pytest
from changelogs.cases import cut
from changelogs.reference import Change, ListMaterializer, SignedMaterializer, columns, fold
from changelogs.seeded import Judged, selected, strict_case, upsert_case
from changelogs.vectorised import run_together

from forebay.table.changelog.shape import RowKind

pytestmark = pytest.mark.soak

ADD, UPDATE, DELETE = RowKind.INSERT, RowKind.UPDATE_AFTER, RowKind.DELETE
RANDOM = 1000
Flink = Callable[[list[Judged]], list[list[list[Change]]]]


class Steps(Protocol):
    """A materializer under judgement."""

    def step(self, changes: Iterable[Change]) -> list[Change]: ...


def by_list(case: Judged) -> Steps:
    return ListMaterializer(columns(*case.key), selected(case.upsert_key))


def signed(case: Judged) -> Steps:
    return SignedMaterializer(columns(*case.key), selected(case.upsert_key))


def vectorised(cases: list[Judged]) -> list[list[list[Change]]]:
    """Give all cases, which match whole rows, to one state in a few micro-batches."""
    assert all(case.upsert_key is None for case in cases)
    r = random.Random(0)
    return run_together([cut(case.changes, [r.randrange(40) for _ in range(5)]) for case in cases])


def emitted(steps: Steps, case: Judged) -> list[list[Change]]:
    """Give the changes one by one."""
    expiring = dict(case.times)
    out = []
    for at, change in enumerate(case.changes):
        if expiring.get(at, 0) > case.ttl and isinstance(steps, (ListMaterializer, SignedMaterializer)):
            steps.forget(columns(*case.key)(change.row))
        out.append(steps.step([change]))
    return out


def wrong(cases: list[Judged], results: list[list[list[Change]]]) -> int:
    """Count the cases whose folded result is not sequential application."""
    return sum(
        fold(chain.from_iterable(steps), columns(*case.key)) != case.right
        for case, steps in zip(cases, results, strict=True)
    )


def rows_of_key_1(text: str) -> list[Change]:
    return [Change(ADD if one[0] == "+" else DELETE, (int(one[1:]), 1, f"a{one[1:]}")) for one in text.split()]


KNOWN = [
    Judged(rows_of_key_1("+1 +2 +3 -2 -3 -1 +4 -4"), {}, upsert_key, (1,), 1000, ((0, 1), (7, 1002)))
    for upsert_key in (None, (0,))
] + [
    Judged(rows_of_key_1(f"+1 +2 +3 {order}"), {}, upsert_key, (1,))
    for upsert_key in (None, (0,))
    for order in ("-1 -2 -3", "-2 -1 -3", "-3 -2 -1", "-1 -3 -2", "-2 -3 -1", "-3 -1 -2")
]
CHANGING = Judged(
    [
        Change(ADD, (1, 1, "a1")),
        Change(UPDATE, (1, 1, "a11")),
        Change(ADD, (3, 1, "a3")),
        Change(DELETE, (1, 1, "a111")),
        Change(DELETE, (3, 1, "a33")),
        Change(ADD, (4, 1, "a4")),
        Change(DELETE, (4, 1, "a4")),
    ],
    {},
    (0,),
    (1,),
    1000,
    ((0, 1), (6, 1002)),
)


def test_flink_gives_the_known_answers(flink: Flink) -> None:
    """A8, A9: the cases of `SinkUpsertMaterializerTest`; the list gives the same changes, the others the same view."""
    cases = [*KNOWN, CHANGING]
    answers = flink(cases)
    assert answers == [emitted(by_list(case), case) for case in cases]
    assert [change.row[2] for change in chain.from_iterable(answers[-1])] == ["a1", "a11", "a3", "a33", "a4"]
    for case, flinks in zip(cases, answers, strict=True):
        key = columns(*case.key)
        ours = emitted(signed(case), case)
        for at in range(len(flinks)):
            assert fold(chain(*ours[: at + 1]), key) == fold(chain(*flinks[: at + 1]), key)


def test_the_vectorised_materializer_emits_what_flink_emits(flink: Flink) -> None:
    """A8: without upsert key, one change in each micro-batch."""
    cases = [case for case in KNOWN if case.upsert_key is None and not case.times]
    answers = run_together([[[change] for change in case.changes] for case in cases], key=1)
    assert answers == flink(cases)


def test_folded_results_of_legal_orders_are_those_of_flink(flink: Flink, record_property) -> None:
    """P1: strict changelogs with and without upsert key, each change a micro-batch."""
    cases = [strict_case(seed, by_upsert_key=seed % 2 == 1) for seed in range(RANDOM)]
    answers = flink(cases)
    assert answers == [emitted(by_list(case), case) for case in cases], "the list reference is not Flink's operator"
    assert wrong(cases, answers) == 0
    assert wrong(cases, [emitted(signed(case), case) for case in cases]) == 0
    whole_rows = [case for case in cases if case.upsert_key is None]
    assert wrong(whole_rows, vectorised(whole_rows)) == 0
    record_property("report", f"Flink as judge: {RANDOM} strict changelogs in legal orders, all folded results equal")


def test_where_flink_keeps_deleted_rows_ours_is_sequential_application(flink: Flink, record_property) -> None:
    """P1, A9: with an upsert key, a row that was replaced in place and then deleted stays in Flink's sink."""
    cases = [upsert_case(seed) for seed in range(RANDOM)]
    answers = flink(cases)
    assert answers == [emitted(by_list(case), case) for case in cases]
    stale = wrong(cases, answers)
    assert stale > 0
    assert wrong(cases, [emitted(signed(case), case) for case in cases]) == 0
    record_property("report", f"Flink as judge: {stale} of {RANDOM} upsert changelogs end with a deleted row in Flink")


def test_where_flink_is_wrong_in_illegal_orders_ours_is_sequential_application(flink: Flink, record_property) -> None:
    """P2: any order; retractions may come before their rows."""
    cases = [strict_case(seed, by_upsert_key=False, any_order=True) for seed in range(RANDOM)]
    answers = flink(cases)
    assert answers == [emitted(by_list(case), case) for case in cases]
    wrong_in_flink = wrong(cases, answers)
    assert wrong_in_flink > 0
    assert wrong(cases, [emitted(signed(case), case) for case in cases]) == 0
    assert wrong(cases, vectorised(cases)) == 0
    record_property("report", f"Flink as judge: {wrong_in_flink} of {RANDOM} illegal orders end wrong in Flink")
