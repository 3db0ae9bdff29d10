# SPDX-License-Identifier: Apache-2.0
"""The values of a row are taken when it is yielded; the author may reuse the dict."""

from __future__ import annotations

from collections import UserDict, defaultdict
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa
import pytest

import forebay
from forebay.errors import ContractError
from forebay.framework.arrow.row_packer import Batch
from forebay.framework.split import Split

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string())])


def read(schema: pa.Schema, items: Iterable[object]) -> list[dict[str, object]]:
    class Given(forebay.SimpleSource):
        extra_keys = True

        def schema(self) -> pa.Schema:
            return schema

        def read(self, split: Split) -> Iterable[Mapping[str, object]]:
            return items  # type: ignore[return-value]  # whatever the test gives

    return forebay.run(Given()).to_table().to_pylist()  # type: ignore[no-any-return]  # pyarrow says Any


@pytest.mark.parametrize("schema", [SCHEMA, SCHEMA.remove(1)])
@pytest.mark.parametrize("kind", [dict, UserDict])
def test_a_dict_may_be_filled_again_for_the_next_row(schema: pa.Schema, kind: type[dict[str, object]]) -> None:
    def rows() -> Iterable[object]:
        row = kind()
        for number in range(5):
            row["a"] = number
            if number == 3:
                row["b"] = "x"
            yield row

    found = read(schema, rows())
    assert [row["a"] for row in found] == [0, 1, 2, 3, 4]
    assert [row.get("b") for row in found] == ([None] * 3 + ["x"] * 2 if "b" in schema.names else [None] * 5)


def test_a_list_of_dicts_may_be_filled_again_for_the_next_batch() -> None:
    def batches() -> Iterable[object]:
        rows = [{"a": 0}, {"a": 0}]
        for number in range(0, 6, 2):
            rows[0]["a"], rows[1]["a"] = number, number + 1
            yield Batch(rows, number + 2)
            rows.reverse()

    assert [row["a"] for row in read(SCHEMA, batches())] == [0, 1, 2, 3, 4, 5]


class Pair(NamedTuple):
    a: int
    b: str


def test_every_kind_of_row_gives_its_columns() -> None:
    default: defaultdict[str, object] = defaultdict(lambda: 7, a=3)
    rows = [{"b": "x", "a": 1}, MappingProxyType({"a": 2}), default, Pair(4, "y"), {}, {"b": None}]
    assert [tuple(row.values()) for row in read(SCHEMA, rows)] == [
        (1, "x"),
        (2, None),
        (3, None),
        (4, "y"),
        (None, None),
        (None, None),
    ]
    assert dict(default) == {"a": 3}  # no missing key was created


@pytest.mark.parametrize("bad", [{"z": 1}, (1,), (1, "x", 2)])
@pytest.mark.parametrize("wrapped", [False, True])
def test_the_row_that_is_none_is_named(bad: object, wrapped: bool) -> None:
    items = [{"a": number} for number in range(20)] + [bad]
    with pytest.raises(ContractError) as caught:
        read(SCHEMA, [Batch(items[:7], 7), Batch(items[7:], 21)] if wrapped else items)  # type: ignore[arg-type]  # one is bad
    assert caught.value.position == "row 20"
