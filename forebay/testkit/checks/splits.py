# SPDX-License-Identifier: Apache-2.0
"""Checks of splits as values (rules SPL-…, SER-…)."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator

from forebay.errors import ContractError
from forebay.framework.split import Split
from forebay.testkit.checks.base import Checks, check_into
from forebay.testkit.checks.sources import copied
from forebay.testkit.findings import AuthorMistake, Broken, NotApplicable, Skip
from forebay.testkit.harness.reads import misordered, read
from forebay.testkit.harness.subject import Subject, through_json

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
        wanted = subject.source.split_class
        if type(split) is not wanted:
            raise Broken(
                f"discover() returned a {type(split).__name__}, but split_class is {wanted.__name__}: a checkpointed "
                "split could not be rebuilt",
                f"set split_class = {type(split).__name__} in the source",
            )
        try:
            wanted.from_json({**split.to_json(), "v": wanted.version + 1})
        except ContractError:
            continue
        raise Broken(
            f"{wanted.__name__}.from_json accepted a split of version {wanted.version + 1}",
            "refuse versions newer than Split.version, as the default from_json does",
        )


@check_into(IDS)
def older_versions_restored(subject: Subject) -> None:
    """SER-1, SER-3: a split that an older version stored is restored with its id, progress and fields."""
    kind = subject.source.split_class
    wanted = set(range(1, kind.version))
    if not wanted and not subject.stored:
        raise NotApplicable("split_class has version 1, so no older version can be stored")
    for stored in subject.stored:
        version = stored.get("v")
        if not isinstance(version, int) or version > kind.version:
            raise AuthorMistake(f"`stored` has a split of version {version!r}, but {kind.__name__} has {kind.version}")
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
        wanted.discard(version)
    if wanted:
        raise Skip(
            f"{kind.__name__} has version {kind.version}, and no stored split of version {min(wanted)} was given",
            f"pass check(source, stored=[…]) a split as version {min(wanted)} stored it, half read: the dict that its "
            "to_json() returned, such as one from a checkpoint",
        )


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
        kept = through_json(split, subject)
        before = _json_of(kept)
        read(subject, [kept], stored=False)
        if _json_of(kept) != before:
            raise Broken(
                f"a read changed the split {kept.id!r} from {before} to {kept.to_json()}",
                "keep progress in the reader; a split is a value",
            )


def _stages(subject: Subject) -> Iterator[Split]:
    for trace in subject.traces:
        for mark in {0, trace.last // 2, trace.last}:
            yield trace.rest(mark)


def _json_of(split: Split) -> str:
    return json.dumps(split.to_json(), sort_keys=True)
