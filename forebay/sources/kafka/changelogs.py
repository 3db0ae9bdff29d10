# SPDX-License-Identifier: Apache-2.0
"""The options for reading a topic as a changelog, and the columns of such a changelog."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.formats.json.options import JsonOptions
from forebay.sources.kafka.payloads import CORRUPT, POSITIONS
from forebay.sources.kafka.records.batches import COLUMNS
from forebay.table.changelog.converters.event_converter import EventConverter
from forebay.table.changelog.converters.event_formats import EventOptions, event_images
from forebay.table.changelog.shape import CHANGE_TYPE, SEQUENCE, ChangeTraits, with_traits
from forebay.table.keys import KeySpec, stamp

NAMES: Final = {
    "value_schema": "valueSchema",
    "key_schema": "keySchema",
    "sequence": "changelogSequence",
    "missing_before": "changelogMissingBefore",
    "truncate": "changelogTruncate",
    "history": "changelogHistory",
}


@dataclass(frozen=True)
class Changelog:
    """Says how the records of a topic become changes of rows.

    Args:
        events: The change format and its options.
        options: The JSON options, the mode, and the name of the corrupt-record column.
        kept: The option `kafkaColumns`: columns of Kafka that the changelog also has.
        complete: Whether each change comes exactly once, from the first one of its row on (`changelogHistory`).
        log: Names the one topic that is read; None: there may be several, whose changes have no order between them.
        ordered: Whether all records of a key are in one partition: the option `keyOrder`.
    """

    events: EventOptions
    options: JsonOptions
    kept: Sequence[str] = field(default=())
    complete: bool = False
    log: str | None = None
    ordered: bool = True

    def converter(self, columns: Sequence[str] | None, source: str) -> EventConverter:
        """Return the converter from fetched records to changes with the selected columns (None = all).

        Raises:
            ConfigurationError: A column does not exist, or two columns have the same name.
        """
        unknown = next((name for name in self.kept if name not in COLUMNS), None)
        if unknown is not None:
            raise ConfigurationError(
                f"the Kafka source has no column {unknown!r}",
                option="kafkaColumns",
                advice=f"set kafkaColumns to some of {', '.join(COLUMNS)}",
            )
        return EventConverter(
            self.events.reader(self.options, columns),
            pa.schema([*COLUMNS.items(), *POSITIONS.items()]),
            mode=self.options.mode,
            corrupt_column=self.options.column_name_of_corrupt_record,
            corrupt_fields=[item.name for item in CORRUPT if item.name != "reason"],
            kept=self.kept,
            columns=columns,
            source=source,
        )

    def schema(self, columns: Sequence[str] | None, source: str) -> pa.Schema:
        """Return the schema of the selected columns (None = all), with the key if all key columns are selected.

        It also says which rows the changes hold. Only within one topic is the order of a key kept.

        Raises:
            ConfigurationError: A column does not exist, or two columns have the same name.
        """
        schema = self.converter(columns, source).schema
        images = event_images(self.events.form, self.events.missing_before)
        corrupt = self.options.column_name_of_corrupt_record
        if CHANGE_TYPE in schema.names:
            traits = ChangeTraits(images, self.complete, self.log is not None, self.log, corrupt, tuple(self.kept))
            schema = with_traits(schema, traits)
        key = self.events.key_names(self.options)
        if not key or not set(key) <= set(schema.names):
            return schema
        order = [SEQUENCE] if SEQUENCE in schema.names else []
        in_order = self.ordered and self.log is not None
        return stamp(schema, KeySpec.keyed_by(key, cdc=True, ordering=order), ordered=in_order)

    def raw_columns(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Return the columns of Kafka that must be fetched for the selected columns of the changelog."""
        needed = {"key", "value", "offset", *(name for name in self.kept if name in columns)}
        if self.options.column_name_of_corrupt_record in columns:
            needed |= {"topic", "partition"}
        return tuple(name for name in COLUMNS if name in needed)
