# SPDX-License-Identifier: Apache-2.0
"""Stands between a source and the coordinator: acts on nothing outside, and shows a sample of a large input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.enumerator import SplitEnumerator, SplitEnumeratorContext
from forebay.framework.source import Source
from forebay.framework.split import Json, Position, Split


class Shield:
    """A source whose discovery is shielded; all else is the source's own.

    Args:
        source: The source.
        sample: Show these splits only, cut as they are here; None shows everything.
        live: Do not tell the enumerator of what is finished and committed: it may act on the input.
    """

    def __init__(self, source: Source, sample: Sequence[Split] | None, *, live: bool) -> None:
        self._source = source
        self._sample = None if sample is None else {split.id: split for split in sample}
        self._live = live

    @property
    def source(self) -> Source:
        """This, as the coordinator takes it."""
        return cast("Source", self)  # it uses nothing but attributes of the source, and create_enumerator

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the source has
        return getattr(self._source, name)

    def create_enumerator(self, context: SplitEnumeratorContext) -> SplitEnumerator | DiscoveryEnumerator:
        """Make the source's own enumerator, shielded if it is one that only discovers."""
        made = self._source.create_enumerator(context)
        return _Shielded(made, self._sample, live=self._live) if isinstance(made, DiscoveryEnumerator) else made


class _Shielded(DiscoveryEnumerator):
    def __init__(self, author: DiscoveryEnumerator, sample: Mapping[str, Split] | None, *, live: bool) -> None:
        self._author = author
        self._sample = sample
        self._live = live

    def discover(self, known: Mapping[str, Split], first: bool) -> Discovered:
        found: object = self._author.discover(known, first)
        if self._sample is None or not isinstance(found, Discovered):
            return cast("Discovered", found)  # the coordinator refuses what is none
        return replace(found, splits=[self._sample[one.id] for one in found.splits if one.id in self._sample])

    def restore_state(self, state: Json) -> None:
        self._author.restore_state(state)

    def latest(self, splits: Sequence[Split]) -> Mapping[str, Position]:
        return self._author.latest(splits)

    def vanished(self, splits: Sequence[Split]) -> bool:
        return self._author.vanished(splits)

    def finished(self, splits: Sequence[Split]) -> None:
        if not self._live:
            self._author.finished(splits)

    def committed(self, positions: Mapping[str, Position]) -> None:
        if not self._live:
            self._author.committed(positions)

    def close(self) -> None:
        self._author.close()
