# SPDX-License-Identifier: Apache-2.0
"""Checks of a connector's results in planners and tasks: enumerators, the order of positions."""

from __future__ import annotations

from forebay.errors import ConfigurationError, ContractError
from forebay.framework.coordination.validation import checked_enumerator
from forebay.framework.discovery import DiscoveryEnumerator
from forebay.framework.enumerator import SourceEvent, SplitEnumerator, SplitEnumeratorContext
from forebay.framework.runtime.connector_calls import ConnectorCalls
from forebay.framework.source import Source
from forebay.framework.split import Position


def create_enumerator(
    source: Source, context: SplitEnumeratorContext, calls: ConnectorCalls
) -> DiscoveryEnumerator | SplitEnumerator:
    """Return a new enumerator of the source, created with `context`.

    Raises:
        ContractError: `create_enumerator()` returned something else.
    """
    made = calls.call("create_enumerator()", lambda: source.create_enumerator(context))
    return checked_enumerator(source, made)


def before(source: Source, one: Position, other: Position, split_id: str) -> bool:
    """Return whether the position `one` of a split comes before `other`.

    Raises:
        ContractError: The two positions cannot be compared.
    """
    try:
        return bool(source.order_key(one) < source.order_key(other))
    except TypeError as error:
        raise ContractError(
            f"the positions {one!r} and {other!r} cannot be compared",
            source=source.name,
            split=split_id,
            rule="SPL-2",
            advice="in the connector, use one type for all positions of a split, or override order_key(position)",
        ) from error


def event_refused(source: str, event: SourceEvent) -> ConfigurationError:
    """Return the error for a source event on Spark, which cannot send it."""
    return ConfigurationError(
        f"the source event {type(event).__name__} cannot be sent: Spark has no channel between enumerator and readers",
        source=source,
        rule="EVT-1",
        advice="put the data that readers need into the split, or run the source in-process with forebay.run",
    )
