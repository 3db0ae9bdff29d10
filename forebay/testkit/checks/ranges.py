# SPDX-License-Identifier: Apache-2.0
"""Checks of reads that begin and end where the undisturbed read told no position: SR-2, RDR-5.

Such places are ends that latest() gave before the input grew, and positions in the gaps of ids.
"""

from __future__ import annotations

from forebay.testkit.checks.base import Checks, check_into
from forebay.testkit.outcomes import Broken, NotApplicable, OutOfTime, Skip
from forebay.testkit.parts import Mark, read_part
from forebay.testkit.session import Session
from forebay.testkit.subject import Subject
from forebay.testkit.traces import Trace

RANGES: Checks = []

_SAMPLES = 6


@check_into(RANGES)
def old_ends(subject: Subject) -> None:
    """SR-2: a read to an old end gives what it gave then, however much has come since, also inside a page.

    Read again up to the ends that latest() gave before the input grew, and up to ends inside pages.
    """
    if subject.source.bounded:
        raise NotApplicable("the source is bounded: its splits are read to their own ends")
    chance = subject.random("old ends")
    unseen = [trace for trace in subject.traces if trace.pages]
    for trace in subject.traces:
        if _has_grown(subject, trace):
            read_part(subject, trace, trace.marks[0], (len(trace.rows), trace.split.end), where=_OLD)
            unseen = [one for one in unseen if one is not trace]
        ends = [*trace.between.inside, *trace.between.gaps]
        for rows, end in sorted(chance.sample(ends, min(_SAMPLES, len(ends)))):
            starts = [mark for mark in trace.marks if mark[0] <= rows]
            for start in {0: starts[0], starts[-1][0]: starts[-1]}.values():
                read_part(subject, trace, start, (rows, end), where=_INSIDE)
            subject.need_time()
        if trace.between.inside:
            unseen = [one for one in unseen if one is not trace]
    if unseen and not subject.live:
        raise NotApplicable("the rows that are written later show it: test_sr_2_an_old_end_stays_an_end")
    if unseen:
        raise Skip(
            f"split {unseen[0].split.id!r} comes in pages, and no read ended inside one: the input did not grow "
            "meanwhile, and its rows do not say their positions",
            "use SourceContract, whose write() lets the input grow",
        )


@check_into(RANGES)
def resumes_in_gaps(subject: Subject) -> None:
    """RDR-5: from a position in a gap of the ids a new reader gives exactly what follows it.

    Begin directly before rows whose ids leave a gap to the ones before.
    """
    chance = subject.random("gaps")
    gaps = [(trace, mark) for trace in subject.traces for mark in trace.between.gaps]
    if not gaps:
        raise NotApplicable("its positions leave no gaps, or its rows do not say them")
    taken = [_from_gap(subject, *gap) for gap in chance.sample(gaps, min(2 * _SAMPLES, len(gaps)))]
    if not any(taken):
        raise NotApplicable("it takes no positions but those that it gave")


def _from_gap(subject: Subject, trace: Trace, start: Mark) -> bool:
    """Begin at a position in a gap; return whether the source takes such positions, which it never gave."""
    how = f"begun at position {start[1]!r}, between two ids, after {start[0]} rows"
    try:
        with Session(subject, [trace.split.slice(start[1], trace.marks[-1][1])]) as session:
            session.run()
    except (Broken, OutOfTime):
        raise
    except Exception:  # noqa: BLE001 - its own way to refuse one
        return False
    subject.compare(trace.split.id, session.rows(trace.split.id), trace.rows[start[0] :], how, _RESUME)
    return True


def _has_grown(subject: Subject, trace: Trace) -> bool:
    """Whether the present end of a split lies behind the one that it was read to."""
    if not trace.whole or trace.split.end is None:
        return False
    key = subject.source.order_key
    latest = subject.latest([trace.split]).get(trace.split.id)
    return latest is not None and bool(key(trace.split.end) < key(latest))


_OLD = ", an old end, with more behind it by now"
_INSIDE = ", which ends inside a page as an old end does when more has come"
_RESUME = "begin exactly at split.position: with the first record that is not before it, which need not be one more"
