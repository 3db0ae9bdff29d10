# SPDX-License-Identifier: Apache-2.0
"""Converts errors of kafka-python to errors of forebay, with broker, topic or partition, and the next step."""

from __future__ import annotations

import socket
import ssl

import kafka.errors as kafka_errors

from forebay.errors import ConfigurationError, DataError, FatalError, ForebayError, RetriableError
from forebay.sources.kafka.client.client_options import ClientOptions
from forebay.sources.kafka.client.connections import REFUSALS, UnansweredError

_PROBE_TIMEOUT = 3.0
"""Maximum seconds to probe one port."""


def client_error(error: Exception, doing: str, options: ClientOptions) -> ForebayError:
    """Return the forebay error for an error of kafka-python; return a `ForebayError` unchanged. For any thread.

    `doing` is the action that failed, such as "asking for offsets"; the error text begins with it.
    """
    failed = f"{doing} of {', '.join(options.servers)} failed"
    text = f"{failed}: {str(error) or type(error).__name__}"
    if isinstance(error, ForebayError):
        return error
    if isinstance(error, kafka_errors.AuthorizationError):
        return _unauthorized(error, failed, text, options)
    if isinstance(error, REFUSALS):
        return _unauthenticated(error, text, options)
    if isinstance(error, kafka_errors.InvalidTopicError):
        return ConfigurationError(
            text, option="subscribe", advice="correct the name: topic names have only letters, digits, dots, _ and -"
        )
    if isinstance(error, kafka_errors.KafkaConfigurationError):
        return ConfigurationError(
            text,
            option="kafka.*",
            advice="change the option that this error names (kafka-python's fetch_max_bytes is kafka.fetch.max.bytes)",
        )
    if isinstance(error, (kafka_errors.UnsupportedVersionError, kafka_errors.UnrecognizedBrokerVersion)):
        return FatalError(text, advice="upgrade the brokers, or remove the option that needs newer ones")
    if isinstance(error, (kafka_errors.CorruptRecordError, kafka_errors.UnsupportedCodecError)):
        return DataError(text, advice="check the broker's disks, or start at a later offset to skip the damaged record")
    retriable = bool(getattr(error, "retriable", False)) or isinstance(error, kafka_errors.UnknownBrokerIdError)
    if retriable or isinstance(error, OSError):
        return RetriableError(text, advice="check the brokers: they may be starting, or unreachable from this machine")
    return FatalError(text, advice="read the cause of this error")


def unreachable(error: Exception, options: ClientOptions) -> ForebayError:
    """Probe each broker's port, and return an error that says why no broker can be reached. May block for seconds."""
    found = client_error(error, "the first connection to a broker", options)
    if not isinstance(found, RetriableError):
        return found
    if isinstance(error, UnansweredError) and isinstance(error.last_error, kafka_errors.IncompatibleBrokerVersion):
        return ConfigurationError(
            f"a server of {', '.join(options.servers)} speaks Kafka but serves no topics: a controller, or too old",
            option="kafka.bootstrap.servers",
            advice="give the addresses of brokers, as in their advertised.listeners",
        )
    spoke_kafka = isinstance(error, UnansweredError) and error.spoke
    probes = "; ".join(f"{server}: {_probe(server, options, spoke=spoke_kafka)}" for server in options.servers[:5])
    return RetriableError(
        f"no broker of {', '.join(options.servers)} can be reached from {socket.gethostname()}: {probes}",
        option="kafka.bootstrap.servers",
        advice="check address, port, network and kafka.security.protocol; on Spark, workers must reach them too",
    )


def _probe(server: str, options: ClientOptions, *, spoke: bool) -> str:
    """Probe a broker's port with TCP and TLS; return the result as a text for an error."""
    host, _, port = server.rpartition(":")
    if mechanism := options.settings.get("sasl_mechanism"):
        answer = f"the login by {mechanism} failed: wrong password or mechanism?"
    elif spoke:
        answer = "it closes the connection at the first request: it requires a login (kafka.security.protocol)"
    else:
        answer = "it does not speak Kafka's protocol"
    try:
        with socket.create_connection((host.strip("[]") or server, int(port)), _PROBE_TIMEOUT) as plain:
            plain.settimeout(_PROBE_TIMEOUT)
            context = options.tls.context() if options.tls is not None else _any_certificate()
            try:
                with context.wrap_socket(plain, server_hostname=host.strip("[]")):
                    return f"TLS works, but {answer}" if options.tls else "it requires TLS (kafka.security.protocol)"
            except TimeoutError:
                return "it accepts connections but sends nothing: timed out"
            except (ssl.SSLError, OSError) as error:
                return f"TLS failed: {error}" if options.tls else f"the port is open, but {answer}"
    except ForebayError as error:
        return error.message
    except (OSError, ValueError) as error:
        return str(getattr(error, "strerror", None) or error)


def _any_certificate() -> ssl.SSLContext:
    """Return an SSL context that accepts any certificate. Only for probing whether a port speaks TLS, without data."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _unauthenticated(error: Exception, text: str, options: ClientOptions) -> ConfigurationError:
    """Return the error for a login that a broker refused."""
    mechanism = options.settings.get("sasl_mechanism")
    if isinstance(error, kafka_errors.UnsupportedSaslMechanismError):
        return ConfigurationError(
            f"{text}: the broker does not offer {mechanism}",
            option="kafka.sasl.mechanism",
            advice="give a mechanism of the brokers' sasl.enabled.mechanisms",
        )
    if isinstance(error, kafka_errors.IllegalSaslStateError):
        return ConfigurationError(
            f"{text}: the broker's listener accepts no login",
            option="kafka.security.protocol",
            advice="give PLAINTEXT or SSL, or the port of the brokers' listener for SASL",
        )
    if mechanism == "OAUTHBEARER":
        return ConfigurationError(
            f"{text}: the broker refused the token",
            option="oauthTokenProvider",
            advice="check the token: its expiry, issuer and audience must be those that the brokers require",
        )
    return ConfigurationError(
        text,
        option="kafka.sasl.jaas.config",
        advice=f"check the user name and the password, and whether they are valid for {mechanism}",
    )


def _unauthorized(error: Exception, failed: str, text: str, options: ClientOptions) -> ConfigurationError:
    """Return the error for a permission that the user lacks, with the command that grants it.

    Args:
        error: The error of kafka-python.
        failed: The beginning of the error text: which action failed.
        text: The error text: `failed`, and the reason.
        options: The client options.
    """
    add = f"kafka-acls --bootstrap-server {options.servers[0]} --add --allow-principal User:NAME"
    if isinstance(error, kafka_errors.TopicAuthorizationFailedError):
        named = error.args[0] if error.args else ""
        topics = sorted(map(str, named)) if isinstance(named, (set, frozenset, list, tuple)) else [str(named)]
        return ConfigurationError(
            f"{failed}: the user may not read or see the topic {', '.join(topics)}",
            option="subscribe",
            advice=f"grant DESCRIBE and READ: {add} --operation READ --topic {topics[0]}",
        )
    if isinstance(error, kafka_errors.GroupAuthorizationFailedError):
        advice = f"grant READ on the group: {add} --operation READ --group GROUP; or remove the group option"
        return ConfigurationError(text, option="kafka.group.id", advice=advice)
    return ConfigurationError(text, advice=f"grant the operation: {add} --operation … --cluster")
