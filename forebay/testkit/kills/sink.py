# SPDX-License-Identifier: Apache-2.0
"""`MicroBatchFiles`: a sink that shows whether every row of a stream arrived exactly once."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from forebay.errors import ContractError
from forebay.testkit.kills.points import KillList


class Frame(Protocol):
    """The methods of a DataFrame that the sink calls."""

    def collect(self) -> Sequence[tuple[object, ...]]:
        """Return the rows."""

    def count(self) -> int:
        """Return how many rows there are."""


class MicroBatchFiles:
    """A sink for `foreachBatch`: writes one file per micro-batch. A replay replaces the file, so rows are not repeated.

    The sink reads each micro-batch twice. It checks that all reads of a micro-batch, also after a restart, return the
    same rows.

    Args:
        directory: The directory of the files; created by the first write.
        kills: The kill list for the points `sink-begins` and `sink-written`.
    """

    def __init__(self, directory: str | os.PathLike[str], kills: KillList | None = None) -> None:
        self._root = Path(directory)
        self._kills = kills

    def __call__(self, frame: Frame, micro_batch: int) -> None:
        """Write one micro-batch. Called by Spark in the driver's process, on a thread of the query.

        Raises:
            ContractError: Two reads of the micro-batch returned different rows.
        """
        self._meet("sink-begins")
        counted = frame.count()
        texts = sorted(json.dumps(list(row), default=str) for row in frame.collect())
        if counted != len(texts):
            raise _differs(micro_batch, f"one action read {counted} rows, the next one {len(texts)}")
        self._root.mkdir(parents=True, exist_ok=True)
        path = self._root / f"{micro_batch:08}"
        if path.exists() and (before := path.read_text().splitlines()) != texts:
            lost, new = sorted(set(before) - set(texts)), sorted(set(texts) - set(before))
            raise _differs(
                micro_batch,
                f"it held {len(before)} rows, and its replay has {len(texts)}; gone: {lost[:3]}, new: {new[:3]}",
            )
        temporary = self._root / f".{micro_batch}.{os.getpid()}"
        temporary.write_text("".join(f"{text}\n" for text in texts))
        temporary.replace(path)
        self._meet("sink-written")

    def rows(self) -> list[str]:
        """Return all rows, sorted. Each row is a JSON list of its values, in the order of the columns.

        A value that JSON cannot represent, such as a timestamp, is written as its `str`.
        """
        return sorted(line for path in self._files() for line in path.read_text().splitlines())

    def micro_batches(self) -> int:
        """Return how many micro-batches were written."""
        return len(self._files())

    def _files(self) -> list[Path]:
        return sorted(self._root.glob("[0-9]*"))

    def _meet(self, point: str) -> None:
        if self._kills is not None:
            self._kills.meet(point)


def _differs(micro_batch: int, what: str) -> ContractError:
    return ContractError(
        f"two reads of micro-batch {micro_batch} differ: {what}",
        rule="S6",
        advice="a read must depend on its split alone: the same rows in the same order, exactly up to split.end",
    )
