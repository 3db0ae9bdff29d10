# SPDX-License-Identifier: Apache-2.0
"""Converts errors of kafka-python to errors of forebay, with broker, topic or partition, and the next step."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import kafka.errors as kafka_errors
from kafka.errors import KafkaConnectionError, KafkaTimeoutError

from forebay.errors import ConfigurationError, DataError, DataLossError, FatalError, ForebayError, RetriableError
from forebay.sources.kafka.client.client_options import ClientOptions
from forebay.sources.kafka.client.kafka_internals import REFUSALS, UnansweredError

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
    translated = client_error(error, "the first connection to a broker", options)
    if not isinstance(translated, RetriableError):
        return translated
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


# -- Asks the brokers why offsets are missing or records do not arrive, and creates the errors.


_TIMEOUT_MS = 5_000
"""Timeout in ms of each request of this module."""

_SILENT = (KafkaTimeoutError, KafkaConnectionError)
"""The error classes of kafka-python for brokers that do not answer."""

Key = tuple[str, int]
"""Topic and number of a partition; in the fetcher a `TopicPartition` of kafka-python."""
Bounds = tuple[int, int]
"""The first offset of a partition, and the offset after its last record."""


class PositionLostError(Exception):
    """Says that offsets of a range no longer exist. `error()` returns the `DataLossError` for users.

    Args:
        topic: The topic of the range.
        partition: The partition of the range.
        offset: The next offset to read.
        end: The end of the range; None = no end.
        bounds: The partition's first offset, and the offset after its last record, now; None = it does not exist.
        reason: The cause, if known; by default derived from the bounds.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        end: int | None,
        bounds: Bounds | None,
        reason: str | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.end = end
        self.earliest = bounds[0] if bounds is not None else None
        self.latest = bounds[1] if bounds is not None else None
        self.is_there = bounds is not None and bounds[0] <= offset < bounds[1] and (end is None or end <= bounds[1])
        """Whether the bounds contain the range, so that no offset is lost."""
        self.truncated = reason is not None
        """Whether the partition's log is known to be truncated."""
        self.reason = reason or _reason(offset, bounds)
        super().__init__(topic, partition, offset, end, bounds, self.reason)

    def __str__(self) -> str:
        return self.error().message

    def error(self, advice: str | None = None) -> DataLossError:
        """Return the error to raise if `failOnDataLoss` is set. `advice` is the next step."""
        upto = " on" if self.end is None else f" up to {self.end}"
        now = "" if self.earliest is None else f"; the partition has offsets {self.earliest} to {self.latest} now"
        return DataLossError(
            f"topic {self.topic}, partition {self.partition}: some or all records from offset {self.offset}{upto} no "
            f"longer exist: {self.reason}{now}",
            position=self.offset,
            advice=advice,
        )


class TopicIdRefusedError(PositionLostError):
    """Says that the broker of a partition does not know the topic id: the topic was deleted, or is too new."""


def _reason(offset: int, bounds: Bounds | None) -> str:
    if bounds is None:
        return "the partition does not exist; its topic may have been deleted"
    if offset < bounds[0]:
        return "retention or a user removed the records"
    return "the partition ends before them: the topic may have been recreated, or the log truncated"


class BoundsProbe:
    """Asks the brokers for the bounds of partitions, with a timeout. Called on the consumer's thread.

    If `consumer` gets no answer, `connect` makes a second consumer from the same arguments. If the second consumer gets
    no answer either, a `RetriableError` is raised.
    """

    def __init__(self, consumer: Any, connect: Callable[..., Any], arguments: Mapping[str, object]) -> None:  # noqa: ANN401
        self._consumer = consumer
        self._connect = connect
        self._arguments = arguments

    def bounds(self, keys: Sequence[Key]) -> dict[Key, Bounds | None]:
        """Return each partition's first offset and the offset after its last record; None if it does not exist."""
        try:
            return {**_bounds(self._consumer, keys)}
        except _SILENT as error:
            why = str(error)
        # Ask through another connection: partitions may be gone, or a quota may block the first one.
        with self._new_consumer() as probe:
            try:
                existing = {topic: probe.partitions_for_topic(topic) or () for topic, _ in keys}
                left = [key for key in keys if key[1] in existing[key[0]]]
                return {**dict.fromkeys(keys), **_bounds(probe, left)}
            except _SILENT as error:
                named = ", ".join(f"{topic}/{partition}" for topic, partition in keys[:5])
                raise RetriableError(
                    f"the leaders of the partitions {named} do not answer, but {_servers(self._arguments)} do: {why}",
                    advice="check that every broker runs, and that this machine reaches its advertised listener",
                ) from error

    def written(self, keys: Sequence[Key]) -> dict[Key, int]:
        """Return the high watermarks of partitions: the ends, including records of open transactions."""
        if not keys:
            return {}
        with self._new_consumer(isolation_level="read_uncommitted") as probe, must_answer(self._arguments):
            return {key: last for key, (_, last) in _bounds(probe, keys).items()}

    @contextmanager
    def _new_consumer(self, **more: object) -> Iterator[Any]:
        with must_answer(self._arguments):
            consumer = self._connect(**{**self._arguments, "bootstrap_timeout_ms": _TIMEOUT_MS, **more})
        try:
            yield consumer
        finally:
            consumer.close(autocommit=False)


def _bounds(consumer: Any, keys: Sequence[Key]) -> dict[Key, Bounds]:  # noqa: ANN401 - kafka-python has no types
    if not keys:
        return {}
    first = consumer.beginning_offsets(keys, timeout_ms=_TIMEOUT_MS)
    last = consumer.end_offsets(keys, timeout_ms=_TIMEOUT_MS)
    return {key: (first[key], last[key]) for key in keys}


def _servers(arguments: Mapping[str, object]) -> str:
    """Return the bootstrap servers of a consumer's arguments, for errors."""
    servers = arguments.get("bootstrap_servers")
    return ", ".join(servers) if isinstance(servers, list) else str(servers)


@contextmanager
def must_answer(arguments: Mapping[str, object]) -> Iterator[None]:
    """Convert errors of kafka-python for brokers that do not answer to a RetriableError that names the brokers."""
    try:
        yield
    except _SILENT as error:
        raise RetriableError(
            f"the brokers {_servers(arguments)} do not answer: {error}",
            option="kafka.bootstrap.servers",
            advice="check address, port, network and kafka.security.protocol; every worker needs to reach every broker",
        ) from error


def stuck(
    topic: str, partition: int, offset: int, seconds: float, last: int, last_stable_offset: int | None
) -> RetriableError:
    """Return the error for a partition from which no record arrives.

    Args:
        topic: The topic.
        partition: The partition.
        offset: The next offset to read.
        seconds: The seconds for which the reader has waited.
        last: The end of the partition: the offset after its last record.
        last_stable_offset: The last stable offset, if an open transaction holds the records back; else None.
    """
    why = f"but the partition has records up to {last}"
    advice = "check the leader of the partition and quotas, or raise kafkaConsumer.pollTimeoutMs"
    if last_stable_offset is not None:
        why += (
            f": a transaction is open from offset {last_stable_offset} on, and the plan was made without read_committed"
        )
        advice = (
            "wait until the transaction ends, or abort a hanging transaction (kafka-transactions.sh find-hanging, "
            "abort); or restore the former kafka.isolation.level until this micro-batch is done"
        )
    return RetriableError(
        f"topic {topic}, partition {partition}: no record arrived from offset {offset} on for {seconds:.0f} s, {why}",
        position=offset,
        advice=advice,
    )
