# SPDX-License-Identifier: Apache-2.0
"""Reading one split whose end is agreed on: chunk by chunk, each claimed before a row of it leaves (S14)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final, Protocol

from forebay.clock import Clock
from forebay.errors import ConfigurationError, ContractError
from forebay.framework.host_options import HostOptions
from forebay.framework.microbatch.end_negotiation.claim import Chain, Claim, Share
from forebay.framework.microbatch.split_providers.validation import before
from forebay.framework.microbatch.tasks.task_context import Delivered
from forebay.framework.source import Source
from forebay.framework.split import Position, Split
from forebay.options import ByteSize

CHUNK: Final = 8 << 20
"""Bytes of a chunk, at most, where the source does not itself give larger record batches."""

_PIECE: Final = 1 << 20
"""Bytes of a record batch here: the smaller, the nearer a chunk comes to its limits."""

SHORT_WHILE: Final = 0.5
"""Seconds after which a chunk goes out with what has come: a slow source is not held back."""


class Readable(Protocol):
    """What a chunk is read with: see `OpenRead`."""

    caught_up: set[str]
    finished: set[str]

    def poll(self) -> Delivered | None:
        """Return the next record batch, if there is one."""

    def position(self, split_id: str) -> Position | None:
        """Return where the reader stands."""

    def available(self) -> Future[None]:
        """Return a future that is done when to poll again is worth it."""

    def close(self, error: BaseException | None = None) -> None:
        """Free everything."""


class ChunkReader:
    """Reads one split of a micro-batch as far as its chain of claims says, and makes the chain where there is none.

    Stepped by one thread. It *leads* where nobody has claimed yet: reads on, holds the record batches of a chunk back,
    proposes its end, and lets them go if that holds. It *follows* a claim of another attempt: reads exactly up to it.

    Args:
        source: What is read.
        split: At the position where the micro-batch begins.
        chain: Its claims.
        share: The most the micro-batch takes of it.
        options: Bounds.
        open_read: Opens a reader of a split.
        clock: The time.
    """

    def __init__(
        self,
        source: Source,
        split: Split,
        *,
        chain: Chain,
        share: Share,
        options: HostOptions,
        open_read: Callable[[Split, HostOptions], Readable],
        clock: Clock,
    ) -> None:
        self._source = source
        self._split = split
        self._chain = chain
        self._share = share
        self._options = options
        self._open_read = open_read
        self._clock = clock
        self._k = 0
        self._position: Position | None = split.position  # everything before it is delivered
        self._read: Readable | None = None
        self._goal: Claim | None = None  # what is followed
        self._held: list[Delivered] = []
        self._end: Position | None = split.position  # of what is held
        self._since = 0.0
        self._rows = 0  # delivered or held
        self._bytes = 0
        self._one_by_one = False
        self._stops_at = float("inf")
        self._gives_up_at = float("inf")
        self.done = False

    def start(self, seconds: float) -> None:
        """Begin, to stop after so many seconds; if nothing at all has come by then, after `planningTimeout`."""
        now = self._clock.monotonic()
        self._stops_at = now + seconds
        self._gives_up_at = now + max(seconds, self._options.planning_timeout.total_seconds())

    def step(self) -> Sequence[Delivered]:
        """Go on a little; return what may leave now.

        Raises:
            ContractError: The source cannot be read again as it was read before (S14).
            ForebayError: The source or the store failed.
        """
        if self._read is None:
            return self._begin()
        delivered = self._read.poll()
        return self._lead(self._read, delivered) if self._goal is None else self._follow(self._read, delivered)

    def available(self) -> Future[None]:
        """Return a future that is done when to step again is worth it."""
        if self._read is None:
            ready: Future[None] = Future()
            ready.set_result(None)
            return ready
        return self._read.available()

    def due_in(self) -> float:
        """Return the seconds until a step is due whatever comes."""
        due = self._since + SHORT_WHILE if self._held else float("inf")
        stop = self._stops_at if self._moved() else self._gives_up_at
        return max(0.0, min(due, stop) - self._clock.monotonic())

    def close(self, error: BaseException | None = None) -> None:
        """Stop reading, wherever it stands."""
        read, self._read = self._read, None
        if read is not None:
            read.close(error)

    # ---- where nobody was before

    def _begin(self) -> Sequence[Delivered]:
        newest = self._chain.newest(self._k - 1)
        if newest is not None:
            return self._obey(*newest)
        if self._enough():
            return self._propose(Claim(self._position, last=True))
        self._end = self._position
        self._read = self._open_read(self._split.at(self._position), self._bounds())
        return ()

    def _lead(self, read: Readable, delivered: Delivered | None) -> Sequence[Delivered]:
        if delivered is not None:
            if not self._fits(delivered):
                return self._cannot_take(delivered)
            self._hold(delivered)
        now = self._clock.monotonic()
        if self._split.id in read.caught_up or self._split.id in read.finished:
            return self._propose(Claim(read.position(self._split.id), last=True, caught_up=True))
        if self._enough():
            return self._propose(Claim(self._end, last=True))
        if now >= (self._stops_at if self._moved() else self._gives_up_at):
            return self._propose(Claim(read.position(self._split.id), last=True))
        full = sum(each.batch.nbytes for each in self._held) > CHUNK - _PIECE
        if self._held and (full or now >= self._since + SHORT_WHILE):
            return self._propose(Claim(self._end))
        return ()

    def _hold(self, delivered: Delivered) -> None:
        if not self._held:
            self._since = self._clock.monotonic()
        self._held.append(delivered)
        self._end = delivered.position
        self._count(delivered)

    def _count(self, delivered: Delivered) -> None:
        self._rows += delivered.batch.num_rows
        self._bytes += delivered.batch.nbytes

    def _propose(self, claim: Claim) -> Sequence[Delivered]:
        self._check_forward(claim.end)
        winner = self._chain.propose(self._k, claim)
        held, self._held = self._held, []
        if winner.end != claim.end:  # another attempt cut elsewhere: its rows are the ones
            self._rows -= sum(each.batch.num_rows for each in held)
            self._bytes -= sum(each.batch.nbytes for each in held)
            return self._obey(self._k, winner)
        self._arrive(self._k, winner)
        if claim.last:
            self.close()
        return held

    def _arrive(self, k: int, claim: Claim) -> None:
        self._k, self._position, self._goal = k + 1, claim.end, None
        if claim.last:
            self.close()
            self.done = True

    # ---- behind another attempt

    def _obey(self, k: int, claim: Claim) -> Sequence[Delivered]:
        self.close()
        if claim.end == self._position:
            self._arrive(k, claim)
            return ()
        self._check_forward(claim.end)
        self._k, self._goal = k, claim
        self._read = self._open_read(self._split.slice(self._position, claim.end), self._bounds())
        return ()

    def _follow(self, read: Readable, delivered: Delivered | None) -> Sequence[Delivered]:
        assert self._goal is not None  # noqa: S101 - whoever follows has one
        goal, end = self._goal, self._goal.end
        out: Sequence[Delivered] = ()
        if delivered is not None:
            self._check_within(delivered.position, end)
            self._count(delivered)
            out = (delivered,)
        if (delivered is not None and delivered.position == end) or self._split.id in read.finished:
            reached = read.position(self._split.id)
            if reached != end:
                raise self._not_again(f"ended at {reached!r}", end)
            self.close()
            self._arrive(self._k, goal)
        elif self._split.id in read.caught_up:
            raise self._not_again(f"found nothing more at {read.position(self._split.id)!r}", end)
        return out

    # ---- bounds

    def _moved(self) -> bool:
        """Whether this micro-batch has got anything of the split."""
        return bool(self._held) or self._position != self._split.position

    def _enough(self) -> bool:
        share = self._share
        rows = share.rows is not None and self._rows >= share.rows
        return rows or (share.byte_budget is not None and self._bytes >= share.byte_budget)

    def _fits(self, delivered: Delivered) -> bool:
        """Whether the limits have room for it; bytes are counted in whole record batches, and one is always taken."""
        share, batch = self._share, delivered.batch
        if share.rows is not None and self._rows + batch.num_rows > share.rows:
            return False
        return share.byte_budget is None or not self._bytes or self._bytes + batch.nbytes <= share.byte_budget

    def _cannot_take(self, delivered: Delivered) -> Sequence[Delivered]:
        """Stop before a record batch that there is no room for; it comes first in the next micro-batch."""
        if self._moved():
            return self._propose(Claim(self._end, last=True))
        if not self._one_by_one:
            self._one_by_one = True  # perhaps only several small ones, packed into one
            self.close()
            return ()
        rows, most = delivered.batch.num_rows, self._share.rows
        raise ConfigurationError(
            f"maxRowsPerTrigger cannot be kept: read() gives {rows} rows at once, and this split may take {most}",
            source=self._source.name,
            split=self._split.id,
            position=self._position,
            option="maxRowsPerTrigger",
            advice=f"give at least {rows} for each split; or, in the connector, yield smaller batches",
        )

    def _bounds(self) -> HostOptions:
        options, share = self._options, self._share
        rows = 1 if self._one_by_one else min(options.max_rows_per_batch, share.rows or options.max_rows_per_batch)
        return dataclasses.replace(
            options,
            max_rows_per_batch=rows,
            max_bytes_per_batch=ByteSize(min(options.max_bytes_per_batch, share.byte_budget or _PIECE, _PIECE)),
            queue_bytes=ByteSize(min(options.queue_bytes, CHUNK)),
        )

    # ---- rules

    def _before(self, one: Position, other: Position) -> bool:
        return before(self._source, one, other, self._split.id)

    def _check_forward(self, end: Position | None) -> None:
        """Refuse an end that is not after the position: what is read again is cut by comparing."""
        position = self._position
        if end == position or position is None:
            return
        if end is None or not self._before(position, end):
            raise ContractError(
                f"the position went from {position!r} to {end!r}, which is not after it",
                source=self._source.name,
                split=self._split.id,
                position=position,
                rule="S14",
                advice="use positions that order by themselves, such as (count of rows, token) instead of a bare "
                "token; or override order_key(position)",
            )

    def _check_within(self, position: Position | None, end: Position | None) -> None:
        if position is not None and end is not None and position != end and self._before(end, position):
            raise self._not_again(f"came to {position!r}, beyond it,", end)

    def _not_again(self, what: str, end: Position | None) -> ContractError:
        return ContractError(
            f"read() from {self._position!r} {what} where an earlier attempt has read up to {end!r}",
            source=self._source.name,
            split=self._split.id,
            position=self._position,
            rule="S14",
            advice="read(split) must give the same rows between two positions whenever it is asked, and stop exactly "
            "at split.end; what can be read only once, such as a queue, has to be stored first",
        )
