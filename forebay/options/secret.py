# SPDX-License-Identifier: Apache-2.0
"""The option type for secrets, which are never shown, and are resolved in the process that uses them."""

from __future__ import annotations

import os
import re
import weakref
from pathlib import Path
from typing import Final

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
            found = _from_environment(match.group(1), self._text)
        elif match := _FILE.fullmatch(self._text):
            found = _from_file(match.group(1), self._text)
        else:
            return self._text
        # `redact` must know the value even after the file has changed. It is never pickled.
        object.__setattr__(self, "_revealed", found)
        return found

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
    alive = [secret for found in _live.valuerefs() if (secret := found()) is not None]
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
