# SPDX-License-Identifier: Apache-2.0
"""Makes kafka-python's clients so that one that cannot connect leaves no thread and no socket behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from kafka.errors import KafkaTimeoutError

from forebay.sources.kafka.client.connections import Connections, UnansweredError, network

C = TypeVar("C")


def connect(cls: Callable[..., C], arguments: Mapping[str, object]) -> C:
    """Return a client that is connected; any thread.

    Args:
        cls: `KafkaConsumer` or `KafkaAdminClient`.
        arguments: Its configuration.

    Raises:
        UnansweredError: Nobody answered in time.
        KafkaError: It cannot connect for another reason, or the configuration is wrong.
    """
    made: list[Any] = []

    def making(**configuration: object) -> Any:  # noqa: ANN401 - kafka-python has no types
        made.append(network(**configuration))
        return made[-1]

    try:
        return cls(**arguments, kafka_client=making)
    except BaseException as error:
        for client in made:
            client.close()
        for manager in (getattr(client, "_manager", None) for client in made):
            if not isinstance(manager, Connections):
                continue
            if manager.refusal is not None and error is not manager.refusal:
                raise manager.refusal from error
            if isinstance(error, KafkaTimeoutError):
                spoke = manager.broker_version is not None
                raise UnansweredError(str(error), manager.trouble, spoke=spoke) from manager.trouble
        raise
