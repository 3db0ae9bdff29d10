# SPDX-License-Identifier: Apache-2.0
"""Finds the range of each split that can be read now. A micro-batch stays within it and never goes backwards (S4)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from forebay.errors import ConfigurationError, ContractError
from forebay.framework.coordination.fixed_ends import before
from forebay.framework.microbatch.offsets.finished_splits import LazySequence
from forebay.framework.microbatch.offsets.offset import Planned, To, UnknownEnd
from forebay.framework.source import Source
from forebay.framework.split import Position, Split

_log = logging.getLogger(__name__)


class Backlog(LazySequence[Planned]):
    """A sequence of the available splits, each planned up to its present end. For one thread at a time.

    Args:
        entries: Planned splits, in order. A plain `Split` is planned to its own end when it is accessed.
    """

    def __init__(self, entries: Iterable[Split | Planned]) -> None:
        self._entries = list(entries)

    def __len__(self) -> int:
        return len(self._entries)

    def item(self, index: int) -> Planned:
        """Return the planned split at an index."""
        entry = self._entries[index]
        if isinstance(entry, Split):
            entry = self._entries[index] = Planned(entry, UnknownEnd.WHOLE)
        return entry

    def ends(self) -> Mapping[str, To]:
        """Return the planned ends that are not None, by split id."""
        ends = (
            (one.id, UnknownEnd.WHOLE) if isinstance(one, Split) else (one.split.id, one.to) for one in self._entries
        )
        return {split_id: to for split_id, to in ends if to is not None}


class AvailableRange:
    """Finds the range of each split that can be read now. Called on the planning thread.

    Args:
        source: The source; its `order_key` orders positions.
        negotiable: Whether unknown ends can be negotiated by tasks (S14).
        in_order: Whether the splits are short and are read one after the other, such as files.
    """

    def __init__(self, source: Source, *, negotiable: bool = False, in_order: bool = False) -> None:
        self._source = source
        self._bounded = bool(source.bounded)
        self.whole = in_order and self._bounded
        """Whether a split without an end, such as a file, is read whole; if so, no end is negotiated."""
        self._negotiable = negotiable
        self._warned = False

    def backlog(
        self, splits: Iterable[Split], latest: Mapping[str, Position], target: Mapping[str, To] | None
    ) -> Backlog:
        """Return the splits that have data to read, each planned up to its present end.

        Splits that are read whole, such as files, may be very many; each is planned when it is accessed.

        Args:
            splits: All open splits, in order.
            latest: The known present ends by split id; ignored if there is a target.
            target: The fixed ends of an AvailableNow run by split id; other splits wait for the next run. None = the
                ends are not fixed.

        Raises:
            ConfigurationError: The end of a split is unknown and cannot be negotiated.
        """

        def entry(split: Split) -> Split | Planned:
            if self.whole and split.end is None:
                return split
            if target is None:
                return self.planned(split, latest.get(split.id))
            return self._planned_to(split, target[split.id])

        entries = map(entry, splits if target is None else (split for split in splits if split.id in target))
        return Backlog(one for one in entries if isinstance(one, Split) or self.has_data(one))

    def planned(self, split: Split, latest: Position | None) -> Planned:
        """Return the split planned up to `latest`, or up to its own end if that comes first.

        Without `latest`, the split is planned to its own end, or to an end that tasks negotiate.

        Raises:
            ConfigurationError: No end is known, and none can be negotiated.
            ContractError: The split `ends_itself`, and `latest` is an end before its own (DIS-1).
        """
        own, bounded = split.end, self._is_bounded(split)
        if latest is not None and own is None and split.ends_itself and not self._bounded:
            raise ends_twice(self._source, split, latest)
        if latest is None:
            if own is None and not bounded:
                if not self._negotiable:
                    raise unknown_end(self._source, split)
                return Planned(split, UnknownEnd.NEGOTIATED)
            return Planned(split, UnknownEnd.WHOLE if own is None else own)
        if own is not None and (bounded or self.before(own, latest, split)):
            return Planned(split, own)
        return self._planned_to(split, latest)

    def _planned_to(self, split: Split, to: To) -> Planned:
        """Return a split planned up to `to`; if the split is bounded, `to` also becomes its end."""
        if self._is_bounded(split) and split.end is None and not isinstance(to, UnknownEnd):
            split = split.slice(split.position, to)
        return Planned(split, to)

    def _is_bounded(self, split: Split) -> bool:
        return self._bounded or split.ends_itself

    def has_data(self, planned: Planned) -> bool:
        """Return whether a planned split has data to read. If its end is before its position, it has none (S4)."""
        position, to = planned.split.position, planned.to
        if planned.empty or (position is None and to == 0 and not planned.ends):
            return False
        if position is None or to is None or isinstance(to, UnknownEnd):
            return True
        if not self.before(to, position, planned.split):
            return True
        if not self._warned:
            self._warned = True  # an end may lag for a moment; as long as it lags, the split is not read
            _log.warning(
                "%s: latest() returned %r for the split %r, before its position %r; the split is not read until "
                "latest() returns a later position. Check whether the split was deleted and created again; if "
                "positions are numbers in text, override order_key(position)",
                self._source.name,
                to,
                planned.split.id,
                position,
            )
        return False

    def before(self, one: Position, other: Position, split: Split) -> bool:
        """Return whether one position of a split comes before another."""
        return before(self._source, one, other, split.id)

    def check_within(self, taken: Sequence[Planned], available: Sequence[Planned]) -> None:
        """Check that no split in `taken` is planned beyond its end in `available`.

        Raises:
            ContractError: The author's `advance` returned a position beyond that end.
        """
        rest = {planned.split.id: planned for planned in taken}
        for whole in available:
            if not rest:  # the splits that were not taken may be very many
                return
            planned = rest.pop(whole.split.id, whole)
            to, end = planned.to, whole.to
            if to is None or end is None or to == end or isinstance(to, UnknownEnd):
                continue
            if not isinstance(end, UnknownEnd) and self.before(end, to, planned.split):
                raise ContractError(
                    f"advance() returned {to!r}, beyond the split's end {end!r}",
                    source=self._source.name,
                    split=planned.split.id,
                    rule="DIS-3",
                    advice="in the connector, let advance() return at most the end of the split that it is given",
                )

    def check_forward(self, planned: Planned) -> None:
        """Check that a split is not planned to end before its position (S4).

        Raises:
            ContractError: The author's `advance` returned a position before that of the split.
        """
        position, to = planned.split.position, planned.to
        if position is None or to is None or isinstance(to, UnknownEnd) or position == to:
            return
        if self.before(to, position, planned.split):
            raise ContractError(
                f"advance() returned {to!r}, before the split's position {position!r}",
                source=self._source.name,
                split=planned.split.id,
                position=position,
                rule="S4",
                advice="in the connector, let advance() return a position after that of the split",
            )


def unknown_end(source: Source, split: Split) -> ConfigurationError:
    """Return the error for a split whose end is unknown when it is planned, and cannot be negotiated by tasks."""
    return ConfigurationError(
        "the current end of this split is unknown, and a stream without stateLocation needs the end before it reads",
        source=source.name,
        split=split.id,
        option="stateLocation",
        advice="set stateLocation, so that tasks agree on an end while they read; or, in the connector, return the end "
        "from latest(): the position after the newest complete record",
    )


def ends_twice(source: Source, split: Split, latest: Position) -> ContractError:
    """Return the error for a split that `ends_itself`, and to which `latest` gives another end.

    The split would be finished at that end, and what is written later would be lost.
    """
    return ContractError(
        f"latest() returned {latest!r} for a split that `ends_itself`: the split would be finished there, and records "
        "that are written later would be lost",
        source=source.name,
        split=split.id,
        rule="DIS-1",
        advice="in the connector, remove ends_itself if the split can grow; else return the split with its end, or "
        "leave it out of latest()",
    )
