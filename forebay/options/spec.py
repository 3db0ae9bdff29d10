# SPDX-License-Identifier: Apache-2.0
"""One option: how an author declares it (`option`) and what the machinery knows about it (`OptionSpec`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeVar, overload

from forebay.errors import ConfigurationError
from forebay.options._composites import Map
from forebay.options._kinds import Kind
from forebay.options.embedded import mask_values
from forebay.options.secret import is_sensitive

T = TypeVar("T")


class _Required(Enum):
    """The default of an option that has none. An enum stays itself when a class is pickled by value."""

    REQUIRED = "required"


REQUIRED: Final = _Required.REQUIRED


@dataclass(frozen=True)
class Declared:
    """What `option` was told: kept in the metadata of the dataclass field, under `METADATA`."""

    doc: str = ""
    name: str | None = None
    aliases: tuple[str, ...] = ()
    prefix: str | None = None
    may_change: bool = True
    secret: bool | None = None


METADATA: Final = "forebay.option"


@overload
def option(
    *,
    doc: str = "",
    name: str | None = None,
    aliases: Iterable[str] = (),
    prefix: str | None = None,
    may_change: bool = True,
    secret: bool | None = None,
) -> Any: ...  # the annotation beside it says the type
@overload
def option(
    default: str,
    *,
    doc: str = "",
    name: str | None = None,
    aliases: Iterable[str] = (),
    prefix: str | None = None,
    may_change: bool = True,
    secret: bool | None = None,
) -> Any: ...  # a text can be the default of every type: "30s", "128m"
@overload
def option(
    default: T,
    *,
    doc: str = "",
    name: str | None = None,
    aliases: Iterable[str] = (),
    prefix: str | None = None,
    may_change: bool = True,
    secret: bool | None = None,
) -> T: ...
@overload
def option(
    *,
    default_factory: Callable[[], T],
    doc: str = "",
    name: str | None = None,
    aliases: Iterable[str] = (),
    prefix: str | None = None,
    may_change: bool = True,
    secret: bool | None = None,
) -> T: ...
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
    """Declare an option beside its annotation, in the body of a class.

    For example `start: int = option(10, doc="the first number")`. Without `default` and `default_factory` it is
    required; one with a prefix is empty then.

    Args:
        default: The value when none is given, typed or as the text a user would write (`"30s"`).
        default_factory: Makes the default, where it is mutable.
        doc: One line for users.
        name: The name users write, where it is not the camelCase of the Python name: `fetchOffset.numRetries`.
        aliases: Other names that are understood.
        prefix: The option is a map of all options whose names begin like this, without it. Spark lower-cases names.
            Empty: of all that are no other option's; then no name is unknown, and the source has to refuse misspelt
            ones itself.
        may_change: Whether a streaming query may be restarted with another value.
        secret: Whether the value is never shown. None: yes for `Secret`, and for keys of a map that sound secret.

    Raises:
        ValueError: The default is mutable, or given twice.
    """
    if default_factory is not None and default is not REQUIRED:
        raise ValueError("give default or default_factory, not both")
    if type(default).__hash__ is None:
        raise ValueError(f"mutable default {type(default).__name__} is not allowed: use default_factory")
    declared = Declared(
        doc, name, (aliases,) if isinstance(aliases, str) else tuple(aliases), prefix, may_change, secret
    )
    # A generated repr shows neither secrets nor what was passed through to a client: see `redact_options`.
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
    """One option of a class, as `class_options` finds it. Immutable; for any thread.

    Args:
        python_name: The name of the attribute.
        name: The name in Spark and in the documentation.
        type: The annotation, resolved.
        default: The default as it was declared; `REQUIRED` if there is none, or a factory.
        default_factory: Makes the default, if it was declared like this.
        doc: One line for users.
        aliases: Other names that are understood.
        prefix: It collects all options that begin like this.
        may_change: Whether a restart may change it.
        secret: True: never shown. False: shown. None: shown, but for `Secret`s and keys of a map that sound secret.
        owner: The name of the class that has it, for messages.
        kind: How it is read and written.
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
        """Whether a value must be given."""
        return self.default is REQUIRED and self.default_factory is None

    @property
    def shown_name(self) -> str:
        """The name in lists and messages: `kafka.*` for a prefix."""
        return self.name if self.prefix is None else f"{self.prefix}*"

    @property
    def spellings(self) -> frozenset[str]:
        """All names this option answers to, in lower case."""
        return frozenset(name.lower() for name in (self.name, self.python_name, *self.aliases))

    def fresh_default(self) -> Any:
        """Return the default, typed; a new one each time, since it may be mutable.

        Raises:
            ConfigurationError: There is none, or it does not fit.
        """
        if self.required:
            raise ConfigurationError(f"the option {self.name!r} has no default", option=self.name)
        return self.convert(self.default if self.default_factory is None else self.default_factory())

    def convert(self, value: object, *, written: str | None = None, source: str | None = None, key: str = "") -> Any:
        """Return a value, typed or text, as this option's type; containers are copied.

        Args:
            value: What was given.
            written: The name as the user wrote it, for messages.
            source: Whose option it is, for messages.
            key: If `value` is one entry of a map: its key, behind the prefix.

        Raises:
            ConfigurationError: It does not fit. A secret is not repeated.
        """
        kind = self.kind.item if key and isinstance(self.kind, Map) else self.kind
        name = written or self.name
        try:
            return kind.parse(value, key)
        except ConfigurationError as error:
            raise error.located(option=name, source=source) from None
        except ValueError as error:
            hidden = self.hides(key) or self.kind.holds_secret
            why = f" ({error})" if str(error) else ""
            given = "" if hidden else f", not {_shown(value)}{why}"
        # Not raised inside the handler: the error there repeats the value, which may be secret.
        raise ConfigurationError(
            f"{name!r} takes {kind.expects}{given}",
            option=name,
            source=source,
            advice=f"write for example {kind.example}",
        )

    def text(self, value: object, *, key: str = "", readable: bool = True) -> str:
        """Return the text that `convert` reads as `value`. It may be secret: `format_options` looks after that.

        Args:
            value: A value of this option's type.
            key: If `value` is one entry of a map: its key, behind the prefix.
            readable: Whether it must be read back as the value. If not, it is for people: `null` for None.

        Raises:
            ConfigurationError: No text means this value, for instance None where every text is a str.
        """
        kind = self.kind.item if key and isinstance(self.kind, Map) else self.kind
        try:
            text = kind.text(value)
            if not readable or not kind.ambiguous or kind.parse(text, key) == value:
                return text
        except (ValueError, StopIteration):
            text = ""
        shown = "this value" if self.hides(key) or self.kind.holds_secret else _shown(value)
        raise ConfigurationError(
            f"no text means {shown} for {self.name!r}",
            option=self.name,
            advice="use another value, or give the source as a Python object",
        )

    def hides(self, key: str = "") -> bool:
        """Whether the value, or that of one key of a map, is secret whatever its type."""
        return is_sensitive(key) if self.secret is None else self.secret


def _shown(value: object) -> str:
    text = mask_values(repr(value))
    return text if len(text) <= 80 else text[:77] + "..."
