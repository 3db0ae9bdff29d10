# SPDX-License-Identifier: Apache-2.0
"""`forebay.offsets`: the position of every split of a streaming query, from its checkpoint, without Spark."""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from html import escape
from typing import Any, Final, Self, cast

from forebay.errors import ConfigurationError, ForebayError, printable
from forebay.framework.microbatch.end_negotiation import Claim, ClaimChain, begun_of
from forebay.framework.microbatch.offset import BEFORE_FIRST, Offset, Planned, UnknownEnd
from forebay.framework.microbatch.offset_codec import InlineOffsetCodec, OffsetCodec
from forebay.framework.microbatch.spilling_codec import SpillingOffsetCodec
from forebay.framework.runtime.clients import ConnectorCalls
from forebay.framework.runtime.runtime import ThreadRuntime
from forebay.framework.source import Source
from forebay.framework.split import Json, Position, Split
from forebay.inspection.event_time import EventTimeState, SplitEventTime, event_time_words, moment
from forebay.retry import RetryPolicy
from forebay.state.open_state_store import open_state_store
from forebay.stores.local import wrap_errors
from forebay.stores.paths import is_url, join, split_path
from forebay.stores.store import Store
from forebay.stores.stored_file import store_for
from forebay.text_tables import html_table, text_table

_HEADER: Final = ("source", "split", "read to", "being read to", "end")
_LONGEST: Final = 200
_TIMEOUT: Final = 60.0
_DIGITS: Final = 19
"""The digits of the greatest number of a micro-batch, which is a long of Java."""

LARGEST: Final = 32 << 20
"""The maximum bytes of a line or of an offset file. Spark's have at most some MB."""

_NOTHING: Final = "-"
"""Spark's entry in an offset file for a source without an offset."""


@dataclass(frozen=True)
class SplitOffset:
    """The positions of one split, as texts.

    Args:
        source: The format name of the split's source, with a number if several sources have this name.
        split: The id of the split.
        read_to: The position after the last row that was read.
        being_read_to: The end of the planned micro-batch in this split; empty if there is none.
        end: The split's own end; empty if it has none.
        position: `read_to` as a position of the source; None if nothing is read yet, or if only tasks know it.
        fields: The split's other fields.
        event_time: The split's watermark when the last micro-batch was planned. None if alignment is off, or if the
            split is neither among the slowest nor the fastest ones.
    """

    source: str
    split: str
    read_to: str
    being_read_to: str
    end: str
    position: Position | None = None
    fields: Mapping[str, Json] = field(default_factory=dict)
    event_time: SplitEventTime | None = None


@dataclass(frozen=True)
class Offsets:
    """The result of `offsets`: text when printed, HTML in a notebook.

    Args:
        directory: The checkpoint directory.
        micro_batch: The last planned micro-batch, or None.
        done: The last committed micro-batch, or None.
        planned_at: When the last micro-batch was planned.
        splits: The splits of forebay's sources.
        notes: Sentences about finished splits, other sources, and parts of the state that could not be read.
        others: The offsets of sources that are not of forebay, as Spark wrote them.
        watermark: Spark's own watermark of the query when the last micro-batch was planned; None if the query has none.
    """

    directory: str
    micro_batch: int | None
    done: int | None
    planned_at: datetime | None
    splits: tuple[SplitOffset, ...]
    notes: tuple[str, ...]
    others: tuple[str, ...] = ()
    watermark: datetime | None = None

    def __str__(self) -> str:
        table = [text_table(self._header(), self._rows())] if self.splits else []
        return "\n".join([printable(self._title()), *table, *(printable(note, lines=True) for note in self.notes)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the HTML for a notebook."""
        table = html_table(self._header(), self._rows()) if self.splits else ""
        notes = "".join(f"<p>{escape(printable(note, lines=True))}</p>" for note in self.notes)
        return f"<p>{escape(printable(self._title()))}</p>{table}{notes}"

    def _timed(self) -> bool:
        return any(each.event_time is not None for each in self.splits)

    def _header(self) -> tuple[str, ...]:
        return (*_HEADER, "watermark") if self._timed() else _HEADER

    def _rows(self) -> list[tuple[str, ...]]:
        rows = [(each.source, each.split, each.read_to, each.being_read_to, each.end) for each in self.splits]
        if not self._timed():
            return [*rows]
        return [(*row, _event_time(each.event_time)) for row, each in zip(rows, self.splits, strict=True)]

    def _title(self) -> str:
        if self.micro_batch is None:
            return f"{self.directory}: no micro-batch has been planned yet"
        if self.done == self.micro_batch:
            state = f"micro-batch {self.micro_batch} is done"
        else:
            state = f"micro-batch {self.micro_batch} is planned and not done; a restart reads it again"
        if self.planned_at is not None:
            state += f", planned {self.planned_at:%Y-%m-%d %H:%M:%S} UTC"
        if self.watermark is not None:
            state += f"; Spark's watermark was {moment(self.watermark)}"
        return f"{self.directory}: {state}"


def offsets(checkpoint_directory: str) -> Offsets:
    """Return the position of every split of a streaming query. Read-only; needs no Spark.

    The function reads the last offset of the checkpoint, and forebay's state below `stateLocation`. The query may be
    running.

    Args:
        checkpoint_directory: The `checkpointLocation` of the query: a directory, or a URL that fsspec supports.

    Raises:
        ConfigurationError: There is no checkpoint, or its format is unknown.
        RetriableError: The store did not answer.
    """
    path = _normal(str(checkpoint_directory))
    store = store_for(path)
    planned = _numbers(store, join(path, "offsets"))
    if planned is None:
        raise ConfigurationError(
            f"{checkpoint_directory} is not a checkpoint of a streaming query: it has no directory 'offsets'",
            option="checkpointLocation",
            advice="give the checkpointLocation of the query",
        )
    if not planned:
        return Offsets(path, None, None, None, (), ())
    last = max(planned)
    committed = [number for number in _numbers(store, join(path, "commits")) or () if number <= last]
    done = max(committed, default=None)
    metadata, entries = _parsed(text_of(store, join(join(path, "offsets"), str(last))), path)
    splits: list[SplitOffset] = []
    notes: list[str] = []
    for name, entry in _named(entries):
        source_splits, remarks = _source(name, entry, done=done == last)
        splits += source_splits
        notes += remarks
    when, watermark = (_time(metadata.get(name)) for name in ("batchTimestampMs", "batchWatermarkMs"))
    others = tuple(entry for _, entry in _named(entries) if isinstance(entry, str) and entry != _NOTHING)
    return Offsets(path, last, done, when, tuple(splits), tuple(notes), others, watermark)


# ---- the files that Spark writes


def _normal(directory: str) -> str:
    if is_url(directory):
        return directory.rstrip("/")
    place = split_path(directory)
    return "/".join([place.root.rstrip("/"), *place.parts])


def is_micro_batch(name: str) -> bool:
    """Return whether a file of a checkpoint is named like those that Spark writes, by the number of a micro-batch."""
    return name.isascii() and name.isdecimal() and len(name) <= _DIGITS and str(int(name)) == name


def _numbers(store: Store, directory: str) -> list[int] | None:
    children = store.children(directory, is_micro_batch)
    return None if children is None else [int(file.path.rpartition("/")[2]) for file in children.files]


def text_of(store: Store, path: str) -> str:
    """Return the text of a file that Spark wrote.

    Raises:
        ConfigurationError: The file is larger than any that Spark writes.
        RetriableError: The file cannot be read, or vanished.
    """
    with wrap_errors(path), store.open(path) as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise ConfigurationError(
            f"{path!r} has more than {LARGEST:,} bytes, so Spark did not write it",
            option="checkpointLocation",
            advice="find out who put it there, and restore the checkpoint from a backup",
        )
    return data.decode("utf-8", errors="replace")


def _parsed(text: str, path: str) -> tuple[Mapping[str, Any], list[str]]:
    """Parse Spark's offset file: return its metadata, and the entry of each source. `path` is for errors."""
    version, *lines = text.split("\n")
    if version != "v1" or not lines:
        raise ConfigurationError(
            f"the last offset in {path} has the format {version[:20]!r}, and this release supports only 'v1'",
            option="checkpointLocation",
            advice="read the file below 'offsets', or use a newer forebay, which may support this format",
        )
    try:
        metadata = json.loads(lines[0]) if lines[0] else {}
    except (ValueError, RecursionError):
        metadata = {}
    return metadata if isinstance(metadata, dict) else {}, [line for line in lines[1:] if line]


def _time(at: object) -> datetime | None:
    """Return a time that Spark wrote as ms since 1970; None for 0, which means no time."""
    try:
        return datetime.fromtimestamp(at / 1000, UTC) if isinstance(at, int) and at > 0 else None
    except (OverflowError, ValueError, OSError):
        return None


def _named(entries: list[str]) -> list[tuple[str, Any]]:
    """Return the name and the offset of each source. Offsets of other sources than forebay's stay texts."""
    parsed: list[Any] = [_ours(entry) for entry in entries]
    names = [entry["source"] if isinstance(entry, dict) else "" for entry in parsed]
    return [
        (f"{name} ({index})" if names.count(name) > 1 or not name else name, entry)
        for index, (name, entry) in enumerate(zip(names, parsed, strict=True))
    ]


def _ours(entry: str) -> dict[str, Any] | str:
    try:
        parsed = json.loads(entry)
    except (ValueError, RecursionError):
        return entry
    ours = isinstance(parsed, dict) and {"v", "source", "n"} <= parsed.keys() and isinstance(parsed["source"], str)
    return parsed if ours else entry


# ---- one source


class _AnySplit(Split):
    """A split of any source. Keeps all fields of the split, so that offsets can be read without the source's class."""

    fields: Any = None
    version = 1 << 30

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        own = {name: value for name, value in data.items() if name not in ("v", "id", "position", "end")}
        return cls(id=data["id"], position=data.get("position"), end=data.get("end"), fields=own)


def _source(name: str, entry: dict[str, Any] | str, *, done: bool) -> tuple[list[SplitOffset], list[str]]:
    if isinstance(entry, str):
        label = f"source{name}"
        if entry == _NOTHING:
            return [], [f"{label}: nothing has been planned yet"]
        return [], [
            f"{label} is not a source of forebay: {entry if len(entry) <= _LONGEST else entry[:_LONGEST] + '…'}"
        ]
    try:
        codec = _codec(entry)
        offset = codec.read(entry)
        if offset.n == BEFORE_FIRST:
            return [], [f"{name}: nothing has been planned yet"]
        finished = [each for each in offset.splits if each.ends and done]
        count = codec.read_done(entry).count + len(finished)
    except ForebayError as error:
        return [], [f"{name}: {error}"]
    except RecursionError as error:
        return [], [f"{name}: the offset is damaged: {error}"]
    notes = [f"{name}: {count:,} split{'' if count == 1 else 's'} read to the end"] if count else []
    state = _event_time_of(offset)
    if state is not None:
        notes.append(f"{name}: {event_time_words(state)}")
    times = {} if state is None else {each.split: each for each in state.splits}
    claims: Mapping[str, Claim] = {}
    try:
        claims = _claims(offset, entry.get("claims"))
    except ForebayError as error:
        notes.append(f"{name}: the negotiated ends cannot be read: {error}")
    split_offsets = [_words(name, each, claims.get(each.split.id), done=done) for each in offset.splits]
    return [replace(each, event_time=times.get(each.split)) for each in split_offsets], notes


def _event_time_of(offset: Offset) -> EventTimeState | None:
    try:
        return EventTimeState.of(offset.event_time)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None  # damaged, but only shown


def _event_time(time: SplitEventTime | None) -> str:
    if time is None:
        return ""
    return moment(time.watermark) + (", held" if time.held else "") + (", idle" if time.idle else "")


def _claims(offset: Offset, at: object) -> dict[str, Claim]:
    """Return the latest claims in the state: the ends of splits that tasks negotiated.

    `at` is the state location that the offset names.
    """
    splits = [each.split for each in offset.splits if each.to is UnknownEnd.NEGOTIATED]
    if not splits or not isinstance(at, str):
        return {}
    store, calls = open_state_store(at), _calls(offset.source)
    begun = begun_of(offset.query, offset.n)
    if calls.call("reading", lambda: store.get(begun)) is None:
        raise ConfigurationError(
            f"the state location {at} lacks the file {begun}, which each micro-batch with negotiated ends has",
            advice="restore or mount the state location",
        )
    claims = {}
    for split in splits:
        newest = ClaimChain(store, calls, offset.query, offset.n, split).newest()
        claims[split.id] = Claim(split.position) if newest is None else newest[1]
    return claims


def _codec(entry: Mapping[str, Any]) -> OffsetCodec:
    source = cast("Source", types.SimpleNamespace(name=entry["source"], split_class=_AnySplit))
    state = entry.get("state")
    at = state.get("at") if isinstance(state, dict) else None
    if not isinstance(at, str):
        return InlineOffsetCodec(source)
    return SpillingOffsetCodec(source, open_state_store(at), _calls(source.name))


def _calls(source: str) -> ConnectorCalls:
    return ConnectorCalls(source, ThreadRuntime(), retry=RetryPolicy(retries=1), timeout=_TIMEOUT)


def _words(name: str, planned: Planned, claim: Claim | None, *, done: bool) -> SplitOffset:
    split, to = planned.split, planned.to
    if claim is not None and (done or claim.last):
        to = claim.end  # no task reads beyond the end of the last claim
    whole, negotiated = "its end", "a negotiated end"
    if claim is not None and claim.end != split.position:
        negotiated += f", beyond {_shown(claim.end)}"
    target = whole if to is UnknownEnd.WHOLE else negotiated if to is UnknownEnd.NEGOTIATED else _shown(to)
    if done:
        read, reading = (f"{target}, done" if planned.ends else target), ""
        position = None if isinstance(to, UnknownEnd) else to
    else:
        read, reading = _shown(split.position), "" if planned.empty else target
        position = split.position
    end = "" if split.end is None else _shown(split.end)
    return SplitOffset(name, split.id, read, reading, end, position, cast("_AnySplit", split).fields)


_TIMES = (978_307_200_000_000, 4_102_444_800_000_000)
"""Numbers that are times between 2001 and 2100, if they are µs since 1970."""


def _shown(position: Position | None) -> str:
    if position is None:
        return "not begun"
    if isinstance(position, tuple):
        return f"({'; '.join(_shown(part) for part in position)})"
    if not isinstance(position, int):
        return str(position)
    if not _TIMES[0] <= position < _TIMES[1]:
        return f"{position:,}"
    at = datetime.fromtimestamp(position / 1_000_000, UTC)
    return f"{position:,} ({at:%Y-%m-%d %H:%M:%S} UTC if µs)"
