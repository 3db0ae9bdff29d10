# SPDX-License-Identifier: Apache-2.0
"""Makes kafka-python's clients so that one that cannot connect leaves no thread and no socket behind."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from kafka.errors import (
    AuthorizationError,
    KafkaError,
    KafkaTimeoutError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)
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

    heard = _Heard(str(arguments.get("client_id", "")))
    log = logging.getLogger("kafka.net.manager")
    log.addHandler(heard)
    try:
        return cls(**arguments, kafka_client=network)
    except BaseException as error:
        for client in made:
            client.close()
        if isinstance(error, KafkaTimeoutError) and heard.refusal is not None:
            raise heard.refusal from error
        raise
    finally:
        log.removeHandler(heard)


class _Heard(logging.Handler):
    """Notes why a broker lets nobody in: kafka-python tries on until the time is up, and only its log says why.

    Args:
        client_id: Whose connections are meant.
    """

    def __init__(self, client_id: str) -> None:
        super().__init__(logging.WARNING)
        self._thread = f"kafka-io-{client_id}"
        self.refusal: KafkaError | None = None

    def emit(self, record: logging.LogRecord) -> None:
        refusals = (AuthorizationError, SaslAuthenticationFailedError, UnsupportedSaslMechanismError)
        for value in record.args if isinstance(record.args, tuple) and record.threadName == self._thread else ():
            if isinstance(value, refusals):
                self.refusal = value
