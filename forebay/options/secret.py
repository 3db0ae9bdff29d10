# SPDX-License-Identifier: Apache-2.0
"""The option type for secrets, which are never shown, and are resolved in the process that uses them."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import unquote, unquote_plus

from forebay.errors import ConfigurationError

REDACTED: Final = "***"
"""Replaces a secret in texts."""

_ENV = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)")
_FILE = re.compile(r"file:(?://)?((?:/|[A-Za-z]:[/\\]).+)", re.DOTALL)


class Secret:
    """A text that is never shown: a password, a token, a key.

    The text is the secret itself, or a reference: `env:NAME` (an environment variable) or `file:/path` (the content of
    a file, without its last line break). `reveal` resolves a reference in the process that needs the secret. `repr`,
    `str` and `format` show only references. Pickling keeps the text, so prefer references, which keep the secret off
    the network.

    Args:
        text: The secret, or a reference. A secret that itself begins with `env:` or `file:` must be given by reference.

    Raises:
        ConfigurationError: The text begins with `env:` or `file:`, but is not a valid reference.
    """

    __slots__ = ("__weakref__", "_revealed", "_text")
    _text: str
    _revealed: str | None

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f"Secret() takes a str, not {type(text).__name__}")
        if text.startswith(("env:", "file:")) and not _ENV.fullmatch(text) and not _FILE.fullmatch(text):
            # The text is not shown: it may be a secret.
            raise ConfigurationError(
                "a secret that begins with 'env:' or 'file:' must be a reference",
                advice="write env:NAME (letters, digits, underscores) or file:/absolute/path",
            )
        object.__setattr__(self, "_text", text)
        object.__setattr__(self, "_revealed", None)
        _live[id(self)] = self

    @property
    def reference(self) -> str | None:
        """The text `env:NAME` or `file:/path`, which may be shown and stored; None if the text is the secret."""
        return self._text if self._text.startswith(("env:", "file:")) else None

    def reveal(self) -> str:
        """Return the secret as a plain str, resolving a reference. Pass it to the client and keep no copy.

        Raises:
            ConfigurationError: The environment variable or the file of a reference does not exist.
        """
        if match := _ENV.fullmatch(self._text):
            revealed = _from_environment(match.group(1), self._text)
        elif match := _FILE.fullmatch(self._text):
            revealed = _from_file(match.group(1), self._text)
        else:
            return self._text
        # `redact` must know the value even after the file has changed. It is never pickled.
        object.__setattr__(self, "_revealed", revealed)
        return revealed

    def __repr__(self) -> str:
        return f"Secret({self.reference or REDACTED!r})"

    def __str__(self) -> str:
        return self.reference or REDACTED

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Secret cannot be changed")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("a Secret cannot be changed")

    def __eq__(self, other: object) -> bool:
        return self._text == other._text if isinstance(other, Secret) else NotImplemented

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __bool__(self) -> bool:
        return bool(self._text)

    def __reduce__(self) -> tuple[type[Secret], tuple[str]]:
        return (Secret, (self._text,))


_live: weakref.WeakValueDictionary[int, Secret] = weakref.WeakValueDictionary()


def live_secrets() -> list[str]:
    """Return the values of all live secrets, for `redact`.

    The value of a reference is the one that `reveal` returned last; a reference that was never revealed has none.
    """
    alive = [secret for reference in _live.valuerefs() if (secret := reference()) is not None]
    texts = [secret._revealed if secret.reference else secret._text for secret in alive]  # noqa: SLF001 - its own module
    return [text for text in texts if text]


def _from_environment(name: str, reference: str) -> str:
    value = os.environ.get(name)
    if value is None:
        raise ConfigurationError(
            f"the environment variable {name} of the secret {reference} is not set in this process",
            advice=f"set {name} where the secret is used: on Spark that is every worker, and the driver too",
        )
    return value


def _from_file(path: str, reference: str) -> str:
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"the file of the secret {reference} cannot be read: {error.strerror or type(error).__name__}",
            advice=f"put a readable file at {path} where the secret is used: on Spark that is every worker",
        ) from error
    text = _decoded(content)
    if text is None:
        raise ConfigurationError(
            f"the file of the secret {reference} is not UTF-8 text", advice="write the secret as UTF-8 text"
        )
    return text.removesuffix("\n").removesuffix("\r")


def _decoded(content: bytes) -> str | None:
    # The decoding error contains the secret. Nothing is raised in the handler, so no error chain contains it.
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return None


_SENSITIVE = re.compile(
    r"secret|passw(?:or)?d|passphrase|token|credential|(?:access|private|api)[._-]?key|jaas|\.key$", re.IGNORECASE
)


def is_sensitive(key: str) -> bool:
    """Return whether a key of a map, such as `kafka.ssl.key.password`, names a secret."""
    return _SENSITIVE.search(key) is not None


# -- Finds secrets inside longer texts: passwords in URLs and DSNs, tokens in queries, keys in JSON.
#
# They are found separately because a client may parse a URL or DSN and put only the password into an error text.


# `scheme://user:password@host`, `//user:password@host`; the last @ before the path counts.
_BEFORE = r"(?<![^\s:=,(\[{<'\"])"
_USER_INFO = re.compile(rf"({_BEFORE}//[^\s/?#:@'\"<>]*:)([^\s/?#'\"<>]+)(?=@)")
# The same with a slash in the password, or an @ in the user; the last @ counts, so names of the path may be hidden too.
# Digits before a slash or a comma are a port, but S3 has none. The limit keeps the search linear. Of a known scheme the
# slashes may be one or three: `pathlib` writes `http:/user:…`.
_USER = r"(?!\[|arn:)[^\s/?#:'\"<>]*:"
_SLASHED = re.compile(
    rf"((?:(?<=s3:)|(?<=s3[an]:))/+{_USER}|(?:{_BEFORE}//|(?:(?<=http:)|(?<=https:)|(?<=ftp:))/+){_USER}(?!\d*[/,;]))"
    r"([^\s?#'\"<>]{1,300})(?=@)",
    re.IGNORECASE,
)
# What `http.client` says about `user:password@host`.
_NO_PORT = re.compile(r"(nonnumeric port: ['\"])([^\s'\"]+)(?=@)")
_TOKEN_AS_USER = re.compile(r"(https?:/+)([^\s/?#:'\"<>]+)(?=@)", re.IGNORECASE)
_ORACLE = re.compile(r"(?:^|jdbc:oracle:\w+:)\w+/([^\s/@]+)@", re.IGNORECASE)
_QUERY = re.compile(r"([?&#](?:amp;)?([\w.\-]+)=)([^&\s'\"#<>)\]]+)")
# `password='a b'` (libpq), `PWD={a;b}` (ODBC), `password="a"` (JAAS, ADO), `;password=a b;` (JDBC), `password=a`.
_PAIR = re.compile(
    r"((?:^|[\s;,(\[{'\"?&])([A-Za-z][\w.\-]*)\s*=\s*)"
    r"('(?:\\.|''|[^'\\])*'|\"(?:\\.|\"\"|[^\"\\])*\"|\{(?:\}\}|[^}])*\}|"
    r"(?:\\.|[^;&'\"\\])*?(?=\s+[\w.\-]+\s*=|[;&'\"]|$))",
    re.DOTALL,
)
_AUTHORIZATION = re.compile(r"(?:Authorization:\s*)?(?:Bearer|Basic|Token)\s+(\S+)", re.IGNORECASE)
_BASIC = re.compile(r"\b(Basic\s+)([A-Za-z0-9+/]{6,}={0,2})", re.IGNORECASE)
_END = re.compile(r"[\s,;&)]")
# Names of secrets in URLs and DSNs, too common in other contexts.
_NAMES = re.compile(r"(?:auth|pass|pw|pwd|sas|sig)|.*(?:signature|account[_-]?key)", re.IGNORECASE)


def mask_users(text: str) -> str:
    """Return a text with `***` instead of each password before the host of a URL, and of each user of HTTP alone.

    The user of `https://user@host` may be a token.
    """
    if "@" not in text:
        return text
    for pattern in (_SLASHED, _USER_INFO, _TOKEN_AS_USER):
        text = pattern.sub(rf"\g<1>{REDACTED}", text)
    return text


def mask_urls(text: str) -> str:
    """Return a text with `***` instead of each password and token in its URLs.

    Clients also write a URL from its path or its host on: `/cb?token=…`, `//user:password@host`.
    """
    if "@" in text:
        text = mask_users(text)
        text = _NO_PORT.sub(rf"\g<1>{REDACTED}", text)
    return _QUERY.sub(_masked, text) if "=" in text else text


def mask_headers(text: str) -> str:
    """Return a text with `***` instead of the user and password of each `Basic` header.

    A word is taken for them only if it is the Base64 of a user, a colon and a password.
    """
    return _BASIC.sub(lambda match: f"{match[1]}{REDACTED}" if [*_basic(match[2])] else match[0], text)


def mask_values(text: str) -> str:
    """Return an option's text or `repr` with `***` instead of each password and token in its URLs, DSNs and headers."""
    text = mask_headers(mask_urls(text))
    return _PAIR.sub(_masked, text) if "=" in text else text


def secrets_in(text: str, *, secret: bool) -> Iterator[str]:
    """Yield the secrets inside the text of an option, both URL-encoded and decoded.

    Args:
        text: The text of the option.
        secret: Whether the whole text is secret. If so, parts that are only likely to be secret are included.
    """
    texts: list[str] = []
    if "@" in text:
        slashed = [match[2] for match in _SLASHED.finditer(text)]
        # A client takes what is before the slash for a port, and shows it.
        texts += slashed + [part.partition("/")[0] for part in slashed]
        texts += [match[2] for match in _USER_INFO.finditer(text)]
    if "=" in text:
        texts += [_plain(match[3]) for match in _PAIR.finditer(text) if _names_secret(match[2])]
        texts += [match[3] for match in _QUERY.finditer(text) if _names_secret(match[2])]
    if secret:
        texts += _likely(text)
    for part in texts:
        if part and part != REDACTED:
            yield from {part, unquote(part), unquote_plus(part), _END.split(part, maxsplit=1)[0]}


def _likely(text: str) -> Iterator[str]:
    for word in text.split():  # unencoded passwords
        yield word.partition("://")[2].partition(":")[2].rpartition("@")[0]
    yield from (match[1] for match in _ORACLE.finditer(text))
    yield from (match[2] for match in _TOKEN_AS_USER.finditer(text))
    if match := _AUTHORIZATION.fullmatch(text.strip()):
        yield match[1]
        yield from _basic(match[1])
    if text.lstrip().startswith(("{", "[")):
        try:
            yield from _of_json(json.loads(text), hidden=False)
        except (ValueError, RecursionError):
            return


def _of_json(value: object, *, hidden: bool) -> Iterator[str]:
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from _of_json(entry, hidden=hidden or _names_secret(key))
    elif isinstance(value, list):
        for entry in value:
            yield from _of_json(entry, hidden=hidden)
    elif isinstance(value, str):
        if hidden:
            yield value
        yield from secrets_in(value, secret=hidden)


def _basic(credentials: str) -> Iterator[str]:
    """Yield the password of a `Basic` header, if that is what the text is."""
    try:
        decoded = base64.b64decode(credentials, validate=True)
    except binascii.Error:
        return
    try:
        _, colon, password = decoded.decode().partition(":")
    except UnicodeDecodeError:  # any bytes are Latin-1, so here more must tell that it is a pair
        pair = decoded.decode("latin-1")
        user, colon, password = pair.partition(":")
        if not (user and user.isascii() and pair.isprintable()):
            return
    if colon:
        yield password


def _names_secret(key: str) -> bool:
    return is_sensitive(key) or _NAMES.fullmatch(key) is not None


def _masked(match: re.Match[str]) -> str:
    return f"{match[1]}{REDACTED}" if match[3] and _names_secret(match[2]) else match[0]


def _plain(value: str) -> str:
    """Return a quoted value without its quotes and escapes."""
    if len(value) >= 2 and value[0] in "'\"" and value[-1] == value[0]:
        return re.sub(r"\\(.)", r"\1", value[1:-1].replace(value[0] * 2, value[0]), flags=re.DOTALL)
    if len(value) >= 2 and value[0] == "{" and value[-1] == "}":
        return value[1:-1].replace("}}", "}")
    return re.sub(r"\\(.)", r"\1", value, flags=re.DOTALL).rstrip()
