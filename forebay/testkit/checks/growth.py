# SPDX-License-Identifier: Apache-2.0
"""Checks of the ids of splits while an input in directories grows (rule SPL-1). The input itself is not changed."""

from __future__ import annotations

from forebay.framework.discovery import DiscoveryEnumerator
from forebay.testkit.checks.base import Checks, check_into
from forebay.testkit.findings import Broken, Finding, NotApplicable
from forebay.testkit.harness.changed_listing import Listed, listings
from forebay.testkit.harness.reads import read
from forebay.testkit.harness.subject import Subject

GROWTH: Checks = []

_MOST_FILES = 3
"""Maximum number of files that are hidden, one after the other."""


@check_into(GROWTH)
def ids_outlive_growth(subject: Subject) -> None:
    """SPL-1: a split id stays that of its rows when files appear, are listed in another order, or are written to."""
    with listings(lambda _, names: names) as listed:
        ids = _ids(subject)
    directories: Listed = {path: names for path, names in listed.items() if names}
    if not directories:
        raise NotApplicable("discovery lists no directory")
    if not subject.source.bounded:
        with listings(lambda _, names: names, later=True):
            _need_same(ids, _ids(subject), "after the files had been written to: ids depend on their time or size")
    with listings(lambda _, names: names[::-1]):
        _need_same(ids, _ids(subject), "when the directory was listed in another order")
        _compare_rows(subject, ids, "when the directory was listed in another order", _ORDER)
    for path, names in directories.items():
        for hidden in _chosen(names):
            _hide(subject, ids, path, hidden)
            subject.need_time()


def _chosen(names: list[str]) -> list[str]:
    return sorted({names[0], names[len(names) // 2], names[-1]})[:_MOST_FILES] if len(names) > 1 else []


def _hide(subject: Subject, ids: set[str], path: str, hidden: str) -> None:
    """Compare the splits with and without one file, as they were before it appeared."""
    with listings(lambda place, names: [name for name in names if (place, name) != (path, hidden)]):
        before = _ids(subject, quiet=True)
        if not before or not before < ids:
            return  # the file is no split of its own: what a split contains may change with it
        _compare_rows(subject, before, f"before the file {hidden!r} had appeared", _NAMES)


def _ids(subject: Subject, *, quiet: bool = False) -> set[str]:
    """Return the ids that a new enumerator discovers; with `quiet`, none if that fails."""
    with subject.enumerator() as enumerator:
        if not isinstance(enumerator, DiscoveryEnumerator):
            raise NotApplicable("the source has its own SplitEnumerator")
        try:
            return {split.id for split in subject.discovered(enumerator, {}, first=True).splits}
        except Finding:
            raise
        except Exception:  # any error of the author's
            if quiet:  # a source may need the file
                return set()
            raise


def _need_same(ids: set[str], found: set[str], when: str) -> None:
    if gone := sorted(ids - found):
        new = sorted(found - ids)
        raise Broken(f"the split {gone[0]!r} was found as {new[0] if new else None!r} {when}", _NAMES)


def _compare_rows(subject: Subject, ids: set[str], when: str, advice: str) -> None:
    traces = [trace for trace in subject.traces if trace.split.id in ids]
    for trace in traces:
        try:
            rows = read(subject, [trace.split]).rows[trace.split.id]
        except Finding:
            raise
        except Exception as error:
            why = f"split {trace.split.id!r} could not be read {when}: {type(error).__name__}: {error}"
            raise Broken(why, advice) from error
        subject.compare(trace.split.id, rows, trace.rows, f"read {when}", advice)


_NAMES = (
    "derive ids from the part of the input, such as the name of the file: never from its place in a listing, its "
    "time or its size, which change while the input grows"
)
_ORDER = "sort what a directory lists, and derive ids from the names: the order of a listing is not defined"
