# SPDX-License-Identifier: Apache-2.0
"""Parses `sasl.jaas.config`, the option of Java's clients for user name and password."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from forebay.errors import ConfigurationError
from forebay.options import Secret

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


def parse_jaas(given: str | Secret) -> Login:
    """Parse `…PlainLoginModule required username="alice" password="…";`, or the same with `ScramLoginModule`.

    Raises:
        ConfigurationError: The text is invalid. The error does not quote the text, because it may hold a password.
    """
    tokens = _tokens(given.reveal() if isinstance(given, Secret) else given)
    if len(tokens) < 2:
        raise _wrong("the value has no login module")
    module = tokens[0].rpartition(".")[2]
    if module not in ("PlainLoginModule", "ScramLoginModule"):
        known = module in _OTHER_MODULES  # another word may be a password: do not show it
        raise _wrong(
            f"the login module {module!r} exists only in Java" if known else "its login module is not supported",
            _OTHER_MODULES.get(module),
        )
    rest = tokens[2:]
    if rest and rest[-1] == ";":
        rest.pop()
    entries: dict[str, str] = {}
    while rest:
        if len(rest) < 3 or rest[1] != "=":
            raise _wrong("the value has entries that are not of the form name=value")
        entries[rest[0]] = rest[2]
        rest = rest[3:]
    missing = [name for name in ("username", "password") if not entries.get(name)]
    if missing:
        raise _wrong(f"the value has no {' and no '.join(missing)}")
    if entries.keys() - {"username", "password"}:  # do not show them: they may be parts of a password
        raise _wrong("the value has entries besides username and password")
    return Login(entries["username"], _secret(entries["password"]))


def _secret(password: str) -> Secret:
    try:
        return Secret(password)
    except ConfigurationError:
        pass
    raise _wrong(
        "the password begins with env: or file:, like a reference to a secret",
        f"set the whole value of {OPTION} by file:/path or env:NAME",
    )


def _tokens(text: str) -> list[str]:
    found, at, text = [], 0, text.strip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _wrong("a quotation mark is missing")
        double, single, sign, word = match.groups()
        quoted = double if double is not None else single
        found.append(re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else sign or word)
        at = match.end()
    return found


def _wrong(why: str, advice: str | None = None) -> ConfigurationError:
    return ConfigurationError(
        f"{OPTION} cannot be used: {why}",
        option=OPTION,
        advice=advice
        or 'write org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="…"; '
        "or the same with org.apache.kafka.common.security.scram.ScramLoginModule",
    )
