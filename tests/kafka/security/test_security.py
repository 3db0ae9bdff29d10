# SPDX-License-Identifier: Apache-2.0
"""TLS and logins with the options of Java's clients; secrets are never shown. No broker is needed."""

from __future__ import annotations

import pickle
import ssl

import pytest
from kafka.protocol.sasl import SaslAuthenticateRequest

from forebay.errors import ConfigurationError
from forebay.options import redact
from forebay.sources.kafka import KafkaSource
from forebay.sources.kafka.client.client_options import parse_jaas
from forebay.sources.kafka.client.kafka_internals import _Sender

PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="p\\"w;=d";'
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required username=alice password='open sesame'"


def source(**options: str) -> KafkaSource:
    given = {"kafka.bootstrap.servers": "h:9092", "subscribe": "t"}
    return KafkaSource.from_options(given | {f"kafka.{name}": value for name, value in options.items()})


def arguments(**options: str) -> dict[str, object]:
    return source(**{name.replace("__", "."): value for name, value in options.items()}).client_options.arguments(
        "consumer"
    )


@pytest.mark.parametrize(("text", "password"), [(PLAIN, 'p"w;=d'), (SCRAM, "open sesame")])
def test_a_login_is_read_from_jaas(text, password):
    login = parse_jaas(text)
    assert (login.username, login.password.reveal()) == ("alice", password)
    assert password not in repr(login)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no login module"),
        ("com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true;", "kinit"),
        ("a.b.OAuthBearerLoginModule required;", "oauthTokenProvider"),
        ("x.Nonsense required;", "not supported"),
        ('x.PlainLoginModule required username="alice";', "no password"),
        (
            'x.PlainLoginModule required username="alice" password="hidden-pw" serviceName=x;',
            "besides username and password",
        ),
        ("alice:hidden-pw required;", "not supported"),
        ('x.PlainLoginModule required username="alice" password="hidden-pw', "quotation mark"),
        ("x.PlainLoginModule required username alice hidden-pw;", "name=value"),
    ],
)
def test_a_wrong_login_is_refused_and_not_repeated(text, says):
    with pytest.raises(ConfigurationError, match=says) as caught:
        parse_jaas(text)
    assert caught.value.option == "kafka.sasl.jaas.config"
    assert "hidden-pw" not in str(caught.value)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_clients_log_in(mechanism):
    found = arguments(security__protocol="SASL_SSL", sasl__mechanism=mechanism, sasl__jaas__config=SCRAM)
    assert found["sasl_mechanism"] == mechanism and found["security_protocol"] == "SASL_SSL"
    assert (found["sasl_plain_username"], found["sasl_plain_password"]) == ("alice", "open sesame")
    assert isinstance(found["ssl_context"], ssl.SSLContext)


def test_gssapi_uses_the_ticket_cache_and_may_name_the_service():
    found = arguments(
        security__protocol="SASL_PLAINTEXT", sasl__mechanism="GSSAPI", sasl__kerberos__service__name="broker"
    )
    assert (found["sasl_mechanism"], found["sasl_kerberos_service_name"]) == ("GSSAPI", "broker")
    assert "sasl_plain_username" not in found
    with pytest.raises(ConfigurationError, match="no effect"):
        source(**{"security.protocol": "SSL", "sasl.kerberos.service.name": "broker"})


def test_a_login_may_be_a_reference(monkeypatch):
    monkeypatch.setenv("JAAS", SCRAM)
    found = source(**{"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": "env:JAAS"})
    assert found.client_options.arguments("admin")["sasl_plain_password"] == "open sesame"
    monkeypatch.delenv("JAAS")
    with pytest.raises(ConfigurationError, match="JAAS"):
        found.client_options.arguments("admin")


def test_no_secret_is_shown():
    found = source(
        **{
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": SCRAM,
            "ssl.truststore.location": "/no/such",
            "ssl.truststore.password": "trust-pw",
            "ssl.keystore.key": "-----BEGIN key-text",
            "ssl.keystore.certificate.chain": "chain",
        }
    )
    options = found.client_options
    for shown in (repr(found), str(found), repr(options), repr(options.tls)):
        assert not any(secret in shown for secret in ("sesame", "trust-pw", "key-text"))
    travelled = pickle.loads(pickle.dumps(found))
    assert travelled == found
    assert "trust-pw" not in redact("the password trust-pw was wrong")


@pytest.mark.parametrize(
    ("options", "option", "says"),
    [
        (
            {"security.protocol": "SASL_SSL"},
            "sasl.mechanism",
            "security.protocol=SASL_SSL needs kafka.sasl.mechanism, which is not set",
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"},
            "sasl.jaas.config",
            "sasl.mechanism=PLAIN needs kafka.sasl.jaas.config, which is not set",
        ),
        (
            {"security.protocol": "SSL", "sasl.mechanism": "PLAIN"},
            "sasl.mechanism",
            "set kafka.security.protocol to SASL_SSL or SASL_PLAINTEXT, or remove kafka.sasl.mechanism",
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI", "sasl.jaas.config": PLAIN},
            "sasl.jaas.config",
            "GSSAPI does not use it",
        ),
        ({"security.protocol": "SSL", "ssl.keystore.type": "BKS"}, "ssl.keystore.type", "PEM or PKCS12"),
        ({"security.protocol": "SSL", "ssl.enabled.protocols": "TLSv1.1"}, "ssl.enabled.protocols", "TLSv1.2"),
        ({"security.protocol": "SSL", "ssl.keystore.key": "x"}, "ssl.keystore.key", "certificate require each other"),
        (
            {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "none"},
            "ssl.endpoint.identification.algorithm",
            "https",
        ),
        (
            {
                "security.protocol": "SSL",
                "ssl.truststore.location": "/x",
                "ssl.truststore.certificates": "x",
            },
            "ssl.truststore.certificates",
            "set only one of them",
        ),
    ],
)
def test_options_of_security_that_do_not_fit_are_refused(options, option, says):
    with pytest.raises(ConfigurationError, match=says) as caught:
        source(**options)
    assert caught.value.option == f"kafka.{option}"


def test_oauth_asks_a_provider_that_is_named():
    given = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    with pytest.raises(ConfigurationError, match="require each other"):
        source(**given)
    options = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"} | {f"kafka.{k}": v for k, v in given.items()}
    for path, says in (("no.such:X", "cannot be created"), ("datetime:UTC", "is not an AbstractTokenProvider")):
        found = KafkaSource.from_options({**options, "oauthTokenProvider": path})
        with pytest.raises(ConfigurationError, match=says):
            found.client_options.arguments("consumer")


def test_trust_and_identity_come_from_pem_and_pkcs12(stores):
    def context(**options):
        found = arguments(security__protocol="SSL", **options)["ssl_context"]
        assert isinstance(found, ssl.SSLContext)
        return found

    for trust in (
        {"ssl__truststore__location": stores["trust.pem"]},
        {"ssl__truststore__location": stores["trust.p12"], "ssl__truststore__password": "sesame"},
        {"ssl__truststore__certificates": stores["chain"], "ssl__truststore__type": "PEM"},
    ):
        assert [dict(part[0] for part in one["subject"]) for one in context(**trust).get_ca_certs()] == [
            {"commonName": "localhost"}
        ]
    for identity in (
        {"ssl__keystore__location": stores["both.pem"]},
        {"ssl__keystore__location": stores["both.p12"], "ssl__keystore__password": "sesame"},
        {"ssl__keystore__key": stores["key"], "ssl__keystore__certificate__chain": stores["chain"]},
        {
            "ssl__keystore__key": stores["locked"],
            "ssl__keystore__certificate__chain": stores["chain"],
            "ssl__key__password": "sesame",
        },
    ):
        assert context(**identity).check_hostname
    assert not context(ssl__endpoint__identification__algorithm="").check_hostname
    assert context(ssl__protocol="TLSv1.3").minimum_version is ssl.TLSVersion.TLSv1_3
    assert context(ssl__enabled__protocols="TLSv1.3").minimum_version is ssl.TLSVersion.TLSv1_3


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"truststore.location": "old.jks"}, "keytool -importkeystore -srckeystore .* -deststoretype PKCS12"),
        ({"truststore.location": "junk"}, "neither PEM nor PKCS12"),
        ({"truststore.location": "trust.p12", "truststore.type": "PEM"}, "is not in PEM"),
        ({"keystore.location": "both.pem", "keystore.type": "PKCS12"}, "is in PEM"),
        ({"truststore.location": "/no/such"}, "No such file"),
        ({"truststore.location": "trust.p12", "truststore.password": "wrong"}, "check kafka.ssl.truststore.password"),
        ({"keystore.location": "both.p12", "keystore.password": "wrong"}, "check kafka.ssl.keystore.password"),
        ({"keystore.location": "trust.pem"}, "the certificate and its key cannot be read"),
        ({"keystore.key": "locked", "keystore.certificate.chain": "chain"}, "check kafka.ssl.key.password"),
    ],
)
def test_an_unusable_store_is_refused_with_the_next_step(stores, options, says):
    given = {f"ssl.{name}": stores.get(value, value) for name, value in options.items()}
    options = source(**{"security.protocol": "SSL", **given}).client_options
    with pytest.raises(ConfigurationError, match=says) as caught:
        options.arguments("consumer")
    assert caught.value.option is not None and caught.value.option.startswith("kafka.ssl.")


def test_what_logs_in_is_not_in_the_repr_that_kafka_python_logs():
    found = arguments(security__protocol="SASL_PLAINTEXT", sasl__mechanism="PLAIN", sasl__jaas__config=SCRAM)
    assert "sesame" not in f"{found}" and str(found["sasl_plain_password"]).encode() == b"open sesame"
    sent = []
    _Sender(sent.append)(SaslAuthenticateRequest(b"\0alice\0open sesame"))
    assert "sesame" not in f"{sent}" and sent[0].auth_bytes == b"\0alice\0open sesame"
