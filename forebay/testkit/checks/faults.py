# SPDX-License-Identifier: Apache-2.0
"""Checks of a source whose client fails: a failure is an error, never an empty result or an end (rule ERR-1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from forebay.errors import ConfigurationError, FatalError
from forebay.framework.discovery import DiscoveryEnumerator
from forebay.framework.runtime.clients import drop_clients
from forebay.framework.simple import SimpleSource
from forebay.framework.split import Position, Split
from forebay.testkit.checks.base import Checks, check_into
from forebay.testkit.findings import Broken, Finding, NotApplicable
from forebay.testkit.harness.failing_calls import FailingCalls, failing_calls
from forebay.testkit.harness.reader_session import ReaderSession
from forebay.testkit.harness.subject import Subject

FAULTS: Checks = []
"""Checks that let calls of the client fail. They run last, because a client may be broken afterwards."""

_MOST_FAULTS = 8
_PLANNING = 2.0
"""Maximum seconds in which an enumerator of the source's own assigns all splits."""

NO_CALL = "no call of a client was seen that can be made to fail: the source opens no file, socket or SQLite database"


def _refuse_others(subject: Subject, calls: FailingCalls) -> None:
    """Raise NotApplicable if no call can fail, or if a service is called by readers of the source's own.

    Their client may try again for minutes, as Kafka's does. One that reads files has nothing to wait for.
    """
    if not calls.calls:
        raise NotApplicable(NO_CALL)
    if calls.on_sockets and not isinstance(subject.source, SimpleSource):
        raise NotApplicable(
            "the source has its own readers, whose client may wait and try again; let its service fail behind the "
            "fixture fault_proxy"
        )


Answer = tuple[list[str], Mapping[str, Position]]
"""The ids of the splits, and the present ends."""


@check_into(FAULTS)
def failing_discovery_is_an_error(subject: Subject) -> None:
    """ERR-1: discovery and latest() report a failure as an error, never as fewer splits, no end or an earlier one."""
    with failing_calls(0) as calls:
        try:
            answer = _ask(subject)
        except FatalError as error:
            if error.rule != "ENU-2":
                raise
            raise NotApplicable(f"the source's own SplitEnumerator needs more than {_PLANNING:g} s") from error
    _refuse_others(subject, calls)
    for number in _some(subject, calls.calls):
        with failing_calls(number) as failing:
            try:
                later = _ask(subject)
            except Finding:
                raise
            except Exception as error:  # noqa: BLE001 - any error is a right answer
                drop_clients(subject.source.name, error)
                subject.need_time()  # an enumerator of the source's own may wait until it can look
                continue
        if failing.failed:
            _compare(subject, answer, later, failing.failed)
        subject.need_time()


def _ask(subject: Subject) -> Answer:
    """Return what discovery and `latest` answer; of an enumerator of the source's own, what a batch read gets."""
    with subject.enumerator() as enumerator:
        if isinstance(enumerator, DiscoveryEnumerator):
            splits = enumerator.discover({}, True).splits
            return [split.id for split in splits], dict(enumerator.latest(splits))
    try:
        return [split.id for split in subject.planned(_PLANNING)], {}
    except ConfigurationError as error:
        if subject.source.bounded:
            raise
        raise NotApplicable("the source's own SplitEnumerator ends no batch read, which could be short") from error


def _compare(subject: Subject, answer: Answer, later: Answer, failed: str) -> None:
    """Raise `Broken` if the answer after a failure has fewer splits or earlier ends than the one before."""
    (ids, ends), (found, ends_found), key = answer, later, subject.source.order_key
    if missing := sorted(set(ids) - set(found)):
        raise Broken(
            f"{failed} failed, and discovery returned {len(found)} of {len(ids)} splits, without {missing[0]!r}, and "
            "no error: a new query would never know of the failure",
            _RAISE,
        )
    if lost := sorted(ends.keys() - ends_found.keys()):
        raise Broken(f"{failed} failed, and latest() returned no end for split {lost[0]!r}", _RAISE)
    if earlier := sorted(split_id for split_id, end in ends.items() if key(ends_found[split_id]) < key(end)):
        raise Broken(
            f"{failed} failed, and latest() returned {ends_found[earlier[0]]!r} for split {earlier[0]!r}, before "
            f"{ends[earlier[0]]!r}, which it had returned: as if there were nothing new, and no error",
            _RAISE,
        )


@check_into(FAULTS)
def failing_reads_are_errors(subject: Subject) -> None:
    """ERR-1: a read whose client fails raises an error, or reads on: it never ends early, and skips no row."""
    if not any(trace.rows for trace in subject.traces):
        raise NotApplicable("the source has no rows")
    trace = max(subject.traces, key=lambda one: len(one.rows))
    split = trace.split
    with failing_calls(0) as calls:
        _rows_or_error(subject, split)
    _refuse_others(subject, calls)
    for number in _some(subject, calls.calls):
        with failing_calls(number) as failing:
            rows = _rows_or_error(subject, split)
        if rows is not None and failing.failed:
            how = f"after {failing.failed} had failed, and the read had ended without an error"
            subject.compare(split.id, rows, trace.rows, how, _RAISE)
        subject.need_time()


def _rows_or_error(subject: Subject, split: Split) -> list[str] | None:
    """Read a split. Return its rows; None if the read ended with an error."""
    with ReaderSession(subject, [split]) as session:
        try:
            session.run(session.caught_up)
        except Finding:
            raise
        except Exception as error:  # noqa: BLE001 - any error is a right answer
            drop_clients(subject.source.name, error)
            session.abandon()
            return None
    return session.rows[split.id]


def _some(subject: Subject, calls: int) -> Iterable[int]:
    """Return the numbers of the calls that fail, one in each read: the first, the last and some between."""
    if calls <= _MOST_FAULTS:
        return range(1, calls + 1)
    chosen = subject.random("faults").sample(range(2, calls), _MOST_FAULTS - 2)
    return sorted({1, calls, *chosen})


_RAISE = (
    "let the error leave the method, as a RetriableError if it may pass (`with forebay.http_errors(…)` raises it); "
    "never return nothing, fewer results or an end instead"
)
