# SPDX-License-Identifier: Apache-2.0
"""How far splits can be read now, and that a plan stays within: never back, never beyond (S4)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence

from forebay.errors import ConfigurationError, ContractError
from forebay.framework.microbatch.admission.backlog import Backlog
from forebay.framework.microbatch.offsets.offset import Agreed, Planned, To, Whole
from forebay.framework.microbatch.split_providers.validation import before
from forebay.framework.source import Source
from forebay.framework.split import Position, Split

_log = logging.getLogger(__name__)


class Reach:
    """Compares the positions of a source. Called on the planning thread.

    Args:
        source: Orders its positions (`order_key`).
        agreeing: An end that nobody knows can be agreed on while it is read (S14).
        in_order: Splits are taken one after the other.
    """

    def __init__(self, source: Source, *, agreeing: bool = False, in_order: bool = False) -> None:
        self._source = source
        self.whole = in_order and bool(source.bounded)
        """Whether a split without an end, such as a file, is read to its own; then no end has to be agreed on."""
        self._agreeing = agreeing
        self._warned = False

    def backlog(
        self, splits: Iterable[Split], latest: Mapping[str, Position], target: Mapping[str, To] | None
    ) -> Backlog:
        """Return what there is to read of these splits; whole ones, which may be very many, are not planned yet.

        Args:
            splits: In order.
            latest: The present ends, by id, as far as anybody knows them; not looked at where there is a target.
            target: Where a run ends, by id, if it does; what is not in it is left to the next one.

        Raises:
            ConfigurationError: Nobody knows how far a split goes, nor can it be agreed on.
        """

        def entry(split: Split) -> Split | Planned:
            if self.whole and split.end is None:
                return split
            if target is None:
                return self.planned(split, latest.get(split.id))
            return planned_to(split, target[split.id], bounded=bool(self._source.bounded))

        entries = map(entry, splits if target is None else (split for split in splits if split.id in target))
        return Backlog(one for one in entries if isinstance(one, Split) or self.something(one))

    def planned(self, split: Split, latest: Position | None) -> Planned:
        """Return the split planned as far as it goes now.

        Args:
            split: With its own end, if it has one.
            latest: The present end, if anybody knows it.

        Raises:
            ConfigurationError: Nobody knows how far an open split of an unbounded source goes, nor can it be agreed on.
        """
        own, bounded = split.end, bool(self._source.bounded)
        if latest is None:
            if own is None and not bounded:
                if not self._agreeing:
                    raise unknown_end(self._source, split)
                return Planned(split, Agreed.AGREED)
            return Planned(split, Whole.WHOLE if own is None else own)
        if own is not None and (bounded or self.before(own, latest, split)):
            return Planned(split, own)
        return planned_to(split, latest, bounded=bounded)

    def something(self, planned: Planned) -> bool:
        """Whether there is something to read; an end that lags behind the position is none to go back to (S4)."""
        position, to = planned.split.position, planned.to
        if planned.empty or (position is None and to == 0 and not planned.ends):
            return False
        if position is None or to is None or isinstance(to, (Whole, Agreed)):
            return True
        if not self.before(to, position, planned.split):
            return True
        if not self._warned:
            self._warned = True  # an end may lag for a moment; one that stays behind would stop the split unseen
            _log.warning(
                "%s: the end %r of the split %r is before %r, which was read; nothing is, until that is passed. "
                "Was the split emptied and filled anew? If positions are numbers in text, override order_key(position)",
                self._source.name,
                to,
                planned.split.id,
                position,
            )
        return False

    def before(self, one: Position, other: Position, split: Split) -> bool:
        """Whether one position of a split comes before another.

        Raises:
            ContractError: They cannot be compared.
        """
        return before(self._source, one, other, split.id)

    def check_within(self, taken: Sequence[Planned], there: Sequence[Planned]) -> None:
        """Check that no split is taken further than it goes.

        Raises:
            ContractError: An author's `advance` went too far.
        """
        rest = {planned.split.id: planned for planned in taken}
        for whole in there:
            if not rest:  # what was not taken need not be looked at, and may be very much
                return
            planned = rest.pop(whole.split.id, whole)
            to, end = planned.to, whole.to
            if to is None or end is None or to == end or isinstance(to, (Whole, Agreed)):
                continue
            if not isinstance(end, (Whole, Agreed)) and self.before(end, to, planned.split):
                raise ContractError(
                    f"the micro-batch would go on to {to!r}, beyond the end {end!r}",
                    source=self._source.name,
                    split=planned.split.id,
                    rule="DIS-3",
                    advice="advance() must return a position that is at most the end of the split it is given",
                )

    def check_forward(self, planned: Planned) -> None:
        """Check that a plan does not go back (S4).

        Raises:
            ContractError: An author's `advance` did.
        """
        position, to = planned.split.position, planned.to
        if position is None or to is None or isinstance(to, (Whole, Agreed)) or position == to:
            return
        if self.before(to, position, planned.split):
            raise ContractError(
                f"the micro-batch would go back to {to!r}",
                source=self._source.name,
                split=planned.split.id,
                position=position,
                rule="S4",
                advice="advance() must return a position after that of the split",
            )


def planned_to(split: Split, to: To, *, bounded: bool) -> Planned:
    """Return a split planned up to `to`, which is its own end too where the source is bounded."""
    if bounded and split.end is None and not isinstance(to, (Whole, Agreed)):
        return Planned(split.slice(split.position, to), to)
    return Planned(split, to)


class Known(Mapping[str, Split]):
    """All splits that must not come again: those being read, and those that were read."""

    def __init__(self, unfinished: Mapping[str, Split], done: Mapping[str, Split]) -> None:
        self._unfinished = unfinished
        self._done = done

    def __getitem__(self, split_id: str) -> Split:
        found = self._unfinished.get(split_id)
        return self._done[split_id] if found is None else found

    def __contains__(self, split_id: object) -> bool:
        return split_id in self._unfinished or split_id in self._done

    def __iter__(self) -> Iterator[str]:
        yield from self._unfinished
        yield from self._done

    def __len__(self) -> int:
        return len(self._unfinished) + len(self._done)


def unknown_end(source: Source, split: Split) -> ConfigurationError:
    """Return the error for a split whose end nobody knows before it is read, where that cannot be helped."""
    return ConfigurationError(
        "how far this split can be read now is not known, and a stream has to say it before it reads",
        source=source.name,
        split=split.id,
        option="stateLocation",
        advice="say it in latest(split), such as the position after the newest settled record; or give "
        "stateLocation, where the attempts of a task agree on an end",
    )
