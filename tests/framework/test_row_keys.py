# SPDX-License-Identifier: Apache-2.0
"""The keys of dicts: an unknown key is an error, a key missing from all rows a warning; the class may allow both."""

from __future__ import annotations

import logging
from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from itertools import count
from types import MappingProxyType

import pyarrow as pa
import pytest

import forebay
from forebay.errors import ContractError
from forebay.framework.arrow.row_packer import Batch
from forebay.framework.split import Split
from forebay.testkit import ConformanceError, check

POINT = pa.struct([("lon", pa.float64()), ("lat", pa.float64())])
SCHEMA = pa.schema([("id", pa.int64()), ("amount", pa.int64()), ("place", POINT)])
GOOD = {"id": 1, "amount": 2, "place": {"lon": 1.5, "lat": 2.5}}

_numbers = count()


def source(items: Iterable[object], **attributes: object) -> forebay.SimpleSource:
    """Return a source with a new name, for warnings that are logged once per source."""

    def read(self: forebay.SimpleSource, split: Split) -> Iterable[object]:
        return list(items)[split.position or 0 :]

    def schema(self: forebay.SimpleSource) -> pa.Schema:
        return SCHEMA

    body = {"read": read, "schema": schema, "name": f"keys{next(_numbers)}"} | attributes
    return type("Keys", (forebay.SimpleSource,), body)()  # type: ignore[no-any-return]  # `type` says object


def rows_of(one: forebay.SimpleSource) -> list[dict[str, object]]:
    return forebay.run(one).to_table().to_pylist()  # type: ignore[no-any-return]  # pyarrow says Any


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"id": 1, "amuont": 2, "place": None}, "there is no 'amuont'; did you mean 'amount'?"),
        ({"id": 1, "Amount": 2, "place": None}, "there is no 'Amount'; did you mean 'amount'?"),
        ({**GOOD, "extra": 1}, "there is no 'extra'"),
        (MappingProxyType({**GOOD, "amuont": 1}), "did you mean 'amount'?"),
        (defaultdict(int, {**GOOD, "amuont": 1}), "did you mean 'amount'?"),
        ({"id": 1, 7: 2}, "there is no 7"),
        ({**GOOD, "place": {"lon": 1.5, "latt": 2.5}}, "'place' is .*there is no 'latt'; did you mean 'lat'?"),
        ({**GOOD, "place": {"lon": 1.5, "lat": 2.5, "alt": 0}}, "'place' is .*there is no 'alt'; did you mean 'lat'?"),
        ({**GOOD, "place": OrderedDict(lon=1.5, latt=2.5)}, "'place' is .*there is no 'latt'"),
        ({**GOOD, "place": [("lon", 1.5), ("lat", 2.5), ("alt", 0)]}, "'place' is .*"),
        ({**GOOD, "place": {b"lon": 1.5, b"latt": 2.5}}, "'place' is .*there is no 'latt'"),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_sr2_a_key_that_is_not_in_the_schema_is_refused_with_the_nearest_name(
    bad: object, said: str, wrapped: bool
) -> None:
    """SR-2: Rows fit the schema: a misspelt key would be a column of nulls."""
    items: list[object] = [GOOD] * 20 + [bad]
    with pytest.raises(ContractError, match=said.replace("?", r"\?")) as caught:
        rows_of(source([Batch(items, 21)] if wrapped else items))  # type: ignore[arg-type]  # one is bad
    assert (caught.value.rule, caught.value.split, caught.value.position) == ("SR-2", "all", "row 20")
    assert "name the keys" in (caught.value.advice or "")
    assert "extra_keys = True" in (caught.value.advice or "")


def test_the_kit_shows_a_misspelt_key() -> None:
    bad = [{"id": number, "amuont": number, "place": None} for number in range(5)]
    with pytest.raises(ConformanceError, match=r"(?s)there is no 'amuont'; did you mean 'amount'\?.*extra_keys"):
        check(source(bad), rules={"SR-2"})


def test_extra_keys_are_left_out_where_the_class_says_so() -> None:
    items = [{**GOOD, "more": 1}, {"id": 1, "more": 1}, {**GOOD, "place": {"lon": 1.5, "lat": 2.5, "alt": 0}}, GOOD]
    nothing = {"id": 1, "amount": None, "place": None}
    assert rows_of(source(items, extra_keys=True)) == [GOOD, nothing, GOOD, GOOD]


@pytest.mark.parametrize("bad", [{"z": 1}, {"id": 1, "place": {"z": 1}}])
def test_a_dict_without_any_known_key_is_refused_even_there(bad: object) -> None:
    with pytest.raises(ContractError, match=r"none of the columns|there is no 'z'"):
        rows_of(source([bad], extra_keys=True))


def warnings_of(one: forebay.SimpleSource, caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="forebay"):
        rows_of(one)
    return [record.getMessage() for record in caplog.records]


PARTIAL: list[tuple[list[object], str | None]] = [
    ([{"id": 1, "place": GOOD["place"]}] * 40, "'amount'"),
    ([{"id": 1}, {"id": 2}], "'amount', 'place'"),
    ([MappingProxyType({"id": 1, "place": None})] * 2, "'amount'"),
    ([{**GOOD, "place": {"lon": 1.5}}] * 40, "'place.lat'"),
    ([{**GOOD, "place": {"lon": 1.5}}, (1, 2, None), {**GOOD, "place": None}], "'place.lat'"),
    ([{"id": 1, "place": None}, {"id": 1, "amount": None, "place": None}], None),
    ([{"id": 1, "place": None}, {"id": 1, "amount": 1}], None),
    ([{"id": 1}, GOOD], None),
    ([{"id": 1}, (1, 2, None)], None),
    ([{"id": 1}, pa.RecordBatch.from_pylist([GOOD], schema=SCHEMA)], None),
    ([{**GOOD, "place": {"lon": 1.5}}, {**GOOD, "place": {"lat": 1.5}}], None),
    ([{**GOOD, "place": None}] * 3, None),
    ([], None),
]


@pytest.mark.parametrize(("items", "said"), PARTIAL)
@pytest.mark.parametrize("size", [1, 1000])
def test_a_key_that_no_row_of_a_read_has_is_warned_of(
    items: list[object], said: str | None, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    if size > 1 and not any(isinstance(item, pa.RecordBatch) for item in items):
        items = [Batch(items, len(items))] if items else []  # type: ignore[arg-type]  # they are rows
    found = warnings_of(source(items), caplog)
    assert len(found) == (said is not None)
    if said is not None:
        assert f"had the key {said}, so" in found[0]
        assert "partial_rows = True" in found[0]


def test_it_is_warned_of_once_and_not_for_each_split_and_read(caplog: pytest.LogCaptureFixture) -> None:
    one = source([{"id": 1}] * 3, splits=lambda self: ["a", "b", "c"])
    assert len(warnings_of(one, caplog)) == 1
    assert warnings_of(one, caplog) == []


def test_partial_rows_are_not_warned_of_where_the_class_says_so(caplog: pytest.LogCaptureFixture) -> None:
    assert warnings_of(source([{"id": 1}], partial_rows=True), caplog) == []


def test_a_misspelt_key_among_extra_ones_is_still_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    bad = {"id": 1, "amuont": 2, "place": {"lon": 1.5, "lat": 2.5}}
    (found,) = warnings_of(source([bad] * 3, extra_keys=True), caplog)
    assert "'amount'" in found
