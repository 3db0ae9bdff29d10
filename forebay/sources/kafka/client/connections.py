# SPDX-License-Identifier: Apache-2.0
"""Clients and connections of kafka-python, with four corrections for failed connections, and one for its log.

kafka-python 3.0 leaves the socket of a refused connection to the garbage collector. It waits forever for a port that
accepts a TLS connection and sends nothing. It drops the last bytes before a broker closes the connection, which contain
the answer to a wrong password. It retries a refused password until a timeout that hides the reason.

It logs each request at the level DEBUG: also a login with its password or token.
"""

from __future__ import annotations

import inspect
import ssl
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import kafka.net.inet
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
from kafka.net.inet import KafkaNetSocket
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport

from forebay.options.secret import REDACTED

REFUSALS: Final = (
    AuthorizationError,
    IllegalSaslStateError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)
"""The error classes of kafka-python for a login that a broker refuses."""

_SCHEME = "forebay"

C = TypeVar("C")


class UnansweredError(KafkaTimeoutError):  # type: ignore[misc]  # no types
    """The error if a client could not make its first connection in time.

    Args:
        text: The error text of kafka-python.
        last_error: The error of the last attempt; None if nothing answered.
        spoke: Whether the server answered in Kafka's protocol.
    """

    def __init__(self, text: str, last_error: BaseException | None, *, spoke: bool) -> None:
        super().__init__(text if last_error is None else f"{text}: {last_error}")
        self.last_error = last_error
        self.spoke = spoke


def first_unexpected(*members: tuple[Any, str, str | int | None]) -> str | None:
    """Return the name of the first member of kafka-python that forebay cannot use as expected; None if there is none.

    Args:
        members: For each member: its owner, its name, and the names or the number of its parameters (None: not
            checked).
    """
    for owner, name, expected in members:
        member = getattr(owner, name, None)
        parameters = inspect.signature(member).parameters if callable(member) else None
        if expected is None:
            fits = hasattr(owner, name)
        elif isinstance(expected, int):
            fits = parameters is not None and len(parameters) == expected
        else:
            fits = parameters is not None and parameters.keys() >= set(expected.split())
        if not fits:
            return f"{owner.__name__}.{name}"
    return None


def unexpected_internal() -> str | None:
    """Return the name of the first member of kafka-python that this module cannot use; None if it can use all."""
    return first_unexpected(
        (KafkaNetClient, "__init__", "net manager"),
        (KafkaNetSocket, "sock_connect", "net sock sockaddr timeout_at"),
        (KafkaNetSocket, "register_class", "klass"),
        (kafka.net.inet, "create_connection", "socket_options proxy_url timeout_at"),
        (KafkaConnectionManager, "_build_transport", "node timeout_at"),
        (KafkaConnectionManager, "get_connection", "node_id"),
        (KafkaConnectionManager, "update_backoff", "node_id"),
        (KafkaTCPTransport, "_sock_recv", 1),
        (KafkaConnection, "init_future", None),
        (KafkaConnection, "_send_request", "request"),
    )


def network(**configuration: Any) -> Any:  # noqa: ANN401 - kafka-python has no types
    """Create the network part of a client of kafka-python, with `Connections` if kafka-python is as expected."""
    if unexpected_internal() is not None:
        return KafkaNetClient(**configuration)
    net = NetworkSelector(**configuration)
    return KafkaNetClient(net, Connections(net, **configuration), **configuration)


def connect(cls: Callable[..., C], arguments: Mapping[str, object]) -> C:
    """Create a `KafkaConsumer` or `KafkaAdminClient` (`cls`) and connect it.

    If this fails, no thread and no socket stays open.

    Raises:
        UnansweredError: No broker answered in time.
        KafkaError: The client cannot connect for another reason, or the configuration is invalid.
    """
    networks: list[Any] = []

    def make_network(**configuration: Any) -> Any:  # noqa: ANN401 - kafka-python has no types
        networks.append(network(**configuration))
        return networks[-1]

    try:
        return cls(**arguments, kafka_client=make_network)
    except BaseException as error:
        for client in networks:
            client.close()
        for manager in (getattr(client, "_manager", None) for client in networks):
            if not isinstance(manager, Connections):
                continue
            if manager.refusal is not None and error is not manager.refusal:
                raise manager.refusal from error
            if isinstance(error, KafkaTimeoutError):
                spoke = manager.broker_version is not None
                raise UnansweredError(str(error), manager.last_error, spoke=spoke) from manager.last_error
        raise


class Connections(KafkaConnectionManager):  # type: ignore[misc]  # no types
    """The connections of one client of kafka-python. Called on the client's own thread."""

    refusal: KafkaError | None = None
    """The error of the last refused login; None if no login was refused."""
    last_error: BaseException | None = None
    """The error of the last failed connection; None if no connection failed."""

    def update_backoff(self, node_id: Any) -> Any:  # noqa: ANN401 - kafka-python has no types
        """Compute the delay before the next attempt to connect, and store the error that is being handled.

        kafka-python calls this method while it handles the error of a connection.
        """
        self.last_error = sys.exc_info()[1] or self.last_error
        return super().update_backoff(node_id)

    def get_connection(self, node_id: Any, *args: Any, **more: Any) -> Any:  # noqa: ANN401 - kafka-python has no types
        """Return a new or existing connection to a broker.

        Raises:
            KafkaError: A login was refused, and the client was never connected: another attempt may lock the account.
        """
        if self.refusal is not None and not self.bootstrapped:
            raise self.refusal
        connection = super().get_connection(node_id, *args, **more)
        connection.init_future.add_errback(self._note)
        if not isinstance(connection._send_request, _Sender):  # noqa: SLF001 - no public name
            connection._send_request = _Sender(connection._send_request)  # noqa: SLF001 - as above
        return connection

    def _note(self, error: BaseException) -> None:
        if isinstance(error, REFUSALS):
            self.refusal = error

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:  # noqa: ANN401
        sock = await kafka.net.inet.create_connection(
            self._net, node.host, node.port, self.config["socket_options"], _SCHEME + "://", timeout_at=timeout_at
        )
        try:
            transport = self._transport(sock, node.host)
        except BaseException:  # close the socket also on interrupts
            sock.close()
            raise
        try:
            await transport.shake_hands(timeout_at)
        except BaseException as error:
            transport.abort(error)
            if isinstance(error, Exception):
                raise KafkaConnectionError(f"the TLS handshake failed: {error}") from error
            raise
        return transport

    def _transport(self, sock: Any, host: str) -> Any:  # noqa: ANN401 - kafka-python has no types
        if not self.ssl_enabled:
            return _Plain(self._net, sock, host=host)
        settings = {name: value for name, value in self.config.items() if name.startswith("ssl_")}
        return _Tls(self._net, sock, host=host, **settings)


class _Sender:
    """Sends a request on a connection. What logs in is not in the `repr` of the request, which kafka-python logs."""

    def __init__(self, send: Callable[..., Any]) -> None:
        self._send = send

    def __call__(self, request: Any, *args: Any, **more: Any) -> Any:  # noqa: ANN401 - kafka-python has no types
        if isinstance(token := getattr(request, "auth_bytes", None), bytes):
            request.auth_bytes = _Unlogged(token)
        return self._send(request, *args, **more)


class _Unlogged(bytes):
    def __repr__(self) -> str:
        return repr(REDACTED)


class _Socket(KafkaNetSocket):  # type: ignore[misc]  # no types
    """Opens a direct connection, and closes the socket if that fails.

    kafka-python selects this class by the scheme of a proxy URL; no proxy is used.
    """

    SCHEMES = (_SCHEME,)

    async def sock_connect(self, net: Any, sock: Any, sockaddr: Any, timeout_at: float | None = None) -> Any:  # noqa: ANN401
        try:
            return await super().sock_connect(net, sock, sockaddr, timeout_at=timeout_at)
        except BaseException:  # close the socket also on interrupts
            sock.close()
            raise


class _DataBeforeError(KafkaTCPTransport):  # type: ignore[misc]  # no types
    """A transport that first returns the data received before a failure; the next call returns the error."""

    def _sock_recv(self) -> Any:  # noqa: ANN401 - kafka-python has no types
        data, error = super()._sock_recv()
        return (data, None) if data else (data, error)


class _Plain(_DataBeforeError):
    async def shake_hands(self, _timeout_at: float | None) -> None:
        await self.handshake()


class _Tls(_DataBeforeError, KafkaSSLTransport):  # type: ignore[misc]  # no types
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
