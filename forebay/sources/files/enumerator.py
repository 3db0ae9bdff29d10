# SPDX-License-Identifier: Apache-2.0
"""Lists the files, and cuts the big ones."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from forebay.formats.base import FileFormat
from forebay.framework.discovery import OPEN_COST, Discovered, DiscoveryEnumerator
from forebay.framework.split import Split
from forebay.sources.files.columns import METADATA
from forebay.sources.files.listing.file_index import FileIndex
from forebay.sources.files.scan import FileScan
from forebay.sources.files.split import FileSplit

_log = logging.getLogger(__name__)


class FileEnumerator(DiscoveryEnumerator):
    """One split per file; slices at the format's borders.

    Args:
        source: What to list.
    """

    def __init__(self, source: FileScan) -> None:
        self._source = source
        self._told_of = 0

    @cached_property
    def _format(self) -> FileFormat:
        # Not in the constructor, which must not block: it may take a listing.
        return self._source.format()

    def discover(self, known: Mapping[str, Split], first: bool) -> Discovered:
        """List all files, by path; empty ones hold no rows, whatever their format."""
        index = self._source.list()
        if index.files:
            _ = self._format  # files of no one format, and wrong options, are errors of planning
        self._warn_left_out(index)
        names = index.partition_schema.names
        return Discovered(
            [
                FileSplit(
                    file.path,
                    0,
                    size=file.size,
                    modified_at=file.modified_at,
                    etag=file.etag,
                    partitions=tuple(zip(names, texts, strict=True)),
                )
                for file, texts in zip(index.files, index.partition_texts, strict=True)
                if file.size
            ]
        )

    def _warn_left_out(self, index: FileIndex) -> None:
        told, self._told_of = self._told_of, len(index.left_out)
        # A stream may meet its first partition directory late: what comes to be left out then must not be silent.
        if self._told_of > told:
            _log.warning(
                "%d files are not read, for Spark would not either: they lie beside the partition directories or "
                "deeper than the path, such as %s; set recursiveFileLookup=true to read them",
                len(index.left_out),
                index.left_out[0],
            )

    def size(self, split: Split) -> int | None:
        """Return the bytes of the file or slice."""
        if not isinstance(split, FileSplit):
            return None
        if split.weight is not None:
            return split.weight
        # The cost of opening makes the framework ask for slices of a file that is small, but too big for the user.
        return split.size + (OPEN_COST if split.size > self._source.max_partition_bytes else 0)

    def slices(self, split: Split, count: int) -> Sequence[Split]:
        """Cut a file at about equal borders, none larger than `maxPartitionBytes`."""
        if not isinstance(split, FileSplit) or split.position or split.end is not None:
            return [split]
        stored = self._source.stored(split.status)
        target = max(1, min(-(-split.size // max(1, count)), self._source.max_partition_bytes))
        if target >= split.size or not self._format.sliceable(stored):
            return [split]
        cuts: list[int | None] = [0, *self._format.borders(stored, target), None]
        if len(cuts) == 2:
            return [split]
        shown = METADATA in self._source.schema().names
        shares = [split.size * number // (len(cuts) - 1) for number in range(len(cuts))]
        return [
            replace(
                split,
                position=start,
                end=end,
                weight=after - before,
                # Only where it is shown: slices that differ in nothing but their borders can be joined again.
                block=(before, after - before) if shown else None,
            )
            for (start, end), (before, after) in zip(itertools.pairwise(cuts), itertools.pairwise(shares), strict=True)
        ]
