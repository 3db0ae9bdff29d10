# SPDX-License-Identifier: Apache-2.0
"""How much of what is there a micro-batch takes: hard limits, fair shares, no split starved (S16)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from forebay.errors import ConfigurationError, ContractError
from forebay.framework.discovery import DiscoveryEnumerator
from forebay.framework.host_options import HostOptions
from forebay.framework.microbatch.offsets.offset import Agreed, Planned, Whole
from forebay.framework.split import Split, normalise


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


def shares(weights: Sequence[int], total: int) -> list[int]:
    """Divide `total` over weights in proportion, exactly, none above its weight.

    What is left after rounding down goes, one each: first to the first one that was rounded down, then by largest
    remainder. So whoever is first and wants something gets something.

    Args:
        weights: What each could take, 0 or more.
        total: What there is to give, 1 or more.

    Returns:
        The shares, which add up to the smaller of `total` and the sum of the weights.
    """
    whole = sum(weights)
    if whole <= total:
        return list(weights)
    given = [weight * total // whole for weight in weights]
    rest = [weight * total % whole for weight in weights]
    rounded = [index for index, part in enumerate(rest) if part]
    ranked = sorted(rounded, key=lambda index: (index != rounded[0], -rest[index], index))
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

    def admit(self, there: Sequence[Planned]) -> list[Planned]:
        """Return what the micro-batch takes of `there`, with something in it each; something, if there is anything.

        Args:
            there: The splits with something to read, each planned as far as it goes; who waited longest comes first,
                and is never left out. So nobody starves, whatever the others bring.
        """
        taken = list(there)
        if self._limits.files is not None:
            chosen = shares([1] * len(taken), self._limits.files)
            taken = [planned for planned, share in zip(taken, chosen, strict=True) if share]
        if self._limits.rows is not None:
            counted = all(rows_between(planned) is not None for planned in taken)
            cut = self._cut_rows if counted else self._cut_uncounted
            taken = cut(taken, self._limits.rows)
        if self._limits.byte_budget is not None:
            taken = self._cut(taken, self._bytes, self._limits.byte_budget, rows=False)
        return taken

    def admit_in_order(self, there: Iterable[Planned]) -> list[Planned]:
        """Return what the micro-batch takes of `there`, the first ones first, until a limit is reached.

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
            if rows is not None and rows_between(planned) is None:
                planned = self._advanced(each, rows)
                rows = 0  # how many of them these are is not known
            elif rows is not None:
                planned = self._shorten(planned, self._rows(planned), rows, rows=True)
                rows -= self._rows(planned) or 0
            if byte_budget is not None and not planned.empty:
                planned = self._fit(planned, byte_budget, first=not taken)
                byte_budget -= 0 if planned.empty else self._bytes(planned) or 0
            if planned.empty:
                break
            taken.append(planned)
            if planned != each:
                break  # the rest of it comes before what follows, also if that were small enough
            if (rows is not None and rows <= 0) or (byte_budget is not None and byte_budget <= 0):
                break
        return taken

    def rows(self, there: Iterable[Planned]) -> int:
        """Return how many rows are there, for `minRowsPerTrigger`."""
        return sum(self._measured(self._rows(planned), planned, "minRowsPerTrigger") for planned in there)

    def _cut_rows(self, there: Sequence[Planned], total: int) -> list[Planned]:
        return self._cut(there, self._rows, total, rows=True)

    def _cut_uncounted(self, there: Sequence[Planned], total: int) -> list[Planned]:
        """Divide a limit of rows where positions do not count rows; what `advance` answers is believed.

        The shares are proportional to the sizes if all of them are known, else equal. A split with fewer rows than its
        share leaves the rest unused: how many rows it has is not known.
        """
        sizes = [self._bytes(planned) for planned in there] if len(there) > 1 else []
        known = [max(1, size) for size in sizes if size is not None]
        weights = known if len(known) == len(there) else [1] * len(there)
        given = shares([weight * total for weight in weights], total)
        return [self._advanced(planned, share) for planned, share in zip(there, given, strict=True) if share]

    def _advanced(self, planned: Planned, rows: int) -> Planned:
        """Return as much of a split as `advance` says that 1 or more rows reach.

        Raises:
            ConfigurationError: It cannot tell.
            ContractError: It does not go on.
        """
        open_ended = isinstance(planned.to, (Whole, Agreed)) or self._enumerator is None
        part = None if open_ended else self._reached(planned, rows, rows=True)
        if part is None:
            raise self._unmeasured(planned.split, _option(rows=True))
        if part.empty:
            raise self._stuck(planned.split, rows)
        return planned if part == planned else part

    def _cut(
        self, there: Sequence[Planned], measure: Callable[[Planned], int | None], total: int, *, rows: bool
    ) -> list[Planned]:
        option = _option(rows=rows)
        # What there is weighs something, also where its size is estimated at nothing.
        weights = [max(1, self._measured(measure(planned), planned, option)) for planned in there]
        given = shares(weights, total)
        first = there[:1]
        if first and self._part(first[0], weights[0], given[0], rows=rows).empty:
            # Its share is too small for one record. Who waited longest gets one all the same, the others what is left.
            taken = self._one_record(first[0], weights[0], given[0], rows=rows)
            left = total - max(1, (self._rows if rows else self._bytes)(taken) or 0)
            return [taken, *self._spread(there[1:], weights[1:], left, rows=rows)]
        return self._spread(there, weights, total, rows=rows)

    def _spread(self, there: Sequence[Planned], weights: Sequence[int], total: int, *, rows: bool) -> list[Planned]:
        """Divide a budget over splits; what is too little for one record goes to the first ones that got none."""
        if total <= 0:
            return []
        cut, left = [], 0
        for planned, weight, share in zip(there, weights, shares(weights, total), strict=True):
            part = self._part(planned, weight, share, rows=rows)
            left += share if part.empty else 0
            cut.append(part)
        for index, planned in enumerate(there):
            if cut[index].empty and left > 0:
                cut[index] = self._part(planned, weights[index], left, rows=rows)
                left -= 0 if cut[index].empty else (self._rows if rows else self._bytes)(cut[index]) or 0
        return [planned for planned in cut if not planned.empty]

    def _part(self, planned: Planned, weight: int, share: int, *, rows: bool) -> Planned:
        return planned if share == weight else self._shorten(planned, weight, share, rows=rows)

    def _one_record(self, planned: Planned, weight: int, budget: int, *, rows: bool) -> Planned:
        """Return about one record, more than `budget` allows, even if it is larger than the limit.

        Else it would never be read, nor anything after it.
        """
        if rows:
            raise self._stuck(planned.split, budget)
        found = Planned(planned.split, planned.split.position)
        while found.empty and budget < weight:
            budget *= 2
            found = self._shorten(planned, weight, budget, rows=False)
        return planned if found.empty else found

    def _shorten(self, planned: Planned, weight: int | None, budget: int, *, rows: bool) -> Planned:
        """Return as much of a split as a budget reaches, perhaps nothing."""
        option = _option(rows=rows)
        if self._measured(weight, planned, option) <= budget:
            return planned
        if budget <= 0:
            return Planned(planned.split, planned.split.position)
        part = self._reached(planned, budget, rows=rows)
        if part is None:
            raise self._unmeasured(planned.split, option)
        return part

    def _fit(self, planned: Planned, budget: int, *, first: bool) -> Planned:
        """Return as much of a split as so many bytes reach; the first one whole, if it can be had only whole.

        A file larger than the limit would stop everything.
        """
        weight = self._measured(self._bytes(planned), planned, _option(rows=False))
        if weight <= budget:
            return planned
        part = self._reached(planned, budget, rows=False)
        if part is not None and not (part.empty and first):
            return part
        if not first:
            return Planned(planned.split, planned.split.position)
        return planned if part is None else self._one_record(planned, weight, budget, rows=False)

    def _reached(self, planned: Planned, budget: int, *, rows: bool) -> Planned | None:
        """Return as much of a split as a budget of 1 or more reaches, None if nobody can tell."""
        part = planned.slice()
        assert self._enumerator is not None  # noqa: S101 - what was measured has one
        to = self._enumerator.advance(part, rows=budget) if rows else self._enumerator.advance(part, byte_budget=budget)
        if to is None:
            return None
        # From the very start to 0 is nothing, too.
        return Planned(planned.split, None if part.position is None and to == 0 else normalise(to, part.id))

    def _rows(self, planned: Planned) -> int | None:
        if self._counts_rows is None and self._enumerator is not None and not planned.empty:
            self._counts_rows = self._enumerator.advance(planned.slice(), rows=1) is not None
        return rows_between(planned) if self._counts_rows is not False else None

    def _bytes(self, planned: Planned) -> int | None:
        return None if self._enumerator is None else self._enumerator.size(planned.slice())

    def _measured(self, weight: int | None, planned: Planned, option: str) -> int:
        if weight is None or self._enumerator is None:
            raise self._unmeasured(planned.split, option)
        return weight

    def _stuck(self, split: Split, rows: int) -> ContractError:
        return ContractError(
            f"advance(rows={rows}) does not go on, and latest() says that there is more",
            source=self._source,
            split=split.id,
            position=str(split.position),
            rule="DIS-3",
            advice="return the position after so many rows, the split's end where there are fewer, or None if you "
            "cannot tell",
        )

    def _unmeasured(self, split: Split, option: str) -> ConfigurationError:
        what, connector = _WAYS_OUT[option]
        return ConfigurationError(
            f"{option} cannot be kept: how many {what} lie before a position is not known here",
            source=self._source,
            split=split.id,
            option=option,
            advice=f"leave {option} out, or limit something else (maxFilesPerTrigger); or, in the connector, "
            f"{connector}",
        )


_WAYS_OUT: Final = {
    "maxRowsPerTrigger": (
        "rows",
        "say positions_are_rows = True, or answer advance(), and give the split an end in latest()",
    ),
    "minRowsPerTrigger": ("rows", "say positions_are_rows = True, or answer advance() with positions that count rows"),
    "maxBytesPerTrigger": ("bytes", "answer size(), and advance() of a DiscoveryEnumerator"),
}
"""What is not known, and how an author can say it, for each option that needs it."""


def _option(*, rows: bool) -> str:
    return "maxRowsPerTrigger" if rows else "maxBytesPerTrigger"


def rows_between(planned: Planned) -> int | None:
    """Return how many rows, at most, a micro-batch reads of a split; None where positions do not count rows."""
    start, to = planned.split.position, planned.to
    if start is None:
        start = 0
    if isinstance(to, (Whole, Agreed)) or not isinstance(to, int) or not isinstance(start, int):
        return None
    return max(0, to - start)
