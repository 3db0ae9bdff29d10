# SPDX-License-Identifier: Apache-2.0
"""A key with its certificate, for brokers and clients that use TLS."""

from __future__ import annotations

import datetime as dt
import ipaddress
import struct

import pytest


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A key with its certificate, in all forms."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import pkcs12

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    form = serialization.PrivateFormat.PKCS8
    found = {
        "chain": certificate.public_bytes(pem).decode(),
        "key": key.private_bytes(pem, form, serialization.NoEncryption()).decode(),
        "locked": key.private_bytes(pem, form, serialization.BestAvailableEncryption(b"sesame")).decode(),
    }
    directory = tmp_path_factory.mktemp("stores")
    locked = serialization.BestAvailableEncryption(b"sesame")
    for label, content in {
        "both.pem": (found["key"] + found["chain"]).encode(),
        "trust.pem": found["chain"].encode(),
        "both.p12": pkcs12.serialize_key_and_certificates(b"x", key, certificate, None, locked),
        "trust.p12": pkcs12.serialize_java_truststore([pkcs12.PKCS12Certificate(certificate, b"ca")], locked),
        "old.jks": struct.pack(">II", 0xFEEDFEED, 2),
        "junk": b"junk",
    }.items():
        (directory / label).write_bytes(content)
        found[label] = str(directory / label)
    return found
