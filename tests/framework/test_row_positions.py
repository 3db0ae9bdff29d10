# SPDX-License-Identifier: Apache-2.0
"""The position of a record batch is never after its rows, whatever fails."""

from __future__ import annotations

import pyarrow as pa
import pytest
from manual_clock import ManualClock

from forebay.errors import ContractError, DataError, ForebayError
from forebay.framework.arrow.row_packer import Batch, RowPacker
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.split import Split

SCHEMA = pa.schema([("n", pa.int64())])


def packer() -> RowPacker:
    return RowPacker(SCHEMA, Split("x"), ManualClock(), HostOptions(max_rows_per_batch=1000), source="src")


def counted(number: int, bad: int) -> object:
    return {"n": "x" if number == bad else number}


def counted_arrow(number: int, bad: int) -> object:
    return pa.record_batch({"n": ["x" if number == bad else number]})


def mixed(number: int, bad: int) -> object:
    return counted_arrow(number, bad) if number % 5 == 0 else counted(number, bad)


def own(number: int, bad: int) -> object:
    return Batch([counted(number, bad)], number + 1)  # type: ignore[list-item]  # it is a dict


def own_arrow(number: int, bad: int) -> object:
    return Batch(counted_arrow(number, bad), number + 1)  # type: ignore[arg-type]  # it is a record batch


def no_row(number: int, bad: int) -> object:
    return 42 if number == bad else {"n": number}


@pytest.mark.parametrize("bad", [0, 7, 20, 50])
@pytest.mark.parametrize("form", [counted, counted_arrow, mixed, own, own_arrow, no_row])
def test_after_a_row_that_does_not_fit_the_position_is_that_of_the_rows_given(form, bad):  # type: ignore[no-untyped-def]
    one = packer()
    with pytest.raises((DataError, ContractError)):
        for number in range(100):
            assert one.add(form(number, bad)) is None
    try:
        taken = one.take()
    except ForebayError:
        taken = one.take()
    given = taken.batch.column("n").to_pylist() if taken is not None else []
    assert given == list(range(len(given)))
    assert len(given) <= bad
    assert (one.position or 0) == len(given)
    assert taken is None or taken.position == len(given)
    assert one.due_in() is None


def test_rows_that_make_no_single_record_batch_are_refused_not_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of more text than 2 GiB combine into several chunks."""

    class Table:
        """Stands in for pyarrow's, which would need the 2 GiB."""

        @staticmethod
        def from_batches(batches: list[pa.RecordBatch], schema: pa.Schema) -> Table:
            assert len(batches) == 2
            return Table()

        def combine_chunks(self) -> Table:
            return self

        def to_batches(self) -> list[pa.RecordBatch]:
            return [pa.record_batch({"n": [1]}), pa.record_batch({"n": [2]})]

    one = packer()
    one.add(pa.table({"n": pa.chunked_array([[1], [2]])}))
    monkeypatch.setattr(pa, "Table", Table)
    with pytest.raises(ContractError, match="2 GiB") as caught:
        one.take()
    assert (caught.value.source, caught.value.split, caught.value.rule) == ("src", "x", "SR-2")
    assert "fewer rows" in str(caught.value)
    with pytest.raises(ContractError, match="2 GiB"):  # and not later either
        one.take()


@pytest.mark.parametrize("raises", [False, True])
def test_values_that_make_no_single_array_are_refused_with_their_row(
    monkeypatch: pytest.MonkeyPatch, raises: bool
) -> None:
    def array(values: list[object], type: pa.DataType) -> pa.ChunkedArray:  # noqa: A002 - Arrow's name
        if raises:
            raise pa.ArrowCapacityError("array cannot contain more than 2147483646 bytes")
        return pa.chunked_array([values[:1], values[1:]], type)

    one = packer()
    one.add(Batch([{"n": 1}, {"n": 2}], 2))
    monkeypatch.setattr(pa, "array", array)
    with pytest.raises(ContractError, match="'n'.*2 GiB") as caught:
        one.take()
    assert caught.value.position == "row 0"
    assert "maxRowsPerBatch" in str(caught.value)
