# SPDX-License-Identifier: Apache-2.0
"""Checks the arguments of `run` and `peek`, and prepares the source: its schema and columns."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pyarrow as pa

from forebay.errors import ConfigurationError, ContractError, FatalError
from forebay.framework.arrow.schemas import resolved_schema, select
from forebay.framework.runtime.connector_errors import wrap_errors
from forebay.framework.runtime.event_time_options import event_time_options, watermark_strategy
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.source import Source
from forebay.framework.split import Position, normalise
from forebay.options import DurationLike, to_seconds
from forebay.watermarks.event_time import ColumnTimestamps, keep_source_times
from forebay.watermarks.strategy import WatermarkStrategy


def require_source(source: object, who: str) -> None:
    """Check that the user passed a source. `who` names the function that the user called, for the error.

    Raises:
        ConfigurationError: `source` is a class, or an object that is not a `Source`.
    """
    if isinstance(source, Source):
        return
    if isinstance(source, type):
        name = source.__name__
        raise ConfigurationError(f"{who} takes a source, not the class {name}", advice=f"give an instance: {name}(…)")
    raise ConfigurationError(
        f"{who} takes a source, not {source!r:.80}", advice="give an instance, such as Orders(url=…)"
    )


def check_parallelism(source: Source, parallelism: int) -> None:
    """Check the number of readers.

    Raises:
        ConfigurationError: `parallelism` is not an int of 1 or more.
    """
    if isinstance(parallelism, bool) or not isinstance(parallelism, int) or parallelism < 1:
        raise ConfigurationError(
            f"the parallelism {parallelism!r} is not an int of 1 or more",
            source=source.name,
            option="parallelism",
            advice="give the number of readers",
        )


def positive_seconds(source: Source, option: str, value: DurationLike) -> float:
    """Return a positive duration in seconds; `option` is the name of the argument, for the error.

    Raises:
        ConfigurationError: `value` is not a duration, not more than 0, or infinite.
    """
    seconds = 0.0
    try:
        seconds = to_seconds(value)
        problem = "" if 0 < seconds < math.inf else "it must be finite and more than 0"
    except ValueError as error:
        problem = str(error)
    if problem:
        raise ConfigurationError(
            f"{option}={value!r} is invalid: {problem}",
            source=source.name,
            option=option,
            advice="give seconds, a timedelta, or a text with a unit such as '10s'",
        )
    return seconds


def checked_positions(source: Source, positions: object, *, checkpoint: bool) -> dict[str, Position]:
    """Return the start positions of a run by split id; lists in them, as parsed from JSON, become tuples.

    `checkpoint` says whether the run has a checkpoint directory.

    Raises:
        ConfigurationError: `positions` is not a mapping of split ids to positions, or `checkpoint` is True too.
    """
    if positions is None:
        return {}
    if checkpoint:
        raise ConfigurationError(
            "positions= and checkpoint= both set the start of the run, so they cannot be combined",
            source=source.name,
            option="positions",
            advice="give positions= if you store positions with your rows, else checkpoint=",
        )
    try:
        if isinstance(positions, Mapping) and all(isinstance(split_id, str) for split_id in positions):
            return {split_id: normalise(position, split_id) for split_id, position in positions.items()}
        problem = f"positions={positions!r:.80} is not a dict of split ids and positions"
    except ContractError as error:
        problem = f"the start position of the split {error.split!r} is invalid: {error.message}"
    raise ConfigurationError(
        problem,
        source=source.name,
        option="positions",
        advice="give a dict of split ids and positions from Run.positions() or Run.delivered",
    )


def with_columns(
    source: Source, columns: list[str] | None, *, also: str | None = None
) -> tuple[Source, list[str] | None]:
    """Return the source, which reads only `columns` if it supports that, and the columns that the host must select.

    None as columns means all columns. `also` is a column that the source must read even if it is not selected.
    """
    if columns is None:
        return source, None
    names = select(resolved_schema(source).names, columns, source.name)
    needed = names if also is None or also in names else [*names, also]
    narrowed = source.with_columns(tuple(needed))
    if narrowed is None:
        return source, names
    return narrowed, None if needed == names else names


def schema_of(source: Source) -> pa.Schema:
    """Return the result of `source.schema()`, checked; errors name the source.

    Raises:
        ForebayError: `schema()` failed, or returned an object that is not a `pyarrow.Schema`.
    """
    with wrap_errors(source.name, "schema()"):
        schema = source.schema()
    if not isinstance(schema, pa.Schema):
        raise FatalError(
            f"schema() returned a {type(schema).__name__} instead of a schema",
            source=source.name,
            advice="return a pyarrow.Schema",
        )
    return schema


def event_time_strategy(
    watermarks: WatermarkStrategy | None, source: Source, options: HostOptions
) -> tuple[WatermarkStrategy | None, str | None]:
    """Return the watermark strategy of a run, and the top-level column that it reads event times from.

    Both are None if event time is not processed. The column is None if the strategy reads no column. A strategy
    without a timestamp assigner reads the column that `Source.event_time` names.

    Raises:
        ConfigurationError: Both `watermarks` and event time options are given, or the column is missing or of an
            unsupported type.
    """
    given = event_time_options(options)
    if watermarks is None:
        strategy = watermark_strategy(source.name, source.event_time, options)
    elif given:
        raise ConfigurationError(
            f"watermarks= and the options {', '.join(given)} both set how event time is processed",
            source=source.name,
            option=given[0],
            advice="give either watermarks= or these options",
        )
    elif source.event_time is None or watermarks.timestamps is not keep_source_times:
        strategy = watermarks
    else:
        strategy = watermarks.with_event_time(source.event_time)
    if strategy is None or not isinstance(strategy.timestamps, ColumnTimestamps):
        return strategy, None
    return strategy, strategy.timestamps.check(resolved_schema(source))
