# SPDX-License-Identifier: Apache-2.0
"""`forebay.describe`: the options and the schema of a source."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

import pyarrow as pa

from forebay.errors import ConfigurationError, printable
from forebay.framework.inprocess.preparation import schema_of
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.source import Source
from forebay.inspection.tables import html_table, text_table
from forebay.options import class_options, default_text, option_values, redact_options, type_text
from forebay.registry import default_registry


@dataclass(frozen=True)
class Description:
    """The result of `describe`: text when printed, HTML in a notebook.

    Args:
        name: The format name.
        summary: The first line of the class's docstring.
        facts: Short statements: bounded or not, event time, …
        options: Rows of name, type, value or default, and meaning; secrets are hidden.
        schema: Rows of column, type and nullability; empty for a class.
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
        """Return the HTML for a notebook."""
        name, summary, facts = (escape(printable(text)) for text in (self.name, self.summary, ", ".join(self.facts)))
        html = f"<h4>{name}</h4><p>{summary}<br>{facts}</p>"
        if self.options:
            html += html_table(_OPTIONS, self.options)
        if self.schema:
            html += html_table(_SCHEMA, self.schema)
        return html


_OPTIONS = ("option", "type", "value", "meaning")
_SCHEMA = ("column", "type", "null")


def describe(source: type[Source | HostOptions] | Source | str | HostOptions) -> Description:
    """Describe a source: its options with their values, and its schema.

    Args:
        source: A source; or a class or format name, for its options with their defaults; or `HostOptions`, for the
            options that all sources have.

    Raises:
        ConfigurationError: The argument is not a source, or no format has this name.
        ForebayError: The source's `schema()` failed.
    """
    if isinstance(source, str):
        source = source_class(source)
    if isinstance(source, type) and issubclass(source, Source):
        return _description(source, None)
    if isinstance(source, Source):
        return _description(type(source), source)
    if source is HostOptions or isinstance(source, HostOptions):
        rows = _option_rows(HostOptions, source if isinstance(source, HostOptions) else None)
        return Description(HostOptions.__name__, _summary(HostOptions), (), rows, ())
    raise ConfigurationError(f"{source!r} is not a source", advice="give a source, its class or a format name")


def source_class(name: str) -> type[Source]:
    """Return the source class of a format.

    Raises:
        ConfigurationError: No format has the name, or its class is not a source.
    """
    found = default_registry.lookup(name)
    if not issubclass(found, Source):
        raise ConfigurationError(f"{found!r} is not a source", source=name, advice="derive it from forebay.Source")
    return found


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
    for spec in specs:
        if instance is None:
            shown = "required" if spec.required else default_text(spec)
        else:
            shown = _value_text(spec.shown_name, redact_options([spec], {spec.python_name: values[spec.python_name]}))
        rows.append((spec.shown_name, type_text(spec.type), shown, spec.doc))
    return tuple(rows)


def _value_text(name: str, texts: Mapping[str, str]) -> str:
    """Return the value of an option as text; for an option with a prefix, all of its entries."""
    return texts[name] if name in texts else ", ".join(map("=".join, texts.items())) or "not set"


def _summary(cls: type) -> str:
    # The docstring that dataclasses generate is the signature.
    generated = (cls.__doc__ or "").startswith(f"{cls.__name__}(")
    return "" if cls.__doc__ is None or generated else (inspect.getdoc(cls) or "").partition("\n")[0]


def _facts(source: Source | None) -> tuple[str, ...]:
    if source is None:
        return ()
    facts = ["bounded" if source.bounded else "unbounded"]
    if source.event_time is not None:
        facts.append(f"event time in column {source.event_time}")
    return tuple(facts)


def _schema_rows(schema: pa.Schema) -> tuple[tuple[str, str, str], ...]:
    return tuple((field.name, str(field.type), "yes" if field.nullable else "no") for field in schema)
