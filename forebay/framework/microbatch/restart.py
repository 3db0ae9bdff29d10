# SPDX-License-Identifier: Apache-2.0
"""What a restart checks and converts: options and schema that must not change, offsets of a source without forebay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.framework.microbatch.offset import BEFORE_FIRST, Offset, Planned
from forebay.framework.microbatch.split_provider import SplitProvider
from forebay.framework.runtime.connector_calls import ConnectorCalls
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.source import Source
from forebay.options import changed_on_restart, class_options, format_options

# -- Continues from a checkpoint of a source without forebay: its last offset becomes the start of a new query (S2).


class OffsetMigration:
    """Converts offsets of a source without forebay, such as Spark's own, with the author's `DiscoveryEnumerator.adopt`.

    The result is the offset before the first micro-batch, but with splits. So the enumerator counts as restored, and
    its next `discover` is called with `first=False`.
    """

    def __init__(self, source: Source, split_provider: SplitProvider, calls: ConnectorCalls) -> None:
        self._source = source
        self._split_provider = split_provider
        self._calls = calls

    def adopt(self, data: Any) -> Offset | None:  # noqa: ANN401 - any JSON value of any checkpoint
        """Return the converted offset; None if a forebay source wrote `data`, or the author's `adopt` returned None."""
        enumerator = self._split_provider.enumerator
        if enumerator is None or not is_foreign(data):
            return None
        splits = self._calls.call("adopt()", lambda: enumerator.adopt(data))
        if splits is None:
            return None
        self._split_provider.restore(None)
        return Offset(self._source.name, splits=[Planned(split, split.position) for split in splits])


def is_foreign(data: object) -> bool:
    """Return whether `data` is an offset of a source that does not use forebay: its JSON has no version."""
    return isinstance(data, Mapping) and "v" not in data


def unfinished_replay(source: str) -> ConfigurationError:
    """Return the error for a checkpoint whose last micro-batch was planned by another source and is not finished."""
    return ConfigurationError(
        "the last micro-batch in the checkpoint was planned by another source and is not finished",
        source=source,
        option="checkpointLocation",
        advice="first finish that micro-batch: run the query once with the old source and trigger(availableNow=True)",
    )


# -- Keeps a query from restarting with changed options or another inferred schema.


_COMMA = ", "


@dataclass(frozen=True)
class RestartGuard:
    """The options and the inferred schema of a query, which must not change between runs.

    They are written into every offset, and compared with an offset when a run starts from it.

    Args:
        source: The source.
        options: The options that must not change, as texts by name; contains no secret.
        schema: The inferred columns and their types, as a text; empty if the schema was not inferred.
        same: Another text of the same schema: `schema` lists whole columns and `same` the fields inside structs, or
            the reverse.
        adds_columns: Whether the source may infer more columns after a restart, also inside structs.
    """

    source: Source
    options: Mapping[str, str] = field(default_factory=dict)
    schema: str = ""
    same: str = ""
    adds_columns: bool = False

    @classmethod
    def of(cls, source: Source, options: HostOptions, inferred: pa.Schema | None) -> RestartGuard:
        """Return the guard for the present options of a source and host; `inferred` is None for a given schema."""
        texts: dict[str, str] = {}
        for owner in (source, options):
            specs = [spec for spec in class_options(type(owner)) if not spec.may_change]
            values = {spec.python_name: getattr(owner, spec.python_name) for spec in specs}
            texts |= format_options(specs, values)
        if inferred is None:
            return cls(source, texts)
        columns, leaves = schema_text(inferred), _COMMA.join(_leaves(inferred))
        # A source that may add columns, such as forebay_files, has this property.
        if getattr(source, "adds_columns", False):
            return cls(source, texts, leaves, columns, adds_columns=True)
        return cls(source, texts, columns, leaves)

    def check(self, offset: Offset) -> None:
        """Check that an offset was written with the same options and the same inferred schema.

        Raises:
            ConfigurationError: An option or the schema differs. The error names all such options, or both schemas.
        """
        if offset.n == BEFORE_FIRST:
            return
        specs = [*class_options(type(self.source)), *class_options(HostOptions)]
        changed_on_restart(specs, offset.options, self.options, source=self.source.name)
        if offset.schema and self.schema and not self._continues(offset.schema):
            raise ConfigurationError(
                f"the inferred schema has changed since the query began: it was {offset.schema}, and is now "
                f"{self.schema}",
                source=self.source.name,
                option="schema",
                advice="give the schema with .schema(…): the old one, or a new one that the sink of the query accepts",
            )

    def _continues(self, before: str) -> bool:
        """Return whether a query that began with the schema `before` may continue with the present schema."""
        if before in (self.schema, self.same):
            return True
        now = {*self.schema.split(_COMMA), *self.same.split(_COMMA)}
        return self.adds_columns and now.issuperset(before.split(_COMMA))


def schema_text(schema: pa.Schema) -> str:
    """Return the columns of a schema and their types as one line of text."""
    return _COMMA.join(f"{field.name}: {field.type}" for field in schema)


def _leaves(fields: Iterable[pa.Field], above: str = "") -> Iterator[str]:
    """Yield each column and its type as a text. For a nested column, yield its fields instead, with dotted names."""
    for each in fields:
        path = above + each.name
        inside = [each.type.field(at) for at in range(each.type.num_fields)]
        if inside:
            yield from _leaves(inside, f"{path}.")
        else:
            yield f"{path}: {each.type}"
