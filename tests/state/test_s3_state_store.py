# SPDX-License-Identifier: Apache-2.0
"""State on S3: a server by moto, real HTTP, real races."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from forebay.errors import ConfigurationError, RetriableError
from forebay.framework.microbatch.offsets.finished_splits import FinishedSplits
from forebay.framework.microbatch.offsets.offset import Offset, Planned, UnknownEnd
from forebay.framework.microbatch.offsets.spilling_codec import SpillingOffsetCodec
from forebay.framework.runtime.connector_calls import ConnectorCalls
from forebay.framework.runtime.runtime import ThreadRuntime
from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay.retry import RetryPolicy
from forebay.state import s3_state_store
from forebay.state.open_state_store import open_state_store
from forebay.stores.s3 import client
from forebay.stores.storage_options import StorageOptions

# moto checks for an object and puts it in two steps, in many threads; S3 does so in one step.
SERVER = """
import sys, threading
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
inner, lock = DomainDispatcherApplication(create_backend_app), threading.Lock()
def one_at_a_time(environ, start_response):
    with lock:
        return inner(environ, start_response)
run_simple("127.0.0.1", int(sys.argv[1]), one_at_a_time, threaded=True)
"""

KEYS = {"key": "the-key-id", "secret": "the-secret-text", "region": "us-east-1"}


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def serve(directory: Path, **environment: str) -> tuple[subprocess.Popen[bytes], str]:
    for _ in range(2):
        try:
            return served(directory, **environment)
        except RuntimeError as error:
            if "Address already in use" not in str(error):  # else retry with another port
                raise
    return served(directory, **environment)


def served(directory: Path, **environment: str) -> tuple[subprocess.Popen[bytes], str]:
    port = free_port()
    command = [sys.executable, "-P", "-c", SERVER, str(port)]
    log = (directory / "moto.log").open("wb")
    process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **environment})
    log.close()
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(f"{url}/moto-api/", timeout=5).close()
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                raise RuntimeError((directory / "moto.log").read_text()) from None
            time.sleep(0.05)
        else:
            return process, url


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[str]:
    process, url = serve(tmp_path_factory.mktemp("moto"))
    client = boto3.client(
        "s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="y"
    )
    client.create_bucket(Bucket="state")
    yield url
    process.terminate()
    process.wait(30)


@pytest.fixture
def location() -> str:
    return f"s3://state/{uuid.uuid4().hex[:8]}/chk"


def opened(server: str, location: str, **more: str):
    return open_state_store(location, StorageOptions({**KEYS, "endpoint_url": server, **more}))


def test_a_fact_is_written_once_and_read_by_others(server, location):
    store = opened(server, location)
    assert store.get("q/segments/1") is None
    assert store.put_if_absent("q/segments/1", b"mine") is True
    assert store.put_if_absent("q/segments/1", b"yours") is False
    assert opened(server, location.replace("s3:", "s3a:")).get("q/segments/1") == b"mine"


def test_names_are_those_directly_below_and_deleting_twice_is_nothing(server, location):
    store = opened(server, location)
    names = [f"q/segments/{number:04}" for number in range(1005)]  # two pages
    for name in (*names[:3], names[-1], "q/segments/deeper/1", "q/other"):
        store.put_if_absent(name, b"")
    assert store.names("q/segments/") == [*names[:3], names[-1]]
    store.delete([names[0], names[0], "q/segments/never"])
    assert store.names("q/segments/") == [*names[1:3], names[-1]]
    assert store.names("nothing/") == []


def test_of_thirty_writers_one_wins_and_its_content_stands(server, location):
    store = opened(server, location)
    store.put_if_absent("warm", b"")
    start, won = threading.Barrier(30), []

    def put(number: int) -> None:
        start.wait()
        if store.put_if_absent("claim", b"%d" % number * 100):
            won.append(number)

    threads = [threading.Thread(target=put, args=(number,)) for number in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert store.get("claim") == b"%d" % won[0] * 100


@pytest.mark.parametrize("call", ["get", "put_if_absent", "names", "delete"])
def test_a_bucket_that_is_not_there(server, call):
    store = opened(server, "s3://nowhere/x")
    arguments = {"get": ("a",), "put_if_absent": ("a", b""), "names": ("a/",), "delete": (["a"],)}[call]
    with pytest.raises(ConfigurationError, match="no bucket 'nowhere'") as caught:
        getattr(store, call)(*arguments)
    assert caught.value.option == "stateLocation"
    assert "create the bucket" in caught.value.advice


def test_wrong_credentials_and_no_permission(tmp_path):
    process, url = serve(tmp_path, INITIAL_NO_AUTH_ACTION_COUNT="3")
    try:
        root = {"endpoint_url": url, "region_name": "us-east-1"}
        boto3.client("s3", aws_access_key_id="x", aws_secret_access_key="y", **root).create_bucket(Bucket="state")
        iam = boto3.client("iam", aws_access_key_id="x", aws_secret_access_key="y", **root)
        iam.create_user(UserName="nobody")
        made = iam.create_access_key(UserName="nobody")["AccessKey"]
        unknown = opened(url, "s3://state/x", key="AKIAUNKNOWN", secret="never-to-be-shown")
        for_call = pytest.raises(ConfigurationError, match="credentials are wrong or expired")
        with for_call as caught:
            unknown.get("a")
        assert "stateStorage.key" in caught.value.advice
        assert "never-to-be-shown" not in str(caught.value) and "AKIAUNKNOWN" not in str(caught.value)
        wrong = opened(url, "s3://state/x", key=made["AccessKeyId"], secret="never-to-be-shown")
        with pytest.raises(ConfigurationError, match="credentials are wrong or expired"):
            wrong.get("a")
        denied = opened(url, "s3://state/x", key=made["AccessKeyId"], secret=made["SecretAccessKey"])
        with pytest.raises(ConfigurationError, match="no permission to write") as caught:
            denied.put_if_absent("a", b"")
        assert "s3:PutObject" in caught.value.advice
    finally:
        process.terminate()
        process.wait(30)


def test_no_credentials_at_all(server, location, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    store = open_state_store(location, StorageOptions({"endpoint_url": server}))
    with pytest.raises(ConfigurationError, match="no credentials to read") as caught:
        store.get("a")
    assert "AWS_ACCESS_KEY_ID" in caught.value.advice


def test_the_chain_of_boto3_is_used(server, location, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from-outside")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "from-outside")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    assert open_state_store(location).put_if_absent("a", b"x") is True


def test_a_store_that_is_down_is_retriable(location, monkeypatch):
    monkeypatch.setattr(client, "ATTEMPTS", 1)
    store = opened(f"http://127.0.0.1:{free_port()}", location)
    with pytest.raises(RetriableError, match="did not answer") as caught:
        store.put_if_absent("a", b"")
    assert caught.value.option == "stateLocation"


def answer(code: str, status: int):
    from botocore.exceptions import ClientError

    return ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "PutObject")


@pytest.mark.parametrize(
    ("code", "status", "kind", "said"),
    [
        ("SlowDown", 503, RetriableError, "too busy"),
        ("InternalError", 500, RetriableError, "too busy"),
        ("Odd", 599, RetriableError, "too busy"),
        ("TooManyRequests", 429, RetriableError, "too busy"),
        ("NotImplemented", 501, ConfigurationError, "does not support If-None-Match"),
        ("AccessDenied", 403, ConfigurationError, "no permission"),
        ("PermanentRedirect", 301, ConfigurationError, "another region"),
        ("ExpiredToken", 400, ConfigurationError, "wrong or expired"),
    ],
)
def test_error_answers_of_the_store_become_forebay_errors(server, location, monkeypatch, code, status, kind, said):
    store = opened(server, location)

    def refuse(**_kwargs):
        raise answer(code, status)

    monkeypatch.setattr(store._client.boto, "put_object", refuse)
    monkeypatch.setattr(store._client, "_renewed", lambda boto: boto)
    with pytest.raises(kind, match=said) as caught:
        store.put_if_absent("a", b"")
    assert caught.value.option == "stateLocation" and caught.value.advice


def test_a_conflict_is_retried_until_a_writer_has_won(server, location, monkeypatch):
    store = opened(server, location)
    store.put_if_absent("warm", b"")
    real, refused = store._client.boto.put_object, []

    def conflict(**kwargs):
        if not refused:
            refused.append(1)
            raise answer("ConditionalRequestConflict", 409)
        return real(**kwargs)

    monkeypatch.setattr(store._client.boto, "put_object", conflict)
    assert store.put_if_absent("a", b"") is True


def test_what_cannot_be_deleted_at_once_is_deleted_one_by_one(server, location, monkeypatch):
    store = opened(server, location)
    for name in "abc":
        store.put_if_absent(f"d/{name}", b"")

    def refuse(**_kwargs):
        raise answer("NotImplemented", 501)

    monkeypatch.setattr(store._client.boto, "delete_objects", refuse)
    store.delete(["d/a", "d/b"])
    assert store.names("d/") == ["d/c"]
    monkeypatch.setattr(
        store._client.boto, "delete_objects", lambda **_: {"Errors": [{"Key": "x", "Code": "AccessDenied"}]}
    )
    with pytest.raises(ConfigurationError, match="no permission to delete"):
        store.delete(["d/c"])


def test_a_store_that_overwrites_is_refused(server, location, monkeypatch):
    monkeypatch.setattr(s3_state_store, "_probed", set())
    store = opened(server, location)
    real = store._client.boto.put_object
    monkeypatch.setattr(store._client.boto, "put_object", lambda IfNoneMatch, **kwargs: real(**kwargs))  # noqa: N803
    with pytest.raises(ConfigurationError, match="overwrites an object"):
        store.put_if_absent("a", b"")
    assert store.names("") == []


def test_without_boto3_the_error_has_the_command(location, monkeypatch):
    monkeypatch.setitem(sys.modules, "boto3", None)
    monkeypatch.setattr(client, "_clients", {})
    with pytest.raises(ConfigurationError, match="boto3") as caught:
        open_state_store(location)
    assert caught.value.advice == 'pip install "forebay[s3]"'


@pytest.mark.parametrize("location", ["s3://", "s3:x", "s3:///x"])
def test_a_url_without_a_bucket_is_refused(location):
    with pytest.raises(ConfigurationError, match="names no bucket"):
        open_state_store(location)


def test_credentials_do_not_belong_into_the_url():
    with pytest.raises(ConfigurationError, match="contains credentials") as caught:
        open_state_store("s3://me:very-secret@bucket/x")
    assert "very-secret" not in str(caught.value)


def test_an_unknown_option_is_refused_with_the_nearest_one():
    with pytest.raises(ConfigurationError, match="did you mean 'endpoint_url'"):
        open_state_store("s3://b/x", StorageOptions({"endpointurl": "http://x"}))


class Lines(Source):
    """A source for the codec."""

    name = "lines"

    def schema(self):
        raise NotImplementedError

    def create_enumerator(self, context):
        raise NotImplementedError

    def create_split_reader(self, context):
        raise NotImplementedError


def test_a_stream_keeps_its_state_on_s3(server, location):
    def codec():
        return SpillingOffsetCodec(
            Lines(),
            opened(server, location),
            ConnectorCalls("lines", ThreadRuntime(), retry=RetryPolicy(retries=0), timeout=60),
        )

    splits = [Split(f"part-{number:05}-{number * 2654435761 % 2**32:08x}") for number in range(3000)]
    done, first, data = FinishedSplits(Split), codec(), {}
    for n in range(4):
        taken = [Planned(split, UnknownEnd.WHOLE) for split in splits[n * 700 : n * 700 + 700]]
        data = json.loads(json.dumps(first.write(Offset("lines", n, "q", taken), done)))
        done.mark_written()
        done.add(planned.split for planned in taken)
    again = codec()
    assert [planned.split for planned in again.read(data).splits] == splits[2100:2800]
    assert set(again.read_done(data)) == {split.id for split in splits[:2100]}
    assert len(json.dumps(data)) < 32 << 10 and data["state"]["at"] == location
    opened(server, location).delete(["q/segments/" + data["state"]["segment"]])
    with pytest.raises(ConfigurationError, match="is missing from"):
        codec().read_done(data)
