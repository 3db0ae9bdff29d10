# SPDX-License-Identifier: Apache-2.0
"""The messages of the coordinator to a reader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from forebay.framework.enumerator import SourceEvent
from forebay.framework.split import Split

MAX_SPLITS_PER_MESSAGE = 1000
"""Maximum splits of one message: it may go over the network, and a first discovery can find a million files."""


@dataclass(frozen=True, slots=True)
class AddSplits:
    """Read these splits too."""

    splits: tuple[Split, ...]


@dataclass(frozen=True, slots=True)
class NoMoreSplits:
    """No split follows."""


@dataclass(frozen=True, slots=True)
class EnumeratorEvent:
    """An event of the source's own."""

    event: SourceEvent


ToReader = AddSplits | NoMoreSplits | EnumeratorEvent

Gateway = Callable[[ToReader], None]
"""Takes the messages of one registration, in order. Called on the coordinator thread; must not block or raise."""
