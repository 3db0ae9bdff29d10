# SPDX-License-Identifier: Apache-2.0
"""The contract of the blocking part: a plain client that fetches from its splits, on a fetcher thread."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pyarrow as pa

from forebay.framework.split import Position, Split


@dataclass(frozen=True, slots=True)
class Fetched:
    """What one fetch brought for one split.

    Args:
        split_id: The split it belongs to.
        batch: The records, or None when only the end (or progress without records) is to be told.
        position: The next record after `batch`; None when nothing moved.
        finished: The split has no more records in this read; said exactly once, with or after the last batch (SR-4).
        caught_up: Everything there was to read has been read, for now; the split goes on unless the host reads once.
    """

    split_id: str
    batch: pa.RecordBatch | None = None
    position: Position | None = None
    finished: bool = False
    caught_up: bool = False


class SplitReader(ABC):
    """Fetches record batches from the splits it was given. Written by connector authors; knows no thread.

    The framework calls everything on one fetcher thread, except `wake_up`, which comes from any thread.
    """

    @abstractmethod
    def add_splits(self, splits: Sequence[Split]) -> None:
        """Take more splits, between fetches; must not block (SR-3).

        A split that is empty or already at its end is reported finished by a later `fetch`, never forgotten.
        """

    @abstractmethod
    def fetch(self) -> Sequence[Fetched]:
        """Return what there is, in order; may block, at most until `wake_up` (SR-1), and may return nothing.

        Each call goes on where the one before ended (SR-2). With a split's `end` set, records at or after it are
        not returned, and the split is finished exactly there. Called only while a split is not finished.

        Raises:
            RetriableError: Trouble outside: the framework calls again, with back-off.
            ForebayError: Anything else ends the read with this error.
        """

    @abstractmethod
    def wake_up(self) -> None:
        """Make a blocked `fetch` return promptly with what it has (SR-1); loses, doubles and reorders nothing.

        Called from another thread, before, during or after a fetch.
        """

    def pause_or_resume_splits(self, pause: Collection[str], resume: Collection[str]) -> bool:
        """Stop fetching some splits and go on with others (SR-5). Unknown ids have no effect.

        Returns:
            True if the reader does it; False (the default) leaves it to the framework, which holds back what it
            fetches from paused splits and, once too much is held, stops fetching until they resume.
        """
        return False

    def close(self) -> None:
        """Free everything; called once, on every path, also after an error in `fetch` (SR-6)."""
