# SPDX-License-Identifier: Apache-2.0
"""From typed values back to texts, for stores, logs and tables; and what a restart may not change."""

from __future__ import annotations

import json
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args, get_origin

from forebay.errors import ConfigurationError
from forebay.options._kinds import choice_text
from forebay.options.classes import class_options
from forebay.options.embedded import mask_values
from forebay.options.parsing import Given, sort_out, value_of
from forebay.options.secret import REDACTED, Secret
from forebay.options.spec import OptionSpec


class OptionRow(NamedTuple):
    """One line of a table of options, all texts; `default` is empty for a required option."""

    name: str
    type: str
    default: str
    doc: str
    aliases: str
    required: bool
    may_change: bool
    python_name: str
    owner: str


def option_values(instance: object) -> dict[str, Any]:
    """Return the values of an instance's options by Python name: what `format_options` and `redact_options` take."""
    return {spec.python_name: getattr(instance, spec.python_name) for spec in class_options(type(instance))}


NONE_TEXT: Final = "\0none"
"""Stands in a checkpoint for None where every text that a user can write is another value."""


def format_options(
    specs: Iterable[OptionSpec], values: Mapping[str, Any], *, reveal: bool = False, nones: bool = False
) -> dict[str, str]:
    """Return texts, by Spark name, that `parse_options` reads as these values.

    Called by the hosts: for the options of an offset, and to hand a typed source to Spark. None is left out where it
    is the default. A secret is written as its reference (`env:NAME`); whatever else is secret is left out.

    Args:
        specs: The options.
        values: By Python name; what is not there is left out.
        reveal: Write all secrets in plain text. Only for what stays in the memory of this process.
        nones: Write `NONE_TEXT` for None where no text means it. Only for what `changed_on_restart` compares.

    Raises:
        ConfigurationError: No text means a value.
        TypeError: A value belongs to none of the options.
    """
    return dict(_texts(tuple(specs), values, _Show.ALL if reveal else _Show.KEPT if nones else _Show.SAFE))


def redact_options(specs: Iterable[OptionSpec], values: Mapping[str, Any]) -> dict[str, str]:
    """Return texts, by Spark name, for people: `***` stands for each secret but references, and in URLs and DSNs.

    For logs and tables.

    Raises:
        ConfigurationError: No text means a value.
        TypeError: A value belongs to none of the options.
    """
    return dict(_texts(tuple(specs), values, _Show.MASKED))


def describe_options(specs: Iterable[OptionSpec]) -> list[OptionRow]:
    """Return one row per option, in the given order, for documentation and `forebay.describe`; any thread."""
    return [
        OptionRow(
            name=spec.shown_name,
            type=_type_name(spec.type),
            default=_default_text(spec),
            doc=spec.doc,
            aliases=", ".join(spec.aliases),
            required=spec.required,
            may_change=spec.may_change,
            python_name=spec.python_name,
            owner=spec.owner,
        )
        for spec in specs
    ]


def changed_on_restart(
    specs: Iterable[OptionSpec], old: Mapping[str, str], new: Mapping[str, str], *, source: str = ""
) -> None:
    """Refuse a restart with other values of options that may not change.

    Called by the hosts when they continue from a checkpoint. Values are compared, not texts (`60s` is `1m`);
    an option that is not there has its default. Secrets without a reference are in no checkpoint: not compared.

    Args:
        specs: The options; others in `old` and `new` are passed over.
        old: The texts in the checkpoint, from `format_options`.
        new: The texts of this start.
        source: The format name, for messages.

    Raises:
        ConfigurationError: Some were changed; all of them are named, with both values, secret ones without.
    """
    fixed = tuple(spec for spec in specs if not spec.may_change)
    before, after = _canonical(fixed, old, source), _canonical(fixed, new, source)
    changed = [
        name
        for name in {**before, **after}
        if before.get(name) != after.get(name)
        # Checkpoints were written that leave out such a None.
        and not (name not in old and after.get(name) == NONE_TEXT)
    ]
    if not changed:
        return
    hidden = _names_hidden(fixed, changed)
    told = []
    for name in changed:
        was, now = (_shown(texts.get(name, "not set")) for texts in (before, after))
        told.append(f"{name} (a secret)" if name in hidden else f"{name} (was {was}, is now {now})")
    raise ConfigurationError(
        "changed since the checkpoint was written, which these options may not: " + ", ".join(told),
        source=source or None,
        option=", ".join(changed),
        advice="set the old values again, or start anew with another checkpoint location",
    )


class _Show(Enum):
    """What becomes of secrets in texts: written, left out, or replaced by `***`. KEPT is SAFE with `NONE_TEXT`."""

    ALL = "all"
    SAFE = "safe"
    KEPT = "kept"
    MASKED = "masked"


_HIDDEN: Final = object()


def _texts(specs: Sequence[OptionSpec], values: Mapping[str, Any], show: _Show) -> Iterator[tuple[str, str]]:
    foreign = values.keys() - {spec.python_name for spec in specs}
    if foreign:
        raise TypeError(f"no such options: {', '.join(sorted(foreign))}")
    for spec in specs:
        value = values.get(spec.python_name, _HIDDEN)
        if value is _HIDDEN or (value is None and spec.default is None):
            continue
        if isinstance(value, Mapping) and spec.secret is not True:
            yield from _map_texts(spec, value, show, specs)
            continue
        value = _protected(value, show) if spec.kind.holds_secret or not spec.secret or show is _Show.ALL else _HIDDEN
        if value is not _HIDDEN:
            yield spec.name, _text(spec, value, show)
        elif show is _Show.MASKED:
            yield spec.shown_name, REDACTED


def _map_texts(
    spec: OptionSpec, value: Mapping[Any, Any], show: _Show, specs: Sequence[OptionSpec]
) -> Iterator[tuple[str, str]]:
    kept = {}
    for key, entry in value.items():
        plain = isinstance(entry, Secret) or show is _Show.ALL or not spec.hides(str(key))
        kept[key] = _protected(entry, show) if plain else _HIDDEN
    masked = [key for key, entry in kept.items() if entry is _HIDDEN and show is _Show.MASKED]
    kept = {key: entry for key, entry in kept.items() if entry is not _HIDDEN}
    if spec.prefix is None:
        text = _text(spec, kept, show)
        yield spec.name, json.dumps(json.loads(text) | dict.fromkeys(map(str, masked), REDACTED)) if masked else text
        return
    for key, entry in kept.items():
        name = f"{spec.prefix}{key}"
        if key and show is _Show.MASKED:  # what people see need not be read back
            yield name, _text(spec, entry, show, key)
            continue
        if not key or sort_out(specs, {name: ""})[0].get(spec.python_name) != [Given(name, "", key)]:
            raise ConfigurationError(
                f"the key {key!r} of {spec.name!r} cannot be written: {name!r} is no name, or another option's",
                option=name,
                advice=f"leave it out of {spec.name!r}",
            )
        yield name, _text(spec, entry, show, key)
    for key in masked:
        yield f"{spec.prefix}{key}", REDACTED


def _text(spec: OptionSpec, value: Any, show: _Show, key: str = "") -> str:
    try:
        text = spec.text(value, key=key, readable=show is not _Show.MASKED)
        return mask_values(text) if show is _Show.MASKED else text
    except ConfigurationError:
        if value is None and show is _Show.KEPT:
            return NONE_TEXT
        raise


def _protected(value: Any, show: _Show) -> Any:
    """The value with its secrets as far as they may be shown; `_HIDDEN` if it must be left out."""
    if isinstance(value, Secret) and value.reference is None and show is not _Show.ALL:
        return Secret(REDACTED) if show is _Show.MASKED else _HIDDEN
    if isinstance(value, Mapping):
        kept = {key: _protected(entry, show) for key, entry in value.items()}
        return _HIDDEN if any(entry is _HIDDEN for entry in kept.values()) else kept
    if isinstance(value, (list, tuple, set, frozenset)):
        entries = [_protected(entry, show) for entry in value]
        return _HIDDEN if any(entry is _HIDDEN for entry in entries) else type(value)(entries)
    return value


def _canonical(specs: Sequence[OptionSpec], given: Mapping[str, str], source: str) -> dict[str, str]:
    """The texts of all options, defaults included, each value written in one way; a text that fits no more as it is."""
    values: dict[str, Any] = {}
    kept: dict[str, str] = {}
    sorted_out, _ = sort_out(specs, given)
    for spec in specs:
        found = sorted_out.get(spec.python_name)
        if found is None and spec.required:
            continue
        if found and found[0].value == NONE_TEXT and spec.prefix is None:
            values[spec.python_name] = None
            continue
        try:
            values[spec.python_name] = value_of(spec, found, source) if found else spec.fresh_default()
        except ConfigurationError:
            kept |= {one.written: str(one.value) for one in found or ()}
    return {**format_options(specs, values, nones=True), **kept}


def _shown(text: str) -> str:
    return "none" if text == NONE_TEXT else mask_values(text)


def _names_hidden(specs: Sequence[OptionSpec], names: Iterable[str]) -> set[str]:
    sorted_out, _ = sort_out(specs, dict.fromkeys(names, ""))
    hidden = set()
    for spec in specs:
        for one in sorted_out.get(spec.python_name, ()):
            if spec.hides(one.key) or spec.kind.holds_secret:
                hidden.add(one.written)
    return hidden


def _default_text(spec: OptionSpec) -> str:
    if spec.required or spec.prefix is not None:
        return ""
    value = spec.fresh_default()
    if value is None:
        return "none"
    return redact_options([spec], {spec.python_name: value})[spec.name] or '""'


def _type_name(hint: Any) -> str:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _type_name(args[0])
    if hint is type(None) or hint is None:
        return "none"
    if origin is Literal:
        return " | ".join("none" if choice is None else choice_text(choice) for choice in args)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return " | ".join(choice_text(member) for member in hint)
    if origin in (Union, types.UnionType):
        return " | ".join(_type_name(arg) for arg in args)
    name = getattr(origin or hint, "__name__", str(hint))
    inner = ", ".join("…" if arg is Ellipsis else _type_name(arg) for arg in args)
    return f"{name}[{inner}]" if inner and origin is not None else name
