# SPDX-License-Identifier: Apache-2.0
"""What a streaming query remembers: the offset of a micro-batch, complete in itself, in canonical JSON (S1, S2).

```
{"v": 1, "id": …, "source": …, "n": 7, "splits": [[id, to, from?, fields?], …], "done": …, "enum": …, "options": …}
```
`from` is left out where it equals `to`, `fields` where the id says it all. `to` is `true` where a split is read to its
own end, wherever that is, `false` where the attempts of a task agree on it (S14), and `null` at the very start. With
`digests`, which stand for more splits that ended than `done` has room for, `v` is 2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from forebay.errors import ConfigurationError, ContractError
from forebay.framework.split import Json, Position, Split, normalise
from forebay.version import __version__

VERSION: Final = 1
"""The form of most offsets; an older release refuses a newer one."""

DIGESTS: Final = 2
"""The form of offsets that remember splits by digests: a release that overlooks these would read them again."""

BEFORE_FIRST: Final = -1
"""The number of the offset before the first micro-batch."""


class Whole(Enum):
    """The end of a split that is read whole, wherever it ends."""

    WHOLE = "to its own end"


class Agreed(Enum):
    """The end of a split on which the attempts of a task agree while they read (S14)."""

    AGREED = "as far as was claimed"


To = Position | Whole | Agreed


@dataclass(frozen=True, slots=True)
class Planned:
    """One split of a micro-batch.

    Args:
        split: The split at the position where the micro-batch begins; its `end` is its own, None while it is open.
        to: Where the micro-batch stops, exclusive.
    """

    split: Split
    to: To | None

    @property
    def empty(self) -> bool:
        """Whether this micro-batch reads nothing of the split."""
        return bool(self.to == self.split.position)

    @property
    def ends(self) -> bool:
        """Whether the split is over once this micro-batch is."""
        return self.to is Whole.WHOLE or (self.split.end is not None and self.to == self.split.end)

    def slice(self) -> Split:
        """Return what is to be read."""
        if self.to is Whole.WHOLE or self.to is Agreed.AGREED:
            return self.split
        return self.split.slice(self.split.position, self.to)


@dataclass(frozen=True)
class Offset:
    """Everything that a micro-batch is, and that the next one goes on from.

    Args:
        source: The format name; an offset of another source is refused.
        n: The number of the micro-batch, from 0; `BEFORE_FIRST` for the start.
        query: The id of the query, minted at random with the first micro-batch; empty before.
        splits: The open splits, those that end in this micro-batch included.
        enumerator: What a new enumerator goes on from.
        schema: The columns and their types, where they were inferred when the query began; else empty.
        options: The texts of options that may not change between runs.
        version: The release of forebay that wrote it.
        unlimited: It takes all there is, also of splits whose ends are agreed on while they are read.
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


def dump_offset(offset: Offset) -> dict[str, Json]:
    """Return the offset as JSON-ready values, the same ones for the same offset. Any thread."""
    data: dict[str, Json] = {"v": VERSION, "source": offset.source, "n": offset.n}
    if offset.n == BEFORE_FIRST:
        return data
    data |= {"id": offset.query, "forebay": offset.version, "splits": [dump_planned(each) for each in offset.splits]}
    optional: dict[str, Json] = {
        "enum": offset.enumerator,
        "options": dict(offset.options),
        "schema": offset.schema,
        "all": offset.unlimited,
    }
    return data | {name: value for name, value in optional.items() if value}


def canonical(data: Json) -> str:
    """Return the one text of JSON values: Spark compares offsets as texts."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def load_offset(data: object, source: str, split_class: type[Split]) -> Offset:
    """Read an offset back.

    Args:
        data: What `dump_offset` gave, through JSON.
        source: The format name.
        split_class: Rebuilds the splits.

    Raises:
        ConfigurationError: It is of a newer release, of another source, or was damaged.
        ContractError: The splits are of a newer release of the connector, or of fields that it knows no more (SER-1).
    """
    head = check_head(data, source)
    n = head.get("n")
    try:
        if isinstance(n, bool) or not isinstance(n, int) or n < BEFORE_FIRST:
            raise ValueError(f"its number is {n!r}")  # noqa: TRY301 - all that is wrong with it is told in one way
        if n == BEFORE_FIRST:
            return Offset(source)
        splits = [load_planned(entry, split_class) for entry in _list(head["splits"], "splits")]
        if len({each.split.id for each in splits}) != len(splits):
            raise ValueError("a split is in it twice")  # noqa: TRY301 - as above
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
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged(source, f"{type(error).__name__}: {error}") from error
    except ContractError as error:
        if error.rule == "SER-1":  # the connector changed, and can be mended
            raise error.located(source=source) from None
        raise damaged(source, str(error.message)) from error


def dump_planned(planned: Planned) -> list[Json]:
    """Return the entry of one split."""
    split, to = planned.split, planned.to
    fields = {name: value for name, value in split.to_json().items() if name not in ("id", "position")}
    if fields["v"] == 1:
        del fields["v"]  # the version of nearly all
    entry: list[Json] = [split.id, to is Whole.WHOLE if isinstance(to, (Whole, Agreed)) else _json(to)]
    if not planned.empty:
        entry.append(_json(split.position))
    if fields:
        entry.append(fields)
    return entry


def load_planned(entry: Sequence[Any], split_class: type[Split]) -> Planned:
    """Read the entry of one split back.

    Raises:
        ValueError: It is no such entry.
    """
    split_id, to, *rest = _list(entry, "the entry of a split")
    fields: Mapping[str, Any] = rest.pop() if rest and isinstance(rest[-1], Mapping) else {}
    if len(rest) > 1:
        raise ValueError(f"the entry of the split {split_id!r} has {len(entry)} parts")
    position = rest[0] if rest else to
    if isinstance(position, bool):
        raise ValueError(f"the entry of the split {split_id!r} has no start")  # noqa: TRY004 - a damaged text
    split = split_class.from_json({"v": 1, **fields, "id": split_id, "position": position})
    if isinstance(to, bool):
        return Planned(split, Whole.WHOLE if to else Agreed.AGREED)
    return Planned(split, None if to is None else normalise(to, split.id))


def _json(position: To | None) -> Json:
    assert not isinstance(position, (Whole, Agreed))  # noqa: S101 - both are written before this is called
    return list(position) if isinstance(position, tuple) else position


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}, no text")
    return value


def _list(value: object, name: str) -> Sequence[Any]:
    # Not any sequence: a text would be taken for a list of characters.
    if not isinstance(value, list):
        raise TypeError(f"{name} is {value!r}, no list")
    return value


def check_head(data: object, source: str) -> Mapping[str, Any]:
    """Check whose offset it is, before anything in it is believed.

    Raises:
        ConfigurationError: It is of a newer release, of another source, or no offset at all.
    """
    if not isinstance(data, Mapping) or "v" not in data:
        raise ConfigurationError(
            "the checkpoint was not written by forebay: its offset has no version",
            source=source,
            option="checkpointLocation",
            advice="start with a new checkpoint location; the old one belongs to another kind of source",
        )
    version, owner = data["v"], data.get("source")
    if isinstance(version, bool) or (isinstance(version, int) and version < VERSION):
        raise damaged(source, f"its form is {version!r}")
    if not isinstance(version, int) or version > DIGESTS:
        raise ConfigurationError(
            f"the checkpoint was written by a newer forebay ({data.get('forebay', 'unknown')}): its offsets have form "
            f"{version!r}, and forebay {__version__} knows up to {DIGESTS}",
            source=source,
            option="checkpointLocation",
            advice="run the newer forebay, or start with a new checkpoint location",
        )
    if owner != source:
        raise ConfigurationError(
            f"the checkpoint belongs to the source {owner!r}",
            source=source,
            option="checkpointLocation",
            advice=f"read it with format({owner!r}), or start with a new checkpoint location",
        )
    return data


def damaged(source: str, what: str) -> ConfigurationError:
    """Return the error for an offset that was changed since it was written."""
    return ConfigurationError(
        f"the offset in the checkpoint is damaged: {what}",
        source=source,
        option="checkpointLocation",
        advice="put the offset file back as it was, or start with a new checkpoint location",
    )
