# SPDX-License-Identifier: Apache-2.0
"""Writing of option values: parsed back as the same values, without secrets."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import ConfigurationError
from forebay.options import (
    NONE_TEXT,
    ByteSize,
    Duration,
    Secret,
    changed_on_restart,
    class_options,
    coerce_fields,
    default_text,
    format_options,
    merge_specs,
    option,
    option_values,
    parse_options,
    redact_options,
    type_text,
)


class Colour(Enum):
    RED = "red"
    BLUE = 2


class Everything:
    text: str
    whole: int
    real: float
    yes: bool
    pause: Duration
    plain_pause: timedelta
    size: ByteSize
    when: datetime
    day: date
    path: Path
    colour: Colour
    choice: Literal["a", 1, True]
    maybe_text: str | None = None
    maybe_whole: int | None = 3
    texts: list[str]
    reals: tuple[float, ...]
    sets: frozenset[int]
    pauses: list[Duration]
    nested: dict[str, list[int | None]]
    offsets: dict[str, dict[int, int]]
    through: dict[str, str] = option(prefix="through.", secret=False)
    counted: dict[str, int] = option(prefix="through.counted.")


pauses = st.timedeltas(timedelta(0), timedelta(days=999_999_999)).map(Duration)
texts = st.text(st.characters(codec="utf-8"), max_size=10)
zones = st.one_of(st.none(), st.just(UTC), st.integers(-1439, 1439).map(lambda m: timezone(timedelta(minutes=m))))
keys = st.text(min_size=1, max_size=8).filter(lambda key: not key.lower().startswith("counted."))
values = st.fixed_dictionaries(
    {
        "text": texts,
        "whole": st.integers(),
        "real": st.floats(allow_nan=False),
        "yes": st.booleans(),
        "pause": pauses,
        "plain_pause": pauses,
        "size": st.integers(0, 1 << 60).map(ByteSize),
        "when": st.datetimes(timezones=zones),
        "day": st.dates(),
        "path": texts.map(Path),
        "colour": st.sampled_from(Colour),
        "choice": st.sampled_from(["a", 1, True]),
        "maybe_text": st.one_of(st.none(), texts),
        "maybe_whole": st.one_of(st.none(), st.integers()),
        "texts": st.lists(texts, max_size=4),
        "reals": st.lists(st.floats(allow_nan=False), max_size=4).map(tuple),
        "sets": st.frozensets(st.integers(), max_size=4),
        "pauses": st.lists(pauses, max_size=3),
        "nested": st.dictionaries(texts, st.lists(st.one_of(st.none(), st.integers()), max_size=3), max_size=3),
        "offsets": st.dictionaries(texts, st.dictionaries(st.integers(), st.integers(), max_size=3), max_size=3),
        "through": st.dictionaries(keys, texts, max_size=4),
        "counted": st.dictionaries(st.text(min_size=1, max_size=8), st.integers(), max_size=3),
    }
)


@given(values)
def test_what_is_written_is_read_back(given_values):
    specs = class_options(Everything)
    written = format_options(specs, given_values)
    assert all(type(text) is str for text in written.values())
    assert parse_options(specs, written, source="x") == given_values
    assert format_options(specs, parse_options(specs, written, source="x")) == written


@dataclass(frozen=True, kw_only=True)
class Client:
    token: Secret
    pin: int = option(0, secret=True)
    tokens: list[Secret] = option(default_factory=list)
    kafka: dict[str, str | Secret] = option(prefix="kafka.")
    headers: dict[str, str] = option(default_factory=dict)
    maybe: Secret | None = None

    def __post_init__(self) -> None:
        coerce_fields(self)


CLIENT = class_options(Client)
REFERENCES = Client(token=Secret("env:T"), tokens=[Secret("file:/t")], kafka={"a": "1", "password": Secret("env:P")})
PLAIN = Client(
    token=Secret("hunter"),
    pin=4711,
    tokens=[Secret("env:T"), Secret("hunter")],
    kafka={"a": "1", "ssl.password": Secret("hunter"), "sasl.jaas.config": "hunter"},
    headers={"api-key": "hunter", "x": "y"},
    maybe=Secret("hunter"),
)


def test_references_are_written_and_read_back():
    written = format_options(CLIENT, option_values(REFERENCES) | {"pin": 0})
    assert written == {
        "token": "env:T",
        "tokens": '["file:/t"]',
        "kafka.a": "1",
        "kafka.password": "env:P",
        "headers": "{}",
    }
    assert Client(**parse_options(CLIENT, written, source="x")) == REFERENCES


def test_secrets_without_a_reference_are_left_out():
    written = format_options(CLIENT, option_values(PLAIN))
    assert written == {"kafka.a": "1", "headers": '{"x": "y"}'}


def test_for_people_every_option_is_there_and_no_secret():
    shown = redact_options(CLIENT, option_values(PLAIN))
    assert shown == {
        "token": "***",
        "pin": "***",
        "tokens": '["env:T", "***"]',
        "kafka.a": "1",
        "kafka.ssl.password": "***",
        "kafka.sasl.jaas.config": "***",
        "headers": '{"x": "y", "api-key": "***"}',
        "maybe": "***",
    }
    assert redact_options(CLIENT, option_values(REFERENCES))["kafka.password"] == "env:P"


def test_values_that_no_text_means_are_refused():
    @dataclass
    class Odd:
        a: str | None = "x"
        b: str | Secret = "y"
        c: dict[str, str] = option(prefix="c.")
        d: str = option("", name="c.d")

    specs = class_options(Odd)
    assert format_options(specs, {"b": "five", "c": {"e": "f"}}) == {"b": "five", "c.e": "f"}
    for values in ({"b": "env:X"}, {"c": {"d": "1"}}, {"c": {"": "1"}}):
        with pytest.raises(ConfigurationError) as caught:
            format_options(specs, values)
        assert caught.value.advice
    with pytest.raises(TypeError, match="nothing"):
        format_options(specs, {"nothing": 1})


def test_for_people_every_value_has_a_text():
    @dataclass
    class Odd:
        a: str | None = "x"
        c: dict[str, str | Secret | None] = option(prefix="c.")
        d: str = option("", name="c.d")

    client = {"d": "1", "key": Secret("hunter"), "other": Secret("env:T"), "none": None}
    shown = redact_options(class_options(Odd), {"a": None, "c": client, "d": "y"})
    assert shown == {"a": "null", "c.d": "y", "c.key": "***", "c.other": "env:T", "c.none": "null"}


def test_what_an_empty_prefix_collected_is_read_back_and_takes_no_other_name():
    class Anything:
        path: str = ""
        rest: dict[str, str] = option(prefix="")

    specs = class_options(Anything)
    given_values = {"path": "p", "rest": {"header": "true"}}
    written = format_options(specs, given_values)
    assert written == {"path": "p", "header": "true"}
    assert parse_options(specs, written, source="x") == given_values
    assert redact_options(specs, {"rest": {"password": "x"}})["password"] == "***"
    with pytest.raises(ConfigurationError, match="'Path'"):
        format_options(specs, {"rest": {"Path": "p"}})


class Streamed:
    topic: str = option(may_change=False)
    pause: Duration = option("1m", may_change=False)
    free: int = 1
    password: Secret | None = option(None, may_change=False)
    client: dict[str, str] = option(prefix="client.", may_change=False)


STREAMED = class_options(Streamed)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"topic": "a", "free": "1"}, {"TOPIC": "a", "free": "2"}),
        ({"topic": "a", "pause": "60s"}, {"topic": "a"}),
        ({"topic": "a"}, {"topic": "a", "pause": "1 minute"}),
        ({"topic": "a", "gone": "1"}, {"topic": "a", "new": "1"}),
        ({"topic": "a"}, {"topic": "a", "password": "hunter"}),
        ({"topic": "a", "client.x": "1"}, {"topic": "a", "Client.x": "1", "client.password": "hunter"}),
    ],
)
def test_a_restart_with_the_same_values_is_allowed(old, new):
    changed_on_restart(STREAMED, old, new, source="streamed")


def test_a_restart_names_every_option_that_may_not_change_with_both_values():
    with pytest.raises(ConfigurationError) as caught:
        changed_on_restart(
            STREAMED,
            {"topic": "a", "client.x": "1", "password": "env:OLD"},
            {"topic": "b", "pause": "2m", "client.y": "2", "password": "env:NEW", "free": "7"},
            source="streamed",
        )
    message = caught.value.message
    assert "topic (was a, is now b)" in message
    assert "pause (was 1m, is now 2m)" in message
    assert "client.x (was 1, is now not set)" in message
    assert "client.y (was not set, is now 2)" in message
    assert "password (a secret)" in message
    assert "free" not in message
    assert caught.value.source == "streamed"


def test_a_value_in_a_checkpoint_that_is_no_longer_valid_is_a_changed_one():
    with pytest.raises(ConfigurationError, match=r"pause \(was soon, is now 1m\)"):
        changed_on_restart(STREAMED, {"topic": "a", "pause": "soon"}, {"topic": "a"})


def test_what_a_checkpoint_gets_is_what_a_restart_accepts():
    values: dict[str, Any] = parse_options(
        STREAMED, {"topic": "a", "client.password": "hunter", "password": "hunter"}, source="x"
    )
    stored = format_options(STREAMED, values)
    assert "hunter" not in str(stored)
    changed_on_restart(STREAMED, stored, {"topic": "a", "client.password": "other"}, source="x")


class Zoned:
    zone: str | None = option("UTC", may_change=False)
    where: Path | None = option(Path("/in"), may_change=False)
    token: Secret | None = option(Secret("env:T"), may_change=False)
    more: dict[str, str | None] = option(prefix="more.", may_change=False)


ZONED = class_options(Zoned)
NOTHING = {"zone": None, "where": None, "token": None, "more": {"a": None}}


def test_none_is_kept_where_no_text_means_it():
    kept = format_options(ZONED, NOTHING)
    assert kept == dict.fromkeys(("zone", "where", "token", "more.a"), NONE_TEXT)
    changed_on_restart(ZONED, kept, kept)


@pytest.mark.parametrize("name", ["zone", "where", "token", "more"])
def test_none_differs_from_the_default_and_from_a_value_both_ways(name):
    none = format_options(ZONED, {name: NOTHING[name]})
    written = f"{name}.a" if name == "more" else name
    for old, new in [(none, {}), (none, {written: "env:X"}), ({written: "env:X"}, none)]:
        with pytest.raises(ConfigurationError) as caught:
            changed_on_restart(ZONED, old, new)
        assert caught.value.option == written
        assert "\0" not in caught.value.message
        assert name == "token" or "none" in caught.value.message


def test_a_checkpoint_without_an_option_may_have_been_written_with_none():
    """Older checkpoints omit it."""
    changed_on_restart(ZONED, {}, format_options(ZONED, NOTHING))


class Shown:
    """For people.

    Options:
        url: base address
    """

    url: str
    size: ByteSize = ByteSize("64m")
    token: Secret = option(Secret("hunter"))
    where: Path | None = None
    colour: Colour = Colour.BLUE
    mode: Literal["a", None] = None  # noqa: PYI061 - this spelling is described too
    empty: str = ""
    kafka: dict[str, str] = option(prefix="kafka.", aliases=("k",), may_change=False)
    many: tuple[int, ...] = (1, 2)


def test_options_are_described_as_a_table_of_texts():
    rows = {spec.python_name: spec for spec in merge_specs(class_options(Shown))}
    shown = {name: (spec.shown_name, type_text(spec.type), default_text(spec)) for name, spec in rows.items()}
    assert shown == {
        "url": ("url", "str", ""),
        "size": ("size", "ByteSize", "64m"),
        "token": ("token", "Secret", "***"),
        "where": ("where", "Path | none", "none"),
        "colour": ("colour", "red | BLUE", "BLUE"),
        "mode": ("mode", "a | none", "none"),
        "empty": ("empty", "str", '""'),
        "kafka": ("kafka.*", "dict[str, str]", ""),
        "many": ("many", "tuple[int, …]", "[1, 2]"),
    }
    assert (rows["url"].doc, rows["url"].required, rows["url"].owner) == ("base address", True, "Shown")
    assert (rows["kafka"].aliases, rows["kafka"].may_change, rows["kafka"].required) == (("k",), False, False)
