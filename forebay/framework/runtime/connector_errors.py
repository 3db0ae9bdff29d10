# SPDX-License-Identifier: Apache-2.0
"""Typed errors from a connector's exceptions: they name source, call, split and position; those of HTTP are sorted."""

from __future__ import annotations

import json
import os
import socket
import traceback
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import FrozenInstanceError
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from traceback import walk_tb
from typing import Any, Final
from urllib.error import HTTPError, URLError

from forebay.errors import ConfigurationError, FatalError, ForebayError, RetriableError
from forebay.framework.enumerator import SourceEvent
from forebay.options import redact

MISSING_MODULE: Final = (
    "install it on every worker (without Spark: on this machine), or send it with spark.addArtifacts or --py-files; "
    "import your own modules at the top of the source's module, not inside functions, so that they are sent with it: "
    "a module that holds what cannot be pickled, such as a lock, is not sent"
)
"""The next step in the error for a missing module, in any process."""

_PROGRAMMING: Final = (
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    SyntaxError,
    TypeError,
)
"""Exceptions that show a mistake in the connector's code; includes their subclasses, such as KeyError."""
_FOREBAY: Final = str(Path(__file__).absolute().parents[2]) + os.sep


class ConcealedError(Exception):
    """Replaces an exception whose text contained a secret; has its traceback, and its text without the secret."""

    def __init__(self, text: str, original: type[BaseException] = Exception) -> None:
        super().__init__(text)
        self.original = original


def is_programming_error(error: BaseException) -> bool:
    """Whether an exception shows a mistake in the connector's code, so that neither a retry nor a new reader helps."""
    return issubclass(getattr(error, "original", type(error)), _PROGRAMMING)


def connector_error(
    error: BaseException, *, source: str, doing: str, split: str | None = None, position: object = None
) -> ForebayError:
    """Return a `FatalError` whose text has the exception's type and message, and whose cause is the exception.

    If the exception's text contains a secret, the cause is a `ConcealedError`. `doing` names the connector's method
    that failed, such as `schema()`. A `ForebayError` is returned itself, with missing labels filled in. Any thread.
    """
    shown = without_secrets(error)
    if isinstance(shown, ForebayError):
        return shown.with_context(source=source, split=split, position=None if position is None else str(position))
    wrapped = FatalError(
        f"{doing} failed with {type(error).__name__}: {redact(_text(error))}",
        source=source,
        split=split,
        position=position,
        advice=redact(_advice(error)),
    )
    wrapped.__cause__ = shown
    return wrapped


def _advice(error: BaseException) -> str:
    place = _place(error)
    if isinstance(error, ModuleNotFoundError):
        return MISSING_MODULE
    if isinstance(error, FrozenInstanceError):
        return (
            f"keep no state on self{place and f' as {place} does'}: use local variables in read(), positions for "
            "progress, and a method with @forebay.cached for a client"
        )
    passing = "if the failure is temporary, raise forebay.RetriableError in the connector, so that it is retried"
    if is_programming_error(error):
        return f"correct the connector{place and f' at {place}'}; {passing}"
    return f"see the cause{place and f', at {place}'}; {passing}"


def _place(error: BaseException) -> str:
    """Return file, line and function of the innermost call in the connector's own code; "" without a traceback.

    The connector's code is in the folder of the first function that forebay called; client libraries are elsewhere.
    """
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if not frame.filename.startswith((_FOREBAY, "<string>", "<frozen"))]
    if not outside:  # one of forebay's own sources
        return f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}()" if frames else ""
    home = os.path.dirname(outside[0].filename)
    own = [frame for frame in outside if frame.filename.startswith(home)]
    last = next((frame for frame in reversed(own) if "site-packages" not in frame.filename[len(home) :]), outside[0])
    return f"{last.filename}:{last.lineno} in {last.name}()"


def without_secrets(error: BaseException) -> BaseException:
    """Return the error without secrets, in itself and in its chain of causes. Any thread.

    An error without a secret is returned unchanged. A `ForebayError` with a secret is changed in place. Any other error
    with one is replaced by a `ConcealedError`, because its class may keep the text in several places.
    """
    return _concealed(error, {})


def _concealed(error: BaseException, concealed: dict[int, BaseException]) -> BaseException:
    if id(error) in concealed or not isinstance(error, Exception):
        return concealed.get(id(error), error)
    if not _shows_a_secret(error):
        return error
    shown: Exception = error
    if isinstance(error, ForebayError):
        error.message = redact(error.message)
        error.args = (error.message, *error.args[1:])
        for label in ("position", "option", "advice"):  # not the split: it is looked up by its id
            value = getattr(error, label)
            setattr(error, label, None if value is None else redact(value))
    else:
        shown = ConcealedError(f"{type(error).__name__}: {redact(_text(error))}", type(error))
        shown = shown.with_traceback(error.__traceback__)
    if notes := getattr(error, "__notes__", None):
        shown.__notes__ = [redact(str(note)) for note in notes]
    concealed[id(error)] = shown
    suppressed = error.__suppress_context__
    shown.__context__ = None if error.__context__ is None else _concealed(error.__context__, concealed)
    shown.__cause__ = None if error.__cause__ is None else _concealed(error.__cause__, concealed)
    shown.__suppress_context__ = suppressed
    return shown


def _shows_a_secret(error: BaseException) -> bool:
    texts = ["".join(traceback.format_exception(error, limit=0))]
    if isinstance(error, ForebayError):  # its `str` hides secrets, so look at the message itself
        texts += [error.message, repr(error)]
    return any(redact(text) != text for text in texts)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as second:  # noqa: BLE001 - `__str__` of a connector's class
        return f"(its text is not available: {type(second).__name__})"


@contextmanager
def wrap_errors(source: str, doing: str, split: str | None = None) -> Iterator[None]:
    """Raise each exception of the `with` block as the typed error that `connector_error` returns. Any thread.

    Spark keeps only the text of an error that crosses processes; `forebay.errors.unwrap` restores the error from it.

    Raises:
        ForebayError: The exception of the block, wrapped in a `FatalError` unless it is a `ForebayError`.
    """
    try:
        yield
    except Exception as error:
        wrapped = connector_error(error, source=source, doing=doing, split=split)
        if wrapped is error:
            raise
        raise wrapped from wrapped.__cause__


@contextmanager
def closing(source: str, close: Callable[[], None]) -> Iterator[None]:
    """Call `close` at the end of the `with` block, on every path.

    Raises:
        ForebayError: The error of `close`. If the block failed too, that error is raised, with this one as a note.
    """
    try:
        yield
    except BaseException as error:
        try:
            close()
        except Exception as second:  # noqa: BLE001 - the first error is the one to act on
            error.add_note(f"and then close() failed too, with {type(second).__name__}: {redact(_text(second))}")
        raise
    with wrap_errors(source, "close()"):
        close()


def event_refused(source: str, event: SourceEvent) -> ConfigurationError:
    """Return the error for a connector that sends a source event on Spark, which has no channel for it."""
    return ConfigurationError(
        f"the source event {type(event).__name__} cannot be sent: Spark has no channel between enumerator and readers",
        source=source,
        rule="EVT-1",
        advice="put the data that readers need into the split, or run the source in-process with forebay.run",
    )


# -- Sorts the failures of HTTP requests into those that pass and those that stay, for any client.

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

_ADDRESS: Final = (
    "correct the address of the service: http:// or https://, a host, and what is not ASCII percent-encoded"
)
_PROXY: Final = "correct the address of the proxy"
_HEADER: Final = (
    "correct the headers: names and values are texts of ASCII without line breaks; often the line break is the end "
    "of a secret that was read from a file"
)
_REDIRECT: Final = "correct the address of the service: what it redirects to leads back, or cannot be followed"

_LASTING: Final[Mapping[str, Mapping[str, set[str]]]] = {
    _PROXY: {"requests": {"InvalidProxyURL"}, "urllib3": {"ProxySchemeUnknown"}},
    _ADDRESS: {
        "http": {"InvalidURL"},
        "httpx": {"UnsupportedProtocol", "InvalidURL"},
        "requests": {"InvalidURL", "MissingSchema", "InvalidSchema"},
        "urllib3": {"LocationValueError"},
    },
    _HEADER: {"requests": {"InvalidHeader"}},
    _REDIRECT: {"httpx": {"TooManyRedirects"}, "requests": {"TooManyRedirects"}},
}
"""Exceptions that no retry helps, by the next step; most inherit from one that passes. The first match counts."""

_NO_URL: Final = ("unknown url type", "no host given")
"""How `urllib` begins the reason of a `URLError` that no connection caused."""

_BUILDING: Final = {
    ("http.client", "putheader"): _HEADER,
    ("http.client", "_encode_request"): _ADDRESS,
    ("http.client", "_tunnel"): _ADDRESS,
    ("http.client", "set_tunnel"): _ADDRESS,
    ("httpx._models", "__setitem__"): _HEADER,
    ("httpx._models", "_normalize_header_key"): _HEADER,
    ("httpx._models", "_normalize_header_value"): _HEADER,
    ("requests.auth", "_basic_auth_str"): _HEADER,
    ("socket", "getaddrinfo"): _ADDRESS,
    ("urllib.request", "_parse"): _ADDRESS,
    ("urllib.request", "full_url"): _ADDRESS,
}
"""The functions that raise a plain `ValueError` for what cannot be sent, by module and name, with the next step.

Others of these modules raise it for a body or an answer, and code of the user for anything: those stay what they are.
Nothing else tells them apart; where a client renames a function, its `ValueError` stays one, and a test fails.
"""

_PASSING: Final = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
_REFUSED: Final = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}


@contextmanager
def http_errors(request: str, *, split: str | None = None, option: str | None = None) -> Iterator[None]:
    """Raise the typed error for a failed HTTP request in the block. Called by connectors, around one request.

    It knows `urllib` and `http.client`, and `requests`, `httpx` and `urllib3` by name, without importing them. A
    failure that passes becomes a `RetriableError`: no connection, a time-out, an answer that is cut or cannot be
    decoded, and the status codes 408, 425, 429 and from 500 on, with their `Retry-After`. Read the body inside the
    block. A `ValueError` of other code in the block stays what it is.

    Args:
        request: What was asked for, in a few words, such as the path. It must not hold a secret.
        split: The split that is read, if the request is for one.
        option: The option that holds the credentials, which the error for 401 and 403 names.

    Raises:
        RetriableError: The failure may pass.
        ConfigurationError: The service refuses the request (another status code), the address is no URL, its redirects
            never end, or a header cannot be sent.
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
        raise typed from None if typed.advice == _HEADER else error  # whose text repeats the header


def _typed(error: Exception, request: str, split: str | None, option: str | None) -> ForebayError | None:
    """Return the typed error for an exception; None for one that is no failure of a request, such as a bug."""
    text = f"{request}: {type(error).__name__}: {error}"
    status, headers = _answer(error)
    if status is not None:
        text = f"{request}: the service answered with the status {status}"
        if status in _PASSING or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return RetriableError(text, split=split, retry_after=_retry_after(headers))
        advice = "check the address and the rights of the user" if option is None else f"check the option {option}"
        if status < HTTPStatus.BAD_REQUEST and status != HTTPStatus.NOT_MODIFIED:
            advice = _REDIRECT
        return ConfigurationError(text, split=split, option=option if status in _REFUSED else None, advice=advice)
    if (next_step := _http_advice(error)) is not None:
        if next_step is _HEADER:  # the client's own text repeats the header, which may be secret
            text = f"{request}: {type(error).__name__}: a header cannot be sent"
        return ConfigurationError(text, split=split, advice=next_step)
    if isinstance(error, _TRANSIENT) or _is_one_of(error, _CLIENTS):
        return RetriableError(text, split=split)
    return None


def _http_advice(error: Exception) -> str | None:
    """Return the next step for a request that never succeeds as it is; None for any other exception."""
    for advice, classes in _LASTING.items():
        if _is_one_of(error, classes):
            return advice
    reason = getattr(error, "reason", error)
    if isinstance(error, URLError) and str(reason).startswith(_NO_URL):
        return _ADDRESS
    if isinstance(reason, socket.gaierror) and reason.errno == socket.EAI_SERVICE:  # a port such as -1
        return _ADDRESS
    if _is_one_of(error, {"urllib3": {"MaxRetryError"}}) and str(reason) == "too many redirects":
        return _REDIRECT
    if _is_one_of(error, {"httpx": {"LocalProtocolError"}}) and str(error).startswith("Illegal header"):
        return _HEADER
    return _advice_by_place(error) if isinstance(error, ValueError) else None


def _advice_by_place(error: ValueError) -> str | None:
    """Return the next step for a plain `ValueError` by the function that raised it: clients let many through."""
    if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):
        return None
    places = [(frame.f_globals.get("__name__", ""), frame.f_code.co_name) for frame, _ in walk_tb(error.__traceback__)]
    parsed = bool(places) and places[-1][0] == "urllib.parse"
    while places and places[-1][0] == "urllib.parse":
        places.pop()
    module, function = places[-1] if places else ("", "")
    if parsed and module.partition(".")[0] in {"http", "urllib", *_CLIENTS}:
        return _ADDRESS
    return _BUILDING.get((module, function))


def _answer(error: Exception) -> tuple[int | None, Mapping[str, Any]]:
    """Return the status code and the headers of the answer that is the failure; None if another one is."""
    if isinstance(error, HTTPError):
        return error.code, dict(error.headers or {})
    by_status = _is_one_of(error, {"httpx": {"HTTPStatusError"}})  # also for a redirect that is not followed
    if not (by_status or _is_one_of(error, _CLIENTS)):
        return None, {}
    response: Any = None
    with suppress(Exception):  # httpx raises where there is no response
        response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    failed = isinstance(status, int) and (by_status or status >= HTTPStatus.BAD_REQUEST)
    return (status, getattr(response, "headers", {})) if failed else (None, {})


def _retry_after(headers: Mapping[str, Any]) -> str | None:
    return next((str(value) for name, value in headers.items() if name.lower() == "retry-after"), None)


def _is_one_of(error: Exception, classes: Mapping[str, set[str]]) -> bool:
    return any(kind.__name__ in classes.get(kind.__module__.partition(".")[0], ()) for kind in type(error).__mro__)
