# SPDX-License-Identifier: Apache-2.0
"""Checks of the source as a factory of readers and enumerators (rules SRC-…)."""

from __future__ import annotations

import io
import itertools
import json
import pickle
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any

from forebay.errors import ContractError, ForebayError, RetriableError
from forebay.framework.source import Source
from forebay.framework.split import Position, Split
from forebay.testkit.checks.base import Checks, check_into
from forebay.testkit.harness.calls import calling
from forebay.testkit.harness.reads import first_rows, misordered, read
from forebay.testkit.harness.sessions import ReaderSession
from forebay.testkit.harness.subject import Hybrid, Subject, Trace, through_json
from forebay.testkit.outcomes import AuthorMistake, Broken, Finding, NotApplicable, OutOfTime, Skip

FACTORY: Checks = []
"""Checks that need no reading."""

COPIES: Checks = []
"""Checks that compare with the plain read."""


@check_into(FACTORY)
def pickled(subject: Subject) -> None:
    """SRC-1: a pickled copy is an equal source."""
    source, copy = subject.source, copied(subject.source)
    # The switch of a hybrid is a function, and only functions at the top of a module equal their copies.
    same = copy == source or (isinstance(source, Hybrid) and isinstance(copy, Hybrid) and copy.legs == source.legs)
    if type(copy) is not type(source) or not same:
        raise Broken(f"the source {source!r} became {copy!r} after pickling", _PLAIN_VALUES)


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
    """Pickles classes and functions that cannot be imported by name, such as those of a test, by reference.

    Engines pickle them by value, which is not checked here.
    """

    def persistent_id(self, obj: object) -> object:
        if not isinstance(obj, (type, FunctionType)):
            return None
        if getattr(sys.modules.get(obj.__module__), obj.__qualname__, None) is not obj:
            _local[id(obj)] = obj
            return id(obj)
        return None


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: Any) -> object:  # noqa: ANN401 - as in pickle
        return _local[pid]


_local: dict[int, object] = {}


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


# -- Checks of splits as values (rules SPL-…, SER-…).


IDS: Checks = []
"""Checks that need no reading."""

POSITIONS: Checks = []
"""Checks of the positions of the plain read."""

VALUES: Checks = []
"""Checks of the splits of the plain read."""


@check_into(IDS)
def ids_stable(subject: Subject) -> None:
    """SPL-1: split ids are unique, and the same in another discovery."""
    first = _unique([split.id for split in subject.discover()])
    copy = subject.on(copied(subject.source))
    for again in (subject.discover(), copy.discover()):
        second = _unique([split.id for split in again])
        gone, new = sorted(first - second), sorted(second - first)
        if gone or (new and subject.exact):
            subject.blocked = "the ids of the splits change: see SPL-1"
            advice = (
                "derive ids from the part of the input (a path, a partition number): never from random numbers, time "
                "or order"
            )
            if not new:
                advice = "let a failure of the client be an error, never fewer splits, and return every split each time"
            raise Broken(
                f"a second discovery returned other split ids: {gone[:3]} were missing, {new[:3]} were new", advice
            )


def _unique(ids: list[str]) -> set[str]:
    for split_id, count in Counter(ids).most_common(1):
        if count > 1:
            raise Broken(
                f"two splits have the id {split_id!r}", "derive each id from the part of the input", rule="SPL-1"
            )
    return set(ids)


@check_into(IDS)
def newer_refused(subject: Subject) -> None:
    """SER-1: a stored split of a newer version is refused, and every split is an instance of split_class."""
    for split in subject.discover()[:1]:
        declared = subject.source.split_class
        if type(split) is not declared:
            raise Broken(
                f"discover() returned a {type(split).__name__}, but split_class is {declared.__name__}: a checkpointed "
                "split could not be rebuilt",
                f"set split_class = {type(split).__name__} in the source",
            )
        try:
            declared.from_json({**split.to_json(), "v": declared.version + 1})
        except ContractError:
            continue
        raise Broken(
            f"{declared.__name__}.from_json accepted a split of version {declared.version + 1}",
            "refuse versions newer than Split.version, as the default from_json does",
        )


@check_into(IDS)
def older_versions_restored(subject: Subject) -> None:
    """SER-1, SER-3: a split that an older version stored is restored with its id, progress and fields."""
    kind = subject.source.split_class
    missing = set(range(1, kind.version))
    if isinstance(subject.source, Hybrid):
        if subject.stored:
            raise AuthorMistake(
                "`stored` is for the check of the source whose splits these are, not for that of a hybrid"
            )
        raise NotApplicable("the splits are those of its sources: check each of them with stored=[…] from version 2 on")
    if not missing and not subject.stored:
        raise NotApplicable("split_class has version 1, so no older version can be stored")
    for stored in subject.stored:
        given: object = stored
        version = given.get("v") if isinstance(given, Mapping) else None
        if not isinstance(version, int):
            raise AuthorMistake(
                f"`stored` has {stored!r:.200}, which is not what {kind.__name__}.to_json() returns: a dict with the "
                "version as 'v', the id, the position and all other fields"
            )
        if version > kind.version:
            raise AuthorMistake(f"`stored` has a split of version {version}, but {kind.__name__} has {kind.version}")
        split = kind.from_json(json.loads(json.dumps(stored)))
        if split.position is None and stored.get("position") is not None:
            raise Broken(
                f"split {split.id!r}, stored by version {version} at the position {stored['position']!r}, was restored "
                "without a position: it would be read again from its start",
                "keep the position in upgrade()",
                rule="SER-3",
            )
        if kind.from_json(json.loads(json.dumps(split.to_json()))) != split:
            raise Broken(
                f"{split!r}, restored from version {version}, is another one after it was stored again",
                "let upgrade() return fields of the types that to_json() writes",
            )
        missing.discard(version)
    if missing:
        raise Skip(
            f"{kind.__name__} has version {kind.version}, and no stored split of version {min(missing)} was given",
            f"pass check(source, stored=[…]) a split as version {min(missing)} stored it, half read: the dict that its "
            "to_json() returned, such as one from a checkpoint",
        )


@check_into(POSITIONS)
def older_positions_order(subject: Subject) -> None:
    """SER-3, SER-1: a split that an older version stored has positions that compare, and no made-up fields."""
    source = subject.source
    known = {trace.split.id: [at for _, at in trace.marks if at is not None] for trace in subject.traces}
    everywhere = [position for positions in known.values() for position in positions]
    if not subject.stored or not everywhere:
        raise NotApplicable("there is no stored split of an older version, or no position of this one")
    for stored in subject.stored:
        try:
            split = source.split_class.from_json(json.loads(json.dumps(stored)))
        except ContractError:  # of the check before
            continue
        if split.position is not None and split.end is not None and _is_before(source, split.end, split.position):
            raise Broken(
                f"split {split.id!r}, stored by version {stored.get('v')!r}, was restored with the position "
                f"{split.position!r}, which is beyond its end {split.end!r}: nothing of it would be read",
                "convert the position and the end in upgrade()",
            )
        for name, position in (("position", split.position), ("end", split.end)):
            if position is None:
                continue
            own = known.get(split.id)  # positions of other splits need not compare, so one of them that does is enough
            failures = [why for other in own or everywhere if (why := _why_incomparable(source, position, other))]
            if failures and (own or len(failures) == len(everywhere)):
                raise Broken(
                    f"split {split.id!r}, stored by version {stored.get('v')!r}, was restored with the {name} "
                    f"{position!r}, which does not compare with positions of this version: {failures[0]}",
                    f"convert the {name} in upgrade()",
                )
        _read_restored(subject, split, stored)


def _read_restored(subject: Subject, split: Split, stored: Mapping[str, Any]) -> None:
    """Read a restored split with a field that `upgrade` made up, beside the discovered split of the same id."""
    discovered = next((each for each in subject.discover() if each.id == split.id), None)
    if split.position is None or discovered is None or not _has_new_value(split, discovered, stored):
        return
    how = f"stored by version {stored.get('v')!r}, restored, and read from {split.position!r}"
    try:
        expected = first_rows(subject, discovered.at(split.position), _RESTORED_ROWS)
    except OutOfTime:
        raise
    except (Finding, ForebayError):  # a position that the source refuses; other checks name it
        return
    try:
        rows = first_rows(subject, split.slice(split.position, discovered.end), _RESTORED_ROWS)
    except RetriableError:
        raise
    except ForebayError as error:
        raise Broken(f"split {split.id!r}, {how}: {error.message}", _ALL_FIELDS, rule="SER-1") from error
    may_grow = discovered.end is None and len(expected) < _RESTORED_ROWS
    subject.compare(split.id, rows, expected, how, _ALL_FIELDS, open_ended=may_grow, rule="SER-1")


def _has_new_value(split: Split, discovered: Split, stored: Mapping[str, Any]) -> bool:
    """Return whether a field of a restored split has another value than the discovered split and than each stored one.

    A stored value that differs from what discovery returns now is right: the stored split counts.
    """
    old = {str(value) for value in stored.values()}
    now = discovered.to_json()
    return any(
        value != now.get(name) and str(value) not in old
        for name, value in split.to_json().items()
        if name not in ("v", "id", "position", "end")
    )


_RESTORED_ROWS = 100
"""Maximum number of rows that are read of a restored split."""

_ALL_FIELDS = "give every field of the class its value in upgrade(), for each older version: a default is another value"


def _is_before(source: Source, position: Position, other: Position) -> bool:
    """Return whether one position sorts before another; False if they cannot be compared."""
    try:
        return bool(source.order_key(position) < source.order_key(other))
    except Exception:  # noqa: BLE001 - reported by the comparison with positions of this version
        return False


def _why_incomparable(source: Source, position: Position, other: Position) -> str:
    """Return why two positions cannot be ordered; an empty text if they can."""
    try:
        _ = source.order_key(position) < source.order_key(other)
    except Exception as error:  # noqa: BLE001 - `order_key` is code of the author
        return f"{other!r}: {type(error).__name__}: {error}"
    return ""


@check_into(POSITIONS)
def positions_order(subject: Subject) -> None:
    """SPL-3, SR-2: positions sort as their records do, by themselves or by order_key, and move with every record."""
    key = subject.source.order_key
    for trace in subject.traces:
        for (first, before), (last, after) in itertools.pairwise(trace.marks):
            if before == after and last > first:
                raise Broken(
                    f"split {trace.split.id!r} has the position {after!r} after {first} rows and after {last} rows",
                    "move the position with every row",
                    rule="SR-2",
                )
            if before is not None and after is not None and before != after and not key(before) < key(after):
                raise misordered(trace.split.id, before, after)


@check_into(VALUES)
def round_trip(subject: Subject) -> None:
    """SER-2, SER-3: splits survive JSON with their progress: new, half read and at their end."""
    for split in _stages(subject):
        back = through_json(split, subject)
        if back.position != split.position:
            why = f"split {split.id!r} lost its position {split.position!r} in to_json() and from_json()"
            raise Broken(why, "write `position` in to_json(), and read it in from_json()", rule="SER-3")
        if back != split or _json_of(back) != _json_of(split):
            raise Broken(
                f"{split!r}\nwas restored from JSON as\n{back!r}",
                "give every field of the split a JSON-ready type, and let to_json and from_json carry all of them",
            )


@check_into(VALUES)
def copies_keep_fields(subject: Subject) -> None:
    """SPL-2: at() and slice() change only the position and the end."""
    for trace in subject.traces:
        split = trace.split
        for moved in (split.at(trace.marks[-1][1]), split.slice(trace.marks[-1][1], split.end)):
            back = moved.slice(split.position, split.end)
            if type(moved) is not type(split) or back != split:
                raise Broken(
                    f"{split!r}\nwas changed by at() or slice(); back at its range, it is\n{back!r}",
                    "do not override at() and slice()",
                )


@check_into(VALUES)
def unchanged_by_reading(subject: Subject) -> None:
    """SPL-2: reading a split does not change it."""
    for split in subject.splits:
        stored = through_json(split, subject)
        before = _json_of(stored)
        read(subject, [stored], stored=False)
        if _json_of(stored) != before:
            raise Broken(
                f"a read changed the split {stored.id!r} from {before} to {stored.to_json()}",
                "keep progress in the reader; a split is a value",
            )


def _stages(subject: Subject) -> Iterator[Split]:
    for trace in subject.traces:
        for mark in {0, trace.last // 2, trace.last}:
            yield trace.rest(mark)


def _json_of(split: Split) -> str:
    return json.dumps(split.to_json(), sort_keys=True)
