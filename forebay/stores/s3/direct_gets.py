# SPDX-License-Identifier: Apache-2.0
"""Sends GETs of ranges on botocore's connections without its hooks and parsers: this takes half the CPU."""

from __future__ import annotations

import importlib
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

_SUCCESS: Final = frozenset({200, 206})
_SERVER_ERROR: Final = 500
_SIGNED: Final = re.compile(r"AWS4-HMAC-SHA256 Credential=[^/]+/\d+/([^/]+)/s3/aws4_request,")
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


@dataclass(frozen=True)
class _Example:
    """What all GETs of a bucket share: URL before the key, headers, and region of the signature (None = unsigned)."""

    base: str
    headers: Mapping[str, str]
    region: str | None


class DirectGets:
    """Sends GETs like the first one that botocore sent to the same bucket. Thread-safe. Belongs to one boto3 client.

    Connections, certificates, proxies, time-outs and credentials are those of the client. Everything unusual is left to
    botocore: the first request to a bucket, requests that are signed in another way, and all failures. So redirects,
    retries and errors are those of botocore.

    Args:
        boto: The boto3 client.
    """

    def __init__(self, boto: Any) -> None:  # noqa: ANN401 - boto3 has no types
        # botocore has no public name for its connections. Without them, it sends every request.
        self._session = getattr(getattr(boto, "_endpoint", None), "http_session", None)
        self._signer: Any = None
        self._examples: dict[str, _Example | None] = {}
        self._thread = threading.local()
        boto.meta.events.register("before-sign.s3.GetObject", self._see_signer)
        boto.meta.events.register("before-send.s3.GetObject", self._see)
        errors = importlib.import_module("botocore.exceptions")
        self._errors = (errors.BotoCoreError, errors.ClientError)
        self._requests = importlib.import_module("botocore.awsrequest")
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
            response = self._session.send(self._requests.AWSPreparedRequest("GET", url, signed, None, True))
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

    def _see_signer(self, request_signer: Any, **_: object) -> None:  # noqa: ANN401 - botocore has no types
        self._signer = request_signer

    def _see(self, request: Any, **_: object) -> None:  # noqa: ANN401 - botocore has no types
        self._thread.sent = request

    def _example(self, request: Any, key: str) -> _Example | None:  # noqa: ANN401 - botocore has no types
        headers = {name: _text(value) for name, value in request.headers.items()}
        names = {name.lower(): name for name in headers}
        if names.keys() & _OF_BOTOCORE or not request.url.endswith(_quoted(key)):
            return None
        region = None
        if "authorization" in names:
            signed = _SIGNED.match(headers[names["authorization"]])
            if signed is None:
                return None
            region = signed[1]
        reusable = {name: text for name, text in headers.items() if name.lower() not in _OF_ONE_REQUEST}
        return _Example(request.url.removesuffix(_quoted(key)), reusable, region)

    def _headers(self, example: _Example, url: str, more: Mapping[str, str]) -> dict[str, str]:
        headers = {**example.headers, **more}
        if example.region is None:
            return headers
        request = self._requests.AWSRequest("GET", url, headers=headers)
        self._signer.get_auth_instance("s3", example.region, "s3v4").add_auth(request)
        return dict(request.headers.items())


def _quoted(key: str) -> str:
    return quote(key, safe="/~")


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
