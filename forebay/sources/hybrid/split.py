# SPDX-License-Identifier: Apache-2.0
"""The split of a hybrid source: a split of one of its legs (sources)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from forebay.errors import ContractError
from forebay.framework.source import Source
from forebay.framework.split import Json, Position, Split


class HybridSplit(Split):
    """A split of one leg (source) of a hybrid. Its id is `<leg>/<id of the leg's split>`.

    Args:
        leg: The index of the leg, from 0.
        fields: The other fields of the leg's split, as its `to_json` returns them.
        whole: True if the split is read to its own end without a known end position, as a file is.
    """

    leg: int
    fields: Mapping[str, Json] = field(default_factory=dict, hash=False)
    whole: bool = False

    @property
    def ends_itself(self) -> bool:
        """Whether the split is read to its own end if `end` is None."""
        return self.whole


class SplitMapping:
    """Converts splits and positions of the legs (sources) to splits and positions of the hybrid, and back.

    A position of the last leg is kept unchanged unless it is a tuple, so that int positions still count records. All
    other positions become pairs of the leg's index and the position, so that `order_key` knows the leg.

    Args:
        legs: The sources of the hybrid, in order.
    """

    def __init__(self, legs: Sequence[Source]) -> None:
        self._legs = legs
        self._last = len(legs) - 1

    def outer_id(self, leg: int, split_id: str) -> str:
        """Return the id in the hybrid for the id of a leg's split."""
        return f"{leg}/{split_id}"

    def outer_position(self, leg: int, position: Position | None) -> Position | None:
        """Convert a position of a leg to a position of the hybrid."""
        if position is None or (leg == self._last and not isinstance(position, tuple)):
            return position
        return leg, position

    def inner_position(self, position: Position) -> tuple[int, Position]:
        """Convert a position of the hybrid to the index of its leg and the position in that leg."""
        if isinstance(position, tuple):
            leg, inner = position
            assert isinstance(leg, int)  # noqa: S101 - made by `outer_position`
            return leg, inner
        return self._last, position

    def outer(self, leg: int, split: Split, *, whole: bool = False) -> HybridSplit:
        """Convert a split of a leg to a split of the hybrid."""
        stored = split.to_json()
        fields = {name: _as_json(value) for name, value in stored.items() if name not in ("id", "position", "end")}
        return HybridSplit(
            id=self.outer_id(leg, split.id),
            position=self.outer_position(leg, split.position),
            end=self.outer_position(leg, split.end),
            leg=leg,
            fields=fields,
            whole=whole,
        )

    def inner(self, split: Split) -> Split:
        """Convert a split of the hybrid to the split of its leg.

        Raises:
            ContractError: The class of the leg's splits converts positions of an older version, but the offsets of the
                hybrid keep the old ones.
        """
        own = own_split(split)
        position, end = (None if place is None else self.inner_position(place)[1] for place in (own.position, own.end))
        fields = {"id": own.id.partition("/")[2], "position": position, "end": end}
        inner = self._legs[own.leg].split_class.from_json({**own.fields, **fields})
        if (inner.position, inner.end) != (position, end):
            raise ContractError(
                f"{type(inner).__name__}.upgrade() made the position {inner.position!r} of {position!r}, and the end "
                f"{inner.end!r} of {end!r}: in a hybrid it may convert other fields, not these",
                split=own.id,
                rule="SER-3",
                advice="let upgrade() keep the position and the end, and give read() and latest() both forms",
            )
        return inner


def own_split(split: Split) -> HybridSplit:
    """Return `split`, typed as a `HybridSplit`.

    Raises:
        TypeError: It is a split of another class.
    """
    if not isinstance(split, HybridSplit):
        raise TypeError(f"{type(split).__name__} is not a HybridSplit")
    return split


def by_leg(splits: Iterable[Split]) -> dict[int, list[HybridSplit]]:
    """Group splits by the index of their leg, and keep their order."""
    parts: dict[int, list[HybridSplit]] = {}
    for split in map(own_split, splits):
        parts.setdefault(split.leg, []).append(split)
    return parts


def _as_json(value: Json) -> Json:
    """Return the value with lists instead of tuples, as JSON would return it."""
    return [_as_json(part) for part in value] if isinstance(value, (tuple, list)) else value
