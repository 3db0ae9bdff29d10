# SPDX-License-Identifier: Apache-2.0
"""A real broker that wants TLS with certificates of both sides, or a login: reading from it, and being refused."""

from __future__ import annotations

import importlib
import socket
import ssl
import time
from collections.abc import Iterator

import pytest

import forebay
from forebay.errors import ConfigurationError, ForebayError, RetriableError
from forebay.sources.kafka import KafkaSource
from forebay.testkit.kafka_broker import KafkaBroker

MODULES = "org.apache.kafka.common.security"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
SCRAM_USERS = {"SCRAM-SHA-256": "bob", "SCRAM-SHA-512": "carol"}


class SecuredBroker(KafkaBroker):
    """Listens on three more ports: for TLS with certificates of both sides, for logins, and for logins within TLS."""

    def __init__(self, stores: dict[str, str]) -> None:
        def inline(text: str) -> str:
            return text.replace("\n", "\\n")

        kinds = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,TLS:SSL,LOGIN:SASL_PLAINTEXT,BOTH:SASL_SSL"
        settings = {
            "listener.security.protocol.map": kinds,
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        }
        for name in ("tls", "both"):
            settings |= {
                f"listener.name.{name}.ssl.keystore.type": "PEM",
                f"listener.name.{name}.ssl.keystore.key": inline(stores["key"]),
                f"listener.name.{name}.ssl.keystore.certificate.chain": inline(stores["chain"]),
                f"listener.name.{name}.ssl.truststore.type": "PEM",
                f"listener.name.{name}.ssl.truststore.certificates": inline(stores["chain"]),
                f"listener.name.{name}.ssl.client.auth": "required" if name == "tls" else "none",
            }
        for name in ("login", "both"):
            for mechanism in MECHANISMS:
                settings[f"listener.name.{name}.{mechanism.lower()}.sasl.jaas.config"] = {
                    "PLAIN": f'{MODULES}.plain.PlainLoginModule required user_alice="open sesame";',
                    # Kafka's own, for tests: it believes what tokens say.
                    "OAUTHBEARER": f"{MODULES}.oauthbearer.OAuthBearerLoginModule required "
                    'unsecuredLoginStringClaim_sub="broker";',
                }.get(mechanism, f"{MODULES}.scram.ScramLoginModule required;")
        super().__init__(settings, listeners=["TLS", "LOGIN", "BOTH"])

    def start(self) -> None:
        super().start()
        self.tls, self.login, self.both = map(self.address_of, ("TLS", "LOGIN", "BOTH"))


@pytest.fixture(scope="module")
def secured(stores) -> Iterator[SecuredBroker]:
    import kafka
    from kafka.admin import ScramMechanism, UserScramCredentialUpsertion

    with SecuredBroker(stores) as running:
        running.create_topic("t")
        with running.admin() as admin:
            for mechanism, user in SCRAM_USERS.items():
                kind = ScramMechanism[mechanism.replace("-", "_")]
                entry = UserScramCredentialUpsertion(user, kind, "open sesame")
                assert admin.alter_user_scram_credentials([entry]) == {user: None}
        with kafka.KafkaProducer(bootstrap_servers=running.address) as producer:
            producer.send("t", b"there").get(30)
        for address in (running.tls, running.both):
            shake_hands(address, stores)
        for mechanism, user in SCRAM_USERS.items():
            learnt(running, mechanism, user)
        yield running


def shake_hands(address: str, stores: dict[str, str]) -> None:
    """Let a young JVM make its first TLS connection, however long that takes it."""
    host, _, port = address.partition(":")
    context = ssl.create_default_context(cafile=stores["trust.pem"])
    context.load_cert_chain(stores["both.pem"])
    with socket.create_connection((host, int(port)), 120) as plain, context.wrap_socket(plain, server_hostname=host):
        pass


def learnt(broker: SecuredBroker, mechanism: str, user: str) -> None:
    """Wait until the broker knows a user of SCRAM, of whom the controller tells it a little later."""
    deadline = time.monotonic() + 120
    while True:
        try:
            read(broker.login, **scram(mechanism, user, "open sesame"))
        except ForebayError:
            if time.monotonic() > deadline:
                raise
        else:
            return


def read(address: str, *, provider: str | None = None, **options: str) -> list[bytes]:
    given = {"bootstrap.servers": address, **{name.replace("__", "."): value for name, value in options.items()}}
    source = KafkaSource(subscribe=["t"], starting_offsets="earliest", kafka=given, oauth_token_provider=provider)
    with forebay.run(source, options=forebay.HostOptions(retries=0)) as batches:
        found: list[bytes] = next(iter(batches)).column("value").to_pylist()
        return found


def refused(address: str, *, provider: str | None = None, **options: str) -> ForebayError:
    """Return the error of a read; a connection that never comes about is given up soon."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ForebayError) as caught:
        patch.setattr("forebay.sources.kafka.client.client_options.CONNECT_TIMEOUT_MS", 2000)
        read(address, provider=provider, **options)
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
    assert isinstance(error, RetriableError) and "it requires TLS (kafka.security.protocol)" in error.message


def test_a_login(secured):
    def jaas(password: str) -> dict[str, str]:
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        text = f'{module} required username="alice" password="{password}";'
        return {"security__protocol": "SASL_PLAINTEXT", "sasl__mechanism": "PLAIN", "sasl__jaas__config": text}

    assert read(secured.login, **jaas("open sesame")) == [b"there"]
    # A broker hangs up with its answer, which kafka-python often loses: then nobody knows more than that.
    for mechanism, password in (("PLAIN", "close-sesame"), ("SCRAM-SHA-256", "open sesame")):
        error = refused(secured.login, **{**jaas(password), "sasl__mechanism": mechanism})
        named = isinstance(error, ConfigurationError) and error.option == "kafka.sasl.jaas.config"
        assert named or f"the login by {mechanism} failed" in error.message
        assert password not in str(error) and secured.login in error.message


def scram(mechanism: str, user: str, password: str, protocol: str = "SASL_PLAINTEXT") -> dict[str, str]:
    text = f'{MODULES}.scram.ScramLoginModule required username="{user}" password="{password}";'
    return {"security__protocol": protocol, "sasl__mechanism": mechanism, "sasl__jaas__config": text}


@pytest.mark.parametrize(("mechanism", "user"), SCRAM_USERS.items())
def test_a_login_by_scram_in_the_open_and_within_tls(secured, stores, mechanism, user):
    assert read(secured.login, **scram(mechanism, user, "open sesame")) == [b"there"]
    trusting = {"ssl__truststore__location": stores["trust.pem"]}
    assert read(secured.both, **scram(mechanism, user, "open sesame", "SASL_SSL"), **trusting) == [b"there"]


@pytest.mark.parametrize(
    ("mechanism", "user", "password"),
    [
        ("SCRAM-SHA-256", "bob", "close-sesame"),
        ("SCRAM-SHA-512", "carol", "close-sesame"),
        ("SCRAM-SHA-512", "bob", "open-sesame"),  # known under the other one only
    ],
)
def test_a_wrong_login_by_scram_is_refused_and_not_repeated(secured, mechanism, user, password):
    error = refused(secured.login, **scram(mechanism, user, password))
    named = isinstance(error, ConfigurationError) and error.option == "kafka.sasl.jaas.config"
    assert named or f"the login by {mechanism} failed" in error.message
    assert password not in str(error) and secured.login in error.message


PROVIDER = """
import base64, json, time
from kafka.net.sasl.oauth import AbstractTokenProvider

def part(claims):
    return base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()

class Tokens(AbstractTokenProvider):
    age, asked = 0, 0
    def token(self):
        Tokens.asked += 1
        now = int(time.time()) - 60 - self.age  # the broker refuses one issued after its own millisecond
        return part({"alg": "none"}) + "." + part({"sub": "dave", "iat": now, "exp": now + 3600}) + "."

class Expired(Tokens):
    age = 7200
"""


def test_tokens_of_a_provider_are_shown_to_the_broker(secured, tmp_path, monkeypatch):
    (tmp_path / "tokens_of_a_test.py").write_text(PROVIDER, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    given = {"security__protocol": "SASL_PLAINTEXT", "sasl__mechanism": "OAUTHBEARER"}
    assert read(secured.login, provider="tokens_of_a_test:Tokens", **given) == [b"there"]
    assert importlib.import_module("tokens_of_a_test").Tokens.asked >= 2  # planning and reading
    error = refused(secured.login, provider="tokens_of_a_test:Expired", **given)
    named = isinstance(error, ConfigurationError) and error.option == "oauthTokenProvider"
    assert named or "the login by OAUTHBEARER failed" in error.message
    assert secured.login in error.message
