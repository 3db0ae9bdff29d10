# SPDX-License-Identifier: Apache-2.0
"""What must hold of the micro-batches of a simulated stream, and of what it delivered in the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forebay.framework.microbatch.offset import Offset, Planned, UnknownEnd
from forebay.framework.runtime.host_options import HostOptions
from forebay_simulator.outside import ROW_BYTES, Broken, Outside, Row, plain


class StreamRules:
    """Judges each plan of a process against the outside, and the sink against all that was there.

    Args:
        outside: What there is to read.
    """

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._waited: dict[str, int] = {}
        self._ends_at: float | None = None

    def begin(self) -> None:
        """Begin a process."""
        self._waited, self._ends_at = {}, None

    def first_look(self) -> None:
        """Fix the end of an AvailableNow run at its first poll."""
        if self._ends_at is None:
            self._ends_at = self._outside.now()

    def check_plan(self, before: Offset, after: Offset, limits: HostOptions | None) -> None:
        """Check that an offset goes on from the one before, by one, within the limits.

        Raises:
            Broken: It does not.
        """
        if after.n != before.n + 1 or (before.query and before.query != after.query):
            raise Broken(f"after {before.n} of {before.query!r} comes {after.n} of {after.query!r} (S1, S4)")
        was = {planned.split.id: planned for planned in before.splits}
        for planned in after.splits:
            earlier = was.get(planned.split.id)
            if earlier is not None and earlier.to != planned.split.position:
                raise Broken(f"{planned.split.id} stood at {earlier.to}, and goes on from {planned.split.position}")
            to, position = planned.to, planned.split.position
            if (
                not isinstance(to, UnknownEnd)
                and to is not None
                and position is not None
                and plain(to) < plain(position)
            ):
                raise Broken(f"{planned.split.id} goes back to {to} (S4)")
            self._check_target(planned)
        if limits is not None:
            self._check_limits(after, limits)
            self._check_turns(after)

    def _check_target(self, planned: Planned) -> None:
        if self._ends_at is None or planned.empty:
            return
        script = self._outside.scripts[planned.split.id]
        there = script.available(self._ends_at)
        reached = script.size if isinstance(planned.to, UnknownEnd) else plain(planned.to)
        if reached > there or script.appears > self._ends_at:
            raise Broken(f"{script.id} is read to {reached}, and when the run began there was {there} (S17)")

    def _check_limits(self, offset: Offset, limits: HostOptions) -> None:
        taken = [planned for planned in offset.splits if not planned.empty]
        rows = sum(1 for planned in taken for _ in self._outside.rows(planned.slice()))
        for what, count, limit in (
            ("rows", rows, limits.max_rows_per_trigger),
            ("splits", len(taken), limits.max_files_per_trigger),
        ):
            if limit is not None and count > limit:
                raise Broken(f"{count} {what}, and {limit} is the limit (S16)")
        most = limits.max_bytes_per_trigger
        if most is not None and rows * ROW_BYTES > most and rows != 1:
            raise Broken(f"{rows * ROW_BYTES} bytes, and {most} is the limit (S16)")

    def _check_turns(self, offset: Offset) -> None:
        """Check that a split with unread rows waits for at most one turn of all others."""
        if self._outside.kind.in_order:
            return
        for planned in offset.splits:
            split = planned.split
            left = self._outside.reported.get(split.id, 0) if split.end is None else plain(split.end)
            known = split.end is None or self._outside.kind.bounded
            hungry = known and planned.empty and left > plain(split.position or 0)
            self._waited[split.id] = self._waited.get(split.id, 0) + 1 if hungry else 0
            if self._waited[split.id] > len(self._outside.scripts):
                raise Broken(f"{split.id} got nothing in {self._waited[split.id]} micro-batches (S16)")

    def check_complete(self, sink: Mapping[int, Sequence[Row]]) -> None:
        """Check that every row is in the sink, once; of vanished and dropped splits only the first rows.

        Raises:
            Broken: It is not.
        """
        got: dict[str, list[int]] = {script_id: [] for script_id in self._outside.scripts}
        for number in sorted(sink):
            for split_id, row in sink[number]:
                got[split_id].append(row)
        for script in self._outside.scripts.values():
            wanted: Sequence[int] = range(script.first, script.size)
            if script.id in self._outside.dropped or script.vanishes < float("inf"):
                wanted = wanted[: len(got[script.id])]
            if got[script.id] != list(wanted):
                raise Broken(f"{script.id} has {list(wanted)}, and {got[script.id]} was delivered")
