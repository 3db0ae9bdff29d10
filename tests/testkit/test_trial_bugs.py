# SPDX-License-Identifier: Apache-2.0
"""The bugs that authors planted into a table, files and a log of segments: `check` alone catches each of them."""

from __future__ import annotations

import re

import pytest
from kit_connectors.trial import BUGS, CORRECT, HARMLESS, Bug, verdict


def named(bugs):
    return [pytest.param(bug, id=bug.name) for bug in bugs]


def rule_of(report):
    assert report.verdict == "failed", report.headline
    assert "; next step: " in report.headline
    (rule,) = re.findall(r"^\w+ breaks ([A-Z]+[0-9]?-?[0-9]*): ", report.headline)
    return rule


ELSEWHERE = {"the order of ties depends on the process", "times without a zone"}
"""Bugs that only a read in other processes shows."""


@pytest.mark.parametrize("bug", named(bug for bug in BUGS if bug.name not in ELSEWHERE))
@pytest.mark.soak(
    but=[
        "position off by one, early",
        "latest() is inclusive",
        "slices overlap",
        "state on the class",
        "connections are not closed",
        "an error of read() becomes an end",
        "upgrade() loses the position",
        "unassigned splits are not in the snapshot",
        "finished when it has caught up",
    ]
)
def test_check_alone_catches_a_bug_of_the_trial(in_one_process, bug):
    """ERR-1, and the other rules: with the checks of its rules only; the soak test runs all checks."""
    assert rule_of(verdict(bug, whole=False)) in bug.rules


@pytest.mark.soak
@pytest.mark.parametrize("bug", named(bug for bug in BUGS if bug.name in ELSEWHERE))
def test_check_alone_catches_a_bug_that_other_processes_show(bug):
    assert rule_of(verdict(bug, whole=False)) in bug.rules


@pytest.mark.soak
@pytest.mark.parametrize("bug", named(BUGS))
def test_check_alone_names_the_rule_of_a_bug_of_the_trial_first(bug):
    assert rule_of(verdict(bug)) in bug.rules


@pytest.mark.soak
@pytest.mark.parametrize("bug", named([*HARMLESS, *(Bug(name, made, ()) for name, made in CORRECT.items())]))
def test_a_correct_or_harmless_connector_of_the_trial_passes(bug):
    report = verdict(bug)
    assert report.verdict == "passed", report
