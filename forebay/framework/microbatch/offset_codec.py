# SPDX-License-Identifier: Apache-2.0
"""Keeps the finished splits of a query (S15), and writes and reads its offsets, whose JSON is that of `offset.py`."""

from __future__ import annotations

import logging
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeVar, overload

from forebay.errors import ConfigurationError
from forebay.framework.digests import SplitDigests
from forebay.framework.microbatch.offset import (
    DIGESTS,
    Offset,
    Planned,
    canonical,
    check_head,
    compact,
    damaged,
    dump_offset,
    dump_planned,
    expand,
    length,
    load_offset,
    split_fields,
)
from forebay.framework.source import Source
from forebay.framework.split import Json, Split

# -- Remembers the splits that a stream has read to their end, so that no discovery adds them again (S15).

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


# -- Writes and reads the offsets of a query: `OffsetCodec`, and `InlineOffsetCodec`, which needs no other storage.


_log = logging.getLogger(__name__)

MOST_INLINE: Final = 64 << 10
"""Maximum characters of the finished splits in an offset: Spark writes them with every micro-batch."""

MOST_OFFSET: Final = 96 << 10
"""Maximum characters of an offset without digests: an idle query sends it up to 90 times a second."""

MOST_DIGESTS: Final = 6 << 20
"""Maximum characters of digests in an offset: Spark's driver keeps about 120 of the last offsets in memory."""

_MOST_WHOLE: Final = 16 << 10
"""Maximum characters of finished splits that are stored whole, if digests can replace them."""

_IDLE: Final = 2_000_000
"""Maximum characters of digests that an idle stream transfers in a second."""

_MOST_PLAN: Final = 24 << 10
"""Maximum characters of the splits to read in an offset, if the planner may choose their number."""

_GUESS: Final = 400
"""Maximum splits of a micro-batch until the length of an encoded offset is known."""

_STEP: Final = 16
"""Number of splits that are encoded and measured at a time."""

_GROWS: Final = 1.25
"""Factor by which the base 85 encoding lengthens compressed data."""


class OffsetCodec(ABC):
    """Writes and reads the offsets of one query. Called on the planning thread."""

    @abstractmethod
    def write(self, offset: Offset, done: FinishedSplits) -> dict[str, Json]:
        """Return an offset and the finished splits as JSON, for Spark's offset log. May block.

        Raises:
            ConfigurationError: The splits do not fit into an offset.
            RetriableError: The store at `stateLocation` did not answer.
        """

    @abstractmethod
    def read(self, data: Any) -> Offset:  # noqa: ANN401 - any JSON value of any checkpoint
        """Return the offset from the JSON that `write` returned, with all its splits to read. May block.

        Raises:
            ConfigurationError: The offset is damaged, of another source, or of a newer release of forebay.
        """

    @abstractmethod
    def read_done(self, data: Any) -> FinishedSplits:  # noqa: ANN401 - as above
        """Return the splits that finished before the micro-batch of this offset. May block."""

    def room(self, available: Sequence[Planned] = ()) -> int | None:
        """Return how many splits a micro-batch may read so that its offset can hold them; None = any number.

        Args:
            available: The splits to choose from, in order; if empty, the result is an estimate.
        """
        return None

    def patience(self) -> float:
        """Return the seconds that a call of `latest` may wait before it reports no data, to bound the rate of calls."""
        return 0.0

    def batch_committed(self, offset: Offset) -> None:
        """Delete stored state that only micro-batches long before `offset` need. Does not raise."""


class InlineOffsetCodec(OffsetCodec):
    """Keeps all state of the stream in its offsets, and raises an error if an offset would be too long (S15).

    If the user then sets `stateLocation`, a `SpillingOffsetCodec` continues from the last offset that was written.

    Args:
        source: The source.
        digests: The enumerator's digests of finished splits, which can replace a long list of them; None = it has none.
    """

    def __init__(self, source: Source, digests: SplitDigests | None = None) -> None:
        self._source = source
        self._digests = digests
        self._warned = False
        self._guess = _GUESS

    def write(self, offset: Offset, done: FinishedSplits) -> dict[str, Json]:
        """Return the offset as JSON; long lists in it are compressed, and many finished splits become digests."""
        data = dump_offset(offset)
        data["splits"] = compact(data["splits"])
        if offset.splits:
            self._guess = max(1, _MOST_PLAN * len(offset.splits) // max(1, length(data["splits"])))
        whole = compact(done.entries())
        if self._digests is not None and length(whole) > _MOST_WHOLE:
            done.condense()
            whole = compact(done.entries())
        if done:
            data["done"] = whole
            self._check(f"the list of {len(done)} finished splits", length(whole), MOST_INLINE)
        self._check(f"the offset with {len(offset.splits)} splits to read", length(data), MOST_OFFSET)
        return dict(sorted((data | self._condensed(done)).items()))

    def read(self, data: Any) -> Offset:  # noqa: ANN401 - as in the base class
        """Return the offset from the JSON that `write` returned.

        Raises:
            ConfigurationError: The offset is damaged, of another source, or was written with `stateLocation`.
        """
        if isinstance(data, dict) and isinstance(data.get("state"), dict):
            raise ConfigurationError(
                "this query keeps its state below stateLocation, but the option is not set",
                source=self._source.name,
                option="stateLocation",
                advice=f"set stateLocation to its earlier value: {data['state'].get('at', 'the same directory')}",
            )
        return load_offset(expanded(data, self._source.name), self._source.name, self._source.split_class)

    def read_done(self, data: Any) -> FinishedSplits:  # noqa: ANN401 - as in the base class
        """Return the finished splits that are stored in the offset, and load its digests."""
        return loaded_done(expanded(data, self._source.name), self._source, self._digests)

    def room(self, available: Sequence[Planned] = ()) -> int:
        """Return how many of the available splits, at least one, fit into an offset by their compressed size."""
        if not available:
            return self._guess
        packer, taken, size, remaining = zlib.compressobj(), 0, 0, iter(available)
        while chunk := list(islice(remaining, _STEP)):
            text = canonical([dump_planned(planned) for planned in chunk])
            size += len(packer.compress(text.encode())) + len(packer.flush(zlib.Z_SYNC_FLUSH))
            if size * _GROWS > _MOST_PLAN:
                break
            taken += len(chunk)
        return max(1, taken)

    def patience(self) -> float:
        """Return seconds in proportion to the length of the digests, because Spark transfers them in each call."""
        return 0.0 if self._digests is None else self._digests.characters / _IDLE

    def _condensed(self, done: FinishedSplits) -> dict[str, Json]:
        """Return the fields of the offset for finished splits that digests have replaced; empty if there are none."""
        if not done.digests:
            return {}
        self._check(f"the list of {done.count} finished splits", done.digests.characters, MOST_DIGESTS)
        return {"v": DIGESTS, "digests": done.digests.dump()}

    def _check(self, what: str, size: int, most: int) -> None:
        """Raise an error if `what` has more than `most` characters; log one warning if it has more than half that."""
        if size > most:
            raise ConfigurationError(
                f"{what} does not fit into an offset: it has {size} characters, and {most} is the maximum",
                source=self._source.name,
                option="stateLocation",
                advice="set stateLocation to a directory for the state of the stream, and restart the query: nothing "
                "is lost or read twice",
            )
        if size > most // 2 and not self._warned:
            self._warned = True
            _log.warning(
                "%s: %s takes %d characters in each offset, more than half of the maximum; set stateLocation before "
                "the maximum is reached",
                self._source.name,
                what,
                size,
            )


def expanded(data: Any, source: str) -> dict[str, Any]:  # noqa: ANN401 - any JSON value, of whatever checkpoint
    """Return the JSON of an offset with its compressed lists expanded. `source` is the name of the source.

    Raises:
        ConfigurationError: The offset is of another source or a newer release, or a list in it is damaged.
    """
    head = check_head(data, source)
    try:
        return {name: expand(value) if name in ("splits", "done") else value for name, value in head.items()}
    except ValueError as error:
        raise damaged(source, str(error)) from error


def loaded_done(head: Mapping[str, Any], source: Source, digests: SplitDigests | None) -> FinishedSplits:
    """Return the finished splits in `head`, an offset from `expanded`.

    Raises:
        ConfigurationError: The finished splits in the offset are damaged.
    """
    done = FinishedSplits(source.split_class, checked_done(head.get("done", []), source.name), digests)
    try:
        done.digests.load(head.get("digests", []))
    except (TypeError, ValueError) as error:
        raise damaged(source.name, str(error)) from error
    return done


def checked_done(entries: Any, source: str) -> list[list[Any]]:  # noqa: ANN401 - any JSON value
    """Check and return `entries`, the stored entries of `FinishedSplits`.

    Raises:
        ConfigurationError: An entry is damaged. Without this check, all splits would be read again.
    """
    valid = isinstance(entries, list) and all(
        isinstance(entry, list)
        and 1 <= len(entry) <= 2
        and isinstance(entry[0], str)
        and (len(entry) == 1 or isinstance(entry[1], dict))
        for entry in entries
    )
    if not valid:
        raise damaged(source, "its list of finished splits is not a list of [id, fields]")
    checked: list[list[Any]] = entries
    return checked
