# SPDX-License-Identifier: Apache-2.0
"""Makes kafka-python's clients so that one that cannot connect leaves no thread and no socket behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from kafka.net.compat import KafkaNetClient

C = TypeVar("C")


def connect(cls: Callable[..., C], arguments: Mapping[str, object]) -> C:
    """Return a client that is connected; any thread.

    Args:
        cls: `KafkaConsumer` or `KafkaAdminClient`.
        arguments: Its configuration.

    Raises:
        KafkaError: It cannot connect, or the configuration is wrong.
    """
    made: list[Any] = []

    def network(**configuration: object) -> Any:  # noqa: ANN401 - kafka-python has no types
        made.append(KafkaNetClient(**configuration))
        return made[-1]

    try:
        return cls(**arguments, kafka_client=network)
    except BaseException:
        for client in made:
            client.close()
        raise
