# SPDX-License-Identifier: Apache-2.0
"""Settings of Hadoop's S3 connector, as options of S3."""

from __future__ import annotations

import pytest

from forebay.errors import ConfigurationError
from forebay.options import Secret
from forebay.stores.s3.settings import S3Settings, from_s3a
from forebay.stores.store import StorageOptions

SIMPLE = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
ANONYMOUS = "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"
ROLE = "org.apache.hadoop.fs.s3a.auth.AssumedRoleCredentialProvider"
KEYS = {"access.key": "a", "secret.key": "b"}


def translated(settings: dict[str, str]) -> dict[str, object]:
    return from_s3a({f"fs.s3a.{name}": Secret(value) for name, value in settings.items()})


def shown(options: dict[str, object]) -> dict[str, object]:
    return {name: value.reveal() if isinstance(value, Secret) else value for name, value in options.items()}


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({**KEYS, "session.token": "t"}, {"key": "a", "secret": "b", "token": "t"}),
        (
            {"endpoint": "http://minio:9000", "path.style.access": "true"},
            {"endpoint_url": "http://minio:9000", "addressing_style": "path"},
        ),
        (
            {"endpoint": "minio:9000", "connection.ssl.enabled": "false"},
            {"endpoint_url": "http://minio:9000", "addressing_style": "auto", "use_ssl": False},
        ),
        ({"endpoint": "store.example"}, {"endpoint_url": "https://store.example", "addressing_style": "auto"}),
        ({"endpoint": "s3.eu-west-1.amazonaws.com"}, {"region": "eu-west-1"}),
        ({"endpoint": "s3.amazonaws.com", "endpoint.region": "eu-west-2"}, {"region": "eu-west-2"}),
        ({"requester.pays.enabled": "true"}, {"requester_pays": "true"}),
        ({"aws.credentials.provider": f"{SIMPLE},{ANONYMOUS}"}, {"anon": True}),
        ({"aws.credentials.provider": ANONYMOUS, **KEYS}, {"anon": True}),
        ({"aws.credentials.provider": f"{SIMPLE}, {ANONYMOUS}", **KEYS}, {"key": "a", "secret": "b"}),
        ({"aws.credentials.provider": "com.amazonaws.auth.EnvironmentVariableCredentialsProvider", **KEYS}, {}),
        ({"assumed.role.arn": "arn:r", **KEYS}, {"key": "a", "secret": "b"}),
        (
            {"assumed.role.arn": "arn:r", "aws.credentials.provider": ROLE, **KEYS},
            {"role_arn": "arn:r", "key": "a", "secret": "b"},
        ),
        ({"encryption.algorithm": "SSE-KMS", "connection.maximum": "500", "fast.upload.buffer": "disk"}, {}),
    ],
)
def test_settings_that_say_the_same_are_translated(settings, options):
    assert shown(translated(settings)) == options


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("proxy.host", "p"),
        ("encryption.algorithm", "SSE-C"),
        ("bucket.lake.endpoint", "x"),
        ("security.credential.provider.path", "jceks://x"),
        ("aws.credentials.provider", "com.example.Mine"),
    ],
)
def test_a_setting_that_would_change_the_read_is_named(name, value):
    with pytest.raises(ConfigurationError, match=f"fs.s3a.{name}") as raised:
        translated({name: value, **KEYS})
    assert raised.value.option == f"spark.hadoop.fs.s3a.{name}"
    assert "storage." in str(raised.value.advice)


def test_settings_and_options_are_not_mixed():
    settings = {"fs.s3a.access.key": Secret("k"), "fs.s3a.secret.key": Secret("s")}
    assert S3Settings.of(StorageOptions(settings)).key == Secret("k")
    with pytest.raises(ConfigurationError, match="are both set"):
        S3Settings.of(StorageOptions({**settings, "region": "x"}))
