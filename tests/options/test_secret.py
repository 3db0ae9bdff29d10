# SPDX-License-Identifier: Apache-2.0
"""Secrets are never shown, can be pickled for workers, and are resolved where they are used."""

from __future__ import annotations

import copy
import json
import pickle
import traceback
from dataclasses import asdict, dataclass
from typing import Any

import pytest

from forebay.errors import ConfigurationError, ForebayError
from forebay.options import Secret, class_options, coerce_fields, option, parse_options

PLAIN = "hunter2-hunter2"


@pytest.mark.parametrize(
    "show", [repr, str, "{}".format, "{!r:>30}".format, "{:>40}".format, lambda s: f"{[s]} { ({'k': s}) }", ascii]
)
def test_no_way_of_showing_a_secret_shows_it(show):
    assert PLAIN not in show(Secret(PLAIN))


def test_a_reference_is_shown_because_it_is_not_secret():
    assert repr(Secret("env:TOKEN")) == "Secret('env:TOKEN')"
    assert str(Secret("file:/run/token")) == "file:/run/token"
    assert Secret(PLAIN).reference is None


def test_a_secret_cannot_slip_into_json_or_be_joined_to_text():
    with pytest.raises(TypeError):
        json.dumps(Secret(PLAIN))
    with pytest.raises(TypeError):
        "Bearer " + Secret(PLAIN)  # type: ignore[operator]
    with pytest.raises(TypeError):
        "".join(Secret(PLAIN))  # type: ignore[arg-type]


def test_a_secret_travels_and_compares_but_does_not_change():
    secret = Secret(PLAIN)
    for again in (pickle.loads(pickle.dumps(secret)), copy.copy(secret), copy.deepcopy(secret)):
        assert again == secret
        assert hash(again) == hash(secret)
        assert again.reveal() == PLAIN
    assert secret != PLAIN
    assert secret != Secret("other")
    assert secret and not Secret("")
    with pytest.raises(AttributeError):
        secret._text = "x"
    with pytest.raises(AttributeError):
        del secret._text
    assert not hasattr(secret, "__dict__")


def test_an_environment_reference_is_looked_up_at_every_reveal(monkeypatch):
    secret = Secret("env:FOREBAY_TEST_TOKEN")
    with pytest.raises(ConfigurationError, match="FOREBAY_TEST_TOKEN"):
        secret.reveal()
    monkeypatch.setenv("FOREBAY_TEST_TOKEN", "one")
    assert secret.reveal() == "one"
    monkeypatch.setenv("FOREBAY_TEST_TOKEN", "two")
    assert secret.reveal() == "two"


def test_a_file_reference_gives_the_content_without_the_last_line_break(tmp_path):
    path = tmp_path / "to ken"
    for reference in (f"file:{path}", f"file://{path}"):
        for content, expected in ((b"abc\n", "abc"), (b"abc\r\n", "abc"), (b"a\n\n", "a\n"), ("é".encode(), "é")):
            path.write_bytes(content)
            assert Secret(reference).reveal() == expected


def test_a_file_that_cannot_be_read_is_named_and_its_bytes_are_not_shown(tmp_path):
    with pytest.raises(ConfigurationError, match="missing"):
        Secret(f"file:{tmp_path}/missing").reveal()
    (tmp_path / "latin").write_bytes(b"hunter\xff")
    with pytest.raises(ConfigurationError, match="UTF-8") as caught:
        Secret(f"file:{tmp_path}/latin").reveal()
    assert "hunter" not in everywhere(caught.value)


@pytest.mark.parametrize("text", ["env:", "env:MY-TOKEN", "env:hunter 2", "file:", "file:relative", "file:~/hunter"])
def test_what_only_begins_like_a_reference_is_refused_without_being_shown(text):
    with pytest.raises(ConfigurationError) as caught:
        Secret(text)
    assert (text.partition(":")[2] or PLAIN) not in str(caught.value)


def test_a_secret_is_made_of_text_only():
    with pytest.raises(TypeError, match="bytes"):
        Secret(b"x")  # type: ignore[arg-type]


@dataclass(frozen=True)
class Holder:
    token: Secret
    pin: int = option(0, secret=True)
    pairs: dict[str, int] = option(prefix="client.")
    tokens: dict[str, Secret] = option(default_factory=dict)

    def __post_init__(self) -> None:
        coerce_fields(self)


def everywhere(error: BaseException) -> str:
    """All texts of an error, including its pickle."""
    chain: list[Any] = [error, error.__cause__, error.__context__]
    return "".join(traceback.format_exception(error)) + repr(chain) + repr(pickle.dumps(error))


@pytest.mark.parametrize(
    "given",
    [
        {"token": "t", "pin": PLAIN},
        {"token": "t", "client.password": PLAIN},
        {"token": "t", "client.ssl.keystore.key": PLAIN},
        {"token": ["t", PLAIN]},
        {"token": "env:" + PLAIN},
        {"token": "t", "tokens": '{"a": "' + PLAIN},
        {"token": "t", "tokens": [PLAIN]},
        {"token": PLAIN, "TOKEN": PLAIN + "2"},
        {"token": PLAIN, "nothing": PLAIN},
        {"token": "t", "client.password": 1, "CLIENT.password": "22" + PLAIN},
    ],
)
def test_errors_about_secret_options_do_not_contain_them(given):
    with pytest.raises(ForebayError) as caught:
        parse_options(class_options(Holder), given, source="holder")
    assert PLAIN not in everywhere(caught.value)


def test_two_different_values_of_a_secret_are_reported_without_them():
    with pytest.raises(ConfigurationError, match="same option") as caught:
        parse_options(class_options(Holder), {"token": PLAIN, "Token": "other"}, source="holder")
    assert PLAIN not in str(caught.value)


def test_a_generated_repr_shows_neither_secret_options_nor_what_was_passed_through():
    holder = Holder(Secret(PLAIN), pin=4711, pairs={"password": 4712})
    assert PLAIN not in repr(holder)
    assert "471" not in repr(holder)
    assert PLAIN not in repr(asdict(holder))
