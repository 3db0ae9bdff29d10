# SPDX-License-Identifier: Apache-2.0
"""Sends GETs of ranges on botocore's connections without its hooks and parsers: this takes less than half the CPU."""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import importlib
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlsplit

_SUCCESS: Final = frozenset({200, 206})
_SERVER_ERROR: Final = 500
_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_SIGNED: Final = re.compile(rf"{_ALGORITHM} Credential=[^/]+/\d+/([^/]+/s3/aws4_request),")
_OF_ONE_REQUEST: Final = frozenset(
    [
        "authorization",
        "x-amz-date",
        "x-amz-security-token",
        "range",
        "if-match",
        "amz-sdk-invocation-id",
        "amz-sdk-request",
    ]
)
"""Headers that differ between two requests, in lower case."""
_OF_BOTOCORE: Final = frozenset({"x-amz-checksum-mode", "x-amz-s3session-token"})
"""Headers of requests that only botocore can send: it verifies checksums, and renews sessions of directory buckets."""
_UNSIGNED: Final = frozenset({"user-agent", "x-amzn-trace-id"})
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True)
class _Example:
    """What all GETs of a bucket share: URL before the key, headers, and scope of the signature (None = unsigned)."""

    base: str
    headers: Mapping[str, str]
    scope: str | None


class DirectGets:
    """Sends GETs like the first one that botocore sent to the same bucket. Thread-safe. Belongs to one boto3 client.

    Connections, certificates, proxies, time-outs and credentials are those of the client. Everything unusual is left to
    botocore: the first request to a bucket, requests that are signed in another way, and all failures. So redirects,
    retries and errors are those of botocore.

    Args:
        boto: The boto3 client.
    """

    def __init__(self, boto: Any) -> None:  # noqa: ANN401 - boto3 has no types
        # botocore has no public names for the two. Without them, botocore sends every request.
        self._session = getattr(getattr(boto, "_endpoint", None), "http_session", None)
        self._credentials = getattr(getattr(boto, "_request_signer", None), "_credentials", None)
        self._examples: dict[str, _Example | None] = {}
        self._thread = threading.local()
        boto.meta.events.register("before-send.s3.GetObject", self._see)
        errors = importlib.import_module("botocore.exceptions")
        self._errors = (errors.BotoCoreError, errors.ClientError)
        self._new_request = importlib.import_module("botocore.awsrequest").AWSPreparedRequest
        self._new_body = importlib.import_module("botocore.response").StreamingBody

    def get(self, bucket: str, key: str, headers: Mapping[str, str]) -> dict[str, Any] | None:
        """Send a GET; return the fields of botocore's answer that readers use, or None: botocore must send the GET."""
        self._thread.sent, self._thread.refused = None, False
        example = self._examples.get(bucket)
        if example is None or self._session is None:
            return None
        url = example.base + _quoted(key)
        try:
            signed = self._headers(example, url, headers)
            response = self._session.send(self._new_request("GET", url, signed, None, True))
        except self._errors:
            return None
        if response.status_code not in _SUCCESS:
            self._thread.refused = response.status_code < _SERVER_ERROR
            response.raw.close()
            return None
        response_headers = response.headers
        length = response_headers.get("Content-Length")
        return {
            "Body": self._new_body(response.raw, length),
            "ContentLength": None if length is None else int(length),
            "ContentRange": response_headers.get("Content-Range"),
            "ETag": response_headers.get("ETag"),
        }

    def learn(self, bucket: str, key: str) -> None:
        """Learn from the request that botocore has sent successfully, on this thread, after `get` returned None."""
        if self._thread.refused:  # botocore can send what this class cannot, such as a request to another region
            self._examples[bucket] = None
        elif bucket not in self._examples:
            sent = self._thread.sent
            self._examples[bucket] = None if sent is None else self._example(sent, key)

    def _see(self, request: Any, **_: object) -> None:  # noqa: ANN401 - botocore has no types
        self._thread.sent = request

    def _example(self, request: Any, key: str) -> _Example | None:  # noqa: ANN401 - botocore has no types
        headers = {name: _text(value) for name, value in request.headers.items()}
        names = {name.lower(): name for name in headers}
        if names.keys() & _OF_BOTOCORE or not request.url.endswith(_quoted(key)):
            return None
        scope = None
        if "authorization" in names:
            signed = _SIGNED.match(headers[names["authorization"]])
            if signed is None or self._credentials is None:
                return None
            scope = signed[1]
        reusable = {name: text for name, text in headers.items() if name.lower() not in _OF_ONE_REQUEST}
        return _Example(request.url.removesuffix(_quoted(key)), reusable, scope)

    def _headers(self, example: _Example, url: str, more: Mapping[str, str]) -> dict[str, str]:
        headers = {**example.headers, **more}
        if example.scope is not None and self._credentials is not None:
            frozen = self._credentials.get_frozen_credentials()
            credentials = frozen.access_key, frozen.secret_key, frozen.token
            sign(headers, url, example.scope, credentials, dt.datetime.now(dt.UTC))
        return headers


def sign(
    headers: dict[str, str], url: str, scope: str, credentials: tuple[str, str, str | None], now: dt.datetime
) -> None:
    """Add the headers of AWS Signature Version 4 to the headers of a GET without a query.

    Source: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html

    Args:
        headers: The headers of the request, with `X-Amz-Content-SHA256`; changed in place.
        url: The URL, with a percent-encoded path.
        scope: Region, service and `aws4_request`, with slashes between them.
        credentials: Access key, secret key, and session token or None.
        now: The time of the request, in UTC.
    """
    access_key, secret, token = credentials
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    headers["X-Amz-Date"] = stamp
    if token:
        headers["X-Amz-Security-Token"] = token
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.port not in (None, _DEFAULT_PORTS[parts.scheme]):
        host = f"{host}:{parts.port}"
    named = sorted([("host", host), *((name.lower(), value) for name, value in headers.items())])
    named = [(name, " ".join(value.split())) for name, value in named if name not in _UNSIGNED]
    names = ";".join(name for name, _ in named)
    lines = "".join(f"{name}:{value}\n" for name, value in named)
    request = f"GET\n{parts.path}\n\n{lines}\n{names}\n{headers['X-Amz-Content-SHA256']}"
    scope = f"{stamp[:8]}/{scope}"
    digest = hashlib.sha256(request.encode()).hexdigest()
    key = f"AWS4{secret}".encode()
    for part in (*scope.split("/"), f"{_ALGORITHM}\n{stamp}\n{scope}\n{digest}"):
        key = hmac.digest(key, part.encode(), "sha256")
    headers["Authorization"] = (
        f"{_ALGORITHM} Credential={access_key}/{scope}, SignedHeaders={names}, Signature={key.hex()}"
    )


def _quoted(key: str) -> str:
    return quote(key, safe="/~")


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
