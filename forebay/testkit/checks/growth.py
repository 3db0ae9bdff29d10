# SPDX-License-Identifier: Apache-2.0
"""Checks of the ids of splits while an input in directories grows (rule SPL-1). The input itself is not changed."""

from __future__ import annotations

from collections.abc import Mapping

from forebay.framework.split import Split
from forebay.testkit.checks.base import Checks, check_into
from forebay.testkit.findings import Broken, Finding, NotApplicable, OutOfTime
from forebay.testkit.harness.changed_listing import Listed, listings
from forebay.testkit.harness.reads import read
from forebay.testkit.harness.subject import Subject

GROWTH: Checks = []

Found = Mapping[str, Split]
"""The splits of a discovery, by id."""

_MOST_FILES = 3
"""Maximum number of files that are hidden, one after the other."""


@check_into(GROWTH)
def ids_outlive_growth(subject: Subject) -> None:
    """SPL-1: a split id stays that of its rows when files appear, are listed in another order, or are written to."""
    with listings(lambda _, names: names) as listed:
        splits = _splits(subject)
    directories: Listed = {path: names for path, names in listed.items() if names}
    if not directories:
        raise NotApplicable("discovery lists no directory")
    if not subject.source.bounded:
        with listings(lambda _, names: names, later=True):
            otherwise = _splits(subject)
        when = "after the files had been written to: ids depend on their time or size"
        _need_same(splits, otherwise, when, settling=True)
    with listings(lambda _, names: names[::-1]):
        otherwise = _splits(subject)
        _need_same(splits, otherwise, "when the directory was listed in another order")
        _compare_rows(subject, otherwise, "when the directory was listed in another order", _ORDER)
    for path, names in directories.items():
        for hidden in _chosen(names):
            _hide(subject, splits, path, hidden)
            subject.need_time()


def _chosen(names: list[str]) -> list[str]:
    return sorted({names[0], names[len(names) // 2], names[-1]})[:_MOST_FILES] if len(names) > 1 else []


def _hide(subject: Subject, splits: Found, path: str, hidden: str) -> None:
    """Compare the splits with and without one file, as they were before it appeared."""
    with listings(lambda place, names: [name for name in names if (place, name) != (path, hidden)]):
        before = _splits(subject, quiet=True)
        if not before or not before.keys() < splits.keys():
            return  # the file is no split of its own: what a split contains may change with it
        _compare_rows(subject, before, f"before the file {hidden!r} had appeared", _NAMES)


def _splits(subject: Subject, *, quiet: bool = False) -> Found:
    """Return the splits that a new enumerator discovers or assigns; with `quiet`, none if that fails."""
    try:
        return {split.id: split for split in subject.discover()}
    except OutOfTime:
        raise
    except Exception:  # any error of the author's, or an enumerator that waits for the file
        if quiet:  # a source may need the file
            return {}
        raise


def _need_same(splits: Found, found: Found, when: str, *, settling: bool = False) -> None:
    """Compare ids. With `settling`, a split may only be gone: a source may let a file settle that was written to."""
    gone, new = sorted(splits.keys() - found.keys()), sorted(found.keys() - splits.keys())
    if gone and (new or not settling):
        raise Broken(f"the split {gone[0]!r} was found as {new[0] if new else None!r} {when}", _NAMES)


def _compare_rows(subject: Subject, found: Found, when: str, advice: str) -> None:
    """Read the splits that were found now, each over the range of its plain read."""
    traces = [trace for trace in subject.traces if trace.split.id in found]
    for trace in traces:
        try:
            now = found[trace.split.id].slice(trace.split.position, trace.split.end)
            rows = read(subject, [now]).rows[trace.split.id]
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
