# SPDX-License-Identifier: Apache-2.0
"""Runs a `SimpleSource`'s generator on its own daemon thread."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Protocol

import pyarrow as pa

from forebay.errors import ContractError, ForebayError
from forebay.framework.arrow.row_packer import Batch, Packed, RowPacker, Rows
from forebay.framework.reader import SourceReaderContext
from forebay.framework.runtime.connector_errors import connector_error, wrap_errors
from forebay.framework.runtime.runtime import Next, Signal
from forebay.framework.split import Position, Split

_log = logging.getLogger(__name__)

_ITEMS_PER_STEP = 64
_MAX_PACKED = 2


@cache
def _warn_of_missing(source: str, missing: tuple[str, ...]) -> None:
    """Warn of columns that are null in every row, once per process, not for each split and micro-batch."""
    _log.warning(
        "%s: no row of a read() had the key %s, so this column is null in every row: in read(), use the names of "
        "schema() as keys; if rows may omit columns, set partial_rows = True on the class",
        source,
        ", ".join(map(repr, missing)),
    )


class GeneratorSource(Protocol):
    """The methods of `SimpleSource` that a generator worker uses."""

    @property
    def name(self) -> str: ...  # noqa: D102 - see Source
    @property
    def bounded(self) -> bool: ...  # noqa: D102 - see Source
    @property
    def positions_are_rows(self) -> bool: ...  # noqa: D102 - see SimpleSource
    @property
    def partial_rows(self) -> bool: ...  # noqa: D102 - see SimpleSource
    @property
    def extra_keys(self) -> bool: ...  # noqa: D102 - see SimpleSource
    def schema(self) -> pa.Schema: ...  # noqa: D102 - see Source
    def read(self, split: Split) -> Iterable[Rows | Batch]: ...  # noqa: D102 - see SimpleSource
    def latest(self, split: Split) -> Position | None: ...  # noqa: D102 - see SimpleSource
    def order_key(self, position: Position) -> Any: ...  # noqa: ANN401, D102 - see Source


class GeneratorWorker:
    """Runs `read(split)` once and packs its rows, at most `_MAX_PACKED` record batches ahead of the fetcher.

    If the split has no planned end, the source's `latest` gives an end. With `ends_are_promises`, the next read starts
    at the planned end, so a generator must not return before it. The worker sets `ready` when `take` has a result.
    """

    def __init__(
        self,
        source: GeneratorSource,
        split: Split,
        schema: pa.Schema,
        context: SourceReaderContext,
        ready: Signal,
    ) -> None:
        runtime = context.runtime
        self.signal: Signal = runtime.signal()
        self.split = split
        self._source = source
        self._schema = schema
        self._context = context
        self._ready = ready
        self._promised = context.ends_are_promises and split.end is not None
        self.began = runtime.clock.monotonic()
        self.preempted = False
        """Whether the worker must end because another split waits for it."""
        self._lock = runtime.lock()
        self._packer: RowPacker | None = None
        self._rows: Iterator[object] | None = None
        self._packed: deque[Packed] = deque()
        self._ended = False
        self._error: BaseException | None = None
        self._closing = False

    # ---- called on the fetcher thread

    def take(self) -> tuple[list[Packed], bool, BaseException | None]:
        """Remove and return the packed batches; also return whether the worker has ended, and its error or None."""
        with self._lock:
            if not self._packed and self._packer is not None and not self._ended:
                due = self._packer.take_due()
                if due is not None:
                    self._packed.append(due)
            packed = list(self._packed)
            self._packed.clear()
            ended, error = self._ended, self._error
        if packed:
            self.signal.set()
        return packed, ended, error

    def due_in(self) -> float | None:
        """Return the seconds until an incomplete record batch is due; None if no rows wait."""
        with self._lock:
            return None if self._packer is None else self._packer.due_in()

    def position(self) -> Position | None:
        """Return the position after all rows that the generator has yielded."""
        with self._lock:
            return self.split.position if self._packer is None else self._packer.position

    def close(self) -> None:
        """End the worker at its next step. Rows that are not packed yet are dropped."""
        with self._lock:
            self._closing = True
        self.signal.set()

    def preempt(self) -> None:
        """End the worker: it takes at most one more item from the generator, and delivers all that it has taken."""
        self.preempted = True
        self.close()

    # ---- called on the worker thread

    def step(self) -> Next:
        """Take some items from the generator and pack them; keep an error for `take`."""
        with self._lock:
            closing, full = self._closing, len(self._packed) >= _MAX_PACKED
        if full and not closing:
            return Next.WAIT
        try:
            more = not closing and self._run()
        except BaseException as error:  # noqa: BLE001 - the fetcher raises it
            return self._end(self._connector_error(error))
        return Next.AGAIN if more else self._end(None)

    def _run(self) -> bool:
        """Take up to `_ITEMS_PER_STEP` items from the generator; return whether there may be more."""
        if self._rows is None:
            split = self._with_end()
            if self._is_empty(split):
                return False
            with self._lock:
                self._packer = RowPacker(
                    self._schema,
                    split,
                    self._context.runtime.clock,
                    self._context.options,
                    source=self._source.name,
                    order_key=self._source.order_key,
                    extra_keys=self._source.extra_keys,
                )
            self._rows = self._iterator(self._source.read(split))
        packer = self._packer
        assert packer is not None  # noqa: S101 - made with the iterator
        for _ in range(_ITEMS_PER_STEP):
            try:
                item = next(self._rows)
            except StopIteration:
                if self._promised:
                    packer.check_complete(counted=self._source.positions_are_rows)
                return False
            with self._lock:
                first = packer.due_in() is None
                packed = packer.add(item)
                if packed is not None:
                    self._packed.append(packed)
                at_end = packer.at_end
            if packed is not None or first:
                self._ready.set()
            if at_end:
                return False
            if packed is not None or self._closing:
                return True
        return True

    def _iterator(self, given: object) -> Iterator[object]:
        """Return an iterator over the result of `read()`; refuse a single batch, dict or text, though iterable."""
        single = (Batch, Mapping, pa.RecordBatch, pa.Table, str, bytes)
        if isinstance(given, Iterable) and not isinstance(given, single):
            return iter(given)
        raise ContractError(
            f"read() returned {'None' if given is None else f'a {type(given).__name__}'}, not an iterable of rows",
            source=self._source.name,
            split=self.split.id,
            rule="SR-2",
            advice="let read() `yield` rows, or return a list or a generator of rows; without rows, `return []`, or "
            "`yield from ()` in a generator",
        )

    def _with_end(self) -> Split:
        split = self.split
        if split.end is None:
            with wrap_errors(self._source.name, "latest()", split.id):
                latest = self._source.latest(split)
            if latest is not None:
                split = split.slice(split.position, latest)
        return split

    def _is_empty(self, split: Split) -> bool:
        """Whether there is nothing to read: the end is the position, or before it because `latest` is outdated."""
        if split.end is None:
            return False
        if split.position is None:
            return bool(split.end == 0)  # None is the start
        key = self._source.order_key
        return bool(split.position == split.end or key(split.end) < key(split.position))

    def _end(self, error: BaseException | None) -> Next:
        close = getattr(self._rows, "close", None)
        if close is not None:
            try:
                close()
            except BaseException as late:  # noqa: BLE001 - the fetcher raises it
                error = error or self._connector_error(late)
        with self._lock:
            try:
                wanted = self.preempted or not self._closing  # without these rows a slow generator never progresses
                tail = self._packer.take() if self._packer is not None and wanted else None
            except ForebayError as late:
                tail, error = None, error or late
            if tail is not None:
                self._packed.append(tail)
            missing = self._packer.never_given() if self._packer is not None and error is None else []
        if missing and not self._source.partial_rows:
            _warn_of_missing(self._source.name, tuple(missing))
        with self._lock:  # last: the fetcher may drop this worker at once
            self._ended, self._error = True, error
        self._ready.set()
        return Next.DONE

    def _connector_error(self, error: BaseException) -> ForebayError:
        return connector_error(
            error, source=self._source.name, doing="read()", split=self.split.id, position=self.position()
        )
