# SPDX-License-Identifier: Apache-2.0
"""Reads partitions: one consumer for all of a task's, on loan from the worker process."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Collection, Sequence

from kafka.errors import KafkaError

from forebay.errors import RetriableError
from forebay.framework.reader import SourceReaderContext
from forebay.framework.split import Split
from forebay.framework.split_reader import Fetched, SplitReader
from forebay.sources.kafka.client.client_errors import client_error
from forebay.sources.kafka.client.clients import connect
from forebay.sources.kafka.client.offset_loss import PositionLostError
from forebay.sources.kafka.options import KafkaOptions
from forebay.sources.kafka.reading.fetching import FetchedPart, PartitionFetcher
from forebay.sources.kafka.split import KafkaSplit, TopicPartition

_log = logging.getLogger(__name__)

_WAIT = 1.0
"""Seconds that one fetch waits for records; `wake_up` ends it."""


class KafkaSplitReader(SplitReader):
    """Hands splits to a `PartitionFetcher`, and decides what becomes of lost positions.

    Args:
        source: The options.
        context: Lends the consumer.
    """

    def __init__(self, source: KafkaOptions, context: SourceReaderContext) -> None:
        self._source = source
        self._context = context
        self._options = source.client_options()
        self._fetcher: PartitionFetcher | None = None
        self._new: list[KafkaSplit] = []
        self._splits: dict[TopicPartition, KafkaSplit] = {}
        self._paused: set[TopicPartition] = set()
        self._waited: dict[TopicPartition, float] = {}
        self._lost = 0
        self._cut_off: set[tuple[TopicPartition, int]] = set()
        self._woken = False
        self._open = False

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Take more ranges; the next fetch asks for them."""
        self._new.extend(split for split in splits if isinstance(split, KafkaSplit))

    def fetch(self) -> Sequence[Fetched]:
        """Return what there is of any partition, waiting for it if need be.

        Raises:
            DataLossError: Records are gone, under `failOnDataLoss`.
            RetriableError: The brokers do not answer; the next call goes on after the last record batch.
            DataError: A record batch is damaged.
        """
        if self._woken:
            self._woken = False
            return []
        try:
            fetcher = self._borrowed()
            if over := self._begin(fetcher):
                return over
            return [self._told(part) for part in fetcher.fetch(_WAIT)]
        except PositionLostError as lost:
            return self._go_on_after(lost)
        except RetriableError:
            self._begin_again()
            raise
        except KafkaError as error:
            found = client_error(error, "reading", self._options)
            if isinstance(found, RetriableError):
                self._begin_again()
            raise found from error

    def wake_up(self) -> None:
        """End a wait. Called from any thread."""
        if self._fetcher is None:
            self._woken = True
        else:
            self._fetcher.wake_up()

    def pause_or_resume_splits(self, pause: Collection[str], resume: Collection[str]) -> bool:
        """Forget what was fetched of some partitions but not returned, and ask for others again."""
        for split in [*self._splits.values(), *self._new]:
            if split.id in pause:
                self._paused.add(split.place)
                self._waited.pop(split.place, None)
                if self._fetcher is not None:
                    self._fetcher.drop(*split.place)
        for split in [*self._splits.values(), *self._new]:
            if split.id in resume and split.place in self._paused:
                self._paused.discard(split.place)
                if self._splits.pop(split.place, None) is not None:
                    self._new.append(split)
        return True

    def close(self) -> None:
        """Leave the consumer to the next reader, with nothing to read."""
        if self._fetcher is not None:
            self._fetcher.clear()
            self._fetcher = None

    def _borrowed(self) -> PartitionFetcher:
        if not self._open and any(split.end is None for split in self._new):
            # In a fetch session brokers are silent about partitions without news, and nobody would know the end.
            self._open = True
            self.close()
            self._begin_again()
        if self._fetcher is None:
            source, schema = self._source, self._source.schema()
            # Pickled, since a repr hides the secrets that tell two clients apart.
            key = pickle.dumps((self._options, schema.names, source.poll_timeout_ms, self._open))
            self._fetcher = self._context.lease(
                key,
                lambda: PartitionFetcher(
                    {**self._options.arguments("consumer"), "enable_incremental_fetch_sessions": not self._open},
                    schema,
                    check_crcs=self._options.consumer.get("check_crcs") is not False,
                    poll_timeout=source.poll_timeout_ms / 1000,
                    clock=self._context.runtime.clock,
                    connect=lambda **arguments: connect(_consumer, arguments),
                ),
            )
            self._fetcher.clear()
        return self._fetcher

    def _begin(self, fetcher: PartitionFetcher) -> list[Fetched]:
        """Ask for what is new; return the ends of splits whose topic was made anew, and now comes as another split."""
        waiting, over = [], []
        for split in self._new:
            if split.place in self._paused:
                waiting.append(split)
                continue
            older = self._splits.get(split.place)
            if older is not None and older.id != split.id:
                fetcher.drop(*older.place)
                over.append(Fetched(older.id, position=older.position, finished=True))
            self._splits[split.place] = split
            end = split.end if isinstance(split.end, int) else None
            fetcher.assign(*split.place, split.start, end, waited=self._waited.pop(split.place, 0.0))
        self._new = waiting
        return over

    def _begin_again(self) -> None:
        """Ask for everything anew, from where it was returned up to."""
        if self._fetcher is not None:
            # Asking again is no new patience: how long a record may be waited for is for all tries together.
            self._waited = {place: self._fetcher.waited(*place) for place in self._splits}
            self._fetcher.clear()
        self._new += [split for place, split in self._splits.items() if place not in self._paused]
        self._splits = {place: split for place, split in self._splits.items() if place in self._paused}

    def _told(self, part: FetchedPart) -> Fetched:
        place = TopicPartition(part.topic, part.partition)
        split = self._splits[place]
        if part.finished:
            del self._splits[place]
        else:
            self._splits[place] = split.at(part.next_offset)
        return Fetched(split.id, part.batch, part.next_offset, finished=part.finished, caught_up=part.caught_up)

    def _go_on_after(self, lost: PositionLostError) -> list[Fetched]:
        """Go on at the first offset there is, if the user wants that.

        Raises:
            DataLossError: The user does not.
            RetriableError: The offset is there after all.
        """
        place = TopicPartition(lost.topic, lost.partition)
        split = self._splits.pop(place)
        if lost.is_there and not lost.cut_off:
            self._new.append(split)
            raise RetriableError(
                f"a broker refused the offset {lost.offset}, and then said that there are offsets {lost.earliest} to "
                f"{lost.latest}",
                split=split.id,
                position=lost.offset,
                advice="brokers do not agree: look whether the leader is moving, and whether replicas are in sync",
            )
        if self._source.fail_on_data_loss:
            raise lost.error().located(split=split.id) from lost
        earliest, end = lost.earliest, split.end if isinstance(split.end, int) else None
        if earliest is not None and split.start < earliest and (end is None or earliest < end):
            after = earliest
        elif lost.is_there and (place, split.start) not in self._cut_off:
            self._cut_off.add((place, split.start))
            after = split.start  # other records came to these offsets
        else:
            after = end if end is not None else (lost.latest if lost.latest is not None else split.start)
        self._lost += max(0, after - split.start)
        _log.warning(
            "%s: %s: %s; it goes on at the offset %d; %d offsets are lost to this task so far",
            self._source.name,
            split.id,
            lost,
            after,
            self._lost,
        )
        if after == end:
            return [Fetched(split.id, position=after, finished=True)]
        self._new.append(split.at(after))
        return [Fetched(split.id, position=after)]


def _consumer(**arguments: object) -> object:
    from kafka import KafkaConsumer

    return KafkaConsumer(**arguments)
