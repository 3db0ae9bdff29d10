# SPDX-License-Identifier: Apache-2.0
"""Decides what a micro-batch reads: the available range of each split, triggers, and limits."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from forebay.errors import ConfigurationError, ContractError
from forebay.framework.discovery import DiscoveryEnumerator
from forebay.framework.microbatch.offset import Planned, To, UnknownEnd
from forebay.framework.microbatch.offset_codec import LazySequence
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.source import Source
from forebay.framework.split import Position, Split, before, normalise

# -- Finds the range of each split that can be read now. A micro-batch stays within it and never goes backwards (S4).


_log = logging.getLogger(__name__)


class AvailableSplits(LazySequence[Planned]):
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
            (entry.id, UnknownEnd.WHOLE) if isinstance(entry, Split) else (entry.split.id, entry.to)
            for entry in self._entries
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
    ) -> AvailableSplits:
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
        return AvailableSplits(planned for planned in entries if isinstance(planned, Split) or self.has_data(planned))

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

    def before(self, position: Position, other: Position, split: Split) -> bool:
        """Return whether one position of a split comes before another."""
        return before(self._source, position, other, split.id)

    def check_within(self, taken: Sequence[Planned], available: Sequence[Planned]) -> None:
        """Check that no split in `taken` is planned beyond its end in `available`.

        Raises:
            ContractError: The author's `advance` returned a position beyond that end.
        """
        remaining = {planned.split.id: planned for planned in taken}
        for whole in available:
            if not remaining:  # the splits that were not taken may be very many
                return
            planned = remaining.pop(whole.split.id, whole)
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


# -- The trigger modes of a streaming query: what each call of `StreamPlanner.latest` may read, and whether it waits.


class Trigger:
    """The trigger of a query that runs until it is stopped: limits apply, and a micro-batch may wait for more rows."""

    limited = True
    """Whether limits such as `maxRowsPerTrigger` apply."""
    waits = True
    """Whether a call waits for fresh answers, for `minRowsPerTrigger`, and for records in empty ranges."""
    target: Mapping[str, To] | None = None
    """The fixed ends of the run, by split id; None if ends are not fixed."""

    @property
    def fresh(self) -> bool:
        """Whether this call of `latest` must ask the source: it uses no cached answer, and raises if the source fails.

        A run that ends by itself needs this: else an outage would end it as if there were no data.
        """
        return False

    def begin(self, available: AvailableSplits) -> None:
        """Record the splits that are available in this call of `latest`."""


class Once(Trigger):
    """The trigger of a query that runs one micro-batch of all available data, without limits."""

    limited = False
    waits = False
    fresh = True


class AvailableNow(Trigger):
    """The trigger of a series of micro-batches up to the ends that are found in its first call (S17)."""

    waits = False

    @property
    def fresh(self) -> bool:
        """Whether this is the first call of `latest`, in which the ends of the run are not fixed yet."""
        return self.target is None

    def begin(self, available: AvailableSplits) -> None:
        """In the first call, fix the ends of the run: the present ends of the available splits."""
        if self.target is None:
            self.target = available.ends()


# -- Applies limits such as `maxRowsPerTrigger` to a micro-batch. Splits share a limit fairly, and none starves (S16).


_ROWS: Final = "maxRowsPerTrigger"
_MIN_ROWS: Final = "minRowsPerTrigger"
_BYTES: Final = "maxBytesPerTrigger"

_WAYS_OUT: Final = {
    _ROWS: (
        "rows",
        (
            "use maxFilesPerTrigger instead; or, in the connector, return the split's end from latest(), and either "
            "set positions_are_rows = True or implement advance()"
        ),
    ),
    _MIN_ROWS: (
        "rows",
        "in the connector set positions_are_rows = True, or implement advance() with positions that count rows",
    ),
    _BYTES: (
        "bytes",
        "use maxFilesPerTrigger instead; or, in the connector, implement size() and advance() of a DiscoveryEnumerator",
    ),
}
"""For each option, the quantity that is unknown, and what to do instead of removing the option."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Maximum rows, bytes and files of one micro-batch, or of one split in it; None = no limit. All of them apply."""

    rows: int | None = None
    byte_budget: int | None = None
    files: int | None = None

    @classmethod
    def of(cls, options: HostOptions) -> BatchLimits:
        """Return the limits of `maxRowsPerTrigger`, `maxBytesPerTrigger` and `maxFilesPerTrigger`."""
        return cls(options.max_rows_per_trigger, options.max_bytes_per_trigger, options.max_files_per_trigger)

    def __bool__(self) -> bool:
        return self != BatchLimits()


def shares(weights: Sequence[int], total: int) -> list[int]:
    """Divide `total` into whole shares, in proportion to `weights`; no share exceeds its weight.

    Shares are rounded down. The remainder is given out in units of 1: first to the first share that was rounded down,
    then by largest remainder. So the first share whose weight is not 0 is never 0.

    Args:
        weights: The maximum of each share, 0 or more.
        total: 1 or more.

    Returns:
        The shares; their sum is the smaller of `total` and the sum of the weights.
    """
    whole = sum(weights)
    if whole <= total:
        return list(weights)
    allotted = [weight * total // whole for weight in weights]
    remainders = [weight * total % whole for weight in weights]
    rounded = [index for index, part in enumerate(remainders) if part]
    ranked = sorted(rounded, key=lambda index: (index != rounded[0], -remainders[index], index))
    for index in ranked[: total - sum(allotted)]:
        allotted[index] += 1
    return allotted


class Admission:
    """Applies the limits of a micro-batch to the available splits. Called on the planning thread.

    Args:
        source: The format name, for errors.
        enumerator: Provides `advance`, which finds the position after a number of rows or bytes of a split, and `size`,
            the bytes of a split. None = a raw `SplitEnumerator`, which has neither.
        limits: The limits of one micro-batch.
    """

    def __init__(self, source: str, enumerator: DiscoveryEnumerator | None, limits: BatchLimits) -> None:
        self._source = source
        self._enumerator = enumerator
        self._limits = limits
        self._counts_rows: bool | None = None

    def admit(self, available: Sequence[Planned]) -> list[Planned]:
        """Return the part of each available split that the micro-batch reads; splits without a part are left out.

        If some splits are read whole, to their own end, such as the files of a hybrid's history, only these are taken.

        Args:
            available: The splits with data, each up to its present end. The first one has waited longest; unless only
                whole splits are taken, it is always included, so no split starves.
        """
        if whole := [planned for planned in available if _is_whole(planned)]:
            return self._admit_whole(whole)
        taken = list(available)
        if self._limits.files is not None:
            chosen = shares([1] * len(taken), self._limits.files)
            taken = [planned for planned, share in zip(taken, chosen, strict=True) if share]
        if self._limits.rows is not None:
            counted = all(planned.rows is not None for planned in taken)
            taken = self._cut(taken, self._limits.rows, _ROWS) if counted else self._cut_uncounted(taken)
        if self._limits.byte_budget is not None:
            taken = self._cut(taken, self._limits.byte_budget, _BYTES)
        return taken

    def _admit_whole(self, available: Sequence[Planned]) -> list[Planned]:
        """Return the first splits, uncut: at least one, at most as many as the limits of files and bytes allow."""
        taken: list[Planned] = []
        left = self._limits.byte_budget
        for planned in available[: self._limits.files]:
            if left is not None:
                size = self._known_size(planned, _BYTES)
                if taken and size > left:
                    break
                left -= size
            taken.append(planned)
        return taken

    def admit_in_order(self, available: Iterable[Planned]) -> list[Planned]:
        """Return the parts of splits that the micro-batch reads: split after split, until a limit is reached."""
        limits = self._limits
        rows, byte_budget, files = limits.rows, limits.byte_budget, limits.files
        taken: list[Planned] = []
        for each in available:
            if files is not None and len(taken) >= files:
                break
            planned = each
            if rows is not None and planned.rows is None:
                planned = self._advanced(each, rows)
                rows = 0  # the number of rows is not known
            elif rows is not None:
                planned = self._shorten(planned, self._known_size(planned, _ROWS), rows, _ROWS)
                rows -= self._size(planned, _ROWS) or 0
            if byte_budget is not None and not planned.empty:
                planned = self._fit(planned, byte_budget, first=not taken)
                byte_budget -= 0 if planned.empty else self._size(planned, _BYTES) or 0
            if planned.empty:
                break
            taken.append(planned)
            if planned != each:
                break  # its rest comes before the next split, even if that one fits
            if (rows is not None and rows <= 0) or (byte_budget is not None and byte_budget <= 0):
                break
        return taken

    def rows(self, available: Iterable[Planned]) -> int:
        """Return the number of available rows, for `minRowsPerTrigger`; `sys.maxsize` if a split is read whole.

        Raises:
            ConfigurationError: The number of rows is unknown.
        """
        if any(_is_whole(planned) for planned in available):
            return sys.maxsize  # such a split is read at once: its rows are not counted
        return sum(self._known_size(planned, _MIN_ROWS) for planned in available)

    def _cut_uncounted(self, available: Sequence[Planned]) -> list[Planned]:
        """Divide `maxRowsPerTrigger` over splits whose positions do not count rows; `advance` finds where to cut.

        Shares are proportional to the bytes of the splits if all are known, else equal. If a split has fewer rows than
        its share, the other splits do not get the rest.
        """
        total = self._limits.rows or 0
        sizes = [self._size(planned, _BYTES) for planned in available] if len(available) > 1 else []
        known = [max(1, size) for size in sizes if size is not None]
        weights = known if len(known) == len(available) else [1] * len(available)
        allotted = shares([weight * total for weight in weights], total)
        return [self._advanced(planned, share) for planned, share in zip(available, allotted, strict=True) if share]

    def _advanced(self, planned: Planned, rows: int) -> Planned:
        """Return a planned split, cut after its first `rows` rows (1 or more); `advance` finds the position.

        Raises:
            ConfigurationError: The end of the split is unknown, or `advance` returned None (position unknown).
            ContractError: `advance` returned the position of the split itself.
        """
        open_ended = isinstance(planned.to, UnknownEnd) or self._enumerator is None
        part = None if open_ended else self._reached(planned, rows, _ROWS)
        if part is None:
            raise self._unmeasured(planned.split, _ROWS)
        if part.empty:
            raise self._stuck(planned.split, rows)
        return planned if part == planned else part

    def _cut(self, available: Sequence[Planned], total: int, option: str) -> list[Planned]:
        # A size may be estimated as 0, but an available split weighs at least 1.
        weights = [max(1, self._known_size(planned, option)) for planned in available]
        allotted = shares(weights, total)
        if available and self._shorten(available[0], weights[0], allotted[0], option).empty:
            # The share of the first split is too small for one record: it gets one, and the others share the rest.
            taken = self._one_record(available[0], weights[0], allotted[0], option)
            left = total - max(1, self._size(taken, option) or 0)
            return [taken, *self._spread(available[1:], weights[1:], left, option)]
        return self._spread(available, weights, total, option)

    def _spread(self, available: Sequence[Planned], weights: Sequence[int], total: int, option: str) -> list[Planned]:
        """Divide `total` rows or bytes over splits, in proportion to `weights`; return the parts that are not empty.

        Shares that are too small for one record are added up, and given to the first splits that got no part.
        """
        if total <= 0:
            return []
        cut, left = [], 0
        for planned, weight, share in zip(available, weights, shares(weights, total), strict=True):
            part = self._shorten(planned, weight, share, option)
            left += share if part.empty else 0
            cut.append(part)
        for index, planned in enumerate(available):
            if cut[index].empty and left > 0:
                cut[index] = self._shorten(planned, weights[index], left, option)
                left -= 0 if cut[index].empty else self._size(cut[index], option) or 0
        return [planned for planned in cut if not planned.empty]

    def _one_record(self, planned: Planned, weight: int, budget: int, option: str) -> Planned:
        """Return a planned split cut after about one record, even beyond the byte limit: else it would never be read.

        `weight` is the number of bytes of the whole split. `budget` bytes were too few for a record, so twice as many
        are tried, and so on.
        """
        if option == _ROWS:
            raise self._stuck(planned.split, budget)
        part = Planned(planned.split, planned.split.position)
        while part.empty and budget < weight:
            budget *= 2
            part = self._shorten(planned, weight, budget, option)
        return planned if part.empty else part

    def _shorten(self, planned: Planned, weight: int, budget: int, option: str) -> Planned:
        """Return a planned split cut after `budget` rows or bytes, possibly empty; `weight` is its uncut size."""
        if weight <= budget:
            return planned
        if budget <= 0:
            return Planned(planned.split, planned.split.position)
        part = self._reached(planned, budget, option)
        if part is None:
            raise self._unmeasured(planned.split, option)
        return part

    def _fit(self, planned: Planned, budget: int, *, first: bool) -> Planned:
        """Return a planned split cut after `budget` bytes, possibly empty.

        If the `first` split of a micro-batch cannot be cut, it is returned whole: a file above the limit must not stop
        the stream.
        """
        weight = self._known_size(planned, _BYTES)
        if weight <= budget:
            return planned
        part = self._reached(planned, budget, _BYTES)
        if part is not None and not (part.empty and first):
            return part
        if not first:
            return Planned(planned.split, planned.split.position)
        return planned if part is None else self._one_record(planned, weight, budget, _BYTES)

    def _reached(self, planned: Planned, budget: int, option: str) -> Planned | None:
        """Return a planned split cut after `budget` rows or bytes (1 or more); None if `advance` returns None."""
        part, enumerator = planned.slice(), self._enumerator
        assert enumerator is not None  # noqa: S101 - a measured split has one
        to = enumerator.advance(part, rows=budget) if option == _ROWS else enumerator.advance(part, byte_budget=budget)
        if to is None:
            return None
        # A split at its start has the position None; if `advance` returns 0, it is still there.
        return Planned(planned.split, None if part.position is None and to == 0 else normalise(to, part.id))

    def _size(self, planned: Planned, option: str) -> int | None:
        """Return the size of a split, in rows or bytes as `option` counts; None if it is unknown."""
        if self._enumerator is None:
            return None if option == _BYTES else planned.rows
        if option == _BYTES:
            return self._enumerator.size(planned.slice())
        if self._counts_rows is None and not planned.empty:
            self._counts_rows = self._enumerator.advance(planned.slice(), rows=1) is not None
        return planned.rows if self._counts_rows is not False else None

    def _known_size(self, planned: Planned, option: str) -> int:
        size = self._size(planned, option)
        if size is None or self._enumerator is None:
            raise self._unmeasured(planned.split, option)
        return size

    def _stuck(self, split: Split, rows: int) -> ContractError:
        return ContractError(
            f"advance(rows={rows}) returned the position where the split begins, but latest() returned a later one",
            source=self._source,
            split=split.id,
            position=str(split.position),
            rule="DIS-3",
            advice="in the connector, let advance() return the position after that many rows, the split's end if there "
            "are fewer, or None if the position is unknown",
        )

    def _unmeasured(self, split: Split, option: str) -> ConfigurationError:
        quantity, instead = _WAYS_OUT[option]
        return ConfigurationError(
            f"the source does not support {option}: the number of {quantity} before a position is unknown",
            source=self._source,
            split=split.id,
            option=option,
            advice=f"remove {option}; or {instead}",
        )


def _is_whole(planned: Planned) -> bool:
    """Return whether one micro-batch reads the split completely, to its own end, in an unbounded source."""
    return planned.to is UnknownEnd.WHOLE and planned.split.ends_itself
