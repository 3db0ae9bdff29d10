# SPDX-License-Identifier: Apache-2.0
"""The split reader of the Kafka source: reads all partitions of a task with one leased consumer, and decodes them."""

from __future__ import annotations

import logging
import pickle
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from kafka.errors import KafkaError

from forebay.errors import DataError, DataLossError, RetriableError
from forebay.formats.json.cells import CellReader, Cells, spread
from forebay.formats.records import utf8_problem, with_valid_utf8
from forebay.framework.reader import SourceReaderContext
from forebay.framework.split import Split
from forebay.framework.split_reader import Fetched, SplitReader
from forebay.sources.kafka.client.client_errors import PositionLostError, TopicIdRefusedError, client_error
from forebay.sources.kafka.client.cluster import KafkaCluster, ask_until
from forebay.sources.kafka.fetching import PartitionFetcher
from forebay.sources.kafka.options import KafkaOptions
from forebay.sources.kafka.payloads import CORRUPT, Payloads
from forebay.sources.kafka.records.batches import record_schema
from forebay.sources.kafka.split import KafkaSplit, TopicPartition, are_of_two_topics
from forebay.table.changelog.shape import POSITION, SPLIT

if TYPE_CHECKING:
    from forebay.sources.kafka.changelogs import Changelog


# -- Converts fetched records to the columns of the read: with decoded keys and values, or as changes of rows.


class RecordDecoder(ABC):
    """Converts fetched records to the rows of a read. Called on one thread.

    Args:
        raw: The schema of the columns to fetch.
    """

    def __init__(self, raw: pa.Schema) -> None:
        self.raw = raw

    @abstractmethod
    def decode(self, batch: pa.RecordBatch, split_id: str) -> pa.RecordBatch | None:
        """Return the rows for fetched records; None if there are none.

        Raises:
            DataError: A record is corrupt and the mode is FAILFAST, or a record is not a valid change of a row.
        """

    @abstractmethod
    def close(self) -> None:
        """Log a warning with the number of records dropped by `mode`, if there are any."""


class _Payloads(RecordDecoder):
    """Decodes keys and values, and adds the columns of the option `rowPositions`."""

    def __init__(self, source: KafkaOptions, schema: pa.Schema) -> None:
        payloads = source.payloads()
        super().__init__(record_schema(payloads.raw_columns(schema.names)))
        self._decoder = PayloadDecoder(payloads, schema, source.name)

    def decode(self, batch: pa.RecordBatch, split_id: str) -> pa.RecordBatch | None:
        return self._decoder.decode(_positioned(batch, split_id), TopicPartition.of(split_id))

    def close(self) -> None:
        self._decoder.close()


class _Changes(RecordDecoder):
    """Converts change events to the rows of a changelog."""

    def __init__(self, changelog: Changelog, schema: pa.Schema, source: str) -> None:
        super().__init__(record_schema(changelog.raw_columns(schema.names)))
        self._converter = changelog.converter(schema.names, source)

    def decode(self, batch: pa.RecordBatch, split_id: str) -> pa.RecordBatch | None:
        changes = self._converter.convert(_positioned(batch, split_id))
        return changes if changes.num_rows else None

    def close(self) -> None:
        self._converter.close()


def record_decoder(source: KafkaOptions) -> RecordDecoder | None:
    """Return the decoder for the selected columns of a source; None if fetched records need no conversion."""
    schema = source.schema()
    changelog = source.changelog()
    if changelog is not None:
        return _Changes(changelog, schema, source.name)
    if source.payloads().decoded(schema.names) or {SPLIT, POSITION} & set(schema.names):
        return _Payloads(source, schema)
    return None


def _positioned(batch: pa.RecordBatch, split_id: str) -> pa.RecordBatch:
    splits = pa.repeat(split_id, batch.num_rows)
    return batch.append_column(SPLIT, splits).append_column(POSITION, batch.column("offset"))


# -- Decodes keys and values of fetched records by columns, and handles corrupt records by `mode`.


_log = logging.getLogger(__name__)

_SHOWN = 100


class PayloadDecoder:
    """Decodes the raw keys and values of record batches to the columns of a schema. Called on one thread."""

    def __init__(self, payloads: Payloads, schema: pa.Schema, source: str) -> None:
        self._payloads = payloads
        self._schema = schema
        self._source = source
        self._readers: dict[str, CellReader | None] = {}
        for name in payloads.decoded(schema.names):
            kind = payloads.types[name]
            fields = list(kind) if isinstance(kind, pa.StructType) else None
            self._readers[name] = None if fields is None else CellReader(pa.schema(fields), payloads.options)
        self._dropped = 0
        self._first_dropped = ""

    def decode(self, batch: pa.RecordBatch, partition: TopicPartition) -> pa.RecordBatch | None:
        """Decode the keys and values of a record batch; return None if all its records are dropped.

        Raises:
            DataError: A record is corrupt and the mode is FAILFAST. The error names topic, partition, offset and
                reason.
        """
        columns = {name: batch.column(name) for name in batch.schema.names}
        parsed = {name: self._decoded(name, columns[name]) for name in self._readers}
        bad = sorted({row for cells in parsed.values() for row in cells.bad})
        mode = self._payloads.options.mode
        if bad and mode == "FAILFAST":
            raise self._refusal(batch, bad[0], parsed, partition)
        columns |= {name: cells.values for name, cells in parsed.items()}
        if self._payloads.corrupt_column in self._schema.names:
            reported = bad if mode == "PERMISSIVE" else []
            columns[self._payloads.corrupt_column] = self._corrupt(batch, reported, parsed, partition)
        made = pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)
        if not bad or mode == "PERMISSIVE":
            return made
        if not self._dropped:
            self._first_dropped = f"{_location(batch, bad[0], partition)}: {self._reason(batch, bad[0], parsed)}"
        self._dropped += len(bad)
        keep = np.ones(batch.num_rows, np.bool_)
        keep[bad] = False
        return made.filter(pa.array(keep)) if len(bad) < batch.num_rows else None

    def close(self) -> None:
        """Log a warning with the number of records dropped by `mode`, if there are any."""
        if self._dropped:
            _log.warning(
                "%s: mode=DROPMALFORMED dropped %d corrupt records of a task; the first one: %s",
                self._source,
                self._dropped,
                self._first_dropped,
            )

    def _decoded(self, name: str, raw: pa.Array) -> Cells:
        reader = self._readers[name]
        return _strings(raw) if reader is None else reader.read(raw)

    def _reason(self, batch: pa.RecordBatch, row: int, parsed: Mapping[str, Cells]) -> str:
        reasons = []
        for name, cells in parsed.items():
            at = bisect_left(cells.bad, row)
            if at < len(cells.bad) and cells.bad[at] == row:
                reader, text = self._readers[name], batch.column(name)[row].as_py()
                reasons.append(f"{name}: {utf8_problem(text) if reader is None else reader.reason(text)}")
        return "; ".join(reasons)

    def _corrupt(
        self, batch: pa.RecordBatch, bad: list[int], parsed: Mapping[str, Cells], partition: TopicPartition
    ) -> pa.Array:
        """Return the corrupt-record column: the raw record and the reason for corrupt records, null for the others."""
        if not bad:
            return pa.nulls(batch.num_rows, CORRUPT)
        rows = batch.take(pa.array(bad))
        corrupt = pa.StructArray.from_arrays(
            [
                rows.column("key"),
                rows.column("value"),
                pa.array([partition.topic] * len(bad), pa.string()),
                pa.array([partition.partition] * len(bad), pa.int32()),
                rows.column("offset"),
                pa.array([self._reason(batch, row, parsed) for row in bad], pa.string()),
            ],
            fields=list(CORRUPT),
        )
        rows_of = np.full(batch.num_rows, -1)
        rows_of[bad] = np.arange(len(bad))
        return spread(corrupt, rows_of)

    def _refusal(
        self, batch: pa.RecordBatch, row: int, parsed: Mapping[str, Cells], partition: TopicPartition
    ) -> DataError:
        texts = {name: batch.column(name)[row].as_py() for name, cells in parsed.items() if row in cells.bad}
        shown = "; ".join(f"the {name} begins with {text[:_SHOWN]!r}" for name, text in texts.items())
        return DataError(
            f"the record at {_location(batch, row, partition)} is corrupt: {self._reason(batch, row, parsed)}; {shown}",
            source=self._source,
            split=partition.split_id,
            position=batch.column("offset")[row].as_py(),
            option="mode",
            advice="correct the schema in the options; or set mode=PERMISSIVE to keep such records in the column "
            f"{self._payloads.corrupt_column}, or mode=DROPMALFORMED to drop them",
        )


def _strings(raw: pa.Array) -> Cells:
    """Convert binary values to strings. Invalid UTF-8 becomes U+FFFD, as in Spark's CAST, and counts as corrupt."""
    try:
        return Cells(raw.cast(pa.string()), [])
    except pa.ArrowInvalid:
        values, bad = with_valid_utf8(raw)
        return Cells(values.cast(pa.string()), bad)


def _location(batch: pa.RecordBatch, row: int, partition: TopicPartition) -> str:
    return f"topic {partition.topic}, partition {partition.partition}, offset {batch.column('offset')[row].as_py()}"


# -- The split reader of the Kafka source: reads all partitions of a task with one leased consumer, and decodes them.


_WAIT = 1.0
"""Maximum seconds that one fetch waits for records; `wake_up` ends the wait."""


class KafkaSplitReader(SplitReader):
    """Reads partitions with a `PartitionFetcher`, decodes keys and values, and handles lost offsets."""

    def __init__(self, source: KafkaOptions, context: SourceReaderContext) -> None:
        self._source = source
        self._context = context
        self._decoder = record_decoder(source)
        self._raw_schema = source.schema() if self._decoder is None else self._decoder.raw
        self._fetcher: PartitionFetcher | None = None
        self._pending: list[KafkaSplit] = []
        self._splits: dict[TopicPartition, KafkaSplit] = {}
        self._paused: set[TopicPartition] = set()
        self._waited: dict[TopicPartition, float] = {}
        self._lost_offsets = 0
        self._truncated: set[tuple[TopicPartition, int]] = set()
        self._failed: DataError | None = None
        self._woken = False
        self._unbounded = False
        self._cluster: KafkaCluster | None = None

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Add splits; the next fetch assigns them."""
        self._pending.extend(split for split in splits if isinstance(split, KafkaSplit))

    def fetch(self) -> Sequence[Fetched]:
        """Return available records of any partition. If there are none, wait up to a second for records.

        Raises:
            DataLossError: Records no longer exist, and `failOnDataLoss` is set.
            RetriableError: The brokers do not answer; the next call continues after the last record batch.
            DataError: A record batch is damaged; or a record is corrupt and the mode is FAILFAST.
        """
        if self._failed is not None:
            raise self._failed
        if self._woken:
            self._woken = False
            return []
        try:
            fetcher = self._leased()
            if finished := self._assign(fetcher):
                return finished
            parts = fetcher.fetch(_WAIT)
            recreated = (
                {}
                if fetcher.by_topic_id
                else self._changed_topics([TopicPartition.of(part.split_id) for part in parts])
            )
            unchanged = [part for part in parts if TopicPartition.of(part.split_id) not in recreated]
            return self._skip(recreated) + self._decoded(unchanged)
        except TopicIdRefusedError as lost:
            return self._continue_after_refusal(TopicPartition(lost.topic, lost.partition))
        except PositionLostError as lost:
            recreated = self._changed_topics([TopicPartition(lost.topic, lost.partition)])
            return self._skip(recreated) if recreated else self._continue_after(lost)
        except RetriableError:
            self._reassign()
            raise
        except KafkaError as error:
            translated = client_error(error, "reading", self._source.client_options)
            if isinstance(translated, RetriableError):
                self._reassign()
            raise translated from error

    def wake_up(self) -> None:
        """End the wait of a `fetch`. Called from any thread."""
        if self._fetcher is None:
            self._woken = True
        else:
            self._fetcher.wake_up()

    def pause_or_resume_splits(self, pause: Collection[str], resume: Collection[str]) -> bool:
        """Drop fetched records of paused splits, and assign resumed splits again."""
        for split in [*self._splits.values(), *self._pending]:
            if split.id in pause:
                self._paused.add(split.topic_partition)
                self._waited.pop(split.topic_partition, None)
                if self._fetcher is not None:
                    self._fetcher.drop(split.topic_partition)
        for split in [*self._splits.values(), *self._pending]:
            if split.id in resume and split.topic_partition in self._paused:
                self._paused.discard(split.topic_partition)
                if self._splits.pop(split.topic_partition, None) is not None:
                    self._pending.append(split)
        return True

    def close(self) -> None:
        """Remove this task's ranges from the leased consumer, stop using it, and log how many records were dropped."""
        self._release()
        if self._cluster is not None:
            self._cluster.close()
        if self._decoder is not None:
            self._decoder.close()

    def _release(self) -> None:
        if self._fetcher is not None:
            self._fetcher.clear()
            self._fetcher = None

    def _changed_topics(
        self, partitions: Collection[TopicPartition], *, deleted: bool = False
    ) -> dict[TopicPartition, str]:
        """Return those of these partitions whose topic has another id than planned, with what happened to the topic.

        With `deleted`, also those whose topic no longer exists.
        """
        ids = {
            partition: self._splits[partition].topic_id
            for partition in partitions
            if self._splits[partition].topic_id is not None
        }
        names = {partition.topic for partition in ids}
        if not names:
            return {}
        if self._cluster is None:
            pause = self._source.retry_interval_ms / 1000
            self._cluster = KafkaCluster(self._source.client_options, retries=self._source.num_retries, interval=pause)
        cluster = self._cluster

        def ask() -> dict[TopicPartition, str]:
            topics = cluster.topics(names)
            gone = {partition: "deleted" for partition in ids if deleted and partition.topic not in topics}
            present = {partition: topics[partition.topic].topic_id for partition in ids if partition.topic in topics}
            recreated = [
                partition for partition, topic_id in present.items() if are_of_two_topics(topic_id, ids[partition])
            ]
            return gone | dict.fromkeys(recreated, "deleted and created again")

        return ask_until(ask, lambda changed: not changed)  # the metadata of a broker may be old

    def _continue_after_refusal(self, partition: TopicPartition) -> list[Fetched]:
        """Skip all splits whose topics changed. If no topic did, raise RetriableError: the broker may know it later."""
        changed = self._changed_topics(self._splits, deleted=True)
        if changed:
            if partition not in changed:
                self._reassign()
            return self._skip(changed)
        split = self._splits[partition]
        self._reassign()
        raise RetriableError(
            f"the broker of the partition does not know its topic by the id {split.topic_id}",
            split=split.id,
            position=split.position,
            advice="check the brokers: the metadata of one broker is older than the controller's",
        )

    def _skip(self, changed: Mapping[TopicPartition, str]) -> list[Fetched]:
        """Finish splits whose topics changed, so that no row of a new topic takes the place of a planned row.

        A split without an end stays, and reads nothing, until a discovery replaces it.

        Raises:
            DataLossError: `failOnDataLoss` is set.
        """
        finished = []
        for partition, change in changed.items():
            split = self._splits[partition]
            if self._fetcher is not None:
                self._fetcher.drop(partition)
            text = f"the topic was {change}, and the planned records from offset {split.start} on no longer exist"
            if self._source.fail_on_data_loss:
                raise DataLossError(
                    f"topic {partition.topic}, partition {partition.partition}: {text}",
                    split=split.id,
                    position=split.position,
                    advice=self._source.after_loss,
                )
            _log.warning("%s: %s: %s", self._source.name, split.id, text)
            if split.end is not None:
                del self._splits[partition]
                finished.append(Fetched(split.id, position=split.end, finished=True))
        return finished

    def _leased(self) -> PartitionFetcher:
        if not self._unbounded and any(split.end is None for split in self._pending):
            # In a fetch session, brokers omit partitions without new records, so the reader would not learn their ends.
            self._unbounded = True
            self._release()
            self._reassign()
        if self._fetcher is None:
            source, schema, options = self._source, self._raw_schema, self._source.client_options
            # Pickled, because a repr hides the secrets that distinguish two clients.
            key = pickle.dumps(
                (options, schema.names, source.poll_timeout_ms, source.max_record_bytes, self._unbounded)
            )
            self._fetcher = self._context.lease(
                key,
                lambda: PartitionFetcher(
                    {**options.arguments("consumer"), "enable_incremental_fetch_sessions": not self._unbounded},
                    schema,
                    check_crcs=options.consumer.get("check_crcs") is not False,
                    poll_timeout=source.poll_timeout_ms / 1000,
                    max_record_bytes=source.max_record_bytes,
                    clock=self._context.runtime.clock,
                ),
            )
            self._fetcher.clear()
        return self._fetcher

    def _assign(self, fetcher: PartitionFetcher) -> list[Fetched]:
        """Assign waiting splits to the fetcher; return a finished `Fetched` for each split that they replace.

        A waiting split of a recreated topic replaces the split of the old topic.
        """
        paused, finished = [], []
        for split in self._pending:
            if split.topic_partition in self._paused:
                paused.append(split)
                continue
            older = self._splits.get(split.topic_partition)
            if older is not None and older.id != split.id:
                fetcher.drop(older.topic_partition)
                finished.append(Fetched(older.id, position=older.position, finished=True))
            self._splits[split.topic_partition] = split
            fetcher.assign(split, waited=self._waited.pop(split.topic_partition, 0.0))
        self._pending = paused
        return finished

    def _reassign(self) -> None:
        """Assign all splits to the fetcher again, from their current positions."""
        if self._fetcher is not None:
            # Kept, because the poll timeout covers all attempts together.
            self._waited = {partition: self._fetcher.waited(partition) for partition in self._splits}
            self._fetcher.clear()
        self._pending += [split for partition, split in self._splits.items() if partition not in self._paused]
        self._splits = {partition: split for partition, split in self._splits.items() if partition in self._paused}

    def _decoded(self, parts: Sequence[Fetched]) -> list[Fetched]:
        """Decode fetched parts, and advance their splits.

        If a part is corrupt, return the parts before it; the next fetch raises the error.
        """
        done: list[Fetched] = []
        for part in parts:
            partition = TopicPartition.of(part.split_id)
            if self._decoder is not None and part.batch is not None:
                try:
                    batch = self._decoder.decode(part.batch, part.split_id)
                except DataError as error:
                    if not done:
                        raise
                    self._failed = error
                    break
                done.append(replace(part, batch=batch))
            else:
                done.append(part)
            if part.finished:
                del self._splits[partition]
            else:
                self._splits[partition] = self._splits[partition].at(part.position)
        return done

    def _continue_after(self, lost: PositionLostError) -> list[Fetched]:
        """Continue at the first offset that exists; if `failOnDataLoss` is set, raise the error.

        If the offset exists after all, raise RetriableError, so that the next fetch retries it.
        """
        partition = TopicPartition(lost.topic, lost.partition)
        split = self._splits.pop(partition)
        if lost.is_there and not lost.truncated:
            self._pending.append(split)
            raise RetriableError(
                f"a broker refused the offset {lost.offset}, but the partition has offsets {lost.earliest} to "
                f"{lost.latest}",
                split=split.id,
                position=lost.offset,
                advice="brokers disagree: check whether the leader is moving, and whether replicas are in sync",
            )
        if self._source.fail_on_data_loss:
            raise lost.error(self._source.after_loss).with_context(split=split.id) from lost
        earliest, end = lost.earliest, split.end if isinstance(split.end, int) else None
        if earliest is not None and split.start < earliest and (end is None or earliest < end):
            after = earliest
        elif lost.is_there and (partition, split.start) not in self._truncated:
            self._truncated.add((partition, split.start))
            after = split.start  # these offsets hold other records now
        else:
            after = end if end is not None else (lost.latest if lost.latest is not None else split.start)
        self._lost_offsets += max(0, after - split.start)
        _log.warning(
            "%s: %s: %s; reading continues at offset %d; this task has lost %d offsets so far",
            self._source.name,
            split.id,
            lost,
            after,
            self._lost_offsets,
        )
        if after == end:
            return [Fetched(split.id, position=after, finished=True)]
        self._pending.append(split.at(after))
        return [Fetched(split.id, position=after)]
