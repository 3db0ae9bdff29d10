# SPDX-License-Identifier: Apache-2.0
"""The schema of a read, which is inferred only once, and the columns that the option `columns` selects."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Protocol, TypeVar

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.framework.source import Source

S = TypeVar("S", bound=Source)

_RESOLVED = "_resolved_schema"  # without annotation, so not an option; pickled with the source


def resolve_schema(source: S, schema: pa.Schema) -> S:
    """Return a copy of the source that stores `schema`, the result of `source.schema()`, for this read.

    Hosts call it once per read, before all other uses of the source, so that the schema is inferred only once. The
    source's `with_inferred_schema`, or else `with_schema`, may make the copy, and store more, such as a list of files.
    """
    own = getattr(source, "with_inferred_schema", source.with_schema)(schema)
    if own is not None:
        return own
    resolved = copy.copy(source)
    object.__setattr__(resolved, _RESOLVED, schema)
    return resolved


class HasSchema(Protocol):
    """An object with a method `schema()`, such as a source."""

    def schema(self) -> pa.Schema: ...  # noqa: D102 - see Source


def resolved_schema(source: HasSchema) -> pa.Schema:
    """Return the schema that `resolve_schema` stored in the source; if there is none, `source.schema()`."""
    schema = vars(source).get(_RESOLVED)
    return schema if isinstance(schema, pa.Schema) else source.schema()


def select(names: Sequence[str], columns: Sequence[str], source: str) -> list[str]:
    """Return the column names that the option `columns` selects from `names`, in the order of the option.

    Case is ignored, unless two names differ only in case. `source` is the name of the source, for errors.

    Raises:
        ConfigurationError: A selected column does not exist or is selected twice, or no column is selected.
    """

    def refused(problem: str) -> ConfigurationError:
        advice = f"the columns are: {', '.join(names)}"
        return ConfigurationError(problem, source=source, option="columns", advice=advice)

    selected = []
    for column in columns:
        exact = [name for name in names if name == column]
        alike = exact or [name for name in names if name.casefold() == column.casefold()]
        if len(alike) != 1:
            problem = f"the column {column!r} matches several: {alike}" if alike else f"there is no column {column!r}"
            raise refused(problem)
        selected.append(alike[0])
    if not selected or len(set(selected)) != len(selected):
        raise refused("the option columns names a column twice" if selected else "the option columns names no column")
    return selected
