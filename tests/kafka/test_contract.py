# SPDX-License-Identifier: Apache-2.0
"""The Kafka source keeps the contract, on a real broker."""

from __future__ import annotations

import pytest

from forebay.sources.kafka import KafkaSource
from forebay.testkit import SourceContract, check

SECONDS = 180.0
"""A sixth of it is the patience with one silence: of a broker that has others to serve."""


SMALL = {"max.partition.fetch.bytes": "1"}
"""One batch of the producer's a fetch, so that there are positions to stop at and to resume from."""


def send_in_batches(kafka, topic, numbers, partition):
    """Send some records at a time: what is sent at once is one batch."""
    for at in range(0, len(numbers), 3):
        kafka.send(topic, numbers[at : at + 3], partition)


class TestKafka(SourceContract):
    seconds = SECONDS

    @pytest.fixture(autouse=True)
    def _broker(self, kafka):
        self.kafka = kafka
        self.topic = kafka.topic(1)
        self.partitions = 0
        self.sent: dict[str, int] = {}

    def source(self):
        return KafkaSource(
            subscribe=[self.topic],
            starting_offsets="earliest",
            kafka={"bootstrap.servers": self.kafka.address, **SMALL},
        ).with_columns(("value", "partition", "offset"))

    def add_split(self):
        self.partitions += 1
        if self.partitions > 1:
            self.kafka.grow(self.topic, self.partitions)
        return f"{self.topic}/{self.partitions - 1}"

    def write(self, split_id, n):
        partition, first = int(split_id.rpartition("/")[2]), self.sent.get(split_id, 0)
        send_in_batches(self.kafka, self.topic, range(first, first + n), partition)
        self.sent[split_id] = first + n
        return [
            {"value": str(number).encode(), "partition": partition, "offset": number}
            for number in range(first, first + n)
        ]


@pytest.mark.soak  # `TestKafka` has the same checks, of an input that grows
def test_the_source_keeps_the_contract(kafka):
    topic = kafka.topic(3)
    for partition in range(3):
        send_in_batches(kafka, topic, range(20 * partition), partition)
    source = KafkaSource(
        subscribe=[topic],
        starting_offsets="earliest",
        kafka={"bootstrap.servers": kafka.address, "fetch.max.wait.ms": "50", **SMALL},
    )
    assert check(source, seconds=SECONDS).verdict == "passed"
