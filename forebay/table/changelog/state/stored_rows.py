# SPDX-License-Identifier: Apache-2.0
"""Reads the rows of a state from its files, without the query that wrote them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import ConfigurationError
from forebay.table.changelog.state.entries import ORDER, PREFIX, TOUCHED
from forebay.table.changelog.state.inspection import opened
from forebay.table.changelog.state.location import OperatorState
from forebay.table.changelog.state.segments import Ints, Segment
from forebay.table.changelog.state.snapshot import Entries, lookup

_KEYS: Final = 1024
"""Maximum entries of a segment that one step reads."""


@dataclass(frozen=True)
class StoredRow:
    """A row of a state.

    Args:
        row: The payload.
        count: How often the row was added minus how often it was retracted.
        order: The values of its ordering columns.
        touched: The time of its last event in microseconds since 1970; None without a time to live.
    """

    row: Mapping[str, Any]
    count: int
    order: Sequence[Any]
    touched: int | None


def stored_rows(
    state: OperatorState, version: int | None, limit: int, key: Mapping[str, str] | None = None
) -> list[StoredRow]:
    """Return rows of a state, shard by shard.

    Args:
        state: The state.
        version: The version to read: a micro-batch id; None if no version can be read.
        limit: The maximum number of rows.
        key: Return only rows with these values, given as texts. All segments are read to find them.

    Raises:
        ConfigurationError: There is no such state or column, or a text is not a value of its column.
        FatalError: A file is damaged.
    """
    return list(islice(_rows(state, version, key or {}), limit))


def _rows(state: OperatorState, version: int | None, key: Mapping[str, str]) -> Iterator[StoredRow]:
    state, info = opened(state)
    for number in range(info.shards):
        shard = state.shard(number)
        manifest = None if version is None else shard.newest(version)
        if manifest is None or not manifest.runs:
            continue
        wanted = {name: _value(manifest.schema, name, text) for name, text in key.items()}
        runs = shard.open(manifest)
        for hashes in [_matching(runs, wanted)] if wanted else _all_hashes(runs):
            found = lookup(runs, hashes, timed=manifest.schema.get_field_index(TOUCHED) >= 0)
            yield from _of_entries(found, manifest.schema, wanted)


def _value(schema: pa.Schema, name: str, text: str) -> pa.Scalar:
    place = schema.get_field_index(name)
    if place < 0 or name.startswith(PREFIX):
        names = [one for one in schema.names if not one.startswith(PREFIX)]
        raise ConfigurationError(
            f"the state has no column {name!r}", option="--key", advice=f"give one of {', '.join(names)}"
        )
    try:
        return pa.scalar(text).cast(schema.field(place).type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ConfigurationError(
            f"{text!r} is not a value of the column {name!r} of type {schema.field(place).type}", option="--key"
        ) from error


def _matching(runs: Sequence[Sequence[Segment]], wanted: Mapping[str, pa.Scalar]) -> Ints:
    """Return the key hashes of entries with these values."""
    found = [
        segment.hashes[_mask([segment.batch.column(name) for name in wanted], wanted)]
        for run in runs
        for segment in run
        if all(segment.batch.schema.get_field_index(name) >= 0 for name in wanted)
    ]
    return np.unique(np.concatenate([np.empty(0, np.int64), *found]))


def _mask(columns: Sequence[pa.Array], wanted: Mapping[str, pa.Scalar]) -> Ints:
    same = np.ones(len(columns[0]), np.bool_)
    for column, value in zip(columns, wanted.values(), strict=True):
        same &= pc.fill_null(pc.equal(column, value), fill_value=False).to_numpy(zero_copy_only=False)
    return np.flatnonzero(same)


def _all_hashes(runs: Sequence[Sequence[Segment]]) -> Iterator[Ints]:
    """Yield all key hashes in ascending order, some at a time."""
    segments = [segment for run in runs for segment in run]
    after: int | None = None
    while True:
        found, end = [np.empty(0, np.int64)], None
        for segment in segments:
            start = 0 if after is None else int(np.searchsorted(segment.hashes, after, side="right"))
            some = segment.hashes[start : start + _KEYS]
            found.append(some)
            if len(some) == _KEYS:  # its next keys may precede keys of other segments
                end = int(some[-1]) if end is None else min(end, int(some[-1]))
        hashes = np.unique(np.concatenate(found))
        if end is not None:
            hashes = hashes[hashes <= end]
        if not len(hashes):
            return
        yield hashes
        after = int(hashes[-1])


def _of_entries(found: Entries, schema: pa.Schema, wanted: Mapping[str, pa.Scalar]) -> Iterator[StoredRow]:
    payload = [one for one in schema if not one.name.startswith(PREFIX)]
    orders = [one for one in schema if one.name.startswith(ORDER)]
    which = np.arange(len(found))
    if wanted:
        which = _mask(found.take(which, [schema.field(name) for name in wanted]), wanted)
    names = [one.name for one in payload]
    columns = [column.to_pylist() for column in found.take(which, [*payload, *orders])]
    for place, entry in enumerate(which.tolist()):
        values = [column[place] for column in columns]
        yield StoredRow(
            dict(zip(names, values[: len(names)], strict=True)),
            int(found.counts[entry]),
            values[len(names) :],
            None if found.touched is None else int(found.touched[entry]),
        )
