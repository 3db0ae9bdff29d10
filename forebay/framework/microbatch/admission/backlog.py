# SPDX-License-Identifier: Apache-2.0
"""What there is to read, of which a micro-batch may take little: what is not looked at is not planned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import overload

from forebay.framework.microbatch.offsets.offset import Planned, To, Whole
from forebay.framework.split import Split


class Backlog(Sequence[Planned]):
    """Splits with something to read, planned as far as they go. For one thread at a time.

    Args:
        entries: In order; a split that is not planned is read to its own end, and is planned when it is looked at.
    """

    def __init__(self, entries: Iterable[Split | Planned]) -> None:
        self._entries = list(entries)

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, index: int) -> Planned: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Planned]: ...
    def __getitem__(self, index: int | slice) -> Planned | Sequence[Planned]:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(len(self)))]
        entry = self._entries[index]
        if isinstance(entry, Split):
            entry = self._entries[index] = Planned(entry, Whole.WHOLE)
        return entry

    def __iter__(self) -> Iterator[Planned]:
        return map(self.__getitem__, range(len(self)))

    def ends(self) -> Mapping[str, To]:
        """Return how far each split is planned, by id; those without an end, which have none to be held to, not."""
        ends = ((one.id, Whole.WHOLE) if isinstance(one, Split) else (one.split.id, one.to) for one in self._entries)
        return {split_id: to for split_id, to in ends if to is not None}
