# SPDX-License-Identifier: Apache-2.0
"""A native S3 server on this machine, versitygw, and how fast it can be read at all. Needs Go to build it, once."""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import boto3
from botocore.config import Config

from forebay.testkit.kafka_broker import cache
from forebay.testkit.processes import end_session, tied

VERSION = "v1.8.0"
KEY, SECRET, REGION = "forebay", "forebay-secret", "us-east-1"
_MODULE = "github.com/versity/versitygw/cmd/versitygw"
_START_TIMEOUT = 20.0


class Rate(NamedTuple):
    """How fast objects were read."""

    megabytes_per_s: float
    objects_per_s: float


class S3Server:
    """Runs versitygw in a `with` block, on a directory that ends with it.

    The first use builds the server into the user's cache, or into `FOREBAY_CACHE`: about two minutes.

    Args:
        bucket: A bucket to create.
        alias: Another name of the bucket.
    """

    def __init__(self, bucket: str, alias: str) -> None:
        self.bucket = bucket
        self._alias = alias

    def __enter__(self) -> Self:
        program = _program()
        self._home = Path(tempfile.mkdtemp(prefix="forebay-s3-"))
        self._data = self._home / "data"
        self._data.mkdir()
        self._process = self._start(program)
        self.client = boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            config=Config(signature_version="s3v4", s3={"addressing_style": "path"}, max_pool_connections=16),
        )
        self.client.create_bucket(Bucket=self.bucket)
        (self._data / self._alias).symlink_to(self._data / self.bucket)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        end_session(self._process.pid)
        self._process.communicate()
        shutil.rmtree(self._home, ignore_errors=True)

    @property
    def pid(self) -> int:
        """The process above the server."""
        return self._process.pid

    def put(self, objects: Iterable[tuple[str, bytes]]) -> None:
        """Upload objects, given as key and body."""
        with ThreadPoolExecutor(8) as pool:
            for _ in pool.map(lambda one: self.client.put_object(Bucket=self.bucket, Key=one[0], Body=one[1]), objects):
                pass

    def raw(self, keys: Sequence[str], threads: int = 4) -> Rate:
        """Read objects by plain GETs, each thread on one connection."""
        paths = [
            self.client.generate_presigned_url("get_object", Params={"Bucket": self.bucket, "Key": key}).split("/", 3)[
                3
            ]
            for key in keys
        ]
        began = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            count = sum(pool.map(self._read, (paths[n::threads] for n in range(threads))))
        seconds = time.perf_counter() - began
        return Rate(count / 1e6 / seconds, len(keys) / seconds)

    def _read(self, paths: Sequence[str]) -> int:
        connection = http.client.HTTPConnection(self._address)
        count, room = 0, bytearray(1 << 20)
        for path in paths:
            connection.request("GET", f"/{path}")
            answer = connection.getresponse()
            if answer.status != http.client.OK:
                raise SystemExit(f"the server answers {answer.status}: {answer.read()!r}")
            while got := answer.readinto(room):
                count += got
        connection.close()
        return count

    def _start(self, program: Path) -> subprocess.Popen[bytes]:
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            self._address = "{}:{}".format(*held.getsockname())
        self.url = f"http://{self._address}"
        process = subprocess.Popen(
            tied(
                self._home,
                *(str(program), "--port", self._address, "--keep-alive", "--quiet", "--noacl"),
                *("posix", "--bucketlinks", str(self._data)),
            ),
            env={**os.environ, "ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + _START_TIMEOUT
        while not _listens(self._address):
            if process.poll() is not None or time.monotonic() > deadline:
                end_session(process.pid)
                raise SystemExit("versitygw did not start")
            time.sleep(0.02)
        return process


def _listens(address: str) -> bool:
    host, port = address.split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def _program() -> Path:
    """Return the server's program; the first call builds it."""
    kept = cache() / f"versitygw-{VERSION}"
    if not kept.exists():
        if shutil.which("go") is None:
            raise SystemExit("building the S3 server versitygw needs Go on the PATH")
        print(f"building versitygw {VERSION}, once", file=sys.stderr)
        cache().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache(), prefix="building-") as work:
            command = ["go", "install", f"{_MODULE}@{VERSION}"]
            subprocess.run(command, env={**os.environ, "GOBIN": work}, check=True)
            (Path(work) / "versitygw").rename(kept)
    return kept
