# SPDX-License-Identifier: Apache-2.0
"""The enumerator of a hybrid: discovers the splits of one source; once these are finished, those of the next source."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from forebay.errors import ConfigurationError, ContractError
from forebay.framework.coordination.validation import fixed_ends, unread
from forebay.framework.discovery import Discovered, DiscoveryEnumerator, KnownSplits
from forebay.framework.enumerator import SplitEnumeratorContext
from forebay.framework.simple import SimpleSource
from forebay.framework.source import Source
from forebay.framework.split import Json, Position, Split
from forebay.sources.hybrid.legs import HybridLegs, HybridSplit, LegEnumeratorContext, by_leg, own_split

_log = logging.getLogger(__name__)


class HybridEnumerator(DiscoveryEnumerator):
    """Runs the enumerators of the legs (the hybrid's sources), one after the other.

    Each leg but the last is discovered once, and this discovery fixes the ends of its splits. If the hybrid is bounded,
    or the host reads only once, such as a batch query, the first discovery covers all legs.

    Args:
        source: The hybrid.
        context: The host's context.
    """

    def __init__(self, source: HybridLegs, context: SplitEnumeratorContext) -> None:
        self._source = source
        self._context = context
        self._mapping = source.mapping()
        self._legs = source.legs
        self._last = len(source.legs) - 1
        self._names = [leg.name for leg in source.legs]
        self._at_once = source.bounded or context.reads_once
        self._enumerators: dict[int, DiscoveryEnumerator] = {}
        self._leg = 0
        self._discovered = False  # whether leg number `_leg` has been discovered
        self._state: Json = None  # the state of the last leg's enumerator
        self._live: set[str] | None = None  # ids of all splits of the last leg ever known; None = take from `known`
        live = self._enumerator(self._last)
        self.in_stages = not self._at_once
        self.exact_ends = live.exact_ends
        self.refresh_floor, self.refresh_share = live.refresh_floor, live.refresh_share
        self.discovery_floor = live.discovery_floor

    # ---- discovery

    def discover(self, known: Mapping[str, Split], first: bool) -> Discovered:
        """Return the splits of the leg being read; once they are finished, those of the next leg with splits."""
        if self._at_once:
            return Discovered(self._all_legs(), state=self._snapshot())
        if first:
            self._leg, self._discovered, self._state, self._live = 0, False, None, None
        if not isinstance(known, KnownSplits):
            known = KnownSplits(known, {})
        if self._leg < self._last and self._discovered and known.unfinished:
            return Discovered(list(known.unfinished.values()), state=self._snapshot())
        while self._leg < self._last:
            if not self._discovered and (splits := self._history(self._leg)):
                self._discovered = True
                return Discovered(splits, state=self._snapshot())
            self._begin(self._leg + 1, known)
        return self._discover_live(known)

    def restore_state(self, state: Json) -> None:
        """Restore which leg is being read, and the state of the last leg's enumerator.

        Raises:
            ConfigurationError: The checkpoint belongs to a hybrid with other sources or another order of sources.
        """
        stored: Mapping[str, Any] = state if isinstance(state, Mapping) else {}
        self._leg, self._discovered = int(stored.get("leg", 0)), bool(stored.get("found", False))
        self._state, self._live = stored.get("state"), None
        before = [str(name) for name in stored.get("sources", ())]
        if before != self._names:
            raise ConfigurationError(
                f"the checkpoint belongs to a hybrid that reads {', then '.join(before)}; "
                f"this hybrid reads {', then '.join(self._names)}",
                source=self._source.name,
                advice="give the hybrid the same sources in the same order as before, or use a new checkpoint",
            )
        if self._leg == self._last and self._discovered:
            self._enumerator(self._last).restore_state(self._state)

    def _snapshot(self) -> Json:
        stored: dict[str, Json] = {"sources": self._names, "leg": self._leg, "found": self._discovered}
        return stored if self._state is None else {**stored, "state": self._state}

    def _history(self, leg: int) -> list[HybridSplit]:
        """Discover a leg before the last one; return its non-empty splits, with fixed ends.

        Raises:
            ConfigurationError: The leg is unbounded, and the end of a split is unknown.
        """
        enumerator, source = self._enumerator(leg), self._legs[leg]
        inner_splits = enumerator.discover({}, True).splits
        ends = enumerator.latest(inner_splits) if inner_splits else {}
        splits = []
        for split in unread(source, fixed_ends(source, inner_splits, ends)):
            if split.end is None and not source.bounded:
                raise ConfigurationError(
                    f"{source.name} does not know the end of this split, so the next source would never begin",
                    source=self._source.name,
                    split=self._mapping.outer_id(leg, split.id),
                    advice="before the last source, use only bounded sources, or sources whose latest() returns ends",
                )
            splits.append(self._mapping.outer(leg, split, whole=split.end is None))
        return splits

    def _begin(self, leg: int, known: KnownSplits) -> None:
        """Begin to read this leg. If it is the last one, first call the switch function with the finished splits."""
        if leg == self._last and self._source.switch is not None:
            self._switch([self._mapping.inner(split) for split in known.values() if own_split(split).leg == leg - 1])
        self._leg, self._discovered = leg, False
        _log.info("%s: begins to read source %d of %d", self._source.name, leg + 1, self._last + 1)

    def _discover_live(self, known: KnownSplits) -> Discovered:
        """Run the discovery of the last leg, and return its splits as splits of the hybrid."""
        own = self._known_live(known)
        discovered = self._enumerator(self._last).discover(own, not self._discovered)
        self._discovered, self._state = True, discovered.state
        splits = [self._mapping.outer(self._last, split) for split in discovered.splits]
        assert self._live is not None  # noqa: S101 - set by `_known_live`
        self._live.update(split.id for split in splits)
        return Discovered(splits, horizon=self._horizon(discovered.horizon), state=self._snapshot())

    def _known_live(self, known: KnownSplits) -> KnownSplits:
        """Return the known splits of the last leg.

        Only the first call searches all of `known`, because it may hold many splits of other legs.
        """
        if self._live is None:
            self._live = {split.id for split in known.values() if own_split(split).leg == self._last}
        unfinished, finished = (
            {
                split.id: split
                for split in (self._mapping.inner(part[split_id]) for split_id in self._live if split_id in part)
            }
            for part in (known.unfinished, known.finished)
        )
        return KnownSplits(unfinished, finished)

    def _horizon(self, inner: Callable[[Split], bool] | None) -> Callable[[Split], bool]:
        """Return the `Discovered.horizon` of the hybrid. For splits of the last leg, `inner` (its horizon) decides.

        Finished splits of the other legs are forgotten, unless a restart may pass them to the switch function.
        """
        mapping, last, switches = self._mapping, self._last, self._source.switch is not None

        def below(split: Split) -> bool:
            if own_split(split).leg < last:
                return not switches
            return inner is not None and inner(mapping.inner(split))

        return below

    def _all_legs(self) -> list[HybridSplit]:
        """Return the splits of all legs. Called only if the first discovery covers all legs."""
        splits: list[HybridSplit] = []
        before: list[Split] = []
        for leg in range(self._last):
            new = self._history(leg)
            before = [self._mapping.inner(split) for split in new]
            splits += new
        self._switch(before)
        live = self._enumerator(self._last).discover({}, True).splits
        bounded = self._legs[self._last].bounded
        return [
            *splits,
            *(self._mapping.outer(self._last, split, whole=bounded and split.end is None) for split in live),
        ]

    # ---- the legs

    def _enumerator(self, leg: int) -> DiscoveryEnumerator:
        if leg not in self._enumerators:
            self._enumerators[leg] = self._create(leg, self._legs[leg])
        return self._enumerators[leg]

    def _create(self, leg: int, source: Source) -> DiscoveryEnumerator:
        context = LegEnumeratorContext(self._context, leg, last=leg == self._last)
        made = source.create_enumerator(context)
        if not isinstance(made, DiscoveryEnumerator):
            raise ConfigurationError(
                f"{source.name} assigns its splits itself, so it cannot be a part of a hybrid",
                source=self._source.name,
                advice=f"read {source.name} without a hybrid; or make its connector return a DiscoveryEnumerator",
            )
        if leg == self._last and made.in_order and not self._at_once:
            raise ConfigurationError(
                f"a stream reads the splits of {source.name} in order, which a hybrid cannot do for its last source",
                source=self._source.name,
                advice=f"read the history by a bounded read first; then read {source.name} without a hybrid",
            )
        return made

    def _switch(self, finished: Sequence[Split]) -> None:
        """Call the switch function, if there is one; replace the last leg's enumerator by that of the returned source.

        Raises:
            ContractError: The switch function returned a source of another class, or one whose start has no effect.
        """
        if (switch := self._source.switch) is None:
            return
        then = self._legs[self._last]
        switched = switch(then, finished)
        if type(switched) is not type(then):
            raise ContractError(
                f"switch() returned {type(switched).__name__}, not {type(then).__name__}",
                source=self._source.name,
                rule="HYB-1",
                advice="let switch() return the source that it got, with another start: type(then)(**options)",
            )
        old, made = self._enumerator(self._last), self._create(self._last, switched)
        self._enumerators[self._last] = made
        try:
            if isinstance(then, SimpleSource) and switched != then:
                self._check_start(then, old, made)
        finally:
            old.close()

    def _check_start(self, then: Source, old: DiscoveryEnumerator, made: DiscoveryEnumerator) -> None:
        """Raise an error if the switched source finds the same splits, without positions: its start is nowhere."""
        switched = list(made.discover({}, True).splits)
        if not switched or any(split.position is not None for split in switched):
            return
        if switched == list(old.discover({}, True).splits):
            raise ContractError(
                f"switch() returned another {type(then).__name__}, which finds the same splits without positions: "
                "its start would have no effect, as tasks read with the options of the source that HybridSource got",
                source=self._source.name,
                rule="HYB-1",
                advice="in the connector, let splits() return each Split at its start, also where that is the "
                "beginning: Split(id, position=self.start); nothing was read from it yet",
            )

    # ---- passed on to the legs

    def latest(self, splits: Sequence[Split]) -> Mapping[str, Position]:
        """Return the present ends of the last leg's splits. Omit splits of the other legs: their ends are fixed."""
        live = [split for split in splits if own_split(split).leg == self._last]
        return self._by_leg(live, lambda leg, inner: leg.latest(inner))

    def positions_at(self, event_time: int, splits: Sequence[Split]) -> Mapping[str, Position] | None:
        """Return by id the positions for `event_time` that the enumerators of the legs find."""
        return self._by_leg(splits, lambda leg, inner: leg.positions_at(event_time, inner) or {})

    def event_times(self, splits: Sequence[Split], column: str) -> Mapping[str, int | None] | None:
        """Return by id the event times that the legs' enumerators know; None for splits of a leg that knows none.

        Raises:
            ConfigurationError: A leg does not know event times and reads its splits whole, as the file source does.
        """
        event_times: dict[str, int | None] = {}
        for leg, part in by_leg(splits).items():
            inner = {split.id: self._mapping.inner(split) for split in part}
            times = self._enumerator(leg).event_times(list(inner.values()), column)
            if times is None and any(split.whole for split in part):
                raise ConfigurationError(
                    f"{self._names[leg]} cannot be aligned while it is the history of a hybrid: the event times of its "
                    "splits are not known before they are read",
                    source=self._source.name,
                    option="alignmentMaxDrift",
                    advice="remove alignmentMaxDrift until the history has been read, then restart with it; or read "
                    "the history without a hybrid",
                )
            if times is None:
                event_times |= dict.fromkeys(inner)
            else:
                event_times |= {split_id: times[split.id] for split_id, split in inner.items() if split.id in times}
        return event_times

    def size(self, split: Split) -> int | None:
        """Return the size in bytes that the enumerator of the split's leg estimates."""
        return self._enumerator(own_split(split).leg).size(self._mapping.inner(split))

    def slices(self, split: Split, count: int) -> Sequence[Split]:
        """Return the slices into which the enumerator of the split's leg cuts it."""
        own = own_split(split)
        inner = self._enumerator(own.leg).slices(self._mapping.inner(split), count)
        return [self._mapping.outer(own.leg, part, whole=own.whole and part.end is None) for part in inner]

    def tasks(self, slices: Sequence[Split]) -> Sequence[Sequence[Split]] | None:
        """Return the slices of each task, as the enumerator of their leg decides.

        None if it leaves the decision to the host, or if the slices are of several legs.
        """
        parts = by_leg(slices)
        if len(parts) != 1:
            return None
        ((leg, part),) = parts.items()
        decided = self._enumerator(leg).tasks([self._mapping.inner(split) for split in part])
        if decided is None:
            return None
        wholes = {split.id: split.whole for split in part}
        outer_id, outer = self._mapping.outer_id, self._mapping.outer
        return [
            [outer(leg, split, whole=wholes[outer_id(leg, split.id)] and split.end is None) for split in task]
            for task in decided
        ]

    def advance(self, split: Split, *, rows: int | None = None, byte_budget: int | None = None) -> Position | None:
        """Return the position after a budget of rows or bytes that the enumerator of the split's leg finds."""
        leg = own_split(split).leg
        inner = self._enumerator(leg).advance(self._mapping.inner(split), rows=rows, byte_budget=byte_budget)
        return self._mapping.outer_position(leg, inner)

    def vanished(self, splits: Sequence[Split]) -> bool:
        """Return whether the last leg's enumerator drops these splits. Splits of the other legs never vanish."""
        return self._enumerator(self._last).vanished([self._mapping.inner(split) for split in splits])

    def finished(self, splits: Sequence[Split]) -> None:
        """Report finished splits to the enumerators of their legs."""
        for leg, part in by_leg(splits).items():
            self._enumerator(leg).finished([self._mapping.inner(split) for split in part])

    def committed(self, positions: Mapping[str, Position]) -> None:
        """Report committed positions to the enumerators of their legs."""
        parts: dict[int, dict[str, Position]] = {}
        for split_id, position in positions.items():
            leg, _, inner_id = split_id.partition("/")
            parts.setdefault(int(leg), {})[inner_id] = self._mapping.inner_position(position)[1]
        for number, part in parts.items():
            self._enumerator(number).committed(part)

    def close(self) -> None:
        """Close the enumerators of all legs."""
        enumerators, self._enumerators = self._enumerators, {}
        with ExitStack() as closed:  # all of them, also if one fails
            for enumerator in enumerators.values():
                closed.callback(enumerator.close)

    def _by_leg(
        self,
        splits: Sequence[Split],
        ask: Callable[[DiscoveryEnumerator, Sequence[Split]], Mapping[str, Position]],
    ) -> dict[str, Position]:
        """Call `ask` with each leg's enumerator and splits; return the answers as ids and positions of the hybrid."""
        positions: dict[str, Position] = {}
        for leg, part in by_leg(splits).items():
            answer = ask(self._enumerator(leg), [self._mapping.inner(split) for split in part])
            for inner_id, position in answer.items():
                outer = self._mapping.outer_position(leg, position)
                if outer is not None:
                    positions[self._mapping.outer_id(leg, inner_id)] = outer
        return positions
