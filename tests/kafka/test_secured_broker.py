# SPDX-License-Identifier: Apache-2.0
"""A real broker that wants TLS with certificates of both sides, or a login: reading from it, and being refused."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

import forebay
from forebay.errors import ConfigurationError, ForebayError, RetriableError
from forebay.sources.kafka import KafkaSource
from forebay.testkit.kafka_broker import KafkaBroker


class SecuredBroker(KafkaBroker):
    """Listens on two more ports: one for TLS, one for logins."""

    def __init__(self, stores: dict[str, str]) -> None:
        def inline(text: str) -> str:
            return text.replace("\n", "\\n")

        kinds = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,TLS:SSL,LOGIN:SASL_PLAINTEXT"
        login = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="open sesame";'
        super().__init__(
            {
                "listener.security.protocol.map": kinds,
                "inter.broker.listener.name": "PLAINTEXT",
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.login.plain.sasl.jaas.config": login,
                "listener.name.tls.ssl.keystore.type": "PEM",
                "listener.name.tls.ssl.keystore.key": inline(stores["key"]),
                "listener.name.tls.ssl.keystore.certificate.chain": inline(stores["chain"]),
                "listener.name.tls.ssl.truststore.type": "PEM",
                "listener.name.tls.ssl.truststore.certificates": inline(stores["chain"]),
                "listener.name.tls.ssl.client.auth": "required",
            }
        )
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            other.bind(("127.0.0.1", 0))
            self.tls, self.login = (f"127.0.0.1:{held.getsockname()[1]}" for held in (one, other))

    def _text(self) -> str:
        lines = []
        for line in super()._text().splitlines():
            more = f",TLS://{self.tls},LOGIN://{self.login}"
            lines.append(line + more if line.startswith(("listeners=", "advertised.listeners=")) else line)
        return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def secured(stores) -> Iterator[SecuredBroker]:
    import kafka

    with SecuredBroker(stores) as running:
        running.create_topic("t")
        with kafka.KafkaProducer(bootstrap_servers=running.address) as producer:
            producer.send("t", b"there").get(30)
        yield running


@pytest.fixture(autouse=True)
def _soon(monkeypatch) -> None:
    monkeypatch.setattr("forebay.sources.kafka.client_options.CONNECT_TIMEOUT_MS", 2000)


def read(address: str, **options: str) -> list[bytes]:
    given = {"bootstrap.servers": address, **{name.replace("__", "."): value for name, value in options.items()}}
    source = KafkaSource(subscribe=["t"], starting_offsets="earliest", kafka=given)
    with forebay.run(source, options=forebay.HostOptions(retries=0)) as batches:
        found: list[bytes] = next(iter(batches)).column("value").to_pylist()
        return found


def refused(address: str, **options: str) -> ForebayError:
    with pytest.raises(ForebayError) as caught:
        read(address, **options)
    return caught.value


def test_certificates_of_both_sides(secured, stores):
    for trust, identity in (("trust.pem", "both.pem"), ("trust.p12", "both.p12")):
        options = {"ssl__truststore__location": stores[trust], "ssl__keystore__location": stores[identity]}
        if trust.endswith("p12"):
            options |= {"ssl__truststore__password": "sesame", "ssl__keystore__password": "sesame"}
        assert read(secured.tls, security__protocol="SSL", **options) == [b"there"]


def test_a_broker_that_is_not_trusted_and_one_that_does_not_trust(secured, stores):
    error = refused(secured.tls, security__protocol="SSL")
    assert isinstance(error, RetriableError) and "certificate verify failed" in error.message
    error = refused(secured.tls, security__protocol="SSL", ssl__truststore__location=stores["trust.pem"])
    assert isinstance(error, RetriableError) and secured.tls in error.message
    error = refused(secured.tls)
    assert isinstance(error, RetriableError) and "it wants TLS (kafka.security.protocol)" in error.message


def test_a_login(secured):
    def jaas(password: str) -> dict[str, str]:
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        text = f'{module} required username="alice" password="{password}";'
        return {"security__protocol": "SASL_PLAINTEXT", "sasl__mechanism": "PLAIN", "sasl__jaas__config": text}

    assert read(secured.login, **jaas("open sesame")) == [b"there"]
    # A broker hangs up with its answer, which kafka-python often loses: then nobody knows more than that.
    for mechanism, password in (("PLAIN", "close-sesame"), ("SCRAM-SHA-256", "open sesame")):
        error = refused(secured.login, **{**jaas(password), "sasl__mechanism": mechanism})
        told = isinstance(error, ConfigurationError) and error.option == "kafka.sasl.jaas.config"
        assert told or f"no login by {mechanism} came about" in error.message
        assert password not in str(error) and secured.login in error.message
