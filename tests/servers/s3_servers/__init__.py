# SPDX-License-Identifier: Apache-2.0
"""Real servers of S3 for tests: s3proxy, which needs Java, and versitygw, which Go builds once."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Self, cast

import boto3
import pytest
from botocore.config import Config

from forebay.stores.store import StorageOptions
from forebay.testkit import proxies
from forebay.testkit.kafka_broker import Module, cache, fetched, java
from forebay.testkit.processes import end_session, tied
from forebay.testkit.proxies import Fault, FaultProxy, Head

KEY, SECRET, REGION = "forebay-key-id", "forebay-secret-text", "us-east-1"
_PATIENCE = 60.0


class S3Server(ABC):
    """A server on a free port of loopback, in a `with` block; its port and data survive `stop` and `start`."""

    name: ClassVar[str]
    """Name and version, for the ids of tests."""

    def __enter__(self) -> Self:
        self._home = Path(tempfile.mkdtemp(prefix="forebay-s3-"))
        (self._home / "data").mkdir()
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            self._port = int(held.getsockname()[1])
        self._process: subprocess.Popen[bytes] | None = None
        self.start()
        self.client = self._client()
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.kill()
        shutil.rmtree(self._home, ignore_errors=True)

    @property
    def url(self) -> str:
        """The URL for `endpoint_url`."""
        return f"http://127.0.0.1:{self._port}"

    def options(self, endpoint: str = "", **more: str) -> dict[str, str]:
        """Return the options of S3, for the server itself or for a proxy in front of it."""
        return {"endpoint_url": endpoint or self.url, "key": KEY, "secret": SECRET, "region": REGION, **more}

    def make_bucket(self, name: str) -> str:
        """Make a bucket, or empty the one of this name that an earlier test made; return the name."""
        names = [found["Name"] for found in self.client.list_buckets()["Buckets"]]
        if name in names:
            empty(self.client, name)
        else:
            self.client.create_bucket(Bucket=name)
        return name

    def start(self) -> None:
        """Start the server, and return when it listens."""
        log = (self._home / "log").open("ab")
        self._process = subprocess.Popen(
            tied(self._home, *self._command()),
            env={**os.environ, "ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        log.close()
        deadline = time.monotonic() + _PATIENCE
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"{self.name} did not start:\n{(self._home / 'log').read_text()[-4000:]}")
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill the server, as a crash does."""
        process, self._process = self._process, None
        if process is not None:
            end_session(process.pid)
            if process.stdin is not None:
                process.stdin.close()
            process.wait()

    @abstractmethod
    def _command(self) -> list[str]:
        """Return the command that serves `self._home / "data"` on `self._port`."""

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    def _client(self) -> Any:
        return client_of(self.url, KEY, SECRET)


class S3Proxy(S3Server):
    """s3proxy of Maven Central (53 MB, into the user's cache), with files as its store."""

    name = "s3proxy-4.1.0"

    def _command(self) -> list[str]:
        module = Module("org.gaul", "s3proxy", "4.1.0", alone=True, classifier="jar-with-dependencies")
        settings = {
            "s3proxy.endpoint": self.url,
            "s3proxy.authorization": "aws-v2-or-v4",
            "s3proxy.identity": KEY,
            "s3proxy.credential": SECRET,
            "jclouds.provider": "filesystem-nio2",
            "jclouds.filesystem.basedir": str(self._home / "data"),
        }
        file = self._home / "s3proxy.conf"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        jar = fetched(self.name, [module]) / module.file
        options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-DLOG_LEVEL=warn"]
        return [java(), *options, "-jar", str(jar), "--properties", str(file)]


class VersityGateway(S3Server):
    """versitygw, with files as its store. `benchmarks/s3_server.py` builds it into the user's cache."""

    name = "versitygw-1.8.0"

    def _command(self) -> list[str]:
        program = cache() / "versitygw-v1.8.0"
        if not program.exists():
            if shutil.which("go") is None:
                pytest.skip("versitygw is not built, and there is no Go to build it")
            benchmarks = str(Path(__file__).parents[3] / "benchmarks")
            build = f"import sys; sys.path.insert(0, {benchmarks!r}); import s3_server; s3_server._program()"
            subprocess.run([sys.executable, "-P", "-c", build], check=True)
        address = self.url.removeprefix("http://")
        return [
            str(program),
            "--port",
            address,
            "--keep-alive",
            "--quiet",
            "--noacl",
            "posix",
            str(self._home / "data"),
        ]


SERVERS = {server.name: server for server in (S3Proxy, VersityGateway)}


Environ = Mapping[str, Any]
"""A request as WSGI has it: `REQUEST_METHOD`, `RAW_URI`, and headers as `HTTP_…`."""


class Bucket:
    """A bucket of a server; `intercept` may answer a request instead of the server, by status and code of an error.

    Args:
        endpoint: The URL for tests.
        client: A client of boto3 for the server itself.
        key: The key for requests.
        secret: Its secret.
    """

    def __init__(self, endpoint: str, client: Any, key: str, secret: str) -> None:
        self.endpoint = endpoint
        self.client = client
        self.key, self.secret = key, secret
        self.intercept: Callable[[Environ], tuple[str, str] | None] = lambda _: None
        self.requests: list[str] = []
        """Method and path of each request."""
        self.name = f"b{uuid.uuid4().hex[:8]}"
        self.client.create_bucket(Bucket=self.name)

    def put(self, objects: Mapping[str, bytes | str]) -> None:
        """Write objects, by key."""
        for key, body in objects.items():
            self.client.put_object(Bucket=self.name, Key=key, Body=body.encode() if isinstance(body, str) else body)

    def url(self, key: str = "") -> str:
        """Return the URL of a key."""
        return f"s3://{self.name}" + (f"/{key}" if key else "")

    def options(self, **more: object) -> StorageOptions:
        """Return the options of S3 for this bucket."""
        return StorageOptions({"key": self.key, "secret": self.secret, "endpoint_url": self.endpoint, **more})

    def answer(self, environ: Environ) -> tuple[str, str] | None:
        """Record a request; return the status and code to answer with, or None."""
        self.requests.append(f"{environ['REQUEST_METHOD']} {environ['RAW_URI']}")
        return self.intercept(environ)

    def emptied(self) -> Iterator[Self]:
        """Yield the bucket without requests and objects, for one test."""
        self.requests.clear()
        yield self
        self.intercept = lambda _: None
        empty(self.client, self.name)


@contextmanager
def bucket_of(server: S3Server) -> Iterator[Bucket]:
    """A bucket of a real server, behind a proxy that records requests and answers some of them."""
    with AnsweringProxy(server.url) as proxy:
        bucket = Bucket(proxy.url, server.client, KEY, SECRET)
        proxy.intercept = bucket.answer
        yield bucket


@contextmanager
def bucket_of_moto() -> Iterator[Bucket]:
    """A bucket of moto, for what the real servers lack.

    That are roles, requests without a signature or with any key, keys that are no file names, `RequestPayer`.
    """
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
    client = client_of(endpoint, "x", "y")
    buckets.append(Bucket(endpoint, client, "x", "y"))
    yield buckets[0]
    client.close()
    server.shutdown()
    thread.join()
    server.server_close()


def client_of(url: str, key: str, secret: str) -> Any:
    """Return a client of boto3."""
    return boto3.client(
        "s3",
        endpoint_url=url,
        region_name=REGION,
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        config=Config(s3={"addressing_style": "path"}, request_checksum_calculation="when_required"),
    )


def empty(client: Any, bucket: str) -> None:
    """Delete all objects of a bucket."""
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        for found in page.get("Contents", ()):
            client.delete_object(Bucket=bucket, Key=found["Key"])


class AnsweringProxy(FaultProxy):
    """A proxy whose function `intercept` may answer a request instead of the server, by status and code of an error."""

    def __init__(self, server: str) -> None:
        super().__init__(server)
        self.intercept: Callable[[Environ], tuple[str, str] | None] = lambda _: None

    def note(self, head: Head) -> Fault | None:
        """See `FaultProxy.note`."""
        fault = super().note(head)
        lines = [line.partition(":") for line in head.raw.decode("latin-1").split("\r\n")[1:] if line]
        environ = {f"HTTP_{name.upper().replace('-', '_')}": value.strip() for name, _, value in lines}
        instead = self.intercept({**environ, "REQUEST_METHOD": head.words[0], "RAW_URI": head.words[1]})
        if instead is None:
            return fault
        kind = " ".join(instead)
        proxies._REFUSED[kind] = (*instead, "said so")
        return cast("Fault", SimpleNamespace(kind=kind))
