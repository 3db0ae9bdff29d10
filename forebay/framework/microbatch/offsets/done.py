# SPDX-License-Identifier: Apache-2.0
"""What a stream remembers of the splits it has read to their end, so that no discovery brings them again (S15)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

from forebay.framework.split import Json, Split


class DoneSplits(Mapping[str, Split]):
    """Splits that ended, by id, as they were at their end; built anew only when one is looked at.

    Called on the planning thread; a discovery may read it meanwhile on its own thread, and then it is not changed.

    Args:
        split_class: Rebuilds the splits.
        entries: `[id, fields]` of each, as `entries()` gave them.
    """

    def __init__(self, split_class: type[Split], entries: Iterable[Sequence[Any]] = ()) -> None:
        self._split_class = split_class
        self._fields: dict[str, Mapping[str, Any]] = {}
        self.load(entries)
        self.added: list[str] = []
        """Ids that came since `settle` was called last."""
        self.forgotten: list[str] = []
        """Ids that went since then."""

    def __getitem__(self, split_id: str) -> Split:
        return self._split_class.from_json({"v": 1, **self._fields[split_id], "id": split_id})

    def __contains__(self, split_id: object) -> bool:
        return split_id in self._fields

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def load(self, entries: Iterable[Sequence[Any]]) -> None:
        """Take entries back from where they were written to."""
        for entry in entries:
            self._fields[str(entry[0])] = entry[1] if len(entry) > 1 else {}

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
        self.forgotten.extend(gone)

    def entries(self, ids: Iterable[str] | None = None) -> list[Json]:
        """Return the entries of these ids, or of all, in order of the ids."""
        wanted = self._fields if ids is None else (split_id for split_id in ids if split_id in self._fields)
        return [
            [split_id, dict(self._fields[split_id])] if self._fields[split_id] else [split_id]
            for split_id in sorted(wanted)
        ]

    def settle(self) -> None:
        """Begin to count changes anew: what there is now has been written."""
        self.added, self.forgotten = [], []


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
