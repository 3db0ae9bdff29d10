# SPDX-License-Identifier: Apache-2.0
"""Reads the same rows in smaller pages, by an option of the source, to learn the positions inside its pages.

A micro-batch can end at such a position when the input has grown. A copy of the source with pages of one row gives
them; the source itself is then read from them and up to them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay.testkit.findings import OutOfTime
from forebay.testkit.harness.reader_session import ReaderSession
from forebay.testkit.harness.subject import Subject, WrongPages
from forebay.testkit.harness.traces import Mark

_NAMES = re.compile(r"page|batch|chunk|limit|fetch|size|rows|max|per_", re.IGNORECASE)
"""Names of options that may set the size of a page. A wrong one changes the rows, and is not used."""

_OF_A_PAGE = re.compile(r"page", re.IGNORECASE)
"""Names of options that surely concern pages: none of them may pass over rows between two others."""

_SIZES = (1, 2, 3)


def marks_inside_pages(
    subject: Subject, split: Split, rows: Sequence[str], marks: Sequence[Mark]
) -> Sequence[Mark] | None:
    """Return the marks of a read of `split` in smaller pages; None if no option of the source gives such pages.

    Args:
        subject: The source under test. The option that worked is kept in its `small_pages`.
        split: The split, or the part of it that was read.
        rows: The rows that the source returned.
        marks: The marks of that read; the read in smaller pages must have the same positions there.
    """
    known = subject.small_pages
    for option, source in _with_smaller_pages(subject.source) if known is None else (known,):
        got, found = _read(subject.on(source), split, len(rows))
        if _OF_A_PAGE.search(option) and _out_of_place(got, rows):
            subject.wrong_pages = WrongPages(option, getattr(source, option), split.id, tuple(got), tuple(rows))
        small = [marks[0], *found]
        positions = dict(small)
        same = got == list(rows) and len(small) > len(marks)
        if same and all(positions.get(number, at) == at for number, at in marks):
            subject.small_pages = option, source
            return small
    return None


def _out_of_place(got: Sequence[str], rows: Sequence[str]) -> bool:
    """Return whether `got` has rows of the read only, and is not its beginning: some are left out, doubled or moved.

    The beginning alone may be what an option such as `max_pages` asks for; other rows, what it selects.
    """
    return list(got) != list(rows[: len(got)]) and set(got) <= set(rows)


def _read(subject: Subject, split: Split, count: int) -> tuple[list[str], list[Mark]]:
    """Return the first rows of a split, and their marks; none if the source cannot read with this option."""
    try:
        with ReaderSession(subject, [split]) as session:
            session.run(lambda: session.caught_up() or len(session.rows[split.id]) >= count)
    except OutOfTime:
        raise
    except Exception:  # noqa: BLE001 - another option than the size of a page may break the source
        return [], []
    return session.rows[split.id][:count], [mark for mark in session.output.marks[split.id] if mark[0] <= count]


def _with_smaller_pages(source: Source) -> Iterator[tuple[str, Source]]:
    """Yield the name of an option, and a copy of the source with a smaller value of it."""
    instance: Any = source  # a dataclass, as every source is one
    for field in dataclasses.fields(instance):
        value = getattr(source, field.name)
        if not field.init or isinstance(value, bool) or not isinstance(value, int) or not _NAMES.search(field.name):
            continue
        for size in _SIZES:
            if size < value:
                with suppress(Exception):  # the source may refuse this size
                    yield field.name, dataclasses.replace(instance, **{field.name: size})
