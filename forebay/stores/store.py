# SPDX-License-Identifier: Apache-2.0
"""The protocol of a store, by which listings and readers access a tree of files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import BinaryIO, NamedTuple, Protocol, Self

from forebay.options.secret import Secret, is_sensitive
from forebay.stores.file_status import FileStatus

# -- The credentials and settings of a store, which are sent to readers and never shown.


_MIN_SECRET_LENGTH = 4
# Addresses are not secret, and an error of a connection needs them.
_ADDRESSES = frozenset({"endpoint", "endpoint_url", "region", "region_name", "host", "port", "project", "account_name"})

# Words in the names of numeric arguments. Digits elsewhere are a name or a credential.
_NUMBERS = re.compile(
    r"(?:^|_)(?:blocksize|concurrency|connections|count|expiry|level|limit|max|paths|port|retries|retry|seconds|size|"
    r"time|timeout|tries|ttl|workers)(?:_|$)",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?", re.ASCII)
_WORDS = {"true": True, "false": False}


class StorageOptions(Mapping[str, object]):
    """Keyword arguments for a store (`key`, `secret`, `endpoint_url` …), read-only and picklable.

    Any value, also in a nested mapping, may be a secret. So `repr` shows only the names.
    """

    def __init__(self, values: Mapping[str, object] | None = None) -> None:
        self._values: dict[str, object] = dict(values or {})

    @classmethod
    def of_secrets(cls, values: Mapping[str, Secret]) -> Self:
        """Return the storage options of a source. References to secrets are sent unresolved, and resolved on access."""
        return cls(values)

    def __getitem__(self, name: str) -> object:
        value = self._values[name]
        return typed_argument(name, value.reveal()) if isinstance(value, Secret) else value

    def unresolved(self, name: str) -> object:
        """Return the value of an option as the user gave it: a `Secret`, or a typed value."""
        return self._values[name]

    def without(self, prefix: str) -> StorageOptions:
        """Return the options whose names do not begin with a prefix."""
        return StorageOptions({name: value for name, value in self._values.items() if not name.startswith(prefix)})

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"StorageOptions({', '.join(f'{name}=…' for name in sorted(self._values))})"

    def __hash__(self) -> int:
        return hash(tuple(sorted(self._values)))

    def redact(self, text: str) -> str:
        """Return the error text of another library, with the values of these options replaced, except addresses."""
        for secret in sorted(_secrets(dict(self)), key=len, reverse=True):
            text = text.replace(secret, "…")
        return text


def typed_argument(name: str, text: str) -> object:
    """Return the typed value of a store's argument: parsed JSON or, for names that are not secret, a bool or a number.

    Digits become a number only for names of numeric options. Any other value stays text, also with leading zeros.
    """
    if text.lstrip().startswith(("{", "[")):
        try:
            return json.loads(text)
        except ValueError:
            return text
    if is_sensitive(name):
        return text
    if text.strip().lower() in _WORDS:
        return _WORDS[text.strip().lower()]
    if _NUMBERS.search(name) and _NUMBER.fullmatch(text.strip()):
        return json.loads(text)
    return text


NO_OPTIONS = StorageOptions()


def _secrets(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            if name not in _ADDRESSES:
                yield from _secrets(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _secrets(item)
    elif isinstance(value, str | int | float) and len(str(value)) >= _MIN_SECRET_LENGTH:
        yield str(value)


class Directory(NamedTuple):
    """The path of a directory that `stat` found."""

    path: str


class Children(NamedTuple):
    """The entries directly in a directory: the paths of its directories, and its files."""

    directories: list[str]
    files: list[FileStatus]


class Store(Protocol):
    """A tree of files. Used by one thread at a time. Each listing creates a new store, so that no cache is stale.

    All methods raise ConfigurationError if a permission is missing or the store lacks the operation. They raise
    RetriableError if the store does not answer.
    """

    @property
    def keeps_empty_directories(self) -> bool:
        """Whether a directory may be empty.

        False for an object store, in which a directory exists only as long as it contains files.
        """

    @property
    def paths_are_keys(self) -> bool:
        """Whether `a//b`, `a/./b` and `a/b` are three files, as in an object store."""

    def stat(self, path: str) -> FileStatus | Directory | None:
        """Return the file or directory at a path; None if nothing is there. Anything else raises ConfigurationError."""

    def children(self, path: str, keep: Callable[[str], bool]) -> Children | None:
        """Return the entries of a directory; None if it does not exist.

        Skips entries whose name `keep` rejects. A broken or circular link, and a name that is not UTF-8, raise
        ConfigurationError. An entry that disappears during the call raises RetriableError.
        """

    def walk(self, path: str, keep: Callable[[str], bool], after: str = "") -> Sequence[FileStatus] | None:
        """Return all files below a directory, at any depth; None if the store can only list with `children`.

        With `after`, return only files whose key sorts after it. Callers pass `after` only for S3.

        Skips files and directories whose name `keep` rejects, except the names "", "." and "..", which only keys have.
        """

    def open(self, path: str, file: FileStatus | None = None, read_to: int | None = None) -> BinaryIO:
        """Open a file for reading, seekable.

        Args:
            path: The file.
            file: The status of the file when it was listed, if known. A store that pins versions reads only the version
                of this status.
            read_to: The byte at which the caller expects to stop. Bytes from there on are not fetched ahead.

        Raises:
            FileNotFoundError: There is no such file, and `file` was not given.
        """

    def pins(self, file: FileStatus) -> bool:
        """Return whether the store pins `file`: each read fails if the file is no longer the listed version."""

    def delete(self, file: FileStatus) -> bool:
        """Delete a file that was read. A newer file at its path is kept, if the store can tell the two apart.

        Return whether the file was deleted; False if it no longer exists or was replaced.
        """

    def move(self, file: FileStatus, target: str) -> bool:
        """Move a file that was read to `target`: create the target's directories, and replace a file at the target.

        A newer file at the file's path is kept, as in `delete`. Return whether the file was moved.
        """
