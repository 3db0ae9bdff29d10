# SPDX-License-Identifier: Apache-2.0
"""Parses the options that a user gave into typed values. Errors suggest the intended names."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from forebay.errors import ConfigurationError
from forebay.options.redaction import hide_options
from forebay.options.spec import OptionSpec, class_options, plain_attribute

T = TypeVar("T")


@dataclass(frozen=True)
class Given:
    """One option as the user gave it.

    Args:
        written: The name, as the user wrote it.
        value: The value, as a text or typed.
        key: The rest of the name after the prefix of the option; empty if the option has no prefix.
        shown: The name for messages, in the declared case, because Spark lower-cases names.
    """

    written: str
    value: object
    key: str = ""
    shown: str = field(default="", compare=False)


def parse_options(
    specs: Iterable[OptionSpec],
    options: Mapping[str, object],
    *,
    source: str,
    defaults: Mapping[str, object] | None = None,
    owner: type | None = None,
) -> dict[str, Any]:
    """Return the value of every option, given or default, by the option's Python name.

    Spark names, Python names and aliases are matched case-insensitively. A name that matches exactly takes precedence
    over a prefix, and a longer prefix over a shorter one.

    Args:
        specs: All accepted options.
        options: The user's options, as text or typed.
        source: The format name, for messages.
        defaults: Values, by Python name, that replace the declared defaults.
        owner: The class of the source, for an error text about an attribute without an annotation; None if unknown.

    Raises:
        ConfigurationError: An option is unknown, given twice with different values, of the wrong type, or missing.
    """
    specs = tuple(specs)
    sorted_out, unknown = sort_out(specs, options)
    if unknown:
        raise _unknown(specs, unknown, source, owner)
    values: dict[str, Any] = {}
    missing: list[OptionSpec] = []
    for spec in specs:
        if spec.python_name in sorted_out:
            values[spec.python_name] = value_of(spec, sorted_out[spec.python_name], source)
        elif defaults and spec.python_name in defaults:
            values[spec.python_name] = spec.convert(defaults[spec.python_name], source=source)
        elif spec.required:
            missing.append(spec)
        else:
            values[spec.python_name] = spec.fresh_default()
    if missing:
        raise _missing(missing, source)
    return values


def explain_names(cls: type[T]) -> type[T]:
    """Let the constructor of a dataclass raise errors that name unknown and missing options; return the class."""
    generated = cls.__init__

    @functools.wraps(generated)
    def init(self: object, *args: object, **given: object) -> None:
        specs = class_options(type(self))
        source = str(getattr(type(self), "name", type(self).__name__))
        known = {spec.python_name for spec in specs}
        if unknown := [name for name in given if name not in known]:
            raise _unknown(specs, unknown, source, type(self), in_python=True)
        if not args and (missing := [spec for spec in specs if spec.required and spec.python_name not in given]):
            raise _missing(missing, source, in_python=True)
        generated(self, *args, **given)

    cls.__init__ = init  # type: ignore[method-assign]
    return cls


def given_options(specs: Iterable[OptionSpec], options: Mapping[str, object]) -> frozenset[str]:
    """Return the Python names of the options that the user gave. Unknown names are ignored."""
    by_name, _ = sort_out(tuple(specs), options)
    return frozenset(by_name)


def coerce_fields(instance: object, *, source: str | None = None) -> None:
    """Check the options of a dataclass instance, and convert them to their types in place. Called in `__post_init__`.

    Every type may be given as text, as in `KafkaSource(max_wait="500ms")`; mutable values are copied.

    Raises:
        ConfigurationError: A value is invalid.
        ContractError: The class has an invalid declaration.
    """
    for spec in class_options(type(instance)):
        value = spec.convert(
            getattr(instance, spec.python_name), written=spec.python_name, source=source or type(instance).__name__
        )
        object.__setattr__(instance, spec.python_name, value)
    hide_options(instance)


def sort_out(specs: Sequence[OptionSpec], options: Mapping[str, object]) -> tuple[dict[str, list[Given]], list[str]]:
    """Match the given names with the options. Return the given values by Python name, and the unknown names."""
    by_spelling = {spelling: spec for spec in specs for spelling in spec.spellings}
    prefixes = {spec.prefix.lower(): spec for spec in specs if spec.prefix is not None}
    sorted_out: dict[str, list[Given]] = {}
    unknown = []
    for written, value in options.items():
        name = written.lower()
        prefix = max((p for p in prefixes if name.startswith(p) and name != p), key=len, default=None)
        if name in by_spelling:
            spec = by_spelling[name]
            shown = next(
                spelling for spelling in (spec.name, spec.python_name, *spec.aliases) if spelling.lower() == name
            )
            sorted_out.setdefault(spec.python_name, []).append(Given(written, value, shown=shown))
        elif prefix is not None:
            spec, key = prefixes[prefix], written[len(prefix) :]
            entry = Given(written, value, key, shown=f"{spec.prefix}{key}")
            sorted_out.setdefault(spec.python_name, []).append(entry)
        else:
            unknown.append(written)
    return sorted_out, unknown


def value_of(spec: OptionSpec, occurrences: Sequence[Given], source: str) -> Any:
    """Return the value of an option from the entries that the user gave. For a prefix, it is a map of all entries.

    Raises:
        ConfigurationError: A value is invalid, or two entries for the same name differ.
    """
    if spec.prefix is None:
        values = [spec.convert(item.value, written=item.shown, source=source) for item in occurrences]
        for item, value in zip(occurrences, values, strict=True):
            if value != values[0]:
                raise _disagreement(spec, occurrences[0], item, source)
        return values[0]
    entries: dict[str, tuple[Given, object]] = {}
    for item in occurrences:
        value = spec.convert(item.value, written=item.shown, source=source, key=item.key)
        for key, entry in {item.key: value}.items() if item.key else value.items():
            if key in entries and entries[key][1] != entry:
                raise _disagreement(spec, entries[key][0], item, source)
            entries[key] = (item, entry)
    return {key: entry for key, (_, entry) in entries.items()}


def _disagreement(spec: OptionSpec, first: Given, second: Given, source: str) -> ConfigurationError:
    values = ""
    if not (spec.hides(first.key) or spec.hides(second.key) or spec.kind.holds_secret or spec.prefix):
        values = f": {first.value!r} and {second.value!r}"
    return ConfigurationError(
        f"{first.shown!r} and {second.shown!r} are the same option with different values{values}",
        source=source,
        option=second.shown,
        advice=f"give only {spec.shown_name!r}",
    )


def _unknown(
    specs: Sequence[OptionSpec],
    unknown: Sequence[str],
    source: str,
    owner: type | None = None,
    *,
    in_python: bool = False,
) -> ConfigurationError:
    plain = [attribute for name in unknown if owner is not None and (attribute := plain_attribute(owner, name))]
    if plain and owner is not None:
        value = getattr(owner, plain[0])
        return ConfigurationError(
            f"{plain[0]!r} is an attribute of {owner.__name__} without an annotation, so it is not an option",
            source=source,
            option=unknown[0],
            advice=f"annotate it in the class to make it an option: `{plain[0]}: {type(value).__name__} = …`",
        )
    if in_python:
        known = sorted((spec.python_name for spec in specs), key=str.lower)
        answers = {spelling: spec.python_name for spec in specs for spelling in spec.spellings}
    else:
        known = sorted({spec.shown_name for spec in specs}, key=str.lower)
        answers = {spelling: spec.name for spec in specs if not spec.prefix for spelling in spec.spellings}
        answers |= {alias.lower(): alias for spec in specs for alias in spec.aliases}
    sentences = [_unknown_name(name, specs, answers) for name in unknown]
    return ConfigurationError(
        f"{source} has no such option: " + "; ".join(sentences),
        source=source,
        option=", ".join(unknown),
        advice=f"use one of the options {', '.join(known)}" if known else "remove it: there are no options",
    )


def _unknown_name(name: str, specs: Sequence[OptionSpec], answers: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(name.lower(), answers, 1)
    if near:
        return f"{name!r}, did you mean {answers[near[0]]!r}?"
    # kafaka.group.id: compare the part before the dot with the prefixes.
    heads = {spec.prefix.lower(): spec.prefix for spec in specs if spec.prefix}
    head, dot, tail = name.partition(".")
    near = difflib.get_close_matches(head.lower() + dot, heads, 1)
    return f"{name!r}, did you mean {heads[near[0]] + tail!r}?" if near else repr(name)


def _missing(missing: Collection[OptionSpec], source: str, *, in_python: bool = False) -> ConfigurationError:
    called = {spec.python_name: spec.python_name if in_python else spec.name for spec in missing}
    names = [f"{called[spec.python_name]!r} ({spec.doc or spec.kind.expects})" for spec in missing]
    quote = repr if in_python else str
    examples = ", ".join(f"{called[spec.python_name]}={quote(spec.kind.example)}" for spec in missing)
    return ConfigurationError(
        f"{source} needs {'an option that is' if len(names) == 1 else 'options that are'} missing: {', '.join(names)}",
        source=source,
        option=", ".join(called.values()),
        advice=f"give {'it' if len(names) == 1 else 'them'}, for example {examples}",
    )
