# SPDX-License-Identifier: Apache-2.0
"""Checks of the source as a factory, and of its splits as values: SRC, SPL, SER."""

from __future__ import annotations

import io
import json
import pickle
import sys
from collections.abc import Iterator
from typing import Any

from forebay.errors import ContractError
from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay.testkit.checks.base import Checks, check_into
from forebay.testkit.outcomes import Broken
from forebay.testkit.session import Session
from forebay.testkit.subject import Subject, travelled
from forebay.testkit.traces import Trace
from forebay.testkit.watch import calling

VALUES: Checks = []
"""Checks that need no reading."""

COPIES: Checks = []
"""Checks that compare with an undisturbed read."""


@check_into(VALUES)
def pickled(subject: Subject) -> None:
    """SRC-1: a pickled copy is an equal source.

    Pickle and compare.
    """
    copy = _copied(subject.source)
    if type(copy) is not type(subject.source) or copy != subject.source:
        raise Broken(
            f"{subject.source!r} came back as {copy!r}",
            "keep to annotated fields with plain values; hold clients with forebay.cached",
        )


@check_into(VALUES)
def schema_stable(subject: Subject) -> None:
    """SRC-7: schema() says the same each time, with unique names.

    Ask twice, and a copy too.
    """
    first = subject.schema()
    with calling("SRC-7", "schema()"):
        others = [subject.source.schema(), _copied(subject.source).schema()]
    for other in others:
        if not other.equals(first):
            raise Broken(f"schema() gave\n{first}\nand then\n{other}", "make it depend on the options alone")
    if len(set(first.names)) < len(first.names):
        raise Broken(f"column names repeat: {first.names}", "give each column a name of its own")


@check_into(VALUES)
def ids_stable(subject: Subject) -> None:
    """SPL-1: split ids are unique, and the same in another discovery.

    Discover with fresh enumerators, of the source and of a copy.
    """
    first = _unique([split.id for split in subject.discover()])
    copied = subject.on(_copied(subject.source))
    for again in (subject.discover(), copied.discover()):
        second = _unique([split.id for split in again])
        gone, new = sorted(first - second), sorted(second - first)
        if gone or (new and subject.exact):
            subject.blocked = "its ids change: see SPL-1"
            raise Broken(
                f"a second discovery found other ids: {gone[:3]} were gone, {new[:3]} were new",
                "derive ids from what the split is (a path, a partition number): never from chance, time or order",
            )


@check_into(VALUES)
def newer_refused(subject: Subject) -> None:
    """SER-1: a split of a newer version is refused; splits are of split_class.

    Raise the version of a stored split.
    """
    for split in subject.discover()[:1]:
        wanted = subject.source.split_class
        if type(split) is not wanted:
            raise Broken(
                f"discovery gave a {type(split).__name__}, but split_class is {wanted.__name__}: "
                "a checkpointed split could not be rebuilt",
                f"set split_class = {type(split).__name__} in the source",
            )
        stored = {**split.to_json(), "v": wanted.version + 1}
        try:
            wanted.from_json(stored)
        except ContractError:
            continue
        raise Broken(
            f"{wanted.__name__}.from_json took a split of version {wanted.version + 1}",
            "refuse versions newer than Split.version, as the supplied from_json does",
        )


@check_into(COPIES)
def progress_stored(subject: Subject) -> None:
    """SER-3: a stored split carries its progress.

    Compare the position only.
    """
    for split in _stages(subject):
        if travelled(split, subject).position != split.position:
            raise Broken(f"the position {split.position!r} was lost", "carry `position` in to_json")


@check_into(COPIES)
def round_trip(subject: Subject) -> None:
    """SER-2: splits survive JSON: new, half read and at their end.

    Write, read, compare; write again, compare the bytes.
    """
    for split in _stages(subject):
        text = json.dumps(split.to_json(), sort_keys=True)
        back = travelled(split, subject)
        if back != split or json.dumps(back.to_json(), sort_keys=True) != text:
            raise Broken(
                f"{split!r}\ncame back as\n{back!r}",
                "give every field of the split a JSON-ready type, and let to_json and from_json carry all of them",
            )


@check_into(COPIES)
def copies_keep_fields(subject: Subject) -> None:
    """SPL-2: at() and slice() change nothing but position and end.

    Move a split there and back.
    """
    for trace in subject.traces:
        split = trace.split
        for moved in (split.at(trace.marks[-1][1]), split.slice(trace.marks[-1][1], split.end)):
            back = moved.slice(split.position, split.end)
            if type(moved) is not type(split) or back != split:
                raise Broken(f"{split!r}\nmoved there and back is\n{back!r}", "do not override at() and slice()")


@check_into(COPIES)
def unchanged_by_reading(subject: Subject) -> None:
    """SPL-2: reading a split does not change it.

    Read a split object that is kept.
    """
    for trace in subject.traces:
        kept = travelled(trace.split, subject)
        before = json.dumps(kept.to_json(), sort_keys=True)
        with Session(subject, [kept], travel=False) as session:
            session.run()
        if json.dumps(kept.to_json(), sort_keys=True) != before:
            raise Broken(
                f"split {kept.id!r} was {before}, and after a read is {kept.to_json()}",
                "keep progress in the reader; a split is a value",
            )


@check_into(COPIES)
def copy_reads_the_same(subject: Subject) -> None:
    """SRC-1: a pickled copy reads the same rows.

    Read with a copy of the source.
    """
    copy = subject.on(_copied(subject.source))
    for trace in subject.traces:
        _read_whole(copy, trace, "read by a pickled copy of the source")


@check_into(COPIES)
def readers_share_nothing(subject: Subject) -> None:
    """SRC-2: two readers of one source share nothing.

    Read a split with two readers, one in the middle of the other.
    """
    chance = subject.random("shared")
    for trace in subject.traces:
        try:
            first, second = _read_by_two(subject, trace, chance.randrange(trace.last) + 1 if trace.last else 0)
        except ContractError as error:  # each alone keeps the contract, as the plain read has shown
            raise Broken(f"while two readers read split {trace.split.id!r}: {error.message}", _OWN_STATE) from error
        subject.compare(trace.split.id, second, trace.rows, "a second reader, while both read it", _OWN_STATE)
        subject.compare(trace.split.id, first, trace.rows, "the first reader, while both read it", _OWN_STATE)


def _read_by_two(subject: Subject, trace: Trace, stop: int) -> tuple[list[str], list[str]]:
    """Return what two readers give, of which the second begins and ends after `stop` record batches of the first."""
    with Session(subject, [trace.split]) as outer:
        outer.run(lambda: outer.output.batches >= stop)
        with Session(subject, [trace.split]) as inner:
            inner.run()
        outer.run()
    return outer.rows(trace.split.id), inner.rows(trace.split.id)


@check_into(COPIES)
def enumerators_share_nothing(subject: Subject) -> None:
    """SRC-2: two enumerators of one source share nothing.

    Discover with one after another one, made later, has discovered and closed.
    """
    with subject.discovery() as one:
        with subject.discovery() as other:
            first = {split.id for split in subject.discovered(other, {}, first=True).splits}
        second = {split.id for split in subject.discovered(one, {}, first=True).splits}
    if not first <= second or (subject.exact and first != second):
        raise Broken(f"one found {sorted(first)[:5]}, then the other found {sorted(second)[:5]}", _OWN_STATE)


@check_into(COPIES)
def reader_starts_empty(subject: Subject) -> None:
    """SRC-4: a reader starts empty.

    Ask a new reader for its snapshot, after another one has read.
    """
    with Session(subject, [trace.split for trace in subject.traces]) as session:
        session.run(lambda: session.output.batches > 0)
        with Session(subject, no_more=False) as fresh:
            held = fresh.snapshot()
    if held:
        raise Broken(f"a new reader's snapshot holds {held[:3]!r}", _OWN_STATE)


_OWN_STATE = "keep state on the reader or the enumerator that was made, never on the class, the source or the module"


def _unique(ids: list[str]) -> set[str]:
    seen: set[str] = set()
    for one in ids:
        if one in seen:
            raise Broken(f"two splits have the id {one!r}", "derive each id from what the split is", rule="SPL-1")
        seen.add(one)
    return seen


def _stages(subject: Subject) -> Iterator[Split]:
    for trace in subject.traces:
        for mark in {0, trace.last // 2, trace.last}:
            yield trace.rest(mark)


def _read_whole(subject: Subject, trace: Trace, how: str) -> None:
    with Session(subject, [trace.split]) as session:
        session.run()
    subject.compare(trace.split.id, session.rows(trace.split.id), trace.rows, how, _OWN_STATE)


class _Pickler(pickle.Pickler):
    """Pickles classes that cannot be found by name, such as those of a test or a notebook, by reference.

    Engines carry such classes by value; whether they can is their own matter.
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


def _copied(source: Source) -> Source:
    file = io.BytesIO()
    try:
        _Pickler(file).dump(source)
        file.seek(0)
        copy = _Unpickler(file).load()
    except Exception as error:  # anything may be raised by an option's own pickling
        raise Broken(
            f"the source cannot be pickled: {type(error).__name__}: {error}",
            "keep to annotated fields with plain values; hold clients with forebay.cached",
            rule="SRC-1",
        ) from error
    if not isinstance(copy, Source):
        raise Broken(f"the source came back as a {type(copy).__name__}", "do not override __reduce__", rule="SRC-1")
    return copy
