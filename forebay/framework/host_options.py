# SPDX-License-Identifier: Apache-2.0
"""The options of the hosts: they mean the same for every source."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.errors import ConfigurationError
from forebay.options import ByteSize, Duration, camel_case, coerce_fields, option


@dataclass(frozen=True, kw_only=True)
class HostOptions:
    """What a host may be told beside the source's own options. A source option of the same name is an error."""

    columns: list[str] | None = option(None, doc="read only these columns, in this order")
    num_partitions: int | None = option(
        None, doc="tasks of a bounded read; by default about one per core of the session"
    )
    max_rows_per_batch: int = option(65_536, doc="most rows of one record batch handed to the host")
    max_bytes_per_batch: ByteSize = option(ByteSize(8 << 20), doc="most bytes of one record batch handed to the host")
    max_batch_delay: Duration = option(
        Duration(0.1), doc="a slow source's rows wait at most this long for their record batch to fill"
    )
    queue_batches: int = option(2, doc="most fetches waiting between fetcher and reader")
    queue_bytes: ByteSize = option(ByteSize(32 << 20), doc="most bytes waiting between fetcher and reader")
    discovery_interval: Duration = option(
        Duration(10.0), doc="how often an unbounded source is looked at for new splits"
    )
    poll_interval: Duration = option(
        Duration(1.0), doc="how long a caught-up split of an unbounded source rests before it is read again"
    )
    planning_timeout: Duration = option(
        Duration(600.0), doc="how long planning waits for one answer of the source: its schema, its splits, their ends"
    )
    close_timeout: Duration = option(
        Duration(30.0), doc="how long closing waits for a blocked thread before it is abandoned and named in an error"
    )
    retries: int = option(3, doc="how often a retriable error is retried before it ends the read")

    def __post_init__(self) -> None:
        coerce_fields(self, source="host")
        least = {"num_partitions": 1, "max_rows_per_batch": 1, "max_bytes_per_batch": 1, "queue_batches": 1}
        for name, bound in (least | {"queue_bytes": 1, "retries": 0}).items():
            value = getattr(self, name)
            if value is not None and value < bound:
                option_name = camel_case(name)
                raise ConfigurationError(
                    f"{option_name} is {value}", option=option_name, advice=f"give {bound} or more"
                )
