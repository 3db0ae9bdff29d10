# SPDX-License-Identifier: Apache-2.0
"""Cases of a materializer from a seed, as JSON for Flink's operator and as changes for ours."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from changelogs.cases import KEY, PATH, Act, legal, strict, unnumbered, upserts
from changelogs.reference import Change, Select, View, apply_sequential, whole
from forebay.table.changelog.shape import RowKind

TYPES = ("BIGINT", "BIGINT", "STRING")


@dataclass(frozen=True)
class Judged:
    """A changelog as it arrives, and the right view after it.

    Args:
        changes: In their order of arrival.
        right: Sequential application of the true order.
        upsert_key: Indexes of the upsert key, or None.
        key: Indexes of the sink's key.
        ttl: Time to live in milliseconds; 0 for none.
        times: Processing times that are set before the change with this index.
    """

    changes: list[Change]
    right: View
    upsert_key: tuple[int, ...] | None = None
    key: tuple[int, ...] = (0,)
    ttl: int = 0
    times: tuple[tuple[int, int], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the case as SinkMaterializerJudge.java reads it."""
        events: list[Any] = []
        for at, change in enumerate(self.changes):
            events += [time for place, time in self.times if place == at]
            events.append([change.kind.short, list(change.row)])
        return {"types": TYPES, "key": self.key, "upsert_key": self.upsert_key, "ttl": self.ttl, "events": events}


def parsed(answer: list[Any], judged: Judged) -> list[list[Change]]:
    """Return what Flink emitted after each change of the case."""
    pauses = {place + number for number, (place, _) in enumerate(judged.times)}
    kinds = {kind.short: kind for kind in RowKind}
    steps = [[Change(kinds[short], tuple(row)) for short, row in step] for step in answer]
    return [step for at, step in enumerate(steps) if at not in pauses]


def strict_case(seed: int, *, by_upsert_key: bool, any_order: bool = False) -> Judged:
    """Return a strict changelog in a legal order, or in any order."""
    r = random.Random(seed)
    acts = random_acts(r)
    changes = strict(acts)
    arriving = (
        r.sample(changes, len(changes)) if any_order else legal(changes, PATH, [r.randrange(9) for _ in range(40)])
    )
    return Judged(unnumbered(arriving), apply_sequential(changes, KEY), (0, 1) if by_upsert_key else None)


def upsert_case(seed: int) -> Judged:
    """Return a changelog without `-U` and with an upsert key, in its true order."""
    changes = upserts(random_acts(random.Random(seed)))
    return Judged(unnumbered(changes), apply_sequential(changes, KEY, PATH), (0, 1))


def random_acts(r: random.Random, *, keys: int = 3, paths: int = 4, values: int = 2, most: int = 24) -> list[Act]:
    """Return acts from a seed."""
    return [
        Act(r.randrange(keys), None if r.random() < 0.3 else r.randrange(paths), r.randrange(values))
        for _ in range(r.randrange(1, most))
    ]


def selected(indexes: tuple[int, ...] | None) -> Select:
    """Return the function of an upsert key; whole rows without one."""
    return whole if indexes is None else lambda row: tuple(row[index] for index in indexes)
