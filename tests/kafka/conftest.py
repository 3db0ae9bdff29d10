# SPDX-License-Identifier: Apache-2.0
"""One real broker for all tests of this room; where it does not start, they fail."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping

import pytest

from forebay.testkit.kafka_broker import KafkaBroker

# kafka-python reads its protocol, when it is imported, in a way that Python 3.11 warns of.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka as kafka  # noqa: PLC0414 - imported for that alone

MakeTopic = Callable[..., str]


@pytest.fixture(scope="session")
def broker() -> Iterator[KafkaBroker]:
    """A broker; tests that stop or spoil one start their own."""
    with KafkaBroker() as running:
        yield running


@pytest.fixture
def topic(broker: KafkaBroker) -> Iterator[MakeTopic]:
    """Makes topics with names of their own, and deletes them afterwards."""
    made: list[str] = []

    def make(partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        name = f"t-{uuid.uuid4().hex[:10]}"
        broker.create_topic(name, partitions, config)
        made.append(name)
        return name

    yield make
    with broker.admin() as admin:
        if made:
            admin.delete_topics(made, raise_errors=False)
