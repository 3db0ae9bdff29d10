# SPDX-License-Identifier: Apache-2.0
"""What kafka-python raises, as errors that say which broker, topic or partition, and what to do."""

from __future__ import annotations

import socket
import ssl

import kafka.errors as kafka_errors

from forebay.errors import ConfigurationError, DataError, FatalError, ForebayError, RetriableError
from forebay.sources.kafka.client.client_options import ClientOptions
from forebay.sources.kafka.client.connections import UnansweredError

_PATIENCE = 3.0
"""Seconds that one look at a broker's port takes at most."""


def client_error(error: Exception, doing: str, options: ClientOptions) -> ForebayError:
    """Return the error of ours for one of kafka-python; any thread.

    Args:
        error: What was raised; one of ours is returned itself.
        doing: What was asked, for people: "asking for offsets".
        options: Names the brokers.
    """
    servers = ", ".join(options.servers)
    text = f"{doing} of {servers} failed: {_text(error)}"
    if isinstance(error, ForebayError):
        return error
    if isinstance(error, kafka_errors.AuthorizationError):
        return _not_allowed(error, doing, options)
    if isinstance(error, _LOGINS):
        return _not_let_in(error, text, options)
    if isinstance(error, kafka_errors.InvalidTopicError):
        return ConfigurationError(text, option="subscribe", advice="names have letters, digits, dots, _ and - only")
    if isinstance(error, kafka_errors.KafkaConfigurationError):
        return ConfigurationError(text, option="kafka.*", advice="change the option it names")
    if isinstance(error, (kafka_errors.UnsupportedVersionError, kafka_errors.UnrecognizedBrokerVersion)):
        return FatalError(text, advice="the brokers are too old for this; use newer ones, or leave the option out")
    if isinstance(error, (kafka_errors.CorruptRecordError, kafka_errors.UnsupportedCodecError)):
        return DataError(text, advice="skip it by starting at a later offset, after a look at the broker's disks")
    passing = bool(getattr(error, "retriable", False)) or isinstance(error, kafka_errors.UnknownBrokerIdError)
    if passing or isinstance(error, OSError):
        return RetriableError(text, advice="look at the brokers: they may be starting, or out of reach from here")
    return FatalError(text, advice="see the cause")


def unreachable(error: Exception, options: ClientOptions) -> ForebayError:
    """Return the error for brokers that no connection could be made to, with what each port says; may block a little.

    Args:
        error: What the client raised.
        options: Names the brokers.
    """
    found = client_error(error, "a first connection to one", options)
    if not isinstance(found, RetriableError):
        return found
    if isinstance(error, UnansweredError) and isinstance(error.trouble, kafka_errors.IncompatibleBrokerVersion):
        return ConfigurationError(
            f"{', '.join(options.servers)} speaks Kafka, and tells nothing of topics: it is a controller, or too old",
            option="kafka.bootstrap.servers",
            advice="give the addresses of brokers, as in their advertised.listeners",
        )
    spoke = isinstance(error, UnansweredError) and error.spoke
    looks = "; ".join(f"{server}: {_look(server, options, spoke=spoke)}" for server in options.servers[:5])
    return RetriableError(
        f"no broker of {', '.join(options.servers)} can be reached from {socket.gethostname()}: {looks}",
        option="kafka.bootstrap.servers",
        advice="check address, port, network and kafka.security.protocol; on Spark, workers need to reach them too",
    )


def _look(server: str, options: ClientOptions, *, spoke: bool) -> str:
    """Return what a broker's port says to a plain connection, and to TLS."""
    host, _, port = server.rpartition(":")
    answer = _no_answer(options, spoke=spoke)
    try:
        with socket.create_connection((host.strip("[]") or server, int(port)), _PATIENCE) as plain:
            plain.settimeout(_PATIENCE)
            context = options.tls.context() if options.tls is not None else _any_certificate()
            try:
                with context.wrap_socket(plain, server_hostname=host.strip("[]")):
                    return f"TLS works, but {answer}" if options.tls else "it wants TLS (kafka.security.protocol)"
            except TimeoutError:
                return "it takes connections, and then says nothing: timed out"
            except (ssl.SSLError, OSError) as error:
                return f"TLS failed: {error}" if options.tls else f"it is there, but {answer}"
    except ForebayError as error:
        return error.message
    except (OSError, ValueError) as error:
        return str(getattr(error, "strerror", None) or error)


def _no_answer(options: ClientOptions, *, spoke: bool) -> str:
    mechanism = options.settings.get("sasl_mechanism")
    if mechanism:
        return f"no login by {mechanism} came about: wrong password or mechanism?"
    if spoke:
        return "hangs up at the first question: it wants a login (kafka.security.protocol)"
    return "gave no answer as Kafka does"


def _any_certificate() -> ssl.SSLContext:
    """Return a context that only finds out whether a port speaks TLS at all; nothing is sent through it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _not_let_in(error: Exception, text: str, options: ClientOptions) -> ConfigurationError:
    """Return the error for a login that a broker refused."""
    mechanism = options.settings.get("sasl_mechanism")
    if isinstance(error, kafka_errors.UnsupportedSaslMechanismError):
        return ConfigurationError(
            f"{text}: it does not offer {mechanism}",
            option="kafka.sasl.mechanism",
            advice="give a mechanism of the brokers' sasl.enabled.mechanisms",
        )
    if isinstance(error, kafka_errors.IllegalSaslStateError):
        return ConfigurationError(
            f"{text}: nobody logs in there",
            option="kafka.security.protocol",
            advice="give PLAINTEXT or SSL, or the port of the brokers' listener for SASL",
        )
    if mechanism == "OAUTHBEARER":
        return ConfigurationError(
            f"{text}: the token was refused",
            option="oauthTokenProvider",
            advice="check what it gives: is the token in time, of the issuer and for the audience that brokers want?",
        )
    return ConfigurationError(
        text, option="kafka.sasl.jaas.config", advice=f"check user and password, and that they are for {mechanism}"
    )


def _not_allowed(error: Exception, doing: str, options: ClientOptions) -> ConfigurationError:
    """Return the error for a missing right, with what gives it."""
    servers = ", ".join(options.servers)
    add = f"kafka-acls --bootstrap-server {options.servers[0]} --add --allow-principal User:NAME"
    if isinstance(error, kafka_errors.TopicAuthorizationFailedError):
        told = error.args[0] if error.args else ""
        topics = sorted(map(str, told)) if isinstance(told, (set, frozenset, list, tuple)) else [str(told)]
        return ConfigurationError(
            f"{doing} of {servers} failed: the user may not read the topic {', '.join(topics)}, or not see it",
            option="subscribe",
            advice=f"let the user DESCRIBE and READ it: {add} --operation READ --topic {topics[0]}",
        )
    text = f"{doing} of {servers} failed: {_text(error)}"
    if isinstance(error, kafka_errors.GroupAuthorizationFailedError):
        advice = f"let the user READ the group: {add} --operation READ --group GROUP; or leave it out"
        return ConfigurationError(text, option="kafka.group.id", advice=advice)
    return ConfigurationError(text, advice=f"let the user do it: {add} --operation … --cluster")


_LOGINS = (
    kafka_errors.IllegalSaslStateError,
    kafka_errors.SaslAuthenticationFailedError,
    kafka_errors.UnsupportedSaslMechanismError,
)


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
