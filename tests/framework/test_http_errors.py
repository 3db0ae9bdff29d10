# SPDX-License-Identifier: Apache-2.0
"""`http_errors` sorts the failures of requests, whichever client made them."""

from __future__ import annotations

import gzip
import http.client
import io
import json
import socket
import urllib.error
import zlib
from email.message import Message
from typing import Any

import pytest

import forebay
from forebay.errors import ConfigurationError, RetriableError


def of_client(module, *names, **attributes):
    """Return an exception of a client library, which need not be installed: `names` are its base classes, then it."""
    kind: Any = Exception
    for name in names:
        kind = type(name, (kind,), {"__module__": module, **attributes})
    return kind("failed")


class Response:
    def __init__(self, status, **headers):
        self.status_code, self.headers = status, headers


def http_error(status, **headers):
    message = Message()
    for name, value in headers.items():
        message[name.replace("_", "-")] = value
    return urllib.error.HTTPError("http://x", status, "no", message, io.BytesIO())


PASSING = {
    "no connection": ConnectionRefusedError("refused"),
    "no name": urllib.error.URLError(socket.gaierror("unknown")),
    "time-out": TimeoutError("slow"),
    "a body that is cut": http.client.IncompleteRead(b"[1,"),
    "a closed connection": http.client.RemoteDisconnected("gone"),
    "no HTTP": http.client.BadStatusLine("SSH-2.0"),
    "JSON that is cut": json.JSONDecodeError("end", "[1,", 3),
    "gzip that is cut": EOFError("Compressed file ended"),
    "gzip that is damaged": zlib.error("incorrect data check"),
    "httpx": of_client("httpx", "TransportError", "ReadTimeout"),
    "httpx protocol": of_client("httpx._exceptions", "TransportError", "RemoteProtocolError"),
    "requests": of_client("requests.exceptions", "RequestException", "ChunkedEncodingError"),
    "urllib3": of_client("urllib3.exceptions", "HTTPError", "ProtocolError"),
    "httpx status": of_client("httpx", "HTTPStatusError", response=Response(503)),
    "requests status": of_client("requests.exceptions", "RequestException", "HTTPError", response=Response(500)),
    "urllib status": http_error(502),
}

LASTING = {
    "no URL": http.client.InvalidURL("port"),
    "httpx scheme": of_client("httpx", "TransportError", "UnsupportedProtocol"),
    "requests scheme": of_client("requests.exceptions", "RequestException", "MissingSchema"),
    "not found": http_error(404),
    "requests status": of_client("requests.exceptions", "RequestException", "HTTPError", response=Response(410)),
}


@pytest.mark.parametrize("name", PASSING)
def test_a_failure_that_passes_is_retriable(name):
    with pytest.raises(RetriableError, match="^forebay|orders") as caught, forebay.http_errors("orders", split="north"):
        raise PASSING[name]
    assert caught.value.split == "north"
    assert caught.value.__cause__ is PASSING[name]


@pytest.mark.parametrize("name", LASTING)
def test_a_failure_that_stays_is_a_wrong_configuration(name):
    with pytest.raises(ConfigurationError, match="orders"), forebay.http_errors("orders"):
        raise LASTING[name]


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_user_is_told_which_option_holds_the_credentials(status):
    with pytest.raises(ConfigurationError) as caught, forebay.http_errors("orders", option="token"):
        raise http_error(status)
    assert caught.value.option == "token"


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (http_error(429, Retry_After="1.5"), 1.5),
        (http_error(503, Retry_After="soon"), None),
        (of_client("httpx", "HTTPStatusError", response=Response(429, **{"retry-after": "7"})), 7.0),
    ],
)
def test_the_pause_that_a_service_asks_for_is_kept(error, seconds):
    with pytest.raises(RetriableError) as caught, forebay.http_errors("orders"):
        raise error
    assert caught.value.retry_after == seconds


def test_the_answer_of_urllib_is_closed():
    error = http_error(500)
    with pytest.raises(RetriableError), forebay.http_errors("orders"):
        raise error
    assert error.fp is None or error.fp.closed


@pytest.mark.parametrize("bug", [KeyError("id"), TypeError("None"), forebay.DataLossError("gone")])
def test_a_bug_and_a_typed_error_stay_what_they_are(bug):
    with pytest.raises(type(bug)) as caught, forebay.http_errors("orders"):
        raise bug
    assert caught.value is bug


def test_a_real_cut_gzip_is_an_error_that_passes():
    with pytest.raises(RetriableError), forebay.http_errors("orders"):
        gzip.decompress(gzip.compress(b"x" * 1000)[:20])
