# SPDX-License-Identifier: Apache-2.0
"""Connections to brokers as kafka-python makes them, but that end as they should where they fail.

kafka-python 3.0 leaves the socket of a refused connection to the garbage collector, waits for ever for a port that
takes a TLS connection and says nothing, throws away what a broker said right before it hung up, which is its answer to
a wrong password, and tries a refused password again and again until a time-out says nothing of it.
"""

from __future__ import annotations

import inspect
import ssl
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from kafka.errors import (
    AuthorizationError,
    IllegalSaslStateError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)
from kafka.net.compat import KafkaNetClient
from kafka.net.connection import KafkaConnection
from kafka.net.inet import KafkaNetSocket, create_connection
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport

REFUSALS: Final = (
    AuthorizationError,
    IllegalSaslStateError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)
"""What a broker says to whom it does not let in."""

_SCHEME = "forebay"

C = TypeVar("C")


class UnansweredError(KafkaTimeoutError):  # type: ignore[misc]  # no types
    """No first connection came about in time.

    Args:
        text: What kafka-python says of it.
        trouble: What the last try met with; None: nothing was heard.
        spoke: Whether something there speaks Kafka's protocol.
    """

    def __init__(self, text: str, trouble: BaseException | None, *, spoke: bool) -> None:
        super().__init__(text if trouble is None else f"{text}: {trouble}")
        self.trouble = trouble
        self.spoke = spoke


def misfit() -> str | None:
    """Return what of kafka-python's connections is not as this module needs it; None: they fit."""

    def takes(function: object, *names: str) -> bool:
        return callable(function) and set(names) <= set(inspect.signature(function).parameters)

    looks = {
        "KafkaNetClient": takes(KafkaNetClient.__init__, "net", "manager"),
        "KafkaNetSocket.sock_connect": takes(KafkaNetSocket.sock_connect, "net", "sock", "sockaddr", "timeout_at"),
        "KafkaNetSocket.register_class": takes(KafkaNetSocket.register_class, "klass"),
        "create_connection": takes(create_connection, "socket_options", "proxy_url", "timeout_at"),
        "KafkaConnectionManager._build_transport": takes(
            getattr(KafkaConnectionManager, "_build_transport", None), "node", "timeout_at"
        ),
        "KafkaConnectionManager.get_connection": takes(KafkaConnectionManager.get_connection, "node_id"),
        "KafkaTCPTransport._sock_recv": takes(getattr(KafkaTCPTransport, "_sock_recv", None)),
        "KafkaConnectionManager.update_backoff": takes(KafkaConnectionManager.update_backoff, "node_id"),
        "KafkaConnection.init_future": isinstance(getattr(KafkaConnection, "init_future", None), property),
    }
    return next((name for name, right in looks.items() if not right), None)


def network(**configuration: Any) -> Any:  # noqa: ANN401 - kafka-python has no types
    """Return what kafka-python's clients take as `kafka_client`; any thread.

    Args:
        configuration: Of the client.
    """
    if misfit() is not None:
        return KafkaNetClient(**configuration)
    net = NetworkSelector(**configuration)
    return KafkaNetClient(net, Connections(net, **configuration), **configuration)


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


class Connections(KafkaConnectionManager):  # type: ignore[misc]  # no types
    """The connections of one client. Called on the client's own thread."""

    refusal: KafkaError | None = None
    """Why a broker let nobody in, so far."""
    trouble: BaseException | None = None
    """What a connection failed with last."""

    def update_backoff(self, node_id: Any) -> Any:  # noqa: ANN401 - kafka-python has no types
        """Say how long to wait before the next try. Called where an error is handled, which is kept."""
        self.trouble = sys.exc_info()[1] or self.trouble
        return super().update_backoff(node_id)

    def get_connection(self, node_id: Any, *args: Any, **more: Any) -> Any:  # noqa: ANN401 - kafka-python has no types
        """Return a connection, new or not.

        Raises:
            KafkaError: A broker has refused whoever this is: another try is another failed login.
        """
        if self.refusal is not None and not self.bootstrapped:
            raise self.refusal
        connection = super().get_connection(node_id, *args, **more)
        connection.init_future.add_errback(self._note)
        return connection

    def _note(self, error: BaseException) -> None:
        if isinstance(error, REFUSALS):
            self.refusal = error

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:  # noqa: ANN401
        sock = await create_connection(
            self._net, node.host, node.port, self.config["socket_options"], _SCHEME + "://", timeout_at=timeout_at
        )
        try:
            transport = self._transport(sock, node.host)
        except BaseException:  # cleaned up after, also when interrupted, and raised again
            sock.close()
            raise
        try:
            await transport.shake_hands(timeout_at)
        except BaseException as error:
            transport.abort(error)
            if isinstance(error, Exception):
                raise KafkaConnectionError(f"Handshake failed: {error}") from error
            raise
        return transport

    def _transport(self, sock: Any, host: str) -> Any:  # noqa: ANN401 - kafka-python has no types
        if not self.ssl_enabled:
            return _Plain(self._net, sock, host=host)
        settings = {name: value for name, value in self.config.items() if name.startswith("ssl_")}
        return _Tls(self._net, sock, host=host, **settings)


class _Socket(KafkaNetSocket):  # type: ignore[misc]  # no types
    """A way to connect of kafka-python's, chosen by the scheme of a proxy; there is no proxy."""

    SCHEMES = (_SCHEME,)

    async def sock_connect(self, net: Any, sock: Any, sockaddr: Any, timeout_at: float | None = None) -> Any:  # noqa: ANN401
        try:
            return await super().sock_connect(net, sock, sockaddr, timeout_at=timeout_at)
        except BaseException:  # cleaned up after, also when interrupted, and raised again
            sock.close()
            raise


class _Plain(KafkaTCPTransport):  # type: ignore[misc]  # no types
    async def shake_hands(self, _timeout_at: float | None) -> None:
        await self.handshake()

    def _sock_recv(self) -> Any:  # noqa: ANN401 - kafka-python has no types
        return _last_words(super()._sock_recv())


class _Tls(KafkaSSLTransport):  # type: ignore[misc]  # no types
    async def shake_hands(self, timeout_at: float | None) -> None:
        while True:
            try:
                self._sock.do_handshake()
            except ssl.SSLWantReadError:
                await self._net.wait_read(self._sock, timeout_at=timeout_at)
            except ssl.SSLWantWriteError:
                await self._net.wait_write(self._sock, timeout_at=timeout_at)
            else:
                return

    def _sock_recv(self) -> Any:  # noqa: ANN401 - kafka-python has no types
        return _last_words(super()._sock_recv())


def _last_words(received: tuple[bytes, Any]) -> tuple[bytes, Any]:
    """Hand on what was received before a connection ended; the next attempt meets the end again."""
    data, error = received
    return (data, None) if data else (data, error)
