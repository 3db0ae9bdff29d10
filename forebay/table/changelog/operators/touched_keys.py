# SPDX-License-Identifier: Apache-2.0
"""Numbers the keys that a micro-batch touches: the events and entries of a key get the same code (0, 1, 2 …).

Two keys may share a hash. The first key of a hash has ordinal 0; another key with this hash gets the next ordinal,
which its entries keep.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.table.changelog.operators.equality import equal_rows, row_keys
from forebay.table.changelog.operators.events import Events
from forebay.table.changelog.state.segments import Ints
from forebay.table.changelog.state.snapshot import Entries

KEY: Final = 65_536
"""The factor of the key's ordinal in `ORDINAL`."""


@dataclass(frozen=True)
class TouchedKeys:
    """Events and entries of the touched keys. Members are numbered: entries first, then events.

    Args:
        events: The events.
        entries: The entries of their keys, and of keys that expire.
        codes: The code of the key of each member.
        hashes: The key hash of each code.
        ordinals: The ordinal of the key of each code.
    """

    events: Events
    entries: Entries
    codes: Ints
    hashes: Ints
    ordinals: Ints

    def __len__(self) -> int:
        """The number of codes."""
        return len(self.hashes)

    def take(self, members: Ints, names: tuple[str, ...]) -> list[pa.Array]:
        """Return the payload columns `names` of some members, in the order of `members`."""
        stored = members < len(self.entries)
        if stored.all():
            return self.entries.take(members, self.events.layout.fields(names))
        arriving = [
            column.take(pa.array(members[~stored] - len(self.entries))) for column in self.events.columns(names)
        ]
        if not stored.any():
            return arriving
        kept = self.entries.take(members[stored], self.events.layout.fields(names))
        places = pa.array(mixed_places(stored))
        return [pa.concat_arrays([one, other]).take(places) for one, other in zip(kept, arriving, strict=True)]

    def orders(self, members: Ints, stored: Sequence[pa.Array], arriving: Sequence[pa.Array]) -> list[pa.Array]:
        """Return the ordering columns of some members. `stored` has those of all entries, `arriving` of all events."""
        places = pa.array(members)
        return [pa.concat_arrays([one, other]).take(places) for one, other in zip(stored, arriving, strict=True)]


def mixed_places(first: npt.NDArray[np.bool_]) -> Ints:
    """Return the new index of each element if the elements with True are moved before the others."""
    places = np.empty(len(first), np.int64)
    places[first] = np.arange(first.sum())
    places[~first] = np.arange(first.sum(), len(first))
    return places


def touched_keys(events: Events, entries: Entries) -> TouchedKeys:
    """Return events and entries with a code for each key. Keys with equal hashes are told apart by their columns."""
    stored = len(entries)
    hashes, codes = np.unique(np.concatenate([entries.key_hashes, events.key_hashes]), return_inverse=True)
    codes = codes.astype(np.int64)
    found = TouchedKeys(events, entries, codes, hashes, np.zeros(len(hashes), np.int64))
    entry_keys = entries.ordinals // KEY
    # If all key ordinals are 0, all entries of a hash have one key, so only the first entry of each hash is compared.
    if not entry_keys.any():
        spoken = np.concatenate([_firsts(codes[:stored]), np.arange(stored, len(codes))])
        leaders = np.full(len(hashes), -1)
        leaders[codes[spoken[::-1]]] = spoken[::-1]  # the first member of each key
        others = spoken[spoken != leaders[codes[spoken]]]
        if not len(others):
            return found
        names = events.layout.keys
        equal = equal_rows(found.take(others, names), found.take(leaders[codes[others]], names))
        if equal.all():
            return found
    return _told_apart(found, entry_keys)


def _firsts(codes: Ints) -> Ints:
    """Return the index of the first entry of each key; entries are sorted by key hash."""
    if not len(codes):
        return np.empty(0, np.int64)
    return np.flatnonzero(np.concatenate([[True], codes[1:] != codes[:-1]]))


def _told_apart(found: TouchedKeys, entry_keys: Ints) -> TouchedKeys:
    """Give keys with equal hashes codes of their own. Rare, so key by key in Python."""
    stored = len(found.entries)
    keys = row_keys(found.take(np.arange(len(found.codes)), found.events.layout.keys))
    known: dict[tuple[int, Hashable], int] = {}
    hashes: list[int] = []
    ordinals: list[int] = []
    of_hash: dict[int, int] = {}
    codes = np.empty(len(keys), np.int64)
    # Entries first, then events by their keys: a replay with the events in another order gives the same ordinals.
    for member, key in sorted(enumerate(keys), key=lambda one: (one[0] >= stored, repr(one[1]))):
        key_hash = int(found.hashes[found.codes[member]])
        code = known.get((key_hash, key))
        if code is None:
            ordinal = int(entry_keys[member]) if member < stored else of_hash.get(key_hash, 0)
            of_hash[key_hash] = max(of_hash.get(key_hash, 0), ordinal + 1)
            code = known[key_hash, key] = len(hashes)
            hashes.append(key_hash)
            ordinals.append(ordinal)
        codes[member] = code
    return TouchedKeys(found.events, found.entries, codes, np.array(hashes, np.int64), np.array(ordinals, np.int64))
