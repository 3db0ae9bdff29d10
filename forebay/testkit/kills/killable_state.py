# SPDX-License-Identifier: Apache-2.0
"""Adds kill points to tasks that keep keyed state, such as those of `materialize`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from forebay.state.local_state_store import LocalStateStore
from forebay.state.s3_state_store import S3StateStore
from forebay.table.changelog.state import shard
from forebay.table.changelog.state import shard as merging
from forebay.table.changelog.state.manifest import Manifest
from forebay.table.changelog.state.segments import StoredSegments
from forebay.table.changelog.state.shard import Shard, merge
from forebay.testkit.kills.killable import is_new, meet
from forebay.testkit.kills.points import KillList

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@contextmanager
def killable_state(kills: KillList, *, small: int = 0) -> Iterator[None]:
    """Add the kill points `STATE_POINTS` to stateful functions that the driver's program calls in the `with` block.

    ```python
    with killable_state(kills):
        view = materialize(df, "id", state_location=location)
    ```

    Args:
        kills: The kill list.
        small: The state merges stored runs of at most this many entries with each new run (without kills, 4,096).
    """
    from forebay.spark.changelog import stateful

    task = stateful._Task  # noqa: SLF001 - the kill point is where Spark calls the function

    def make(*arguments: Any, **named: Any) -> _KillableTask:  # noqa: ANN401 - those of the task
        return _KillableTask(task(*arguments, **named), kills.directory, small)

    with patch.object(stateful, "_Task", make):
        yield


class _KillableTask:
    """The function of `mapInArrow`, with hooks in each process that unpickles it."""

    def __init__(self, task: Task, kills: str, small: int) -> None:
        self.task, self.kills, self.small = task, kills, small

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _hook(self.kills, self.small)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in self.task(batches):
            yield batch
            meet("changes-handed-on")


def _hook(directory: str, small: int) -> None:
    if not is_new("state", directory):
        return
    vars(merging)["SMALL"] = small
    write, remove_old = StoredSegments.write, Shard._remove_old  # noqa: SLF001 - hooked

    def written(self: StoredSegments, prefix: str, batch: pa.RecordBatch) -> Any:  # noqa: ANN401 - as of `write`
        info = write(self, prefix, batch)
        meet("segment-written")
        return info

    def merged(runs: Sequence[Any], *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - as of `merge`
        result = merge(runs, *arguments, **named)
        if len(runs) > 1:
            meet("merge-done")
        return result

    def removed(self: Shard, manifest: Manifest) -> None:
        meet("manifest-written")
        remove_old(self, manifest)
        meet("removed-all")

    StoredSegments.write = written  # type: ignore[method-assign]
    vars(shard)["merge"] = merged
    Shard._remove_old = removed  # type: ignore[method-assign]  # noqa: SLF001
    for store in (LocalStateStore, S3StateStore):
        _hook_store(store)


def _hook_store(store: type[LocalStateStore | S3StateStore]) -> None:
    put, delete = store.put_if_absent, store.delete

    def put_if_absent(self: Any, name: str, data: bytes) -> bool:  # noqa: ANN401 - one of both stores
        if name.rpartition("/")[2].startswith("v"):
            meet("manifest-begins")
        return put(self, name, data)

    def delete_in_parts(self: Any, names: Iterable[str]) -> None:  # noqa: ANN401 - one of both stores
        first, *others = names
        delete(self, [first])
        meet("removed-some")
        delete(self, others)

    store.put_if_absent = put_if_absent  # type: ignore[method-assign]
    store.delete = delete_in_parts  # type: ignore[method-assign]
