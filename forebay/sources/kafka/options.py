# SPDX-License-Identifier: Apache-2.0
"""Declares and validates the options of the Kafka source, without connecting to a broker."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Final, Literal, Self

import pyarrow as pa

from forebay.errors import ConfigurationError, RetriableError
from forebay.formats.values.ddl import type_text
from forebay.framework.source import Source
from forebay.options import Secret, option
from forebay.sources.kafka.bounds import Bound, BoundKind, OffsetRange, assigned_json
from forebay.sources.kafka.client.client_options import ClientOptions, translate
from forebay.sources.kafka.payloads import Payloads, json_payload_options
from forebay.sources.kafka.records.batches import MAX_BATCH_BYTES
from forebay.sources.kafka.split import TopicPartition

if TYPE_CHECKING:
    from forebay.sources.kafka.changelogs import Changelog


_JSON = ("assign", "starting_offsets", "ending_offsets", "starting_offsets_by_timestamp", "ending_offsets_by_timestamp")


class KafkaOptions(Source):
    """The base class of `KafkaSource`, with its options. The enumerator and the split reader import only this class."""

    subscribe: list[str] = option(default_factory=list, doc="names of topics, separated by commas")
    subscribe_pattern: str | None = option(default=None, doc="a Java regular expression for whole names of topics")
    assign: str | None = option(default=None, doc='partitions to read, as {"topic":[0,1]}')
    kafka: dict[str, str | Secret] = option(
        default_factory=dict, prefix="kafka.", doc="options of Java's consumer, such as kafka.bootstrap.servers"
    )
    starting_offsets: str | None = option(
        default=None,
        doc='earliest (default of a batch), latest (of a stream), committed, or {"topic":{"0":23,"1":-2}}',
    )
    starting_timestamp: int | None = option(default=None, doc="start at this time, ms since 1970")
    starting_offsets_by_timestamp: str | None = option(
        default=None, doc='start each partition at a time, ms since 1970: {"topic":{"0":1700000000000}}'
    )
    starting_offsets_by_timestamp_strategy: Literal["error", "latest"] = option(
        default="error", doc="fail, or start at the end, if a partition has no record at or after its starting time"
    )
    ending_offsets: str | None = option(default=None, doc='latest, or {"topic":{"0":50,"1":-1}}')
    ending_timestamp: int | None = option(default=None, doc="end before the first record of this time, ms since 1970")
    ending_offsets_by_timestamp: str | None = option(
        default=None, doc='end each partition before a time, ms since 1970: {"topic":{"0":1700000000000}}'
    )
    fail_on_data_loss: bool = option(default=True, doc="fail if records no longer exist when they should be read")
    min_partitions: int | None = option(default=None, doc="cut large offset ranges into about this many tasks")
    max_records_per_partition: int | None = option(default=None, doc="maximum number of offsets in one task")
    include_headers: bool = option(default=False, doc="add the column headers")
    poll_timeout_ms: int = option(
        default=120_000, name="kafkaConsumer.pollTimeoutMs", doc="ms for which a task waits for existing records"
    )
    max_record_bytes: int = option(
        default=MAX_BATCH_BYTES,
        doc="maximum bytes of a record batch after decompression (Kafka compresses batches); a larger one is an error",
    )
    num_retries: int = option(default=3, name="fetchOffset.numRetries", doc="retries of requests for offsets")
    retry_interval_ms: int = option(
        default=10, name="fetchOffset.retryIntervalMs", doc="maximum ms between retries of requests for offsets"
    )
    group_id_prefix: str = option(default="forebay-kafka", doc="the client id if kafka.group.id is not set")
    commit_offsets: bool = option(
        default=False,
        doc="commit progress to kafka.group.id for tools that show lag; the query never reads it back",
    )
    oauth_token_provider: str | None = option(
        default=None,
        doc="the class of OAUTHBEARER tokens: package.module:Provider, a kafka-python AbstractTokenProvider",
    )

    value_format: Literal["bytes", "string", "json"] = option(
        default="bytes", may_change=False, doc="decode values: raw bytes, a string, or a struct"
    )
    key_format: Literal["bytes", "string", "json"] = option(
        default="bytes", may_change=False, doc="decode keys: raw bytes, a string, or a struct"
    )
    value_schema: str | None = option(
        default=None,
        doc="the fields of JSON values, or of the rows of changes, as for from_json: id BIGINT, tags ARRAY<STRING>",
    )
    key_schema: str | None = option(default=None, doc="the fields of JSON keys, like valueSchema")
    changelog_format: Literal["debezium-json", "maxwell-json", "upsert-json"] | None = option(
        default=None, may_change=False, doc="read records as changes of rows, with the columns of a changelog"
    )
    changelog_sequence: Literal["lsn", "binlog"] | None = option(
        default=None,
        may_change=False,
        doc="add _sequence, a position in the log of PostgreSQL (lsn) or MySQL (binlog), and _log, the name of the log",
    )
    changelog_missing_before: Literal["postimage", "error"] = option(
        default="postimage",
        doc="postimage: old rows may be missing; error: each update and delete has the whole old row, or is an error",
    )
    changelog_truncate: Literal["error", "ignore"] = option(default="error", doc="what to do if a table was truncated")
    changelog_history: Literal["unknown", "complete"] = option(
        default="unknown",
        doc="complete: the topic has every change of each row exactly once, from the first one on; "
        "needs startingOffsets=earliest, and refuses failOnDataLoss=false and mode=DROPMALFORMED",
    )
    key_order: Literal["partition", "none"] = option(
        default="partition",
        may_change=False,
        doc="partition: all records of a key are in one partition, and new partitions end the query; none: no order",
    )
    kafka_columns: list[str] = option(
        default_factory=list, doc="columns of Kafka to add to a changelog, such as timestamp"
    )
    row_positions: bool = option(
        default=False, doc="add _split, the id of the split, and _pos, the offset; a changelog always has them"
    )
    mode: Literal["PERMISSIVE", "DROPMALFORMED", "FAILFAST"] = option(
        default="PERMISSIVE", doc="how to handle a record whose key or value cannot be decoded"
    )
    column_name_of_corrupt_record: str = option(default="_corrupt_record", doc="the column for undecodable records")
    json_options: dict[str, str] = option(
        default_factory=dict, prefix="json.", doc="options of Spark's from_json, such as json.timestampFormat"
    )
    time_zone: str = option(default="UTC", doc="zone of JSON times that have none; by default the session's on Spark")

    _columns: ClassVar[tuple[str, ...] | None] = None

    def __post_init__(self) -> None:
        for name in _JSON:  # Python users may pass a dict in place of Spark's JSON
            value = getattr(self, name)
            if isinstance(value, Mapping):
                object.__setattr__(self, name, json.dumps(value))
        for name in ("value_schema", "key_schema"):
            value = getattr(self, name)
            if isinstance(value, pa.Schema):
                object.__setattr__(self, name, type_text(pa.struct(list(value))))
        super().__post_init__()

    def check(self) -> None:
        """Raise ConfigurationError for options that are invalid or do not fit together. Connects to no broker."""
        try:
            self._check()
        except ConfigurationError as error:
            error.with_context(source=self.name)
            raise

    def _check(self) -> None:
        wants_group = self.offset_range.wants_group
        _ = self.subscription, self.client_options
        changelog = self.changelog()
        if changelog is None:
            self._check_no_changelog()
            _ = self.payloads()
        else:
            changelog.converter(None, self.name)
            self._check_key_order()
        for option_name, value, least in (
            ("minPartitions", self.min_partitions, 1),
            ("maxRecordsPerPartition", self.max_records_per_partition, 1),
            ("maxRecordBytes", self.max_record_bytes, 1),
            ("fetchOffset.numRetries", self.num_retries, 0),
            ("fetchOffset.retryIntervalMs", self.retry_interval_ms, 0),
            ("kafkaConsumer.pollTimeoutMs", self.poll_timeout_ms, 1),
        ):
            if value is not None and value < least:
                raise ConfigurationError(
                    f"{option_name} is {value}, but must be {least} or more",
                    option=option_name,
                    advice=f"set {option_name} to {least} or more",
                )
        if (self.commit_offsets or wants_group) and not self.group_id:
            raise ConfigurationError(
                f"{'commitOffsets' if self.commit_offsets else 'startingOffsets=committed'} needs a consumer group, "
                "but kafka.group.id is not set",
                option="kafka.group.id",
                advice="set kafka.group.id to a group that no other query uses",
            )

    def _check_key_order(self) -> None:
        for name, value in (
            ("minPartitions", self.min_partitions),
            ("maxRecordsPerPartition", self.max_records_per_partition),
        ):
            if value is not None and self.in_key_order:
                raise ConfigurationError(
                    f"{name} cuts a partition into several tasks, which keep no order of the changes of a key",
                    option=name,
                    advice=f"remove {name}; or set keyOrder=none and order the changes by changelogSequence",
                )

    def _check_no_changelog(self) -> None:
        for name, is_set in (
            ("changelogSequence", self.changelog_sequence),
            ("changelogMissingBefore", self.changelog_missing_before != "postimage"),
            ("changelogTruncate", self.changelog_truncate != "error"),
            ("changelogHistory", self.changelog_history != "unknown"),
            ("keyOrder", self.key_order != "partition"),
            ("kafkaColumns", self.kafka_columns),
        ):
            if is_set:
                raise ConfigurationError(
                    f"{name} applies to changelogs only", option=name, advice=f"set changelogFormat, or remove {name}"
                )

    @property
    def group_id(self) -> str | None:
        """The consumer group of commits and of `startingOffsets=committed`, or None. The source never joins it."""
        group = next((value for name, value in self.kafka.items() if name.lower() == "group.id"), None)
        return group.reveal() if isinstance(group, Secret) else group

    @cached_property
    def subscription(self) -> Subscription:
        """The topics or partitions to read, parsed from the options."""
        return Subscription.of(self.subscribe, self.subscribe_pattern, self.assign)

    @cached_property
    def offset_range(self) -> OffsetRange:
        """The start and the end of the read, parsed from the options."""
        start = Bound.of("starting", self.starting_timestamp, self.starting_offsets_by_timestamp, self.starting_offsets)
        end = Bound.of("ending", self.ending_timestamp, self.ending_offsets_by_timestamp, self.ending_offsets)
        latest = self.starting_offsets_by_timestamp_strategy == "latest"
        return OffsetRange.of(start, end, latest_if_no_match=latest)

    @cached_property
    def client_options(self) -> ClientOptions:
        """The options for clients of kafka-python, translated from `kafka.*`."""
        settings = dict(self.kafka)
        if not any(name.lower() == "client.id" for name in settings):
            settings["client.id"] = self.group_id or self.group_id_prefix
        return translate(settings, self.oauth_token_provider)

    def payloads(self) -> Payloads:
        """Parse how to decode keys and values. Not cached, because a host may set the time zone of a copy."""
        formats = {"key": (self.key_format, self.key_schema), "value": (self.value_format, self.value_schema)}
        return Payloads.of(
            formats,
            self.json_options,
            self.mode,
            self.column_name_of_corrupt_record,
            self.time_zone,
            row_positions=self.row_positions,
        )

    @property
    def after_loss(self) -> str:
        """The next step after records were lost: of a changelog, one of them may have deleted a row."""
        if self.changelog_format is None:
            return "read the rest with failOnDataLoss=false, or start a new checkpoint; retain records for longer"
        return (
            "let the connector send a new snapshot of the table, and apply it by a new checkpoint to an empty target: "
            "a lost change may be a delete; retain records for longer"
        )

    def changelog(self) -> Changelog | None:
        """Parse how to read records as changes; None without `changelogFormat`. Not cached, like `payloads`."""
        if self.changelog_format is None:
            return None
        for name, form in (("valueFormat", self.value_format), ("keyFormat", self.key_format)):
            if form != "bytes":
                raise ConfigurationError(
                    f"{name} is {form}, but changelogFormat decodes keys and values",
                    option=name,
                    advice=f"remove {name} or changelogFormat",
                )
        if self.include_headers:
            raise ConfigurationError(
                "includeHeaders has no effect on a changelog",
                option="includeHeaders",
                advice="remove includeHeaders, and set kafkaColumns=headers for the headers of each change",
            )
        # Imported here, because importing the converters takes 0.2 s in each new process of a query.
        from forebay.sources.kafka.changelogs import NAMES, Changelog
        from forebay.table.changelog.converters.event_formats import EventOptions
        from forebay.table.keys import declaration_id

        events = EventOptions(
            form=self.changelog_format,
            value_schema=self.value_schema,
            key_schema=self.key_schema,
            sequence=self.changelog_sequence,
            missing_before=self.changelog_missing_before,
            truncate=self.changelog_truncate,
            names=NAMES,
        )
        corrupt = self.column_name_of_corrupt_record
        options = json_payload_options(self.json_options, self.mode, corrupt, self.time_zone)
        start = self.offset_range.start
        if self.changelog_history == "complete" and (start is None or start.kind is not BoundKind.EARLIEST):
            raise ConfigurationError(
                "changelogHistory=complete needs the first change of each row, but the read may begin later",
                option="startingOffsets",
                advice="set startingOffsets=earliest, or remove changelogHistory",
            )
        leaves_out = {"failOnDataLoss": not self.fail_on_data_loss, "mode": self.mode == "DROPMALFORMED"}
        for name, lossy in leaves_out.items():
            if self.changelog_history == "complete" and lossy:
                raise ConfigurationError(
                    f"changelogHistory=complete needs every change, but {name} may leave some out",
                    option=name,
                    advice=f"remove {name}, or remove changelogHistory",
                )
        topics = self.subscription.named_topics()
        one_topic = topics is not None and len(topics) == 1
        log = declaration_id(self.client_options.servers, topics) if one_topic else None
        in_partitions = self.key_order == "partition"
        return Changelog(events, options, self.kafka_columns, self.changelog_history == "complete", log, in_partitions)

    def schema(self) -> pa.Schema:
        """Return the schema of the selected columns: those of Spark's source, or of a changelog, with its key.

        If keys or values are decoded, there is also the corrupt-record column.
        """
        changelog = self.changelog()
        if changelog is not None:
            return changelog.schema(self._columns, self.name)
        return self.payloads().schema(self._columns, include_headers=self.include_headers)

    @property
    def in_key_order(self) -> bool:
        """Whether the changes of each key are in one partition, so that a task must read it whole, in order."""
        topics = self.subscription.named_topics()
        one_topic = topics is not None and len(topics) == 1
        return (
            self.changelog_format is not None and bool(self.key_schema) and self.key_order == "partition" and one_topic
        )

    def with_columns(self, columns: tuple[str, ...]) -> Self:
        """Return a copy that reads only these columns, and does not decode other columns."""
        other = copy.copy(self)
        object.__setattr__(other, "_columns", columns)
        return other


# -- Parses the options that name the topics or partitions to read: `subscribe`, `subscribePattern`, `assign`.


_TOKEN: Final = re.compile(
    r"\\Q(?P<quoted>.*?)(?:\\E|$)"
    r"|\\k<(?P<group>\w+)>"
    r"|(?P<octal>\\0|\\[1-3][0-7][0-7])"
    r"|(?P<comments>\(\?[a-zA-Z-]*x)"
    r"|\\.|\(\?<(?=[a-zA-Z])|&&|.",
    re.DOTALL,
)
_REWRITTEN: Final = {r"\z": r"\Z", "(?<": "(?P<"}

_NAMES = "assign, subscribe, subscribePattern"


@dataclass(frozen=True)
class Subscription:
    """The topics or partitions to read; exactly one field is set.

    Args:
        topics: Topics with all their partitions.
        pattern: A pattern that matches whole names of topics.
        partitions: Single partitions.
    """

    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    partitions: tuple[TopicPartition, ...] = ()

    @classmethod
    def of(cls, subscribe: Sequence[str], pattern: str | None, assign: str | None) -> Subscription:
        """Parse the three options. Raise ConfigurationError unless exactly one is given."""
        ways = [bool(subscribe), pattern is not None, assign is not None].count(True)
        if ways == 0:
            raise ConfigurationError(
                f"One of the following options must be specified for Kafka source: {_NAMES}",
                option="subscribe",
                advice='set one of them, for example subscribe="topic1,topic2"',
            )
        if ways > 1:
            raise ConfigurationError(
                f"Only one of the following options can be specified for Kafka source: {_NAMES}",
                option="subscribe",
                advice="set only one of them",
            )
        if assign is not None:
            return cls(partitions=tuple(assigned_json(assign)))
        if pattern is not None:
            if not pattern.strip():
                raise ConfigurationError(
                    "subscribePattern is empty", option="subscribePattern", advice="give a pattern, such as orders-.*"
                )
            return cls(pattern=compile_topics(pattern.strip()))
        return cls(tuple(dict.fromkeys(subscribe)))

    def named_topics(self) -> list[str] | None:
        """Return the names of the topics to ask the brokers for; None = all topics, to match the pattern."""
        if self.pattern is not None:
            return None
        return list(self.topics) or sorted({partition.topic for partition in self.partitions})

    def partitions_of(self, name: str, leaders: Mapping[int, int], *, first: bool) -> list[TopicPartition]:
        """Return the partitions of a topic to read.

        Args:
            name: The name of the topic.
            leaders: The leader of each existing partition; -1 = no leader.
            first: Whether the query is new. If so, each partition of `assign` must exist.

        Raises:
            ConfigurationError: The query is new, and a partition of `assign` does not exist.
            RetriableError: A partition has no leader.
        """
        assigned = [partition for partition in self.partitions if partition.topic == name]
        missing = [partition for partition in assigned if partition.partition not in leaders]
        if missing and first:
            raise ConfigurationError(
                f"the topic {name!r} has no partition {missing[0].partition}; it has {len(leaders)} in all",
                split=missing[0].split_id,
                option="assign",
                advice="name only existing partitions",
            )
        if self.partitions:  # discovery reports the missing partitions as lost
            partitions = [partition for partition in assigned if partition.partition in leaders]
        else:
            partitions = [TopicPartition(name, number) for number in sorted(leaders)]
        alone = [partition for partition in partitions if leaders[partition.partition] < 0]
        if alone:
            raise RetriableError(
                f"the partition {alone[0].split_id} has no leader, so it cannot be read",
                split=alone[0].split_id,
                advice="check the brokers that hold the partition's replicas: they may be down",
            )
        return partitions


def compile_topics(pattern: str) -> re.Pattern[str]:
    r"""Return a Python pattern whose `fullmatch` accepts the same names as Java's `pattern`.

    Topic names have only ASCII letters, digits, dots, underscores and hyphens. For these, most syntax means the same in
    both languages. `\Q…\E`, `\z`, `(?<name>` and `\k<name>` are rewritten.

    Raises:
        ConfigurationError: The pattern is invalid, or has syntax with another meaning in Python.
    """
    try:
        return re.compile(_to_python(pattern), re.ASCII)
    except (re.error, ValueError, OverflowError) as error:
        raise ConfigurationError(
            f"subscribePattern {pattern!r} cannot be used: {error}",
            option="subscribePattern",
            advice="write a regular expression of letters, classes, groups and repetitions, such as orders-.*",
        ) from error


def _to_python(pattern: str) -> str:
    parts: list[str] = []
    class_begin: int | None = None
    for match in _TOKEN.finditer(pattern):
        text = match[0]
        if match["quoted"] is not None:
            text = re.escape(match["quoted"])
        elif match["octal"]:
            raise ValueError(f"{text} has different meanings in regular expressions of Python and Java")
        elif class_begin is not None:
            if text in ("[", "&&"):
                raise ValueError("nested classes and && exist only in Java")
            if text == "^" and match.start() == class_begin:
                class_begin += 1
            elif text == "]" and match.start() > class_begin:
                class_begin = None
        elif match["comments"]:
            raise ValueError("the flag x of regular expressions is not supported")
        elif match["group"]:
            text = f"(?P={match['group']})"
        else:
            text = _REWRITTEN.get(text, text)
            class_begin = match.end() if text == "[" else None
        parts.append(text)
    return "".join(parts)
