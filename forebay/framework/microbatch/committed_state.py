# SPDX-License-Identifier: Apache-2.0
"""What is proven done of a stream: from the offset of one micro-batch to the splits that the next one begins from."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from forebay.framework.microbatch.admission.available_range import unknown_end
from forebay.framework.microbatch.end_negotiation.negotiated_splits import NegotiatedSplits
from forebay.framework.microbatch.offsets.codec import OffsetCodec
from forebay.framework.microbatch.offsets.finished_splits import DoneSplits, Ended
from forebay.framework.microbatch.offsets.offset import BEFORE_FIRST, Agreed, Offset, Planned, Whole
from forebay.framework.microbatch.restart_guard import RestartGuard
from forebay.framework.microbatch.split_providers.split_provider import SplitProvider
from forebay.framework.runtime.connector_errors import without_secrets
from forebay.framework.source import Source
from forebay.framework.split import Json, Position, Split

_log = logging.getLogger(__name__)

_NOTHING: Final = Offset("")


class CommittedState:
    """Where a query stands. Lives in the planner; called on its thread.

    That a micro-batch is asked for after another one proves that one done; nothing else does. A new planner goes on
    from any offset as this one would (S1, S2).

    Args:
        source: What is read.
        supply: Is told what is done.
        book: How offsets are written.
        pinned: What may not change between two runs.
        agreed: Knows the ends that tasks agreed on; None where none can be.
    """

    def __init__(
        self,
        source: Source,
        *,
        supply: SplitProvider,
        book: OffsetCodec,
        pinned: RestartGuard,
        agreed: NegotiatedSplits | None,
    ) -> None:
        self._source = source
        self._supply = supply
        self._book = book
        self._pinned = pinned
        self._agreed = agreed
        self._planned = _NOTHING  # the one planned after it
        self._cold = True
        self._replayed: int | None = None
        self._told = BEFORE_FIRST
        self._untold: Sequence[Split] = ()
        self.at: Offset = _NOTHING
        """The last micro-batch that is done."""
        self.open: dict[str, Split] = {}
        """The splits that were begun and not read to their end; who waited longest comes first."""
        self.waiting: dict[str, Split] = {}
        """Splits that were found and not begun, where they are read in order."""
        self.done = DoneSplits(source.split_class)
        """Those that were read to their end."""

    def planned(self, offset: Offset) -> None:
        """Note the micro-batch that was planned after the last one."""
        self._planned = offset

    def replaying(self, n: int) -> None:
        """Note that the tasks of a micro-batch are asked for; before anything else it is a replay."""
        if self._cold:
            self._replayed = n

    def go_on_from(self, start: Mapping[str, Json]) -> bool:
        """Take a micro-batch, and all before it, for done; return whether that was not known.

        Raises:
            ForebayError: Its offset cannot be gone on from.
        """
        where = place_of(start)
        if not self._cold and where == (self._planned.query, self._planned.n):
            done = self._resolved(self._planned)
            self.done.mark_written()
            self._advance(done)
        elif self._cold or where != (self.at.query, self.at.n):
            self._restore(start)
        else:
            return False
        return True

    def commit(self, end: Mapping[str, Json]) -> None:
        """A micro-batch is done and will not be read again: tell the source which splits ended. Never raises."""

        def tell() -> None:
            offset = self._book.read(end)
            if offset.n > self._told:
                self._told = offset.n
                self._tell_finished([planned.split for planned in offset.splits if planned.ends])
            self._book.proven(offset)
            if self._agreed is not None:
                self._agreed.forget(offset)

        self._quietly(tell)

    def agreeing(self, offset: Offset) -> NegotiatedSplits:
        """Return who knows the ends of a micro-batch that tasks agree on.

        Raises:
            ConfigurationError: Nobody does.
        """
        if self._agreed is None:
            raise unknown_end(self._source, agreed_of(offset)[0].split)
        return self._agreed

    def _restore(self, start: Mapping[str, Json]) -> None:
        offset = self._book.read(start)
        self._pinned.check(offset)
        offset = self._resolved(offset)
        self.open, self.waiting = {}, {}
        self.done = self._book.read_done(start)
        self.done.mark_written()
        if offset.n != BEFORE_FIRST:
            self._supply.restore(offset.enumerator)
        # What this process replayed may be replayed once more; what ended before is sure, and its end may be news.
        more: list[Split] = []
        if self._replayed is None or offset.n > self._replayed:
            more = [planned.split for planned in offset.splits if planned.ends]
            self._told = offset.n
        sure = Ended(self.done, more)
        self._cold = False
        self._advance(offset)
        if sure:
            self._quietly(lambda: self._tell_finished(sure))

    def _advance(self, offset: Offset) -> None:
        """Go to the end of a micro-batch that is done."""
        ended, served = [], []
        positions: dict[str, Position] = {}
        for planned in offset.splits:
            split = planned.split
            self.waiting.pop(split.id, None)
            to = planned.to
            if to is not None and not isinstance(to, (Whole, Agreed)):
                positions[split.id] = to
            if planned.ends:
                self.open.pop(split.id, None)
                ended.append(split)
                continue
            if isinstance(to, (Whole, Agreed)):
                raise unknown_end(self._source, split)
            self.open[split.id] = split.at(to)
            if not planned.empty:
                served.append(split.id)
        for split_id in served:  # whoever got something goes to the end of the queue, and the offset keeps its order
            self.open[split_id] = self.open.pop(split_id)
        self.done.add(ended)
        self.at, self._planned = offset, _NOTHING
        self._supply.proven(offset.n)
        if positions and offset.n != BEFORE_FIRST:
            self._quietly(lambda: self._supply.committed(positions))

    def _resolved(self, offset: Offset) -> Offset:
        """Return a micro-batch that is done with the ends that were agreed on."""
        return self.agreeing(offset).resolved(offset) if agreed_of(offset) else offset

    def _tell_finished(self, splits: Sequence[Split]) -> None:
        """Tell which splits ended; where that fails they are told with the next ones."""
        self._untold = [*self._untold, *splits] if self._untold else splits
        if self._untold:
            try:
                self._supply.finished(self._untold)
            except Exception:
                self._untold = list(self._untold)  # what is remembered whole may be digests by then
                raise
            self._untold = ()

    def _quietly(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - best effort: the next micro-batch tells it again
            # The query must not die of it.
            _log.warning("%s: work after the micro-batch failed", self._source.name, exc_info=without_secrets(error))


def place_of(offset: object) -> tuple[object, object]:
    """Return which micro-batch an offset is of, whoever wrote it."""
    return (offset.get("id", ""), offset.get("n")) if isinstance(offset, Mapping) else (None, None)


def agreed_of(offset: Offset) -> list[Planned]:
    """Return the splits of a micro-batch whose ends tasks agree on."""
    return [planned for planned in offset.splits if planned.to is Agreed.AGREED]
