# SPDX-License-Identifier: Apache-2.0
"""Reads a part of a split, and says which of its two ends was missed."""

from __future__ import annotations

from collections.abc import Sequence

from forebay.errors import ContractError
from forebay.framework.split import Position
from forebay.testkit.outcomes import Broken
from forebay.testkit.session import Session
from forebay.testkit.subject import Subject
from forebay.testkit.traces import Trace, difference

Mark = tuple[int, Position | None]


def read_part(
    subject: Subject, trace: Trace, start: Mark, stop: Mark, *, where: str = "", rule: str | None = None
) -> None:
    """Read from one mark to another, and hold that exactly the rows between come.

    Args:
        subject: The source.
        trace: Of which split.
        start: The rows before the part, and its position.
        stop: The rows up to the end of the part, and the end.
        where: What is special about the part, in words.
        rule: The rule that is broken if other rows come; that of the check unless given.

    Raises:
        Broken: Other rows came.
    """
    how = f"split {trace.split.id!r}, read from {start[1]!r} to {stop[1]!r}{where}"
    wanted = trace.rows[start[0] : stop[0]]
    try:
        with Session(subject, [trace.split.slice(start[1], stop[1])]) as session:
            session.run()
    except ContractError as error:
        if error.rule != "SR-2" or not where:
            raise
        raise Broken(f"{how}: {error.message}", _STOP, rule=rule) from error
    if (got := session.rows(trace.split.id)) != list(wanted):
        raise Broken(f"{how}: {difference(got, wanted)}", _advice(got, wanted), rule=rule)


def misordered(split_id: str, before: Position, after: Position) -> Broken:
    """Return the error of positions that do not order as the records do."""
    return Broken(
        f"split {split_id!r} went on from the position {before!r} to {after!r}, which orders before it",
        "override order_key(position), such as to int(position) for numbers in text; before an opaque token put the "
        "count of rows: (rows, token)",
        rule="SPL-3",
    )


def _advice(got: Sequence[str], wanted: Sequence[str]) -> str:
    """Return what to do, by which end of the part was missed."""
    got, wanted = list(got), list(wanted)
    if got[: len(wanted)] == wanted:
        return _STOP
    if got == wanted[: len(got)]:
        return "give every record before split.end, and return only then"
    if (got and wanted[-len(got) :] == got) or got[-len(wanted) :] == wanted:
        return "begin exactly at split.position, with the first record that was not given before it"
    return "between two positions give the same rows at every read: begin at split.position, end at split.end"


_STOP = (
    "stop exactly at split.end: ask for less than it, or cut the page there. Spark reads a micro-batch again to its "
    "old end, when more has come since"
)
