# SPDX-License-Identifier: Apache-2.0
"""Wraps a source, so that a coordinator cannot change its input and, if that is large, reads only a sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.enumerator import SplitEnumerator, SplitEnumeratorContext
from forebay.framework.source import Source
from forebay.framework.split import Split


class ReadOnlySource:
    """A source whose `DiscoveryEnumerator` is restricted; everything else is the source's own.

    Args:
        source: The source.
        sample: Discover only these splits, with these ends; None discovers everything.
        live: Do not call `finished` and `committed` of the source's enumerator, because they may change the input.
    """

    def __init__(self, source: Source, sample: Sequence[Split] | None, *, live: bool) -> None:
        self._source = source
        self._sample = sample
        self._live = live

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of the source
        return getattr(self._source, name)

    def create_enumerator(self, context: SplitEnumeratorContext) -> SplitEnumerator | DiscoveryEnumerator:
        """Return the source's own enumerator, restricted if it is a `DiscoveryEnumerator`."""
        made = self._source.create_enumerator(context)
        if not isinstance(made, DiscoveryEnumerator):
            return made
        # On the object: a wrapper would have to forward every method that the class may have.
        if self._live:
            vars(made).update(finished=lambda _: None, committed=lambda _: None)
        if self._sample is not None:
            sample, discover = {split.id: split for split in self._sample}, made.discover

            def sampled(known: Mapping[str, Split], first: bool) -> Discovered:
                found: object = discover(known, first)
                if not isinstance(found, Discovered):
                    return cast("Discovered", found)  # refused by the coordinator
                return replace(found, splits=[sample[one.id] for one in found.splits if one.id in sample])

            vars(made)["discover"] = sampled
        return made
