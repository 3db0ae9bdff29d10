# SPDX-License-Identifier: Apache-2.0
"""A bucket on a server of moto in this process, and a scripted client."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import boto3
import pytest

from forebay.stores.storage_options import StorageOptions


class Bucket:
    """A bucket; `intercept` may answer a request instead of moto. `requests` has method and path of each."""

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        inner = DomainDispatcherApplication(create_backend_app)
        self.intercept: Callable[[dict[str, Any]], tuple[str, str] | None] = lambda _: None
        self.requests: list[str] = []

        def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Any:
            self.requests.append(f"{environ['REQUEST_METHOD']} {environ['RAW_URI']}")
            instead = self.intercept(environ)
            if instead is None:
                return inner(environ, start)
            status, code = instead
            body = f"<Error><Code>{code}</Code><Message>said so</Message></Error>".encode()
            start(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
            return [b""] if environ["REQUEST_METHOD"] == "HEAD" else [body]

        self._server = make_server("127.0.0.1", 0, answer, threaded=True)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.client = boto3.client(
            "s3", endpoint_url=self.endpoint, region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="y"
        )
        self.name = f"b{uuid.uuid4().hex[:8]}"
        self.client.create_bucket(Bucket=self.name)

    def put(self, objects: Mapping[str, bytes | str]) -> None:
        for key, body in objects.items():
            self.client.put_object(Bucket=self.name, Key=key, Body=body.encode() if isinstance(body, str) else body)

    def url(self, key: str = "") -> str:
        return f"s3://{self.name}" + (f"/{key}" if key else "")

    def options(self, **more: object) -> StorageOptions:
        return StorageOptions({"key": "x", "secret": "y", "endpoint_url": self.endpoint, **more})

    def close(self) -> None:
        self.client.close()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture(scope="session")
def served() -> Iterator[Bucket]:
    bucket = Bucket()
    yield bucket
    bucket.close()


@pytest.fixture
def bucket(served: Bucket) -> Iterator[Bucket]:
    served.requests.clear()
    yield served
    served.intercept = lambda _: None
    paginator = served.client.get_paginator("list_objects_v2")
    for page in paginator.paginate(Bucket=served.name):
        for found in page.get("Contents", ()):
            served.client.delete_object(Bucket=served.name, Key=found["Key"])
