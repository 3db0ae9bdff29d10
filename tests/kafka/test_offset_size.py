# SPDX-License-Identifier: Apache-2.0
"""Offsets of many partitions stay small: Spark writes them into its log and into every progress report."""

from __future__ import annotations

import random
import uuid
from typing import NamedTuple

from forebay.framework.microbatch.offset import Offset, Planned, canonical
from forebay.framework.microbatch.offset_codec import FinishedSplits, InlineOffsetCodec
from forebay.sources.kafka.event_times import TimeLimits
from forebay.sources.kafka.source import KafkaSource
from forebay.sources.kafka.split import KafkaSplit, TopicPartition


class Found(NamedTuple):
    """Knows where an ending time stops each partition."""

    offsets: dict[TopicPartition, int]

    def ending_time(self, topic_partition):
        return 1_735_776_000_000

    def ends_by_time(self, topic_partitions):
        return {topic_partition: self.offsets[topic_partition] for topic_partition in topic_partitions}


def test_an_offset_of_2000_partitions_is_under_100_kb():
    """The ids of topics do not compress, positions hardly; both ends of every range and an ending time's are in it."""
    chance = random.Random(7)
    splits, limits = [], {}
    for topic in range(20):
        topic_id = str(uuid.UUID(int=chance.getrandbits(128)))
        for partition in range(100):
            start = chance.randrange(10**10, 10**12)
            split = KafkaSplit(id=f"shop.orders-of-region-{topic}/{partition}", position=start, topic_id=topic_id)
            splits.append(Planned(split, start + chance.randrange(1, 1_000_000)))
            limits[split.topic_partition] = start + chance.randrange(1, 1_000_000_000)
    source = KafkaSource(subscribe_pattern="shop.*", kafka={"bootstrap.servers": "localhost:9092"})
    codec = InlineOffsetCodec(source)
    known = TimeLimits(Found(limits))
    known.of([planned.split for planned in splits])
    state = known.state({planned.split.id for planned in splits})
    offset = Offset(source.name, 123_456, str(uuid.UUID(int=1)), splits, enumerator={"state": state})
    data = codec.write(offset, FinishedSplits(KafkaSplit))
    assert len(canonical(data).encode()) < 100_000
    assert codec.read(data) == offset
