# SPDX-License-Identifier: Apache-2.0
"""The splits of a bounded read, created from a listing on access."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import overload

from forebay.sources.files.listing.file_index import FileIndex
from forebay.sources.files.split import FileSplit
from forebay.stores.file_table import sizes_of


class ListedSplits(Sequence[FileSplit]):
    """One split for each non-empty file of a listing, created at each access: a million stored splits take 600 MB."""

    def __init__(self, index: FileIndex) -> None:
        self._files = index.files
        self._texts = index.partition_texts
        self._names = index.partition_schema.names
        self._places: Sequence[int] = range(len(index.files))
        if not all(sizes_of(index.files)):
            self._places = array("Q", (place for place, size in enumerate(sizes_of(index.files)) if size))

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> FileSplit: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[FileSplit]: ...

    def __getitem__(self, index: int | slice) -> FileSplit | Sequence[FileSplit]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = self._places[index]
        return FileSplit.of(self._files[place], tuple(zip(self._names, self._texts[place], strict=True)))

    def __iter__(self) -> Iterator[FileSplit]:
        return map(self.__getitem__, range(len(self)))
