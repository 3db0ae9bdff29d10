# SPDX-License-Identifier: Apache-2.0
"""The options for start and end of a read, in Spark's order of precedence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from forebay.errors import ConfigurationError
from forebay.sources.kafka.options.bounds import (
    EARLIEST,
    LATEST,
    Bound,
    BoundKind,
    offsets_bound,
    time_bound,
    times_bound,
)


class BoundOptions(Protocol):
    """The options for start and end."""

    @property
    def starting_offsets(self) -> str | None: ...  # noqa: D102 - see KafkaOptions
    @property
    def starting_timestamp(self) -> int | None: ...  # noqa: D102 - see KafkaOptions
    @property
    def starting_offsets_by_timestamp(self) -> str | None: ...  # noqa: D102 - see KafkaOptions
    @property
    def starting_offsets_by_timestamp_strategy(self) -> str: ...  # noqa: D102 - see KafkaOptions
    @property
    def ending_offsets(self) -> str | None: ...  # noqa: D102 - see KafkaOptions
    @property
    def ending_timestamp(self) -> int | None: ...  # noqa: D102 - see KafkaOptions
    @property
    def ending_offsets_by_timestamp(self) -> str | None: ...  # noqa: D102 - see KafkaOptions


@dataclass(frozen=True)
class OffsetRange:
    """Where a query starts and ends.

    Args:
        start: The start; None = earliest in a batch, latest in a stream.
        end: The end; None = the latest offset.
        latest_if_no_match: A partition without a record at or after its starting time starts at its end.
    """

    start: Bound | None
    end: Bound | None
    latest_if_no_match: bool

    @classmethod
    def of(cls, options: BoundOptions) -> OffsetRange:
        """Parse the options. One time precedes times by partition, and these precede offsets.

        Raises:
            ConfigurationError: An option is invalid.
        """
        start = _bound(
            ("startingTimestamp", options.starting_timestamp),
            ("startingOffsetsByTimestamp", options.starting_offsets_by_timestamp),
            ("startingOffsets", options.starting_offsets),
        )
        end = _bound(
            ("endingTimestamp", options.ending_timestamp),
            ("endingOffsetsByTimestamp", options.ending_offsets_by_timestamp),
            ("endingOffsets", options.ending_offsets),
        )
        if end is not None:
            earliest = end.kind is BoundKind.OFFSETS and EARLIEST in end.values.values()
            if end.kind in (BoundKind.EARLIEST, BoundKind.COMMITTED) or earliest:
                raise ConfigurationError(
                    f"{end.option}={end.kind.value if not earliest else 'earliest (-2)'} leaves nothing to read",
                    option=end.option,
                    advice="give latest, offsets or a time",
                )
        if end is not None and end.kind is BoundKind.LATEST:
            end = None
        return cls(start, end, options.starting_offsets_by_timestamp_strategy == "latest")

    @property
    def wants_group(self) -> bool:
        """Whether the query starts at the committed offsets of a consumer group."""
        return self.start is not None and self.start.kind is BoundKind.COMMITTED

    def check(self, *, streaming: bool) -> None:
        """Refuse a batch that starts at the latest offsets.

        Raises:
            ConfigurationError: The start leaves nothing to read.
        """
        start = self.start
        if streaming or start is None:
            return
        latest = start.kind is BoundKind.OFFSETS and LATEST in start.values.values()
        if start.kind is BoundKind.LATEST or latest:
            raise ConfigurationError(
                f"starting offset can't be latest{' (-1)' if latest else ''} for batch queries on Kafka",
                option=start.option,
                advice="give earliest, offsets or a time; or read a stream",
            )


def _bound(
    time: tuple[str, int | None], times: tuple[str, str | None], offsets: tuple[str, str | None]
) -> Bound | None:
    if time[1] is not None:
        return time_bound(time[1], time[0])
    if times[1] is not None:
        return times_bound(times[1], times[0])
    return None if offsets[1] is None else offsets_bound(offsets[1], offsets[0])
