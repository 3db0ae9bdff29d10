# SPDX-License-Identifier: Apache-2.0
"""`redact` hides every live secret in texts of connectors and clients."""

from __future__ import annotations

import base64
import copy
import gc
import json
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


UMLAUTS = "p\xe4ssw\xf6rt-'SECRET"
WRITTEN = {
    "bytes of Latin-1": repr(f"Bearer {UMLAUTS}\n".encode("latin-1")),
    "bytes of UTF-8": repr(f"Bearer {UMLAUTS}\n".encode()),
    "bytes with both quotes": repr(f'"Bearer {UMLAUTS}"'.encode("latin-1")),
    "repr with both quotes": repr(f'"Bearer {UMLAUTS}"'),
    "ascii": ascii(f"Bearer {UMLAUTS}"),
    "UTF-8 read as Latin-1": UMLAUTS.encode().decode("latin-1"),
    "JSON of Unicode": json.dumps(UMLAUTS + '"', ensure_ascii=False),
    "Base64": base64.b64encode(UMLAUTS.encode()).decode(),
    "Base64 of Latin-1": base64.b64encode(UMLAUTS.encode("latin-1")).decode(),
    "Base64 of URLs": base64.urlsafe_b64encode(UMLAUTS.encode()).decode().rstrip("="),
}


@pytest.mark.parametrize("text", WRITTEN.values(), ids=WRITTEN)
def test_a_secret_that_is_not_ascii_is_found_however_a_client_writes_it(text: str) -> None:
    kept = Secret(UMLAUTS)
    redacted = redact(f"Invalid header value {text}, said the client")
    assert "***" in redacted and "SECRET" not in redacted
    assert redacted.endswith(", said the client") and kept


@pytest.mark.parametrize("user", ["a", "me", "bob", "anna"])
def test_a_secret_is_found_within_base64(user: str) -> None:
    kept = Secret("f7+/Zk-Q2x~tok-1234")
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        encoded = encode(f'{{"{user}": "{kept.reveal()}", "more": 1}}'.encode()).decode()
        before, hidden, behind = redact(encoded).partition("***")
        assert hidden and encoded.startswith(before) and encoded.endswith(behind)
        bits_left = 8 * len(kept.reveal()) - 6 * (len(encoded) - len(before) - len(behind))
        assert 0 <= bits_left <= 8


@pytest.mark.parametrize("password", ["p\xe4ss", "pw1", ""])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_the_credentials_of_a_basic_header_are_hidden_although_nobody_declared_them(
    password: str, encoding: str
) -> None:
    encoded = base64.b64encode(f"bob:{password}".encode(encoding)).decode()
    assert redact(f"Invalid header value b'Basic {encoded}\\n'") == "Invalid header value b'Basic ***\\n'"
    assert redact(f"{{'Authorization': 'Basic {encoded}'}}") == "{'Authorization': 'Basic ***'}"


@pytest.mark.parametrize(
    "text",
    [
        "Basic Authentication",
        "basic requirements failed",
        "Basic dXNlcm5hbWU= is no pair",
        "Basic Only Oslo",
        "Basic Override",
    ],
)
def test_other_texts_with_the_word_basic_stay(text: str) -> None:
    assert redact(text) == text


def test_a_wide_secret_does_not_hide_question_marks() -> None:
    kept = Secret("\u79d8\u5bc6\u306e\u8a00\u8449\u3067\u3059\u3088")
    assert redact("what????????") == "what????????" and kept


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
