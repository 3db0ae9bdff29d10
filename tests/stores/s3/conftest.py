# SPDX-License-Identifier: Apache-2.0
"""A bucket on a real server, behind a proxy that can answer instead of it, and one on moto.

moto stands in where the real servers lack something: roles, requests without a signature or with any key, keys that are
no file names.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import boto3
import pytest
from s3_servers import KEY, SECRET, AnsweringProxy

from forebay.stores.storage_options import StorageOptions


class Bucket:
    """A bucket; `intercept` may answer a request instead of the server. `requests` has method and path of each.

    Args:
        endpoint: The URL for tests.
        client: A client of boto3 for the server itself.
        key: The key for requests.
        secret: Its secret.
    """

    def __init__(self, endpoint: str, client: Any, key: str = "x", secret: str = "y") -> None:
        self.endpoint = endpoint
        self.client = client
        self.key, self.secret = key, secret
        self.intercept: Callable[[Mapping[str, Any]], tuple[str, str] | None] = lambda _: None
        self.requests: list[str] = []
        self.name = f"b{uuid.uuid4().hex[:8]}"
        self.client.create_bucket(Bucket=self.name)

    def answer(self, environ: Mapping[str, Any]) -> tuple[str, str] | None:
        """Record a request; return the status and code to answer with, or None."""
        self.requests.append(f"{environ['REQUEST_METHOD']} {environ['RAW_URI']}")
        return self.intercept(environ)

    def put(self, objects: Mapping[str, bytes | str]) -> None:
        for key, body in objects.items():
            self.client.put_object(Bucket=self.name, Key=key, Body=body.encode() if isinstance(body, str) else body)

    def url(self, key: str = "") -> str:
        return f"s3://{self.name}" + (f"/{key}" if key else "")

    def options(self, **more: object) -> StorageOptions:
        return StorageOptions({"key": self.key, "secret": self.secret, "endpoint_url": self.endpoint, **more})


@pytest.fixture(scope="session")
def served(s3_server: Any) -> Iterator[Bucket]:
    with AnsweringProxy(s3_server.url) as proxy:
        bucket = Bucket(proxy.url, s3_server.client, KEY, SECRET)
        proxy.intercept = bucket.answer
        yield bucket


@pytest.fixture
def bucket(served: Bucket) -> Iterator[Bucket]:
    yield from emptied(served)


@pytest.fixture(scope="session")
def served_by_moto() -> Iterator[Bucket]:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    inner = DomainDispatcherApplication(create_backend_app)
    buckets: list[Bucket] = []

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Any:
        instead = buckets[0].answer(environ) if buckets else None
        if instead is None:
            return inner(environ, start)
        status, code = instead
        body = f"<Error><Code>{code}</Code><Message>said so</Message></Error>".encode()
        start(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
        return [b""] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    server = make_server("127.0.0.1", 0, answer, threaded=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    client = boto3.client(
        "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="y"
    )
    buckets.append(Bucket(endpoint, client))
    yield buckets[0]
    client.close()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def moto_bucket(served_by_moto: Bucket) -> Iterator[Bucket]:
    """A bucket of moto, which takes any key, and has roles."""
    yield from emptied(served_by_moto)


def emptied(served: Bucket) -> Iterator[Bucket]:
    """Yield a bucket without requests and objects."""
    served.requests.clear()
    yield served
    served.intercept = lambda _: None
    paginator = served.client.get_paginator("list_objects_v2")
    for page in paginator.paginate(Bucket=served.name):
        for found in page.get("Contents", ()):
            served.client.delete_object(Bucket=served.name, Key=found["Key"])
