# SPDX-License-Identifier: Apache-2.0
"""Sorts the failures of HTTP requests into those that pass and those that stay, for any client."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.client import HTTPException, InvalidURL
from typing import Any, Final
from urllib.error import HTTPError

from forebay.errors import ConfigurationError, ForebayError, RetriableError

_TRANSIENT: Final = (OSError, HTTPException, json.JSONDecodeError, EOFError, zlib.error)
"""Exceptions of the standard library: no connection, a time-out, an answer that is cut or that is no HTTP.

A cut body is an `IncompleteRead`, which is no `OSError`; if its length is unknown, the JSON or gzip in it ends early.
"""

_CLIENTS: Final = {
    "httpx": {"TransportError", "DecodingError", "StreamError"},
    "requests": {"RequestException"},
    "urllib3": {"HTTPError"},
}
"""Base classes of the exceptions of other clients, by module. They are compared by name: nothing is imported."""

_LASTING: Final = {
    "http": {"InvalidURL"},
    "httpx": {"UnsupportedProtocol", "InvalidURL"},
    "requests": {"InvalidURL", "MissingSchema", "InvalidSchema", "InvalidHeader", "InvalidProxyURL"},
    "urllib3": {"LocationParseError", "URLSchemeUnknown"},
}
"""Exceptions of clients that no retry helps, although they inherit from one that passes."""

_PASSING: Final = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
_REFUSED: Final = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}


@contextmanager
def http_errors(request: str, *, split: str | None = None, option: str | None = None) -> Iterator[None]:
    """Raise the typed error for a failed HTTP request in the block. Called by connectors, around one request.

    It knows `urllib` and `http.client`, and `requests`, `httpx` and `urllib3` by name, without importing them. A
    failure that passes becomes a `RetriableError`: no connection, a time-out, an answer that is cut or cannot be
    decoded, and the status codes 408, 425, 429 and from 500 on, with their `Retry-After`. Read the body inside the
    block.

    Args:
        request: What was asked for, in a few words, such as the path. It must not hold a secret.
        split: The split that is read, if the request is for one.
        option: The option that holds the credentials, which the error for 401 and 403 names.

    Raises:
        RetriableError: The failure may pass.
        ConfigurationError: The service refuses the request (another status code), or the address is no URL.
    """
    try:
        yield
    except ForebayError:
        raise
    except Exception as error:
        typed = _typed(error, request, split, option)
        if typed is None:
            raise
        if isinstance(error, HTTPError):
            error.close()  # it is the response as well, and an open one is a leak
        raise typed from error


def _typed(error: Exception, request: str, split: str | None, option: str | None) -> ForebayError | None:
    """Return the typed error for an exception; None for one that is no failure of a request, such as a bug."""
    text = f"{request}: {type(error).__name__}: {error}"
    status, headers = _answer(error)
    if status is not None:
        text = f"{request}: the service answered with the status {status}"
        if status in _PASSING or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return RetriableError(text, split=split, retry_after=_retry_after(headers))
        advice = "check the address and the rights of the user" if option is None else f"check the option {option}"
        return ConfigurationError(text, split=split, option=option if status in _REFUSED else None, advice=advice)
    if isinstance(error, InvalidURL) or _is_one_of(error, _LASTING):
        return ConfigurationError(text, split=split, advice="correct the address of the service")
    if isinstance(error, _TRANSIENT) or _is_one_of(error, _CLIENTS):
        return RetriableError(text, split=split)
    return None


def _answer(error: Exception) -> tuple[int | None, Mapping[str, Any]]:
    """Return the status code and the headers of the answer that an exception reports; None if it reports none."""
    if isinstance(error, HTTPError):
        return error.code, dict(error.headers or {})
    if not (_is_one_of(error, _CLIENTS) or _is_one_of(error, {"httpx": {"HTTPStatusError"}})):
        return None, {}
    response: Any = None
    with suppress(Exception):  # httpx raises where there is no response
        response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    failed = isinstance(status, int) and status >= HTTPStatus.BAD_REQUEST
    return (status, getattr(response, "headers", {})) if failed else (None, {})


def _retry_after(headers: Mapping[str, Any]) -> str | None:
    return next((str(value) for name, value in headers.items() if name.lower() == "retry-after"), None)


def _is_one_of(error: Exception, classes: Mapping[str, set[str]]) -> bool:
    return any(kind.__name__ in classes.get(kind.__module__.partition(".")[0], ()) for kind in type(error).__mro__)
