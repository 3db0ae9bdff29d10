# SPDX-License-Identifier: Apache-2.0
"""What is declared of a changelog: its images, its history and its log, in the metadata of `_change_type` (C1, C16).

Sources and converters declare these traits. `forebay.spark.keys` follows them through a plan; what a plan is not proven
to keep is not assumed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Literal, get_args

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.table.changelog.shape import CHANGE_TYPE
from forebay.table.keys.field_metadata import declaration_id

FIELD_CHANGES: Final = "forebay.changes"
"""The name of the metadata entry. Hosts pass on entries whose names begin with `forebay.`."""

CORRUPT_RECORD: Final = "_corrupt_record"
"""The column of malformed events, unless an option names another one."""

ImagesName = Literal["upsert", "full", "append"]
HistoryName = Literal["unknown", "complete"]


class Images(IntEnum):
    """Which rows of the table the changes hold. A larger value promises more."""

    UPSERT = 0
    """New rows. Old rows are missing, or have the columns of the key alone."""
    FULL = 1
    """Each update and delete has the whole old row, too."""
    APPEND = 2
    """Rows are only added."""


@dataclass(frozen=True)
class ChangeTraits:
    """What a source or converter declares of its changes.

    Args:
        images: Which rows the changes hold.
        complete: Whether each change of each row comes exactly once, from the first one of the row on.
        comparable: Whether `_sequence` is comparable over all rows; False if they may come from several logs.
        log: Names the log. Two inputs of a union that name the same log are comparable; None: only with itself.
        corrupt: The column that holds malformed events, whose `_change_type` is NULL; None: there is none.
        kept: Columns that belong to a change and not to its row, such as the time of the message.
        asserted: Whether the user vouches for the changes, whatever the plan has done to them.
    """

    images: Images = Images.UPSERT
    complete: bool = False
    comparable: bool = True
    log: str | None = None
    corrupt: str | None = None
    kept: tuple[str, ...] = ()
    asserted: bool = False

    @classmethod
    def named(cls, images: str, history: str, *, log: str | None = None) -> ChangeTraits:
        """Return the traits that arguments of users name.

        Raises:
            ConfigurationError: `images` or `history` is unknown.
        """
        _check("images", images, get_args(ImagesName))
        return cls(Images[images.upper()], is_complete(history), log=log)

    def declaration(self, *parts: object) -> str:
        """Return the id of the declaration of these traits. `parts` distinguish it from others."""
        return declaration_id(self, *parts)

    def metadata(self, *parts: object) -> dict[str, Any]:
        """Return the metadata entry of `_change_type`; for `parts` see `declaration`."""
        entry: dict[str, Any] = {"v": 1, "set": self.declaration(*parts), "images": self.images.name.lower()}
        entry |= {"complete": self.complete, "comparable": self.comparable, "corrupt": self.corrupt}
        entry |= {} if self.log is None else {"log": self.log}
        entry |= {"kept": list(self.kept)} if self.kept else {}
        return {FIELD_CHANGES: entry | ({"asserted": True} if self.asserted else {})}


def is_complete(history: str, option: str = "history") -> bool:
    """Return whether a history is complete, as users name it. `option` is the name of the argument or option.

    Raises:
        ConfigurationError: `history` is unknown.
    """
    _check(option, history, get_args(HistoryName))
    return history == "complete"


def _check(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigurationError(
            f"unknown {option} {value!r}", option=option, advice=f"give one of {', '.join(choices)}"
        )


def declared_traits(metadata: Mapping[str, Any]) -> tuple[str, ChangeTraits] | None:
    """Return the id and the traits of the declaration in the metadata of `_change_type`; None if there is none.

    Raises:
        ConfigurationError: Another version of forebay wrote the metadata.
    """
    entry = metadata.get(FIELD_CHANGES)
    if entry is None:
        return None
    if entry.get("v") != 1:
        raise ConfigurationError(
            f"the metadata {FIELD_CHANGES!r} of {CHANGE_TYPE} have version {entry.get('v')}; this forebay knows "
            "version 1",
            advice="upgrade forebay, or declare the changelog again with from_changes",
        )
    images = Images[str(entry["images"]).upper()]
    complete, comparable = bool(entry["complete"]), bool(entry["comparable"])
    asserted, kept = bool(entry.get("asserted")), tuple(entry.get("kept", ()))
    return entry["set"], ChangeTraits(
        images, complete, comparable, entry.get("log"), entry.get("corrupt"), kept, asserted
    )


def stamp_changes(
    schema: pa.Schema, *, images: ImagesName = "upsert", history: HistoryName = "unknown", log: str | None = None
) -> pa.Schema:
    """Return the schema of a source with the traits of its changes. Called by a source in `schema()`.

    Args:
        schema: The schema of the source, with the column `_change_type`.
        images: `full`: each update gives `update_preimage` with the whole old row, and each delete the whole row.
            `upsert`: old rows may be missing. `append`: there are only inserts.
        history: `complete`: each change comes exactly once, from the first one of its row on. `unknown`: changes may
            come again, and the first ones may be missing.
        log: Names the log, if sources with the same log may be put together by a union.

    Raises:
        ConfigurationError: There is no column `_change_type`, or an argument is unknown.
    """
    return with_traits(schema, ChangeTraits.named(images, history, log=log))


def with_traits(schema: pa.Schema, traits: ChangeTraits) -> pa.Schema:
    """Return the schema with `traits` in the metadata of `_change_type`.

    Raises:
        ConfigurationError: There is no column `_change_type`.
    """
    place = schema.get_field_index(CHANGE_TYPE)
    if place < 0:
        raise ConfigurationError(
            f"the schema has no column {CHANGE_TYPE!r}",
            option="schema",
            advice=f"a changelog has the text column {CHANGE_TYPE}: add it, or do not stamp changes",
        )
    field = schema.field(place)
    entry = traits.metadata([(one.name, str(one.type)) for one in schema])
    encoded = {name.encode(): json.dumps(value).encode() for name, value in entry.items()}
    return schema.set(place, field.with_metadata({**(field.metadata or {}), **encoded}))
