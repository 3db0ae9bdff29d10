# SPDX-License-Identifier: Apache-2.0
"""Declares an option (`option`), and describes one option of a class (`OptionSpec`)."""

from __future__ import annotations

import dataclasses
import re
import typing
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypedDict, TypeVar, Unpack, overload

from forebay.errors import ConfigurationError, ContractError
from forebay.options._kinds import READABLE, SCALARS, Kind, MapOf, documented, kind_of, own_annotations, resolved
from forebay.options.secret import is_sensitive, mask_values

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
            actual = "" if hidden else f", not {_shown(value)}{why}"
        # Raised outside the handler, because the error there may contain a secret. A default has the option's unit.
        raise ConfigurationError(
            f"{name!r} takes {kind.expects}{actual}",
            option=name,
            source=source,
            advice=f"write for example {self.default if type(self.default) is int and not key else kind.example}",
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
            advice="use another value; or, in the connector, declare the option with may_change=True",
        )

    def hides(self, key: str = "") -> bool:
        """Return whether the option's value, or its map entry `key`, must be hidden even if it is not a `Secret`."""
        return is_sensitive(key) if self.secret is None else self.secret


def _shown(value: object) -> str:
    text = mask_values(repr(value))
    return text if len(text) <= 80 else text[:77] + "..."


# -- The options of a class, derived from its annotations.
#
# A wrong declaration raises `ContractError` on first use of the options, not while the class is created, because
# unpickling first creates a notebook's class without attributes.
#
# Rules: OPT-1 the type of an option can be parsed from text. OPT-2 its default is valid. OPT-3 names are unique. OPT-4
# an
# option hides no attribute of its base classes, and nothing hides an option.


# By class, with a stamp of the annotations: an empty class may be filled later.
_cache: weakref.WeakKeyDictionary[type, tuple[object, tuple[OptionSpec, ...]]] = weakref.WeakKeyDictionary()


def class_options(cls: type) -> tuple[OptionSpec, ...]:
    """Return the options of a class: its annotated attributes except ClassVars, those of base classes first.

    Thread-safe.

    Raises:
        ContractError: The class breaks one of the rules OPT-1 to OPT-4.
    """
    stamp = tuple((tuple(own_annotations(base)), id(vars(base).get("__dataclass_fields__"))) for base in cls.__mro__)
    known = _cache.get(cls)
    if known is None or known[0] != stamp:
        known = _cache[cls] = (stamp, _derive(cls))
    return known[1]


def plain_attribute(cls: type, written: str) -> str | None:
    """Return the name of the unannotated attribute that a user mistook for an option; None if there is none.

    Used for error messages. Attributes that a base class defines, such as `bounded`, are ignored. `written` is the
    option name that the user wrote.
    """
    for base in cls.__mro__[:-1]:
        for name, value in vars(base).items():
            inherited = any(name in vars(further) for further in base.__mro__[1:])
            if name.startswith("_") or inherited or callable(value) or hasattr(type(value), "__get__"):
                continue
            if written.lower() in (name.lower(), camel_case(name).lower()) and name not in own_annotations(base):
                return name
    return None


def merge_specs(*groups: Iterable[OptionSpec]) -> tuple[OptionSpec, ...]:
    """Return the options of several owners, such as a source and its host, as one tuple.

    Raises:
        ContractError: Two options have the same name, or the prefix of one option matches the name of another (OPT-3).
    """
    merged = tuple(spec for group in groups for spec in group)
    _refuse_clashes(merged)
    return merged


def camel_case(name: str) -> str:
    """Return the Spark name of an option with a Python name: `max_bytes_` → `maxBytes`."""
    return re.sub(r"(?<=[^_])_+([^_])", lambda match: match[1].upper(), name.rstrip("_"))


def _derive(cls: type) -> tuple[OptionSpec, ...]:
    specs: dict[str, OptionSpec] = {}
    for base in reversed(cls.__mro__[:-1]):
        annotations, documents = own_annotations(base), documented(base)
        for name in sorted((vars(base).keys() & specs.keys()) - annotations.keys()):
            raise _mistake(
                cls,
                "OPT-4",
                f"{base.__name__} sets {name!r}, an option of {specs[name].owner}, without an annotation",
                f"write `{name}: <type> = …`, which changes the default",
            )
        for name, annotation in annotations.items():
            field = _field(base, name)
            hint = _hint(cls, base, name, annotation) if field else None
            if field is not None and hint is not None:
                _refuse_hiding(cls, base, name, field)
                specs[name] = _spec(base, name, hint, field, documents.get(name, ""))
    _refuse_clashes(specs.values())
    return tuple(specs.values())


def _field(base: type, name: str) -> dataclasses.Field[Any] | None:
    """Return the dataclass field of an annotated attribute; None if it is not a constructor argument."""
    fields: Mapping[str, Any] = vars(base).get("__dataclass_fields__", {})
    declared = fields.get(name, vars(base).get(name, dataclasses.MISSING))
    if not isinstance(declared, dataclasses.Field):
        declared = dataclasses.field() if _is_missing(declared) else dataclasses.field(default=declared)
    return declared if declared.init else None


def _is_missing(value: object) -> bool:
    # Compared by type, because a class that is pickled by value brings its own copy of MISSING.
    return isinstance(value, type(dataclasses.MISSING))


def _hint(cls: type, base: type, name: str, annotation: object) -> Any:
    """Return the type of an option from its annotation; None for ClassVar and KW_ONLY, which declare no option.

    `base` is the base class of `cls` that has the annotation.
    """
    try:
        hint = resolved(base, annotation)
    except Exception as error:  # an annotation is code
        raise _mistake(
            cls,
            "OPT-1",
            f"the type {annotation!r} of {name!r} cannot be resolved: {error}",
            "define or import it at the top level of the module or cell, not under TYPE_CHECKING",
        ) from error
    if hint is dataclasses.KW_ONLY or typing.ClassVar in (hint, typing.get_origin(hint)):
        return None
    if isinstance(hint, dataclasses.InitVar) or name.startswith("_"):
        raise _mistake(
            cls,
            "OPT-1",
            f"{name!r} cannot be an option: it is an InitVar, or begins with an underscore",
            "remove its annotation, or make it ClassVar[…]",
        )
    return hint


def _refuse_hiding(cls: type, base: type, name: str, field: dataclasses.Field[Any]) -> None:
    for earlier in base.__mro__[1:-1]:
        annotations = own_annotations(earlier)
        if name in annotations:
            if _hint(cls, earlier, name, annotations[name]) is None:
                raise _mistake(
                    cls,
                    "OPT-4",
                    f"{name!r} is an attribute of {earlier.__name__}, not an option",
                    f"set it without an annotation (`{name} = …`), or choose another name",
                )
        elif name in vars(earlier):
            # A default replaces a property, but a property would refuse the value of a required option.
            hidden = vars(earlier)[name]
            required = _is_missing(field.default)
            if required or callable(hidden) or isinstance(hidden, (classmethod, staticmethod)):
                raise _mistake(
                    cls, "OPT-4", f"the option {name!r} would hide {earlier.__name__}.{name}", "choose another name"
                )


def _spec(owner: type, name: str, hint: Any, field: dataclasses.Field[Any], document: str) -> OptionSpec:
    declared = field.metadata.get(METADATA, Declared())
    factory: Any = field.default_factory
    notes = " ".join(note for note in getattr(hint, "__metadata__", ()) if isinstance(note, str))
    try:
        kind = kind_of(hint)
    except ValueError as error:
        raise _mistake(owner, "OPT-1", f"the option {name!r}: {error}", f"use {READABLE}") from error
    spec = OptionSpec(
        python_name=name,
        name=declared.name or camel_case(name),
        type=hint,
        default=REQUIRED if _is_missing(field.default) else field.default,
        default_factory=None if _is_missing(factory) else factory,
        doc=declared.doc or notes or document,
        aliases=declared.aliases,
        prefix=declared.prefix,
        may_change=declared.may_change,
        secret=declared.secret,
        owner=owner.__name__,
        kind=kind,
    )
    if spec.prefix is not None and not (isinstance(kind, MapOf) and kind.key is SCALARS[str]):
        raise _mistake(
            owner, "OPT-1", f"the prefix option {name!r} is not a dict[str, …]", "use this type, or remove the prefix"
        )
    if not spec.required:
        try:
            spec.fresh_default()
        except ConfigurationError as error:
            raise _mistake(
                owner, "OPT-2", f"the default is invalid: {error.message}", "change the default or the type"
            ) from error
    return spec


def _refuse_clashes(specs: Collection[OptionSpec]) -> None:
    for first, second, what in _clashes(tuple(specs)):
        if first.owner == second.owner:
            owners = f"{first.owner} has two options, {first.python_name!r} and {second.python_name!r}, called {what}"
        else:
            owners = f"{first.owner}.{first.python_name} and {second.owner}.{second.python_name} are both called {what}"
        raise ContractError(owners, option=what, rule="OPT-3", advice="give one of them another name (`name=`)")


def _clashes(specs: tuple[OptionSpec, ...]) -> Iterator[tuple[OptionSpec, OptionSpec, str]]:
    for at, first in enumerate(specs):
        for second in specs[at + 1 :]:
            for spelling in sorted(first.spellings & second.spellings):
                yield first, second, spelling
            if first.prefix is not None and second.prefix is not None and first.prefix.lower() == second.prefix.lower():
                yield first, second, first.shown_name
            # One class may have an exact name with its own prefix: `kafka.group.id` beside `kafka.*`.
            if first.owner != second.owner:
                for one, other in ((first, second), (second, first)):
                    if one.prefix and any(spelling.startswith(one.prefix.lower()) for spelling in other.spellings):
                        yield first, second, one.shown_name


def _mistake(cls: type, rule: str, message: str, advice: str) -> ContractError:
    return ContractError(f"{cls.__name__}: {message}", source=cls.__name__, rule=rule, advice=advice)
