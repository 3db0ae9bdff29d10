# SPDX-License-Identifier: Apache-2.0
"""A split: one part of the input, with its progress."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, dataclass_transform

from forebay.errors import ContractError

Position = int | str | tuple["Position", ...]
"""A place in a split: the next record not yet emitted. Compared by ``==``, in a split with an end also by ``<``."""

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
"""A value that a checkpoint or an offset can hold."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
@dataclass(frozen=True)
class Split:
    """A part of the input, with its progress (SPL-1, SPL-2). Immutable: `at` returns a copy with other progress.

    A subclass with more fields becomes a frozen, keyword-only dataclass without a decorator. All fields must be
    JSON-ready.

    Args:
        id: Unique within the source and stable for ever, across restarts and for every slice of the split.
        position: The next record to emit. None = the start of the split, which must be the same in every replay. A
            connector may also let its splits begin at a position, so None does not tell whether a split has begun.
        end: The end, exclusive. In an enumerator: the split's own end, None if it may still grow. In a reader: the end
            of this read.

    Raises:
        ContractError: The id is not a non-empty string, or a position is not an int, str or tuple of these.
    """

    id: str
    # A Position or None; a connector knows its own type, so Any saves it a cast at every use.
    position: Any = None
    end: Any = None

    version: ClassVar[int] = 1
    """The version of the fields. Increase it when fields change, and convert old fields in `upgrade`."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        dataclass(frozen=True, kw_only=True)(cls)

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id:
            raise ContractError(
                f"a split id must be a non-empty string, not {self.id!r}",
                rule="SPL-1",
                advice="derive the id from the input (a file path, a partition number), as text",
            )
        for label in ("position", "end"):
            value = getattr(self, label)
            if value is not None:
                object.__setattr__(self, label, normalise(value, self.id))

    @property
    def ends_itself(self) -> bool:
        """Whether a split of an unbounded source is complete, although its `end` is None, as a file has an end.

        True = the split is read once, to its end: the split reader reports it as `finished` there, and nothing is
        written to it any more. `caught_up` before that, or an end from `latest`, is a ContractError (SR-4, DIS-1),
        because a host would never read what follows. A segment of a log that is still written must return False.

        False (the default) = the split may grow for ever. In a bounded source every split has an end of its own.
        """
        return False

    def at(self, position: Position | None) -> Self:
        """Return this split with its progress at `position`."""
        return dataclasses.replace(self, position=position)

    def slice(self, position: Position | None, end: Position | None) -> Self:
        """Return the part of this split from `position` to `end` (exclusive), under the same id."""
        return dataclasses.replace(self, position=position, end=end)

    def to_json(self) -> dict[str, Json]:
        """Return the fields and their version, JSON-ready, for `from_json` (SER-1, SER-2)."""
        fields = {field: getattr(self, field.name) for field in dataclasses.fields(self)}
        # None is left out only if it is the default of the field.
        values = {
            field.name: value for field, value in fields.items() if value is not None or field.default is not None
        }
        return {"v": type(self).version, **values}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild a split from a result of `to_json`; `upgrade` converts the fields of an older version.

        Raises:
            ContractError: The version is newer than this class, or the fields are not those of this class.
        """
        fields = dict(data)
        version = fields.pop("v", None)
        if not isinstance(version, int) or version > cls.version:
            raise ContractError(
                f"a stored split has version {version!r}, but {cls.__name__} reads only versions up to {cls.version}",
                split=str(fields.get("id")),
                rule="SER-1",
                advice="run the release of the connector that stored the split, or start with a new checkpoint",
            )
        advice = f"increase {cls.__name__}.version and convert old fields in upgrade()"
        split_id = str(fields.get("id"))
        if version < cls.version:
            fields = cls._upgraded(version, fields)
            names = ", ".join(field.name for field in dataclasses.fields(cls))
            advice = f"let {cls.__name__}.upgrade({version}, fields) return no other fields than {names}"
        try:
            return cls(**{name: _tuples(value) for name, value in fields.items()})
        except TypeError as error:
            raise ContractError(
                f"the stored fields of a split do not fit {cls.__name__}: {error}",
                split=split_id,
                rule="SER-1",
                advice=advice,
            ) from error

    @classmethod
    def _upgraded(cls, version: int, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of an older version in the form of this class. Refuse an `upgrade` that loses one."""
        split_id = str(stored.get("id"))
        try:
            upgraded: object = cls.upgrade(version, dict(stored))
        except ContractError:
            raise
        except Exception as error:
            raise ContractError(
                f"{cls.__name__}.upgrade({version}, fields) failed: {type(error).__name__}: {error}",
                split=split_id,
                rule="SER-1",
                advice="correct upgrade(); a field that was None may be missing in `fields`",
            ) from error
        fields = dict(upgraded) if isinstance(upgraded, Mapping) else {}
        known = {field.name for field in dataclasses.fields(cls)}
        lost = [
            name
            for name, value in stored.items()
            if name in known and (name not in fields or (value is not None and fields[name] is None))
        ]
        if not isinstance(upgraded, Mapping) or lost:
            what = f"loses the field {lost[0]!r}" if isinstance(upgraded, Mapping) else f"returned {upgraded!r:.80}"
            effect = ": the split would be read again from its start" if lost == ["position"] else ""
            raise ContractError(
                f"{cls.__name__}.upgrade({version}, fields) {what} of a stored split{effect}",
                split=split_id,
                rule="SER-1",
                advice="return all stored fields, also id, position and end, and change or add only what is new: "
                "return {**fields, …}",
            )
        if fields["id"] != stored["id"]:
            raise ContractError(
                f"{cls.__name__}.upgrade({version}, fields) changes the id of a stored split to {fields['id']!r}: the "
                "split would be read again from its start, as one that is found now",
                split=split_id,
                rule="SPL-1",
                advice="return the id as it is",
            )
        return fields

    @classmethod
    def upgrade(cls, version: int, fields: dict[str, Any]) -> dict[str, Any]:
        """Convert the fields of an older `version` to those of the class. Override it when you increase `cls.version`.

        Called by hosts when they restore a checkpoint or an offset, for each stored split.

        Args:
            version: The version that stored the split.
            fields: All stored fields, also `id`, `position` and `end`; a field that was None may be missing.

        Returns:
            The fields of the class. A field that the class still has must not vanish, nor become None.

        Raises:
            ContractError: By default, for any version.
        """
        raise ContractError(
            f"{cls.__name__} cannot convert version {version} of a stored split to version {cls.version}",
            split=str(fields.get("id")),
            rule="SER-1",
            advice=f"override {cls.__name__}.upgrade(version, fields), or start with a new checkpoint",
        )


def normalise(position: object, split_id: str) -> Position:
    """Return `position` with lists as tuples, because JSON turns tuples into lists.

    Raises:
        ContractError: `position` is of another type than int, str or tuple: it must be exact, ordered and JSON-ready.
    """
    if isinstance(position, (int, str)) and not isinstance(position, bool):
        return position
    if isinstance(position, (tuple, list)):
        return tuple(normalise(part, split_id) for part in position)
    advice = "use an int, a str, or a tuple of these"
    if isinstance(position, float):
        advice = "a float is not exact: use an int (a count, an id, microseconds); or text, and override order_key()"
    elif hasattr(position, "isoformat"):
        advice = "use an int of microseconds since 1970, or .isoformat() as text"
    raise ContractError(
        f"{position!r} ({type(position).__name__}) is not a valid position", split=split_id, rule="SPL-2", advice=advice
    )


def _tuples(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    return tuple(_tuples(part) for part in value) if isinstance(value, list) else value


def before(source: Any, position: Position, other: Position, split_id: str) -> bool:  # noqa: ANN401 - see Args
    """Return whether `position` of a split comes before the position `other`.

    Args:
        source: The `Source`, of which this module knows nothing else than its name and its `order_key`.
        position: A position of the split.
        other: Another one.
        split_id: The split, for the error.

    Raises:
        ContractError: The two positions cannot be compared.
    """
    try:
        return bool(source.order_key(position) < source.order_key(other))
    except TypeError as error:
        raise ContractError(
            f"the positions {position!r} and {other!r} cannot be compared",
            source=source.name,
            split=split_id,
            rule="SPL-2",
            advice="in the connector, use one type for all positions of a split, convert those of older versions in "
            "Split.upgrade(), or override order_key(position)",
        ) from error
