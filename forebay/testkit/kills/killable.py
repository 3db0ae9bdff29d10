# SPDX-License-Identifier: Apache-2.0
"""Adds kill points to any source, and to the framework in each process that has this source."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from dataclasses import replace
from typing import Any, Final

from forebay.framework.discovery import DiscoveryEnumerator
from forebay.framework.enumerator import SplitEnumerator, SplitEnumeratorContext
from forebay.framework.microbatch.stream_planner import StreamPlanner
from forebay.framework.runtime.runtime import Runtime
from forebay.framework.source import Source
from forebay.framework.tasks.read_task import Delivered, ReadTask
from forebay.options import option
from forebay.state.local_state_store import LocalStateStore
from forebay.state.s3_state_store import S3StateStore
from forebay.testkit.kills.points import KillList

_PLANNING: Final = {
    "latest": ("plan-begins", "plan-ends"),
    "tasks": ("tasks-begin", "tasks-end"),
    "commit": ("commit-begins", "commit-ends"),
}

_hooked: list[KillList] = []
_done: set[str] = set()
"""The names of the hooks that this process has."""
_met: set[str] = set()
"""The points that this process has reached."""


class Killable(Source):
    """A mixin that adds kill points to a source: `class KillableOrders(Killable, Orders)`. Not for production.

    Each process that creates or unpickles such a source gets the kill points as hooks in the framework's planner, tasks
    and state store, and in this source's enumerator.
    """

    kills: str = option(doc="the directory of the kill list")

    def __post_init__(self) -> None:
        super().__post_init__()
        _hook(self.kills)

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        _hook(self.kills)

    def create_enumerator(self, context: SplitEnumeratorContext) -> SplitEnumerator | DiscoveryEnumerator:
        """Return the source's own enumerator, with kill points."""
        enumerator = super().create_enumerator(context)  # type: ignore[safe-super]  # of the class mixed with
        if isinstance(enumerator, DiscoveryEnumerator):
            # On the object: a wrapper would have to forward all that the class may have.
            _around(enumerator, "discover", None, "discovered")
            _around(enumerator, "latest", None, "ends-known")
        return enumerator


def meet(point: str) -> None:
    """Report that this process has reached a kill point. If a kill is armed there, it happens now."""
    _met.add(point)
    _hooked[-1].meet(point)


def is_new(hooks: str, directory: str) -> bool:
    """Use the `KillList` of `directory` in this process. Return whether the hooks named `hooks` must still be added."""
    if not _hooked or _hooked[-1].directory != directory:
        _hooked[:] = [KillList(directory)]
    new = hooks not in _done
    _done.add(hooks)
    return new


def _hook(directory: str) -> None:
    """Add kill points to the framework's methods in this process. A second call only replaces the `KillList`.

    Args:
        directory: The directory of the `KillList`.
    """
    if not is_new("source", directory):
        return
    for name, (before, after) in _PLANNING.items():
        _around(StreamPlanner, name, before, after)
    for store in (LocalStateStore, S3StateStore):
        _hook_store(store)
    _hook_tasks()


def _hook_store(store: type[LocalStateStore | S3StateStore]) -> None:
    put = store.put_if_absent

    def put_if_absent(self: Any, name: str, data: bytes) -> bool:  # noqa: ANN401 - one of both stores
        plans = any(before in _met for before, _ in _PLANNING.values())  # a planner writes state, a task writes claims
        meet("state-begins" if plans else "claim-begins")
        written = put(self, name, data)
        meet("state-written" if plans else "claim-made")
        return written

    setattr(store, "put_if_absent", put_if_absent)  # noqa: B010 - a class is patched on purpose


def _hook_tasks() -> None:
    from forebay.spark import batch

    run_task = vars(batch)["run_task"]

    def run(task: ReadTask, *, runtime: Runtime | None = None) -> Generator[Delivered, None, None]:
        meet("read-begins")
        rows = 0
        with contextlib.closing(run_task(task, runtime=runtime)) as running:
            for delivered in running:
                meet("read-middle" if rows else "read-first")
                if not rows and delivered.batch.num_rows > 1:  # the batch may be the only one
                    middle = delivered.batch.num_rows // 2
                    yield replace(delivered, batch=delivered.batch.slice(0, middle))
                    meet("read-middle")
                    yield replace(delivered, batch=delivered.batch.slice(middle))
                else:
                    yield delivered
                rows += delivered.batch.num_rows
        if rows == 1:
            meet("read-middle")
        meet("read-ends")

    vars(batch)["run_task"] = run


def _around(owner: object, name: str, before: str | None, after: str) -> None:
    """Replace the method `name` of `owner` by one that reaches the point `before`, if given, and the point `after`."""
    method = getattr(owner, name)

    def around(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever the method takes
        if before is not None:
            meet(before)
        result = method(*args, **kwargs)
        meet(after)
        return result

    setattr(owner, name, around)
