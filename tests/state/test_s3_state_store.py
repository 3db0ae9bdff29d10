# SPDX-License-Identifier: Apache-2.0
"""State on S3: a real server, real races.

On moto only users without permissions: the real servers have one user, who may do everything.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import uuid
from typing import Any

import pytest
from s3_servers import KEY, REGION, SECRET, S3Server, bucket_of_moto

from forebay.errors import ConfigurationError, RetriableError
from forebay.framework.microbatch.offset import Offset, Planned, UnknownEnd
from forebay.framework.microbatch.offset_codec import FinishedSplits
from forebay.framework.microbatch.spilling_codec import SpillingOffsetCodec
from forebay.framework.runtime.clients import ConnectorCalls
from forebay.framework.runtime.runtime import ThreadRuntime
from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay.retry import RetryPolicy
from forebay.state import s3_state_store
from forebay.state.open_state_store import open_state_store
from forebay.state.state_store import RetryingStateStore
from forebay.stores.s3 import client
from forebay.stores.store import StorageOptions

KEYS = {"key": KEY, "secret": SECRET, "region": REGION}


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.fixture(scope="module")
def server(s3_server: S3Server) -> str:
    s3_server.make_bucket("state")
    return s3_server.url


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


WRITER = """
import json, sys
from forebay.state.open_state_store import open_state_store
from forebay.stores.store import StorageOptions
location, options, number = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3].encode()
store = open_state_store(location, StorageOptions(options))
store.get("warm")
print("ready", flush=True)
for line in sys.stdin:
    won = store.put_if_absent(f"race/{line.strip()}", number * 1000)
    print(int(won), flush=True)
"""


@pytest.mark.parametrize("rounds", [2, pytest.param(60, marks=pytest.mark.soak)])
def test_of_six_processes_one_wins_each_round(server, location, rounds, record_property, s3_server):
    options = json.dumps({**KEYS, "endpoint_url": server})
    command = [sys.executable, "-P", "-c", WRITER, location, options]
    writers: list[Any] = []
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    try:
        writers += [subprocess.Popen([*command, str(number)], **pipes) for number in range(6)]
        assert [writer.stdout.readline() for writer in writers] == ["ready\n"] * 6
        won = []
        for number in range(rounds):
            for writer in writers:
                writer.stdin.write(f"{number}\n")
            won.append(sum(int(writer.stdout.readline()) for writer in writers))
    finally:
        for writer in writers:
            writer.stdin.close()
            writer.wait(30)
            writer.stdout.close()
    assert won == [1] * rounds
    record_property("report", f"{s3_server.name}: 6 processes, {rounds} rounds, one winner in each")


@pytest.mark.parametrize(
    "seconds", [3, pytest.param(20, marks=pytest.mark.soak), pytest.param(60, marks=pytest.mark.soak)]
)
def test_a_server_that_is_away_for_some_time_is_waited_for(s3_server, server, location, seconds):
    store = RetryingStateStore(opened(server, location))
    assert store.put_if_absent("a", b"1") is True
    s3_server.kill()
    back = threading.Timer(seconds, s3_server.start)
    back.start()
    try:
        assert store.put_if_absent("b", b"2") is True
        assert (store.get("a"), store.get("b")) == (b"1", b"2")
    finally:
        back.join()


@pytest.mark.parametrize("call", ["get", "put_if_absent", "names"])
def test_a_bucket_that_is_not_there(server, call):
    store = opened(server, "s3://nowhere/x")
    arguments = {"get": ("a",), "put_if_absent": ("a", b""), "names": ("a/",)}[call]
    with pytest.raises(ConfigurationError, match="no bucket 'nowhere'") as caught:
        getattr(store, call)(*arguments)
    assert caught.value.option == "stateLocation"
    assert "create the bucket" in caught.value.advice


def test_deleting_in_a_bucket_that_is_not_there():
    """On moto: s3proxy answers that the objects are deleted."""
    with bucket_of_moto() as bucket, pytest.raises(ConfigurationError, match="no bucket 'nowhere'"):
        open_state_store("s3://nowhere/x", bucket.options()).delete(["a"])


@pytest.mark.parametrize("wrong", ["key", "secret"])
def test_wrong_credentials_are_named_and_not_shown(server, location, wrong):
    store = opened(server, location, **{wrong: "never-to-be-shown"})
    with pytest.raises(ConfigurationError, match="credentials are wrong or expired") as caught:
        store.get("a")
    assert "stateStorage.key" in caught.value.advice and server.removeprefix("http://") in str(caught.value)
    assert not any(text in str(caught.value) for text in ("never-to-be-shown", KEY, SECRET))


def test_no_permission(monkeypatch):
    with bucket_of_moto() as bucket:
        store = open_state_store(bucket.url("x"), bucket.options())
        bucket.intercept = lambda environ: ("403 No", "AccessDenied") if environ["REQUEST_METHOD"] == "PUT" else None
        with pytest.raises(ConfigurationError, match="no permission to write") as caught:
            store.put_if_absent("a", b"")
        assert "s3:PutObject" in caught.value.advice


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
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
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
