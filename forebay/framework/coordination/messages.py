# SPDX-License-Identifier: Apache-2.0
"""What the coordinator sends to a reader; each registration brings the gateway that takes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from forebay.framework.events import SourceEvent
from forebay.framework.split import Split

MAX_SPLITS_PER_MESSAGE = 1000
"""No message carries more: a host may have to ship it, and a first discovery can find a million files."""


@dataclass(frozen=True, slots=True)
class AddSplits:
    """Read these too."""

    splits: tuple[Split, ...]


@dataclass(frozen=True, slots=True)
class NoMoreSplits:
    """No split will follow."""


@dataclass(frozen=True, slots=True)
class EnumeratorEvent:
    """An event of the source's own, from its enumerator."""

    event: SourceEvent


ToReader = AddSplits | NoMoreSplits | EnumeratorEvent

Gateway = Callable[[ToReader], None]
"""Takes the messages of one registration, in order; called on the coordinator thread; must not block or raise."""
