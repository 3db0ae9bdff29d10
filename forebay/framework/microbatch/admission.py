# SPDX-License-Identifier: Apache-2.0
"""How much of what is there a micro-batch takes: hard limits, fair shares, no split starved (S16)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from forebay.errors import ConfigurationError
from forebay.framework.discovery import DiscoveryEnumerator
from forebay.framework.host_options import HostOptions
from forebay.framework.microbatch.offset import Agreed, Planned, Whole
from forebay.framework.split import Split


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that one micro-batch takes; None = no limit. All of them hold together."""

    rows: int | None = None
    byte_budget: int | None = None
    files: int | None = None

    @classmethod
    def of(cls, options: HostOptions) -> Limits:
        """Return the limits that the options set."""
        return cls(options.max_rows_per_trigger, options.max_bytes_per_trigger, options.max_files_per_trigger)

    def __bool__(self) -> bool:
        return self != Limits()


def shares(weights: Sequence[int], total: int, turn: int) -> list[int]:
    """Divide `total` over weights in proportion, exactly, none above its weight.

    What is left after rounding down goes, one each: first to the split whose turn it is, so that none starves, then
    by largest remainder.

    Args:
        weights: What each could take, 0 or more.
        total: What there is to give, 0 or more.
        turn: The number of the micro-batch.

    Returns:
        The shares, which add up to the smaller of `total` and the sum of the weights.
    """
    whole = sum(weights)
    if whole <= total:
        return list(weights)
    given = [weight * total // whole for weight in weights]
    rest = [weight * total % whole for weight in weights]
    open_ones = [index for index, part in enumerate(rest) if part]
    if not open_ones:
        return given
    first = open_ones[turn % len(open_ones)]
    ranked = sorted(open_ones, key=lambda index: (index != first, -rest[index], index))
    for index in ranked[: total - sum(given)]:
        given[index] += 1
    return given


class Admission:
    """Takes a micro-batch's share of what is there. Called on the planning thread.

    Args:
        source: The format name, for errors.
        enumerator: Tells how far a budget reaches (`advance`) and how much there is (`size`).
        limits: What one micro-batch may take.
    """

    def __init__(self, source: str, enumerator: DiscoveryEnumerator | None, limits: Limits) -> None:
        self._source = source
        self._enumerator = enumerator
        self._limits = limits
        self._counts_rows: bool | None = None

    def admit(self, there: Sequence[Planned], turn: int) -> list[Planned]:
        """Return what the micro-batch takes of `there`, with something in it each.

        Args:
            there: The splits with something to read, each planned as far as it goes.
            turn: The number of the micro-batch, for whose turn it is.
        """
        taken = list(there)
        if self._limits.files is not None:
            chosen = shares([1] * len(taken), self._limits.files, turn)
            taken = [planned for planned, share in zip(taken, chosen, strict=True) if share]
        if self._limits.rows is not None:
            taken = self._cut(taken, self._rows, self._limits.rows, turn, rows=True)
        if self._limits.byte_budget is not None:
            taken = self._cut(taken, self._bytes, self._limits.byte_budget, turn, rows=False)
        return taken

    def admit_in_order(self, there: Iterable[Planned]) -> list[Planned]:
        """Return what the micro-batch takes, the first ones first, until a limit is reached.

        Args:
            there: The splits with something to read, in order.
        """
        limits = self._limits
        rows, byte_budget, files = limits.rows, limits.byte_budget, limits.files
        taken: list[Planned] = []
        for each in there:
            if files is not None and len(taken) >= files:
                break
            planned = each
            if rows is not None:
                planned = self._shorten(planned, self._rows(planned), rows, rows=True)
                rows -= self._rows(planned) or 0
            if byte_budget is not None and not planned.empty:
                # The first one always makes progress, or a file larger than the limit would stop everything.
                room = max(1, byte_budget) if not taken else byte_budget
                planned = self._shorten(planned, self._bytes(planned), room, rows=False)
                byte_budget -= self._bytes(planned) or 0
            if planned.empty:
                break
            taken.append(planned)
            if (rows is not None and rows <= 0) or (byte_budget is not None and byte_budget <= 0):
                break
        return taken

    def rows(self, there: Iterable[Planned]) -> int:
        """Return how many rows are there, for `minRowsPerTrigger`."""
        return sum(self._measured(self._rows(planned), planned, rows=True) for planned in there)

    def _cut(
        self, there: Sequence[Planned], measure: Callable[[Planned], int | None], total: int, turn: int, *, rows: bool
    ) -> list[Planned]:
        weights = [self._measured(measure(planned), planned, rows=rows) for planned in there]
        given = shares(weights, total, turn)
        cut = [
            planned if share == weight else self._shorten(planned, weight, share, rows=rows)
            for planned, weight, share in zip(there, weights, given, strict=True)
            if share
        ]
        return [planned for planned in cut if not planned.empty]

    def _shorten(self, planned: Planned, weight: int | None, budget: int, *, rows: bool) -> Planned:
        """Return as much of a split as a budget reaches."""
        measured = self._measured(weight, planned, rows=rows)
        if measured <= budget:
            return planned
        if budget <= 0:
            return Planned(planned.split, planned.split.position)
        part = planned.slice()
        assert self._enumerator is not None  # noqa: S101 - what was measured has one
        to = self._enumerator.advance(part, rows=budget) if rows else self._enumerator.advance(part, byte_budget=budget)
        if to is None:
            raise self._unmeasured(planned.split, rows=rows)
        return Planned(planned.split, to)

    def _rows(self, planned: Planned) -> int | None:
        if self._counts_rows is None and self._enumerator is not None and not planned.empty:
            self._counts_rows = self._enumerator.advance(planned.slice(), rows=1) is not None
        return rows_between(planned) if self._counts_rows is not False else None

    def _bytes(self, planned: Planned) -> int | None:
        return None if self._enumerator is None else self._enumerator.size(planned.slice())

    def _measured(self, weight: int | None, planned: Planned, *, rows: bool) -> int:
        if weight is None or self._enumerator is None:
            raise self._unmeasured(planned.split, rows=rows)
        return weight

    def _unmeasured(self, split: Split, *, rows: bool) -> ConfigurationError:
        option = "maxRowsPerTrigger" if rows else "maxBytesPerTrigger"
        return ConfigurationError(
            f"{option} cannot be kept: how many {'rows' if rows else 'bytes'} lie before a position is not known here",
            source=self._source,
            split=split.id,
            option=option,
            advice="leave it out; or, in the connector, say it in advance() and size()",
        )


def rows_between(planned: Planned) -> int | None:
    """Return how many rows, at most, a micro-batch reads of a split; None where positions do not count rows."""
    start, to = planned.split.position, planned.to
    if start is None:
        start = 0
    if isinstance(to, (Whole, Agreed)) or not isinstance(to, int) or not isinstance(start, int):
        return None
    return max(0, to - start)
