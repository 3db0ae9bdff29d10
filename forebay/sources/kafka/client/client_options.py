# SPDX-License-Identifier: Apache-2.0
"""Translates `kafka.*`, the options of Java's consumer, to arguments of kafka-python.

An option without a translation raises an error that names it, because users would notice an ignored option too late.
"""

from __future__ import annotations

import difflib
import importlib
import ipaddress
import os
import re
import ssl
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from forebay.errors import ConfigurationError
from forebay.options import Secret
from forebay.options.secret import REDACTED

# -- Parses `sasl.jaas.config`, the option of Java's clients for user name and password.


OPTION: Final = "kafka.sasl.jaas.config"

_TOKEN = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|\'((?:[^\'\\]|\\.)*)\'|([;=])|([^\s;="\']+))')
_OTHER_MODULES: Final = {
    "Krb5LoginModule": "remove it: GSSAPI uses the ticket cache (run kinit -kt keytab principal before)",
    "OAuthBearerLoginModule": 'remove it, and name the token provider: oauthTokenProvider="package.module:Provider"',
    "IAMLoginModule": 'remove it, and set kafka.sasl.mechanism="AWS_MSK_IAM"',
}


@dataclass(frozen=True)
class Login:
    """A user and a password, from a JAAS configuration."""

    username: str
    password: Secret


def parse_jaas(jaas_config: str | Secret) -> Login:
    """Parse `…PlainLoginModule required username="alice" password="…";`, or the same with `ScramLoginModule`.

    Raises:
        ConfigurationError: The text is invalid. The error does not quote the text, because it may hold a password.
    """
    tokens = _tokens(jaas_config.reveal() if isinstance(jaas_config, Secret) else jaas_config)
    if len(tokens) < 2:
        raise _wrong_jaas("the value has no login module")
    module = tokens[0].rpartition(".")[2]
    if module not in ("PlainLoginModule", "ScramLoginModule"):
        known = module in _OTHER_MODULES  # another word may be a password: do not show it
        raise _wrong_jaas(
            f"the login module {module!r} exists only in Java" if known else "its login module is not supported",
            _OTHER_MODULES.get(module),
        )
    remaining = tokens[2:]
    if remaining and remaining[-1] == ";":
        remaining.pop()
    entries: dict[str, str] = {}
    while remaining:
        if len(remaining) < 3 or remaining[1] != "=":
            raise _wrong_jaas("the value has entries that are not of the form name=value")
        entries[remaining[0]] = remaining[2]
        remaining = remaining[3:]
    missing = [name for name in ("username", "password") if not entries.get(name)]
    if missing:
        raise _wrong_jaas(f"the value has no {' and no '.join(missing)}")
    if entries.keys() - {"username", "password"}:  # do not show them: they may be parts of a password
        raise _wrong_jaas("the value has entries besides username and password")
    return Login(entries["username"], _secret(entries["password"]))


def _secret(password: str) -> Secret:
    try:
        return Secret(password)
    except ConfigurationError:
        pass
    raise _wrong_jaas(
        "the password begins with env: or file:, like a reference to a secret",
        f"set the whole value of {OPTION} by file:/path or env:NAME",
    )


def _tokens(text: str) -> list[str]:
    tokens, at, text = [], 0, text.strip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _wrong_jaas("a quotation mark is missing")
        double, single, sign, word = match.groups()
        quoted = double if double is not None else single
        tokens.append(re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else sign or word)
        at = match.end()
    return tokens


def _wrong_jaas(why: str, advice: str | None = None) -> ConfigurationError:
    return ConfigurationError(
        f"{OPTION} cannot be used: {why}",
        option=OPTION,
        advice=advice
        or 'write org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="…"; '
        "or the same with org.apache.kafka.common.security.scram.ScramLoginModule",
    )


# -- Configures TLS by the options of Java's clients: PEM and PKCS12 stores, in files or in the options.


TLS_NAMES: Final = frozenset(
    {
        "ssl.truststore.type", "ssl.truststore.location", "ssl.truststore.password", "ssl.truststore.certificates",
        "ssl.keystore.type", "ssl.keystore.location", "ssl.keystore.password", "ssl.keystore.key",
        "ssl.keystore.certificate.chain", "ssl.key.password", "ssl.endpoint.identification.algorithm",
        "ssl.enabled.protocols", "ssl.protocol",
    }
)  # fmt: skip
"""The supported TLS options, without `kafka.`."""

_JKS: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}

Side = Literal["truststore", "keystore"]


@dataclass(frozen=True)
class Tls:
    """The user's TLS options, without `kafka.`. Files and secrets are read only where a client is created."""

    given: Mapping[str, str | Secret] = field(default_factory=dict)

    def check(self) -> None:
        """Raise ConfigurationError if an option is invalid. Reads no files."""
        algorithm = self._text("ssl.endpoint.identification.algorithm")
        if algorithm not in (None, "", "https", "HTTPS"):
            raise _wrong(
                "ssl.endpoint.identification.algorithm", f"{algorithm!r} is unknown", "set https, or remove the option"
            )
        for name in ("ssl.enabled.protocols", "ssl.protocol"):
            for version in _list(self._text(name)):
                if version not in _VERSIONS and not (name == "ssl.protocol" and version == "TLS"):
                    raise _wrong(name, f"{version!r} is not supported", f"choose from {', '.join(_VERSIONS)}")
        for side in ("truststore", "keystore"):
            kind = (self._text(f"ssl.{side}.type") or "").upper()
            if kind not in ("", "PEM", "PKCS12", "JKS"):
                raise _wrong(f"ssl.{side}.type", f"the type {kind!r} is unknown", "set PEM or PKCS12")
            inline = "ssl.truststore.certificates" if side == "truststore" else "ssl.keystore.certificate.chain"
            if inline in self.given and f"ssl.{side}.location" in self.given:
                raise _wrong(inline, f"ssl.{side}.location is set too", "set only one of them")
        if ("ssl.keystore.key" in self.given) != ("ssl.keystore.certificate.chain" in self.given):
            raise _wrong(
                "ssl.keystore.key",
                "key and certificate require each other",
                "set both kafka.ssl.keystore.key and kafka.ssl.keystore.certificate.chain",
            )

    def context(self) -> ssl.SSLContext:
        """Return the SSL context for connections, with keys and certificates from the stores.

        Call it only where a client is created, because it reads files and secrets.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = self._text("ssl.endpoint.identification.algorithm") != ""
        named = _list(self._text("ssl.enabled.protocols")) or _list(self._text("ssl.protocol"))
        versions = [_VERSIONS[version] for version in named if version != "TLS"]
        context.minimum_version = min(versions, default=ssl.TLSVersion.TLSv1_2)
        context.maximum_version = max(versions, default=ssl.TLSVersion.MAXIMUM_SUPPORTED)
        self._trust(context)
        self._identify(context)
        return context

    def _trust(self, context: ssl.SSLContext) -> None:
        name = "ssl.truststore.certificates"
        pem = self._text(name)
        if pem is None and "ssl.truststore.location" in self.given:
            name = "ssl.truststore.location"
            pem = self._store("truststore")[1]
        if pem is None:
            context.load_default_certs()
            return
        try:
            context.load_verify_locations(cadata=pem)
        except ssl.SSLError as error:
            raise _wrong(
                name,
                f"no certificate in PEM can be read: {error.reason}",
                "check the value, or the file it names",
            ) from error

    def _identify(self, context: ssl.SSLContext) -> None:
        password = self._text("ssl.key.password")
        if "ssl.keystore.location" in self.given:
            name = "ssl.keystore.location"
            key, chain = self._store("keystore")
            # Java uses one password for a PKCS12 store and its key. In a PEM file, only the key can have a password.
            password = password if key is None else None
        elif "ssl.keystore.key" in self.given:
            name = "ssl.keystore.key"
            key, chain = self._text(name), self._text("ssl.keystore.certificate.chain") or ""
        else:
            return
        # OpenSSL reads keys only from files.
        handle, path = tempfile.mkstemp(suffix=".pem")
        try:
            with os.fdopen(handle, "w") as file:
                file.write(f"{key or ''}\n{chain}\n")
            context.load_cert_chain(path, password=password or "")
        except (ssl.SSLError, ValueError) as error:
            why = getattr(error, "reason", None) or "the key needs a password"
            raise _wrong(
                name,
                f"the certificate and its key cannot be read: {why}",
                "check kafka.ssl.key.password; the key and the certificate must match",
            ) from None
        finally:
            os.unlink(path)

    def _store(self, side: Side) -> tuple[str | None, str]:
        """Return the private key of a PKCS12 store (else None) and the certificates of the store, as PEM."""
        name = f"ssl.{side}.location"
        path = self._text(name) or ""
        try:
            with open(path, "rb") as file:
                content = file.read()
        except OSError as error:
            raise _wrong(
                name,
                f"{path} cannot be read: {error.strerror}",
                "copy it to this path on the driver and on every worker",
            ) from error
        if content[:4] in _JKS:
            raise _wrong(
                name,
                f"{path} is a Java keystore (JKS), which only Java can read",
                f"convert it: keytool -importkeystore -srckeystore {path} -destkeystore {path}.p12 "
                "-deststoretype PKCS12",
            )
        pem, kind = b"-----BEGIN" in content, (self._text(f"ssl.{side}.type") or "").upper()
        if kind and pem != (kind == "PEM"):
            raise _wrong(
                name, f"{path} is {'in PEM' if pem else 'not in PEM'}", f"set kafka.ssl.{side}.type to its format"
            )
        if pem:
            return None, content.decode("utf-8", "replace")
        if content[:1] == b"\x30":
            return _pkcs12(content, self._text(f"ssl.{side}.password"), name, path)
        raise _wrong(name, f"{path} is neither PEM nor PKCS12", "convert it to one of these formats")

    def _text(self, name: str) -> str | None:
        value = self.given.get(name)
        return value.reveal() if isinstance(value, Secret) else value


def _pkcs12(content: bytes, password: str | None, name: str, path: str) -> tuple[str | None, str]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError as error:
        raise _wrong(
            name,
            f"{path} is a PKCS12 store, which needs the package cryptography",
            f'run pip install "forebay[kafka-tls]", or convert it: openssl pkcs12 -in {path} -nodes -out {path}.pem',
        ) from error
    try:
        store = pkcs12.load_pkcs12(content, None if password is None else password.encode())
    except ValueError:
        pass
    else:
        entries = [store.cert, *store.additional_certs]
        pem = "\n".join(
            entry.certificate.public_bytes(serialization.Encoding.PEM).decode()
            for entry in entries
            if entry is not None
        )
        if store.key is None:
            return None, pem
        key = store.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return key.decode(), pem
    side = "truststore" if "truststore" in name else "keystore"
    raise _wrong(name, f"{path} cannot be opened as PKCS12", f"check kafka.ssl.{side}.password and the file")


def _list(text: str | None) -> list[str]:
    return [item.strip() for item in (text or "").split(",") if item.strip()]


def _wrong(name: str, why: str, advice: str) -> ConfigurationError:
    option = f"kafka.{name}"
    return ConfigurationError(f"{option}: {why}", option=option, advice=advice)


# -- Translates the options.


Role = Literal["consumer", "admin"]

CONNECT_TIMEOUT_MS: Final = 15_000
"""Timeout of the first connection, if `default.api.timeout.ms` is not set. Hosts retry after it."""

_LAST_PORT: Final = 65_535

_PROTOCOL: Final = "kafka.security.protocol"
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER", "AWS_MSK_IAM")


_SERVERS: Final = "kafka.bootstrap.servers"


def _servers(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _is_server(server: str) -> bool:
    """Return whether kafka-python can read the address of a broker: `host:port`, `host`, `[IPv6]:port` or `IPv6`."""
    address = re.sub("^.*://", "", server)  # as it does, because Java's clients allow a protocol
    whole = re.fullmatch(r"\[([^\[\]]*)\](?::(\d{1,5}))?|([^\[\]]*?)(?::(\d{1,5}))?", address, re.ASCII)
    if whole is None or not address.isprintable() or " " in address:
        return False
    bracketed, bracketed_port, host, port = whole.groups()
    if bracketed is not None:
        return _is_ipv6(bracketed) and int(bracketed_port or 0) <= _LAST_PORT
    if ":" in host or _is_ipv6(address):
        return "%" not in address and (_is_ipv6(host) or _is_ipv6(address)) and int(port or 0) <= _LAST_PORT
    try:
        encoded = host.encode("idna")  # as a resolver does, which cannot say whose name it was
    except UnicodeError:
        return False
    return bool(encoded) and int(port or 0) <= _LAST_PORT


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _check_servers(text: str) -> None:
    """Raise ConfigurationError unless a text has the addresses of one or more brokers."""
    servers = _servers(text)
    if not servers:
        raise ConfigurationError(
            f"the option {_SERVERS} is not set",
            option=_SERVERS,
            advice='give one or more brokers: "host1:9092,host2:9092"',
        )
    if "@" in text:
        raise ConfigurationError(
            f"{_SERVERS} has an @, so it may have a password in it, which is not shown here",
            option=_SERVERS,
            advice=f'give hosts and ports only, "host1:9092,host2:9092", and the login as {OPTION}',
        )
    for place, server in enumerate(servers, start=1):
        if not _is_server(server):
            raise ConfigurationError(
                f"address {place} of {len(servers)} in {_SERVERS} is no host:port with a port up to {_LAST_PORT:,}; it "
                "is not shown here, because it may have a password in it",
                option=_SERVERS,
                advice='give hosts and ports, "host1:9092,host2:9092", and IPv6 addresses in brackets, "[::1]:9092"',
            )


def _buffer(text: str) -> int | None:
    return None if text == "-1" else int(text)


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("the value must be true or false")
    return text.lower() == "true"


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        chosen = next((choice for choice in choices if choice.lower() == text.lower()), None)
        if chosen is None:
            raise ValueError(f"the value must be one of {', '.join(choices)}")
        return chosen

    return parse


_BOTH: Final[Mapping[str, tuple[str, Callable[[str], object]]]] = {
    "bootstrap.servers": ("bootstrap_servers", _servers),
    "client.id": ("client_id", str),
    "client.dns.lookup": ("client_dns_lookup", _one_of("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only")),
    "security.protocol": ("security_protocol", _one_of(*_PROTOCOLS)),
    "sasl.mechanism": ("sasl_mechanism", _one_of(*_MECHANISMS)),
    "sasl.kerberos.service.name": ("sasl_kerberos_service_name", str),
    "request.timeout.ms": ("request_timeout_ms", int),
    "default.api.timeout.ms": ("bootstrap_timeout_ms", int),
    "retry.backoff.ms": ("retry_backoff_ms", int),
    "reconnect.backoff.ms": ("reconnect_backoff_ms", int),
    "reconnect.backoff.max.ms": ("reconnect_backoff_max_ms", int),
    "metadata.max.age.ms": ("metadata_max_age_ms", int),
    "connections.max.idle.ms": ("connections_max_idle_ms", int),
    "receive.buffer.bytes": ("receive_buffer_bytes", _buffer),
    "send.buffer.bytes": ("send_buffer_bytes", _buffer),
}
_CONSUMER: Final[Mapping[str, tuple[str, Callable[[str], object]]]] = {
    "client.rack": ("client_rack", str),
    "fetch.max.wait.ms": ("fetch_max_wait_ms", int),
    "fetch.min.bytes": ("fetch_min_bytes", int),
    "fetch.max.bytes": ("fetch_max_bytes", int),
    "max.partition.fetch.bytes": ("max_partition_fetch_bytes", int),
    "isolation.level": ("isolation_level", _one_of("read_uncommitted", "read_committed")),
    "check.crcs": ("check_crcs", _flag),
}
_HANDLED_ELSEWHERE: Final = frozenset({"group.id", "sasl.jaas.config"})
"""Options that are used, but not passed to kafka-python as arguments of the same name."""

_OWN_POSITIONS = "the query reads from its own positions"
_NO_GROUP = "this source plans its partitions and joins no consumer group"
_REFUSED: Final = {
    "auto.offset.reset": (_OWN_POSITIONS, "use startingOffsets"),
    "enable.auto.commit": (_OWN_POSITIONS, "use commitOffsets=true to commit progress to the group"),
    "auto.commit.interval.ms": (_OWN_POSITIONS, "use commitOffsets=true to commit progress to the group"),
    "key.deserializer": ("keys are binary", "cast the column key, or use keyFormat"),
    "value.deserializer": ("values are binary", "cast the column value, or use valueFormat"),
    "interceptor.classes": ("interceptors are Java classes", "remove it"),
    "partition.assignment.strategy": (_NO_GROUP, "remove it"),
    "group.instance.id": (_NO_GROUP, "remove it"),
    "group.protocol": (_NO_GROUP, "remove it"),
    "session.timeout.ms": (_NO_GROUP, "remove it"),
    "heartbeat.interval.ms": (_NO_GROUP, "remove it"),
    "max.poll.interval.ms": (_NO_GROUP, "remove it"),
    "max.poll.records": ("this source reads record batches", "use maxRowsPerBatch"),
    "allow.auto.create.topics": ("this source never creates topics", "remove it"),
    "sasl.username": ("Java's clients have no such option", f"put the user name into {OPTION}"),
    "sasl.password": ("Java's clients have no such option", f"put the password into {OPTION}"),
    "sasl.login.callback.handler.class": ("it is a Java class", 'use oauthTokenProvider="package.module:Provider"'),
    "ssl.cipher.suites": ("its names exist only in Java", "remove it: OpenSSL chooses"),
    "metric.reporters": ("they are Java classes", "remove it, and read the progress of the query"),
}


@dataclass(frozen=True)
class ClientOptions:
    """The options for clients of kafka-python, without open files and without revealed secrets.

    Picklable; for any thread.

    Args:
        settings: Arguments of consumers and admin clients.
        consumer: Arguments of consumers only.
        tls: The TLS options; None = no TLS.
        login: The value of `sasl.jaas.config`, not parsed.
        token_provider: The import path of the OAUTHBEARER token provider.
    """

    settings: Mapping[str, object]
    consumer: Mapping[str, object]
    tls: Tls | None = None
    login: Secret | str | None = field(default=None, repr=False)
    token_provider: str | None = None

    @property
    def servers(self) -> list[str]:
        """The addresses of the bootstrap servers."""
        addresses = self.settings["bootstrap_servers"]
        return [str(address) for address in addresses] if isinstance(addresses, list) else []

    @property
    def read_committed(self) -> bool:
        """Whether the isolation level is `read_committed`."""
        return self.consumer.get("isolation_level") == "read_committed"

    def arguments(self, role: Role) -> dict[str, object]:
        """Return the arguments for the constructor of a client of kafka-python.

        Call it only where a client is created, because it reveals secrets and reads TLS stores.
        """
        arguments: dict[str, object] = {"bootstrap_timeout_ms": CONNECT_TIMEOUT_MS, **self.settings}
        if role == "consumer":
            arguments |= self.consumer
        if self.tls is not None:
            arguments["ssl_context"] = self.tls.context()
        if self.login is not None:
            login = parse_jaas(self.login)
            password = _Unlogged(login.password.reveal())
            arguments |= {"sasl_plain_username": login.username, "sasl_plain_password": password}
        if self.token_provider is not None:
            arguments["sasl_oauth_token_provider"] = _token_provider(self.token_provider)
        return arguments


class _Unlogged(str):
    """A secret argument of kafka-python, which logs the `repr` of its arguments. Everything else is as of a `str`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(REDACTED)


def translate(java_options: Mapping[str, str | Secret], token_provider: str | None = None) -> ClientOptions:
    """Translate options of Java's consumer, whose names are given without `kafka.`. Opens no file.

    Raises:
        ConfigurationError: An option is unknown, invalid, or has no translation.
    """
    options = {name.lower(): value for name, value in java_options.items()}
    for name in options:
        _check_known(name)
    _check_servers(_plain(options, "bootstrap.servers"))
    settings = {python: _read(name, options, parse) for name, (python, parse) in _BOTH.items() if name in options}
    consumer = {python: _read(name, options, parse) for name, (python, parse) in _CONSUMER.items() if name in options}
    protocol = str(settings.get("security_protocol", "PLAINTEXT"))
    tls = Tls({name: value for name, value in options.items() if name in TLS_NAMES})
    tls.check()
    _check_fitting(options, protocol, tls, token_provider)
    login = options.get("sasl.jaas.config")
    if isinstance(login, str) or (isinstance(login, Secret) and login.reference is None):
        parse_jaas(login)
    return ClientOptions(settings, consumer, tls if protocol.endswith("SSL") else None, login, token_provider)


def _check_known(name: str) -> None:
    if name in _REFUSED:
        why, advice = _REFUSED[name]
        raise ConfigurationError(f"kafka.{name} is not supported: {why}", option=f"kafka.{name}", advice=advice)
    known = {*_BOTH, *_CONSUMER, *_HANDLED_ELSEWHERE, *TLS_NAMES}
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        raise ConfigurationError(
            f"kafka.{name} is not supported by kafka-python" + (f"; did you mean 'kafka.{near[0]}'?" if near else ""),
            option=f"kafka.{name}",
            advice=f"remove this option; supported options are {', '.join(f'kafka.{one}' for one in sorted(known))}",
        )


def _check_fitting(options: Mapping[str, str | Secret], protocol: str, tls: Tls, token_provider: str | None) -> None:
    """Raise ConfigurationError for options that do not fit together, and for an incomplete login."""
    mechanism = _plain(options, "sasl.mechanism").upper()
    sasl = [name for name in ("sasl.mechanism", "sasl.jaas.config", "sasl.kerberos.service.name") if name in options]
    if sasl and not protocol.startswith("SASL"):
        raise _unused(sasl[0], f"{_PROTOCOL} is {protocol}", f"set {_PROTOCOL} to SASL_SSL or SASL_PLAINTEXT")
    if tls.given and not protocol.endswith("SSL"):
        unused = next(iter(tls.given))
        raise _unused(unused, f"{_PROTOCOL} is {protocol}", f"set {_PROTOCOL} to SSL or SASL_SSL")
    if protocol.startswith("SASL"):
        if not mechanism:
            advice = f"set kafka.sasl.mechanism to one of {', '.join(_MECHANISMS)}"
            raise _missing("sasl.mechanism", f"{_PROTOCOL}={protocol}", advice)
        wants_login = mechanism == "PLAIN" or mechanism.startswith("SCRAM")
        if wants_login and "sasl.jaas.config" not in options:
            advice = f"set {OPTION} to the login module with username and password"
            raise _missing("sasl.jaas.config", f"kafka.sasl.mechanism={mechanism}", advice)
        if not wants_login and "sasl.jaas.config" in options:
            other = "set kafka.sasl.mechanism to PLAIN or SCRAM-SHA-…"
            raise _unused("sasl.jaas.config", f"kafka.sasl.mechanism={mechanism} does not use it", other)
    if (mechanism == "OAUTHBEARER") != (token_provider is not None):
        raise ConfigurationError(
            "kafka.sasl.mechanism=OAUTHBEARER and oauthTokenProvider require each other, but only one is set",
            option="oauthTokenProvider",
            advice='give kafka.sasl.mechanism="OAUTHBEARER" and oauthTokenProvider="package.module:Provider"',
        )


def _unused(name: str, why: str, otherwise: str) -> ConfigurationError:
    return ConfigurationError(
        f"kafka.{name} has no effect: {why}", option=f"kafka.{name}", advice=f"{otherwise}, or remove kafka.{name}"
    )


def _missing(name: str, needed_by: str, advice: str) -> ConfigurationError:
    text = f"{needed_by} needs kafka.{name}, which is not set"
    return ConfigurationError(text, option=f"kafka.{name}", advice=advice)


def _plain(options: Mapping[str, str | Secret], name: str) -> str:
    value = options.get(name, "")
    return value.reveal().strip() if isinstance(value, Secret) else value.strip()


def _read(name: str, options: Mapping[str, str | Secret], parse: Callable[[str], object]) -> object:
    text = _plain(options, name)
    try:
        return parse(text)
    except ValueError as error:
        why = "the value must be an integer" if parse in (int, _buffer) else str(error)
        raise ConfigurationError(
            f"kafka.{name} is {text!r}: {why}",
            option=f"kafka.{name}",
            advice=f"set kafka.{name} to a value that Java's consumer accepts",
        ) from None


def _token_provider(path: str) -> object:
    """Import and return the token provider `package.module:Provider`. If `Provider` is a class, return an instance."""
    module, _, name = path.partition(":")
    try:
        attribute: object = getattr(importlib.import_module(module), name)
        provider = attribute() if isinstance(attribute, type) else attribute
    except Exception as error:
        raise ConfigurationError(
            f"oauthTokenProvider {path!r} cannot be created: {type(error).__name__}: {error}",
            option="oauthTokenProvider",
            advice="name a class, as in package.module:Provider, that every worker can import",
        ) from error
    from kafka.net.sasl.oauth import AbstractTokenProvider

    if not isinstance(provider, AbstractTokenProvider):
        raise ConfigurationError(
            f"oauthTokenProvider {path!r} is not an AbstractTokenProvider",
            option="oauthTokenProvider",
            advice="derive the class from kafka.net.sasl.oauth.AbstractTokenProvider",
        )
    return provider
