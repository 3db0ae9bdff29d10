# SPDX-License-Identifier: Apache-2.0
"""GETs on the connections of botocore: the same signatures and answers, and botocore where that cannot be."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from botocore.exceptions import ClientError

from forebay.stores.s3.client import S3Client
from forebay.stores.s3.settings import S3Settings
from forebay.stores.store import StorageOptions

KEYS = ["plain", "a%2Fb", "a b+c", "d//x", "😀/é", "tilde~/'quote\"", "#?&=", "k" * 1024]
NO_FILE_NAMES = ["d//x", "k" * 1024]


def client(bucket: Any, **more: object) -> S3Client:
    return S3Client(S3Settings.of(bucket.options(**more)))


def sent_by_botocore(found: S3Client) -> list[str]:
    """Return a list that gets the URL of each GET that botocore sends."""
    sent: list[str] = []
    found.boto.meta.events.register("before-send.s3.GetObject", lambda request, **_: sent.append(request.url))
    return sent


def read(found: S3Client, bucket: Any, key: str, start: int = 0, end: int = 3) -> bytes:
    body: bytes = found.get_range(bucket.name, key, start, end, None)["Body"].read()
    return body


def test_only_the_first_get_of_a_bucket_is_sent_by_botocore_and_answers_are_the_same(bucket):
    same_answers(bucket, [key for key in KEYS if key not in NO_FILE_NAMES])


def test_the_answers_for_keys_that_are_no_names_of_files_are_the_same(moto_bucket):
    """On moto: a server on a file system does not have them."""
    same_answers(moto_bucket, KEYS)


def same_answers(bucket, keys):
    bucket.put(dict.fromkeys(keys, "abcdef"))
    found = client(bucket)
    sent = sent_by_botocore(found)
    for key in keys:
        theirs = found.call("get_object", Bucket=bucket.name, Key=key, Range="bytes=1-3")
        sent.clear()
        ours = found.get_range(bucket.name, key, 1, 4, theirs["ETag"].strip('"'))
        assert [ours[name] for name in ("ContentLength", "ContentRange", "ETag")] == [3, "bytes 1-3/6", theirs["ETag"]]
        assert ours["Body"].read() == theirs["Body"].read() == b"bcd"
        assert len(sent) == (key == keys[0])


def test_anonymous_gets_are_not_signed(moto_bucket):
    """On moto: versitygw has no anonymous reads."""
    moto_bucket.client.put_object(Bucket=moto_bucket.name, Key="k", Body=b"abc", ACL="public-read")
    found = S3Client(S3Settings.of(StorageOptions({"anon": True, "endpoint_url": moto_bucket.endpoint})))
    signed = []
    moto_bucket.intercept = lambda environ: signed.append("HTTP_AUTHORIZATION" in environ)
    sent = sent_by_botocore(found)
    assert [read(found, moto_bucket, "k") for _ in range(2)] == [b"abc", b"abc"]
    assert (signed, len(sent)) == ([False, False], 1)


def test_a_failure_is_repeated_by_botocore_which_retries_and_names_it(bucket):
    bucket.put({"k": "abc"})
    found = client(bucket)
    read(found, bucket, "k")
    sent = sent_by_botocore(found)
    answers = iter([("503 Slow Down", "SlowDown"), ("503 Slow Down", "SlowDown"), None, None])
    bucket.intercept = lambda _: next(answers)
    assert read(found, bucket, "k") == b"abc"
    assert len(sent) == 2
    assert read(found, bucket, "k") == b"abc"
    assert len(sent) == 2
    bucket.intercept = lambda _: None
    with pytest.raises(ClientError, match="NoSuchKey"):
        read(found, bucket, "none")
    assert read(found, bucket, "k") == b"abc"
    assert len(sent) == 3


def test_botocore_sends_all_gets_of_a_bucket_that_refuses_direct_ones(bucket):
    bucket.put({"k": "abc"})
    found = client(bucket)
    read(found, bucket, "k")
    sent = sent_by_botocore(found)
    answers = iter([("400 Bad Request", "AuthorizationHeaderMalformed")])
    bucket.intercept = lambda _: next(answers, None)
    assert [read(found, bucket, "k") for _ in range(3)] == [b"abc"] * 3
    assert len(sent) == 3


@pytest.mark.parametrize("more", [{"response_checksum_validation": "when_supported"}, {"signature_version": "s3"}])
def test_botocore_sends_gets_that_only_it_can_sign_or_verify(moto_bucket, more):
    """On moto: versitygw has no signatures of version 2."""
    import json

    moto_bucket.put({"k": "abc"})
    found = client(moto_bucket, config_kwargs=json.dumps(more))
    sent = sent_by_botocore(found)
    assert [read(found, moto_bucket, "k") for _ in range(2)] == [b"abc"] * 2
    assert len(sent) == 2


def test_a_server_that_is_gone_is_an_error_of_botocore(bucket):
    bucket.put({"k": "abc"})
    found = client(bucket)
    read(found, bucket, "k")
    sent = sent_by_botocore(found)
    example = found._direct._examples[bucket.name]
    assert example is not None
    found._direct._examples[bucket.name] = dataclasses.replace(example, base="http://127.0.0.1:9/")
    assert read(found, bucket, "k") == b"abc"
    assert len(sent) == 1
