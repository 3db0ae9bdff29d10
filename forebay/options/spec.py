# SPDX-License-Identifier: Apache-2.0
"""Declares an option (`option`), and describes one option of a class (`OptionSpec`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypedDict, TypeVar, Unpack, overload

from forebay.errors import ConfigurationError
from forebay.options._composites import MapOf
from forebay.options._kinds import Kind
from forebay.options.embedded import mask_values
from forebay.options.secret import is_sensitive

T = TypeVar("T")


class _Required(Enum):
    """The type of `REQUIRED`, which marks an option without a default.

    It is an enum, so that the marker keeps its identity when a class is pickled by value.
    """

    REQUIRED = "required"


REQUIRED: Final = _Required.REQUIRED


@dataclass(frozen=True)
class Declared:
    """The arguments of `option`, kept in the metadata of the dataclass field under the key `METADATA`."""

    doc: str = ""
    name: str | None = None
    aliases: tuple[str, ...] = ()
    prefix: str | None = None
    may_change: bool = True
    secret: bool | None = None


METADATA: Final = "forebay.option"


class _Settings(TypedDict, total=False):
    """The keyword arguments that all overloads of `option` share."""

    doc: str
    name: str | None
    aliases: Iterable[str]
    prefix: str | None
    may_change: bool
    secret: bool | None


@overload
def option(**settings: Unpack[_Settings]) -> Any: ...  # the type is that of the annotation
@overload
def option(default: str, **settings: Unpack[_Settings]) -> Any: ...  # text may be the default of every type: "30s"
@overload
def option(default: T, **settings: Unpack[_Settings]) -> T: ...
@overload
def option(*, default_factory: Callable[[], T], **settings: Unpack[_Settings]) -> T: ...
def option(
    default: Any = REQUIRED,
    *,
    default_factory: Callable[[], Any] | None = None,
    doc: str = "",
    name: str | None = None,
    aliases: Iterable[str] = (),
    prefix: str | None = None,
    may_change: bool = True,
    secret: bool | None = None,
) -> Any:
    """Declare an option in the body of a class.

    For example `start: int = option(10, doc="the first number")`. An option without `default` and `default_factory` is
    required; with a prefix, its default is an empty map.

    Args:
        default: The default, typed or as text (`"30s"`).
        default_factory: Returns a new default at each call, for mutable defaults.
        doc: One line for users.
        name: The name for users, if it is not the camelCase of the Python name: `fetchOffset.numRetries`.
        aliases: Other accepted names.
        prefix: Makes the option a map of all options whose names begin with this prefix. A key is the rest of a name
            after the prefix; Spark lower-cases names. An empty prefix takes all unknown options, so the source itself
            must refuse misspelt ones.
        may_change: Whether a streaming query may be restarted with another value.
        secret: Whether the value is never shown. None: only `Secret`s and sensitive keys of a map are hidden.

    Raises:
        ValueError: `default` is mutable, or both `default` and `default_factory` are given.
    """
    if default_factory is not None and default is not REQUIRED:
        raise ValueError("option() takes default or default_factory, not both")
    if type(default).__hash__ is None:
        raise ValueError(
            f"mutable default {type(default).__name__} is not allowed as the default of option(): use default_factory"
        )
    declared = Declared(
        doc, name, (aliases,) if isinstance(aliases, str) else tuple(aliases), prefix, may_change, secret
    )
    # A generated repr shows neither secrets nor options for a client: see `redact_options`.
    settings: dict[str, Any] = {"metadata": {METADATA: declared}, "repr": not secret and prefix is None}
    if default_factory is not None:
        settings["default_factory"] = default_factory
    elif default is not REQUIRED:
        settings["default"] = default
    elif prefix is not None:
        settings["default_factory"] = dict
    return dataclasses.field(**settings)


@dataclass(frozen=True)
class OptionSpec:
    """One option of a class, from `class_options`.

    Args:
        python_name: The name of the attribute.
        name: The name in Spark and in the documentation.
        type: The resolved annotation.
        default: The declared default; `REQUIRED` if there is none or if there is a `default_factory`.
        default_factory: Creates the default; None if not declared.
        doc: One line for users.
        aliases: Other accepted names.
        prefix: The option is a map of all options whose names begin with this prefix; None for a single option.
        may_change: Whether a streaming query may be restarted with another value.
        secret: Whether the value is never shown. None: only `Secret`s and sensitive keys of a map are hidden.
        owner: The name of the class that declares the option, for messages.
        kind: Parses and writes the values.
    """

    python_name: str
    name: str
    type: object
    default: object
    default_factory: Callable[[], object] | None
    doc: str
    aliases: tuple[str, ...]
    prefix: str | None
    may_change: bool
    secret: bool | None
    owner: str
    kind: Kind = dataclasses.field(repr=False, compare=False)

    @property
    def required(self) -> bool:
        """Whether the user must give a value, because there is no default."""
        return self.default is REQUIRED and self.default_factory is None

    @property
    def shown_name(self) -> str:
        """The name in lists and messages: `kafka.*` for a prefix."""
        return self.name if self.prefix is None else f"{self.prefix}*"

    @property
    def spellings(self) -> frozenset[str]:
        """All accepted names of the option, in lower case."""
        return frozenset(name.lower() for name in (self.name, self.python_name, *self.aliases))

    def fresh_default(self) -> Any:
        """Return the default as a typed value; a mutable default is a new object at each call.

        Raises:
            ConfigurationError: The option has no default, or the default is invalid.
        """
        if self.required:
            raise ConfigurationError(f"the option {self.name!r} has no default", option=self.name)
        return self.convert(self.default if self.default_factory is None else self.default_factory())

    def convert(self, value: object, *, written: str | None = None, source: str | None = None, key: str = "") -> Any:
        """Return `value`, typed or text, as this option's type. Lists and maps are copied.

        `written` and `source` are the names of the option and the source for errors. `key` is the key of a map's entry.

        Raises:
            ConfigurationError: The value is invalid. The error does not show a secret.
        """
        kind = self.kind.item if key and isinstance(self.kind, MapOf) else self.kind
        name = written or self.name
        try:
            return kind.parse(value, key)
        except ConfigurationError as error:
            raise error.with_context(option=name, source=source) from None
        except ValueError as error:
            hidden = self.hides(key) or self.kind.holds_secret
            why = f" ({error})" if str(error) else ""
            given = "" if hidden else f", not {_shown(value)}{why}"
        # Raised outside the handler, because the error there may contain a secret.
        raise ConfigurationError(
            f"{name!r} takes {kind.expects}{given}",
            option=name,
            source=source,
            advice=f"write for example {kind.example}",
        )

    def text(self, value: object, *, key: str = "", readable: bool = True) -> str:
        """Return a text that `convert` parses as `value`. The text may be secret.

        Args:
            value: A value of this option's type.
            key: The key without the prefix, if `value` is an entry of a map.
            readable: Whether `convert` must return the same value for the text. If False, None is written as `null`.

        Raises:
            ConfigurationError: No text is parsed as this value. An example is None for a type that includes str.
        """
        kind = self.kind.item if key and isinstance(self.kind, MapOf) else self.kind
        try:
            text = kind.text(value)
            if not readable or not kind.ambiguous or kind.parse(text, key) == value:
                return text
        except (ValueError, StopIteration):
            text = ""
        shown = "(hidden)" if self.hides(key) or self.kind.holds_secret else _shown(value)
        raise ConfigurationError(
            f"the value {shown} of the option {self.name!r} has no text form that is parsed as this value, so a "
            "checkpoint cannot keep it",
            option=self.name,
            advice="use another value; or, in the connector, give the option a type without a union, such as Path "
            "instead of Path | str, or declare it with may_change=True",
        )

    def hides(self, key: str = "") -> bool:
        """Return whether the option's value, or its map entry `key`, must be hidden even if it is not a `Secret`."""
        return is_sensitive(key) if self.secret is None else self.secret


def _shown(value: object) -> str:
    text = mask_values(repr(value))
    return text if len(text) <= 80 else text[:77] + "..."
