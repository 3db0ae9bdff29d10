# SPDX-License-Identifier: Apache-2.0
"""Writes option values as texts for checkpoints, logs and tables, and compares them with those of a checkpoint."""

from __future__ import annotations

import json
import logging
import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from forebay.errors import ConfigurationError
from forebay.options._kinds import choice_text
from forebay.options.parsing import Given, sort_out, value_of
from forebay.options.secret import REDACTED, Secret, mask_users, mask_values
from forebay.options.spec import OptionSpec, class_options

_log = logging.getLogger(__name__)

NONE_TEXT: Final = "\0none"
"""Stands for None in a checkpoint, for options that parse every other text as a value."""


# URLs may contain secrets: a password before the host, a token in the query.
_PASSWORD = re.compile(r"(://[^/\s:@]*):[^/\s@]*@")
_TOKEN = re.compile(r"([?&][^=&\s]*(?:secret|passw|token|credential|key|sig)[^=&\s]*)=[^&\s]*", re.IGNORECASE)


def option_values(instance: object) -> dict[str, Any]:
    """Return the option values of an instance, by Python name."""
    return {spec.python_name: getattr(instance, spec.python_name) for spec in class_options(type(instance))}


def format_options(specs: Iterable[OptionSpec], values: Mapping[str, Any]) -> dict[str, str]:
    """Return the options' values as texts for a checkpoint, by Spark name; `parse_options` parses them back.

    A None that is the default is omitted. A None that no text can express is written as `NONE_TEXT`. A secret is
    written as its reference (`env:NAME`), or omitted if it has none. `values` has the values by Python name; options
    without a value are omitted.

    Raises:
        ConfigurationError: A value cannot be written as text.
        TypeError: A name in `values` is not an option.
    """
    return dict(_texts(tuple(specs), values, masked=False))


def redact_options(specs: Iterable[OptionSpec], values: Mapping[str, Any]) -> dict[str, str]:
    """Return the options' values as texts for logs and tables, by Spark name. Secrets are `***`; references are shown.

    Raises:
        TypeError: A name in `values` is not an option.
    """
    return dict(_texts(tuple(specs), values, masked=True))


def fixed_options(instance: object) -> dict[str, str]:
    """Return the texts of the options that must not change on restart, for a checkpoint. Secrets are omitted."""
    specs = class_options(type(instance))
    return _separate_texts(specs, [spec for spec in specs if not spec.may_change], option_values(instance))


def changeable_options(instance: object) -> dict[str, str]:
    """Return the texts of the options that may change on restart, for a checkpoint.

    Secrets are omitted, also the ones in URLs.
    """
    specs = class_options(type(instance))
    return _separate_texts(specs, _changeable(specs), option_values(instance))


def changed_on_restart(
    specs: Iterable[OptionSpec], old: Mapping[str, str], new: Mapping[str, str], *, source: str = ""
) -> None:
    """Refuse a restart that changes fixed options.

    Called by hosts when they continue from a checkpoint. Values are compared, not texts (`60s` is `1m`). An option that
    is missing in the checkpoint counts as its default. Secrets that are not references are not in the checkpoint, so
    they are not compared.

    Raises:
        ConfigurationError: A fixed option was changed. The error names all of them, with both values unless they are
            secret.
    """
    changes = _changes([spec for spec in specs if not spec.may_change], old, new, source)
    if changes:
        raise ConfigurationError(
            "these options must not change, but have changed since the checkpoint was written: "
            + ", ".join(changes.values()),
            source=source or None,
            option=", ".join(changes),
            advice="restore the old values, or start from the beginning with a new checkpoint directory",
        )


def warn_of_changes(instance: object, old: Mapping[str, str], *, source: str) -> None:
    """Log one warning that names all changeable options whose values differ from those in a checkpoint.

    If no value differs, it logs nothing. `old` has the checkpoint's texts by option name.
    """
    specs = class_options(type(instance))
    changes = _changes(_changeable(specs), old, changeable_options(instance), source)
    _, removed = sort_out(specs, old)
    changes |= {name: f"{name} (was {_shown(old[name])}, is not an option now)" for name in removed}
    if changes:
        _log.warning(
            "%s: options changed since the checkpoint: %s; known splits keep their progress, and finished ones are not "
            "read again: to read everything again, use another checkpoint directory",
            source,
            ", ".join(changes.values()),
        )


def default_text(spec: OptionSpec) -> str:
    """Return the default of an option as a text for a table; empty if the option has no default."""
    if spec.required or spec.prefix is not None:
        return ""
    value = spec.fresh_default()
    if value is None:
        return "none"
    return redact_options([spec], {spec.python_name: value})[spec.name] or '""'


def type_text(hint: Any) -> str:
    """Return the type of an option as a text for a table."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return type_text(args[0])
    if hint is type(None) or hint is None:
        return "none"
    if origin is Literal:
        return " | ".join("none" if choice is None else choice_text(choice) for choice in args)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return " | ".join(choice_text(member) for member in hint)
    if origin in (Union, types.UnionType):
        return " | ".join(type_text(arg) for arg in args)
    name = getattr(origin or hint, "__name__", str(hint))
    inner = ", ".join("…" if arg is Ellipsis else type_text(arg) for arg in args)
    return f"{name}[{inner}]" if inner and origin is not None else name


def _texts(specs: Sequence[OptionSpec], values: Mapping[str, Any], *, masked: bool) -> Iterator[tuple[str, str]]:
    foreign = values.keys() - {spec.python_name for spec in specs}
    if foreign:
        raise TypeError(f"these names are not options of the source: {', '.join(sorted(foreign))}")
    for spec in specs:
        value = values.get(spec.python_name)
        if spec.python_name not in values or (value is None and spec.default is None):
            continue
        if isinstance(value, Mapping) and spec.secret is not True:
            yield from _map_texts(spec, value, specs, masked=masked)
        elif spec.secret and not spec.kind.holds_secret:
            if masked:
                yield spec.shown_name, REDACTED
        elif masked or not _contains_secret(value):
            yield spec.name, _text(spec, value, masked=masked)


def _map_texts(
    spec: OptionSpec, value: Mapping[Any, Any], specs: Sequence[OptionSpec], *, masked: bool
) -> Iterator[tuple[str, str]]:
    hidden = [key for key, entry in value.items() if not isinstance(entry, Secret) and spec.hides(str(key))]
    shown = {
        key: entry for key, entry in value.items() if key not in hidden and (masked or not _contains_secret(entry))
    }
    if spec.prefix is None:
        text = _text(spec, shown, masked=masked)
        if masked and hidden:
            text = json.dumps(json.loads(text) | dict.fromkeys(map(str, hidden), REDACTED))
        yield spec.name, text
        return
    for key, entry in shown.items():
        name = f"{spec.prefix}{key}"
        parsed = sort_out(specs, {name: ""})[0].get(spec.python_name)
        if not masked and (not key or parsed != [Given(name, "", key)]):
            raise ConfigurationError(
                f"the key {key!r} of {spec.name!r} cannot be kept in a checkpoint: {name!r} is invalid or "
                "another option's name",
                option=name,
                advice=f"remove it from {spec.name!r}",
            )
        yield name, _text(spec, entry, key, masked=masked)
    if masked:
        yield from ((f"{spec.prefix}{key}", REDACTED) for key in hidden)


def _text(spec: OptionSpec, value: Any, key: str = "", *, masked: bool) -> str:
    if masked:
        return mask_values(spec.text(value, key=key, readable=False))
    try:
        return spec.text(value, key=key)
    except ConfigurationError:
        if value is None:
            return NONE_TEXT
        raise


def _contains_secret(value: object) -> bool:
    """Return whether a value is, or contains, a Secret that is not a reference."""
    if isinstance(value, Secret):
        return value.reference is None
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, (list, tuple, set, frozenset)):
        return False
    return any(map(_contains_secret, value))


def _changeable(specs: Iterable[OptionSpec]) -> list[OptionSpec]:
    return [spec for spec in specs if spec.may_change and not spec.kind.holds_secret]


def _changes(
    specs: Sequence[OptionSpec], old: Mapping[str, str], new: Mapping[str, str], source: str
) -> dict[str, str]:
    """Return the changed options by name, each with a text that shows the old and the new value."""
    before, after = _canonical(specs, old, source), _canonical(specs, new, source)
    changes = {}
    for name in {**before, **after}:
        # Older checkpoints omit None.
        omitted = name not in old and after.get(name) == NONE_TEXT
        if before.get(name) != after.get(name) and not omitted:
            was, now = (_shown(texts.get(name, "not set")) for texts in (before, after))
            changes[name] = f"{name} (was {was}, is now {now})"
    return changes | {name: f"{name} (a secret)" for name in _secret_names(specs, changes)}


def _canonical(specs: Sequence[OptionSpec], options: Mapping[str, str], source: str) -> dict[str, str]:
    """Return the texts of all options, defaults included, each in one fixed spelling.

    An invalid text is returned unchanged.
    """
    values: dict[str, Any] = {}
    invalid: dict[str, str] = {}
    sorted_out, _ = sort_out(specs, options)
    for spec in specs:
        occurrences = sorted_out.get(spec.python_name)
        if occurrences is None and spec.required:
            continue
        if occurrences and occurrences[0].value == NONE_TEXT and spec.prefix is None:
            values[spec.python_name] = None
            continue
        try:
            values[spec.python_name] = value_of(spec, occurrences, source) if occurrences else spec.fresh_default()
        except ConfigurationError:
            invalid |= {occurrence.written: str(occurrence.value) for occurrence in occurrences or ()}
    return _separate_texts(specs, specs, values) | invalid


def _separate_texts(
    specs: Sequence[OptionSpec], selected: Iterable[OptionSpec], values: Mapping[str, Any]
) -> dict[str, str]:
    """Return the texts of some options. Each is written alone, so that an unwritable value omits only itself."""
    texts: dict[str, str] = {}
    for spec in selected:
        if spec.python_name not in values:
            continue
        try:
            written = format_options(specs, {spec.python_name: values[spec.python_name]})
            "".join(written.values()).encode()
        except (ConfigurationError, ValueError, TypeError, AttributeError) as error:
            # Neither the value nor the error is logged: both may contain a secret.
            _log.debug("the option %s is not stored in checkpoints: %s", spec.name, type(error).__name__)
            continue
        texts |= {name: _redacted(text) if spec.may_change else text for name, text in written.items()}
    return texts


def _redacted(text: str) -> str:
    return _TOKEN.sub(rf"\1={REDACTED}", _PASSWORD.sub(rf"\1:{REDACTED}@", mask_users(text)))


def _shown(text: str) -> str:
    return "none" if text == NONE_TEXT else mask_values(text)


def _secret_names(specs: Sequence[OptionSpec], names: Iterable[str]) -> set[str]:
    sorted_out, _ = sort_out(specs, dict.fromkeys(names, ""))
    return {
        occurrence.written
        for spec in specs
        for occurrence in sorted_out.get(spec.python_name, ())
        if spec.hides(occurrence.key) or spec.kind.holds_secret
    }
