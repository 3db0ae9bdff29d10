# SPDX-License-Identifier: Apache-2.0
"""Foundry's rules for keys, written down a second time over plain column names, and random chains of transformations.

`forebay.keys` follows declarations through metadata; this follows names. The two agree, or one of them is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import strategies as st

COLUMNS = ("a", "b", "c", "f")
FLAG = "f"


class Step(NamedTuple):
    """A transformation: its name, the columns that it works on, and a new name."""

    what: str
    columns: tuple[str, ...] = ()
    name: str = ""


@dataclass
class Reference:
    """The key of a table with the columns `columns`; `lenient` is Foundry's rule, otherwise ours (K14)."""

    lenient: bool
    columns: list[str] = field(default_factory=lambda: list(COLUMNS))
    partition: list[str] = field(default_factory=list)
    primary: list[str] | None = None
    deleted: str | None = None

    def apply(self, step: Step) -> None:
        """Apply a step of any kind."""
        getattr(self, step.what)(step)

    def rename(self, step: Step) -> None:
        (old,) = step.columns

        def new(names: Iterable[str]) -> list[str]:
            return [step.name if name == old else name for name in names]

        self.columns, self.partition = new(self.columns), new(self.partition)
        self.primary = None if self.primary is None else new(self.primary)
        self.deleted = step.name if self.deleted == old else self.deleted

    def drop(self, step: Step) -> None:
        self.columns.remove(step.columns[0])
        self._lose(step.columns[0])

    def overwrite(self, step: Step) -> None:
        self._lose(step.columns[0])

    def keep(self, step: Step) -> None:
        """Rows come and go; the key stays."""

    def key(self, step: Step) -> None:
        self.partition, self.primary, self.deleted = list(step.columns), None, None

    def cdc(self, step: Step) -> None:
        self.partition, self.primary, self.deleted = list(step.columns), list(step.columns), step.name or None

    def stateful(self, step: Step) -> None:
        self.primary = self.deleted = None

    def function(self, step: Step) -> None:
        self.partition, self.primary, self.deleted = [], None, None

    def _lose(self, name: str) -> None:
        self.partition = [one for one in self.partition if one != name]
        if self.primary is None or name not in (*self.primary, self.deleted):
            return
        left = [one for one in self.primary if one != name] if self.lenient else []
        self.primary = left or None
        self.deleted = self.deleted if left and self.deleted != name else None


@st.composite
def chains(draw: st.DrawFn, kinds: tuple[str, ...], max_size: int = 6) -> list[Step]:
    """Return steps that can be applied one after the other; the first one sets a key."""
    table = Reference(lenient=True)
    steps: list[Step] = []
    for place in range(draw(st.integers(1, max_size))):
        what = "cdc" if place == 0 else draw(st.sampled_from(kinds))
        step = _step(draw, what, table.columns, f"n{place}")
        if step is not None:
            table.apply(step)
            steps.append(step)
    return steps


def _step(draw: st.DrawFn, what: str, columns: list[str], new: str) -> Step | None:
    others = [name for name in columns if name != FLAG]
    if what in ("key", "cdc"):
        chosen = draw(st.lists(st.sampled_from(others), min_size=1, max_size=2, unique=True)) if others else []
        flag = FLAG if what == "cdc" and FLAG in columns and draw(st.booleans()) else ""
        return Step(what, tuple(chosen), flag) if chosen else None
    if what in ("drop", "rename", "overwrite"):
        names = columns if what == "drop" else others  # the flag keeps its name and type
        return Step(what, (draw(st.sampled_from(names)),), new) if len(names) > 1 else None
    return Step(what)
