# SPDX-License-Identifier: Apache-2.0
"""`http_errors` sorts the failures of requests, whichever client made them."""

from __future__ import annotations

import gzip
import http.client
import io
import json
import socket
import threading
import urllib.error
import zlib
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest
import requests
import urllib3

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


def ask_urllib(url, **headers):
    return urlopen(Request(url, headers=headers), timeout=5)


def ask_http_client(url, **headers):
    parts = urlsplit(url)
    http.client.HTTPConnection(parts.netloc, timeout=5).request("GET", parts.path, headers=headers)


def ask_requests(url, **headers):
    return requests.get(url, headers=headers, timeout=5)


def ask_urllib3(url, **headers):
    return urllib3.PoolManager().request("GET", url, headers=headers, timeout=5)


CLOSED = "http://127.0.0.1:1"
NO_URLS = ["htp://x/", "http:///x", "http://u:p@[bad/", "http://.example/", f"http://{'a' * 70}/"]
ADDRESSES = [
    *((ask_urllib, url) for url in [*NO_URLS, "", "localhost/x", f"{CLOSED}/\xe4", "http://127.0.0.1:-1/"]),
    *((ask_http_client, url) for url in ["http://.example/", f"http://{'a' * 70}/", f"{CLOSED}/\xe4"]),
    *((ask_requests, url) for url in [*NO_URLS, "", "localhost/x"]),
    *((ask_urllib3, url) for url in NO_URLS),
]


@pytest.mark.parametrize(("ask", "url"), ADDRESSES)
def test_an_address_that_is_no_url_is_a_wrong_configuration(ask, url):
    with pytest.raises(ConfigurationError, match="orders") as caught, forebay.http_errors("orders", split="north"):
        ask(url)
    assert caught.value.split == "north" and "address" in caught.value.advice


@pytest.mark.parametrize("ask", [ask_urllib, ask_http_client, ask_requests, ask_urllib3])
@pytest.mark.parametrize("value", ["Bearer tok-1234\n", "Bearer tok\u2019en"])
def test_a_header_that_cannot_be_sent_is_a_wrong_configuration_and_is_not_shown(ask, value):
    with pytest.raises(ConfigurationError, match="a header cannot be sent") as caught, forebay.http_errors("orders"):
        ask(CLOSED, Authorization=value)
    assert "headers" in caught.value.advice and "address" not in caught.value.advice
    assert "tok" not in str(caught.value)


def test_credentials_that_cannot_be_sent_are_a_wrong_configuration():
    with pytest.raises(ConfigurationError, match="a header cannot be sent"), forebay.http_errors("orders"):
        requests.get(CLOSED, auth=("bob", "tok\u2019en"), timeout=5)


@pytest.fixture
def loop():
    """The address of a service that redirects to itself."""

    class Loop(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(302)
            self.send_header("Location", "/loop")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Loop) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/loop"
        server.shutdown()


@pytest.mark.parametrize("ask", [ask_urllib, ask_requests, ask_urllib3])
def test_a_redirect_loop_is_a_wrong_configuration(ask, loop):
    with pytest.raises(ConfigurationError) as caught, forebay.http_errors("orders"):
        ask(loop)
    assert "redirects" in caught.value.advice


HTTPX = {
    "redirect loop": (of_client("httpx", "RequestError", "TooManyRedirects"), "redirects"),
    "redirect": (of_client("httpx", "HTTPStatusError", response=Response(302)), "redirects"),
    "header": (
        type(of_client("httpx", "TransportError", "LocalProtocolError"))("Illegal header value b'x'"),
        "headers",
    ),
}


@pytest.mark.parametrize(("error", "advice"), HTTPX.values(), ids=HTTPX)
def test_what_httpx_never_gets_through_is_a_wrong_configuration(error, advice):
    with pytest.raises(ConfigurationError) as caught, forebay.http_errors("orders"):
        raise error
    assert advice in caught.value.advice


def test_a_protocol_error_of_httpx_that_is_about_the_connection_passes():
    with pytest.raises(RetriableError), forebay.http_errors("orders"):
        raise of_client("httpx", "TransportError", "LocalProtocolError")


OWN = {
    "a number": lambda: int("x"),
    "an address in the answer": lambda: urlsplit("http://[bad/"),
    "bytes of the answer": b"\xff".decode,
    "text to send": lambda: http.client.HTTPConnection("127.0.0.1", 1).request("POST", "/", "\u2019"),
}


@pytest.mark.parametrize("fail", OWN.values(), ids=OWN)
def test_a_value_error_of_other_code_in_the_block_stays_what_it_is(fail):
    with pytest.raises(ValueError) as caught, forebay.http_errors("orders"):  # noqa: PT011 - any, but none of ours
        fail()
    assert not isinstance(caught.value, forebay.ForebayError)
