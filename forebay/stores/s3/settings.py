# SPDX-License-Identifier: Apache-2.0
"""The options of S3 (`storage.*`, `stateStorage.*`), checked and typed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final, Self, cast
from urllib.parse import urlsplit

from forebay.errors import ConfigurationError
from forebay.options.secret import Secret
from forebay.stores.store import StorageOptions

# -- Translates the settings of Hadoop's S3 connector (`fs.s3a.*`) into the options `storage.*` for S3.


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
    unprefixed = {name.removeprefix(PREFIX): value for name, value in settings.items() if _as_text(value)}
    for name, value in unprefixed.items():
        if _UNTRANSLATED.fullmatch(name) or (name in _ENCRYPTION and _as_text(value).upper() in _CLIENT_KEYS):
            raise _untranslated(name, "has no counterpart in forebay")
    options = {_SAME[name]: value for name, value in unprefixed.items() if name in _SAME}
    _translate_endpoint(unprefixed, options)
    _choose_credentials(_as_text(unprefixed.get("aws.credentials.provider", "")), options)
    return options


def _translate_endpoint(unprefixed: Mapping[str, object], options: dict[str, object]) -> None:
    endpoint = _as_text(unprefixed.get("endpoint", "")).rstrip("/")
    plain = _as_text(unprefixed.get("connection.ssl.enabled", "")).lower() == "false"
    path_style = _as_text(unprefixed.get("path.style.access", "")).lower()
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


def _as_text(value: object) -> str:
    return str(value.reveal() if isinstance(value, Secret) else value).strip()


def _untranslated(name: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"the setting {PREFIX}{name} of the Spark session {why}",
        option=f"spark.hadoop.{PREFIX}{name}",
        advice="set storage.* options (docs/files.md, S3), such as storage.endpoint_url or storage.profile; they "
        "replace all settings of the session",
    )


STYLES: Final = ("auto", "path", "virtual")

# Names of boto3, s3fs and others → the option that is meant.
_MEANT: Final = {
    "access_key": "key", "access_key_id": "key", "aws_access_key_id": "key", "username": "key",
    "secret_key": "secret", "secret_access_key": "secret", "aws_secret_access_key": "secret", "password": "secret",
    "session_token": "token", "aws_session_token": "token", "region_name": "region", "aws_region": "region",
    "anonymous": "anon", "endpoint": "endpoint_url", "profile_name": "profile", "aws_profile": "profile",
    "path_style_access": "addressing_style", "ssl": "use_ssl", "session_name": "role_session_name",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class S3Settings:
    """The settings of an S3 client. Hashable: equal settings share one client. Picklable; `repr` hides credentials.

    A value may be a reference to a secret (`env:NAME`, `file:/path`). References to credentials are resolved when the
    client is created.

    Attributes:
        prefix: The prefix of the options, `storage.` or `stateStorage.`, for errors.
        client_kwargs: More arguments of boto3's client, as JSON.
        config_kwargs: More arguments of botocore's `Config`, as JSON.
    """

    prefix: str = "storage."
    key: Secret | None = None
    secret: Secret | None = None
    token: Secret | None = None
    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    anon: bool = False
    requester_pays: bool = False
    role_arn: str | None = None
    external_id: str | None = None
    role_session_name: str | None = None
    web_identity_token_file: str | None = None
    sts_endpoint_url: str | None = None
    addressing_style: str | None = None
    use_ssl: bool = True
    connect_timeout: float = 10.0
    read_timeout: float = 30.0
    max_pool_connections: int = 32
    client_kwargs: str | None = field(default=None, repr=False)
    config_kwargs: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, options: StorageOptions, prefix: str = "storage.") -> Self:
        """Return the settings from a user's options, without connecting. For any thread.

        Raises:
            ConfigurationError: An option is unknown, has a wrong value, or contradicts another one.
        """
        values: dict[str, Any] = {}
        for option_name, value in _without_hadoop({name: options.unresolved(name) for name in options}, prefix).items():
            name = option_name.lower()
            if name not in _KINDS:
                raise _unknown(option_name, prefix)
            values[name] = _KINDS[name](value, f"{prefix}{option_name}")
        settings = cls(prefix=prefix, **values)
        settings._check()
        return settings

    def option(self, name: str) -> str:
        """Return the full name of an option, as the user writes it."""
        return f"{self.prefix}{name}"

    def _check(self) -> None:
        if self.anon and (self.key or self.secret or self.token or self.profile or self.role_arn):
            raise self._refusal(
                "anon", "anon=true reads without credentials, but credentials are set", "remove anon or the credentials"
            )
        for option, needed in (("key", "secret"), ("secret", "key"), ("token", "key")):
            if getattr(self, option) and not getattr(self, needed):
                raise self._refusal(
                    option, f"{self.option(option)} needs {self.option(needed)} too", "set both options, or neither"
                )
        for name in ("external_id", "role_session_name", "web_identity_token_file", "sts_endpoint_url"):
            if getattr(self, name) and not self.role_arn:
                raise self._refusal(
                    name, f"{self.option(name)} needs {self.option('role_arn')} too", f"set {self.option('role_arn')}"
                )
        for name in ("endpoint_url", "sts_endpoint_url"):
            if (url := getattr(self, name)) and not is_endpoint(url):
                raise self.wrong_endpoint(name)
        if self.addressing_style is not None and self.addressing_style not in STYLES:
            raise self._refusal(
                "addressing_style",
                f"{self.addressing_style!r} is not an addressing style",
                f"use one of {', '.join(STYLES)}",
            )

    def wrong_endpoint(self, name: str = "endpoint_url") -> ConfigurationError:
        """Return the error for the URL of a service that is no URL. It does not show it: it may have a password."""
        return self._refusal(
            name,
            f"{self.option(name)} is not the URL of a service, or has a user, a password, a query or a fragment",
            f"give http://host:port or https://host:port, and the credentials as {self.option('key')} and "
            f"{self.option('secret')}",
        )

    def _refusal(self, name: str, message: str, advice: str) -> ConfigurationError:
        return ConfigurationError(message, option=self.option(name), advice=advice)


def is_endpoint(url: str) -> bool:
    """Return whether a text is the URL of a service of HTTP, without what may be a secret: boto3 shows it in errors."""
    try:
        parts = urlsplit(url)
        port = parts.port  # raises ValueError for anything but digits
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0 and not re.search("[@?#]", url)


def _without_hadoop(options: Mapping[str, object], prefix: str) -> Mapping[str, object]:
    """Return the options of S3; if `options` has `fs.s3a.*` settings of a Spark session, translate them."""
    settings = {name: value for name, value in options.items() if name.startswith(PREFIX)}
    if settings and len(settings) < len(options):
        raise ConfigurationError(
            f"{prefix}{min(settings)} and options of S3 are both set",
            option=f"{prefix}{min(settings)}",
            advice=f"remove {prefix}fs.s3a.*, or all other options {prefix}*",
        )
    return from_s3a(settings) if settings else options


def _secret(value: object, option: str) -> Secret:
    if isinstance(value, Secret):
        return value
    if isinstance(value, str) and value:
        return Secret(value)
    raise _wrong("a text", option)


def _plain(value: object) -> object:
    """Return an option's value with references resolved, and without white space around a text."""
    revealed = value.reveal() if isinstance(value, Secret) else value
    return revealed.strip() if isinstance(revealed, str) else revealed


def _text(value: object, option: str) -> str:
    text = _plain(value)
    if isinstance(text, str) and text:
        return text
    raise _wrong("a text", option)


def _flag(value: object, option: str) -> bool:
    text = str(_plain(value)).lower()
    if text in ("true", "false"):
        return text == "true"
    raise _wrong("true or false", option)


def _seconds(value: object, option: str) -> float:
    try:
        seconds = float(cast("Any", _plain(value)))
    except (TypeError, ValueError):
        seconds = 0.0
    if seconds > 0:
        return seconds
    raise _wrong("a positive number of seconds", option)


def _count(value: object, option: str) -> int:
    number = _seconds(value, option)
    if number == int(number):
        return int(number)
    raise _wrong("a positive whole number", option)


def _object(value: object, option: str) -> str:
    parsed = _plain(value)
    if isinstance(parsed, str):
        try:
            parsed = json.loads(parsed)
        except ValueError:
            parsed = None
    if isinstance(parsed, Mapping):
        try:
            return json.dumps(parsed, sort_keys=True)
        except TypeError:
            pass
    raise _wrong("a JSON object", option)


def _wrong(what: str, option: str) -> ConfigurationError:
    # The value is not shown: it may be a credential.
    return ConfigurationError(f"{option} is not {what}", option=option, advice=f"give {what}")


_KINDS: Final[Mapping[str, Callable[[object, str], object]]] = {
    "key": _secret, "secret": _secret, "token": _secret, "endpoint_url": _text, "region": _text, "profile": _text,
    "anon": _flag, "requester_pays": _flag, "role_arn": _text, "external_id": _text, "role_session_name": _text,
    "web_identity_token_file": _text, "sts_endpoint_url": _text, "addressing_style": _text, "use_ssl": _flag,
    "connect_timeout": _seconds, "read_timeout": _seconds, "max_pool_connections": _count, "client_kwargs": _object,
    "config_kwargs": _object,
}  # fmt: skip


def _unknown(option_name: str, prefix: str) -> ConfigurationError:
    name = option_name.lower()
    near = [_MEANT[name]] if name in _MEANT else get_close_matches(name, _KINDS, 1)
    return ConfigurationError(
        f"there is no option {prefix}{option_name} for S3" + (f", did you mean {near[0]!r}?" if near else ""),
        option=f"{prefix}{option_name}",
        advice=f"the options are {', '.join(f'{prefix}{known}' for known in _KINDS)}",
    )
