# SPDX-License-Identifier: Apache-2.0
"""Classifies errors of fsspec stores: the file does not exist, access is denied, or the store failed temporarily.

fsspec raises `FileNotFoundError` also for other errors: with HTTP for every answer except success, with FTP for every
refusal. The actual answer of the server is in the chain of the error's causes.
"""

from __future__ import annotations

import ftplib
import http.client
from collections.abc import Iterator

from forebay.errors import ConfigurationError, ForebayError, RetriableError

_GONE = frozenset({404, 410})
_DENIED = frozenset({401, 403, 407})
# Answers below 500 that are temporary. After 412 and 416 the next try finds that the file has changed.
_TEMPORARY = frozenset({408, 409, 412, 416, 421, 423, 425, 429})
_FTP_NOT_THERE = "550"
# Libraries whose errors are those of a connection or an answer, though not all are an OSError.
_NETWORK = frozenset({"aiohttp", "httpcore", "httpx", "requests", "urllib3"})


def says_gone(error: BaseException) -> bool:
    """Return whether an error means that a file or directory does not exist.

    An HTTP status means this only if it is 404 or 410. Without a status, a FileNotFoundError or NotADirectoryError
    means this, unless a network error caused it.
    """
    found = [_meaning(link) for link in _chain(error)]
    if decided := [one for one in found if one is not None]:
        return decided[0]
    return isinstance(error, FileNotFoundError | NotADirectoryError)


def remote_error(error: Exception, path: str, said: str, doing: str = "read") -> ForebayError:
    """Return the ForebayError for an error of a store's library for which `says_gone` is false.

    `said` is the library's error text without secrets, `doing` the failed request: `read`, `delete` or `move`.
    """
    if isinstance(error, ForebayError):
        return error
    status = next((found for link in _chain(error) if (found := _status(link)) is not None), None)
    if isinstance(error, PermissionError) or status in _DENIED or "Credentials" in type(error).__name__:
        return ConfigurationError(
            f"no permission to {doing} {path!r} ({said})",
            option="path",
            advice=f"set credentials with the permission to list and {doing} it, as storage options or as the store's "
            "own tools read them; replace expired credentials",
        )
    if _refused(error, status):
        return ConfigurationError(
            f"the store refuses to {doing} {path!r} ({said})", option="path", advice="check the URL and storage options"
        )
    return RetriableError(
        f"could not {doing} {path!r} in its store ({said})",
        advice="check that the server is up and the network reaches it",
    )


def _refused(error: Exception, status: int | None) -> bool:
    """Return whether the store would refuse the same request again, so that a retry is useless.

    `status` is the HTTP status of the error; None if it has none.
    """
    if isinstance(error, TimeoutError | ConnectionError):
        return False
    if status is None:
        return isinstance(error, ValueError | TypeError | NotImplementedError | ImportError)
    return status < 500 and status not in _TEMPORARY | _GONE


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        # The context may be an unrelated error of the caller.
        link = link.__cause__


def _meaning(link: BaseException) -> bool | None:
    """Return whether one error of a chain of causes means that the file does not exist; None if it does not say."""
    if (status := _status(link)) is not None:
        return status in _GONE
    if isinstance(link, ftplib.Error):
        return str(link).startswith(_FTP_NOT_THERE)
    network = isinstance(link, ConnectionError | TimeoutError | EOFError | http.client.HTTPException)
    return False if network or type(link).__module__.partition(".")[0] in _NETWORK else None


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of an error from any library; None if the error has no status."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return status if isinstance(status, int) else None
    names = [
        (error, "status"),
        (error, "status_code"),
        (error, "code"),
        (response, "status_code"),
        (response, "status"),
    ]
    found = (getattr(owner, name, None) for owner, name in names)  # lazily: aiohttp deprecates `code`
    return next((status for status in found if isinstance(status, int) and 300 <= status < 600), None)
