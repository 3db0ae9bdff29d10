# SPDX-License-Identifier: Apache-2.0
"""What a stream remembers of the splits it has read to their end, so that no discovery brings them again (S15)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, overload

from forebay.framework.digests import SplitDigests
from forebay.framework.split import Json, Split

_SEGMENT: Final = "\0"
"""Begins the id of an entry that is a segment of digests, and no split."""


class DoneSplits(Mapping[str, Split]):
    """Splits that ended, by id, as they were at their end; built anew only when one is looked at.

    As a mapping it holds whole splits. Those that were condensed are in `digests`, and nowhere else.

    Called on the planning thread; a discovery may read it meanwhile on its own thread, and then it is not changed.

    Args:
        split_class: Rebuilds the splits.
        entries: `[id, fields]` of each, as `entries()` gave them.
        digests: Recognises those that are no longer kept whole; all that is in it is replaced.
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
        """The splits that were condensed."""
        self.digests.load([])
        self.load(entries)
        self.added: list[str] = []
        """Ids that came since `mark_written` was called last."""
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
        """How many splits are remembered, also those that were condensed."""
        return len(self._fields) + len(self.digests)

    @property
    def forgotten(self) -> list[str]:
        """Ids that went since `mark_written` was called last, those of segments of digests too."""
        return [*self._forgotten, *(_SEGMENT + name for name in self.digests.dropped)]

    def ids(self) -> list[str]:
        """Return the ids of all entries: of splits, and of segments of digests."""
        return [*self._fields, *(_SEGMENT + name for name in self.digests.entries())]

    def holds(self, entry_id: str) -> bool:
        """Whether there is an entry of this id."""
        return entry_id in self._fields or self.digests.holds(entry_id.removeprefix(_SEGMENT))

    def load(self, entries: Iterable[Sequence[Any]]) -> None:
        """Take entries back from where they were written to."""
        for entry in entries:
            self._fields[str(entry[0])] = entry[1] if len(entry) > 1 else {}

    def load_digests(self) -> None:
        """Move the segments of digests to where they belong, once all entries are loaded.

        Raises:
            ValueError: One is damaged.
        """
        found = [self._fields.pop(one) for one in list(self._fields) if one.startswith(_SEGMENT)]
        if found:
            self.digests.load([[one.get("until"), one.get("splits"), one.get("text")] for one in found])

    def condense(self) -> None:
        """Keep digests in place of the splits that ended, but for those just now: the author hears of these later."""
        just_now = set(self.added)
        self.drop(self.digests.add(self[one] for one in list(self._fields) if one not in just_now))

    def drop(self, ids: Iterable[str]) -> None:
        """Take entries out again, as `forget` once did."""
        for split_id in ids:
            self._fields.pop(split_id, None)

    def add(self, splits: Iterable[Split]) -> None:
        """Remember splits that ended."""
        for split in splits:
            fields = {name: value for name, value in split.to_json().items() if name not in ("id", "position")}
            if fields["v"] == 1:
                del fields["v"]
            self._fields[split.id] = fields
            self.added.append(split.id)

    def forget(self, below_horizon: Callable[[Split], bool]) -> None:
        """Forget what no discovery can bring again, but not what ended just now: the author hears of that later."""
        just_now = set(self.added)
        gone = [one for one in self._fields if one not in just_now and below_horizon(self[one])]
        self.drop(gone)
        self._forgotten.extend(gone)

    def entries(self, ids: Iterable[str] | None = None) -> list[Json]:
        """Return the entries of these ids, or of all, in order of the ids."""
        fields = self._fields
        if ids is not None:
            ids = list(ids)
            if any(one.startswith(_SEGMENT) for one in ids):
                fields = fields | {_SEGMENT + name: entry for name, entry in self.digests.entries().items()}
        wanted = fields if ids is None else (split_id for split_id in ids if split_id in fields)
        return [[split_id, dict(fields[split_id])] if fields[split_id] else [split_id] for split_id in sorted(wanted)]

    def mark_written(self) -> None:
        """Begin to count changes anew: what there is now has been written."""
        self.added, self._forgotten = [], []
        self.digests.dropped.clear()


class Ended(Sequence[Split]):
    """Splits that ended, for who wants to hear of them: those remembered are built only when they are looked at.

    Args:
        done: What is remembered; forgetting meanwhile is not allowed, remembering more is.
        more: Splits that ended after them.
    """

    def __init__(self, done: DoneSplits, more: Sequence[Split] = ()) -> None:
        self._done = done
        self._ids = list(done)
        self._more = more

    def __len__(self) -> int:
        return len(self._ids) + len(self._more)

    @overload
    def __getitem__(self, index: int) -> Split: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Split]: ...
    def __getitem__(self, index: int | slice) -> Split | Sequence[Split]:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        remembered = len(self._ids)
        return self._done[self._ids[index]] if index < remembered else self._more[index - remembered]
