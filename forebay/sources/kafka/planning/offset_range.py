# SPDX-License-Identifier: Apache-2.0
"""From where to where a query reads: the options for it, in the order in which Spark heeds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from forebay.errors import ConfigurationError
from forebay.sources.kafka.planning.bounds import (
    EARLIEST,
    LATEST,
    Bound,
    BoundKind,
    offsets_bound,
    time_bound,
    times_bound,
)


class BoundOptions(Protocol):
    """The options that say it."""

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
        start: The start; None = what the host takes: earliest in a batch, latest in a stream.
        end: The end; None = as far as it goes.
        latest_if_no_match: A partition without a record at or after its starting time starts at its end.
    """

    start: Bound | None
    end: Bound | None
    latest_if_no_match: bool

    @classmethod
    def of(cls, options: BoundOptions) -> OffsetRange:
        """Return what the options say; a time goes before times, and times before offsets.

        Raises:
            ConfigurationError: What one of them says is wrong.
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
                    f"{end.option} cannot be {end.kind.value if not earliest else 'earliest (-2)'}: nothing were left",
                    option=end.option,
                    advice="give latest, offsets or a time",
                )
        if end is not None and end.kind is BoundKind.LATEST:
            end = None
        return cls(start, end, options.starting_offsets_by_timestamp_strategy == "latest")

    @property
    def wants_group(self) -> bool:
        """Whether a consumer group is asked where to start."""
        return self.start is not None and self.start.kind is BoundKind.COMMITTED

    def check(self, *, streaming: bool) -> None:
        """Refuse what one of the hosts cannot do.

        Raises:
            ConfigurationError: A batch would start at the latest offsets: nothing were left to read.
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
