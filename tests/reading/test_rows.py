# SPDX-License-Identifier: Apache-2.0
"""Row packing: from the items of a generator to record batches with positions."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from manual_clock import ManualClock

from forebay.errors import ContractError, DataError
from forebay.framework.arrow.row_packer import Batch, Packed, RowPacker
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.split import Split
from forebay.options import ByteSize

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("s", pa.string())])


def packer(
    split: Split | None = None, clock: ManualClock | None = None, *, max_rows: int = 1000, max_bytes: int = 1 << 20
) -> RowPacker:
    options = HostOptions(max_rows_per_batch=max_rows, max_bytes_per_batch=ByteSize(max_bytes))
    return RowPacker(SCHEMA, split or Split("x"), clock or ManualClock(), options, source="src")


def run(one: RowPacker, items: Sequence[object]) -> list[Packed]:
    out = []
    for item in items:
        if one.at_end:
            break
        packed = one.add(item)
        if packed is not None:
            out.append(packed)
    tail = one.take()
    return [*out, tail] if tail is not None else out


def numbers(packed: Sequence[Packed]) -> list[int]:
    return [value for part in packed for value in part.batch.column("n").to_pylist()]


def test_dicts_and_tuples_become_typed_columns() -> None:
    (one,) = run(packer(), [{"n": 1, "s": "a"}, (2, None), {"n": 3}])
    assert one.batch.to_pylist() == [{"n": 1, "s": "a"}, {"n": 2, "s": None}, {"n": 3, "s": None}]
    assert one.batch.schema.equals(SCHEMA)
    assert one.position == 3


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(1, 50), st.integers(1, 2000), st.integers(0, 300))
def test_any_sizes_give_every_row_once_in_order_with_row_counts(
    sizes: list[int], max_rows: int, max_bytes: int, start: int
) -> None:
    items: list[object] = []
    at = start
    for number, size in enumerate(sizes):
        rows = [{"n": value, "s": "x" * (value % 7)} for value in range(at, at + size)]
        items += rows if number % 2 else [pa.RecordBatch.from_pylist(rows, schema=SCHEMA)]
        at += size
    packed = run(packer(Split("x", start or None), max_rows=max_rows, max_bytes=max_bytes), items)
    assert numbers(packed) == list(range(start, at))
    reached = start
    for part in packed:
        reached += part.batch.num_rows
        assert part.position == reached


@given(st.integers(0, 60), st.integers(0, 60), st.integers(1, 20))
def test_counted_rows_stop_exactly_at_the_end(start: int, more: int, max_rows: int) -> None:
    one = packer(Split("x", start, start + more), max_rows=max_rows)
    items = [{"n": value} for value in range(start, start + more + 25)]
    assert numbers(run(one, items)) == list(range(start, start + more))
    assert one.at_end


def test_a_batch_is_never_cut_and_its_position_is_the_last_one() -> None:
    packed = run(
        packer(max_rows=4),
        [Batch([{"n": 1}, {"n": 2}], "b"), Batch([], "c"), Batch([{"n": value} for value in range(9)], "d")],
    )
    assert [(part.batch.num_rows, part.position) for part in packed] == [(11, "d")]


def test_unfilled_rows_go_out_after_the_delay() -> None:
    clock = ManualClock()
    one = packer(clock=clock)
    assert one.due_in() is None
    assert one.add({"n": 1}) is None
    assert one.take_due() is None
    assert one.due_in() == pytest.approx(0.1)
    clock.advance(0.2)
    due = one.take_due()
    assert due is not None
    assert numbers([due]) == [1]
    assert one.due_in() is None


def test_large_rows_are_converted_early() -> None:
    """A full record batch stays near max_bytes, whatever the rows' size."""
    packed = run(packer(max_bytes=1 << 20, max_rows=10_000), [{"n": n, "s": "x" * 100_000} for n in range(200)])
    assert max(part.batch.nbytes for part in packed) < 8 << 20
    assert len(numbers(packed)) == 200


@pytest.mark.parametrize(
    ("items", "kind", "message"),
    [
        ([{"n": "one"}], ContractError, r"'n' is int64, but got 'one' \(str\)"),
        ([{"n": 1}] * 3 + [{"n": None}], DataError, "'n' must not be null"),
        ([{"n": 1 << 80}], ContractError, "int64"),
        ([(1,)], ContractError, "a tuple of 1 values, but schema\\(\\) has 2 columns"),
        ([{"m": 1}], ContractError, r"none of the columns \['n', 's'\]"),
        ([42], ContractError, "yielded a int"),
        ([Batch([1, 2], 1)], ContractError, "a row that is a int"),  # type: ignore[list-item]  # that is the point
        ([{"n": 1}, Batch([], 1)], ContractError, "a Batch after plain rows"),
        ([Batch([{"n": 1}], 1), {"n": 1}], ContractError, "plain rows after a Batch"),
        ([Batch([{"n": 1}], 5), Batch([{"n": 1}], 5)], ContractError, "where the split was before these rows"),
        ([Batch([{"n": 1}], 1.5)], ContractError, "a float is not exact"),  # type: ignore[arg-type]  # that is the point
        ([pa.RecordBatch.from_pydict({"m": [1]})], ContractError, "does not fit the schema"),
        ([pa.RecordBatch.from_pydict({"n": ["x"], "s": ["y"]})], ContractError, "does not fit the schema"),
    ],
)
def test_what_is_wrong_is_named_with_the_place(items: list[object], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message) as raised:
        run(packer(), items)
    assert getattr(raised.value, "split", None) == "x"


def test_the_row_of_a_bad_value_is_named() -> None:
    with pytest.raises(ContractError) as raised:
        run(packer(), [{"n": value} for value in range(100)] + [{"n": "bad"}])
    assert raised.value.position == "row 100"


def test_counted_rows_need_a_counted_position() -> None:
    with pytest.raises(ContractError, match="positions of your own"):
        run(packer(Split("x", "cursor")), [{"n": 1}])


def test_record_batches_are_selected_by_name_and_cast() -> None:
    table = pa.table({"s": pa.array(["a"], pa.large_string()), "n": pa.array([1], pa.int32()), "z": [0]})
    (one,) = run(packer(), [table])
    assert one.batch.to_pylist() == [{"n": 1, "s": "a"}]
    assert one.batch.schema.equals(SCHEMA)
