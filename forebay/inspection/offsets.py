# SPDX-License-Identifier: Apache-2.0
"""`forebay.offsets`: where every split of a streaming query stands, from its checkpoint, without Spark."""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from typing import Any, Final, Self, cast

from forebay.errors import ConfigurationError, ForebayError
from forebay.framework.microbatch.end_negotiation.claim import Chain, Claim, begun_of
from forebay.framework.microbatch.offsets.codec import InlineOffsetCodec, OffsetCodec
from forebay.framework.microbatch.offsets.offset import BEFORE_FIRST, Agreed, Offset, Planned, Whole
from forebay.framework.microbatch.offsets.spilling_codec import SpillingOffsetCodec
from forebay.framework.runtime.connector_calls import ConnectorCalls
from forebay.framework.runtime.retry import RetryPolicy
from forebay.framework.runtime.runtime import ThreadRuntime
from forebay.framework.source import Source
from forebay.framework.split import Json, Position, Split
from forebay.inspection.tables import html_table, printable, text_table
from forebay.state.open_state_store import open_state_store
from forebay.stores.open_store import store_for
from forebay.stores.paths import is_url, join, place_of
from forebay.stores.store import Store

_HEADER: Final = ("source", "split", "read to", "being read to", "end")
_LONGEST: Final = 200
_TIMEOUT: Final = 60.0
_NOTHING: Final = "-"
"""What Spark writes of a source that had nothing so far."""


@dataclass(frozen=True)
class SplitOffset:
    """Where one split stands, in words.

    Args:
        source: The format name of its source, with a number if several have it.
        split: Its id.
        read_to: Up to where it is read, exclusive.
        being_read_to: Up to where the micro-batch reads it that is planned and not done; empty if it does not.
        end: Its own end; empty while it is open.
        position: What `read_to` says, as the source gave it; None if nothing is read yet, or only its tasks know.
        fields: The split's other fields, as the source gave them.
    """

    source: str
    split: str
    read_to: str
    being_read_to: str
    end: str
    position: Position | None = None
    fields: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True)
class Offsets:
    """What `offsets` found; prints as text, and shows as HTML in a notebook.

    Args:
        directory: The checkpoint directory.
        micro_batch: The last micro-batch that was planned; None if none was.
        done: The last one that is done; None if none is.
        planned_at: When the last one was planned.
        splits: Where each split of forebay's sources stands.
        notes: What else there is to know: splits that are over, other sources, what could not be read.
        others: The offsets of sources that are none of forebay's, as they wrote them.
    """

    directory: str
    micro_batch: int | None
    done: int | None
    planned_at: datetime | None
    splits: tuple[SplitOffset, ...]
    notes: tuple[str, ...]
    others: tuple[str, ...] = ()

    def __str__(self) -> str:
        table = [text_table(_HEADER, self._rows())] if self.splits else []
        return "\n".join([printable(self._title()), *table, *(printable(note, lines=True) for note in self.notes)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        table = html_table(_HEADER, self._rows()) if self.splits else ""
        return f"<p>{escape(self._title())}</p>{table}" + "".join(f"<p>{escape(note)}</p>" for note in self.notes)

    def _rows(self) -> list[tuple[str, ...]]:
        return [(each.source, each.split, each.read_to, each.being_read_to, each.end) for each in self.splits]

    def _title(self) -> str:
        if self.micro_batch is None:
            return f"{self.directory}: no micro-batch was planned yet"
        if self.done == self.micro_batch:
            said = f"micro-batch {self.micro_batch} is done"
        else:
            said = f"micro-batch {self.micro_batch} is planned and not done; a restart reads it again"
        if self.planned_at is not None:
            said += f", planned {self.planned_at:%Y-%m-%d %H:%M:%S} UTC"
        return f"{self.directory}: {said}"


def offsets(checkpoint_directory: str) -> Offsets:
    """Say where every split of a streaming query stands. Called by users; needs no Spark, and changes nothing.

    Reads the last offset of the checkpoint, and what `stateLocation` holds of it. A query may run meanwhile.

    Args:
        checkpoint_directory: What the query was given as `checkpointLocation`: a directory, or a URL that fsspec knows.

    Raises:
        ConfigurationError: There is no checkpoint, or Spark wrote it in a form that is not known here.
        RetriableError: The store did not answer.
    """
    path = _normal(str(checkpoint_directory))
    store = store_for(path)
    planned = _numbers(store, join(path, "offsets"))
    if planned is None:
        raise ConfigurationError(
            f"{checkpoint_directory} is no checkpoint of a streaming query: it has no directory 'offsets'",
            option="checkpointLocation",
            advice="give the directory that the query was given as checkpointLocation",
        )
    if not planned:
        return Offsets(path, None, None, None, (), ())
    last = max(planned)
    committed = [number for number in _numbers(store, join(path, "commits")) or () if number <= last]
    done = max(committed, default=None)
    metadata, entries = _parsed(_text(store, join(join(path, "offsets"), str(last))), path)
    splits: list[SplitOffset] = []
    notes: list[str] = []
    for name, entry in _named(entries):
        found, said = _source(name, entry, done=done == last)
        splits += found
        notes += said
    at = metadata.get("batchTimestampMs")
    when = datetime.fromtimestamp(at / 1000, UTC) if isinstance(at, int) and at > 0 else None
    others = tuple(entry for _, entry in _named(entries) if isinstance(entry, str) and entry != _NOTHING)
    return Offsets(path, last, done, when, tuple(splits), tuple(notes), others)


# ---- the files that Spark writes


def _normal(directory: str) -> str:
    if is_url(directory):
        return directory.rstrip("/")
    place = place_of(directory)
    return "/".join([place.root.rstrip("/"), *place.parts])


def _numbers(store: Store, directory: str) -> list[int] | None:
    children = store.children(directory, str.isdecimal)
    return None if children is None else [int(file.path.rpartition("/")[2]) for file in children.files]


def _text(store: Store, path: str) -> str:
    with store.open(path) as file:
        return file.read().decode("utf-8", errors="replace")


def _parsed(text: str, path: str) -> tuple[Mapping[str, Any], list[str]]:
    """Return the metadata of Spark's offset file, and the entry of each source: line 1 says the form."""
    form, *rest = text.split("\n")
    if form != "v1" or not rest:
        raise ConfigurationError(
            f"the last offset in {path} has the form {form[:20]!r}, and only 'v1' is known here",
            option="checkpointLocation",
            advice="look at the file below 'offsets'; a newer forebay may know its form",
        )
    try:
        metadata = json.loads(rest[0]) if rest[0] else {}
    except ValueError:
        metadata = {}
    return metadata if isinstance(metadata, dict) else {}, [line for line in rest[1:] if line]


def _named(entries: list[str]) -> list[tuple[str, Any]]:
    """Return each source's offset with a name; what is none of forebay's stays a text."""
    found: list[Any] = [_ours(entry) for entry in entries]
    names = [entry["source"] if isinstance(entry, dict) else "" for entry in found]
    return [
        (f"{name} ({index})" if names.count(name) > 1 or not name else name, entry)
        for index, (name, entry) in enumerate(zip(names, found, strict=True))
    ]


def _ours(entry: str) -> dict[str, Any] | str:
    try:
        found = json.loads(entry)
    except ValueError:
        return entry
    ours = isinstance(found, dict) and {"v", "source", "n"} <= found.keys() and isinstance(found["source"], str)
    return found if ours else entry


# ---- one source


class _AnySplit(Split):
    """A split of whatever source: its fields are kept as they are."""

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
            return [], [f"{label}: nothing was planned of it yet"]
        return [], [f"{label} is none of forebay's: {entry if len(entry) <= _LONGEST else entry[:_LONGEST] + '…'}"]
    try:
        book = _book(entry)
        offset = book.read(entry)
        if offset.n == BEFORE_FIRST:
            return [], [f"{name}: nothing was planned of it yet"]
        over = [each for each in offset.splits if each.ends and done]
        count = book.read_done(entry).count + len(over)
    except ForebayError as error:
        return [], [f"{name}: {error}"]
    notes = [f"{name}: {count:,} split{'' if count == 1 else 's'} read to the end"] if count else []
    claims: Mapping[str, Claim] = {}
    try:
        claims = _claims(offset, entry.get("claims"))
    except ForebayError as error:
        notes.append(f"{name}: how far was read is not to be seen: {error}")
    return [_words(name, each, claims.get(each.split.id), done=done) for each in offset.splits], notes


def _claims(offset: Offset, at: object) -> dict[str, Claim]:
    """Return how far the tasks have come in splits whose ends they agree on; empty where it is not known.

    Raises:
        ForebayError: What they agreed on cannot be read.
    """
    splits = [each.split for each in offset.splits if each.to is Agreed.AGREED]
    if not splits or not isinstance(at, str):
        return {}
    store, calls = (
        open_state_store(at),
        ConnectorCalls(offset.source, ThreadRuntime(), retry=RetryPolicy(retries=1), timeout=_TIMEOUT),
    )
    begun = begun_of(offset.query, offset.n)
    if calls.call("reading", lambda: store.get(begun)) is None:
        raise ConfigurationError(f"{begun} is not below {at}", advice="put back what was there, or mount it here")
    claims = {}
    for split in splits:
        newest = Chain(store, calls, offset.query, offset.n, split).newest()
        claims[split.id] = Claim(split.position) if newest is None else newest[1]
    return claims


def _book(entry: Mapping[str, Any]) -> OffsetCodec:
    source = cast("Source", types.SimpleNamespace(name=entry["source"], split_class=_AnySplit))
    state = entry.get("state")
    at = state.get("at") if isinstance(state, dict) else None
    if not isinstance(at, str):
        return InlineOffsetCodec(source)
    calls = ConnectorCalls(source.name, ThreadRuntime(), retry=RetryPolicy(retries=1), timeout=_TIMEOUT)
    return SpillingOffsetCodec(source, open_state_store(at), calls)


def _words(name: str, planned: Planned, claim: Claim | None, *, done: bool) -> SplitOffset:
    split, to = planned.split, planned.to
    if claim is not None and (done or claim.last):
        to = claim.end  # nobody reads on from where the last claim ends
    whole, agreed = "its end", "where the tasks agree"
    if claim is not None and claim.end != split.position:
        agreed += f", beyond {_shown(claim.end)}"
    target = whole if isinstance(to, Whole) else agreed if isinstance(to, Agreed) else _shown(to)
    if done:
        read, reading = (f"{target}, done" if planned.ends else target), ""
        position = None if isinstance(to, (Whole, Agreed)) else to
    else:
        read, reading = _shown(split.position), "" if planned.empty else target
        position = split.position
    end = "" if split.end is None else _shown(split.end)
    return SplitOffset(name, split.id, read, reading, end, position, cast("_AnySplit", split).fields)


def _shown(position: Position | None) -> str:
    if position is None:
        return "not begun"
    return f"{position:,}" if isinstance(position, int) else str(position)
