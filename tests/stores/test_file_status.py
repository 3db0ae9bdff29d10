# SPDX-License-Identifier: Apache-2.0
"""The identity of a listed file, its path as in Spark, and options without visible values."""

from __future__ import annotations

import pickle

import pytest

from forebay.stores.file_status import FileStatus, spark_file_name, spark_file_path
from forebay.stores.store import StorageOptions


def test_a_status_is_plain_data():
    status = FileStatus("/d/a b.csv", 3, 1_717_243_200_001_999_999)
    assert pickle.loads(pickle.dumps(status)) == status
    assert (status.name, status.modified_ms) == ("a b.csv", 1_717_243_200_001)


@pytest.mark.parametrize(
    ("then", "now", "same"),
    [
        (FileStatus("f", 1, 5), FileStatus("f", 1, 5), True),
        (FileStatus("f", 1, 5), FileStatus("f", 2, 5), False),
        (FileStatus("f", 1, 5), FileStatus("f", 1, 6), False),
        (FileStatus("f", 1, 5, "x"), FileStatus("f", 1, 6, "x"), True),  # a store that rounds times in one answer
        (FileStatus("f", 1, 5, "x"), FileStatus("f", 1, 5, "y"), False),
        (FileStatus("f", 1, 5, "x"), FileStatus("f", 2, 5, "x"), False),
        (FileStatus("f", 1, 5, "x"), FileStatus("f", 1, 5), True),
        # A listing without ETag, in milliseconds; a HEAD in seconds, with ETag.
        (FileStatus("s3://b/f", 1, 34_054_000_000), FileStatus("s3://b/f", 1, 34_000_000_000, "x"), True),
        (FileStatus("s3://b/f", 1, 34_000_000_000, "x"), FileStatus("s3://b/f", 1, 34_054_000_000), True),
        (FileStatus("s3://b/f", 1, 34_054_000_000), FileStatus("s3://b/f", 1, 34_054_321_000), True),
        (FileStatus("s3://b/f", 1, 34_054_000_000), FileStatus("s3://b/f", 1, 35_000_000_000, "x"), False),
        (FileStatus("s3://b/f", 1, 34_054_000_000), FileStatus("s3://b/f", 1, 34_055_000_000), False),
        (FileStatus("s3://b/f", 2, 34_054_000_000), FileStatus("s3://b/f", 1, 34_000_000_000, "x"), False),
        (FileStatus("s3://b/f", 1, 0), FileStatus("s3://b/f", 1, 34_000_000_000, "x"), False),
        # A local file system has one precision: it is another time.
        (FileStatus("/f", 1, 34_000_000_000), FileStatus("/f", 1, 34_054_000_000), False),
    ],
)
def test_same_file_means_size_and_etag_or_else_time(then, now, same):
    assert then.same_file(now) is same


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/d/a b.csv", "file:/d/a%20b.csv"),
        ("/d/p%2Fq", "file:/d/p%252Fq"),
        ("/d/h#x?y", "file:/d/h%23x%3Fy"),
        ("/d/😀é", "file:/d/😀é"),
        ("/d/n\nl\u2028\u00a0", "file:/d/n%0Al%E2%80%A8%C2%A0"),
        ("s3://b-1/k y", "s3://b-1/k%20y"),
    ],
)
def test_spark_file_path_escapes_as_java_does(path, shown):
    assert spark_file_path(path) == shown
    assert spark_file_name(path) == shown.rsplit("/", 1)[1]


def test_storage_options_are_pickled_but_not_shown():
    options = StorageOptions(
        {"key": "AKIA123", "client_kwargs": {"token": "hunter22", "endpoint_url": "http://s3.local"}}
    )
    again = pickle.loads(pickle.dumps(options))
    assert dict(again) == dict(options) and again == options
    for text in (repr(options), str(options), f"{options}"):
        assert "AKIA" not in text and "hunter" not in text and "key=" in text
    assert options.redact("http://s3.local: denied for AKIA123 with hunter22") == "http://s3.local: denied for … with …"
