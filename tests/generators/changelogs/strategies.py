# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies of changelogs."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st

from changelogs.cases import Act, cut, legal, many_live, strict, unnumbered, upserts
from changelogs.reference import Change, Select

MAKERS = {"strict": strict, "many_live": many_live, "upserts": upserts}

_ACT = st.builds(Act, st.integers(0, 2), st.none() | st.integers(0, 3), st.integers(0, 1))
ACTS = st.lists(_ACT, max_size=16)
PLACES = st.lists(st.integers(0, 40), max_size=6)


class Case(NamedTuple):
    """A changelog in its true order, and as it arrives: shuffled, in micro-batches, with or without its order."""

    changes: list[Change]
    batches: list[list[Change]]


@st.composite
def arrivals(draw: st.DrawFn, kind: str, path: Select | None, *, ordered: bool = False) -> Case:
    """Draw a changelog and its arrival.

    Args:
        draw: Hypothesis's.
        kind: The name of a maker.
        path: What keeps its order; None allows any order.
        ordered: Whether the changes that arrive know their true order.
    """
    changes = MAKERS[kind](draw(ACTS))
    if path is None:
        shuffled = draw(st.permutations(changes))
    else:
        shuffled = legal(changes, path, draw(st.lists(st.integers(0, 5), max_size=20)))
    return Case(changes, cut(shuffled if ordered else unnumbered(shuffled), draw(PLACES)))
