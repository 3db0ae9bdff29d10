# SPDX-License-Identifier: Apache-2.0
"""For each rule that a connector must keep: a connector that breaks it is caught, and the correct ones pass."""

from __future__ import annotations

import pytest
from kit_connectors.broken import BROKEN, RELEASE, OfSplits, TimedPages
from kit_connectors.correct import Dealt, Full, Numbers, OwnReader, Pages

from forebay.testkit import ConformanceError, check


@pytest.fixture(autouse=True)
def _release():
    """End the waits of a broken connector when its test ends, so that its threads end."""
    RELEASE.clear()
    yield
    RELEASE.set()


GOOD = {
    "plain rows": Numbers,
    "batches": Pages,
    "event times": TimedPages,
    "fields": OfSplits,
    "full, bounded": Full,
    "full, endless": lambda: Full(endless=True),
    "raw enumerator": Dealt,
    "own reader": OwnReader,
    "own reader, endless": lambda: OwnReader(endless=True),
}


@pytest.mark.soak(but=["fields", "raw enumerator"])
@pytest.mark.parametrize("name", GOOD)
def test_a_good_connector_passes(in_one_process, name):
    assert check(GOOD[name]()).verdict == "passed"


@pytest.mark.soak
@pytest.mark.parametrize("block", range(10))
@pytest.mark.parametrize("name", ["batches", "full, bounded", "raw enumerator"])
def test_a_good_connector_passes_with_every_seed(name, block):
    failed = [seed for seed in range(100 * block, 100 * block + 100) if check(GOOD[name](), seed=seed).failed]
    assert failed == []


@pytest.mark.parametrize(("rule", "name", "make"), BROKEN, ids=[f"{rule}-{name}" for rule, name, _ in BROKEN])
def test_a_broken_connector_is_caught_by_its_rule(in_one_process, rule, name, make):
    with pytest.raises(ConformanceError) as caught:
        check(make(), seconds=6, rules={rule})
    assert rule in caught.value.report.rules("failed"), str(caught.value)
    assert all(result.why and result.advice for result in caught.value.report.failed)
    assert f"{rule}:" in str(caught.value)


@pytest.mark.soak
@pytest.mark.parametrize(("rule", "name", "make"), BROKEN, ids=[f"{rule}-{name}" for rule, name, _ in BROKEN])
def test_check_alone_names_the_rule_and_the_next_step_in_its_first_line(rule, name, make):
    with pytest.raises(ConformanceError) as caught:
        check(make())
    first = str(caught.value).splitlines()[0]
    assert f" breaks {rule}: " in first and "; next step: " in first
