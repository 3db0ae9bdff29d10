# SPDX-License-Identifier: Apache-2.0
"""Offsets that a broker refuses are retried, read or skipped. No broker is needed."""

from __future__ import annotations

import pytest

from forebay.errors import DataLossError, RetriableError
from forebay.sources.kafka import KafkaSource
from forebay.sources.kafka.client.client_errors import PositionLostError
from forebay.sources.kafka.split import KafkaSplit
from forebay.sources.kafka.split_reader import KafkaSplitReader


class Refusing:
    """A fetcher whose brokers refuse one offset after another, with these bounds and reasons."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.assigned = []

    def assign(self, split, *, waited):
        self.assigned.append((split.start, split.end))

    def fetch(self, timeout):
        bounds, reason = self.answers.pop(0)
        start, end = self.assigned[-1]
        raise PositionLostError("t", 0, start, end, bounds, reason)

    def drop(self, partition):
        self.assigned.remove((100, 150))

    def clear(self):
        self.assigned.clear()

    def lease(self, key, make):
        return self


def reader(fetcher, **options):
    source = KafkaSource(subscribe=["t"], kafka={"bootstrap.servers": "b:1"}, **options)
    made = KafkaSplitReader(source, fetcher)
    made.add_splits([KafkaSplit(id="t/0", position=100, end=150)])
    return made


@pytest.mark.parametrize("strict", [True, False])
def test_an_offset_that_exists_after_all_is_retried(strict):
    fetcher = Refusing(((0, 200), None), ((0, 200), None))
    reading = reader(fetcher, fail_on_data_loss=strict)
    for _ in range(2):
        with pytest.raises(RetriableError, match="offsets 0 to 200") as caught:
            reading.fetch()
        assert (caught.value.split, caught.value.position) == ("t/0", "100")
    assert fetcher.assigned == [(100, 150)] * 2


def test_new_records_at_the_offsets_of_a_truncated_log_are_read():
    fetcher = Refusing(((0, 200), "its log was truncated"), ((0, 200), "its log was truncated"))
    reading = reader(fetcher, fail_on_data_loss=False)
    (part,) = reading.fetch()
    assert (part.position, part.finished) == (100, False)
    (part,) = reading.fetch()
    assert (part.position, part.finished) == (150, True), "not for ever"
    with pytest.raises(DataLossError, match="truncated"):
        reader(Refusing(((0, 200), "its log was truncated"))).fetch()


@pytest.mark.parametrize(("bounds", "after", "finished"), [((120, 200), 120, False), ((0, 90), 150, True)])
def test_lost_offsets_are_skipped(bounds, after, finished):
    (part,) = reader(Refusing((bounds, None)), fail_on_data_loss=False).fetch()
    assert (part.position, part.finished) == (after, finished)


def test_a_recreated_topic_replaces_the_old_one():
    fetcher = Refusing(((0, 200), None))
    reading = reader(fetcher)
    with pytest.raises(RetriableError):
        reading.fetch()
    reading.add_splits([KafkaSplit(id="t/0:new", position=0)])
    (part,) = reading.fetch()
    assert (part.split_id, part.position, part.finished) == ("t/0", 100, True)
    assert fetcher.assigned == [(0, None)]


def test_the_next_step_after_lost_changes_keeps_no_deleted_row():
    """The rest of a changelog lacks what was lost, such as the delete of a row; the rest of other records is whole."""
    options = {"changelog_format": "debezium-json", "value_schema": "id BIGINT", "key_schema": "id BIGINT"}
    for given, advice in ((options, "a new snapshot of the table"), ({}, "failOnDataLoss=false")):
        with pytest.raises(DataLossError) as caught:
            reader(Refusing(((120, 200), None)), **given).fetch()
        assert advice in caught.value.advice
        assert not given or "failOnDataLoss" not in caught.value.advice
