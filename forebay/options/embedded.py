# SPDX-License-Identifier: Apache-2.0
"""Finds secrets inside longer texts: passwords in URLs and DSNs, tokens in queries, keys in JSON.

They are found separately because a client may parse a URL or DSN and put only the password into an error text.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator
from urllib.parse import unquote, unquote_plus

from forebay.options.secret import REDACTED, is_sensitive

# `scheme://user:password@host`; the last @ before the path counts.
_USER_INFO = re.compile(r"(://[^\s/?#:@'\"<>]*:)([^\s/?#'\"<>]+)(?=@)")
_TOKEN_AS_USER = re.compile(r"(https?://)([^\s/?#:@'\"<>]+)(?=@)", re.IGNORECASE)
_ORACLE = re.compile(r"(?:^|jdbc:oracle:\w+:)\w+/([^\s/@]+)@", re.IGNORECASE)
_QUERY = re.compile(r"([?&]([\w.\-]+)=)([^&\s'\"#<>)\]]+)")
# `password='a b'` (libpq), `PWD={a;b}` (ODBC), `password="a"` (JAAS, ADO), `;password=a b;` (JDBC), `password=a`.
_PAIR = re.compile(
    r"((?:^|[\s;,(\[{'\"?&])([A-Za-z][\w.\-]*)\s*=\s*)"
    r"('(?:\\.|''|[^'\\])*'|\"(?:\\.|\"\"|[^\"\\])*\"|\{(?:\}\}|[^}])*\}|"
    r"(?:\\.|[^;&'\"\\])*?(?=\s+[\w.\-]+\s*=|[;&'\"]|$))",
    re.DOTALL,
)
_AUTHORIZATION = re.compile(r"(?:Authorization:\s*)?(?:Bearer|Basic|Token)\s+(\S+)", re.IGNORECASE)
_END = re.compile(r"[\s,;&)]")
# Names of secrets in URLs and DSNs, too common in other contexts.
_NAMES = re.compile(r"(?:auth|pass|pw|pwd|sas|sig)|.*(?:signature|account[_-]?key)", re.IGNORECASE)


def mask_urls(text: str) -> str:
    """Return a text with `***` instead of each password and token in its URLs."""
    if "://" not in text:
        return text
    text = _USER_INFO.sub(rf"\g<1>{REDACTED}", text)
    return _QUERY.sub(_masked, text)


def mask_values(text: str) -> str:
    """Return an option's text or `repr` with `***` instead of each password and token in its URLs and DSNs."""
    text = mask_urls(text)
    return _PAIR.sub(_masked, text) if "=" in text else text


def secrets_in(text: str, *, secret: bool) -> Iterator[str]:
    """Yield the secrets inside the text of an option, both URL-encoded and decoded.

    Args:
        text: The text of the option.
        secret: Whether the whole text is secret. If so, parts that are only likely to be secret are included.
    """
    found: list[str] = []
    if "@" in text:
        found += [match[2] for match in _USER_INFO.finditer(text)]
    if "=" in text:
        found += [_plain(match[3]) for match in _PAIR.finditer(text) if _names_secret(match[2])]
        found += [match[3] for match in _QUERY.finditer(text) if _names_secret(match[2])]
    if secret:
        found += _likely(text)
    for one in found:
        if one and one != REDACTED:
            yield from {one, unquote(one), unquote_plus(one), _END.split(one, maxsplit=1)[0]}


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
    try:
        _, colon, password = base64.b64decode(credentials, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
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
