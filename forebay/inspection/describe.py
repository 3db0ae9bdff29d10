# SPDX-License-Identifier: Apache-2.0
"""`forebay.describe`: what a source is, its options and its schema."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.framework.host_options import HostOptions
from forebay.framework.inprocess.running import schema_of
from forebay.framework.source import Source
from forebay.inspection.tables import html_table, printable, text_table
from forebay.options import class_options, describe_options, option_values, redact_options
from forebay.registry import default_registry


@dataclass(frozen=True)
class Description:
    """What `describe` found; prints as text, and shows as HTML in a notebook.

    Args:
        name: The format name.
        summary: The first line of the class's docstring.
        facts: Short statements: bounded or not, event time, …
        options: Rows of name, type, value or default, and meaning; secrets are hidden.
        schema: Rows of column, type and nullability; empty for a class, which has no options yet.
    """

    name: str
    summary: str
    facts: tuple[str, ...]
    options: tuple[tuple[str, str, str, str], ...]
    schema: tuple[tuple[str, str, str], ...]

    def __str__(self) -> str:
        title = f"{self.name}: {self.summary}" if self.summary else self.name
        parts = [printable(title), printable(", ".join(self.facts))]
        if self.options:
            parts.append(text_table(_OPTIONS, self.options))
        if self.schema:
            parts.append(text_table(_SCHEMA, self.schema))
        return "\n".join(part for part in parts if part)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        html = f"<h4>{escape(self.name)}</h4><p>{escape(self.summary)}<br>{escape(', '.join(self.facts))}</p>"
        if self.options:
            html += html_table(_OPTIONS, self.options)
        if self.schema:
            html += html_table(_SCHEMA, self.schema)
        return html


_OPTIONS = ("option", "type", "value", "meaning")
_SCHEMA = ("column", "type", "null")


def describe(source: type[Source | HostOptions] | Source | str | HostOptions) -> Description:
    """Say what a source is: its options with their values, and its schema. For people; works in a notebook.

    Args:
        source: A source, or a class or a format name, of which the defaults are shown and the schema is not known.
            Or `HostOptions`: the options that every source has besides its own.

    Raises:
        ConfigurationError: It is no source, or no format has the name.
        ForebayError: What the source's `schema()` raised.
    """
    if isinstance(source, str):
        source = default_registry.lookup(source)
    if isinstance(source, type) and issubclass(source, Source):
        return _description(source, None)
    if isinstance(source, Source):
        return _description(type(source), source)
    if source is HostOptions or isinstance(source, HostOptions):
        rows = _option_rows(HostOptions, source if isinstance(source, HostOptions) else None)
        return Description(HostOptions.__name__, _summary(HostOptions), (), rows, ())
    raise ConfigurationError(f"{source!r} is no source", advice="give a source, its class or a format name")


def _description(cls: type[Source], source: Source | None) -> Description:
    return Description(
        cls.name,
        _summary(cls),
        _facts(source),
        _option_rows(cls, source),
        () if source is None else _schema_rows(schema_of(source)),
    )


def _option_rows(cls: type, instance: object | None) -> tuple[tuple[str, str, str, str], ...]:
    specs = class_options(cls)
    values = {} if instance is None else option_values(instance)
    rows = []
    for spec, row in zip(specs, describe_options(specs), strict=True):
        if instance is None:
            shown = "required" if row.required else row.default
        else:
            shown = _value_text(row.name, redact_options([spec], {row.python_name: values[row.python_name]}))
        rows.append((row.name, row.type, shown, row.doc))
    return tuple(rows)


def _value_text(name: str, texts: Mapping[str, str]) -> str:
    """Return one option's value; of a prefix, all that was given under it."""
    return texts[name] if name in texts else ", ".join(map("=".join, texts.items())) or "not set"


def _summary(cls: type) -> str:
    return (inspect.getdoc(cls) or "").partition("\n")[0] if cls.__doc__ and not _generated(cls) else ""


def _generated(cls: type) -> bool:
    """Whether the docstring is the one that dataclasses make: the signature."""
    return (cls.__doc__ or "").startswith(f"{cls.__name__}(")


def _facts(source: Source | None) -> tuple[str, ...]:
    if source is None:
        return ()
    facts = ["bounded" if source.bounded else "unbounded"]
    if source.event_time is not None:
        facts.append(f"event time in column {source.event_time}")
    return tuple(facts)


def _schema_rows(schema: pa.Schema) -> tuple[tuple[str, str, str], ...]:
    return tuple((field.name, str(field.type), "yes" if field.nullable else "no") for field in schema)
