# SPDX-License-Identifier: Apache-2.0
"""Tables, `describe` and `peek`."""

from __future__ import annotations

import html
import traceback

import pyarrow as pa
import pytest

import forebay
from forebay.inspection.describe import Description, Peek
from forebay.text_tables import html_table, text_table


class Shop(forebay.SimpleSource):
    """Sells things."""

    url: str = forebay.option(doc="where it is")
    token: forebay.Secret = forebay.option(default=forebay.Secret("hunter2"), doc="the key")

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("s", pa.string())])

    def read(self, split):
        for n in range(split.position or 0, 5):
            yield {"n": n, "s": "x" * n}


def test_a_table_is_aligned_also_with_wide_and_control_characters() -> None:
    lines = text_table(["a", "b"], [["漢字", "x\ny"], ["z", "w" * 200]]).splitlines()
    assert lines[3].startswith("│ 漢字 │ x\\ny ")
    assert lines[4].startswith("│ z    │ www")
    assert lines[4].endswith("… │")
    assert len(lines) == 6


def test_html_is_escaped() -> None:
    assert "<td>&lt;b&gt;</td>" in html_table(["a"], [["<b>"]])


def test_describe_shows_options_and_schema_and_hides_secrets() -> None:
    shown = forebay.describe(Shop(url="http://x"))
    text, html = str(shown), shown._repr_html_()
    for part in ("shop: Sells things.", "bounded", "http://x", "where it is", "int64", "***"):
        assert part in text
    assert "hunter2" not in text + html
    assert "<table>" in html


class Refused(forebay.SimpleSource):
    """Its client writes the token into its errors."""

    place: str = "schema"
    token: forebay.Secret

    def check(self) -> None:
        self.call("check")

    def schema(self) -> pa.Schema:
        self.call("schema")
        return pa.schema({"n": pa.int64()})

    def read(self, split):
        yield {"n": 1}

    def call(self, place: str) -> None:
        if place == self.place:
            raise ConnectionError(f"GET https://h/?token={self.token.reveal()} refused")


def test_describe_names_the_source_whose_schema_fails_and_hides_its_secrets() -> None:
    source = Refused(token=forebay.Secret("tok-abcdef123"))
    with pytest.raises(forebay.FatalError, match=r"schema\(\) failed with ConnectionError: GET") as caught:
        forebay.describe(source)
    assert caught.value.source == "refused"
    assert "tok-abcdef123" not in "".join(traceback.format_exception(caught.value))


class Passing(forebay.SimpleSource):
    """Passes options on to its client."""

    client: dict[str, str | forebay.Secret] = forebay.option(default_factory=dict, prefix="client.", doc="passed on")
    calm: dict[str, int] = forebay.option(default_factory=dict, prefix="client.calm.", doc="longer")
    group: str = forebay.option(default="none", name="client.group", doc="exact")
    token: forebay.Secret | None = None

    def schema(self) -> pa.Schema:
        return pa.schema({"n": pa.int64()})

    def read(self, split):
        yield {"n": 1}


def test_describe_shows_what_is_under_a_prefix_and_hides_secrets() -> None:
    client = {"url": "http://x", "ssl.password": "hunter2", "key": forebay.Secret("hunter3")}
    rows = forebay.describe(Passing(client=client, calm={"ms": 7}, group="g")).options
    assert [(name, value) for name, _, value, _ in rows] == [
        ("client.*", "client.url=http://x, client.ssl.password=***, client.key=***"),
        ("client.calm.*", "client.calm.ms=7"),
        ("client.group", "g"),
        ("token", "not set"),
    ]


def test_describe_says_of_a_prefix_without_options_that_nothing_is_set() -> None:
    assert [row[2] for row in forebay.describe(Passing()).options[:2]] == ["not set", "not set"]


def test_describe_a_class_says_what_is_required() -> None:
    assert ("url", "str", "required", "where it is") in forebay.describe(Shop).options
    assert forebay.describe(Shop).schema == ()


def test_describe_by_name_and_what_is_no_source() -> None:
    assert forebay.describe("forebay_rate").name == "forebay_rate"
    with pytest.raises(forebay.ConfigurationError, match="is not a source"):
        forebay.describe(42)  # type: ignore[arg-type]  # that is the point


def test_a_description_cannot_control_the_terminal() -> None:
    shown = str(Description("n\x1b[2J", "s\x07", ("f\x9b",), (("o", "t", "v\x1b", "m"),), (("c\u202e", "t", "no"),)))
    assert all(line.isprintable() for line in shown.split("\n"))


def test_describe_the_options_of_the_host() -> None:
    shown_text = forebay.describe(forebay.HostOptions)
    assert ("retryTimeout", "Duration", "2m") in [row[:3] for row in shown_text.options]
    assert shown_text.name == "HostOptions" and "options of a host" in shown_text.summary
    assert ("retries", "int | none", "7") in [
        row[:3] for row in forebay.describe(forebay.HostOptions(retries=7)).options
    ]


def test_peek_shows_the_first_rows_and_says_whether_there_may_be_more() -> None:
    some = forebay.peek(Shop(url="x"), 2)
    assert some.table.to_pylist() == [{"n": 0, "s": ""}, {"n": 1, "s": "x"}]
    assert str(some).endswith("2 rows, perhaps more")
    assert str(forebay.peek(Shop(url="x"), 10)).endswith("5 rows")


def test_a_null_is_told_from_a_text() -> None:
    shown = str(Peek(pa.table({"a": [None, "null"], "b": [1, 2]}), 5))
    assert shown.count("null") == 2


DAYS = pa.array([4_000_000, None, 1], pa.int32()).cast(pa.date32())
TIMES = pa.array([300_000_000_000_000_000, None, 0], pa.int64())
THREE = pa.array([0, 1, 2, 3], pa.int32())


@pytest.mark.parametrize(
    ("column", "texts"),
    [
        (DAYS, ["12921-08-18", "null", "1970-01-02"]),
        (TIMES.cast(pa.timestamp("us")), ["11476-08-15 05:20:00.000000", "null", "1970-01-01 00:00:00"]),
        (TIMES.cast(pa.timestamp("us", "UTC")), ["11476-08-15 05:20:00.000000Z", "null", "1970-01-01 00:00:00+00:00"]),
        (pa.array([1, None, 1000], pa.time64("ns")), ["00:00:00.000000001", "null", "00:00:00.000001"]),
        (DAYS.dictionary_encode(), ["12921-08-18", "null", "1970-01-02"]),
        (pa.ListArray.from_arrays(THREE, DAYS), ["[ 12921-08-18 ]", "[None]", "[datetime.date(1970, 1, 2)]"]),
        (pa.array([1 << 62, None, 0], pa.timestamp("s")), ["<value out of range: 4611686018427387904>", "null",
                                                          "1970-01-01 00:00:00"]),
    ],
)  # fmt: skip
def test_values_that_python_has_no_type_for_are_shown(column, texts) -> None:
    shown = Peek(pa.table({"a": column}), 5)
    cells = [line.split("│")[1].strip() for line in str(shown).splitlines()[3:6]]
    assert cells == texts
    assert html.escape(texts[0]) in shown._repr_html_()


def test_a_struct_with_such_a_value_is_shown() -> None:
    shown = str(Peek(pa.table({"a": pa.StructArray.from_arrays([DAYS], ["day"])}), 5))
    assert "12921-08-18" in shown and "{'day': None}" in shown


def test_a_peek_at_a_class_asks_for_an_instance() -> None:
    with pytest.raises(forebay.ConfigurationError) as caught:
        forebay.peek(Shop)  # type: ignore[arg-type]
    assert "forebay.peek()" in str(caught.value) and caught.value.advice == "give an instance: Shop(…)"
