# SPDX-License-Identifier: Apache-2.0
"""Checks of reads whose start or end is a position that the plain read did not return (rules SR-2, RDR-5).

Such positions are ends that latest() returned before the input grew, and positions inside pages and in the gaps of ids.
"""

from __future__ import annotations

import random

from forebay.testkit.checks.base import Checks, check_into
from forebay.testkit.harness.interpolation import KnownMark
from forebay.testkit.harness.reads import check_range, read
from forebay.testkit.harness.subject import Subject, Trace, difference
from forebay.testkit.outcomes import Broken, NotApplicable, OutOfTime, Skip

RANGES: Checks = []

OLD_END = ", an old end that now has more rows after it"

_SAMPLES = 6


@check_into(RANGES)
def pages_of_any_size(subject: Subject) -> None:
    """SR-2: pages of another size, by an option such as page_rows, have the same rows."""
    if not subject.traces:
        raise NotApplicable("the source has no split")
    wrong = subject.wrong_pages
    if wrong is not None:
        raise Broken(
            f"split {wrong.split_id!r}, read with {wrong.option}={wrong.size}: {difference(wrong.got, wrong.rows)}",
            "begin each page exactly behind the last row of the page before: rows that share a time, or the next "
            "number, may be on both sides of its end",
        )
    if subject.small_pages is None:
        raise NotApplicable("no option of the source sets the size of a page")


@check_into(RANGES)
def old_ends(subject: Subject) -> None:
    """SR-2: a read to an old end returns the same rows after the input has grown, also inside a page."""
    if subject.source.bounded:
        raise NotApplicable("the source is bounded: its splits are read to their own ends")
    chance = subject.random("old ends")
    unseen = [trace for trace in subject.traces if not _read_to_old_ends(subject, trace, chance) and trace.has_pages]
    if unseen and not subject.live:
        raise NotApplicable("test_sr_2_an_old_end_stays_an_end checks this rule, with rows that are written later")
    if unseen:
        raise Skip(
            f"split {unseen[0].split.id!r} comes in pages, but no read ended inside a page: the input did not grow, "
            "and positions inside a page cannot be calculated from the rows",
            "make the size of a page an option, such as page_rows: int = option(default=500), so that check() reads "
            "smaller pages too; or use SourceContract, whose write() lets the input grow",
        )


def _read_to_old_ends(subject: Subject, trace: Trace, chance: random.Random) -> bool:
    """Read again to the end before the input grew, and to ends inside pages. Return whether there is such an end."""
    grown = _has_grown(subject, trace)
    if grown:
        check_range(subject, trace, trace.marks[0], (len(trace.rows), trace.split.end), where=OLD_END)
    ends = sorted((*trace.between.inside, *trace.between.gaps), key=lambda mark: mark[0])
    for rows, end in sorted(chance.sample(ends, min(_SAMPLES, len(ends)))):
        starts = [mark for mark in trace.marks if mark[0] <= rows]
        near = [mark for mark in ends if mark[0] < rows]  # a micro-batch may also begin inside the page of its end
        for start in {mark[0]: mark for mark in (starts[0], starts[-1], *near[-1:])}.values():
            check_range(subject, trace, start, (rows, end), where=_INSIDE)
        check_range(subject, trace, (rows, end), (len(trace.rows), trace.marks[-1][1]), where=_FROM_INSIDE)
        subject.need_time()
    return grown or bool(trace.between.inside)


def _has_grown(subject: Subject, trace: Trace) -> bool:
    """Return whether the present end of a split is after the end of the plain read."""
    if not trace.whole or trace.split.end is None:
        return False
    key = subject.source.order_key
    latest = subject.latest([trace.split]).get(trace.split.id)
    return latest is not None and bool(key(trace.split.end) < key(latest))


@check_into(RANGES)
def resumes_in_gaps(subject: Subject) -> None:
    """RDR-5: from a position inside a page or in a gap of the ids, a new reader returns exactly the rows after it."""
    chance = subject.random("gaps")
    gaps = [(trace, mark) for trace in subject.traces for mark in trace.between.gaps]
    # A bounded split is never stopped at a calculated position: its pages may be all that it can begin with.
    returned = subject.small_pages is not None or not subject.source.bounded
    inside = [(trace, mark) for trace in subject.traces for mark in trace.between.inside if returned]
    if not gaps and not inside:
        raise NotApplicable("there are no positions inside pages or between ids, or they are unknown")
    starts = [start for kind in (gaps, inside) for start in chance.sample(kind, min(_SAMPLES, len(kind)))]
    taken = [_resumes_in_gap(subject, *start) for start in starts]
    if not any(taken):
        raise NotApplicable("the source accepts only positions that it returned")


def _resumes_in_gap(subject: Subject, trace: Trace, start: KnownMark) -> bool:
    """Read from such a position. Return whether the source accepts a position that it never returned."""
    how = f"started at position {start[1]!r}, inside a page or between two ids, after {start[0]} rows"
    try:
        session = read(subject, [trace.split.slice(start[1], trace.marks[-1][1])])
    except (Broken, OutOfTime):
        raise
    except Exception:  # noqa: BLE001 - any error may be the source's way to refuse the position
        return False
    subject.compare(trace.split.id, session.rows[trace.split.id], trace.rows[start[0] :], how, _RESUME)
    return True


_INSIDE = ", which ends inside a page, like an old end after the input has grown"
_FROM_INSIDE = ", which begins inside a page, like the micro-batch after an old end"
_RESUME = "begin exactly at split.position: with the first record at or after it, which need not be the next number"
