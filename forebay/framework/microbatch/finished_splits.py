# SPDX-License-Identifier: Apache-2.0
"""Remembers the splits that a stream has read to their end, so that no discovery adds them again (S15)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar, overload

from forebay.framework.digests import SplitDigests
from forebay.framework.microbatch.offset import split_fields
from forebay.framework.split import Json, Split

T = TypeVar("T")

_SEGMENT: Final = "\0"
"""Prefix of the id of an entry that is a segment of digests instead of a split."""


class FinishedSplits(Mapping[str, Split]):
    """Finished splits by id, each rebuilt only when it is accessed.

    The mapping holds whole splits. Splits that were condensed to digests are in `digests` only. Both are changed on
    the planning thread only, and never while a discovery reads them on another thread.

    Args:
        split_class: The class of the splits.
        entries: `[id, fields]` of each split, as returned by `entries()`.
        digests: The enumerator's digests, which recognise condensed splits; emptied by the constructor. None = there
            are none.
    """

    def __init__(
        self,
        split_class: type[Split],
        entries: Iterable[Sequence[Any]] = (),
        digests: SplitDigests | None = None,
    ) -> None:
        self._split_class = split_class
        self._fields: dict[str, Mapping[str, Any]] = {}
        self.digests = SplitDigests() if digests is None else digests
        self.digests.load([])
        self.load(entries)
        self.added: list[str] = []
        """Ids added since the last `mark_written`."""
        self._forgotten: list[str] = []

    def __getitem__(self, split_id: str) -> Split:
        return self._split_class.from_json({"v": 1, **self._fields[split_id], "id": split_id})

    def __contains__(self, split_id: object) -> bool:
        return split_id in self._fields

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    @property
    def count(self) -> int:
        """The number of remembered splits, including condensed ones."""
        return len(self._fields) + len(self.digests)

    @property
    def forgotten(self) -> list[str]:
        """Ids removed since the last `mark_written`, including those of digest segments."""
        return [*self._forgotten, *(_SEGMENT + name for name in self.digests.dropped)]

    def ids(self) -> list[str]:
        """Return the ids of all entries: splits and digest segments."""
        return [*self._fields, *(_SEGMENT + name for name in self.digests.entries())]

    def holds(self, entry_id: str) -> bool:
        """Return whether there is an entry, a split or a digest segment, with this id."""
        return entry_id in self._fields or self.digests.holds(entry_id.removeprefix(_SEGMENT))

    def load(self, entries: Iterable[Sequence[Any]]) -> None:
        """Add splits from entries as the method `entries` returns them."""
        for entry in entries:
            self._fields[str(entry[0])] = entry[1] if len(entry) > 1 else {}

    def load_digests(self) -> None:
        """Move the entries that are digest segments into `digests`. Called after all entries were added by `load`.

        Raises:
            ValueError: A segment is damaged.
        """
        segments = [self._fields.pop(key) for key in list(self._fields) if key.startswith(_SEGMENT)]
        if segments:
            self.digests.load(
                [[segment.get("until"), segment.get("splits"), segment.get("text")] for segment in segments]
            )

    def condense(self) -> None:
        """Replace splits by digests, except those added since `mark_written`: `finished()` still gets these whole."""
        just_now = set(self.added)
        self.drop(self.digests.add(self[split_id] for split_id in list(self._fields) if split_id not in just_now))

    def drop(self, ids: Iterable[str]) -> None:
        """Remove the splits with these ids."""
        for split_id in ids:
            self._fields.pop(split_id, None)

    def add(self, splits: Iterable[Split]) -> None:
        """Remember finished splits."""
        for split in splits:
            self._fields[split.id] = split_fields(split)
            self.added.append(split.id)

    def forget(self, below_horizon: Callable[[Split], bool]) -> None:
        """Remove the splits below the horizon, which no discovery can find again.

        Splits added since `mark_written` stay: `finished()` still gets these.
        """
        just_now = set(self.added)
        gone = [split_id for split_id in self._fields if split_id not in just_now and below_horizon(self[split_id])]
        self.drop(gone)
        self._forgotten.extend(gone)

    def entries(self, ids: Iterable[str] | None = None) -> list[Json]:
        """Return the entries with these ids, sorted by id; without `ids`, the entries of all whole splits."""
        fields = self._fields
        if ids is not None:
            ids = list(ids)
            if any(split_id.startswith(_SEGMENT) for split_id in ids):
                fields = fields | {_SEGMENT + name: entry for name, entry in self.digests.entries().items()}
        split_ids = fields if ids is None else (split_id for split_id in ids if split_id in fields)
        return [
            [split_id, dict(fields[split_id])] if fields[split_id] else [split_id] for split_id in sorted(split_ids)
        ]

    def mark_written(self) -> None:
        """Clear the lists of changes. Called when an offset that contains the changes was committed."""
        self.added, self._forgotten = [], []
        self.digests.dropped.clear()


class LazySequence(Sequence[T]):
    """A sequence whose items are built only when they are accessed."""

    @abstractmethod
    def item(self, index: int) -> T:
        """Return the item at an index that is not negative."""

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return [self.item(number) for number in range(*index.indices(len(self)))]
        return self.item(range(len(self))[index])

    def __iter__(self) -> Iterator[T]:
        return map(self.item, range(len(self)))


class EndedSplits(LazySequence[Split]):
    """A sequence of finished splits for an enumerator: those in `done`, then those in `more`.

    Nothing may be removed from `done` while the sequence is used.
    """

    def __init__(self, done: FinishedSplits, more: Sequence[Split] = ()) -> None:
        self._done = done
        self._ids = list(done)
        self._more = more

    def __len__(self) -> int:
        return len(self._ids) + len(self._more)

    def item(self, index: int) -> Split:
        """Return the split at an index."""
        remembered = len(self._ids)
        return self._done[self._ids[index]] if index < remembered else self._more[index - remembered]
