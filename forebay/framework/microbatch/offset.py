# SPDX-License-Identifier: Apache-2.0
"""The offset of a micro-batch, self-contained, as canonical JSON (S1, S2).

```
{"v": 1, "id": …, "source": …, "n": 7, "splits": [[id, to, from?, fields?], …], "done": …, "enum": …, "options": …}
```
`splits` are not finished before this micro-batch. `done` are, as `[id]` or `[id, fields]`; it is absent if there are
none. `from` is omitted if it equals `to`, and `fields` if they are empty. `to` is `true` for
`UnknownEnd.WHOLE`, `false` for `UnknownEnd.NEGOTIATED`, and `null` at the start of a split. `v` is 2 in offsets with
`digests`.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from forebay.errors import ConfigurationError, ContractError
from forebay.framework.split import Json, Position, Split, normalise
from forebay.state.state_store import is_safe_name
from forebay.version import __version__

VERSION: Final = 1
"""Version of offsets without digests; an older release refuses a newer version."""

DIGESTS: Final = 2
"""Version of offsets with digests: a release that ignores digests would read the finished splits again."""

BEFORE_FIRST: Final = -1
"""The number of the offset before the first micro-batch."""


class UnknownEnd(Enum):
    """How far a micro-batch reads a split if the end position is unknown when the micro-batch is planned."""

    WHOLE = "to its own end"
    """The split is read to its own end."""
    NEGOTIATED = "as far as was claimed"
    """The attempts of a task negotiate the end while they read (S14)."""


To = Position | UnknownEnd


@dataclass(frozen=True, slots=True)
class Planned:
    """One split of a micro-batch, with the positions from which and up to which it is read.

    Args:
        split: The split at the position where the micro-batch begins; its `end` is None if it has no fixed end.
        to: The position where the micro-batch stops, exclusive, or an `UnknownEnd`; None = the split's start, so
            nothing is read.
    """

    split: Split
    to: To | None

    @property
    def empty(self) -> bool:
        """Whether this micro-batch reads nothing of the split."""
        return bool(self.to == self.split.position)

    @property
    def ends(self) -> bool:
        """Whether this micro-batch reads the split to its end."""
        return self.to is UnknownEnd.WHOLE or (self.split.end is not None and self.to == self.split.end)

    @property
    def rows(self) -> int | None:
        """The difference of the two positions if both are integers, else None.

        It is a number of rows only if positions count rows.
        """
        start = 0 if self.split.position is None else self.split.position
        if not isinstance(start, int) or not isinstance(self.to, int):
            return None
        return max(0, self.to - start)

    def slice(self) -> Split:
        """Return the part of the split that this micro-batch reads."""
        if isinstance(self.to, UnknownEnd):
            return self.split
        return self.split.slice(self.split.position, self.to)


@dataclass(frozen=True)
class Offset:
    """One micro-batch: what it reads, and the state from which the next micro-batch is planned.

    Args:
        source: The format name; an offset of another source is refused.
        n: The number of the micro-batch, from 0; `BEFORE_FIRST` in the offset before the first one.
        query: The random id of the query, made with the first micro-batch; empty before.
        splits: The splits that are not finished before this micro-batch, including those that end in it.
        enumerator: The snapshot of the enumerator.
        options: The texts of options that must not change between runs.
        schema: The columns and their types if they were inferred when the query began; else empty.
        version: The release of forebay that wrote the offset.
        unlimited: Whether tasks ignore limits when they negotiate ends; limits were not applied in planning either.
        event_time: A report of what alignment did, for people to read; nothing is planned from it.
    """

    source: str
    n: int = BEFORE_FIRST
    query: str = ""
    splits: Sequence[Planned] = ()
    enumerator: Json = None
    options: Mapping[str, str] = field(default_factory=dict)
    schema: str = ""
    version: str = __version__
    unlimited: bool = False
    event_time: Json = None


def own_ends(splits: Iterable[Planned]) -> dict[str, Position]:
    """Return, by id, the ends of the splits that a micro-batch reads to an end of their own."""
    return {
        planned.split.id: planned.to
        for planned in splits
        if planned.ends and planned.to is not None and not isinstance(planned.to, UnknownEnd)
    }


def dump_offset(offset: Offset) -> dict[str, Json]:
    """Return an offset as JSON values; equal offsets give equal values. For any thread."""
    data: dict[str, Json] = {"v": VERSION, "source": offset.source, "n": offset.n}
    if offset.n == BEFORE_FIRST:
        return data
    data |= {"id": offset.query, "forebay": offset.version, "splits": [dump_planned(each) for each in offset.splits]}
    optional: dict[str, Json] = {
        "enum": offset.enumerator,
        "options": dict(offset.options),
        "schema": offset.schema,
        "all": offset.unlimited,
        "eventTime": offset.event_time,
    }
    return data | {name: value for name, value in optional.items() if value}


def load_offset(data: object, source: str, split_class: type[Split]) -> Offset:
    """Return the offset from the JSON values that `dump_offset` returned. `source` is the format name of the reader.

    Raises:
        ConfigurationError: The offset is damaged, of a newer release of forebay, or of another source.
        ContractError: The connector's split class cannot read the stored fields or their version (SER-1).
    """
    head = check_head(data, source)
    n = head.get("n")
    try:
        if isinstance(n, bool) or not isinstance(n, int) or n < BEFORE_FIRST:
            raise ValueError(f"the number n of the micro-batch is {n!r}")  # noqa: TRY301 - all damage is reported in the same way
        if n == BEFORE_FIRST:
            return Offset(source)
        splits = [load_planned(entry, split_class) for entry in _list(head["splits"], "splits")]
        if len({each.split.id for each in splits}) != len(splits):
            raise ValueError("a split occurs twice")  # noqa: TRY301 - as above
        return Offset(
            source,
            n,
            _text(head["id"], "id"),
            splits,
            head.get("enum"),
            {_text(name, "option"): _text(value, "option") for name, value in head.get("options", {}).items()},
            _text(head.get("schema", ""), "schema"),
            _text(head.get("forebay", ""), "forebay"),
            head.get("all") is True,
            head.get("eventTime"),
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise damaged(source, f"{type(error).__name__}: {error}") from error
    except ContractError as error:
        if error.rule == "SER-1":  # the connector changed, and can be corrected
            raise error.with_context(source=source) from None
        raise damaged(source, str(error.message)) from error


def dump_planned(planned: Planned) -> list[Json]:
    """Return one split of a micro-batch as its entry in the list `splits` of the offset's JSON."""
    split, to = planned.split, planned.to
    fields = split_fields(split)
    entry: list[Json] = [split.id, to is UnknownEnd.WHOLE if isinstance(to, UnknownEnd) else _json(to)]
    if not planned.empty:
        entry.append(_json(split.position))
    if fields:
        entry.append(fields)
    return entry


def split_fields(split: Split) -> dict[str, Json]:
    """Return the JSON fields of a split, without its id and position, and without the version if it is 1."""
    fields = {name: value for name, value in split.to_json().items() if name not in ("id", "position")}
    if fields["v"] == 1:
        del fields["v"]
    return fields


def load_planned(entry: Sequence[Any], split_class: type[Split]) -> Planned:
    """Return the planned split from an entry that `dump_planned` returned.

    Raises:
        ValueError: The entry is damaged.
    """
    split_id, to, *others = _list(entry, "the entry of a split")
    fields: Mapping[str, Any] = others.pop() if others and isinstance(others[-1], Mapping) else {}
    if len(others) > 1:
        raise ValueError(f"the entry of the split {split_id!r} is not [id, to, from?, fields?]: {entry!r:.200}")
    if others and others[0] == to and not isinstance(to, bool):  # in Python, 0 is False and 1 is True
        raise ValueError(f"the entry of the split {split_id!r} begins where it ends: {entry!r:.200}")
    position = others[0] if others else to
    if isinstance(position, bool):
        raise ValueError(f"the entry of the split {split_id!r} has no start position")  # noqa: TRY004 - a damaged text
    stored = {"v": 1, **fields, "id": split_id}
    split = split_class.from_json({**stored, "position": position})
    if stored["v"] != split_class.version and to is not None and not isinstance(to, bool):
        to = split_class.from_json({**stored, "position": to}).position  # `upgrade` converts positions too
    if isinstance(to, bool):
        return Planned(split, UnknownEnd.WHOLE if to else UnknownEnd.NEGOTIATED)
    return Planned(split, None if to is None else normalise(to, split.id))


def _json(position: To | None) -> Json:
    assert not isinstance(position, UnknownEnd)  # noqa: S101 - the caller has written it
    return list(position) if isinstance(position, tuple) else position


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}, not a text")
    return value


def _list(value: object, name: str) -> Sequence[Any]:
    # A text is a sequence too, and not accepted.
    if not isinstance(value, list):
        raise TypeError(f"{name} is {value!r}, not a list")
    return value


def check_head(data: object, source: str) -> Mapping[str, Any]:
    """Check that `data` is an offset of this source in a known version, and return it.

    Raises:
        ConfigurationError: `data` is an offset of a newer release or of another source, or not an offset of forebay.
    """
    if not isinstance(data, Mapping) or "v" not in data:
        raise ConfigurationError(
            "the checkpoint was not written by forebay: its offset has no version",
            source=source,
            option="checkpointLocation",
            advice="start with a new checkpoint location, or read the old one with the source that wrote it",
        )
    version, owner = data["v"], data.get("source")
    if isinstance(version, bool) or (isinstance(version, int) and version < VERSION):
        raise damaged(source, f"its format version is {version!r}, and the lowest one is {VERSION}")
    if not isinstance(version, int) or version > DIGESTS:
        raise ConfigurationError(
            f"the checkpoint was written by a newer forebay ({data.get('forebay', 'unknown')}): its offsets have the "
            f"format version {version!r}, and forebay {__version__} reads versions up to {DIGESTS}",
            source=source,
            option="checkpointLocation",
            advice="run the newer forebay, or start with a new checkpoint location",
        )
    if owner != source:
        raise ConfigurationError(
            f"the checkpoint was written by the source {owner!r}, not by {source!r}",
            source=source,
            option="checkpointLocation",
            advice=f"read it with format({owner!r}), or start with a new checkpoint location",
        )
    query = data.get("id", "")  # a directory below stateLocation
    if query != "" and (not is_safe_name(query) or "/" in query):
        raise damaged(source, f"its id is {query!r:.300}")
    return data


def damaged(source: str, what: str) -> ConfigurationError:
    """Return the error for an offset that has been damaged since it was written; `what` describes the damage."""
    return ConfigurationError(
        f"the offset in the checkpoint is damaged: {what}",
        source=source,
        option="checkpointLocation",
        advice="restore the offset file, or start with a new checkpoint location",
    )


_LONG = 4096
"""Maximum characters of a list that is not compressed, so that people can read it."""


def canonical(data: Json) -> str:
    """Return the canonical JSON text of a value: Spark compares offsets as texts."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def compact(value: Json) -> Json:
    """Return a JSON value unchanged if its text is short, else `{"z": compressed text}`. For any thread."""
    text = canonical(value)
    if len(text) <= _LONG:
        return value
    return {"z": base64.b85encode(zlib.compress(text.encode(), 6)).decode("ascii")}


def expand(value: Json) -> Json:
    """Return the original JSON value of a value that `compact` returned.

    Raises:
        ValueError: The compressed text is damaged.
    """
    if not (isinstance(value, dict) and value.keys() == {"z"}):
        return value
    try:
        expanded: Json = json.loads(zlib.decompress(base64.b85decode(value["z"])))
    except (zlib.error, TypeError, RecursionError) as error:
        raise ValueError(f"a compressed list cannot be read: {error}") from error
    return expanded


def length(value: Json) -> int:
    """Return the number of characters of a JSON value in an offset."""
    return len(canonical(value))
