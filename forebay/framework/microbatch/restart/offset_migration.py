# SPDX-License-Identifier: Apache-2.0
"""Continues from a checkpoint of a source without forebay: its last offset becomes the start of a new query (S2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forebay.errors import ConfigurationError
from forebay.framework.microbatch.offsets.offset import Offset, Planned
from forebay.framework.microbatch.split_providers.split_provider import SplitProvider
from forebay.framework.runtime.connector_calls import ConnectorCalls
from forebay.framework.source import Source


class OffsetMigration:
    """Converts offsets of a source without forebay, such as Spark's own, with the author's `DiscoveryEnumerator.adopt`.

    The result is the offset before the first micro-batch, but with splits. So the enumerator counts as restored, and
    its next `discover` is called with `first=False`.
    """

    def __init__(self, source: Source, split_provider: SplitProvider, calls: ConnectorCalls) -> None:
        self._source = source
        self._split_provider = split_provider
        self._calls = calls

    def adopt(self, data: Any) -> Offset | None:  # noqa: ANN401 - any JSON value of any checkpoint
        """Return the converted offset; None if a forebay source wrote `data`, or the author's `adopt` returned None."""
        enumerator = self._split_provider.enumerator
        if enumerator is None or not is_foreign(data):
            return None
        splits = self._calls.call("adopt()", lambda: enumerator.adopt(data))
        if splits is None:
            return None
        self._split_provider.restore(None)
        return Offset(self._source.name, splits=[Planned(split, split.position) for split in splits])


def is_foreign(data: object) -> bool:
    """Return whether `data` is an offset of a source that does not use forebay: its JSON has no version."""
    return isinstance(data, Mapping) and "v" not in data


def unfinished_replay(source: str) -> ConfigurationError:
    """Return the error for a checkpoint whose last micro-batch was planned by another source and is not finished."""
    return ConfigurationError(
        "the last micro-batch in the checkpoint was planned by another source and is not finished",
        source=source,
        option="checkpointLocation",
        advice="first finish that micro-batch: run the query once with the old source and trigger(availableNow=True)",
    )
