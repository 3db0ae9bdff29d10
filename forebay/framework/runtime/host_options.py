# SPDX-License-Identifier: Apache-2.0
"""The options of the hosts, the same for every source, and the state store that they name."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from forebay.state.state_store import StateStore


@explain_names
@dataclass(frozen=True, kw_only=True)
class HostOptions:
    """The options of a host, for reads of any source. An option of a source must not have one of these names.

    Durations take seconds (int or float), a timedelta, or a text such as `"10s"`; their attributes are `Duration`s.
    """

    columns: list[str] | None = option(None, doc="read only these columns, in this order")
    num_partitions: int | None = option(
        None, doc="number of tasks of a read or micro-batch; by default about one per core of the session"
    )
    max_rows_per_batch: int = option(65_536, doc="maximum rows of one record batch")
    max_bytes_per_batch: ByteSize = option(ByteSize(8 << 20), doc="maximum bytes of one record batch")
    max_batch_delay: DurationField = option(
        "100ms", doc="maximum time that the first row of a record batch waits until the batch is full"
    )
    queue_batches: int = option(2, doc="maximum fetched results that wait in the queue of a reader")
    queue_bytes: ByteSize = option(ByteSize(32 << 20), doc="maximum bytes that wait in the queue of a reader")
    discovery_interval: OptionalDurationField = option(  # type: ignore[assignment]  # None is what `__set__` takes
        None,
        doc="time between two discoveries of new splits of an unbounded source; by default 10 s; in a stream, slow "
        "discoveries run less often",
    )
    poll_interval: DurationField = option(
        "1s", doc="pause before a caught-up split of an unbounded source is read again"
    )
    planning_timeout: DurationField = option(
        "10m", doc="maximum time that planning waits for one call of the source: its schema, its splits, their ends"
    )
    close_timeout: DurationField = option(
        "30s", doc="maximum time that closing waits for a blocked thread; after it, an error names the abandoned thread"
    )
    max_rows_per_trigger: int | None = option(
        None, aliases=("maxOffsetsPerTrigger",), doc="maximum rows of one micro-batch, if the source can count rows"
    )
    max_bytes_per_trigger: ByteSize | None = option(
        None, doc="maximum bytes of one micro-batch, if the source knows the sizes of splits"
    )
    max_files_per_trigger: int | None = option(None, doc="maximum splits of one micro-batch; a file is one split")
    min_rows_per_trigger: int | None = option(
        None,
        aliases=("minOffsetsPerTrigger",),
        doc="minimum rows of one micro-batch; a stream waits for them, at most for `maxTriggerDelay`",
    )
    max_trigger_delay: DurationField = option("15m", doc="maximum time that a stream waits for `minRowsPerTrigger`")
    max_batch_duration: DurationField = option(
        "60s",
        doc="approximate time for which a micro-batch reads splits whose ends the source does not know",
    )
    refresh_interval: OptionalDurationField = option(  # type: ignore[assignment]  # None is what `__set__` takes
        None,
        doc="how long a stream caches the ends of splits; by default longer if the source answers slowly",
    )
    event_time_column: str | None = option(
        None, doc="the timestamp column that holds the event time; by default the one that the source names"
    )
    watermark_delay: DurationField = option(
        "0s", doc="how far behind the latest event time of its split a record may be and still be on time"
    )
    alignment_max_drift: OptionalDurationField = option(  # type: ignore[assignment]  # None is what `__set__` takes
        None,
        doc="how far, in event time, a split may be read ahead of the slowest active split; by default without limit",
    )
    idle_timeout: OptionalDurationField = option(  # type: ignore[assignment]  # None is what `__set__` takes
        None, doc="time after which a caught-up split without new records no longer holds back others; by default never"
    )
    state_location: str | None = option(
        None,
        doc="a directory, local or on S3, for the state that a stream keeps beside its offsets; by default below "
        "spark.sql.streaming.checkpointLocation, if the session sets that",
    )
    state_storage: dict[str, Secret] = option(
        default_factory=dict,
        prefix="stateStorage.",
        doc="settings for `stateLocation` on S3: endpoint_url, region, key, secret, token, profile; missing ones "
        "come from boto3's own settings",
    )
    retries: int | None = option(
        None, doc="maximum consecutive retries of a retriable error; by default as many as retryTimeout allows"
    )
    retry_first_pause: DurationField = option("500ms", doc="pause before the first retry; half of each pause is random")
    retry_factor: float = option(3.0, doc="factor between the pauses of two consecutive retries")
    retry_max_pause: DurationField = option("30s", doc="maximum pause, unless an error's `retry_after` is longer")
    retry_timeout: DurationField = option(
        "2m", doc="how long a retriable error is retried: no retry begins later than this after the first failure"
    )

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
                    f"{option_name} is {value}, too low", option=option_name, advice=f"give {bound} or more"
                )
        min_rows, max_rows = self.min_rows_per_trigger, self.max_rows_per_trigger
        if min_rows is not None and max_rows is not None and min_rows > max_rows:
            raise ConfigurationError(
                f"minRowsPerTrigger is {min_rows}, more than maxRowsPerTrigger, {max_rows}",
                option="minRowsPerTrigger",
                advice="lower minRowsPerTrigger or raise maxRowsPerTrigger",
            )


# -- The state store of a stream: at `stateLocation`, or by default in the checkpoint directory (S13, S18).


def state_store(options: HostOptions) -> StateStore | None:
    """Return the store at `stateLocation`; None if the option is not set. Does no I/O.

    Raises:
        ConfigurationError: The file system of `stateLocation` cannot keep state, boto3 is missing for S3, or an option
            that begins with `stateStorage` is unknown.
    """
    if options.state_location is None:
        return None
    from forebay.state.open_state_store import open_state_store

    return open_state_store(options.state_location, options.state_storage)


def default_location(checkpoints: str | None) -> str | None:
    """Return the default `stateLocation`: a directory in `checkpoints`, the session's checkpoint directory.

    None if there is no such directory, its file system cannot keep state, or boto3 is missing for S3.
    """
    if not checkpoints:
        return None
    from forebay.state.open_state_store import can_keep_state, scheme_of

    if not can_keep_state(checkpoints):
        return None
    if scheme_of(checkpoints).startswith("s3") and importlib.util.find_spec("boto3") is None:
        return None
    return f"{checkpoints.rstrip('/')}/_forebay"
