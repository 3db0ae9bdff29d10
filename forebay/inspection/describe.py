# SPDX-License-Identifier: Apache-2.0
"""`forebay.describe`, `forebay.peek`: options, schema and first rows of a source, and what is installed."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from html import escape

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from forebay.errors import ConfigurationError, ForebayError, printable
from forebay.framework import inprocess
from forebay.framework.inprocess.running import schema_of
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.source import Source
from forebay.options import class_options, default_text, option_values, redact_options, type_text
from forebay.registry import default_registry
from forebay.text_tables import html_table, text_table

# -- `forebay.describe`: the options and the schema of a source.


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
    cls = default_registry.lookup(name)
    if not issubclass(cls, Source):
        raise ConfigurationError(f"{cls!r} is not a source", source=name, advice="derive it from forebay.Source")
    return cls


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


# -- The formats that this environment offers, with the options of each.


@dataclass(frozen=True)
class InstalledSource:
    """A format that Spark and the command line find by name.

    Args:
        name: The format name.
        target: The class: `package.module:Class`.
        origin: Where it comes from: "built into forebay", "the package shop 1.2".
        summary: The first line of the class's docstring.
        options: Rows of name, type, default ("required" if there is none), and meaning.
        problem: Why the class cannot be used here, with the next step; empty if it can.
    """

    name: str
    target: str
    origin: str
    summary: str = ""
    options: tuple[tuple[str, str, str, str], ...] = ()
    problem: str = ""

    def to_json(self) -> dict[str, object]:
        """Return the fields as JSON values."""
        options = [dict(zip(("name", "type", "default", "meaning"), row, strict=True)) for row in self.options]
        fields = {"name": self.name, "class": self.target, "origin": self.origin, "summary": self.summary}
        return {**fields, "options": options, "problem": self.problem or None}


def installed_sources() -> list[InstalledSource]:
    """Return every installed format, sorted by name. A package that cannot be loaded is listed with its problem."""
    sources = []
    for entry in default_registry.entries():
        try:
            shown = describe(entry.name)
        except ForebayError as error:
            sources.append(InstalledSource(entry.name, entry.path, entry.origin, problem=str(error)))
        else:
            sources.append(InstalledSource(entry.name, entry.path, entry.origin, shown.summary, shown.options))
    return sources


def sources_table(sources: list[InstalledSource]) -> str:
    """Return a table of the formats; the problems follow it."""
    rows = [
        (source.name, source.origin, "cannot be loaded" if source.problem else source.summary) for source in sources
    ]
    problems = [f"\n{source.name}: {source.problem}" for source in sources if source.problem]
    return "\n".join([text_table(("format", "from", "what it reads"), rows), *problems])


# -- `forebay.peek`: the first rows of a source, as a table.


class Peek:
    """The first rows of a source: text when printed, HTML in a notebook.

    Args:
        table: The rows.
        requested: The requested number of rows.
    """

    def __init__(self, table: pa.Table, requested: int) -> None:
        self.table = table
        """The rows as an Arrow table."""
        self._requested = requested

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __str__(self) -> str:
        return f"{text_table(self.table.schema.names, self._rows())}\n{self._footer()}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the HTML for a notebook."""
        return html_table(self.table.schema.names, self._rows()) + f"<p>{self._footer()}</p>"

    def _rows(self) -> list[list[str]]:
        return [list(row) for row in zip(*map(_texts, self.table.columns), strict=True)]

    def _footer(self) -> str:
        rows = len(self)
        return f"{rows} row{'' if rows == 1 else 's'}" + ("" if rows < self._requested else ", perhaps more")


def _texts(column: pa.ChunkedArray) -> list[str]:
    if _has_nanoseconds(column):
        return [_text(column.slice(row, 1)) for row in range(len(column))]
    try:
        return ["null" if value is None else str(value) for value in column.to_pylist()]
    except (OverflowError, ValueError):  # Python's times end with the year 9999 and have microseconds
        return [_text(column.slice(row, 1)) for row in range(len(column))]


def _text(column: pa.ChunkedArray) -> str:
    """Return a column of one row as text, even if Python cannot represent its value."""
    if not _has_nanoseconds(column):
        with suppress(OverflowError, ValueError):
            value = column[0].as_py()
            return "null" if value is None else str(value)
    try:
        return str(pc.cast(column, pa.string())[0].as_py())
    except pa.ArrowNotImplementedError:  # a list, a struct, a map
        return " ".join(str(column.combine_chunks()).split()[1:-1])


def _has_nanoseconds(column: pa.ChunkedArray) -> bool:
    """Return whether a value is finer than a microsecond. `to_pylist` silently shortens such a time of day."""
    if not kinds.is_temporal(column.type) or getattr(column.type, "unit", "") != "ns":
        return False
    nanos = pc.cast(column, pa.int64())
    return pc.any(pc.not_equal(pc.multiply(pc.divide(nanos, 1000), 1000), nanos)).as_py() is True


def peek(source: Source, n: int = 20) -> Peek:
    """Return the first rows of a source, read in this process without Spark and Java.

    The function reads as little as possible. It reads an unbounded source no further than its current end.

    Args:
        source: The source.
        n: Maximum number of rows.

    Raises:
        ForebayError: Reading failed.
    """
    return Peek(inprocess.peek(source, n), n)
