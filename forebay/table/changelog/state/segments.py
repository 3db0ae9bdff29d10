# SPDX-License-Identifier: Apache-2.0
"""Segments: files of entries in Arrow's IPC format, one record batch each, sorted by key hash and memory-mapped."""

from __future__ import annotations

import hashlib
import io
import mmap
import os
import sys
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import FatalError
from forebay.state.local_state_store import open_regular, private_directory
from forebay.state.state_store import StateStore
from forebay.table.changelog.state.facts import SegmentInfo, damaged

# -- The columns of an entry: one row of the state of one key, with its count.


PREFIX: Final = "__forebay_"
"""The prefix of the state's own columns; no payload column may begin with it."""

KEY_HASH: Final = f"{PREFIX}kh"
"""Long: a 64-bit hash of the key. Segments are sorted by it, and a key is in the shard `key hash mod shards`."""

ROW_HASH: Final = f"{PREFIX}rh"
"""Long: a 64-bit hash of the columns that identify the row within its key."""

ORDINAL: Final = f"{PREFIX}c"
"""Int: tells entries with equal hashes apart: 65,536 * (ordinal of the key) + (ordinal of the row). Nearly always 0."""

COUNT: Final = f"{PREFIX}n"
"""Long: how often the row was added minus how often it was retracted. 0 is a tombstone."""

TOUCHED: Final = f"{PREFIX}t"
"""Long: the time of the row's last event, in microseconds since 1970; only in a state with a time to live."""

ORDER: Final = f"{PREFIX}o"
"""Prefix of the columns that order the rows of a key: `__forebay_o0` …."""

KIND: Final = f"{PREFIX}kind"
"""Byte, only in events: a `RowKind`, or -1 for an unknown word in `_change_type`."""

FIXED: Final = pa.schema(
    [
        pa.field(KEY_HASH, pa.int64(), nullable=False),
        pa.field(ROW_HASH, pa.int64(), nullable=False),
        pa.field(ORDINAL, pa.int32(), nullable=False),
        pa.field(COUNT, pa.int64(), nullable=False),
    ]
)
"""The columns that every entry has."""


def entry_schema(payload: pa.Schema, orders: list[pa.DataType], *, timed: bool) -> pa.Schema:
    """Return the schema of the entries of an operator.

    Args:
        payload: The columns of a row.
        orders: The types of the columns that order the rows of a key.
        timed: Whether entries keep the time of their last event.
    """
    fields = list(FIXED)
    if timed:
        fields.append(pa.field(TOUCHED, pa.int64(), nullable=False))
    fields += [pa.field(f"{ORDER}{place}", kind) for place, kind in enumerate(orders)]
    return pa.schema([*fields, *(pa.field(field.name, field.type) for field in payload)])


Ints = npt.NDArray[np.int64]

ROWS: Final = 1 << 20
"""Maximum entries of a segment."""

BYTES: Final = 64 << 20
"""Maximum bytes of a segment, unless one entry is larger. It bounds the memory of a merge."""

_UNLOAD: Final[int | None] = getattr(mmap, "MADV_DONTNEED", None) if sys.platform == "linux" else None
"""The advice for `madvise` that unmaps pages; None outside Linux, where it need not unmap them."""

_REMEMBERED: Final = 10_000
"""Maximum segments whose successful check a process remembers."""


class Segment:
    """An opened segment. Any thread may use it.

    Args:
        batch: The entries.
        mapping: The mapped file that holds them, if any.
    """

    def __init__(self, batch: pa.RecordBatch, mapping: mmap.mmap | None = None) -> None:
        self.batch = batch
        self.hashes: Ints = batch.column(KEY_HASH).to_numpy()
        self._mapping = mapping

    def unload(self) -> None:
        """Take the pages of the mapped file out of the memory of this process; the next access maps them again.

        Otherwise a large state would count as memory of the process, page by page, until it is all there. The pages
        stay in the page cache, from which mapping 700 MB again costs about a millisecond.
        """
        if self._mapping is not None and _UNLOAD is not None:
            self._mapping.madvise(_UNLOAD)

    def find(self, hashes: Ints) -> tuple[Ints, Ints]:
        """Return the indexes of entries with one of these key hashes, and for each the index of its hash in `hashes`.

        Args:
            hashes: Sorted, without duplicates.
        """
        first, last = np.searchsorted(hashes, self.hashes[[0, -1]], side="left")
        candidates = hashes[first : last + 1]
        left = np.searchsorted(self.hashes, candidates, side="left")
        there = np.flatnonzero(self.hashes[np.minimum(left, len(self.hashes) - 1)] == candidates)
        counts = np.zeros(len(candidates), np.int64)
        counts[there] = np.searchsorted(self.hashes, candidates[there], side="right") - left[there]
        owners = np.repeat(np.arange(len(candidates)), counts)
        starts = np.cumsum(counts) - counts
        places = np.arange(len(owners)) - np.repeat(starts - left, counts)
        return places, owners + first

    def ints(self, name: str) -> Ints:
        """Return an integer column without NULL, as a view of the mapped file."""
        column: Ints = self.batch.column(name).to_numpy()
        return column

    def column(self, field: pa.Field) -> pa.Array:
        """Return a column; all NULL if the segment is older than the column."""
        if self.batch.schema.get_field_index(field.name) < 0:
            return pa.nulls(self.batch.num_rows, field.type)
        return self.batch.column(field.name)

    def take(self, places: Ints, fields: Sequence[pa.Field]) -> list[pa.Array]:
        """Return columns of the entries at `places`; all NULL for a column that is newer than the segment."""
        names = self.batch.schema.names
        known = self.batch.select([field.name for field in fields if field.name in names]).take(pa.array(places))
        return [
            known.column(field.name).cast(field.type) if field.name in names else pa.nulls(len(places), field.type)
            for field in fields
        ]


class SegmentFiles(Protocol):
    """Writes and opens the segments of a state store."""

    def write(self, prefix: str, batch: pa.RecordBatch) -> SegmentInfo:
        """Write sorted entries as a segment, and return its description for the manifest."""

    def open(self, info: SegmentInfo) -> Segment:
        """Return a segment, memory-mapped.

        Raises:
            FatalError: The file is missing or damaged.
        """

    def forget(self, names: Iterable[str]) -> None:
        """Remove this machine's cached copies of segments that were deleted from the store."""


class StoredSegments:
    """Segments of a state store. A local directory is mapped in place; other stores are copied to a local cache.

    Args:
        store: The store.
        verified: Whether a process checks the digest of each segment when it first opens it. Without, it checks the
            digest only when it copies a segment from the store.
    """

    def __init__(self, store: StateStore, *, verified: bool = True) -> None:
        self._store = store
        self._verified = verified

    def write(self, prefix: str, batch: pa.RecordBatch) -> SegmentInfo:
        """See `SegmentFiles.write`. The name is random, so no two attempts write the same file."""
        sink = io.BytesIO()
        with pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
        data = sink.getvalue()  # no copy, as that of an Arrow buffer would be
        hashes = batch.column(KEY_HASH).to_numpy()
        timed = batch.schema.get_field_index(TOUCHED) >= 0
        info = SegmentInfo(
            name=f"{prefix}{uuid.uuid4().hex}.arrow",
            rows=batch.num_rows,
            size=len(data),
            digest=hashlib.sha256(data).hexdigest(),
            first=int(hashes[0]),
            last=int(hashes[-1]),
            oldest=int(batch.column(TOUCHED).to_numpy().min()) if timed else None,
            tombstones=int((batch.column(COUNT).to_numpy() == 0).sum()),
        )
        self._store.put_if_absent(info.name, data)
        return info

    def open(self, info: SegmentInfo) -> Segment:
        """See `SegmentFiles.open`. A process checks the digest of a segment when it first opens it.

        The file is unmapped when the last array of the segment is freed.
        """
        first = self._verified and (self._store.location, info) not in _verified
        path = self._local_path(info)
        try:
            with open(open_regular(path), "rb") as file:
                mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise damaged(info.name, "it does not exist") from None
        except ValueError:
            raise damaged(info.name, "it is empty") from None
        try:
            segment = Segment(entries_of(pa.py_buffer(mapping), info, full=first), mapping)
        except ValueError as error:
            _verified.pop((self._store.location, info), None)
            raise damaged(info.name, str(error)) from error
        if first:
            segment.unload()
        return segment

    def check(self, info: SegmentInfo) -> None:
        """Check a segment as it is in the store now, whatever this process and this machine know of it.

        Raises:
            FatalError: The file is missing or damaged.
        """
        data = self._store.get(info.name)
        if data is None:
            raise damaged(info.name, "it does not exist")
        _compare(info, len(data), hashlib.sha256(data).hexdigest())
        try:
            entries_of(pa.py_buffer(data), info, full=True)
        except ValueError as error:
            raise damaged(info.name, str(error)) from error

    def forget(self, names: Iterable[str]) -> None:
        """See `SegmentFiles.forget`."""
        for name in names:
            if self._store.local_path(name) is None:
                self._copy(name).unlink(missing_ok=True)

    def _local_path(self, info: SegmentInfo) -> Path:
        """Return the path of a verified file with the segment: the state's own, or a copy, fetched if necessary."""
        local = self._store.local_path(info.name)
        if local is not None:
            self._verify(local, info)
            return local
        path = self._copy(info.name)
        if path.exists():
            try:
                self._verify(path, info)
            except FatalError:  # the copy alone may be damaged, as after a loss of power
                path.unlink(missing_ok=True)
            else:
                return path
        data = self._store.get(info.name)
        if data is None:
            raise damaged(info.name, "it does not exist")
        _compare(info, len(data), hashlib.sha256(data).hexdigest())
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        temporary.write_bytes(data)
        temporary.replace(path)
        self._remember(info)
        return path

    def _verify(self, path: Path, info: SegmentInfo) -> None:
        """Check the length and the digest of a file, once. No page of it counts as used memory: it is not mapped."""
        if (self._store.location, info) in _verified:
            return
        if not self._verified:
            if path.exists() and (size := path.stat().st_size) != info.size:
                raise damaged(info.name, f"it has {size:,} bytes instead of {info.size:,}")
            return
        try:
            with open(open_regular(path), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            raise damaged(info.name, "it does not exist") from None
        _compare(info, size, digest)
        self._remember(info)

    def _remember(self, info: SegmentInfo) -> None:
        _verified[self._store.location, info] = None
        while len(_verified) > _REMEMBERED:
            _verified.popitem(last=False)

    def _copy(self, name: str) -> Path:
        """Return the path of the local copy. The name itself, which is text of the store, is no part of it."""
        location, segment = (hashlib.sha256(text.encode()).hexdigest() for text in (self._store.location, name))
        return private_directory("forebay-state") / location[:16] / f"{segment}.arrow"


def entries_of(data: pa.Buffer, info: SegmentInfo, *, full: bool) -> pa.RecordBatch:
    """Return the entries of a segment from its bytes.

    A digest proves that the bytes are those of the manifest, not that the manifest is forebay's: offsets of texts that
    lie would let Arrow read outside the file.

    Args:
        data: The bytes of the file.
        info: The description of the segment in the manifest.
        full: Whether to look at each value. It takes a third of the time of a digest.

    Raises:
        ValueError: The bytes are no segment, or another one than the manifest describes.
    """
    try:
        file = pa.ipc.open_file(data)
        batches = [file.get_batch(at) for at in range(min(file.num_record_batches, 2))]
        for batch in batches:
            batch.validate(full=full)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"it is no Arrow file ({error})") from error
    if len(batches) != 1:
        raise ValueError("it does not have one record batch")
    (batch,) = batches
    for field in FIXED:
        at = batch.schema.get_field_index(field.name)
        if at < 0 or batch.schema.field(at).type != field.type or batch.column(at).null_count:
            raise ValueError(f"the column {field.name} is not there, or of another type than {field.type}")
    hashes = batch.column(KEY_HASH).to_numpy()
    if batch.num_rows != info.rows or not info.rows or (int(hashes[0]), int(hashes[-1])) != (info.first, info.last):
        raise ValueError("its number of entries, or its first or last key hash, differs from the manifest")
    if full and np.any(hashes[1:] < hashes[:-1]):
        raise ValueError("its entries are not sorted")
    return batch


def _compare(info: SegmentInfo, size: int, digest: str) -> None:
    """Raise a FatalError if the bytes of a segment are others than those that its manifest describes."""
    if size != info.size:
        raise damaged(info.name, f"it has {size:,} bytes instead of {info.size:,}")
    if digest != info.digest:
        raise damaged(info.name, "its digest differs")


_verified: OrderedDict[tuple[str, SegmentInfo], None] = OrderedDict()
"""Segments whose digest this process has checked."""


def split_rows(batch: pa.RecordBatch, rows: int = ROWS, size: int = BYTES) -> Sequence[pa.RecordBatch]:
    """Cut sorted entries into parts that are small enough for a segment."""
    if batch.num_rows <= 1:
        return [batch] if batch.num_rows else []
    if batch.num_rows <= rows and batch.nbytes <= size:
        return [batch]
    half = batch.num_rows // 2
    return [*split_rows(batch.slice(0, half), rows, size), *split_rows(batch.slice(half), rows, size)]


def sorted_by_key(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return entries sorted by key hash; entries with equal hashes keep their order."""
    order = np.argsort(batch.column(KEY_HASH).to_numpy(), kind="stable")
    return pa.RecordBatch.from_arrays(
        [pc.take(column, pa.array(order)) for column in batch.columns], schema=batch.schema
    )
