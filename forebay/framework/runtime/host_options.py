# SPDX-License-Identifier: Apache-2.0
"""The options of the hosts, the same for every source."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.errors import ConfigurationError
from forebay.options import (
    ByteSize,
    DurationField,
    OptionalDurationField,
    Secret,
    camel_case,
    coerce_fields,
    explain_names,
    option,
)


@explain_names
@dataclass(frozen=True, kw_only=True)
class HostOptions:
    """Options of a read besides the source's own. A source option with one of these names is an error.

    Durations take seconds (int or float), a timedelta, or a text such as `"10s"`; their attributes are `Duration`s.
    """

    columns: list[str] | None = option(None, doc="read only these columns, in this order")
    num_partitions: int | None = option(
        None, doc="tasks of a bounded read; by default about one per core of the session"
    )
    max_rows_per_batch: int = option(65_536, doc="most rows of one record batch handed to the host")
    max_bytes_per_batch: ByteSize = option(ByteSize(8 << 20), doc="most bytes of one record batch handed to the host")
    max_batch_delay: DurationField = option(
        "100ms", doc="maximum time that rows of a slow source wait until their record batch is full"
    )
    queue_batches: int = option(2, doc="most fetches waiting between fetcher and reader")
    queue_bytes: ByteSize = option(ByteSize(32 << 20), doc="most bytes waiting between fetcher and reader")
    discovery_interval: OptionalDurationField = option(  # type: ignore[assignment]  # None is what `__set__` takes
        None,
        doc="how often an unbounded source is asked for new splits; by default every 10 s; in a stream, slower "
        "discoveries run less often",
    )
    poll_interval: DurationField = option(
        "1s", doc="pause before a caught-up split of an unbounded source is read again"
    )
    planning_timeout: DurationField = option(
        "10m", doc="how long planning waits for one answer of the source: its schema, its splits, their ends"
    )
    close_timeout: DurationField = option(
        "30s", doc="how long closing waits for a blocked thread before it is abandoned and named in an error"
    )
    max_rows_per_trigger: int | None = option(
        None, aliases=("maxOffsetsPerTrigger",), doc="most rows of one micro-batch, where positions count rows"
    )
    max_bytes_per_trigger: ByteSize | None = option(
        None, doc="most bytes of one micro-batch, as far as sizes are known"
    )
    max_files_per_trigger: int | None = option(None, doc="most splits of one micro-batch; a file is one split")
    min_rows_per_trigger: int | None = option(
        None,
        aliases=("minOffsetsPerTrigger",),
        doc="a micro-batch waits for this many rows, at most for `maxTriggerDelay`",
    )
    max_trigger_delay: DurationField = option(
        "15m", doc="a micro-batch waits for `minRowsPerTrigger` at most this long"
    )
    max_batch_duration: DurationField = option(
        "60s",
        doc="about how long a micro-batch reads splits whose ends are not known beforehand",
    )
    refresh_interval: OptionalDurationField = option(  # type: ignore[assignment]  # None is what `__set__` takes
        None,
        doc="how long a stream caches the known ends; by default longer if asking is slow",
    )
    event_time_column: str | None = option(
        None, doc="the timestamp column that event time is taken from; by default the one that the source names"
    )
    watermark_delay: DurationField = option(
        "0s", doc="how far a record may be behind the latest event time of its split and still be on time"
    )
    alignment_max_drift: OptionalDurationField = option(  # type: ignore[assignment]  # None is what `__set__` takes
        None,
        doc="how far a split may be read ahead of the slowest active one, in event time; by default without limit",
    )
    idle_timeout: OptionalDurationField = option(  # type: ignore[assignment]  # None is what `__set__` takes
        None, doc="how long a caught-up split without new records holds back the others; by default for ever"
    )
    state_location: str | None = option(
        None,
        doc="a directory, local or on S3, for the state that a stream keeps besides its offsets; by default below "
        "spark.sql.streaming.checkpointLocation, if the session sets it",
    )
    state_storage: dict[str, Secret] = option(
        default_factory=dict,
        prefix="stateStorage.",
        doc="settings for `stateLocation` on S3: endpoint_url, region, key, secret, token, profile; missing ones "
        "come from boto3's own settings",
    )
    retries: int = option(3, doc="how often a retriable error is retried before it ends the read")
    retry_first_pause: DurationField = option("500ms", doc="pause before the first retry; half of each pause is random")
    retry_factor: float = option(3.0, doc="growth of the pause from one retry to the next")
    retry_max_pause: DurationField = option("30s", doc="longest pause, unless an error's `retry_after` is longer")
    retry_timeout: DurationField = option("10m", doc="no retry begins later than this after the first failure")

    def __post_init__(self) -> None:
        coerce_fields(self, source="host")
        least = {"num_partitions": 1, "max_rows_per_batch": 1, "max_bytes_per_batch": 1, "queue_batches": 1}
        least |= {"queue_bytes": 1, "retries": 0, "retry_factor": 1}
        least |= {f"{name}_per_trigger": 1 for name in ("max_rows", "max_bytes", "max_files", "min_rows")}
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and value < bound:
                option_name = camel_case(name)
                raise ConfigurationError(
                    f"{option_name} is {value}", option=option_name, advice=f"give {bound} or more"
                )
        wanted, most = self.min_rows_per_trigger, self.max_rows_per_trigger
        if wanted is not None and most is not None and wanted > most:
            raise ConfigurationError(
                f"minRowsPerTrigger is {wanted}, more than maxRowsPerTrigger, {most}",
                option="minRowsPerTrigger",
                advice="lower minRowsPerTrigger or raise maxRowsPerTrigger",
            )
