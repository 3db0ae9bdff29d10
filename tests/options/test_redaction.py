# SPDX-License-Identifier: Apache-2.0
"""`redact` hides every live secret in texts of connectors and clients."""

from __future__ import annotations

import copy
import gc
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import pytest

from forebay.options import Secret, coerce_fields, hide_options, option, redact

ODD = 'p@ss/w"ö rd\\+1'


@dataclass(frozen=True)
class Client:
    """Options, some of them secret without the type Secret."""

    key: str = option("", secret=True)
    shown: dict[str, str] = option(default_factory=dict, secret=False)
    more: dict[str, str] = option(prefix="more.")
    token: list[Secret] = field(default_factory=list)

    def __post_init__(self) -> None:
        coerce_fields(self)


@pytest.mark.parametrize(
    "text",
    [
        ODD,
        repr(ODD),
        f"GET http://h/?t={quote(ODD)}&x",
        f"GET http://h/?t={quote(ODD, safe='')}",
        "p%40ss%2Fw%22%C3%B6+rd%5C%2B1",
        '{"t": "p@ss/w\\"\\u00f6 rd\\\\+1"}',
    ],
)
def test_a_secret_is_found_however_a_client_writes_it(text: str) -> None:
    secret = Secret(ODD)
    assert "***" in redact(text)
    assert "rd" not in redact(text).replace("word", "")
    assert secret.reveal() == ODD


def test_texts_without_a_secret_stay_and_short_secrets_are_not_looked_for() -> None:
    kept = [Secret("abc"), Secret(""), Secret("env:NOT_SET_ANYWHERE")]
    assert redact("abc of NOT_SET_ANYWHERE") == "abc of NOT_SET_ANYWHERE"
    assert len(kept) == 3


def test_the_longer_of_two_secrets_goes_first() -> None:
    kept = [Secret("tea-time"), Secret("tea-time-at-five")]
    assert redact("at tea-time-at-five, tea-time") == "at ***, ***"
    assert len(kept) == 2


def test_what_a_reference_held_when_it_was_used_is_hidden_also_after_it_was_replaced(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first-token\n")
    secret = Secret(f"file:{file}")
    assert redact("401 for first-token") == "401 for first-token", "nobody has used it yet"
    secret.reveal()
    file.write_text("second-token\n")
    assert redact("401 for first-token") == "401 for ***"
    assert "first-token" not in repr(pickle.dumps(secret))


def test_options_that_must_not_be_shown_are_hidden_too_and_others_are_not() -> None:
    made = Client(
        key="k-plain-key", shown={"password": "in-the-open"}, more={"sasl.password": "zx-spectrum", "host": "box7"}
    )
    text = "k-plain-key in-the-open zx-spectrum box7"
    assert redact(text) == "*** in-the-open *** box7"
    travelled = pickle.loads(pickle.dumps(made))
    del made
    gc.collect()
    assert redact(text) == text, "what is gone is forgotten"
    hide_options(travelled)
    assert redact(text) == "*** in-the-open *** box7"


def test_copies_of_a_secret_count_one_by_one() -> None:
    first = Secret("same-text")
    second = copy.deepcopy(first)
    del first
    gc.collect()
    assert redact("same-text") == "***"
    assert second == Secret("same-text")
