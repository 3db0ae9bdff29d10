# SPDX-License-Identifier: Apache-2.0
"""The shape of every changelog: the columns that it has beside the payload (C1, C17).

A changelog has all payload columns and `_change_type`. It has the other columns if the source knows their values.
Changes of one key are ordered by `_sequence` if it exists, otherwise by (`_split`, `_pos`, kind): an update is two rows
with one position, and `update_preimage` comes before `update_postimage`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Literal, Self, get_args

import pyarrow as pa

from forebay.errors import ConfigurationError, DataError
from forebay.table.keys import declaration_id

# -- The kind of a change: Flink's `RowKind`, and the words of Spark 4.2's `_change_type`.


class RowKind(IntEnum):
    """The kind of a change in a changelog. The values are those of Flink's `RowKind` (C2)."""

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3

    @property
    def short(self) -> str:
        """Flink's short form: `+I`, `-U`, `+U` or `-D`."""
        return _SHORT[self]

    @property
    def change_type(self) -> str:
        """The value of Spark's column `_change_type`: `insert`, `update_preimage`, `update_postimage`, `delete`."""
        return CHANGE_TYPES[self]

    @property
    def adds(self) -> bool:
        """Whether this change adds its row (INSERT, UPDATE_AFTER); the other kinds retract it."""
        return self in (RowKind.INSERT, RowKind.UPDATE_AFTER)

    @classmethod
    def parse(cls, text: str, *, position: object = None) -> Self:
        """Return the kind of a `_change_type` or of a short form.

        Args:
            text: For example `insert` or `+I`.
            position: The position of the change in its source, for the error.

        Raises:
            DataError: The text names no kind.
        """
        for names in (CHANGE_TYPES, _SHORT):
            if text in names:
                return cls(names.index(text))
        raise DataError(
            f"unknown change kind {text!r}",
            position=position,
            advice=f"a kind is one of {', '.join(CHANGE_TYPES)}; convert other words first",
        )


CHANGE_TYPES: Final = ("insert", "update_preimage", "update_postimage", "delete")
"""The words of `_change_type`, in the order of `RowKind`."""

_SHORT: Final = ("+I", "-U", "+U", "-D")


# -- Which kinds of changes a changelog may hold (C1).


@dataclass(frozen=True)
class ChangelogMode:
    """The kinds of changes that a changelog may hold, as in Flink's `ChangelogMode`."""

    kinds: frozenset[RowKind]

    @property
    def append_only(self) -> bool:
        """Whether rows are only inserted, never updated or deleted."""
        return self.kinds == {RowKind.INSERT}

    @property
    def retracts(self) -> bool:
        """Whether an update comes with the old row (`update_preimage`)."""
        return RowKind.UPDATE_BEFORE in self.kinds

    def __str__(self) -> str:
        return "[" + ", ".join(kind.short for kind in sorted(self.kinds)) + "]"


APPEND: Final = ChangelogMode(frozenset({RowKind.INSERT}))
UPDATES: Final = ChangelogMode(frozenset({RowKind.INSERT, RowKind.UPDATE_AFTER}))
UPSERT: Final = ChangelogMode(frozenset({RowKind.INSERT, RowKind.UPDATE_AFTER, RowKind.DELETE}))
ALL: Final = ChangelogMode(frozenset(RowKind))


CHANGE_TYPE: Final = "_change_type"
"""Text, never NULL: a word of `CHANGE_TYPES` (Spark 4.2, Delta)."""

SPLIT: Final = "_split"
"""Text: the split that the row was read from (`rowPositions`)."""

POSITION: Final = "_pos"
"""Long: grows strictly within a split (`rowPositions`)."""

SEQUENCE: Final = "_sequence"
"""Comparable over all splits of one log, such as a log sequence number: a long, or a text in the order of the log."""

LOG: Final = "_log"
"""Text, there exactly when a format fills `_sequence`: the log that it counts in. Values of two logs have no order."""

TRANSACTION: Final = "_transaction"
"""Text: the id of the source's transaction."""

COMMIT_VERSION: Final = "_commit_version"
"""Long: the version of a table that made the change (Spark 4.2, Delta)."""

COMMIT_TIMESTAMP: Final = "_commit_timestamp"
"""Timestamp with time zone: when the source committed the change (Spark 4.2, Delta)."""

TYPES: Final = {
    CHANGE_TYPE: pa.string(),
    SPLIT: pa.string(),
    POSITION: pa.int64(),
    LOG: pa.string(),
    TRANSACTION: pa.string(),
    COMMIT_VERSION: pa.int64(),
    COMMIT_TIMESTAMP: pa.timestamp("us", tz="UTC"),
}
"""The Arrow types of these columns, except `_sequence`, whose type depends on the source."""

COLUMNS: Final = (CHANGE_TYPE, SPLIT, POSITION, SEQUENCE, LOG, TRANSACTION, COMMIT_VERSION, COMMIT_TIMESTAMP)
"""All columns of a changelog that are not payload."""


# -- What is declared of a changelog: its images, its history and its log, in the metadata of `_change_type` (C1, C16).
#
# Sources and converters declare these traits. `forebay.spark.keys` follows them through a plan; what a plan is not
# proven
# to keep is not assumed.


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


def is_complete(history: str) -> bool:
    """Return whether a history is complete, as users name it.

    Raises:
        ConfigurationError: `history` is unknown.
    """
    _check("history", history, get_args(HistoryName))
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
    entry = traits.metadata([(column.name, str(column.type)) for column in schema])
    encoded = {name.encode(): json.dumps(value).encode() for name, value in entry.items()}
    return schema.set(place, field.with_metadata({**(field.metadata or {}), **encoded}))
