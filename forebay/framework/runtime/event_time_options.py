# SPDX-License-Identifier: Apache-2.0
"""The event time options of the hosts: the column, and the watermark strategy that they describe."""

from __future__ import annotations

from typing import Final

from forebay.errors import ConfigurationError
from forebay.framework.runtime.host_options import HostOptions
from forebay.options import (
    camel_case,
)
from forebay.watermarks.event_time import ColumnTimestamps
from forebay.watermarks.strategy import WatermarkStrategy

_NAMES: Final = ("event_time_column", "watermark_delay", "alignment_max_drift", "idle_timeout")


def event_time_options(options: HostOptions) -> list[str]:
    """Return the names of the event time options that differ from their defaults."""
    default = HostOptions()
    return [camel_case(name) for name in _NAMES if getattr(options, name) != getattr(default, name)]


def event_time_column(source: str, event_time: str | None, options: HostOptions) -> str:
    """Return the name of the event time column: the option `eventTimeColumn`, or else the source's `event_time`.

    Args:
        source: The name of the source, for the error.
        event_time: `Source.event_time`.
        options: The host's options.

    Raises:
        ConfigurationError: Neither names a column.
    """
    column = options.event_time_column or event_time
    if column is None:
        option = event_time_options(options)[0]
        raise ConfigurationError(
            f"{option} needs to know which column has the event time, but neither the source nor an option names it",
            source=source,
            option="eventTimeColumn",
            advice=f"set eventTimeColumn to a timestamp column of the read, or leave {option} out",
        )
    return column


def watermark_strategy(source: str, event_time: str | None, options: HostOptions) -> WatermarkStrategy | None:
    """Return the watermark strategy that the options describe; None if no event time option is set.

    Called by the in-process host. The strategy tolerates records that are late by up to `watermarkDelay` (WM-2). The
    arguments are those of `event_time_column`.

    Raises:
        ConfigurationError: No event time column is known, or a value is out of range.
    """
    if not event_time_options(options):
        return None
    strategy = WatermarkStrategy.bounded_disorder(options.watermark_delay)
    column = event_time_column(source, event_time, options)
    strategy = strategy.with_timestamp_assigner(ColumnTimestamps(column, "eventTimeColumn"))
    if options.idle_timeout is not None:
        strategy = strategy.with_idleness(options.idle_timeout)
    if options.alignment_max_drift is not None:
        strategy = strategy.with_alignment(options.alignment_max_drift)
    return strategy
