# SPDX-License-Identifier: Apache-2.0
"""Checks of the source as a factory of readers and enumerators (rules SRC-…)."""

from __future__ import annotations

import io
import pickle
import sys
from typing import Any

from forebay.errors import ContractError
from forebay.framework.source import Source
from forebay.testkit.checks.base import Checks, check_into
from forebay.testkit.findings import Broken
from forebay.testkit.harness.guarded_calls import calling
from forebay.testkit.harness.reader_session import ReaderSession
from forebay.testkit.harness.reads import read
from forebay.testkit.harness.subject import Subject
from forebay.testkit.harness.traces import Trace

FACTORY: Checks = []
"""Checks that need no reading."""

COPIES: Checks = []
"""Checks that compare with the plain read."""


@check_into(FACTORY)
def pickled(subject: Subject) -> None:
    """SRC-1: a pickled copy is an equal source."""
    copy = copied(subject.source)
    if type(copy) is not type(subject.source) or copy != subject.source:
        raise Broken(f"the source {subject.source!r} became {copy!r} after pickling", _PLAIN_VALUES)


@check_into(FACTORY)
def schema_stable(subject: Subject) -> None:
    """SRC-7: schema() returns the same schema each time, with unique column names."""
    first = subject.schema
    with calling("SRC-7", "schema()"):
        others = [subject.source.schema(), copied(subject.source).schema()]
    for other in others:
        if not other.equals(first):
            raise Broken(f"schema() returned\n{first}\nand then\n{other}", "let the schema depend on the options alone")
    if len(set(first.names)) < len(first.names):
        raise Broken(f"schema() has a column name twice: {first.names}", "give each column its own name")


@check_into(COPIES)
def copy_reads_the_same(subject: Subject) -> None:
    """SRC-1: a pickled copy reads the same rows."""
    copy = subject.on(copied(subject.source))
    for trace in subject.traces:
        rows = read(copy, [trace.split]).rows
        subject.compare_traces(rows, "read by a pickled copy of the source", _OWN_STATE, [trace])


@check_into(COPIES)
def readers_share_nothing(subject: Subject) -> None:
    """SRC-2: two readers of one source share nothing."""
    chance = subject.random("shared")
    for trace in subject.traces:
        try:
            first, second = _read_by_two(subject, trace, chance.randrange(trace.last) + 1 if trace.last else 0)
        except ContractError as error:  # a single reader keeps the contract, as the plain read has shown
            raise Broken(f"while two readers read split {trace.split.id!r}: {error.message}", _OWN_STATE) from error
        subject.compare_traces(second.rows, "read by the second of two readers at the same time", _OWN_STATE, [trace])
        subject.compare_traces(first.rows, "read by the first of two readers at the same time", _OWN_STATE, [trace])


def _read_by_two(subject: Subject, trace: Trace, stop: int) -> tuple[ReaderSession, ReaderSession]:
    """Read with two readers; the second begins and ends after `stop` record batches of the first."""
    with ReaderSession(subject, [trace.split]) as outer:
        outer.run(lambda: outer.batches >= stop)
        inner = read(subject, [trace.split])
        outer.run()
    return outer, inner


@check_into(COPIES)
def enumerators_share_nothing(subject: Subject) -> None:
    """SRC-2: two enumerators of one source share nothing."""
    with subject.discovery() as one:
        with subject.discovery() as other:
            first = {split.id for split in subject.discovered(other, {}, first=True).splits}
        second = {split.id for split in subject.discovered(one, {}, first=True).splits}
    if not first <= second or (subject.exact and first != second):
        raise Broken(
            f"one enumerator found {sorted(first)[:5]} and was closed, then the other found {sorted(second)[:5]}",
            _OWN_STATE,
        )


@check_into(COPIES)
def reader_starts_empty(subject: Subject) -> None:
    """SRC-4: a new reader has no splits."""
    with ReaderSession(subject, subject.splits) as session:
        session.run(lambda: session.batches > 0)
        with ReaderSession(subject, no_more=False) as fresh:
            held = fresh.snapshot()
    if held:
        raise Broken(f"the snapshot of a reader that got no split holds {held[:3]!r}", _OWN_STATE)


_PLAIN_VALUES = "use only annotated fields with plain values; create clients with forebay.cached"
_OWN_STATE = "keep state on each reader or enumerator, never on the class, the source or the module"


class _Pickler(pickle.Pickler):
    """Pickles classes that cannot be imported by name, such as those of a test or a notebook, by reference.

    Engines pickle such classes by value, which is not checked here.
    """

    def persistent_id(self, obj: object) -> object:
        if isinstance(obj, type) and getattr(sys.modules.get(obj.__module__), obj.__qualname__, None) is not obj:
            _local_classes[id(obj)] = obj
            return id(obj)
        return None


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: Any) -> object:  # noqa: ANN401 - as in pickle
        return _local_classes[pid]


_local_classes: dict[int, type] = {}


def copied(source: Source) -> Source:
    """Return a copy of the source, pickled and unpickled."""
    file = io.BytesIO()
    try:
        _Pickler(file).dump(source)
        file.seek(0)
        copy = _Unpickler(file).load()
    except Exception as error:  # an option's own pickling may raise anything
        why = f"the source cannot be pickled: {type(error).__name__}: {error}"
        raise Broken(why, _PLAIN_VALUES, rule="SRC-1") from error
    if not isinstance(copy, Source):
        raise Broken(
            f"the source became a {type(copy).__name__} after pickling", "do not override __reduce__", rule="SRC-1"
        )
    return copy
