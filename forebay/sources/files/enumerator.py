# SPDX-License-Identifier: Apache-2.0
"""The enumerator of a bounded read of files: lists them, and cuts big files into slices."""

from __future__ import annotations

import itertools
import logging
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import overload

from forebay.formats.base import FileFormat, even_borders
from forebay.framework.discovery import OPEN_COST, Discovered, DiscoveryEnumerator
from forebay.framework.split import Split
from forebay.sources.files.file_index import FileIndex
from forebay.sources.files.scan import FileScan
from forebay.sources.files.schema import adds_metadata
from forebay.sources.files.split import FileSplit, offset_and_rows
from forebay.stores.file_status import sizes_of

_log = logging.getLogger(__name__)


class FileEnumerator(DiscoveryEnumerator):
    """Creates one split for each file, and cuts slices at positions that the file format allows.

    Args:
        source: The file source.
        listing: The listing that the first discovery uses; None = the first discovery lists the files.
    """

    def __init__(self, source: FileScan, listing: FileIndex | None = None) -> None:
        self._source = source
        self._listing = listing
        self._left_out = 0

    @cached_property
    def _format(self) -> FileFormat:
        # Not in the constructor, which must not block: this may list files.
        return self._source.format()

    def discover(self, known: Mapping[str, Split], first: bool) -> Discovered:
        """Return all non-empty files, sorted by path. Reuse the listing of the schema inference if there is one."""
        index, self._listing = self._listing or self._source.list(), None
        if index.files:
            _ = self._format  # raises at planning if the format is unknown or an option is wrong
        self._warn_left_out(index)
        return Discovered(ListedSplits(index))

    def _warn_left_out(self, index: FileIndex) -> None:
        warned, self._left_out = self._left_out, len(index.left_out)
        # In a stream, the first partition directory may appear late; the files outside it are left out from then on.
        if self._left_out > warned:
            _log.warning(
                "%d files are not read, as in Spark, because they are outside the partition directories or in nested "
                "directories, such as %s; set recursiveFileLookup=true to read them",
                len(index.left_out),
                index.left_out[0],
            )

    def size(self, split: Split) -> int | None:
        """Return the size of a file or slice in bytes; for a file above `maxPartitionBytes`, `OPEN_COST` is added."""
        if not isinstance(split, FileSplit):
            return None
        if split.weight is not None:
            return split.weight
        # OPEN_COST makes the framework ask for slices of a small file that exceeds maxPartitionBytes.
        return split.size + (OPEN_COST if split.size > self._source.max_partition_bytes else 0)

    def slices(self, split: Split, count: int) -> Sequence[Split]:
        """Cut a file, or its part in a micro-batch, into about `count` slices of at most `maxPartitionBytes`."""
        if not isinstance(split, FileSplit):
            return [split]
        start, end = bounds(split)
        if split.position not in (None, start) or split.end not in (None, end):
            return [split]  # the split begins or ends inside a block, which must not be cut
        stored = self._source.stored(split.status)
        size = self._bytes(split)
        target = max(1, min(-(-size // max(1, count)), self._source.max_partition_bytes))
        if target >= size:
            return [split]
        whole = start == 0 and end is None
        if whole or self._format.counts_rows:
            borders = self._format.borders(stored, target)
        else:
            borders = [start + cut for cut in even_borders(size, target)] if self._format.sliceable(stored) else []
        cuts = [start, *(cut for cut in borders if start < cut and (end is None or cut < end)), end]
        if len(cuts) == 2:
            return [split]
        # Only if `_metadata` is read: the planner can join slices only if they differ in nothing but their borders.
        with_block = whole and adds_metadata(self._source.schema())
        shares = [size * number // (len(cuts) - 1) for number in range(len(cuts))]
        return [
            replace(
                split,
                position=before,
                end=after,
                weight=last - first,
                block=(first, last - first) if with_block else None,
            )
            for (before, after), (first, last) in zip(itertools.pairwise(cuts), itertools.pairwise(shares), strict=True)
        ]

    def _bytes(self, split: FileSplit) -> int:
        """Return the maximum number of bytes from the split's position to its end, without reading the file."""
        return split.size


def bounds(split: FileSplit) -> tuple[int, int | None]:
    """Return the positions in the file where the split begins and ends, ignoring rows read within a block.

    The end None is the end of the file.
    """
    return offset_and_rows(split.position)[0], split.end if isinstance(split.end, int) else None


# -- The splits of a bounded read, created from a listing on access.


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
