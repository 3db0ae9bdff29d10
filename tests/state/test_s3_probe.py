# SPDX-License-Identifier: Apache-2.0
"""The probe of `If-None-Match`, with lost answers: a fake client, no server."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from forebay.errors import ConfigurationError, RetriableError
from forebay.state import s3_state_store
from forebay.state.s3_state_store import S3StateStore
from forebay.stores.storage_options import StorageOptions


class Bucket:
    """A fake of boto3's client for writes.

    Args:
        lost: Number of first answers that are lost: the client repeats the request, and finds its own object.
        overwrites: It ignores `If-None-Match`.
    """

    def __init__(self, *, lost: int = 0, overwrites: bool = False) -> None:
        self.objects: dict[str, bytes] = {}
        self.lost = lost
        self.overwrites = overwrites

    def put_object(self, *, Bucket: str, Key: str, Body: bytes, IfNoneMatch: str) -> None:  # noqa: N803 - boto3's names
        assert (Bucket, IfNoneMatch) == ("state", "*")
        there = Key in self.objects
        if there and not self.overwrites:
            raise _precondition_failed()
        self.objects[Key] = Body
        if not there and self.lost:
            self.lost -= 1
            if not self.overwrites:
                raise _precondition_failed()

    def delete_objects(self, *, Bucket: str, Delete: dict[str, Any]) -> dict[str, Any]:  # noqa: N803 - boto3's names
        assert Bucket == "state"
        for each in Delete["Objects"]:
            del self.objects[each["Key"]]
        return {}


def _precondition_failed() -> ClientError:
    return ClientError(
        {"Error": {"Code": "PreconditionFailed"}, "ResponseMetadata": {"HTTPStatusCode": 412}}, "PutObject"
    )


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> S3StateStore:
    monkeypatch.setattr(s3_state_store, "_probed", set())
    options = {"key": "k", "secret": "s", "endpoint_url": "http://127.0.0.1:9"}
    return S3StateStore("s3://state/chk", StorageOptions(options))


def give(store: S3StateStore, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for call in ("put_object", "delete_objects"):
        monkeypatch.setattr(store._client.boto, call, getattr(bucket, call))


def test_a_lost_answer_is_not_taken_for_an_overwrite(store: S3StateStore, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket(lost=2)
    give(store, bucket, monkeypatch)
    assert store.put_if_absent("a", b"mine") is True
    assert bucket.objects == {"chk/a": b"mine"}
    assert store.put_if_absent("a", b"yours") is False


def test_a_store_that_loses_all_answers_is_retriable(store: S3StateStore, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket(lost=1_000_000)
    give(store, bucket, monkeypatch)
    with pytest.raises(RetriableError, match="could not be probed") as raised:
        store.put_if_absent("a", b"mine")
    assert raised.value.option == "stateLocation"
    assert raised.value.advice
    assert bucket.objects == {}
    bucket.lost = 0
    assert store.put_if_absent("a", b"mine") is True


@pytest.mark.parametrize("lost", [0, 1])
def test_a_store_that_overwrites_is_refused_at_once(
    store: S3StateStore, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    bucket = Bucket(lost=lost, overwrites=True)
    give(store, bucket, monkeypatch)
    with pytest.raises(ConfigurationError, match="overwrites an object"):
        store.put_if_absent("a", b"mine")
    assert bucket.objects == {}
