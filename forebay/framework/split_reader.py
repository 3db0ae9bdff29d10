# SPDX-License-Identifier: Apache-2.0
"""The contract of the blocking client that fetches the records of splits: `SplitReader` and its results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pyarrow as pa

from forebay.errors import ContractError
from forebay.framework.split import Position, Split


@dataclass(frozen=True, slots=True)
class Fetched:
    """The result of one call of `SplitReader.fetch` for one split.

    Args:
        split_id: The id of the split.
        batch: The records; None to report only an end, or progress without records.
        position: The next record after `batch`; None if there was no progress.
        finished: This read of the split is complete. Reported once, with or after the last batch (SR-4).
        caught_up: All present records have been read, and more may follow. It never finishes a split: a read that has a
            planned end ends here, and the next one begins at that end. A ContractError for a split that `ends_itself`.
    """

    split_id: str
    batch: pa.RecordBatch | None = None
    position: Position | None = None
    finished: bool = False
    caught_up: bool = False


class SplitReader(ABC):
    """Fetches the record batches of its splits. Written by connector authors, without threads of their own.

    The framework calls all methods on one fetcher thread, except `wake_up`, which it calls on any thread.
    """

    @abstractmethod
    def add_splits(self, splits: Sequence[Split]) -> None:
        """Take more splits, between two fetches; must not block (SR-3).

        Report a split that is empty or at its end as finished in a later `fetch`.
        """

    @abstractmethod
    def fetch(self) -> Sequence[Fetched]:
        """Return the next records of the splits, in order; may block until `wake_up`, and return nothing (SR-1).

        Each call continues where the previous one ended (SR-2). Return no record at or after a split's `end`, and
        finish the split exactly there. Called only while there is an unfinished split.

        Raises:
            RetriableError: A transient failure; the framework calls `fetch` again, with back-off.
            ForebayError: Any other failure; it ends the read.
        """

    @abstractmethod
    def wake_up(self) -> None:
        """Make a blocked `fetch` return soon with the records it has; lose, repeat and reorder none (SR-1).

        Called on another thread, before, during or after a fetch.
        """

    def pause_or_resume_splits(self, pause: Collection[str], resume: Collection[str]) -> bool:
        """Stop fetching some splits, and resume others (SR-5). Unknown ids have no effect.

        Returns:
            True if this split reader stops fetching paused splits. If False (the default), the framework buffers the
            records of paused splits, and stops fetching all splits once the buffer is full.
        """
        return False

    def close(self) -> None:
        """Free all resources. Called once on every path, also after an error of `fetch` (SR-6)."""


def check_may_catch_up(split: Split, source: str | None = None) -> None:
    """Check that a split may be caught up. Called by hosts when a reader reports `caught_up` without `finished`.

    Raises:
        ContractError: The split `ends_itself`, so it is read only once, and what is written later would be lost.
    """
    if split.end is None and split.ends_itself:
        raise ContractError(
            "the reader reports `caught_up` for a split that `ends_itself`: such a split is read once, so the records "
            "that are written to it later would be lost",
            source=source,
            split=split.id,
            position=split.position,
            rule="SR-4",
            advice="if more records can follow, remove ends_itself; if the split is complete, report finished=True "
            "with or after its last record (in a SimpleSource: give the split its end)",
        )
