# SPDX-License-Identifier: Apache-2.0
"""The options of S3."""

from __future__ import annotations

import pickle
import traceback

import pytest

from forebay.errors import ConfigurationError
from forebay.options import Secret
from forebay.stores.s3.settings import S3Settings
from forebay.stores.store import StorageOptions


def settings(**options: object) -> S3Settings:
    return S3Settings.of(StorageOptions(options))


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("keys", "key"), ("endpointurl", "endpoint_url"), ("aws_access_key_id", "key"), ("region_name", "region"),
        ("password", "secret"), ("rolearn", "role_arn"), ("path_style_access", "addressing_style"),
    ],
)  # fmt: skip
def test_an_unknown_option_is_refused_with_the_one_that_is_meant(name, meant):
    with pytest.raises(ConfigurationError, match=f"no option storage.{name} for S3, did you mean {meant!r}") as raised:
        settings(**{name: "never-shown"})
    assert raised.value.option == f"storage.{name}"
    assert "never-shown" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": "k"}, "storage.key needs storage.secret"),
        ({"token": "t"}, "storage.token needs storage.key"),
        ({"anon": "true", "profile": "p"}, "anon=true reads without credentials"),
        ({"external_id": "x"}, "storage.external_id needs storage.role_arn"),
        ({"addressing_style": "dns"}, "'dns' is not an addressing style"),
        ({"anon": "perhaps"}, "storage.anon is not true or false"),
        ({"read_timeout": "0"}, "storage.read_timeout is not a positive number"),
        ({"max_pool_connections": 1.5}, "not a positive whole number"),
        ({"config_kwargs": "[1]"}, "not a JSON object"),
        ({"endpoint_url": ""}, "storage.endpoint_url is not a text"),
    ],
)
def test_wrong_values_and_contradictions_are_refused(options, said):
    with pytest.raises(ConfigurationError, match=said):
        settings(**options)


def test_credentials_are_not_shown_and_references_travel(monkeypatch):
    monkeypatch.setenv("S3_SECRET", "a-very-secret-text")
    found = settings(KEY="an-access-key", secret=Secret("env:S3_SECRET"), client_kwargs={"aws_session_token": "hidden"})
    for text in (repr(found), str(pickle.loads(pickle.dumps(found)))):
        assert "an-access-key" not in text
        assert "hidden" not in text
        assert "env:S3_SECRET" in text
    assert b"a-very-secret-text" not in pickle.dumps(found)
    assert found == pickle.loads(pickle.dumps(found))
    assert hash(found) == hash(pickle.loads(pickle.dumps(found)))


@pytest.mark.parametrize(
    "url",
    [
        *(
            "http://u:canary+7/x@127.0.0.1:1",
            "http://u:1/canary@h",
            "canary+7/x",
            "http://u:canary@h",
            "http://canary@h",
        ),
        *("http://u:1#canary@h", "http://h?token=canary", "http://h/?token=canary", "http://h/#canary", "http://h:0"),
    ],
)
@pytest.mark.parametrize("name", ["endpoint_url", "sts_endpoint_url"])
def test_an_endpoint_that_is_no_url_is_refused_and_not_shown(name, url):
    with pytest.raises(ConfigurationError, match=f"storage.{name} is not the URL") as caught:
        settings(**{name: url, "role_arn": "arn:aws:iam::1:role/x"})
    assert "canary" not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__context__ is None and caught.value.option == f"storage.{name}"
