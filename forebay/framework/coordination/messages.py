# SPDX-License-Identifier: Apache-2.0
"""The messages that the coordinator sends to a reader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from forebay.framework.enumerator import SourceEvent
from forebay.framework.split import Split

MAX_SPLITS_PER_MESSAGE = 1000
"""Maximum splits in one message: a message may cross the network, and a first discovery can find a million files."""


@dataclass(frozen=True, slots=True)
class AddSplits:
    """Tells a reader to read these splits too."""

    splits: tuple[Split, ...]


@dataclass(frozen=True, slots=True)
class NoMoreSplits:
    """Tells a reader that it gets no more splits."""


@dataclass(frozen=True, slots=True)
class EnumeratorEvent:
    """Passes an event that the enumerator sent to a reader."""

    event: SourceEvent


ToReader = AddSplits | NoMoreSplits | EnumeratorEvent

Gateway = Callable[[ToReader], None]
"""Sends messages to one registered reader, in order. Called on the coordinator thread; must not block or raise."""
