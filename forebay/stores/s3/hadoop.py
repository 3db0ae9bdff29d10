# SPDX-License-Identifier: Apache-2.0
"""Translates the settings of Hadoop's S3 connector (`fs.s3a.*`) into the options `storage.*` for S3."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from forebay.errors import ConfigurationError
from forebay.options.secret import Secret

PREFIX: Final = "fs.s3a."

# Settings with the same meaning as an option. Other settings are handled below, or do not affect what is read.
_SAME: Final = {
    "access.key": "key",
    "secret.key": "secret",
    "session.token": "token",
    "endpoint.region": "region",
    "requester.pays.enabled": "requester_pays",
    "assumed.role.arn": "role_arn",
    "assumed.role.session.name": "role_session_name",
    "assumed.role.external.id": "external_id",
    "assumed.role.sts.endpoint": "sts_endpoint_url",
}
_KEYS: Final = ("key", "secret", "token")
_ROLE: Final = ("role_arn", "role_session_name", "external_id", "sts_endpoint_url")

# Settings without an option here, which decide what is read, or whether it can be.
_UNTRANSLATED: Final = re.compile(
    r"proxy\.host|security\.credential\.provider\.path|delegation\.token\.binding|accesspoint\..*|custom\.signers|"
    r"s3\.client\.factory\.impl|signing-algorithm|bucket\..*|encryption\.cse\..*|assumed\.role\.policy|"
    r"assumed\.role\.credentials\.provider|fips"
)
_ENCRYPTION: Final = ("encryption.algorithm", "server-side-encryption-algorithm")
_CLIENT_KEYS: Final = ("SSE-C", "CSE-KMS", "CSE-CUSTOM")  # S3 decrypts everything else itself

_OF_KEYS: Final = frozenset({"SimpleAWSCredentialsProvider", "TemporaryAWSCredentialsProvider"})
_OF_ROLE: Final = "AssumedRoleCredentialProvider"
_ANONYMOUS: Final = frozenset({"AnonymousAWSCredentialsProvider", "AnonymousCredentialsProvider"})
# Providers that boto3's chain has too.
_OF_CHAIN: Final = frozenset(
    {
        "ContainerCredentialsProvider", "DefaultAWSCredentialsProviderChain", "DefaultCredentialsProvider",
        "EC2ContainerCredentialsProviderWrapper", "EnvironmentVariableCredentialsProvider",
        "IAMInstanceCredentialsProvider", "InstanceProfileCredentialsProvider", "ProfileAWSCredentialsProvider",
        "ProfileCredentialsProvider", "StsWebIdentityTokenFileCredentialsProvider",
        "WebIdentityTokenCredentialsProvider", "WebIdentityTokenFileCredentialsProvider",
    }
)  # fmt: skip
_AMAZON: Final = re.compile(r"s3(?:[.-](?P<region>[a-z0-9-]+))?\.amazonaws\.com(?:\.cn)?")


def from_s3a(settings: Mapping[str, object]) -> dict[str, object]:
    """Return the options of S3, named without `storage.`, for settings of Hadoop (`fs.s3a.*`).

    Raises:
        ConfigurationError: A setting that affects what can be read has no counterpart in forebay.
    """
    given = {name.removeprefix(PREFIX): value for name, value in settings.items() if _text(value)}
    for name, value in given.items():
        if _UNTRANSLATED.fullmatch(name) or (name in _ENCRYPTION and _text(value).upper() in _CLIENT_KEYS):
            raise _untranslated(name, "has no counterpart in forebay")
    options = {_SAME[name]: value for name, value in given.items() if name in _SAME}
    _translate_endpoint(given, options)
    _choose_credentials(_text(given.get("aws.credentials.provider", "")), options)
    return options


def _translate_endpoint(given: Mapping[str, object], options: dict[str, object]) -> None:
    endpoint = _text(given.get("endpoint", "")).rstrip("/")
    plain = _text(given.get("connection.ssl.enabled", "")).lower() == "false"
    path_style = _text(given.get("path.style.access", "")).lower()
    if path_style:
        options["addressing_style"] = "path" if path_style == "true" else "auto"
    host = endpoint.split("://")[-1]
    amazon = _AMAZON.fullmatch(host)
    if plain:
        options["use_ssl"] = False
    if amazon is not None:
        if amazon["region"]:
            options.setdefault("region", amazon["region"])
    elif endpoint:
        options["endpoint_url"] = endpoint if "://" in endpoint else f"{'http' if plain else 'https'}://{host}"
        options.setdefault("addressing_style", "auto")


def _choose_credentials(providers: str, options: dict[str, object]) -> None:
    """Keep in `options` only the credentials that the listed credential providers of Hadoop would use."""
    names = [name.strip().rpartition(".")[2] for name in providers.split(",") if name.strip()]
    known = _OF_KEYS | _ANONYMOUS | _OF_CHAIN | {_OF_ROLE}
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        raise _untranslated("aws.credentials.provider", f"names {unknown}, which boto3 does not have")
    if _OF_ROLE not in names:
        for name in _ROLE:
            options.pop(name, None)
    if names and not _OF_KEYS.intersection(names) and _OF_ROLE not in names:
        for name in _KEYS:
            options.pop(name, None)
    with_keys = "key" in options and "secret" in options
    first = next((name for name in names if name not in _OF_KEYS or with_keys), None)
    if first in _ANONYMOUS:
        options["anon"] = True
        for name in (*_KEYS, *_ROLE):
            options.pop(name, None)


def _text(value: object) -> str:
    return str(value.reveal() if isinstance(value, Secret) else value).strip()


def _untranslated(name: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"the setting {PREFIX}{name} of the Spark session {why}",
        option=f"spark.hadoop.{PREFIX}{name}",
        advice="set storage.* options (docs/files.md, S3), such as storage.endpoint_url or storage.profile; they "
        "replace all settings of the session",
    )
