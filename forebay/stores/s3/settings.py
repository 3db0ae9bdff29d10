# SPDX-License-Identifier: Apache-2.0
"""The options of S3 (`storage.*`, `stateStorage.*`), checked and typed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final, Self, cast

from forebay.errors import ConfigurationError
from forebay.options.secret import Secret
from forebay.stores.s3 import hadoop
from forebay.stores.storage_options import StorageOptions

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
        for given, value in _without_hadoop({name: options.unresolved(name) for name in options}, prefix).items():
            name = given.lower()
            if name not in _KINDS:
                raise _unknown(given, prefix)
            values[name] = _KINDS[name](value, f"{prefix}{given}")
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
        for one, other in (("key", "secret"), ("secret", "key"), ("token", "key")):
            if getattr(self, one) and not getattr(self, other):
                raise self._refusal(
                    one, f"{self.option(one)} needs {self.option(other)} too", "set both options, or neither"
                )
        for name in ("external_id", "role_session_name", "web_identity_token_file", "sts_endpoint_url"):
            if getattr(self, name) and not self.role_arn:
                raise self._refusal(
                    name, f"{self.option(name)} needs {self.option('role_arn')} too", f"set {self.option('role_arn')}"
                )
        if self.addressing_style is not None and self.addressing_style not in STYLES:
            raise self._refusal(
                "addressing_style",
                f"{self.addressing_style!r} is not an addressing style",
                f"use one of {', '.join(STYLES)}",
            )

    def _refusal(self, name: str, message: str, advice: str) -> ConfigurationError:
        return ConfigurationError(message, option=self.option(name), advice=advice)


def _without_hadoop(given: Mapping[str, object], prefix: str) -> Mapping[str, object]:
    """Return the options of S3; if `given` has `fs.s3a.*` settings of a Spark session, translate them."""
    settings = {name: value for name, value in given.items() if name.startswith(hadoop.PREFIX)}
    if settings and len(settings) < len(given):
        raise ConfigurationError(
            f"{prefix}{min(settings)} and options of S3 are both set",
            option=f"{prefix}{min(settings)}",
            advice=f"remove {prefix}fs.s3a.*, or all other options {prefix}*",
        )
    return hadoop.from_s3a(settings) if settings else given


def _secret(value: object, option: str) -> Secret:
    if isinstance(value, Secret):
        return value
    if isinstance(value, str) and value:
        return Secret(value)
    raise _wrong("a text", option)


def _plain(value: object) -> object:
    """Return an option's value with references resolved, and without white space around a text."""
    found = value.reveal() if isinstance(value, Secret) else value
    return found.strip() if isinstance(found, str) else found


def _text(value: object, option: str) -> str:
    found = _plain(value)
    if isinstance(found, str) and found:
        return found
    raise _wrong("a text", option)


def _flag(value: object, option: str) -> bool:
    found = str(_plain(value)).lower()
    if found in ("true", "false"):
        return found == "true"
    raise _wrong("true or false", option)


def _seconds(value: object, option: str) -> float:
    try:
        found = float(cast("Any", _plain(value)))
    except (TypeError, ValueError):
        found = 0.0
    if found > 0:
        return found
    raise _wrong("a positive number of seconds", option)


def _count(value: object, option: str) -> int:
    found = _seconds(value, option)
    if found == int(found):
        return int(found)
    raise _wrong("a positive whole number", option)


def _object(value: object, option: str) -> str:
    found = _plain(value)
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except ValueError:
            found = None
    if isinstance(found, Mapping):
        try:
            return json.dumps(found, sort_keys=True)
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


def _unknown(given: str, prefix: str) -> ConfigurationError:
    name = given.lower()
    near = [_MEANT[name]] if name in _MEANT else get_close_matches(name, _KINDS, 1)
    return ConfigurationError(
        f"there is no option {prefix}{given} for S3" + (f", did you mean {near[0]!r}?" if near else ""),
        option=f"{prefix}{given}",
        advice=f"the options are {', '.join(f'{prefix}{known}' for known in _KINDS)}",
    )
