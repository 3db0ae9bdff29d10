# SPDX-License-Identifier: Apache-2.0
"""What an error of a store's library means: the file is gone, access is denied, or the store failed for now.

fsspec's file systems raise `FileNotFoundError` for more than a missing file: that of HTTP raises it for every answer
other than success, that of FTP for every refusal. The answer itself is in the chain of causes.
"""

from __future__ import annotations

import ftplib
import http.client
from collections.abc import Iterator

from forebay.errors import ConfigurationError, ForebayError, RetriableError

_GONE = frozenset({404, 410})
_DENIED = frozenset({401, 403, 407})
# Of the answers below 500, those that a later request may not get. 412 and 416: the file has changed, as the next try
# finds out.
_FOR_NOW = frozenset({408, 409, 412, 416, 421, 423, 425, 429})
_FTP_NOT_THERE = "550"
# Libraries whose errors are about a connection or an answer, though some are no OSError.
_NETWORK = frozenset({"aiohttp", "httpcore", "httpx", "requests", "urllib3"})


def says_gone(error: BaseException) -> bool:
    """Whether a store said that a file or directory is not there.

    An HTTP status decides if there is one: 404 and 410 mean gone, and no other does. Without one it is the store's own
    "not found", unless that only stands for an error of the network.
    """
    found = [_meaning(link) for link in _chain(error)]
    if decided := [one for one in found if one is not None]:
        return decided[0]
    return isinstance(error, FileNotFoundError | NotADirectoryError)


def remote_error(error: Exception, path: str, said: str, doing: str = "read") -> ForebayError:
    """Return the error of ours for what a store's library raised.

    Args:
        error: What it raised; not one that `says_gone`.
        path: What was asked for.
        said: The library's own words, without secrets.
        doing: What was to be done with it: `read`, `delete`, `move`.
    """
    if isinstance(error, ForebayError):
        return error
    status = next((found for link in _chain(error) if (found := _status(link)) is not None), None)
    if isinstance(error, PermissionError) or status in _DENIED or "Credentials" in type(error).__name__:
        return ConfigurationError(
            f"no permission to {doing} {path!r} ({said})",
            option="path",
            advice=f"give credentials that may list and {doing} it, as storage options or as the store's own tools do; "
            "if they have expired, give new ones",
        )
    if _refused(error, status):
        return ConfigurationError(
            f"the store cannot serve {path!r} ({said})", option="path", advice="check the URL and storage options"
        )
    return RetriableError(
        f"the store did not serve {path!r} ({said})", advice="check that the server is up and the network reaches it"
    )


def _refused(error: Exception, status: int | None) -> bool:
    """Whether the store would refuse an equal request later too."""
    if isinstance(error, TimeoutError | ConnectionError):
        return False
    if status is None:
        return isinstance(error, ValueError | TypeError | NotImplementedError | ImportError)
    return status < 500 and status not in _FOR_NOW | _GONE


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        # Not the context: a caller's `except` block, which has nothing to do with the store, puts its own there.
        link = link.__cause__


def _meaning(link: BaseException) -> bool | None:
    """Whether one error of a chain says that the file is gone; None if it says nothing of that."""
    if (status := _status(link)) is not None:
        return status in _GONE
    if isinstance(link, ftplib.Error):
        return str(link).startswith(_FTP_NOT_THERE)
    network = isinstance(link, ConnectionError | TimeoutError | EOFError | http.client.HTTPException)
    return False if network or type(link).__module__.partition(".")[0] in _NETWORK else None


def _status(error: BaseException) -> int | None:
    """Return the HTTP status that an error carries, wherever its library keeps it."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore
        found = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return found if isinstance(found, int) else None
    for holder, name in (
        (error, "status"),
        (error, "status_code"),
        (error, "code"),
        (response, "status_code"),
        (response, "status"),
    ):
        found = getattr(holder, name, None)
        if isinstance(found, int) and 300 <= found < 600:
            return found
    return None
