# SPDX-License-Identifier: Apache-2.0
"""Configures TLS by the options of Kafka's Java clients: PEM and PKCS12 stores, in files or in the options."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from forebay.errors import ConfigurationError
from forebay.options import Secret

NAMES: Final = frozenset(
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
