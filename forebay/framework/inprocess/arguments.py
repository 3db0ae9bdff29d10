# SPDX-License-Identifier: Apache-2.0
"""The arguments of `forebay.run`: checked, and brought into the form that the machinery takes."""

from __future__ import annotations

import math
from collections.abc import Mapping

from forebay.errors import ConfigurationError, ContractError
from forebay.framework.source import Source
from forebay.framework.split import Position, normalise
from forebay.options import DurationLike, to_seconds


def require_source(source: object, who: str) -> None:
    """Refuse what is no source. Called first by whatever takes one from a user; any thread.

    Args:
        source: What was given.
        who: The function it was given to, for the message.

    Raises:
        ConfigurationError: It is a class, of which an instance is wanted, or something else.
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
    """Refuse what is no number of readers.

    Raises:
        ConfigurationError: It is not an int of 1 or more.
    """
    if isinstance(parallelism, bool) or not isinstance(parallelism, int) or parallelism < 1:
        raise ConfigurationError(
            f"a parallelism of {parallelism!r} is none",
            source=source.name,
            option="parallelism",
            advice="give the number of readers, 1 or more",
        )


def positive_seconds(source: Source, option: str, value: DurationLike) -> float:
    """Return a duration as seconds.

    Raises:
        ConfigurationError: It is no duration, not more than 0, or infinite.
    """
    seconds = 0.0
    try:
        seconds = to_seconds(value)
        problem = "" if 0 < seconds < math.inf else "it must be finite and more than 0"
    except ValueError as error:
        problem = str(error)
    if problem:
        raise ConfigurationError(
            f"{value!r} is no {option}: {problem}",
            source=source.name,
            option=option,
            advice="give seconds, a timedelta, or a text with a unit such as '10s'",
        )
    return seconds


def checked_positions(source: Source, positions: object, *, checkpoint: bool) -> dict[str, Position]:
    """Return start positions in their one spelling: lists, as JSON gives them, become tuples.

    Raises:
        ConfigurationError: It is no mapping of split ids to positions, or there is a checkpoint directory as well.
    """
    if positions is None:
        return {}
    if checkpoint:
        raise ConfigurationError(
            "positions and a checkpoint directory both say where the run begins",
            source=source.name,
            option="positions",
            advice="store positions with your rows, or use a checkpoint directory, not both",
        )
    try:
        if isinstance(positions, Mapping) and all(isinstance(split_id, str) for split_id in positions):
            return {split_id: normalise(position, split_id) for split_id, position in positions.items()}
        problem = f"{positions!r:.80} is no dict of split ids and positions"
    except ContractError as error:
        problem = f"the start of the split {error.split!r} is no position: {error.message}"
    raise ConfigurationError(
        problem,
        source=source.name,
        option="positions",
        advice="give a dict of split ids and what Run.positions() or Run.delivered said for them",
    )
