# SPDX-License-Identifier: Apache-2.0
"""A split: one part of the input, with the progress made in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, dataclass_transform

from forebay.errors import ContractError

Position = int | str | tuple["Position", ...]
"""The next record not yet emitted. Compared with ``==``; with ``<`` only where a source knows its latest positions."""

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
"""What a checkpoint or an offset can carry."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
@dataclass(frozen=True)
class Split:
    """A part of the input, with its progress: discovered, assigned, checkpointed, added back and read (SPL-1, SPL-2).

    Subclass it for more fields; a subclass becomes a frozen, keyword-only dataclass by itself. Fields must be what
    JSON can carry. Splits are immutable: progress makes a new split (`at`).

    Args:
        id: Unique within the source and stable for ever, also across restarts and for every slice of the split.
        position: The next record to emit; None means the start, allowed only where a replay finds the same start.
        end: Exclusive. In the enumerator: the split's own end, None while open. In a reader: where this read stops.

    Raises:
        ContractError: The id is not a non-empty string, or a position is not an int, str or tuple of these.
    """

    id: str
    # Each is a Position or None; a connector knows which kind its own are, so Any spares it a cast at every use.
    position: Any = None
    end: Any = None

    version: ClassVar[int] = 1
    """The version of the fields; raise it when they change, and bring old ones along in `upgrade`."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        dataclass(frozen=True, kw_only=True)(cls)

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id:
            raise ContractError(
                f"a split id must be a non-empty string, not {self.id!r}",
                rule="SPL-1",
                advice="derive the id from what the split is (a file path, a partition number), as text",
            )
        for label in ("position", "end"):
            value = getattr(self, label)
            if value is not None:
                object.__setattr__(self, label, normalise(value, self.id))

    def at(self, position: Position | None) -> Self:
        """Return the same split with its progress at `position`."""
        return dataclasses.replace(self, position=position)

    def slice(self, position: Position | None, end: Position | None) -> Self:
        """Return the part of this split from `position` to `end` (exclusive), under the same id."""
        return dataclasses.replace(self, position=position, end=end)

    def to_json(self) -> dict[str, Json]:
        """Return the split as JSON-ready fields with its version; `from_json` is the way back (SER-1, SER-2)."""
        fields = {field: getattr(self, field.name) for field in dataclasses.fields(self)}
        # None is left out only where it is what a missing field becomes.
        kept = {field.name: value for field, value in fields.items() if value is not None or field.default is not None}
        return {"v": type(self).version, **kept}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild a split from `to_json`, also from an older version through `upgrade`.

        Raises:
            ContractError: The version is newer than this class knows, or the fields do not fit it.
        """
        fields = dict(data)
        version = fields.pop("v", None)
        if not isinstance(version, int) or version > cls.version:
            raise ContractError(
                f"a split of version {version!r} comes from a newer release; {cls.__name__} knows up to {cls.version}",
                split=str(fields.get("id")),
                rule="SER-1",
                advice="run the newer release of the connector, or start from a new checkpoint",
            )
        if version < cls.version:
            fields = dict(cls.upgrade(version, fields))
        try:
            return cls(**{name: _tuples(value) for name, value in fields.items()})
        except TypeError as error:
            raise ContractError(
                f"the stored fields of a split do not fit {cls.__name__}: {error}",
                split=str(fields.get("id")),
                rule="SER-1",
                advice=f"raise {cls.__name__}.version and bring old fields along in upgrade()",
            ) from error

    @classmethod
    def upgrade(cls, version: int, fields: dict[str, Any]) -> dict[str, Any]:
        """Bring the fields of an older `version` to the present one. Override it together with `version`.

        Raises:
            ContractError: By default: this class never had another version.
        """
        raise ContractError(
            f"{cls.__name__} has no way up from version {version} to {cls.version}",
            split=str(fields.get("id")),
            rule="SER-1",
            advice="override upgrade(version, fields)",
        )


def normalise(position: object, split_id: str) -> Position:
    """Return `position` in its one spelling: lists become tuples, because JSON turns tuples into lists.

    Raises:
        ContractError: It is a float, a datetime, a bool or another type that is not exact, ordered and JSON-safe.
    """
    if isinstance(position, bool):
        pass
    elif isinstance(position, (int, str)):
        return position
    elif isinstance(position, (tuple, list)):
        return tuple(normalise(part, split_id) for part in position)
    advice = "use an int, a str, or a tuple of these"
    if isinstance(position, float):
        advice = "a float is not exact: use an int (a count, an id, microseconds) or the number as text"
    elif hasattr(position, "isoformat"):
        advice = "use an int of microseconds since 1970, or .isoformat() as text"
    raise ContractError(
        f"a position cannot be {position!r} ({type(position).__name__})", split=split_id, rule="SPL-2", advice=advice
    )


def _tuples(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    return tuple(_tuples(part) for part in value) if isinstance(value, list) else value
