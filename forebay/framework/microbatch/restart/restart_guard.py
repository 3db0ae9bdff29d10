# SPDX-License-Identifier: Apache-2.0
"""Keeps a query from restarting with changed options or another inferred schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.framework.microbatch.offsets.offset import BEFORE_FIRST, Offset
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.source import Source
from forebay.options import changed_on_restart, class_options, format_options


@dataclass(frozen=True)
class RestartGuard:
    """The options and the inferred schema of a query, which must not change between runs.

    They are written into every offset, and compared with an offset when a run starts from it.

    Args:
        source: The source.
        options: The texts of the options that must not change; contains no secret.
        schema: The inferred columns and their types; empty if the schema was not inferred.
    """

    source: Source
    options: Mapping[str, str] = field(default_factory=dict)
    schema: str = ""

    @classmethod
    def of(cls, source: Source, options: HostOptions, inferred: pa.Schema | None) -> RestartGuard:
        """Return the guard of a source with its present options and, if its schema was inferred, this schema."""
        texts: dict[str, str] = {}
        for owner in (source, options):
            specs = [spec for spec in class_options(type(owner)) if not spec.may_change]
            values = {spec.python_name: getattr(owner, spec.python_name) for spec in specs}
            texts |= format_options(specs, values)
        return cls(source, texts, "" if inferred is None else schema_text(inferred))

    def check(self, offset: Offset) -> None:
        """Check that an offset was written with the same options and the same inferred schema.

        Raises:
            ConfigurationError: An option or the schema differs. The error names all options that do, or both schemas.
        """
        if offset.n == BEFORE_FIRST:
            return
        specs = [*class_options(type(self.source)), *class_options(HostOptions)]
        changed_on_restart(specs, offset.options, self.options, source=self.source.name)
        if offset.schema and self.schema and offset.schema != self.schema:
            raise ConfigurationError(
                f"the inferred schema has changed since the query began: it was {offset.schema}, and is now "
                f"{self.schema}",
                source=self.source.name,
                option="schema",
                advice="give the schema by .schema(…): the old one, or a new one that the sink of the query accepts",
            )


def schema_text(schema: pa.Schema) -> str:
    """Return the columns of a schema and their types as a text of one line."""
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
