# SPDX-License-Identifier: Apache-2.0
"""Parsing of options, and its errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from enum import Enum, IntEnum, StrEnum
from pathlib import Path
from typing import Any, Literal, NewType, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import ConfigurationError, ContractError
from forebay.options import ByteSize, Duration, OptionSpec, Secret, class_options, option, parse_options


def spec_of(hint: object, **values: Any) -> OptionSpec:
    (spec,) = class_options(type("One", (), {"__annotations__": {"it": hint}, **values}))
    return spec


class Colour(Enum):
    RED = "red"
    BLUE = "Blue"
    CRIMSON = RED


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Mode(StrEnum):
    FAST = "fast"


UserId = NewType("UserId", int)

READ = [
    (str, " a b ", " a b "),
    (str, "", ""),
    (str, Mode.FAST, "fast"),
    (int, " -10 ", -10),
    (int, 7, 7),
    (int, ByteSize("1k"), 1024),
    (UserId, "7", 7),
    (float, "1e3", 1000.0),
    (float, 2, 2.0),
    (float, "inf", float("inf")),
    (bool, "TRUE", True),
    (bool, "false", False),
    (bool, True, True),
    (Duration, "5m", timedelta(minutes=5)),
    (timedelta, "5m", timedelta(minutes=5)),
    (Duration, timedelta(seconds=1), timedelta(seconds=1)),
    (Duration, 30, timedelta(seconds=30)),
    (Duration, 0.5, timedelta(milliseconds=500)),
    (ByteSize, "1k", 1024),
    (ByteSize, 10, 10),
    (datetime, "2024-05-01T12:00:00Z", datetime(2024, 5, 1, 12, tzinfo=UTC)),
    (datetime, datetime(2024, 5, 1), datetime(2024, 5, 1)),
    (date, "2024-05-01", date(2024, 5, 1)),
    (Path, "/a/b", Path("/a/b")),
    (Path, Path("/a/b"), Path("/a/b")),
    (Secret, "s", Secret("s")),
    (Secret, Secret("env:S"), Secret("env:S")),
    (Colour, "red", Colour.RED),
    (Colour, "RED", Colour.RED),
    (Colour, "blue", Colour.BLUE),
    (Colour, "crimson", Colour.RED),
    (Colour, Colour.BLUE, Colour.BLUE),
    (Level, "low", Level.LOW),
    (Level, "2", Level.HIGH),
    (Mode, "FAST", Mode.FAST),
    (Mode, Mode.FAST, Mode.FAST),
    (Literal["PERMISSIVE", "FAILFAST"], "permissive", "PERMISSIVE"),
    (Literal[1, True, "x"], "true", True),
    (Literal["a", None], "A", "a"),  # noqa: PYI061 - both spellings are read
    (Literal["a", None], None, None),  # noqa: PYI061 - the same
    (int | None, "null", None),
    (int | None, "3", 3),
    (str | None, "null", "null"),
    (Optional[int], None, None),  # noqa: UP045 - the same
    (list[str], "a, b ,,c,", ["a", "b", "c"]),
    (list[str], "", []),
    (list[str], "[]", []),
    (list[str], '["a,b", " c"]', ["a,b", " c"]),
    (list[str], "[ab]*.csv", ["[ab]*.csv"]),
    (list[str], ("a", "b"), ["a", "b"]),
    (list[int], "1,2", [1, 2]),
    (list[int], "[1, 2]", [1, 2]),
    (list[Duration], "1s,2s", [timedelta(seconds=1), timedelta(seconds=2)]),
    (tuple[str, ...], "a,b", ("a", "b")),
    (Sequence[str], "a,b", ("a", "b")),
    (set[int], "1,1", {1}),
    (frozenset[Colour], "red", frozenset([Colour.RED])),
    (dict[str, int], '{"a": 1, "b": "2"}', {"a": 1, "b": 2}),
    (dict[int, str], '{"1": "x"}', {1: "x"}),
    (Mapping[str, Duration], '{"a": "1s"}', {"a": timedelta(seconds=1)}),
    (dict[str, dict[str, int]], '{"t": {"0": 5}}', {"t": {"0": 5}}),
    (dict[str, str | Secret], '{"user": "u", "password": "p"}', {"user": "u", "password": Secret("p")}),
    (dict[str, str | Secret], '{"user": "env:U"}', {"user": Secret("env:U")}),
]


@pytest.mark.parametrize(("hint", "value", "expected"), READ, ids=[f"{h} {v!r}" for h, v, _ in READ])
def test_values_are_read_by_type(hint, value, expected):
    found = spec_of(hint).convert(value)
    assert found == expected
    assert isinstance(found, type(expected))


@pytest.mark.parametrize("hint", [int | str, Literal["earliest"] | dict[str, int], bool | Path | None, date | datetime])
def test_an_option_of_several_types_is_refused(hint):
    with pytest.raises(ContractError, match="an option has one type: declare a str") as caught:
        spec_of(hint)
    assert caught.value.rule == "OPT-1"


REFUSED = [
    (str, 5),
    (int, "ten"),
    (int, "1_000"),
    (int, "1.0"),
    (int, "\u0661"),
    (int, 1.0),
    (int, True),
    (float, "nan"),
    (float, "1_0"),
    (float, True),
    (float, 10**400),
    (bool, "yes"),
    (bool, 1),
    (Duration, "30"),
    (Duration, True),
    (Duration, -1),
    (Duration, float("inf")),
    (Duration, timedelta(seconds=-1)),
    (ByteSize, "-1"),
    (ByteSize, -1),
    (ByteSize, 1.5),
    (datetime, "yesterday"),
    (date, "2024-13-01"),
    (date, datetime(2024, 5, 1, tzinfo=UTC)),
    (Path, 5),
    (Colour, "green"),
    (Colour, Mode.FAST),
    (Literal["a", "b"], "c"),
    (Literal[1], True),
    (int | None, "nothing"),
    (list[str], 5),
    (list[str], {"a": 1}),
    (list[str], b"ab"),
    (list[str], '["a"'),
    (list[str], '["a", 1]'),
    (list[int], "1,x"),
    (list[int], "[[" * 100_000),
    (dict[str, int], "a=1"),
    (dict[str, int], "[1]"),
    (dict[str, int], '{"a": "x"}'),
    (dict[str, int], [("a", 1)]),
    (int, None),
]


@pytest.mark.parametrize(("hint", "value"), REFUSED, ids=[f"{h} {v!r:.40}" for h, v in REFUSED])
def test_what_does_not_fit_is_refused_with_what_was_given_and_an_example_that_works(hint, value):
    spec = spec_of(hint)
    with pytest.raises(ConfigurationError) as caught:
        spec.convert(value, written="It", source="shop")
    error = caught.value
    assert (error.option, error.source) == ("It", "shop")
    assert repr(value)[:40] in error.message
    assert "'It' takes " in error.message
    assert len(error.message) < 400
    assert error.advice == f"write for example {spec.kind.example}"
    spec.convert(spec.kind.example)
    assert error.__cause__ is None
    assert error.__context__ is None


def test_a_choice_that_is_misspelt_is_guessed():
    with pytest.raises(ConfigurationError, match="did you mean 'PERMISSIVE'"):
        spec_of(Literal["PERMISSIVE", "FAILFAST"]).convert("PERMISIVE")


class Orders:
    url: str = option(doc="base address")
    token: Secret = option(doc="API token")
    start: int = 10
    poll_interval: Duration = option("30s")
    kafka: dict[str, str] = option(prefix="kafka.")
    consumer: dict[str, int] = option(prefix="kafka.consumer.")
    group: str = option("g", name="kafka.group.id", aliases=("groupId",))
    tables: list[str] = option(default_factory=list)


SPECS = class_options(Orders)
NEEDED = {"url": "u", "token": "t"}


def parse(given: Mapping[str, object], **more: Any) -> dict[str, Any]:
    return parse_options(SPECS, given, source="orders", **more)


def test_every_option_gets_a_value_and_defaults_are_typed():
    assert parse(NEEDED) == {
        "url": "u",
        "token": Secret("t"),
        "start": 10,
        "poll_interval": Duration("30s"),
        "kafka": {},
        "consumer": {},
        "group": "g",
        "tables": [],
    }


def test_mutable_defaults_are_fresh():
    assert parse(NEEDED)["kafka"] is not parse(NEEDED)["kafka"]
    assert parse(NEEDED)["tables"] is not parse(NEEDED)["tables"]


@pytest.mark.parametrize("name", ["pollInterval", "pollinterval", "POLLINTERVAL", "poll_interval", "Poll_Interval"])
def test_names_are_matched_without_case_in_spark_and_in_python_spelling(name):
    assert parse({**NEEDED, name: "1m"})["poll_interval"] == Duration("1m")


def test_a_prefix_collects_names_without_it_the_longest_prefix_and_exact_names_first():
    found = parse({**NEEDED, "kafka.a.B": "1", "KAFKA.c": "2", "kafka.consumer.n": "3", "kafka.group.id": "x"})
    assert (found["kafka"], found["consumer"], found["group"]) == ({"a.B": "1", "c": "2"}, {"n": 3}, "x")


class Anything:
    path: str
    client: dict[str, str] = option(prefix="client.")
    rest: dict[str, str] = option(prefix="")


def test_an_empty_prefix_collects_what_has_no_name_and_no_longer_prefix():
    specs = class_options(Anything)
    given_options = {"PATH": "p", "client.a": "1", "header": "true", "a.b": "2"}
    found = parse_options(specs, given_options, source="anything")
    assert found == {"path": "p", "client": {"a": "1"}, "rest": {"header": "true", "a.b": "2"}}
    with pytest.raises(ConfigurationError, match="''"):
        parse_options(specs, {"path": "p", "": "x"}, source="anything")


def test_a_prefix_option_may_be_given_as_one_map():
    assert parse({**NEEDED, "kafka": '{"a": "1"}', "kafka.b": "2"})["kafka"] == {"a": "1", "b": "2"}
    assert parse({**NEEDED, "kafka": {"a": "1"}, "kafka.a": "1"})["kafka"] == {"a": "1"}


def test_two_names_of_one_option_must_have_the_same_value():
    assert parse({**NEEDED, "groupId": "x", "kafka.group.id": "x"})["group"] == "x"
    assert parse({**NEEDED, "pollInterval": "60s", "poll_interval": "1m"})["poll_interval"] == Duration("60s")
    with pytest.raises(ConfigurationError, match=r"'groupId' and 'kafka\.group\.id' are the same") as caught:
        parse({**NEEDED, "groupId": "x", "kafka.group.id": "y"})
    assert "'x' and 'y'" in caught.value.message
    with pytest.raises(ConfigurationError, match=r"'kafka' and 'kafka\.a' are the same"):
        parse({**NEEDED, "kafka": {"a": "1"}, "kafka.a": "2"})


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("pollIntervall", "pollInterval"), ("STRAT", "start"), ("poll-interval", "pollInterval"), ("groupid_", "groupId")],
)
def test_an_unknown_option_is_answered_with_the_nearest_and_all_known_ones(wrong, meant):
    with pytest.raises(ConfigurationError, match=f"'{wrong}', did you mean '{meant}'") as caught:
        parse({**NEEDED, wrong: "value-not-shown"})
    assert caught.value.option == wrong
    assert "kafka.*" in str(caught.value.advice)
    assert "tables" in str(caught.value.advice)
    assert "value-not-shown" not in str(caught.value)


def test_a_misspelt_prefix_is_guessed_too():
    with pytest.raises(ConfigurationError, match=r"did you mean 'kafka\.acks'"):
        parse({**NEEDED, "kafak.acks": "1"})


def test_several_unknown_options_are_one_error_and_far_ones_get_no_guess():
    with pytest.raises(ConfigurationError, match="'zzzz'") as caught:
        parse({**NEEDED, "zzzz": "1", "strat": "2", "kafka.": "3"})
    assert caught.value.option == "zzzz, strat, kafka."
    assert caught.value.message.count("did you mean") == 2


def test_unknown_is_reported_before_missing_because_the_name_may_be_misspelt():
    with pytest.raises(ConfigurationError, match="did you mean 'url'"):
        parse({"urll": "x"})


def test_all_missing_options_are_one_error_with_their_docs():
    with pytest.raises(ConfigurationError, match=r"'url' \(base address\), 'token' \(API token\)") as caught:
        parse({})
    assert caught.value.option == "url, token"
    with pytest.raises(ConfigurationError, match="an option that is missing: 'token'"):
        parse({"url": "x"})


def test_the_host_may_replace_defaults():
    assert parse(NEEDED, defaults={"start": "11", "url": "no"})["start"] == 11
    assert parse({**NEEDED, "start": "12"}, defaults={"start": 11})["start"] == 12
    assert parse({"token": "t"}, defaults={"url": "yes"})["url"] == "yes"


def test_a_source_without_options_refuses_them():
    with pytest.raises(ConfigurationError, match="no such option") as caught:
        parse_options((), {"a": "1"}, source="plain")
    assert "no options" in str(caught.value.advice)


@given(st.dictionaries(st.text(max_size=12), st.one_of(st.text(max_size=12), st.none(), st.integers()), max_size=5))
def test_whatever_is_given_ends_in_values_or_in_a_configuration_error(given_options):
    try:
        found = parse(given_options)
    except ConfigurationError:
        return
    assert found.keys() == {spec.python_name for spec in SPECS}


@given(
    st.sampled_from(
        [int, float, bool, Duration, ByteSize, datetime, date, Colour, list[int], dict[str, int], int | None]
    ),
    st.text(max_size=20),
)
def test_any_text_is_read_or_refused_with_a_configuration_error(hint, text):
    spec = spec_of(hint)
    try:
        value = spec.convert(text)
    except ConfigurationError:
        return
    assert spec.convert(spec.text(value)) == value


class Cased:
    """Names with capitals, which Spark lower-cases."""

    page_rows: int = 1
    other_name: int = option(1, name="someName", aliases=("OldName",))
    client_options: dict[str, int] = option(prefix="clientOpts.")


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("pagerows", "pageRows"),
        ("PAGEROWS", "pageRows"),
        ("page_rows", "page_rows"),
        ("somename", "someName"),
        ("oldname", "OldName"),
        ("clientopts.a.b", "clientOpts.a.b"),
    ],
)
def test_an_option_is_named_as_it_is_declared_however_the_host_has_changed_its_case(written, shown):
    with pytest.raises(ConfigurationError) as caught:
        parse_options(class_options(Cased), {written: "x"}, source="s")
    assert caught.value.option == shown
    assert f"'{shown}' takes a whole number" in caught.value.message


def test_two_spellings_that_disagree_are_named_as_they_are_declared():
    with pytest.raises(ConfigurationError, match="'someName' and 'OldName' are the same option") as caught:
        parse_options(class_options(Cased), {"somename": 1, "oldname": 2}, source="s")
    assert caught.value.option == "OldName"
