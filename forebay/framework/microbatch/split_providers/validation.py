# SPDX-License-Identifier: Apache-2.0
"""Checks in planners and tasks: the type of a connector's enumerator, and events that Spark cannot send."""

from __future__ import annotations

from forebay.errors import ConfigurationError
from forebay.framework.coordination.validation import checked_enumerator
from forebay.framework.discovery import DiscoveryEnumerator
from forebay.framework.enumerator import SourceEvent, SplitEnumerator, SplitEnumeratorContext
from forebay.framework.runtime.connector_calls import ConnectorCalls
from forebay.framework.source import Source


def create_enumerator(
    source: Source, context: SplitEnumeratorContext, calls: ConnectorCalls
) -> DiscoveryEnumerator | SplitEnumerator:
    """Return a new enumerator of the source, created with `context`.

    Raises:
        ContractError: The source's `create_enumerator()` returned no enumerator.
    """
    made = calls.call("create_enumerator()", lambda: source.create_enumerator(context))
    return checked_enumerator(source, made)


def event_refused(source: str, event: SourceEvent) -> ConfigurationError:
    """Return the error for a connector that sends a source event on Spark, which has no channel for it."""
    return ConfigurationError(
        f"the source event {type(event).__name__} cannot be sent: Spark has no channel between enumerator and readers",
        source=source,
        rule="EVT-1",
        advice="put the data that readers need into the split, or run the source in-process with forebay.run",
    )
